"""A replay buffer with the API of MineStudio's online buffer that uses an experience database.

To use it, change the import:

    from minestudio.online.rollout.replay_buffer.interface import ReplayBufferInterface    # before
    from expdb.integrations.minestudio import ReplayBufferInterface                         # after

The buffer works with and without Ray. `docs/how-to/move-from-minestudio.md` compares every name
and option with the original.
"""

from expdb.integrations.minestudio.datatypes import (
    FragmentDataDict,
    FragmentIndex,
    FragmentMetadata,
    SampleFragment,
)
from expdb.integrations.minestudio.interface import ReplayBufferInterface

__all__ = [
    "FragmentDataDict",
    "FragmentIndex",
    "FragmentMetadata",
    "ReplayBufferInterface",
    "SampleFragment",
]
