"""Single steps, batches and columns on their way to their episodes, and into the database."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from expdb import checks, errors
from expdb.locks import locked
from expdb.names import STEP_KEYS
from expdb.storage.records import EpisodeRecord
from expdb.storage.writing import episodes, transaction
from expdb.storage.writing.columnar import Columnar, columnar
from expdb.storage.writing.gathering import Gathering, key_of, step_columns
from expdb.storage.writing.known_episodes import KnownEpisodes, Row
from expdb.storage.writing.pending import Pending

# Others may begin, or end, another episode of the same write each time.
ATTEMPTS = 8


class OpenEpisodes(KnownEpisodes):
    """Writes steps to the episodes that a process has open in a buffer. Threads may share it."""

    def write(self, rows: Sequence[Row]) -> np.ndarray:
        """Write steps in one transaction and return their positions, int64 in order."""
        if not rows:
            return np.empty(0, np.int64)
        return locked(self._lock, self._write, rows)

    def _write(self, rows: Sequence[Row]) -> np.ndarray:
        for attempt in range(ATTEMPTS):
            found = self.gathering()
            try:
                self._gather(rows, found)
                return self._commit(found)
            except (errors.EpisodeEnded, errors.EpisodeMismatch):
                # Somebody else has ended, deleted or evicted an episode that this handle knew as
                # open, or begun one of the same name at the same moment.
                if attempt + 1 == ATTEMPTS or found.is_stored or found.is_in_doubt:
                    raise
                self._look_again(rows)
        raise AssertionError("the last attempt returns or raises")

    def write_columns(self, columns: Mapping[str, Sequence[Any]]) -> np.ndarray | None:
        """Write steps given as columns in one transaction, and return their positions.

        None, and nothing is written, where they have to be written row by row.
        """
        return locked(self._lock, self._write_columns, columns)

    def _write_columns(self, columns: Mapping[str, Sequence[Any]]) -> np.ndarray | None:
        found = self.gathering()
        try:
            return self._commit(found) if self.gather_columns(columns, found) else None
        except (errors.EpisodeEnded, errors.EpisodeMismatch):
            if found.is_stored or found.is_in_doubt:
                raise
            return None  # what has become of their episodes is learned there

    def gathering(self) -> Gathering:
        """Return an empty collection of steps, to be written later."""
        return Gathering(Pending(self._store.fields))

    def gather(
        self, whose: Any, fields: Mapping[str, Any], columns: tuple[Any, ...], found: Gathering
    ) -> None:
        """Add a step to what is pending, or raise and change nothing.

        `whose` has what it says of its episode. Whoever gathers sees to it that no two threads do.
        """
        if found.pending.fields.version != self._store.fields.version:  # fields were declared since
            found.pending.cut()
            found.pending.retype(self._store.fields, None)
        episode = found.known(whose)
        if episode is not None:  # as nearly always: nothing has to be looked up
            if found.pending.add(episode, fields, columns):
                found.complete(episode, whose.key, whose.episode_id)
            return
        row = dict(zip(STEP_KEYS, columns, strict=True)) | whose._asdict()
        row["task_id"], row["agent_id"] = whose.key
        opened, named, details = dict(found.opened), dict(found.named), dict(found.pending.details)
        try:
            self._gather([(row, fields)], found)
        except BaseException:
            found.opened, found.named, found.pending.details = opened, named, details
            raise

    def gather_columns(self, columns: Mapping[str, Sequence[Any]], found: Gathering) -> bool:
        """Add steps given as columns, all or none; return whether they could be added at once.

        Whoever gathers sees to it that no two threads do.
        """
        pending = found.pending
        if pending.fields.version != self._store.fields.version:
            return False
        many = columnar(columns, pending.types) if pending.rows.takes_arrays else None
        if many is None:
            return False
        mark, opened, named = pending.mark(), dict(found.opened), dict(found.named)
        try:
            pending.extend(self._episodes_of(many, found), many)
        except BaseException:
            pending.back_to(mark)
            found.opened, found.named = opened, named
            raise
        return True

    def gather_rows(self, rows: Sequence[Row], found: Gathering) -> None:
        """Add steps one by one; where one of them is refused, none is added."""
        pending = found.pending
        if pending.fields.version != self._store.fields.version:
            pending.cut()
            pending.retype(self._store.fields, None)
        mark, opened, named = pending.mark(), dict(found.opened), dict(found.named)
        try:
            self._gather(rows, found)
        except BaseException:
            pending.back_to(mark)
            found.opened, found.named = opened, named
            raise

    def _episodes_of(self, many: Columnar, found: Gathering) -> list[EpisodeRecord]:
        """Return the episode of each step, and note which they open and complete."""
        row_of = {
            one: dict(zip(("task_id", "agent_id", "episode_id"), one, strict=True))
            for one in dict.fromkeys(many.whose)
        }
        found.stored = self._stored([(row, {}) for row in row_of.values()])
        records = []
        known: dict[Any, EpisodeRecord] = {}  # those that are open and have steps here
        for whose, ends in zip(many.whose, many.ends, strict=True):
            record = known.get(whose)
            if record is None:
                record = found.known((whose[:2], whose[2], None, None, None, None))
                record = record or self._open_episode_of(row_of[whose], found)
                known[whose] = record
            records.append(record)
            if ends:
                found.complete(record, whose[:2], whose[2])
                del known[whose]
        return records

    def write_gathered(self, found: Gathering) -> np.ndarray:
        """Write gathered steps in one transaction and return their positions, int64 in order."""
        return locked(self._lock, self._write_gathered, found)

    def _write_gathered(self, found: Gathering) -> np.ndarray:
        for _ in range(ATTEMPTS - 1):
            try:
                return self._commit(found)
            except (errors.EpisodeEnded, errors.EpisodeMismatch):
                rows = list(found.rows())
                self._look_again(rows)
            again = self.gathering()
            self._gather(rows, again)
            found.pending, found.opened, found.named = again.pending, again.opened, again.named
        return self._commit(found)

    def _commit(self, found: Gathering) -> np.ndarray:
        try:
            positions = transaction.write(self._store, found.pending)
        finally:
            # Also where an interrupt came just after the commit, or nobody knows.
            if found.is_stored or found.is_in_doubt:
                self._remember(found)
        self._forget_swept()
        return positions

    def _gather(self, rows: Sequence[Row], found: Gathering) -> None:
        """Add rows to what is pending, and note which episodes they open and complete."""
        pending, found.stored = found.pending, self._stored(rows)
        for row, fields in rows:
            episode = self._open_episode_of(row, found)
            if pending.add(episode, fields, step_columns(row)):
                found.complete(episode, key_of(row), row.get("episode_id"))

    def end(self, episode_id: Any, status: str) -> None:
        """End an open episode by its name.

        Raise UnknownEpisode, or EpisodeEnded if it has ended.
        """
        locked(self._lock, self._end, episode_id, status)

    def _end(self, episode_id: Any, status: str) -> None:
        found = episodes.find(self._store, [checks.text(episode_id, "episode_id")]).get(episode_id)
        if found is None:
            raise errors.UnknownEpisode(
                f"no episode {episode_id!r} in buffer {self._store.name!r}: see buffer.episodes()"
            )
        episode, current = found
        if current != "open" or episode.id is None:
            raise errors.EpisodeEnded(f"episode {episode_id!r} is {current} already")
        end = episodes.end_stored
        self._store.engine.retry(end, self._store, episode.id, status, at_most_once=True)
        self._named.pop(episode_id, None)
        for key in [key for key, one in self._open.items() if one.episode_id == episode_id]:
            self._forget(key)

    def end_all(self, status: str) -> None:
        """End the episodes that were begun without a name: nobody else can go on with them."""
        locked(self._lock, self._end_all, status)

    def _end_all(self, status: str) -> None:
        stored = [episode.id for episode in self._open.values() if episode.id is not None]
        episodes.end_all(self._store, stored, status)
        self._open.clear()
        self._callers.clear()
