"""Stable-Baselines3's replay buffers, in an experience database.

    from expdb.integrations.stable_baselines3 import ReplayBuffer

    model = DQN(
        "MlpPolicy", env,
        replay_buffer_class=ReplayBuffer, replay_buffer_kwargs={"location": "runs.db"},
    )

Training that is stopped and started again goes on with its buffer.
`docs/coming_from_stable_baselines3.md` says of every option what becomes of it.
"""

import expdb

try:
    from expdb.integrations.stable_baselines3.buffers import (
        DictReplayBuffer,
        NStepReplayBuffer,
        ReplayBuffer,
    )
    from expdb.integrations.stable_baselines3.her import HerReplayBuffer
    from expdb.integrations.stable_baselines3.prioritized import (
        PrioritizedReplayBuffer,
        PrioritizedReplayBufferSamples,
    )
except ImportError as error:
    raise expdb.DriverMissing(
        f"Stable-Baselines3 cannot be imported ({error}): pip install 'expdb[sb3]'"
    ) from error

__all__ = [
    "DictReplayBuffer",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "ReplayBuffer",
]
