"""Release the batches that a trainer leased after one of its steps."""

from typing import NamedTuple

import numpy as np

from expdb import errors
from expdb.sql.session import Session
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.lease_rows import lock_consumer, read_changed
from expdb.storage.ledger.pins import update_pins
from expdb.storage.store import Store


class ReleasedLeases(NamedTuple):
    """The number of released leases and the positions of their items."""

    leases: int
    positions: np.ndarray  # of the items, ascending, each once


def rewind(store: Store, session: Session, consumer: ConsumerRecord, step: int) -> ReleasedLeases:
    """Release all leases that are active or were acknowledged after a trainer step.

    These are the leases with a greater trainer step, and those without a trainer step that were
    acknowledged after the last lease with a trainer step up to `step`.
    """
    counters = lock_consumer(store, session, consumer)
    rows = session.query(
        "SELECT id, status, trainer_step, acknowledged FROM leases WHERE buffer_id = ? AND "
        "consumer = ? AND status IN ('leased', 'acknowledged')",
        store.id, consumer.id,
    )  # fmt: skip
    done = [row for row in rows if row[1] == "acknowledged"]
    if done and all(trainer_step is None for _, _, trainer_step, _ in done):
        raise errors.InvalidValue(
            f"no lease of consumer {consumer.name!r} was acknowledged with a trainer step, so it "
            "is unknown which batches to return; pass step= to lease() or acknowledge()"
        )
    kept_steps = [(order, at) for _, _, at, order in done if at is not None and at <= step]
    newest = max((order for order, _ in kept_steps), default=-1)
    kept = {
        id: order
        for id, _, at, order in done
        if (at is not None and at <= step) or (at is None and order <= newest)
    }
    ids = np.array(sorted(row[0] for row in rows if row[0] not in kept), np.int64)
    if not len(ids):
        return ReleasedLeases(0, ids)
    leases = read_changed(store, session, consumer, 1 << 62, ids.tolist())  # no id is above 1 << 62
    session.execute(
        f"UPDATE leases SET status = 'returned', ended = {store.dialect.NOW}, trainer_step = NULL, "
        f"acknowledged = NULL WHERE buffer_id = ? AND consumer = ? AND id {store.dialect.AMONG}",
        store.id, consumer.id, store.dialect.as_list(ids),
    )  # fmt: skip
    # The order of acknowledgement has no gaps, so that later leases can continue it.
    ranks = sorted(kept, key=kept.__getitem__)
    moved = [(rank, store.id, consumer.id, id) for rank, id in enumerate(ranks) if kept[id] != rank]
    session.execute_many(
        "UPDATE leases SET acknowledged = ? WHERE buffer_id = ? AND consumer = ? AND id = ?", moved
    )
    session.query(
        "UPDATE consumers SET version = ?, rewinds = rewinds + 1, acknowledged = ?, last_step = ? "
        "WHERE buffer_id = ? AND id = ? RETURNING 1",
        counters.version + 1, len(kept), max(kept_steps)[1] if kept_steps else None, store.id,
        consumer.id,
    )  # fmt: skip
    update_pins(store, session)
    return ReleasedLeases(
        len(ids), np.unique(np.concatenate([lease.drawn.items for lease in leases]))
    )
