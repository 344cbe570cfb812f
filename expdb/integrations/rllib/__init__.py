"""Replay buffers for RLlib that store items and episodes in an expdb database.

    config = DQNConfig().training(
        replay_buffer_config={
            "type": "expdb.integrations.rllib.PrioritizedEpisodeReplayBuffer",
            "capacity": 50_000, "alpha": 0.6, "beta": 0.4, "location": "runs.db",
        },
    )

Each class replaces the RLlib class of the same name.

If you stop an algorithm and start it again, it continues with the stored experience.
`docs/how-to/move-from-rllib.md` compares every class and option with the original.
"""

from expdb import errors

try:
    from expdb.integrations.rllib.episode_buffers import (
        EpisodeReplayBuffer,
        PrioritizedEpisodeReplayBuffer,
    )
    from expdb.integrations.rllib.multi_agent import (
        MultiAgentMixInReplayBuffer,
        MultiAgentPrioritizedReplayBuffer,
        MultiAgentReplayBuffer,
    )
    from expdb.integrations.rllib.multi_agent_episode_buffers import (
        MultiAgentEpisodeReplayBuffer,
        MultiAgentPrioritizedEpisodeReplayBuffer,
    )
    from expdb.integrations.rllib.reservoir_and_queue import (
        FifoReplayBuffer,
        ReservoirReplayBuffer,
    )
    from expdb.integrations.rllib.sac import SACConfig
    from expdb.integrations.rllib.sample_batches import (
        PrioritizedReplayBuffer,
        ReplayBuffer,
        StorageUnit,
    )
except ImportError as error:
    raise errors.DriverMissing(
        f"RLlib cannot be imported ({error}); run `pip install 'expdb[rllib]'`"
    ) from error

__all__ = [
    "EpisodeReplayBuffer",
    "FifoReplayBuffer",
    "MultiAgentEpisodeReplayBuffer",
    "MultiAgentMixInReplayBuffer",
    "MultiAgentPrioritizedEpisodeReplayBuffer",
    "MultiAgentPrioritizedReplayBuffer",
    "MultiAgentReplayBuffer",
    "PrioritizedEpisodeReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "ReservoirReplayBuffer",
    "SACConfig",
    "StorageUnit",
]
