"""A replay buffer with AWorld's API that stores its rows in an experience database.

To use it, change the import:

    from aworld.replay_buffer import ReplayBuffer, DataRow, ExpMeta, Experience      # before
    from expdb.integrations.aworld import ReplayBuffer, DataRow, ExpMeta, Experience         # after

`docs/how-to/move-from-aworld.md` compares every name with the original.
"""

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
from expdb.integrations.aworld.storage import InMemoryStorage, SQLStorage, Storage
from expdb.integrations.aworld.storage.multi_proc_mem import MultiProcMemoryStorage

__all__ = [
    "Converter",
    "DataRow",
    "DefaultConverter",
    "ExpMeta",
    "Experience",
    "InMemoryStorage",
    "MultiProcMemoryStorage",
    "QueryBuilder",
    "QueryFilter",
    "RandomTaskSample",
    "ReplayBuffer",
    "SQLStorage",
    "Sampler",
    "Storage",
    "TaskSampler",
]
