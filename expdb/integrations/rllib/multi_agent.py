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
from expdb.integrations.locations import PRIVATE, absolute
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

    def __missing__(self, policy_id: Any) -> Stored:
        name = str(policy_id)  # ids may be integers, but buffer names are text
        made = self[policy_id] = self.pop(name) if name in self else self._make(name)
        return made


class _MultiAgent(rllib.MultiAgentReplayBuffer):
    """What they have in common: RLlib splits batches by policy, and each policy is stored."""

    def _store(
        self,
        location: str | os.PathLike[str],
        name: str,
        config: Any,
        capacity: int,
        state_includes_data: bool,
    ) -> None:
        """Keep the items of each policy in the buffer `<name>.<policy>` of one database."""
        self.location, self.name = absolute(location), name
        is_private = self.location == PRIVATE
        self._database = expdb.open(location)  # a private one is deleted when this is closed
        kind = self._kind(config)
        options = {"capacity": capacity, **(config or {})}
        for key in ("type", "beta"):
            options.pop(key, None)
        unit = options.pop("storage_unit", StorageUnit.FRAGMENTS)
        if self.storage_unit == StorageUnit.TIMESTEPS:
            unit = StorageUnit.TIMESTEPS

        def make(policy: str) -> Stored:
            buffer = kind(
                storage_unit=unit,
                location=self._database.location if is_private else location,
                name=f"{name}.{policy}",
                state_includes_data=state_includes_data,
                **options,
            )
            buffer.is_private, buffer.splits = is_private, False  # batches arrive cut into items
            return buffer

        self.replay_buffers = _Policies(make)
        prefix = f"{name}."
        for stored in self._database.buffers():
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
        self._database.close()


class MultiAgentReplayBuffer(_MultiAgent):
    """RLlib's `MultiAgentReplayBuffer` in a database.

    Takes the arguments of RLlib and three more. `location` is a path or a PostgreSQL URL (default:
    a private temporary database). `name` is the prefix of the buffers: the items of a policy are in
    `<name>.<policy>`. With `state_includes_data=True`, `get_state` also returns the items.
    """

    def __init__(
        self,
        *args: Any,
        location: str | os.PathLike[str] = PRIVATE,
        name: str = "multi_agent",
        underlying_buffer_config: Any = None,
        state_includes_data: bool = False,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.underlying_buffer_call_args = dict(underlying_buffer_config or {})
        shards = options.get("num_shards", args[2] if len(args) > 2 else 1)
        capacity = self.capacity // shards
        self._store(location, name, underlying_buffer_config, capacity, state_includes_data)


class MultiAgentPrioritizedReplayBuffer(
    _MultiAgent, multi_agent_prioritized_replay_buffer.MultiAgentPrioritizedReplayBuffer
):
    """RLlib's `MultiAgentPrioritizedReplayBuffer` in a database, as `MultiAgentReplayBuffer`."""

    def __init__(
        self,
        *args: Any,
        location: str | os.PathLike[str] = PRIVATE,
        name: str = "multi_agent",
        underlying_buffer_config: Any = None,
        prioritized_replay_alpha: float = 0.6,
        prioritized_replay_beta: float = 0.4,
        prioritized_replay_eps: float = 1e-6,
        state_includes_data: bool = False,
        **options: Any,
    ):
        super().__init__(
            *args,
            prioritized_replay_alpha=prioritized_replay_alpha,
            prioritized_replay_beta=prioritized_replay_beta,
            prioritized_replay_eps=prioritized_replay_eps,
            **options,
        )
        config = {"type": PrioritizedReplayBuffer, "alpha": prioritized_replay_alpha}
        if underlying_buffer_config is not None:
            config = underlying_buffer_config
            self.underlying_buffer_call_args = dict(config)
        self._store(location, name, config, self.capacity, state_includes_data)


class MultiAgentMixInReplayBuffer(
    _MultiAgent, multi_agent_mixin_replay_buffer.MultiAgentMixInReplayBuffer
):
    """RLlib's `MultiAgentMixInReplayBuffer` in a database, as `MultiAgentReplayBuffer`.

    New batches that were not sampled yet are stored, and are old ones after a restart.
    """

    def __init__(
        self,
        *args: Any,
        location: str | os.PathLike[str] = PRIVATE,
        name: str = "multi_agent",
        state_includes_data: bool = False,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self._store(location, name, None, self.capacity, state_includes_data)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of this buffer."""
        self.last_added_batches = state["last_added_batches"]
        rllib.MultiAgentReplayBuffer.set_state(self, state)
