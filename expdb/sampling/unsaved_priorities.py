"""Save changed priorities to the database at most once a second."""

import time

from expdb import errors
from expdb.memory import priorities as row_priorities
from expdb.memory.resident import Resident
from expdb.process.locks import locked
from expdb.storage import priorities
from expdb.storage.store import Store

SAVE_SECONDS = 1.0  # minimum time between two saves


class UnsavedPriorities:
    """The priorities of a buffer that were changed in memory and are not saved yet."""

    def __init__(self, store: Store, resident: Resident):
        self._store, self._resident = store, resident
        self.exist = False  # whether a changed priority is not written yet
        self._saved = time.monotonic()

    def save(self, after: float = 0.0, wait: bool = False) -> None:
        """Write changed priorities if `after` seconds have passed since the last write.

        With `wait`, wait while another process writes. Otherwise do not wait; the next call writes
        the priorities.
        """
        if self.exist and time.monotonic() - self._saved >= after:
            locked(self._resident.lock, self._save, wait)

    def save_kept(self) -> None:
        """Write priorities from before `Resident.forget`, so that newer ones are written later."""
        if self._resident.kept is not None:
            self._save(wait=True)

    def _save(self, wait: bool) -> None:
        r = self._resident
        positions, values = row_priorities.unsaved(r)
        if len(positions):  # else all these steps were evicted
            try:
                with self._store.writing(None if wait else 0.0) as (session, _):
                    version = priorities.write(self._store, session, positions, values)
            except (errors.DatabaseBusy, errors.StorageFull):
                if wait:
                    raise
                return
            if r.priorities is not None and version == r.priorities + 1:
                r.priorities = (
                    version  # otherwise another process also wrote, and all are read again
                )
        row_priorities.note_saved(r)
        self.exist, self._saved = False, time.monotonic()

    def reset_after_fork(self) -> None:
        """Leave unsaved priorities to the parent process."""
        row_priorities.note_saved(self._resident)
        self.exist = False
