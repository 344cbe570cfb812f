"""MineStudio's ReplayBufferInterface: a database in place of an actor and a cache of pickles."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import expdb
from expdb.integrations.minestudio.datatypes import FragmentIndex, SampleFragment, kinds, logger
from expdb.integrations.minestudio.locating import (
    WHERE,
    check_config,
    file_of,
    location_of,
    own,
    plain,
    stored_config,
)
from expdb.integrations.records import Records

Prepared: TypeAlias = "list[tuple[FragmentIndex, str]]"

LEASE_SECONDS = 3600.0


@dataclass
class _Chunk:
    """Fragments of a worker, one after another, on their way to a chunk."""

    episode_id: str
    version: int  # of its first fragment, which is that of the chunk
    count: int
    last: int


class ReplayBufferInterface:
    """Add fragments as a worker, fetch them as a trainer.

    With a `config` it makes the replay buffer, in the folder `config["database_config"]["path"]` or
    at that PostgreSQL URL; without one it attaches to the buffer in `location`, by default the one
    that this process, or its parent, has made. What a killed trainer has left is gone on with.

    Raises ValueError where another process has the buffer already, or nobody has made one.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        location: str | os.PathLike[str] | None = None,
    ):
        self._lock_file: Any = None
        where = location_of(config, location)
        if config is None:
            self._config = stored_config(where)
        else:
            check_config(config)
            self._lock_file = own(where)
            self._config = {key: plain(config[key]) for key in config}
            os.environ[WHERE] = where
        self.location, self.database_config = where, self._config["database_config"]
        self.database = expdb.open(file_of(where), resident_bytes=0)  # fragments are read by id
        self._state = self.database.buffer(
            "replay_buffer.state", capacity=1, fields={"state": expdb.Field("json")}
        )
        if config is not None:
            session, version = self._current()
            self._state.store(state={**self._kept(session, version), "config": self._config})
        self._plan = self.database.buffer(
            "replay_buffer.plan", capacity=1, fields={"plan": expdb.Field("json")}
        )
        self._open: dict[str, _Chunk] = {}
        self._uses: dict[int, int] = {}
        self._lease: expdb.Lease | None = None
        self._session_id: str | None = None
        self._added = 0
        self._enter(self._current()[0])

    def get_database_config(self) -> dict[str, Any]:
        """Return the `database_config`."""
        return dict(self.database_config)

    def update_training_session(self) -> None:
        """Do nothing, as in MineStudio: `update_model_version` names the session."""

    # -- the session, and the version of the model -------------------------------------------

    def _current(self) -> tuple[str, int]:
        """Return the session and the model's version that the trainer has told."""
        page = self._state.page(1, 1)
        state = page[0]["state"] if page else {}
        return state.get("session_id", ""), state.get("model_version", -1)

    def _now(self) -> tuple[str, int]:
        """Return the session and the model's version, and work with that session."""
        assert self._session_id is not None
        try:
            version = self.buffer.policy_version
        except expdb.UnknownBuffer:  # the trainer has begun another session, and dropped it
            version = None
        if version is not None:
            return self._session_id, version
        session, told = self._current()
        self._enter(session)
        return session, told

    def _kept(self, session: str, version: int) -> dict[str, Any]:
        return {"session_id": session, "model_version": version, "config": self._config}

    def _enter(self, session: str) -> None:
        """Work with the fragments of a session."""
        if session == self._session_id:
            return
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
        """Tell the version of the model that is trained now, and the session.

        Fragments of another session, and those that are too stale, are deleted.
        """
        session, version = self._current()
        if session_id == session and model_version < version:
            raise ValueError(f"model_version goes back from {version} to {model_version}")
        self._state.store(state=self._kept(session_id, int(model_version)))
        if session_id != session:
            self._give_up_lease()
            self._plan.clear()
            old, names = self.buffer.name, set(self.database.buffers())
            self._enter(session_id)
            for name in {old, f"{old}.structures"} & names:
                self.database.drop(name)
        self.buffer.policy_version = int(model_version)
        stale = int(model_version) - int(self._config["max_staleness"])
        self._delete_chunks(lambda one: one["first_policy_version"] < stale)

    def _delete_chunks(self, unwanted: Callable[[dict[str, Any]], bool], most: int = 2**40) -> None:
        """Delete the oldest chunks that are unwanted, `most` of them, but those being trained on.

        What the last fetch has returned can be loaded until the next one, which deletes it.
        """
        names = ["episode", "episode_id", "status", "first_policy_version"]
        kept = self._planned_episodes()
        found = [
            one["episode_id"]
            for one in self.buffer.episodes().select(names).to_pylist()
            if one["episode_id"] not in kept and unwanted(one)
        ][:most]
        if found:
            self.buffer.delete(expdb.QueryBuilder().in_("episode_id", found))

    def _planned_episodes(self) -> set[str]:
        """Return the episodes of the last fetch, as far as they are held."""
        planned = {
            int(id.rpartition("/")[2])
            for _, id in self.prepared_fragments()
            if id.rpartition("/")[0] == self._session_id
        }
        held = expdb.QueryBuilder().in_("position", sorted(planned)) if planned else None
        return set() if held is None else set(self.buffer.episodes(held)["episode_id"].to_pylist())

    # -- in ------------------------------------------------------------------------------------

    def add_fragment(self, fragment: Any, metadata: Any) -> None:
        """Add a fragment; it is durable when this returns.

        One of another session, or too stale, is left out. `fragments_per_chunk` fragments of a
        worker that follow each other make a chunk; where one is missing, the chunk begins anew.
        """
        session, version = self._now()
        stale = version - metadata.model_version > self._config["max_staleness"]
        if metadata.session_id != session or stale:
            logger.info("a fragment is left out: %s at session %r, version %d", metadata, session,
                        version)  # fmt: skip
            return
        worker, number = metadata.worker_uuid, int(metadata.fid_in_worker)
        size = int(self._config["fragments_per_chunk"])
        chunk = self._open.get(worker)
        if chunk is not None and version - chunk.version > self._config["max_staleness"]:
            self.buffer.delete({"episode_id": chunk.episode_id})
            chunk = None
        if chunk is not None and number != chunk.last + 1:
            logger.warning("worker %s: fragment %d after %d, its chunk begins anew", worker, number,
                           chunk.last)  # fmt: skip
            self.buffer.delete({"episode_id": chunk.episode_id})
            chunk = None
        if chunk is None:
            chunk = self._open[worker] = _Chunk(
                uuid.uuid4().hex, int(metadata.model_version), 0, number
            )
        chunk.count, chunk.last = chunk.count + 1, number
        if type(fragment) is not SampleFragment:
            fragment = SampleFragment(**{n: getattr(fragment, n) for n in _FRAGMENT})
        self.buffer.store(
            agent_id=worker, episode_id=chunk.episode_id, step=number,
            policy_version=int(metadata.model_version), truncated=chunk.count == size,
            **self.records.step(fragment),
        )  # fmt: skip
        if chunk.count == size:
            del self._open[worker]
            self._make_room()
        self._report()

    def _make_room(self) -> None:
        """Delete the oldest chunks beyond `max_chunks`."""
        size = int(self._config["fragments_per_chunk"])
        if len(self.buffer) <= int(self._config["max_chunks"]) * size:
            return
        # What the last fetch has returned is beside it: it goes with the next one.
        most = int(self._config["max_chunks"]) + len(self._planned_episodes())
        over = self.buffer.stats()["episodes"]["complete"] - most
        if over > 0:
            self._delete_chunks(lambda one: one["status"] == "complete", over)

    def _report(self) -> None:
        self._added += 1
        every = self._config.get("fragments_per_report")
        if every and self._added % every == 0:
            logger.info("%d fragments added, %d held", self._added, len(self.buffer))

    # -- out -----------------------------------------------------------------------------------

    def fetch_fragments(self, num_fragments: int, *, timeout: float | None = None) -> Prepared:
        """Wait for enough chunks, draw some of them without replacement, and return their ids.

        No chunk is drawn more than `max_reuse` times, nor when it is staler than `max_staleness`.
        The fragments can be loaded until the next fetch. Raises TooFewRows after `timeout` seconds.
        """
        size = int(self._config["fragments_per_chunk"])
        assert num_fragments % size == 0, f"{num_fragments} is not a multiple of {size}"
        most = int(self._config["max_chunks"]) * size
        assert num_fragments <= most, f"{num_fragments} fragments of at most {most}"
        self._now()
        self._give_up_lease()
        chunks = num_fragments // size
        try:
            self._lease = lease = self._leased(chunks, None)
        except expdb.TooFewRows:
            self._plan.clear()  # nobody is to load what may be deleted while this waits
            self._lease = lease = self._leased(chunks, 1e9 if timeout is None else timeout)
        positions, workers = lease.batch["position"], lease.batch["agent_id"]
        numbers = lease.batch["step"]
        found: Prepared = []
        for k in range(chunks):
            for t in range(size):
                index = FragmentIndex(str(workers[k]), int(numbers[k, t]))
                found.append((index, f"{self._session_id}/{int(positions[k, t])}"))
            first = int(positions[k, 0])
            self._uses[first] = self._uses.get(first, 0) + 1
        self._plan.store(plan=[[one.worker_uuid, one.fid_in_worker, id] for one, id in found])
        return found

    def _leased(self, chunks: int, wait: float | None) -> expdb.Lease:
        return self._consumer.lease(
            chunks,
            sampler=expdb.Uniform(replace=False),
            unit=expdb.Episode(),
            fields=["position", "agent_id", "step", "first_policy_version"],
            wait=wait,
            seconds=LEASE_SECONDS,
            renew=True,
            pin=True,
        )

    def _give_up_lease(self) -> None:
        """Count the last fetch as done, and delete its chunks that are used up, or stale by now.

        No other chunk has been kept beyond its time.
        """
        lease, self._lease = self._lease, None
        if lease is None:
            return
        lease.acknowledge()
        stale = (self.buffer.policy_version or 0) - int(self._config["max_staleness"])
        gone = []
        columns = lease.batch["position"], lease.batch["first_policy_version"]
        for positions, version in zip(*columns, strict=True):
            first = int(positions[0])
            is_used_up = self._uses[first] >= self._config["max_reuse"]
            if is_used_up:
                del self._uses[first]
            if is_used_up or version < stale:
                gone.append(positions)
        if gone:
            self.buffer.delete(np.concatenate(gone))
        self._make_room()

    def prepared_fragments(self) -> Prepared:
        """Return what the last fetch has returned, of whichever process: for all ranks."""
        page = self._plan.page(1, 1)
        plan = page[0]["plan"] if page else []
        return [(FragmentIndex(worker, number), id) for worker, number, id in plan]

    def load_fragment(self, fragment_id: str) -> SampleFragment:
        """Return a fragment by its id; raises KeyError where it is gone."""
        session, _, position = fragment_id.rpartition("/")
        if session != self._session_id:
            self._enter(self._current()[0])
        if session != self._session_id:
            raise KeyError(f"fragment {fragment_id} is of another session")
        fields = ("position", "reward", *self.records.fields)
        try:
            batch = self.buffer.get([int(position)], fields=fields)
        except expdb.Evicted as error:
            raise KeyError(f"fragment {fragment_id} is gone: {error}") from error
        fragment: SampleFragment = self.records.values(batch)[0]
        return fragment

    def get_disk_space(self) -> int:
        """Return the room that the database takes, in bytes."""
        return self.database.nbytes

    def close(self) -> None:
        """Close the database; the fragments stay, and another process may have the buffer."""
        if self._lease is not None:
            self._give_up_lease()
            self._plan.clear()
        self.database.close()
        if self._lock_file is not None:
            self._lock_file.close()

    def __enter__(self) -> ReplayBufferInterface:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_FRAGMENT = tuple(SampleFragment.__dataclass_fields__)
