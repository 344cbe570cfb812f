"""Rebuild batches from the ledger of a consumer."""

from __future__ import annotations  # so that annotations do not import numpy.random

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from expdb import checks, errors
from expdb.batch import Batch
from expdb.replay.settings import public_name
from expdb.replay.tokens import Tokens
from expdb.replay.units import Unit
from expdb.sampling.checksums import matches
from expdb.sampling.engine import SampleEngine
from expdb.sampling.philox import Philox
from expdb.sampling.request import REPR
from expdb.storage.ledger import entries, lease_rows
from expdb.storage.ledger.consumers import ConsumerRecord, find_consumer, unknown_consumer
from expdb.storage.ledger.encoding import damaged
from expdb.storage.ledger.entries import Entry
from expdb.storage.store import Store

_NEW_NAMES = {"fork_threshold": "drift_threshold"}  # by the name of the setting in expdb 0.2
# A unit that replaces the recorded unit, or classes to search for the recorded name.
Units = Unit | tuple[type[Unit], ...]


def checked_replay(
    consumer: Any, steps: Any, limit: Any, unit: Any, units: Any
) -> tuple[str, set[int] | None, int | None, Units]:
    """Return the checked arguments of `ReplayBuffer.replay`."""
    if steps is not None and not isinstance(steps, Iterable):
        raise errors.InvalidValue(
            f"trainer_steps must be iterable, such as range(9), got {steps!r}"
        )
    wanted = None if steps is None else {checks.whole(step, "trainer_steps") for step in steps}
    newest = None if limit is None else checks.whole(limit, "limit", 1)
    if unit is not None:
        checks.instance(unit, Unit, "unit", "expdb.Step()")
    classes = tuple(units) if isinstance(units, Iterable) else (units,)
    for kind in classes:
        if not isinstance(kind, type) or not issubclass(kind, Unit):
            raise errors.InvalidValue(f"units must be classes, such as [Pairs], got {kind!r}")
    return checks.name(consumer, "a consumer"), wanted, newest, classes if unit is None else unit


def replayed(
    store: Store,
    sampling: SampleEngine,
    name: str,
    steps: set[int] | None,
    newest: int | None,
    units: Units,
) -> Iterator[Batch]:
    """Return an iterator over acknowledged batches, in the order of their acknowledgement."""
    with store.engine.reading() as session:
        consumer = find_consumer(store, session, name)
        if consumer is None:
            raise unknown_consumer(store, session, name)
        ids = entries.acknowledged(store, session, consumer, steps, newest)
        if steps and not ids:
            first, last = entries.find_acknowledged_range(store, session, consumer)
            available = "none" if first is None else f"{first} to {last}"
            errors.warn(
                f"consumer {name!r} has no batch that was acknowledged with a trainer step in "
                f"trainer_steps=; pass other steps (available: {available})"
            )
    return _each(store, sampling, consumer, ids, units)


def _each(
    store: Store, sampling: SampleEngine, consumer: ConsumerRecord, ids: list[int], units: Units
) -> Iterator[Batch]:
    def batch_of(id: int) -> Batch:
        entry = store.read(entries.read_entry, consumer, id)
        if entry is None:
            raise damaged(store.name, consumer.name, id, "its row is missing")
        return rebuild_batch(store, sampling, consumer, entry, units)[0]

    for id in ids:
        yield store.engine.retry(batch_of, id)


def shared(
    store: Store, sampling: SampleEngine, consumer: ConsumerRecord, id: int, units: Units
) -> tuple[Batch, Unit, tuple[int, int] | None]:
    """Return the batch of a lease of any process, its unit, and its ranks; see `as_text`.

    Raise LeaseLost if no process holds the lease.
    """
    entry = store.read(entries.read_entry, consumer, id)
    if entry is None or entry.status != "leased":
        raise store.read(lease_rows.lost_error, consumer, id)
    ranks = entry.request.get("ranks")
    batch, unit = rebuild_batch(store, sampling, consumer, entry, units)
    return batch, unit, None if ranks is None else (ranks[0], ranks[1])


def check_rows_multiple(unit: Unit, rows_multiple: int) -> None:
    """Raise InvalidValue if `rows_multiple` is not 1 and the unit cannot add empty rows."""
    if rows_multiple != 1 and not unit.pads_rows:
        raise errors.InvalidValue(
            f"rows_multiple={rows_multiple} requires a unit that can add empty rows, such as "
            "Tokens; omit rows_multiple, or lease with unit=expdb.Tokens(...)"
        )


def select_shard(batch: Batch, unit: Unit, shard: tuple[int, int], rows_multiple: int) -> Batch:
    """Return the rows of a batch for one rank; `shard` is (rank, number of ranks)."""
    return batch.with_columns(unit.shard(batch, *shard, rows_multiple))


def rebuild_batch(
    store: Store, sampling: SampleEngine, consumer: ConsumerRecord, entry: Entry, units: Units
) -> tuple[Batch, Unit]:
    """Return the batch of a ledger entry, bit for bit, and its unit.

    Raise Evicted if the buffer lacks steps of the batch, and ReplayMismatch if the batch differs.
    """
    what, request = f"batch {entry.number} of consumer {consumer.name!r}", entry.request
    fields = None if request["fields"] is None else tuple(request["fields"])
    rng = Philox(consumer.settings.seed, 1).of_batch(entry.number, entry.drawn.attempt)
    unit = _unit(request["unit"], units, what) if isinstance(units, tuple) else units
    try:
        rebuilt = sampling.rebuild_batch(entry.drawn, unit, fields, rng)
    except errors.Evicted as error:
        raise errors.Evicted(f"{what}: {error}") from None
    if not matches(rebuilt.batch, store, rebuilt.rows_crc, entry.checksum):
        raise errors.ReplayMismatch(
            f"{what} differs from the leased batch, because rewards, scores, annotations or other "
            "columns were changed, neighbouring steps were deleted, episodes were continued, or "
            "the unit was changed; pass the original unit, or skip this batch"
        )
    return rebuilt.batch, unit


def _unit(settings: Mapping[str, Any], units: Iterable[type[Unit]], what: str) -> Unit:
    """Return the unit that the ledger describes.

    Look up a user's class by its name in `units`, then in the modules that are already imported.
    Never import a module because a file names it.
    """
    name = settings["name"]
    kind = _class_of(name, units)
    if kind is None:
        raise errors.InvalidValue(
            f"{what} was built with the unit {name}, which is not defined in this process; "
            f"import the module of the unit, pass units=[{name.rpartition('.')[2]}] to replay(), "
            "or pass the unit itself as unit="
        )
    new_names = _NEW_NAMES if issubclass(kind, Tokens) else {}
    arguments = {
        new_names.get(key, key): _setting(value, units, what)
        for key, value in settings.items()
        if key != "name"
    }
    try:
        return kind(**arguments)
    except TypeError as error:
        raise errors.InvalidValue(
            f"{what} was built with another version of the unit {name} ({error}); pass the "
            "original unit as unit="
        ) from None


def _setting(value: Any, units: Iterable[type[Unit]], what: str) -> Any:
    if isinstance(value, list):
        return tuple(_setting(element, units, what) for element in value)
    if isinstance(value, dict) and value.keys() == {REPR}:
        raise errors.InvalidValue(
            f"{what} was built with a unit with the setting {value[REPR]}, which JSON cannot "
            "represent; pass the unit itself as unit="
        )
    return _unit(value, units, what) if isinstance(value, dict) and "name" in value else value


def _class_of(name: str, units: Iterable[type[Unit]]) -> type[Unit] | None:
    candidates, (module, _, short) = list(units), name.rpartition(".")
    # A notebook may define a class several times; prefer the newest definition.
    newest = getattr(sys.modules.get(module), short, None)
    for kind in (*candidates, newest, *reversed(_subclasses(Unit))):
        if isinstance(kind, type) and issubclass(kind, Unit) and public_name(kind) == name:
            return kind
    return next((kind for kind in candidates if kind.__name__ == short), None)


def _subclasses(base: type[Unit]) -> list[type[Unit]]:
    direct = base.__subclasses__()
    return direct + [subclass for kind in direct for subclass in _subclasses(kind)]
