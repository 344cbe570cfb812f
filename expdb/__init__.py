"""expdb: the experience database for reinforcement-learning and LLM agents.

What agents saw, did and earned, kept in SQL. `open` is the front door:

>>> import expdb
>>> with expdb.open(":memory:") as db:
...     buffer = db.buffer("train", capacity=100_000)
...     position = buffer.store(task_id="task_1", action={"tool": "search"}, reward=0.5)
...     batch = buffer.sample(4)
>>> batch["reward"].tolist()
[0.5, 0.5, 0.5, 0.5]
"""

from expdb.batch import Batch
from expdb.buffer import ReplayBuffer
from expdb.checks import KEEP
from expdb.chunks.fields import Field
from expdb.consumer import Consumer
from expdb.database import ExperienceDB, copy, grant, open, upgrade
from expdb.errors import (
    AccessDenied,
    ArchiveFailed,
    CapacityMismatch,
    ChunkDamaged,
    CommitUnknown,
    ConnectionLost,
    ConsumerMismatch,
    DatabaseBusy,
    DatabaseClosed,
    DatabaseDamaged,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseReplaced,
    DatabaseUnreadable,
    DriverMissing,
    EpisodeEnded,
    EpisodeMismatch,
    Evicted,
    ExpDBError,
    ExpDBWarning,
    FieldMismatch,
    ForkedWithOpenConnection,
    InvalidValue,
    LeaseLost,
    NotAnExperienceDatabase,
    QueryError,
    RateLimited,
    ReplayMismatch,
    ReservedName,
    SchemaOutdated,
    SchemaTooNew,
    ServerTooOld,
    SqlError,
    SqlRefused,
    StorageFull,
    TargetExists,
    TooFewRows,
    UnknownBuffer,
    UnknownConsumer,
    UnknownEpisode,
)
from expdb.lease import Lease
from expdb.replay.layout import Layout, Trajectories
from expdb.replay.rate_limiters import MinSize, Pace, Queue, RateLimiter, SampleToInsertRatio
from expdb.replay.samplers import Newest, Ordered, Population, Prioritized, Sampler, Uniform
from expdb.replay.sequences import Episode, Group, Sequence
from expdb.replay.transitions import NStep, Stack
from expdb.replay.units import Step, Unit
from expdb.sql.query import QueryBuilder
from expdb.step_writer import StepWriter
from expdb.storage.upkeep.eviction import Eviction
from expdb.writer import EpisodeWriter

__version__ = "0.1.0"

__all__ = [
    "KEEP",
    "AccessDenied",
    "ArchiveFailed",
    "Batch",
    "CapacityMismatch",
    "ChunkDamaged",
    "CommitUnknown",
    "ConnectionLost",
    "Consumer",
    "ConsumerMismatch",
    "DatabaseBusy",
    "DatabaseClosed",
    "DatabaseDamaged",
    "DatabaseMissing",
    "DatabaseReadOnly",
    "DatabaseReplaced",
    "DatabaseUnreadable",
    "DriverMissing",
    "Episode",
    "EpisodeEnded",
    "EpisodeMismatch",
    "EpisodeWriter",
    "Evicted",
    "Eviction",
    "ExpDBError",
    "ExpDBWarning",
    "ExperienceDB",
    "Field",
    "FieldMismatch",
    "ForkedWithOpenConnection",
    "Group",
    "InvalidValue",
    "Layout",
    "Lease",
    "LeaseLost",
    "MinSize",
    "NStep",
    "Newest",
    "NotAnExperienceDatabase",
    "Ordered",
    "Pace",
    "Population",
    "Prioritized",
    "QueryBuilder",
    "QueryError",
    "Queue",
    "RateLimited",
    "RateLimiter",
    "ReplayBuffer",
    "ReplayMismatch",
    "ReservedName",
    "SampleToInsertRatio",
    "Sampler",
    "SchemaOutdated",
    "SchemaTooNew",
    "Sequence",
    "ServerTooOld",
    "SqlError",
    "SqlRefused",
    "Stack",
    "Step",
    "StepWriter",
    "StorageFull",
    "TargetExists",
    "TooFewRows",
    "Trajectories",
    "Uniform",
    "Unit",
    "UnknownBuffer",
    "UnknownConsumer",
    "UnknownEpisode",
    "copy",
    "grant",
    "open",
    "upgrade",
]
