"""Admission: a group of episodes that may begin, as a buffer's pace says."""

from __future__ import annotations

import itertools
import math
import secrets
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from expdb import checks, errors
from expdb.process.awaiting import obtain
from expdb.process.processes import Others
from expdb.storage.ledger import admissions
from expdb.storage.ledger.admissions import Admitted
from expdb.storage.ledger.waiters import Waiter
from expdb.storage.store import Store

PAUSE = 0.035  # seconds between two looks, each at what the database says of itself
PATIENCE = 60.0  # seconds of waiting without end, after which somebody may want to know
LONGEST = 1.0  # seconds without a change: a group may expire, or its process end

_serials = itertools.count()
_others = Others()


class Admission:
    """A group of episodes that was let in, until it is finished or taken back.

    Use it with `with`: leaving the block finishes it, an exception takes it back.
    """

    def __init__(self, store: Store, admitted: Admitted, seconds: float):
        self._store, self._admitted, self._seconds = store, admitted, seconds
        self._is_over = False
        self._may_have_ended = False  # by an earlier call whose outcome is unknown

    def __repr__(self) -> str:
        return f"<Admission at policy_version {self.policy_version}>"

    def __reduce__(self) -> Any:
        raise errors.InvalidValue(
            "an admission is held by the process that asked for it: ask for it where the group is "
            "generated"
        )

    @property
    def policy_version(self) -> int | None:
        """The version of the buffer's policy when the group was let in."""
        return self._admitted.policy_version

    def finish(self) -> None:
        """Have the group count as generated; warn where it took longer than its seconds."""
        self._end(took_place=True)

    def cancel(self) -> None:
        """Have another group begin in its place; nothing where it is over."""
        self._end(took_place=False)

    def _end(self, *, took_place: bool) -> None:
        id = self._admitted.id
        if self._is_over:
            return
        known = id is None or self._store.engine.retry(self._end_stored, id, took_place)
        self._is_over = True  # only now: what the database refused can be tried again
        if not known and took_place:
            errors.warn(
                f"a group took longer than the {self._seconds:g} seconds that it was let in for, "
                "so another one may have begun in its place: give admit(seconds=...) more, or "
                "renew it"
            )

    def _end_stored(self, id: int, took_place: bool) -> bool:
        """End the stored admission; return whether it was known still."""
        again, self._may_have_ended = self._may_have_ended, True
        try:
            return admissions.end(self._store, id, took_place=took_place, again=again)
        except errors.ConnectionLost:
            raise
        except errors.ExpDBError:
            self._may_have_ended = again
            raise

    def renew(self, seconds: float | None = None) -> None:
        """Hold it for so many seconds from now, as many as at first by default.

        Raises LeaseLost where it is over, or has expired.
        """
        self._seconds = self._seconds if seconds is None else checks.seconds(seconds)
        id = self._admitted.id
        if self._is_over or (
            id is not None
            and not self._store.engine.retry(admissions.renew, self._store, id, self._seconds)
        ):
            raise errors.LeaseLost("the admission is over or has expired: ask for another one")

    def __enter__(self) -> Admission:
        if self._is_over:
            raise errors.LeaseLost("the admission is over: ask for one with every group")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            with suppress(errors.ExpDBError):  # the error of the block is the one to tell
                self.cancel()


def admit(
    store: Store,
    wait: float | None,
    required: bool,
    seconds: float,
    cancelled: threading.Event | None = None,
) -> Admission | None:
    """Wait until a group may begin; see `ReplayBuffer.admit`."""
    wait = math.inf if wait is None else checks.number(wait, "wait", 0)
    required, seconds = checks.flag(required, "required"), checks.seconds(seconds)
    began = time.monotonic()
    deadline, seen, told = began + wait, None, wait < math.inf
    serial, engine = next(_serials), store.engine
    # Every attempt has the same id, so a commit with unknown outcome is not repeated.
    id = secrets.randbits(62)
    admitted = None
    if not engine.read_only:
        admitted = engine.retry(admissions.admit_without_reading, store, seconds, serial, id)
    with Waiter(store) as waiter:
        while True:
            # Read before the pace, so that every later commit ends the wait.
            seen = engine.changed_since(None)
            outcome = admitted or _read_pace_and_admit(store, seconds, serial, id)
            if isinstance(outcome, Admitted):
                return Admission(store, outcome, seconds)
            waiter.wait_for(f"the pace, to begin a group: {outcome}")
            if not told and time.monotonic() - began > PATIENCE:
                told = True
                errors.warn(
                    f"admit() has waited for {PATIENCE:g} seconds: {outcome}; it goes on when "
                    "buffer.policy_version is counted up, and not before"
                )
            until = min(deadline, time.monotonic() + LONGEST)
            while time.monotonic() < until and engine.changed_since(seen) is None:
                if cancelled is not None and cancelled.is_set():
                    return None
                time.sleep(min(PAUSE, max(0.0, until - time.monotonic())))
            if time.monotonic() >= deadline:
                if not required:
                    return None
                raise errors.RateLimited(
                    f"the pace of buffer {store.name!r} holds a new group back: {outcome}; "
                    "count up buffer.policy_version as you train, or wait longer"
                )


def _read_pace_and_admit(store: Store, seconds: float, serial: int, id: int) -> Admitted | str:
    """Read the pace without a lock, then admit a group or return the reason for refusing it."""
    engine = store.engine
    state = engine.retry(admissions.read_pace_state, store, _others)
    if id in state.versions:
        return Admitted(id, state.versions[id])
    if state.pace is None:
        return Admitted(None, state.version)
    # Check before taking the write lock, so a refused call does not wait for other writers.
    return state.refused or engine.retry(
        admissions.try_to_admit, store, seconds, serial, _others, id
    )


async def admit_async(
    store: Store, wait: float | None, required: bool, seconds: float
) -> Admission | None:
    """Do what `admit` does, in another thread."""
    return await obtain(
        lambda cancelled: admit(store, wait, required, seconds, cancelled),
        lambda admission: None if admission is None else admission.cancel(),
    )
