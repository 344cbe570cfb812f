"""The public names of `aworld.replay_buffer.base`, the usual module to import from."""

from expdb.integrations.aworld.buffer import ReplayBuffer
from expdb.integrations.aworld.query_filter import QueryBuilder, QueryFilter
from expdb.integrations.aworld.rows import DataRow, Experience, ExpMeta
from expdb.integrations.aworld.samplers import (
    Converter,
    DefaultConverter,
    RandomTaskSample,
    Sampler,
    TaskSampler,
)
from expdb.integrations.aworld.storage import InMemoryStorage, Storage

__all__ = [
    "Converter",
    "DataRow",
    "DefaultConverter",
    "ExpMeta",
    "Experience",
    "InMemoryStorage",
    "QueryBuilder",
    "QueryFilter",
    "RandomTaskSample",
    "ReplayBuffer",
    "Sampler",
    "Storage",
    "TaskSampler",
]
