"""Knowing what the other learners of a consumer have leased, acknowledged and given back."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from expdb.memory.usage import Usage
from expdb.sql.session import Session
from expdb.storage.ledger import leases
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.leases import Counters
from expdb.storage.store import Store


def follow(
    usage: Usage, session: Session, store: Store, consumer: ConsumerRecord, counters: Counters
) -> None:
    """Bring a usage up to date with the ledger."""
    if usage.version == counters.version:
        return
    try:
        if usage.version < 0:
            _load(usage, session, store, consumer, counters)
        else:
            for lease in leases.changed(session, store, consumer, usage.last, usage.held):
                usage.take_in(lease)
    except BaseException:
        usage.forget()
        raise
    usage.version = counters.version


def _load(
    usage: Usage, session: Session, store: Store, consumer: ConsumerRecord, counters: Counters
) -> None:
    """Read the ledger, as far as it tells of what is held."""
    oldest = store.state(session).oldest
    usage.begin_at(oldest)
    if usage.most is not None:
        for lease in leases.acknowledged(session, store, consumer, oldest):
            usage.take_in(lease)
    for lease in leases.open_leases(session, store, consumer):
        usage.take_in(lease)
    usage.last, usage.begun = counters.handed_out - 1, counters.begun
