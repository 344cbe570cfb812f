"""Replay buffers for Stable-Baselines3 that store transitions in an expdb database.

    from expdb.integrations.stable_baselines3 import ReplayBuffer

    model = DQN(
        "MlpPolicy", env,
        replay_buffer_class=ReplayBuffer, replay_buffer_kwargs={"location": "runs.db"},
    )

Each class except `PrioritizedReplayBuffer` replaces the original class of the same name.

If you stop training and start it again, it continues with the stored transitions.
`docs/how-to/move-from-stable-baselines3.md` compares every class and option with the original.
"""

from expdb import errors

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
    raise errors.DriverMissing(
        f"Stable-Baselines3 cannot be imported ({error}); run `pip install 'expdb[sb3]'`"
    ) from error

__all__ = [
    "DictReplayBuffer",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "ReplayBuffer",
]
