"""The public names of the package; `expdb/__init__.py` imports them when the first is used."""

import logging

from expdb.batch import Batch
from expdb.buffer import ReplayBuffer
from expdb.checks import UNCHANGED
from expdb.chunks.fields import TOKEN_FIELDS, Field
from expdb.consumers.consumer import Consumer
from expdb.consumers.lease import Lease
from expdb.copying import copy
from expdb.database import ExperienceDB, grant, open, open_async, upgrade
from expdb.errors import (
    ExpDBError,
    ExpDBWarning,
    InvalidValue,
    LeaseLost,
    QueryError,
    TooFewRows,
)
from expdb.replay.by_task import ByTask
from expdb.replay.layout import Layout, Trajectories
from expdb.replay.pairs import Pairs
from expdb.replay.rate_limiters import MinSize, Pace, Queue, RateLimiter, SampleToInsertRatio
from expdb.replay.samplers import Newest, Ordered, Population, Prioritized, Sampler, Uniform
from expdb.replay.sequences import Episode, Group, Sequence
from expdb.replay.tokens import Tokens
from expdb.replay.transitions import NStep, Stack
from expdb.replay.units import Step, Unit
from expdb.sampling.epochs import Epochs
from expdb.sql.query import QueryBuilder
from expdb.storage.reading.registration import register
from expdb.storage.writing.eviction import Eviction
from expdb.writers.episode_writer import EpisodeWriter
from expdb.writers.step_writer import StepWriter

# Messages of expdb appear only if the program configures logging.
logging.getLogger("expdb").addHandler(logging.NullHandler())

__all__ = [
    "TOKEN_FIELDS",
    "UNCHANGED",
    "Batch",
    "ByTask",
    "Consumer",
    "Episode",
    "EpisodeWriter",
    "Epochs",
    "Eviction",
    "ExpDBError",
    "ExpDBWarning",
    "ExperienceDB",
    "Field",
    "Group",
    "InvalidValue",
    "Layout",
    "Lease",
    "LeaseLost",
    "MinSize",
    "NStep",
    "Newest",
    "Ordered",
    "Pace",
    "Pairs",
    "Population",
    "Prioritized",
    "QueryBuilder",
    "QueryError",
    "Queue",
    "RateLimiter",
    "ReplayBuffer",
    "SampleToInsertRatio",
    "Sampler",
    "Sequence",
    "Stack",
    "Step",
    "StepWriter",
    "Tokens",
    "TooFewRows",
    "Trajectories",
    "Uniform",
    "Unit",
    "copy",
    "grant",
    "open",
    "open_async",
    "register",
    "upgrade",
]
