"""PolicyVersions: the current policy version of each agent that has one of its own."""

from collections.abc import Iterator, MutableMapping
from typing import NoReturn

from expdb import checks, errors
from expdb.storage.ledger import consumers
from expdb.storage.store import Store


class PolicyVersions(MutableMapping[str, int]):
    """The current policy versions of single agents, by `agent_id`.

    `ReplayBuffer.policy_versions` returns this mapping. Every read and every assignment uses the
    database, so all processes share the versions. A version never decreases, and cannot be removed.

    Examples
    --------
    >>> buffer.policy_versions["opponent"] = 3  # doctest: +SKIP
    >>> dict(buffer.policy_versions)  # doctest: +SKIP
    {'opponent': 3}
    """

    def __init__(self, store: Store):
        self._store = store

    def _read(self) -> dict[str, int]:
        return self._store.read(consumers.policy_versions)

    def _all(self) -> dict[str, int]:
        return self._store.engine.retry(self._read)

    def __getitem__(self, agent_id: str) -> int:
        return self._all()[agent_id]

    def __setitem__(self, agent_id: str, version: int) -> None:
        name = checks.name(agent_id, "an agent")
        wanted = checks.whole(version, "the policy version")
        self._store.engine.retry(consumers.set_agent_version, self._store, name, wanted)

    def __delitem__(self, agent_id: str) -> NoReturn:
        raise errors.InvalidValue(
            f"the policy version of agent {agent_id!r} cannot be removed; use another buffer for a "
            "new run"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f"<PolicyVersions {self._all()}>"
