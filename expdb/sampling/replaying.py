"""Batches of the ledger, made again."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Iterator
from typing import Any

from expdb import errors
from expdb.batch import Batch
from expdb.replay.sequences import Episode, Group, Sequence
from expdb.replay.transitions import NStep, Stack
from expdb.replay.units import Step, Unit
from expdb.sampling.repeatable import Philox, matches
from expdb.sampling.sampler import Sampling
from expdb.storage.ledger import entries, leases
from expdb.storage.ledger.consumers import ConsumerRecord, find_consumer, unknown_consumer
from expdb.storage.ledger.entries import Entry
from expdb.storage.store import Store

UNITS: dict[str, type[Unit]] = {
    unit.__name__: unit for unit in (Step, Stack, NStep, Sequence, Episode, Group)
}


def replayed(
    store: Store,
    sampling: Sampling,
    name: str,
    steps: set[int] | None,
    newest: int | None,
    unit: Unit | None,
) -> Iterator[Batch]:
    """Yield batches that were acknowledged, in that order."""
    with store.engine.reading() as session:
        consumer = find_consumer(session, store, name)
        if consumer is None:
            raise unknown_consumer(session, store, name)
        ids = entries.acknowledged(session, store, consumer, steps, newest)
        if steps and not ids:
            first, last = entries.acknowledged_steps(session, store, consumer)
            known = "none" if first is None else f"steps {first} to {last}"
            errors.warn(
                f"consumer {name!r} has no batch that was acknowledged with one of the given "
                f"trainer steps; it has {known}"
            )
    return _each(store, sampling, consumer, ids, unit)


def _each(
    store: Store, sampling: Sampling, consumer: ConsumerRecord, ids: list[int], unit: Unit | None
) -> Iterator[Batch]:
    def batch_of(id: int) -> Batch:
        with store.engine.reading() as session:
            entry = entries.read_entry(session, store, consumer, id)
        return made_again(store, sampling, consumer, entry, unit)

    for id in ids:
        yield store.engine.retry(batch_of, id)


def shared(
    store: Store, sampling: Sampling, consumer: ConsumerRecord, id: int, unit: Unit | None
) -> Batch:
    """Return the batch of a lease that any process holds; raise LeaseLost where none does."""
    with store.engine.reading() as session:
        if leases.status(session, store, consumer, id)[0] != "leased":
            raise leases.lost(session, store, consumer, id)
        entry = entries.read_entry(session, store, consumer, id)
    return made_again(store, sampling, consumer, entry, unit)


def made_again(
    store: Store, sampling: Sampling, consumer: ConsumerRecord, entry: Entry, unit: Unit | None
) -> Batch:
    """Return the batch of a row of the ledger, bit for bit.

    Raise Evicted or ReplayMismatch where that cannot be.
    """
    what, asked = f"batch {entry.number} of consumer {consumer.name!r}", entry.request
    fields = None if asked["fields"] is None else tuple(asked["fields"])
    rng = Philox(consumer.settings.seed, 1).of_batch(entry.number, entry.drawn.attempt)
    given = _unit(asked["unit"], what) if unit is None else unit
    try:
        batch, rows = sampling.again(entry.drawn, given, fields, rng)
    except errors.Evicted as error:
        raise errors.Evicted(f"{what}: {error}") from None
    if not matches(batch, store, rows, entry.checksum):
        raise errors.ReplayMismatch(
            f"{what} differs from what was handed out: rewards or other columns were changed, "
            "steps around it were deleted, or its episodes went on since"
        )
    return batch


def _unit(settings: dict[str, Any], what: str) -> Unit:
    given = {key: value for key, value in settings.items() if key != "name"}
    known = UNITS.get(settings["name"])
    if known is None:
        raise errors.InvalidValue(
            f"{what} was made by the unit {settings['name']}, which is not expdb's: give it as "
            "unit="
        )
    return known(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
