"""Admission: permission by the pace of a buffer to generate a group of episodes."""

from __future__ import annotations

import itertools
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any

from expdb import checks, errors
from expdb.keywords import checked_keywords
from expdb.process.awaiting import AsyncExit, async_form, obtain
from expdb.process.liveness import ProcessLiveness
from expdb.storage.activity import ACTOR
from expdb.storage.ledger import admissions
from expdb.storage.ledger.admissions import Admitted
from expdb.storage.ledger.waiters import Waiter
from expdb.storage.store import Store

PAUSE = 0.035  # seconds between two checks for a commit
PATIENCE = 60.0  # seconds after which a wait without a limit warns
LONGEST = 1.0  # seconds after which the pace is read again, because a group may have expired

_serials = itertools.count()
_others = ProcessLiveness()


class Admission(AsyncExit["Admission"]):
    """Permit one group of episodes until it is finished, cancelled or expired.

    `ReplayBuffer.admit` returns an admission. Use it in a ``with`` or ``async with`` statement:
    leaving the block finishes the group, and an exception in the block cancels it. An admission
    cannot be pickled.

    Examples
    --------
    >>> with buffer.admit() as group:  # doctest: +SKIP
    ...     for _ in range(8):
    ...         roll_out(buffer, policy_version=group.policy_version)
    """

    _is_over = True  # in case an interrupt stops the constructor

    def __init__(self, store: Store, admitted: Admitted, seconds: float):
        self._store, self._admitted, self._seconds = store, admitted, seconds
        self._begun_at, self._expires = errors.current_line(), time.monotonic() + seconds
        self._is_over, self._pid = False, os.getpid()
        self._may_have_ended = False  # by an earlier call whose outcome is unknown

    def __del__(self) -> None:
        is_held = self._admitted.id is not None and time.monotonic() < self._expires
        if self._is_over or not is_held or self._pid != os.getpid() or sys.is_finalizing():
            return
        errors.warn(
            f"an admission begun at {':'.join(map(str, self._begun_at))} was dropped without "
            "finish() or cancel(), so no other group can begin in its place until it expires after "
            f"{self._seconds:g} s; use `with buffer.admit() as group`"
        )

    def __repr__(self) -> str:
        return f"<Admission at policy_version {self.policy_version}>"

    def __reduce__(self) -> Any:
        raise errors.InvalidValue(
            "an admission cannot be passed to another process; call admit() in the process that "
            "generates the group"
        )

    @property
    def policy_version(self) -> int | None:
        """The buffer's `policy_version` when the group was admitted, an int or None."""
        return self._admitted.policy_version

    def finish(self) -> None:
        """Count the group as generated.

        Further calls have no effect. If the buffer had no `pace`, nothing is counted.

        Raises
        ------
        UnknownBuffer
            If the buffer was dropped.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`. The call
            can then be repeated.

        Warns
        -----
        ExpDBWarning
            If the group took longer than its `expiry_seconds`, so that another group may have begun
            in its place.
        """
        self._end(took_place=True)

    def cancel(self) -> None:
        """Let another group begin in place of this group.

        The call has no effect if the group is finished, cancelled or expired.

        Raises
        ------
        UnknownBuffer
            If the buffer was dropped.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`. The call
            can then be repeated.
        """
        self._end(took_place=False)

    def _end(self, *, took_place: bool) -> None:
        id = self._admitted.id
        if self._is_over:
            return
        was_valid = id is None or self._store.engine.retry(self._end_stored, id, took_place)
        self._is_over = True  # after the database call, so that a failed call can be repeated
        if not was_valid and took_place:
            errors.warn(
                f"a group took longer than the {self._seconds:g} seconds of its admission, so "
                "another group may have begun in its place; pass more expiry_seconds to admit(), "
                "or renew the admission in time"
            )

    def _end_stored(self, id: int, took_place: bool) -> bool:
        """End the stored admission; return whether it still existed."""
        again, self._may_have_ended = self._may_have_ended, True
        try:
            return admissions.end(self._store, id, took_place=took_place, again=again)
        except errors.ConnectionLost:
            raise
        except errors.ExpDBError:
            self._may_have_ended = again
            raise

    @checked_keywords(seconds="expiry_seconds")
    def renew(self, expiry_seconds: float | None = None) -> None:
        """Postpone the expiry of the admission.

        An expired admission can be renewed until another call to `admit` has removed it.

        Parameters
        ----------
        expiry_seconds : float, optional
            Seconds from now until the admission expires. Defaults to the latest
            `expiry_seconds` that was passed to `renew` or `admit`.

        Raises
        ------
        LeaseLost
            If the group is finished or cancelled, or has expired and was removed.
        InvalidValue
            If `expiry_seconds` is not a positive number.
        UnknownBuffer
            If the buffer was dropped.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.
        """
        if expiry_seconds is not None:
            self._seconds = checks.seconds(expiry_seconds)
        id = self._admitted.id
        if self._is_over or (
            id is not None
            and not self._store.engine.retry(admissions.renew, self._store, id, self._seconds)
        ):
            raise errors.LeaseLost("the admission has ended or expired; call admit() again")
        self._expires = time.monotonic() + self._seconds

    finish_async = async_form(finish)
    cancel_async = async_form(cancel)
    renew_async = async_form(renew)

    def __enter__(self) -> Admission:
        if self._is_over:
            raise errors.LeaseLost("the admission has ended; call admit() for every group")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.finish()
        else:
            with suppress(errors.ExpDBError):  # raise the error of the block instead
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
    deadline, seen, skip_warning = began + wait, None, wait < math.inf
    serial, engine = next(_serials), store.engine
    # Every attempt has the same id, so a commit with unknown outcome is not repeated.
    id = secrets.randbits(62)
    admitted = None
    if not engine.read_only:
        admitted = engine.retry(admissions.admit_without_reading, store, seconds, serial, id)
    with Waiter(store, ACTOR) as waiter:
        while True:
            # Read `seen` before the pace, so that every later commit ends the wait.
            seen = engine.changed_since(None)
            outcome = admitted or _read_pace_and_admit(store, seconds, serial, id)
            if isinstance(outcome, Admitted):
                return Admission(store, outcome, seconds)
            waiter.wait_for(f"the pace, to begin a group: {outcome}")
            if not skip_warning and time.monotonic() - began > PATIENCE:
                skip_warning = True
                errors.warn(
                    f"admit() of buffer {store.name!r} has waited for {PATIENCE:g} seconds: "
                    f"{outcome}; finish groups and increase buffer.policy_version to admit more"
                )
            until = min(deadline, time.monotonic() + LONGEST)
            while (now := time.monotonic()) < until:
                if cancelled is not None and cancelled.is_set():
                    return None
                time.sleep(min(PAUSE, until - now))  # even if every check finds a change
                if engine.changed_since(seen) is not None:
                    break
            if time.monotonic() >= deadline:
                if not required:
                    return None
                raise errors.RateLimited(
                    f"the pace of buffer {store.name!r} does not admit a new group: {outcome}; "
                    "finish groups and increase buffer.policy_version as you train, or wait longer"
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
    """Run `admit` in another thread; cancel the admission if the caller is cancelled."""
    return await obtain(
        lambda cancelled: admit(store, wait, required, seconds, cancelled),
        lambda admission: None if admission is None else admission.cancel(),
    )


class AdmissionRequest(Coroutine[Any, Any, Admission | None]):
    """An admission to wait for by ``await`` or ``async with``."""

    def __init__(self, store: Store, wait: float | None, required: bool, seconds: float):
        self._waiting = admit_async(store, wait, required, seconds)
        self._admission: Admission | None = None

    def __await__(self) -> Generator[Any, Any, Admission | None]:
        return self._waiting.__await__()

    def send(self, value: Any) -> Any:
        """Resume the coroutine with a value."""
        return self._waiting.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine."""
        return self._waiting.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._waiting.close()

    async def __aenter__(self) -> Admission:
        self._admission = await self._waiting
        if self._admission is None:
            raise errors.RateLimited(
                "the pace does not admit a new group, so the block cannot begin; omit "
                "required=False, or await admit_async() and check for None"
            )
        return await self._admission.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._admission is not None:
            await self._admission.__aexit__(kind, error, traceback)
