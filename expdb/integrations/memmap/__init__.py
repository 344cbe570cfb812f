"""A replay buffer with the API of memmap-replay-buffer that uses an experience database.

To use it, change the import:

    from memmap_replay_buffer import ReplayBuffer           # before
    from expdb.integrations.memmap import ReplayBuffer      # after

`docs/how-to/move-from-memmap.md` compares every name with the original.
`import_folder` reads a folder that memmap-replay-buffer has written.
"""

from expdb import errors

try:
    from expdb.integrations.memmap.buffer import ReplayBuffer
    from expdb.integrations.memmap.collector import EpisodeCollector
    from expdb.integrations.memmap.concat import ConcatReplayBuffer
    from expdb.integrations.memmap.datasets import (
        ReplayDataset,
        ReplayDatasetNStep,
        ReplayDatasetTimestep,
        ReplayDatasetTimeWindow,
        ReplayDatasetTrajectory,
    )
    from expdb.integrations.memmap.folders import import_folder
except ImportError as error:
    raise errors.DriverMissing(
        f"PyTorch cannot be imported ({error}); run `pip install 'expdb[torch]'`"
    ) from error

__all__ = [
    "ConcatReplayBuffer",
    "EpisodeCollector",
    "ReplayBuffer",
    "ReplayDataset",
    "ReplayDatasetNStep",
    "ReplayDatasetTimeWindow",
    "ReplayDatasetTimestep",
    "ReplayDatasetTrajectory",
    "import_folder",
]
