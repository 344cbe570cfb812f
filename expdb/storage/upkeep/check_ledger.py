"""Check the ledger of a buffer: counters, readable leases, and limits of consumers."""

from collections.abc import Iterator

import numpy as np
import sqlalchemy as sa

from expdb.errors import ExpDBError
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.ledger import entries
from expdb.storage.ledger.consumers import ConsumerRecord, find_consumer, list_consumers
from expdb.storage.store import Store

L = tables.leases.c


def check_ledger(store: Store, session: Session) -> Iterator[str]:
    """Yield the problems of the consumers and their leases, one line each."""
    for name in list_consumers(store, session):
        try:
            consumer = find_consumer(store, session, name)
            assert consumer is not None
            for problem in _consumer(store, session, consumer):
                yield f"consumer {name!r} {problem}"
        except ExpDBError as error:
            yield str(error)


def _consumer(store: Store, session: Session, consumer: ConsumerRecord) -> Iterator[str]:
    of_consumer = sa.and_(L.buffer_id == store.id, L.consumer == consumer.id)
    by_status = (
        sa.select(L.status, sa.func.count().label("count")).where(of_consumer).group_by(L.status)
    )
    counts = {row.status: row.count for row in session.query(by_status)}
    for counter, count in (
        ("handed_out", sum(counts.values())),
        ("acknowledged", counts.get("acknowledged", 0)),
    ):
        if getattr(consumer, counter) != count:
            yield f"counts {getattr(consumer, counter)} leases in {counter}, but has {count}"
    leased: list[np.ndarray] = []
    drawn: list[np.ndarray] = []
    most = consumer.settings.max_times_sampled
    for entry in entries.read_entries(store, session, consumer, sa.true()):
        if isinstance(entry, ExpDBError):
            yield str(entry)
            continue
        if entry.number >= consumer.begun:
            yield f"has a batch numbered {entry.number}, but its counter begun is {consumer.begun}"
        if entry.status == "leased":
            leased.append(np.unique(entry.drawn.items))
        if most is not None and entry.status in ("leased", "acknowledged"):
            drawn.append(entry.drawn.items)
    for what, parts, bound in (("in active leases", leased, 1), ("leased", drawn, most)):
        if parts and bound is not None:
            positions, times = np.unique(np.concatenate(parts), return_counts=True)
            if (times > bound).any():
                worst = int(times.argmax())
                found_out = f"has position {positions[worst]} {what} {times[worst]} times"
                yield f"{found_out}, but at most {bound} is allowed"
