"""Connect writers to their buffer, and keep a reference to the buffer."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from expdb import errors
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.writing.batches import (
    EPISODE_NAMES,
    STEP_NAMES,
    columns_of,
    rows_of,
    split_step,
)
from expdb.storage.writing.columnar import columnar
from expdb.storage.writing.open_episodes import OpenEpisodes
from expdb.storage.writing.pending_steps import PendingSteps, create_steps, step_columns
from expdb.storage.writing.submissions import EncodedWrite


class EpisodeSink:
    """Write the steps of an EpisodeWriter into the buffer.

    The sink refers to the buffer, so the handle is not garbage-collected before its writers.
    """

    def __init__(self, buffer: Any):
        self._buffer, self._store = buffer, buffer._store

    def require_open(self) -> None:
        """Raise DatabaseClosed if the database of the buffer is closed."""
        with self._store.engine.reading():
            return

    def create_steps(self) -> PendingSteps:
        """Return an empty collection of steps."""
        return create_steps(self._store.fields, self._store.replacements)

    def gather_batch(self, episode: EpisodeRecord, batch: Any, steps: PendingSteps) -> bool:
        """Add all steps of a batch or none; return whether the last one ends the episode."""
        columns = columns_of(batch)
        at_once = columns is not None and steps.rows.takes_arrays
        at_once = at_once and EPISODE_NAMES.isdisjoint(columns or ())
        many = columnar(columns, steps.types) if columns is not None and at_once else None
        state = steps.capture_state()
        try:
            if many is not None:
                steps.extend([episode] * many.size, many)
                ends = many.ends
            else:
                rows = rows_of(batch if columns is None else columns)
                ends = [self._add(episode, row, steps, k) for k, row in enumerate(rows)]
            if True in ends[:-1]:
                raise errors.EpisodeEnded(
                    f"step {ends.index(True) + 1} of {len(ends)} ends episode "
                    f"{episode.episode_id!r}, so no step was added; pass only the steps up to "
                    f"step {ends.index(True) + 1}"
                )
        except BaseException:
            steps.restore_state(state)
            raise
        return bool(ends) and ends[-1]

    def _add(
        self, episode: EpisodeRecord, row: Mapping[str, Any], steps: PendingSteps, index: int
    ) -> bool:
        fields = {name: value for name, value in row.items() if name not in STEP_NAMES}
        try:
            return steps.add(episode, fields, step_columns(row))
        except (errors.InvalidValue, errors.FieldMismatch) as error:
            errors.name_row(error, index)
            raise

    def write(self, steps: PendingSteps) -> np.ndarray:
        """Write the steps and update their episodes; return the positions."""
        steps.close()  # before the write has the lock, so that several threads can encode
        positions: np.ndarray = self._buffer._write_queue.write(EncodedWrite(steps, None))
        self._buffer._evict_and_report()
        return positions

    def collected(self, writer: Any) -> None:
        """End an open writer that is being garbage-collected; safe to call at any moment."""
        self._buffer._writers.collected(writer)


class StepSink:
    """Write the steps of a StepWriter into the episodes of this writer.

    The sink refers to the buffer, so the handle is not garbage-collected before its writers.
    """

    def __init__(self, buffer: Any):
        self._buffer, self._write_queue = buffer, buffer._write_queue
        self._episodes = OpenEpisodes(buffer._store, self._write_queue.episodes.run)

    def create_steps(self) -> PendingSteps:
        """Return an empty collection of steps."""
        return self._episodes.create_steps()

    def gather(
        self,
        arguments: Any,
        fields: Mapping[str, Any],
        columns: tuple[Any, ...],
        steps: PendingSteps,
    ) -> None:
        """Add a step; change nothing if the step is refused."""
        self._episodes.gather(arguments, fields, columns, steps)

    def gather_batch(self, batch: Any, steps: PendingSteps) -> None:
        """Add all steps of a batch or none."""
        columns = columns_of(batch)
        if columns is None or not self._episodes.gather_columns(columns, steps):
            rows = rows_of(batch if columns is None else columns)
            self._episodes.gather_rows([split_step(row) for row in rows], steps)

    def write(self, steps: PendingSteps) -> np.ndarray:
        """Write the steps and update their episodes; return the positions."""
        positions: np.ndarray = self._write_queue.write(EncodedWrite(steps, self._episodes))
        self._buffer._evict_and_report()
        return positions

    def forget_episodes(self) -> None:
        """Start new episodes with the next steps, because the buffer was cleared."""
        self._write_queue.run(self._episodes.forget)

    def end_all(self, status: str) -> None:
        """End the episodes that were begun without an `episode_id`."""
        with suppress(errors.UnknownBuffer):  # another handle has dropped the buffer
            self._write_queue.run(self._episodes.end_all, status)

    def collected(self, writer: Any) -> None:
        """End an open writer that is being garbage-collected; safe to call at any moment."""
        self._buffer._writers.collected(writer)
