"""RLlib's buffers of multi-agent batches: a buffer of the database for each policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ray.rllib.utils.replay_buffers import (
    multi_agent_mixin_replay_buffer,
    multi_agent_prioritized_replay_buffer,
)
from ray.rllib.utils.replay_buffers import multi_agent_replay_buffer as rllib

import expdb
from expdb.integrations.rllib.sample_batches import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    StorageUnit,
    Stored,
)


class _Policies(dict[str, Stored]):
    """The buffer of each policy, made when it is first asked for; those stored are there."""

    def __init__(self, make: Callable[[str], Stored]):
        super().__init__()
        self._make = make

    def __missing__(self, policy_id: str) -> Stored:
        made = self[policy_id] = self._make(policy_id)
        return made


class _MultiAgent(rllib.MultiAgentReplayBuffer):
    """What they have in common: RLlib splits batches by policy, and each policy is stored."""

    def _store(self, location: str | os.PathLike[str], name: str, config: Any) -> None:
        """Have each policy's items in the buffer `<name>.<policy>` of a database."""
        self.location, self.name = location, name
        kind = self._kind(config)
        options = {key: one for key, one in (config or {}).items() if key != "type"}
        unit = options.pop("storage_unit", StorageUnit.FRAGMENTS)
        if self.storage_unit == StorageUnit.TIMESTEPS:
            unit = StorageUnit.TIMESTEPS
        options = {"capacity": self.capacity, **options}
        self.replay_buffers = _Policies(
            lambda policy: kind(
                storage_unit=unit, location=location, name=f"{name}.{policy}", **options
            )
        )
        with expdb.open(location) as database:
            prefix = f"{name}."
            for stored in database.buffers():
                if stored.startswith(prefix) and not stored.endswith(".structures"):
                    self.replay_buffers[stored.removeprefix(prefix)]

    def _kind(self, config: Any) -> Callable[..., Stored]:
        """Return the class of the buffer of a policy."""
        kind = (config or {}).get("type", ReplayBuffer)
        if isinstance(kind, str):
            kind = {"ReplayBuffer": ReplayBuffer, "PrioritizedReplayBuffer":
                    PrioritizedReplayBuffer}.get(kind.rpartition(".")[2])  # fmt: skip
        if not (isinstance(kind, type) and issubclass(kind, Stored)):
            raise ValueError(
                "underlying_buffer_config has a type that is not in a database: give ReplayBuffer "
                "or PrioritizedReplayBuffer of expdb.integrations.rllib"
            )
        return kind

    def __len__(self) -> int:
        return sum(len(one) for one in self.replay_buffers.values())

    def flush(self) -> None:
        """Have everything that was added durable, and visible to other processes."""
        for one in self.replay_buffers.values():
            one.flush()

    def close(self) -> None:
        """Flush, and close the databases; what they hold stays."""
        for one in self.replay_buffers.values():
            one.close()


def _located(location: str | os.PathLike[str]) -> str:
    if os.fspath(location) == ":memory:":
        raise ValueError(
            "a buffer for each policy needs one database: give location, a path or a URL"
        )
    return os.fspath(location)


class MultiAgentReplayBuffer(_MultiAgent):
    """RLlib's `MultiAgentReplayBuffer` in a database.

    Arguments are RLlib's, `location`, a path or a PostgreSQL URL, and `name`: the items of a policy
    are in the buffer `<name>.<policy>`.
    """

    def __init__(
        self,
        *args: Any,
        location: str | os.PathLike[str],
        name: str = "multi_agent",
        underlying_buffer_config: Any = None,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.underlying_buffer_call_args: dict[str, Any] = {}
        self._store(_located(location), name, underlying_buffer_config)


class MultiAgentPrioritizedReplayBuffer(
    _MultiAgent, multi_agent_prioritized_replay_buffer.MultiAgentPrioritizedReplayBuffer
):
    """RLlib's `MultiAgentPrioritizedReplayBuffer` in a database, as `MultiAgentReplayBuffer`."""

    def __init__(
        self,
        *args: Any,
        location: str | os.PathLike[str],
        name: str = "multi_agent",
        prioritized_replay_alpha: float = 0.6,
        prioritized_replay_beta: float = 0.4,
        prioritized_replay_eps: float = 1e-6,
        **options: Any,
    ):
        super().__init__(
            *args,
            prioritized_replay_alpha=prioritized_replay_alpha,
            prioritized_replay_beta=prioritized_replay_beta,
            prioritized_replay_eps=prioritized_replay_eps,
            **options,
        )
        kind = {"type": PrioritizedReplayBuffer, "alpha": prioritized_replay_alpha}
        self._store(_located(location), name, kind)


class MultiAgentMixInReplayBuffer(
    _MultiAgent, multi_agent_mixin_replay_buffer.MultiAgentMixInReplayBuffer
):
    """RLlib's `MultiAgentMixInReplayBuffer` in a database, as `MultiAgentReplayBuffer`.

    New batches that were not sampled yet are stored, and are old ones after a restart.
    """

    def __init__(
        self,
        *args: Any,
        location: str | os.PathLike[str],
        name: str = "multi_agent",
        **options: Any,
    ):
        super().__init__(*args, **options)
        self._store(_located(location), name, None)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of this buffer."""
        self.last_added_batches = state["last_added_batches"]
        rllib.MultiAgentReplayBuffer.set_state(self, state)
