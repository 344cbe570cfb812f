"""DI-engine's replay buffers, of both generations, in an experience database.

Change the import, and what was lost at the end of the program is in SQL.

    from ding.worker.replay_buffer import AdvancedReplayBuffer             # before
    from ding.data.buffer import DequeBuffer
    from expdb.integrations.di_engine import AdvancedReplayBuffer, DequeBuffer          # after

It works without DI-engine. `docs/coming_from_di_engine.md` says of every name and option what is
the same, what is better and what is refused.
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
