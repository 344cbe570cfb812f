"""Store and enforce the rate limiter of a buffer."""

import json
import math
import time
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.replay.rate_limiters import RateLimiter
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.activity import ACTOR
from expdb.storage.ledger.consumers import (
    ConsumerRecord,
    find_consumer,
    list_consumers,
    policy_version,
    refuse_minimum,
)
from expdb.storage.ledger.lease_rows import acknowledged, names_episodes, open_leases
from expdb.storage.ledger.waiters import Waiter
from expdb.storage.store import Store
from expdb.storage.stored_json import damaged, parse_object

B, E, S = tables.buffers.c, tables.episodes.c, tables.steps.c

LARGEST_LIMIT = 2**62  # the largest value that the counters of a buffer can hold
PAUSE = 0.04  # seconds between two checks of a waiting writer
# Seconds between two counts, by a waiting writer, of the rows that can still be leased: first and
# longest interval.
FIRST_LOOK, LONGEST_LOOK = 0.2, 5.0


@dataclass(frozen=True)
class _Stored:
    """The rate limiter of a buffer, as stored in the buffer's row."""

    limiter: RateLimiter
    since: int  # position of the next step when the limiter was set
    # Number of rows that writers no longer expect, because no consumer can lease them any more.
    forgiven: float

    def as_text(self) -> str:
        """Return the JSON for the buffer's row."""
        others = {"since": self.since, "forgiven": self.forgiven}
        return json.dumps({**self.limiter.as_json(), **others})

    def insert_limit(self, sampled: int) -> int | None:
        """Return the largest value of `added` that the limiter allows, or None without a limit."""
        most = self.limiter.insert_limit(math.floor(sampled + self.forgiven))
        return None if most is None else min(self.since + most, LARGEST_LIMIT)


def rate_limiter(store: Store, session: Session) -> tuple[RateLimiter | None, int]:
    """Return the limiter or None, and the next position at the time when it was set."""
    text = store.column(session, "rate_limiter")
    if text is None:
        return None, 0
    stored = _read(store, text)
    return stored.limiter, stored.since


def _read(store: Store, text: str) -> _Stored:
    try:
        stored = json.loads(text)
        limiter = RateLimiter.from_json(stored)
        return _Stored(limiter, int(stored["since"]), float(stored.get("forgiven", 0.0)))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise damaged(f"the rate limiter of buffer {store.name!r}", error) from error


def set_rate_limiter(store: Store, limiter: RateLimiter | None) -> None:
    """Set the rate limiter and start counting at zero; None removes it."""
    with store.writing() as (session, _):
        state = store.state(session)
        added = state.added
        if limiter is not None:
            refuse_minimum(store, limiter.min_size, state.capacity)
        stored = None if limiter is None else _Stored(limiter, added, 0.0)
        values = {
            "rate_limiter": None if stored is None else stored.as_text(),
            "sampled": 0,
            "insert_limit": None if stored is None else stored.insert_limit(0),
        }
        session.execute(sa.update(tables.buffers).where(B.id == store.id).values(**values))


def check_sample(store: Store, text: str, least: int) -> None:
    """Raise InvalidValue if the rate limiter can never allow a lease of `least` rows."""
    limiter = _read(store, text).limiter
    if least > limiter.largest_sample:
        raise errors.InvalidValue(
            f"a lease of {least} items can never succeed, because the rate limiter of buffer "
            f"{store.name!r} allows at most {int(limiter.largest_sample)} items per lease; "
            "request fewer items, pass a smaller at_least, or set another rate_limiter"
        )


def count_samples(store: Store, session: Session, count: int) -> None:
    """Count the rows of a lease; raise TooFewRows if the rate limiter does not allow them yet.

    The function locks the buffer's row before it reads the limiter, because another process may
    have replaced the limiter.
    """
    ((text, sampled, added, size),) = session.query(
        "SELECT rate_limiter, sampled, added, size FROM buffers WHERE id = ?"
        + store.dialect.FOR_UPDATE,
        store.id,
    )
    if text is None:
        return
    stored = _read(store, text)
    limiter = stored.limiter
    inserts = added - stored.since
    if not limiter.may_sample(inserts, sampled + stored.forgiven, count, size):
        if stored.forgiven:
            # A new consumer may be able to lease steps that no earlier consumer could.
            stored = replace(stored, forgiven=_forgiven(store, session, stored, sampled, added))
        if not limiter.may_sample(inserts, sampled + stored.forgiven, count, size):
            raise errors.TooFewRows(
                f"the rate limiter of buffer {store.name!r} does not allow a lease of {count} "
                f"items yet ({sampled} items leased for {inserts} stored steps, ratio "
                f"{limiter.ratio:g}; {size} steps in the buffer, min_size={limiter.min_size}); "
                "store more steps, or pass wait=seconds"
            )
    session.execute(
        "UPDATE buffers SET sampled = sampled + ?, insert_limit = ?, rate_limiter = ? WHERE id = ?",
        count, stored.insert_limit(sampled + count), stored.as_text(), store.id,
    )  # fmt: skip


def forgive(store: Store) -> None:
    """Stop waiting for samples of steps that no consumer can lease any longer.

    Such steps are deleted, evicted, too stale, or leased as often as allowed.
    """
    with store.writing() as (session, _):
        ((text, sampled, added, size),) = session.query(
            "SELECT rate_limiter, sampled, added, size FROM buffers WHERE id = ?", store.id
        )
        if text is None:
            return
        stored = _read(store, text)
        stored = replace(stored, forgiven=_forgiven(store, session, stored, sampled, added))
        limit, missing = stored.insert_limit(sampled), stored.limiter.min_size - size
        if limit is not None and missing > 0:  # learners wait until the buffer has min_size steps
            limit = max(limit, added + missing)
        session.query(
            "UPDATE buffers SET insert_limit = ?, rate_limiter = ? WHERE id = ? RETURNING id",
            limit, stored.as_text(), store.id,
        )  # fmt: skip


def _forgiven(store: Store, session: Session, stored: _Stored, sampled: int, added: int) -> float:
    ahead = (added - stored.since) * stored.limiter.ratio - sampled
    return max(0.0, ahead - leasable(store, session, stored.since, stored.limiter))


def leasable(store: Store, session: Session, since: int, limiter: RateLimiter) -> float:
    """Return how many rows consumers can still lease from the steps at `since` and later.

    If the buffer has no consumer, assume that a future consumer will lease every step `ratio`
    times. If the buffer has fewer steps than the limiter's `min_size`, no step can be leased.
    """
    state = store.state(session)
    if state.size < limiter.min_size:
        return 0.0
    records = [find_consumer(store, session, name) for name in list_consumers(store, session)]
    if not records:
        statement = sa.select(sa.func.count()).select_from(tables.steps)
        ((count,),) = session.query(statement.where(S.buffer_id == store.id, S.position >= since))
        return float(count * limiter.ratio)
    version = policy_version(store, session)
    total = 0.0
    for record in records:
        if record is None or state.size < record.settings.min_size:
            continue
        total += _leasable_by(store, session, record, since, version)
    return total


def _leasable_by(
    store: Store, session: Session, record: ConsumerRecord, since: int, version: int | None
) -> float:
    settings = record.settings
    first = max(since, record.began if settings.new_only else 0)
    steps = sa.select(S.position, S.episode).where(S.buffer_id == store.id, S.position >= first)
    whole = _requests_of_whole_episodes(store, session)
    if settings.max_staleness is not None and version is not None:
        episode = sa.and_(E.buffer_id == S.buffer_id, E.id == S.episode)
        latest = session.query(
            "SELECT request FROM leases WHERE buffer_id = ? AND consumer = ? "
            "ORDER BY id DESC LIMIT 1",
            store.id, record.id,
        )  # fmt: skip
        own = (
            E.first_policy_version
            if latest and latest[0][0] in whole
            else sa.func.coalesce(S.policy_version, E.policy_version)
        )
        steps = steps.join(tables.episodes, episode).where(own >= version - settings.max_staleness)
    if settings.max_times_sampled is None:
        return math.inf if session.query(steps.limit(1)) else 0.0
    rows = session.fetch(steps.order_by(S.position))
    if not rows:
        return 0.0
    positions, episodes = np.array(rows, np.int64).T
    times = np.zeros(len(positions), np.int64)
    oldest = int(positions[0])
    leased = [
        open_lease
        for open_lease in open_leases(store, session, record)
        if open_lease.status == "leased"
    ]
    for lease in (*acknowledged(store, session, record, oldest), *leased):
        items = lease.drawn.items
        place = np.searchsorted(positions, items)
        is_counted = (place < len(positions)) & (items >= oldest)
        is_counted[is_counted] = positions[place[is_counted]] == items[is_counted]
        if lease.request in whole:
            times += np.isin(episodes, episodes[place[is_counted]])
        else:
            np.add.at(times, place[is_counted], 1)
    return float(np.maximum(settings.max_times_sampled - times, 0).sum())


def _requests_of_whole_episodes(store: Store, session: Session) -> set[int]:
    """Return the ids of requests whose leases name an episode by its first step."""
    rows = session.query("SELECT id, request FROM requests WHERE buffer_id = ?", store.id)
    units = {id: parse_object(text, "a request").get("unit") for id, text in rows}
    return {id for id, unit in units.items() if names_episodes(unit)}


def wait_to_insert(store: Store, count: int, deadline: float, error: errors.RateLimited) -> None:
    """Wait until `count` steps may be inserted; raise RateLimited at the deadline.

    Raise InvalidValue if the limiter can never allow so large a write.
    """
    with Waiter(store, ACTOR) as waiter:
        _wait_to_insert(store, count, deadline, error, waiter)


def _wait_to_insert(
    store: Store, count: int, deadline: float, error: errors.RateLimited, waiter: Waiter
) -> None:
    began, pause = time.monotonic(), FIRST_LOOK
    while True:
        with store.engine.reading() as session:
            limiter, _ = rate_limiter(store, session)
            limits = session.query(sa.select(B.insert_limit, B.added).where(B.id == store.id))
        if limiter is None or limits[0][0] is None or limits[0][1] + count <= limits[0][0]:
            return
        if count > max(limiter.largest_write, limiter.min_size):
            raise errors.InvalidValue(
                f"a write of {count} steps can never succeed, because it exceeds the limit of "
                f"the rate limiter of buffer {store.name!r}; write at most "
                f"{int(limiter.largest_write)} steps at once (flush_steps=)"
            ) from error
        now = time.monotonic()
        if now >= min(began + pause, deadline):
            forgive(store)
            pause = min(2 * pause, LONGEST_LOOK)
            began = time.monotonic()
            if now < deadline:
                continue
            with store.engine.reading() as session:
                limits = session.query(sa.select(B.insert_limit, B.added).where(B.id == store.id))
                if limits[0][0] is None or limits[0][1] + count <= limits[0][0]:
                    return
                left = leasable(store, session, rate_limiter(store, session)[1], limiter)
            rows = "any number of" if left == math.inf else f"{left:g}"
            raise errors.RateLimited(
                f"the rate limiter of buffer {store.name!r} did not allow {count} more steps "
                f"before the timeout ({rows} items can be leased now); start a learner, or open "
                "with a longer timeout"
            ) from error
        waiter.wait_for(f"the rate limiter, to store {count} steps")
        time.sleep(PAUSE)
