"""MineStudio's online replay buffer, in an experience database.

    from minestudio.online.rollout.replay_buffer.interface import ReplayBufferInterface    # before
    from expdb.integrations.minestudio import ReplayBufferInterface                         # after

It works with Ray and without. `docs/coming_from_minestudio.md` says of every name and option what
is the same, what is better and what is refused.
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
