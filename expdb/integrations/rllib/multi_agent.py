"""RLlib's buffers of multi-agent batches, with one buffer in the database for each policy."""

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
    StoredSamples,
)


class _Policies(dict[str, StoredSamples]):
    """Map each policy to its buffer; create a missing buffer when it is first accessed."""

    def __init__(self, make: Callable[[str], StoredSamples]):
        super().__init__()
        self._make = make

    def __missing__(self, policy_id: Any) -> StoredSamples:
        name = str(policy_id)  # ids may be integers, but buffer names are text
        made = self[policy_id] = self.pop(name) if name in self else self._make(name)
        return made


class _MultiAgent(rllib.MultiAgentReplayBuffer):
    """Base of the multi-agent buffers: RLlib splits batches by policy, expdb stores each part."""

    def _store(
        self,
        location: str | os.PathLike[str],
        name: str,
        config: Any,
        capacity: int,
        state_includes_data: bool,
    ) -> None:
        """Store the items of each policy in the buffer `<name>.<policy>`; open stored policies."""
        self.location, self.name = absolute(location), name
        is_private = self.location == PRIVATE
        self._database = expdb.open(location)  # closing a private database deletes it
        kind = self._kind(config)
        options = {"capacity": capacity, **(config or {})}
        for key in ("type", "beta"):
            options.pop(key, None)
        unit = options.pop("storage_unit", StorageUnit.FRAGMENTS)
        if self.storage_unit == StorageUnit.TIMESTEPS:
            unit = StorageUnit.TIMESTEPS

        def make(policy: str) -> StoredSamples:
            buffer = kind(
                storage_unit=unit,
                location=self._database.location if is_private else location,
                name=f"{name}.{policy}",
                state_includes_data=state_includes_data,
                **options,
            )
            buffer.is_private, buffer.splits = is_private, False  # RLlib has split the batches
            return buffer

        self.replay_buffers = _Policies(make)
        prefix = f"{name}."
        for stored in self._database.buffers():
            if stored.startswith(prefix) and not stored.endswith(".structures"):
                self.replay_buffers[stored.removeprefix(prefix)]

    def _kind(self, config: Any) -> Callable[..., StoredSamples]:
        """Return the class of the buffer of a policy."""
        kind = (config or {}).get("type", ReplayBuffer)
        if isinstance(kind, str):
            kind = {"ReplayBuffer": ReplayBuffer, "PrioritizedReplayBuffer":
                    PrioritizedReplayBuffer}.get(kind.rpartition(".")[2])  # fmt: skip
        if not (isinstance(kind, type) and issubclass(kind, StoredSamples)):
            raise ValueError(
                "the type of underlying_buffer_config must be ReplayBuffer or "
                "PrioritizedReplayBuffer of expdb.integrations.rllib"
            )
        return kind

    def __len__(self) -> int:
        return sum(len(buffer) for buffer in self.replay_buffers.values())

    def flush(self) -> None:
        """Write all added items, so that they are durable and visible to other processes."""
        for buffer in self.replay_buffers.values():
            buffer.flush()

    def close(self) -> None:
        """Write all added items and close the database. A private database is then deleted."""
        for buffer in self.replay_buffers.values():
            buffer.close()
        self._database.close()


class MultiAgentReplayBuffer(_MultiAgent):
    """Store the items of RLlib's `MultiAgentReplayBuffer` in a database.

    Parameters
    ----------
    *args
        Positional arguments of RLlib's buffer.
    location : str or path-like
        Path of a database or PostgreSQL URL. By default, the database is private and temporary.
    name : str
        Prefix of the buffer names. The items of a policy are in the buffer `<name>.<policy>`.
    underlying_buffer_config : dict, optional
        Configuration of the buffer of each policy. Its `"type"` is `ReplayBuffer` (the default) or
        `PrioritizedReplayBuffer` of this package.
    state_includes_data : bool
        Whether `get_state` also returns the items. For a private database, it always does.
    **options
        Further keyword arguments of RLlib's buffer.

    Raises
    ------
    ValueError
        If `underlying_buffer_config` has another type.
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
    """Store the items of RLlib's `MultiAgentPrioritizedReplayBuffer` in a database.

    Parameters
    ----------
    *args
        Positional arguments of RLlib's buffer.
    location : str or path-like
        Path of a database or PostgreSQL URL. By default, the database is private and temporary.
    name : str
        Prefix of the buffer names. The items of a policy are in the buffer `<name>.<policy>`.
    underlying_buffer_config : dict, optional
        Configuration of the buffer of each policy. By default, it is a `PrioritizedReplayBuffer`
        with `alpha=prioritized_replay_alpha`.
    prioritized_replay_alpha : float
        Exponent of the priorities.
    prioritized_replay_beta : float
        Exponent of the importance weights.
    prioritized_replay_eps : float
        Number that is added to updated priorities.
    state_includes_data : bool
        Whether `get_state` also returns the items. For a private database, it always does.
    **options
        Further keyword arguments of RLlib's buffer.

    Raises
    ------
    ValueError
        If `underlying_buffer_config` has a type that is not a buffer of this package.
    """

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
    """Store the items of RLlib's `MultiAgentMixInReplayBuffer` in a database.

    The database also stores batches that were added but not sampled yet. After a restart, these
    batches count as old batches.

    Parameters
    ----------
    *args
        Positional arguments of RLlib's buffer.
    location : str or path-like
        Path of a database or PostgreSQL URL. By default, the database is private and temporary.
    name : str
        Prefix of the buffer names. The items of a policy are in the buffer `<name>.<policy>`.
    state_includes_data : bool
        Whether `get_state` also returns the items. For a private database, it always does.
    **options
        Further keyword arguments of RLlib's buffer.
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
        """Restore a state that `get_state` returned.

        Parameters
        ----------
        state : dict
            The state.

        Raises
        ------
        ValueError
            If the state belongs to another buffer, or its data cannot be read.
        """
        self.last_added_batches = state["last_added_batches"]
        rllib.MultiAgentReplayBuffer.set_state(self, state)
