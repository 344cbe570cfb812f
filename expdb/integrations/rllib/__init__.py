"""RLlib's replay buffers, in an experience database.

    config = DQNConfig().training(
        replay_buffer_config={
            "type": "expdb.integrations.rllib.PrioritizedEpisodeReplayBuffer",
            "capacity": 50_000, "alpha": 0.6, "beta": 0.4, "location": "runs.db",
        },
    )

An algorithm that is stopped and started again goes on with its buffer.
`docs/coming_from_rllib.md` says of every name and option what becomes of it.
"""

import expdb

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
    raise expdb.DriverMissing(
        f"RLlib cannot be imported ({error}): pip install 'expdb[rllib]'"
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
