"""PolicyVersions: the current policy version of each agent that has one of its own."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import NoReturn

import numpy as np

from expdb import checks, errors
from expdb.names import nearest
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
        self._labels: dict[str, int] = {}  # labels cannot change, so they are read once

    def add_label(self, label: str, version: int) -> None:
        """Store a text label of a policy version, such as an inference engine reports.

        Parameters
        ----------
        label : str
            Text such as ``"step-42"``.
        version : int
            The policy version, from 0 to 2**31 - 1. `policy_version` does not change.

        Raises
        ------
        InvalidValue
            If the label stands for another version, or an argument is invalid.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.
        """
        checks.text(label, "label")
        number = checks.whole(version, "version", 0, consumers.MAX_LABELLED)
        self._store.engine.retry(consumers.add_version_label, self._store, label, number)

    def of_labels(self, labels: Sequence[str] | np.ndarray) -> np.ndarray:
        """Convert labels to policy versions.

        Parameters
        ----------
        labels : list, tuple or array of str [N]
            Labels that were added, such as one per generated token.

        Returns
        -------
        numpy.ndarray
            The versions, int32 [N], such as for the field `versions` of `expdb.TOKEN_FIELDS`.

        Raises
        ------
        InvalidValue
            If a label was not added, or is not text.

        Examples
        --------
        >>> buffer.policy_versions.add_label("step-42", 42)  # doctest: +SKIP
        >>> buffer.policy_versions.of_labels(["step-42", "step-42"])  # doctest: +SKIP
        array([42, 42], dtype=int32)
        """
        if not isinstance(labels, (list, tuple, np.ndarray)) or np.ndim(labels) != 1:
            raise errors.InvalidValue(f"labels must be a list of text, got {labels!r}")
        names = [checks.text(label, "label") for label in labels]
        if not self._labels.keys() >= set(names):
            self._labels = self._store.engine.retry(self._store.read, consumers.version_labels)
        missing = sorted({*names} - self._labels.keys())
        if missing:
            raise errors.InvalidValue(
                f"label {missing[0]!r} stands for no policy version in buffer "
                f"{self._store.name!r}{nearest(missing[0], self._labels) or ';'} add it with "
                "buffer.policy_versions.add_label(label, version)"
            )
        return np.array([self._labels[name] for name in names], np.int32)

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
