"""The rate limiter of a buffer, as it is stored and kept to."""

import json
import time

import sqlalchemy as sa

from expdb import errors
from expdb.replay.rate_limiters import RateLimiter
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.ledger.consumers import refuse_minimum
from expdb.storage.ledger.waiters import Waiter
from expdb.storage.store import Store

B = tables.buffers.c

PAUSE = 0.04  # seconds between two looks of a writer that is held back


def rate_limiter(session: Session, store: Store) -> tuple[RateLimiter | None, int]:
    """Return the limiter, None for none, and the positions handed out before it was set."""
    found = session.rows(sa.select(B.rate_limiter).where(B.id == store.id))
    if not found:
        raise store.dropped()
    return _read(store, found[0][0])


def _read(store: Store, text: str | None) -> tuple[RateLimiter | None, int]:
    if text is None:
        return None, 0
    try:
        stored = json.loads(text)
        return RateLimiter.from_json(stored), int(stored["since"])
    except (ValueError, LookupError, TypeError) as error:
        raise errors.DatabaseDamaged(
            f"the rate limiter of buffer {store.name!r} cannot be read ({error}): restore a backup"
        ) from error


def set_rate_limiter(store: Store, limiter: RateLimiter | None) -> None:
    """Count from now on, and keep to a limiter; to none with None."""
    with store.writing() as (session, _):
        state = store.state(session)
        added = state.added
        if limiter is not None:
            refuse_minimum(store, limiter.min_size, state.capacity)
        text = None if limiter is None else json.dumps({**limiter.as_json(), "since": added})
        most = None if limiter is None else limiter.insert_limit(0)
        values = {
            "rate_limiter": text,
            "sampled": 0,
            "insert_limit": None if most is None else added + most,
        }
        session.execute(sa.update(tables.buffers).where(B.id == store.id).values(**values))


def count_samples(session: Session, store: Store, text: str, count: int) -> None:
    """Count rows that are handed out; raise TooFewRows where they may not be yet.

    `text` is the limiter as it is stored.
    """
    limiter, since = _read(store, text)
    assert limiter is not None
    ((sampled, added, size),) = session.ask(
        "SELECT sampled, added, size FROM buffers WHERE id = ?" + store.dialect.FOR_UPDATE,
        store.id,
    )
    inserts = added - since
    if not limiter.may_sample(inserts, sampled, count, size):
        raise errors.TooFewRows(
            f"the rate limiter of buffer {store.name!r} holds back {count} rows: {sampled} were "
            f"handed out for {inserts} steps, at {limiter.ratio:g} each, and {size} of "
            f"min_size={limiter.min_size} are held; store more, or wait with wait=seconds"
        )
    most = limiter.insert_limit(sampled + count)
    session.tell(
        "UPDATE buffers SET sampled = sampled + ?, insert_limit = ? WHERE id = ?",
        count, None if most is None else since + most, store.id,
    )  # fmt: skip


def wait_to_insert(store: Store, count: int, deadline: float, error: errors.RateLimited) -> None:
    """Wait until so many steps may be inserted; raise RateLimited at the deadline.

    Raise InvalidValue where they never may be.
    """
    with Waiter(store) as waiter:
        _wait_to_insert(store, count, deadline, error, waiter)


def _wait_to_insert(
    store: Store, count: int, deadline: float, error: errors.RateLimited, waiter: Waiter
) -> None:
    while True:
        with store.engine.reading() as session:
            limiter, _ = rate_limiter(session, store)
            found = session.rows(sa.select(B.insert_limit, B.added).where(B.id == store.id))
        if limiter is None or found[0][0] is None or found[0][1] + count <= found[0][0]:
            return
        if count > max(limiter.largest_write, limiter.min_size):
            raise errors.InvalidValue(
                f"{count} steps at once are more than the rate limiter of buffer {store.name!r} "
                f"ever lets in: write up to {int(limiter.largest_write)} at a time (flush_steps=)"
            ) from error
        if time.monotonic() >= deadline:
            raise errors.RateLimited(
                f"buffer {store.name!r} takes no more steps before learners have leased more: its "
                "rate limiter holds this write back; start a learner, or open with a longer timeout"
            ) from error
        waiter.wait_for(f"the rate limiter, to store {count} steps")
        time.sleep(PAUSE)
