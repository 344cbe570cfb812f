"""The training session of a buffer and its model version."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import expdb
from expdb import errors
from expdb.integrations.minestudio.datatypes import kinds
from expdb.integrations.minestudio.fetch_plan import FetchPlan
from expdb.integrations.minestudio.locating import (
    WHERE,
    Owner,
    check_config,
    file_of,
    location_of,
    plain,
    stored_config,
)
from expdb.integrations.positions import first_value
from expdb.integrations.records import Records

VERSION = "first_policy_version"  # the column with the version of a chunk


@dataclass
class Chunk:
    """An incomplete chunk: consecutive fragments of a worker."""

    episode_id: str
    version: int  # model version of the first fragment, which is the version of the chunk
    count: int
    last: int


class Sessions:
    """A database of fragments with one buffer per session; old sessions are deleted."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        location: str | os.PathLike[str] | None = None,
    ):
        where = location_of(config, location)
        self._owner: Owner | None = None
        if config is None:
            self._config = stored_config(where)
        else:
            check_config(config)
            self._owner = Owner(where)
            self._config = {key: plain(config[key]) for key in config}
        try:
            self._open_database(where, config is not None)
        except BaseException:
            if self._owner is not None:
                self._owner.close()
            raise
        if config is not None:
            os.environ[WHERE] = where

    def _open_database(self, where: str, is_owner: bool) -> None:
        self.location, self.database_config = where, self._config["database_config"]
        # Do not keep rows in memory: fragments are read by id, once or twice.
        self.database = expdb.open(file_of(where), resident_bytes=0)
        self._state = self.database.buffer(
            "replay_buffer.state", capacity=1, fields={"state": expdb.Field("json")}
        )
        if is_owner:
            self._check_chunks()
            session, version = self._current()
            self._state.store(state={**self._kept(session, version), "config": self._config})
        self._plan = FetchPlan(self.database)
        self._open: dict[str, Chunk] = {}
        self._uses: dict[int, int] = {}  # number of fetches of each chunk, by episode
        self._lease: expdb.Lease | None = None
        self._session_id: str | None = None
        self._added = 0
        self._enter(self._current()[0])
        self._uses |= self._plan.uses(self._session_id)

    def _check_chunks(self) -> None:
        """Raise ValueError if chunks of another size are stored, which no fetch could use."""
        state = first_value(self._state, "state")
        stored = state["config"]["fragments_per_chunk"] if state else None
        size = self._config["fragments_per_chunk"]
        if stored not in (None, size):
            raise ValueError(
                f"fragments_per_chunk is {size}, but the chunks in {self.location} have {stored} "
                "fragments; pass the same number, or another path"
            )

    def get_database_config(self) -> dict[str, Any]:
        """Return a copy of the `database_config`.

        Returns
        -------
        dict
            The copy.
        """
        return dict(self.database_config)

    def update_training_session(self) -> None:
        """Do nothing, as in MineStudio: `update_model_version` sets the session."""

    # -- the session, and the version of the model -------------------------------------------

    def _current(self) -> tuple[str, int]:
        """Return the session and the model version that the trainer has stored."""
        state = first_value(self._state, "state") or {}
        return state.get("session_id", ""), state.get("model_version", -1)

    def _now(self) -> tuple[str, int]:
        """Return the current session and model version, and switch to this session."""
        assert self._session_id is not None
        try:
            version = self.buffer.policy_version
        except errors.UnknownBuffer:  # the trainer has begun another session, and dropped it
            version = None
        if version is not None:
            return self._session_id, version
        session, model_version = self._current()
        self._enter(session)
        return session, model_version

    def _kept(self, session: str, version: int) -> dict[str, Any]:
        return {"session_id": session, "model_version": version, "config": self._config}

    def _enter(self, session: str) -> None:
        """Switch to the fragments of a session."""
        if session == self._session_id:
            return
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(expdb.ExpDBError):  # the session may be deleted, and the lease with it
                lease.release()
        self._session_id = session
        name = f"replay_buffer.session.{session}" if session else "replay_buffer.session"
        self.buffer = self.database.buffer(name)
        self.records = Records(self.database, self.buffer, *kinds())
        self._consumer = self.buffer.consumer(
            "trainer",
            max_times_sampled=int(self._config["max_reuse"]),
            max_staleness=int(self._config["max_staleness"]),
        )
        self._open.clear()
        self._uses.clear()

    def update_model_version(self, session_id: str, model_version: int) -> None:
        """Set the session and the version of the model in training.

        Fragments of other sessions, and fragments that are too stale, are deleted.

        Parameters
        ----------
        session_id : str
            The training session.
        model_version : int
            The version of the model.

        Raises
        ------
        ValueError
            If the version is lower than before in the same session.
        """
        session, version = self._current()
        if session_id == session and model_version < version:
            raise ValueError(
                f"model_version must not decrease within a session, got {model_version} after "
                f"{version}"
            )
        self._state.store(state=self._kept(session_id, int(model_version)))
        if session_id != session:
            self._plan.clear()
        self._enter(session_id)
        current = self.buffer.name
        for name in self.database.buffers():
            is_session = name.startswith("replay_buffer.session")
            if is_session and name.removesuffix(".structures") != current:
                self.database.drop(name)
        self.buffer.policy_version = int(model_version)
        stale = int(model_version) - int(self._config["max_staleness"])
        self._delete(
            episode["episode_id"]
            for episode in self.buffer.episodes().select(["episode_id", VERSION]).to_pylist()
            if episode[VERSION] < stale
        )

    def _delete(self, episode_ids: Iterable[str]) -> None:
        """Delete chunks, except the chunks of the last fetch, which must remain loadable."""
        if ids := list(episode_ids):
            where = expdb.QueryBuilder().in_("episode_id", ids)
            self.buffer.delete(where, keep_pinned=True)
