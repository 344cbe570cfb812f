"""Evictions under way: the steps, the process that archives them, and their file.

An eviction has four stages:

1. Commit the row of the eviction.
2. Write a draft of the archive file.
3. In one transaction, delete the steps and mark the row as committed.
4. Rename the draft, and delete the row.

Only the owner of the row may delete the steps, and the same transaction checks the owner. If the
process is killed at any time, the steps are therefore in the buffer or in a draft that the row
identifies.
"""

import json
import logging
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.stored_json import damaged

log = logging.getLogger(__name__)

V = tables.evictions.c

NOBODY = ""  # `holder` of an eviction that no process owns


@dataclass(frozen=True)
class Archiving:
    """An eviction that is under way."""

    id: int  # random; each new owner sets another id
    holder: str  # name of the process that archives
    idle: float  # seconds since the last renewal, by the clock of the database
    file: str
    positions: np.ndarray
    committed: bool  # the steps are deleted, and only the draft has them

    @property
    def path(self) -> Path:
        """The path of the finished archive file."""
        return Path(self.file)

    @property
    def draft(self) -> Path:
        """The path of the draft; its name contains the id, so no other owner writes to it."""
        return self.path.with_name(f".{self.path.name}.{self.id:x}")


def find_eviction(store: Store, session: Session) -> Archiving | None:
    """Return the buffer's eviction that is under way, or None."""
    rows = session.query(
        sa.select(V.id, V.holder, _now(store) - V.renewed, V.file, V.positions, V.committed).where(
            V.buffer_id == store.id
        )
    )
    if not rows:
        return None
    id, holder, idle, file, positions, committed = rows[0]
    return Archiving(id, holder, idle, file, _unpack(store, positions), bool(committed))


def begin(
    store: Store, session: Session, holder: str, file: str, positions: np.ndarray
) -> Archiving:
    """Insert the row of a new eviction; a buffer has at most one eviction at a time."""
    id = _random_id()
    log.info("buffer %r: archiving %d steps to %s", store.name, len(positions), file)
    session.execute(
        sa.insert(tables.evictions).values(
            buffer_id=store.id, id=id, holder=holder, renewed=_now(store), file=file,
            positions=_pack(positions), committed=False,
        )
    )  # fmt: skip
    return Archiving(id, holder, 0.0, file, positions, False)


def take_over(store: Store, session: Session, archiving: Archiving, holder: str) -> Archiving:
    """Make another process the owner, so that the previous one can no longer delete the steps."""
    id = _random_id()
    values = {"id": id, "holder": holder, "renewed": _now(store)}
    session.execute(_update(store, archiving).values(**values))
    return replace(archiving, id=id, holder=holder, idle=0.0)


def renew(store: Store, session: Session, archiving: Archiving) -> bool:
    """Set the time of the last renewal to now; return False if `is_owner` returns False."""
    if not is_owner(store, session, archiving):
        return False
    session.execute(_update(store, archiving).values(renewed=_now(store)))
    return True


def is_owner(store: Store, session: Session, archiving: Archiving) -> bool:
    """Return whether the owner and state of the eviction are still those of `archiving`.

    Once the owner has deleted the steps, only its draft contains them. Taking over the eviction
    would then replace the id in the row, which is part of the name of this draft.
    """
    condition = V.buffer_id == store.id, V.id == archiving.id
    rows = session.query(sa.select(V.committed).where(*condition))
    return bool(rows) and bool(rows[0][0]) == archiving.committed


def release_ownership(store: Store, session: Session, archiving: Archiving) -> None:
    """Give up the ownership, so that any process can continue the eviction."""
    session.execute(_update(store, archiving).values(holder=NOBODY))


def shrink(
    store: Store, session: Session, archiving: Archiving, positions: np.ndarray
) -> Archiving:
    """Reduce an eviction to the steps at `positions`; the file stays the same."""
    session.execute(_update(store, archiving).values(positions=_pack(positions)))
    return replace(archiving, positions=positions)


def commit(store: Store, session: Session, archiving: Archiving) -> Archiving:
    """Record that the steps are deleted, in the transaction that deletes them."""
    session.execute(_update(store, archiving).values(committed=True, positions=_pack(NO_STEPS)))
    return replace(archiving, committed=True, positions=NO_STEPS)


def end(store: Store, session: Session, archiving: Archiving) -> None:
    """Delete the row of an eviction."""
    session.execute(
        sa.delete(tables.evictions).where(V.buffer_id == store.id, V.id == archiving.id)
    )


def fingerprint(store: Store, session: Session, archiving: Archiving) -> tuple[int, ...]:
    """Return numbers that change when the steps or their episodes change."""
    if not len(archiving.positions):
        return ()
    low, high = int(archiving.positions[0]), int(archiving.positions[-1])
    steps, episodes, segments = tables.steps.c, tables.episodes.c, tables.segments.c
    priorities, annotations = tables.priorities.c, tables.annotations.c
    f = sa.func
    in_range = segments.buffer_id == store.id, segments.last >= low, segments.first <= high
    affected = sa.select(segments.episode).where(*in_range)
    of_steps = steps.buffer_id == store.id, steps.position.between(low, high)
    of_episodes = episodes.buffer_id == store.id, episodes.id.in_(affected)
    blocks = priorities.buffer_id == store.id, priorities.block.between(low >> 10, high >> 10)
    annotated = annotations.buffer_id == store.id, annotations.position.between(low, high)
    figures = (
        (f.count(), of_steps),
        (f.coalesce(f.max(steps.revision), -1), of_steps),
        (f.coalesce(f.max(episodes.revision), -1), of_episodes),
        (f.coalesce(f.max(priorities.version), -1), blocks),
        (f.count(), annotated),
        (f.coalesce(f.sum(annotations.crc), 0), annotated),
    )
    (row,) = session.query(
        sa.select(*[sa.select(figure).where(*rows).scalar_subquery() for figure, rows in figures])
    )
    return tuple(map(int, row))


NO_STEPS = np.empty(0, np.int64)


def _update(store: Store, archiving: Archiving) -> sa.Update:
    return sa.update(tables.evictions).where(V.buffer_id == store.id, V.id == archiving.id)


def _now(store: Store) -> sa.ColumnElement[float]:
    return sa.literal_column(store.dialect.NOW, sa.Double())


def _random_id() -> int:
    return secrets.randbits(62) | 1  # never 0, which is the id of evictions from schema 0007


def _pack(positions: np.ndarray) -> bytes:
    if not len(positions):
        return b"[]"
    breaks = np.flatnonzero(np.diff(positions) != 1)
    first = positions[np.append(0, breaks + 1)].tolist()
    last = positions[np.append(breaks, len(positions) - 1)].tolist()
    return json.dumps(list(zip(first, last, strict=True))).encode()


def _unpack(store: Store, data: bytes) -> np.ndarray:
    try:
        ranges = [np.arange(first, last + 1) for first, last in json.loads(bytes(data))]
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise damaged(f"the eviction under way in buffer {store.name!r}", error) from error
    return np.concatenate([NO_STEPS, *ranges])
