"""Replay buffers for DI-engine that store items in an expdb database.

Change the import, and the items remain in a database after the program ends.

    from ding.worker.replay_buffer import AdvancedReplayBuffer             # before
    from ding.data.buffer import DequeBuffer
    from expdb.integrations.di_engine import AdvancedReplayBuffer, DequeBuffer          # after

DI-engine need not be installed. `docs/how-to/move-from-di-engine.md` compares every class and
option of both generations of DI-engine's buffers with the original.
"""

from expdb.integrations.di_engine.advanced import AdvancedReplayBuffer
from expdb.integrations.di_engine.buffer import Buffer, DequeBuffer, apply_middleware
from expdb.integrations.di_engine.buffered import BufferedData
from expdb.integrations.di_engine.middleware import (
    PriorityExperienceReplay,
    clone_object,
    group_sample,
    padding,
    sample_range_view,
    staleness_check,
    use_time_check,
)
from expdb.integrations.di_engine.monitors import (
    PeriodicThruputMonitor,
    SampledDataAttrMonitor,
    ThruputController,
    UsedDataRemover,
    generate_id,
)
from expdb.integrations.di_engine.naive import (
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    IBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)
from expdb.integrations.di_engine.wrapper import (
    DequeBufferWrapper,
    create_buffer,
    get_buffer_cls,
)

__all__ = [
    "AdvancedReplayBuffer",
    "Buffer",
    "BufferedData",
    "DequeBuffer",
    "DequeBufferWrapper",
    "ElasticReplayBuffer",
    "EpisodeReplayBuffer",
    "IBuffer",
    "NaiveReplayBuffer",
    "PeriodicThruputMonitor",
    "PriorityExperienceReplay",
    "SampledDataAttrMonitor",
    "SequenceReplayBuffer",
    "ThruputController",
    "UsedDataRemover",
    "apply_middleware",
    "clone_object",
    "create_buffer",
    "generate_id",
    "get_buffer_cls",
    "group_sample",
    "padding",
    "sample_range_view",
    "staleness_check",
    "use_time_check",
]
