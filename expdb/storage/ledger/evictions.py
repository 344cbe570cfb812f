"""Evictions that are under way: steps that are being archived, and by whom.

Such a row is committed before the file is written, and deleted with the steps. Whoever finds one of
a process that has ended writes the same steps to the same file again, so that what is archived is
there once, whatever was killed.
"""

import json
import time
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.store import Store

V = tables.evictions.c

NOBODY = ""  # holds what was left


@dataclass(frozen=True)
class Archiving:
    """Steps that go once they are in a file."""

    holder: str
    since: float
    file: str
    positions: np.ndarray


def under_way(session: Session, store: Store) -> Archiving | None:
    """Return the eviction that is under way, None where there is none."""
    found = session.rows(
        sa.select(V.holder, V.since, V.file, V.positions).where(V.buffer_id == store.id)
    )
    if not found:
        return None
    holder, since, file, positions = found[0]
    try:
        ranges = [np.arange(first, last + 1) for first, last in json.loads(bytes(positions))]
    except (ValueError, TypeError) as error:
        raise errors.DatabaseDamaged(
            f"the eviction under way of buffer {store.name!r} cannot be read ({error}): restore a "
            "backup"
        ) from error
    return Archiving(holder, since, file, np.concatenate([np.empty(0, np.int64), *ranges]))


def begin(
    session: Session, store: Store, holder: str, now: float, file: str, positions: np.ndarray
) -> Archiving:
    """Write down what is to be archived, and where; one at a time."""
    row = {"id": 0, "holder": holder, "since": now, "file": file, "positions": _packed(positions)}
    session.execute(sa.insert(tables.evictions).values(buffer_id=store.id, **row))
    return Archiving(holder, now, file, positions)


def _packed(positions: np.ndarray) -> bytes:
    if not len(positions):
        return b"[]"
    breaks = np.flatnonzero(np.diff(positions) != 1)
    first = positions[np.append(0, breaks + 1)].tolist()
    last = positions[np.append(breaks, len(positions) - 1)].tolist()
    return json.dumps(list(zip(first, last, strict=True))).encode()


def shrink(
    session: Session, store: Store, archiving: Archiving, positions: np.ndarray
) -> Archiving:
    """Have only some of the steps go, into the same file."""
    values = {"positions": _packed(positions)}
    session.execute(sa.update(tables.evictions).where(V.buffer_id == store.id).values(**values))
    return replace(archiving, positions=positions)


def fingerprint(session: Session, store: Store, archiving: Archiving) -> tuple[int, ...]:
    """Return what changes when the steps, or what is known of their episodes, change."""
    if not len(archiving.positions):
        return ()
    low, high = int(archiving.positions[0]), int(archiving.positions[-1])
    steps, episodes, segments, priorities = (
        one.c for one in (tables.steps, tables.episodes, tables.segments, tables.priorities)
    )
    f = sa.func
    mine = segments.buffer_id == store.id, segments.last >= low, segments.first <= high
    own = sa.select(segments.episode).where(*mine)
    (found,) = session.rows(
        sa.select(
            sa.select(f.count())
            .where(steps.buffer_id == store.id, steps.position.between(low, high))
            .scalar_subquery(),
            sa.select(f.coalesce(f.max(steps.revision), -1))
            .where(steps.buffer_id == store.id, steps.position.between(low, high))
            .scalar_subquery(),
            sa.select(f.coalesce(f.max(episodes.revision), -1))
            .where(episodes.buffer_id == store.id, episodes.id.in_(own))
            .scalar_subquery(),
            sa.select(f.coalesce(f.max(priorities.version), -1))
            .where(priorities.buffer_id == store.id)
            .where(priorities.block.between(low >> 10, high >> 10))
            .scalar_subquery(),
        )
    )
    return tuple(found)


def hand_over(session: Session, store: Store, holder: str, to: str) -> None:
    """Have another holder go on with what one has begun, or NOBODY."""
    mine = sa.and_(V.buffer_id == store.id, V.holder == holder)
    values = {"holder": to, "since": time.time()}
    session.execute(sa.update(tables.evictions).where(mine).values(**values))


def end(session: Session, store: Store, holder: str) -> bool:
    """Delete the row; return whether it was this holder's still."""
    mine = sa.and_(V.buffer_id == store.id, V.holder == holder)
    known = bool(session.rows(sa.select(V.id).where(mine)))
    session.execute(sa.delete(tables.evictions).where(mine))
    return known
