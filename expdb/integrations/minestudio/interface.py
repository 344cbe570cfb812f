"""MineStudio's ReplayBufferInterface, with a database instead of an actor and pickled files."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import expdb
from expdb import errors
from expdb.integrations.minestudio.datatypes import FragmentIndex, SampleFragment, logger
from expdb.integrations.minestudio.fetch_plan import Prepared
from expdb.integrations.minestudio.sessions import VERSION, Chunk, Sessions

LEASE_SECONDS = 3600.0


class ReplayBufferInterface(Sessions):
    """Add fragments as a worker, and fetch them as a trainer.

    If a trainer is killed, the next trainer continues with the stored fragments.

    Parameters
    ----------
    config : mapping, optional
        MineStudio's config, which creates the replay buffer. `config["database_config"]["path"]` is
        a folder or a PostgreSQL URL. Without a config, attach to an existing buffer.
    location : str or path, optional
        The buffer to attach to; by default the buffer that this process or its parent has created.

    Raises
    ------
    ValueError
        If the config is invalid, if another process or handle already owns the buffer of the
        config, or if the buffer to attach to does not exist.
    """

    # -- adding fragments ----------------------------------------------------------------------

    def add_fragment(self, fragment: Any, metadata: Any) -> None:
        """Add a fragment; the fragment is durable when the method returns.

        A fragment that is too stale or belongs to another session is ignored. A chunk consists of
        `fragments_per_chunk` consecutive fragments of a worker. If a fragment is missing, the
        fragments of the incomplete chunk are deleted and a new chunk begins.

        Parameters
        ----------
        fragment : SampleFragment
            The fragment to add.
        metadata : FragmentMetadata
            Its metadata.

        Raises
        ------
        ValueError
            If the metadata belongs to another fragment.
        """
        session, version = self._now()
        stale = version - metadata.model_version > self._config["max_staleness"]
        if metadata.session_id != session or stale:
            logger.info("ignored a fragment: %s; now session %r, version %d", metadata, session,
                        version)  # fmt: skip
            return
        worker, number = metadata.worker_uuid, int(metadata.fid_in_worker)
        if (fragment.worker_uuid, fragment.fid_in_worker) != (worker, number):
            raise ValueError(
                f"fragment {fragment.fid_in_worker} of worker {fragment.worker_uuid!r} does not "
                f"match the metadata of fragment {number} of worker {worker!r}; pass the "
                "metadata of the same fragment"
            )
        if type(fragment) is not SampleFragment:
            fragment = SampleFragment(**{n: getattr(fragment, n) for n in _FRAGMENT})
        size = int(self._config["fragments_per_chunk"])
        begun = self._open.get(worker)
        chunk = begun
        if begun is not None and version - begun.version > self._config["max_staleness"]:
            chunk = None
        elif begun is not None and number != begun.last + 1:
            logger.warning("worker %s: fragment %d follows %d; a new chunk begins", worker, number,
                           begun.last)  # fmt: skip
            chunk = None
        if chunk is None:
            chunk = Chunk(uuid.uuid4().hex, int(metadata.model_version), 0, number)
        is_last = chunk.count + 1 == size
        self.buffer.store(
            agent_id=worker, episode_id=chunk.episode_id, step=number,
            policy_version=int(metadata.model_version), truncated=is_last,
            **self.records.step(fragment),
        )  # fmt: skip
        # Update the chunk after the write: a fragment that is refused changes nothing.
        chunk.count, chunk.last = chunk.count + 1, number
        if is_last:
            self._open.pop(worker, None)
        else:
            self._open[worker] = chunk
        if begun is not None and begun is not chunk:
            self._delete([begun.episode_id])
        if is_last:
            self._make_room()
        self._report()

    def _make_room(self) -> None:
        """Delete the oldest chunks beyond `max_chunks`, except the chunks of the last fetch."""
        size, most = int(self._config["fragments_per_chunk"]), int(self._config["max_chunks"])
        if len(self.buffer) <= most * size:
            return
        over = self.buffer.stats()["episodes"]["complete"] - most
        oldest: dict[str, None] = {}
        for batch in self.buffer.scan(size=256, fields=["episode_id", "status"]):
            rows = zip(batch["episode_id"], batch["status"], strict=True)
            oldest |= {name: None for name, status in rows if status == "complete"}
            if len(oldest) >= over:
                break
        self._delete(list(oldest)[: max(over, 0)])

    def _report(self) -> None:
        self._added += 1
        every = self._config.get("fragments_per_report")
        if every and self._added % every == 0:
            logger.info("%d fragments added, %d stored", self._added, len(self.buffer))

    # -- fetching fragments --------------------------------------------------------------------

    def fetch_fragments(self, num_fragments: int, *, timeout: float | None = None) -> Prepared:
        """Wait for enough chunks, and draw chunks without replacement.

        A chunk is drawn at most `max_reuse` times, and only if its staleness is at most
        `max_staleness`. You can load the fragments until the next fetch.

        Parameters
        ----------
        num_fragments : int
            Number of fragments, a multiple of `fragments_per_chunk`.
        timeout : float, optional
            Seconds to wait for enough chunks; by default, there is no limit.

        Returns
        -------
        list of (FragmentIndex, str)
            The index and the id of each fragment.

        Raises
        ------
        TooFewRows
            If there are not enough chunks after `timeout` seconds.
        AssertionError
            If `num_fragments` is not a multiple of `fragments_per_chunk`, or exceeds the capacity.
        """
        size = int(self._config["fragments_per_chunk"])
        assert num_fragments % size == 0, (
            f"num_fragments must be a multiple of {size}, got {num_fragments}"
        )
        most = int(self._config["max_chunks"]) * size
        assert num_fragments <= most, f"num_fragments must be at most {most}, got {num_fragments}"
        self._now()
        chunks = num_fragments // size
        last, self._lease = self._lease, None
        assert self._session_id is not None
        if last is not None:
            # No rank may load fragments that may be deleted from now on.
            self._plan.keep(self._session_id, [], self._uses)
            last.acknowledge()
            self._delete_done(last)
        lease = self._leased(chunks, 1e9 if timeout is None else timeout)
        fragments = self._fragments(lease.batch)
        self._lease = lease
        for episode in lease.batch["episode"].tolist():
            self._uses[episode] = self._uses.get(episode, 0) + 1
        if len(self._uses) > 2 * self._config["max_chunks"]:  # most of these chunks were evicted
            self._uses = dict(sorted(self._uses.items())[-int(self._config["max_chunks"]) :])
        self._plan.keep(self._session_id, fragments, self._uses)
        return fragments

    def _fragments(self, batch: expdb.Batch) -> Prepared:
        """Return the fragments of drawn chunks with their ids for `load_fragment`."""
        workers = batch["agent_id"][:, 0].tolist()  # the same for all fragments of a chunk
        columns = workers, batch["step"].tolist(), batch["position"].tolist()
        return [
            (FragmentIndex(worker, number), f"{self._session_id}/{position}")
            for worker, numbers, positions in zip(*columns, strict=True)
            for number, position in zip(numbers, positions, strict=True)
        ]

    def _leased(self, chunks: int, wait: float) -> expdb.Lease:
        try:
            return self._consumer.lease(
                chunks,
                sampler=expdb.Uniform(replace=False),
                unit=expdb.Episode(),
                fields=["position", "agent_id", "step", "episode", VERSION],
                wait=wait,
                expiry_seconds=LEASE_SECONDS,
                renew=True,
                pin=True,
            )
        except expdb.TooFewRows as error:
            raise expdb.TooFewRows(
                f"fewer than {chunks} usable chunks of session {self._session_id!r} after waiting "
                f"{wait:g} seconds: {error}"
            ) from None

    def _delete_done(self, lease: expdb.Lease) -> None:
        """Delete chunks that were used `max_reuse` times, and stale chunks of the last fetch.

        Only the chunks of the last fetch can be stale, because other stale chunks are deleted
        immediately.
        """
        gone = {id for id, uses in self._uses.items() if uses >= self._config["max_reuse"]}
        stale = (self.buffer.policy_version or 0) - int(self._config["max_staleness"])
        gone |= set(lease.batch["episode"][lease.batch[VERSION] < stale].tolist())
        if gone:
            where = expdb.QueryBuilder().in_("episode", sorted(gone))
            self.buffer.delete(where, keep_pinned=True)
        for id in gone:
            self._uses.pop(id, None)
        self._make_room()

    def prepared_fragments(self) -> Prepared:
        """Return the result of the last fetch of any process, so that all ranks can load it.

        Returns
        -------
        list of tuple of FragmentIndex and str
            The index of each fragment, and its id for `load_fragment`.
        """
        return self._plan.fragments(self._session_id)

    def load_fragment(self, fragment_id: str) -> SampleFragment:
        """Return a fragment by its id.

        Parameters
        ----------
        fragment_id : str
            An id that `fetch_fragments` or `prepared_fragments` returned.

        Returns
        -------
        SampleFragment
            The fragment.

        Raises
        ------
        KeyError
            If the fragment belongs to another session or is no longer stored.
        """
        session, _, position = fragment_id.rpartition("/")
        if session != self._session_id:
            self._enter(self._current()[0])
        if session != self._session_id:
            raise KeyError(
                f"fragment {fragment_id} belongs to another session; fetch fragments again"
            )
        fields = ("position", "reward", *self.records.fields)
        try:
            batch = self.buffer.get([int(position)], fields=fields)
        except errors.Evicted as error:
            raise KeyError(
                f"fragment {fragment_id} was deleted ({error}); fetch fragments again"
            ) from error
        fragment: SampleFragment = self.records.values(batch)[0]
        return fragment

    def get_disk_space(self) -> int:
        """Return the size of the database in bytes.

        Returns
        -------
        int
            The size in bytes.
        """
        return self.database.nbytes

    def close(self) -> None:
        """Close the database; fragments remain stored, and another process may own the buffer."""
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                with suppress(errors.UnknownBuffer, errors.UnknownConsumer):  # session was deleted
                    lease.acknowledge()
                    self._delete_done(lease)
                    if self._session_id is not None:
                        self._plan.keep(self._session_id, [], self._uses)
        finally:
            self.database.close()
            if self._owner is not None:
                self._owner.close()

    def __enter__(self) -> ReplayBufferInterface:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_FRAGMENT = tuple(SampleFragment.__dataclass_fields__)
