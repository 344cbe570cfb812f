"""The rows of episodes: insert, advance, end, find by name, and sweep abandoned ones."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.fields import Field
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.cached_records import BEGINNING, EpisodeRecord
from expdb.storage.outcome import WriteOutcome
from expdb.storage.store import Store
from expdb.storage.write_plan import EpisodeWrite, WritePlan
from expdb.storage.writing import compact

E = tables.episodes.c


_PROGRESS = ("status", "length", "episode_return", "ended", "ordered", "last_step", "last_position")
_VERSIONS = ("first_policy_version", "last_policy_version")
_NAMES = ("buffer_id", "id", *BEGINNING, *_PROGRESS, *_VERSIONS)
_STORED = (*BEGINNING, "id", "length", "last_step", "last_position", "ordered")
INSERT = f"INSERT INTO episodes ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))})"
FIND = (
    f"SELECT {', '.join(_STORED)}, status FROM episodes "
    "WHERE buffer_id = ? AND episode_id IN ({})"
)
NO_VERSION = -(2**63)  # stands for NULL in comparisons
ADVANCE = (
    "UPDATE episodes SET length = length + ?, status = ?, ended = ?, ordered = ?, last_step = ?, "
    "last_position = ?, episode_return = coalesce(episode_return + ?, episode_return, ?) "
    "WHERE buffer_id = ? AND id = ? AND status = 'open' AND length = ? "
    f"AND coalesce(policy_version, {NO_VERSION}) = ? RETURNING 1"
)


def put(session: Session, store: Store, write: EpisodeWrite, first: int, now: float) -> bool:
    """Insert or update an episode's row; return whether the stored state was as planned.

    Set the last position of `write.after` to the stored one.
    """
    before, after = write.before, write.after
    ended = None if write.status == "open" else now
    after.last_position = first + write.rows[-1]
    if before.id is None:
        if session.ask(
            "SELECT 1 FROM episodes WHERE buffer_id = ? AND episode_id = ?",
            store.id,
            after.episode_id,
        ):
            raise errors.EpisodeMismatch(
                f"episode {after.episode_id!r} already exists; choose another episode_id"
            )
        beginning = {**after.columns(), "started": after.started or now}
        session.tell(
            INSERT, store.id, after.id, *beginning.values(), write.status, after.length,
            after.gained, ended, after.ordered, after.last_step, after.last_position,
            after.policy_version, after.policy_version,
        )  # fmt: skip
        return True
    if write.details:
        _add_details(session, store, write)
    return bool(
        session.ask(
            ADVANCE, len(write.rows), write.status, ended, after.ordered, after.last_step,
            after.last_position, write.gained, write.gained, store.id, before.id, before.length,
            NO_VERSION if after.policy_version is None else after.policy_version,
        )
    )  # fmt: skip


def _add_details(session: Session, store: Store, write: EpisodeWrite) -> None:
    """Set episode details that the steps add; raise EpisodeMismatch if a stored value differs.

    Another process may have set a detail after this process read the row.
    """
    names = {name: value for name, value in write.details.items() if name != "episode_tags"}
    same = [sa.or_(E[name].is_(None), E[name] == value) for name, value in names.items()]
    is_episode = E.buffer_id == store.id, E.id == write.before.id, E.status == "open"
    statement = sa.update(tables.episodes).where(*is_episode, *same).values(**write.details)
    if session.rows(statement.returning(E.id)) or not names:
        return
    stored = session.rows(sa.select(*[E[name] for name in names]).where(*is_episode))
    for (name, value), other in zip(names.items(), stored[0] if stored else (), strict=False):
        if other is not None and other != value:
            raise errors.EpisodeMismatch(
                f"episode {write.record.episode_id!r} already has {name}={other!r}, got "
                f"{value!r}; use another episode_id"
            )


WIDEN = (
    "UPDATE episodes SET "
    "first_policy_version = CASE WHEN first_policy_version < ? THEN first_policy_version ELSE ? "
    "END, last_policy_version = CASE WHEN last_policy_version > ? THEN last_policy_version ELSE ? "
    "END WHERE buffer_id = ? AND id = ?"
)


def widen_versions(session: Session, store: Store, plan: WritePlan) -> None:
    """Include the versions of new steps in the first and last version of their episodes.

    A trigger on steps would cost time for every step, and few steps have their own version.
    """
    columns = plan.columns[-2:]
    if all(column.count(None) == len(column) for column in columns):
        return
    for write in plan.episodes:
        usual = write.after.policy_version
        pairs = [tuple(column[row] for column in columns) for row in write.rows]
        versions = [usual if first is None else first for first, _ in pairs]
        versions += [last for _, last in pairs]
        present = [version for version in versions if version is not None]
        if present:
            low, high = min(present), max(present)
            session.tell(WIDEN, low, low, high, high, store.id, write.after.id)


def current(session: Session, store: Store, record: EpisodeRecord) -> EpisodeRecord:
    """Return the stored state of an episode that another process has changed.

    If the episode was swept, return a record without an id, so that it is inserted again. Raise
    EpisodeEnded if it has ended.
    """
    rows = session.ask(
        "SELECT status, length, last_step, ordered, policy_version FROM episodes "
        "WHERE buffer_id = ? AND id = ?",
        store.id,
        record.id,
    )
    if not rows and 0 <= record.last_position < swept_before(store, session):
        return record.changed(id=None)
    status, length, last_step, ordered, version = rows[0] if rows else ("gone", 0, None, True, None)
    if status != "open":
        raise errors.EpisodeEnded(
            f"episode {record.episode_id!r} is {status}; start another episode"
        )
    return record.changed(
        length=length, last_step=last_step, ordered=bool(ordered), policy_version=version
    )


def end_stored(store: Store, id: int, status: str) -> None:
    """End a stored episode without pending steps."""
    with store.writing() as (session, outcome):
        end(store, session, outcome, id, status, None, {})


def end(
    store: Store,
    session: Session,
    outcome: WriteOutcome,
    id: int,
    status: str,
    final: dict[str, Any] | None,
    final_types: dict[str, Field],
) -> None:
    """Set an episode's status, merge its chunks, and keep its final observation."""
    ended = session.ask(
        "UPDATE episodes SET status = ?, ended = ? WHERE buffer_id = ? AND id = ? AND status = "
        "'open' RETURNING 1",
        status, time.time(), store.id, id,
    )  # fmt: skip
    if not ended:
        raise errors.EpisodeEnded(
            "the episode has already ended or was deleted; start another episode"
        )
    compact.compact_episode(store, session, outcome, id, final, final_types)


ENDED_AT_ONCE = 500


def end_all(store: Store, ids: Sequence[int], status: str) -> None:
    """End the episodes that are still open, many in one transaction."""
    for start in range(0, len(ids), ENDED_AT_ONCE):
        store.engine.retry(_end_some, store, ids[start : start + ENDED_AT_ONCE], status)


def _end_some(store: Store, ids: Sequence[int], status: str) -> None:
    with store.writing() as (session, outcome):
        ended = session.ask(
            "UPDATE episodes SET status = ?, ended = ? WHERE buffer_id = ? AND status = 'open' "
            f"AND id {store.dialect.AMONG} RETURNING id",
            status, time.time(), store.id, store.dialect.as_list(np.array(ids, np.int64)),
        )  # fmt: skip
        for (id,) in sorted(ended):
            compact.compact_episode(store, session, outcome, id, None, {})


# -- abandoned episodes ----------------------------------------------------------------------------

SWEEP_EVERY = 256  # episodes that a process begins between two sweeps
SWEPT_AT_ONCE = 1024  # episodes that one sweep examines, open or not


def swept_before(store: Store, session: Session) -> int:
    """Return the bound for sweeping: open episodes with an earlier last position are deleted."""
    ((low, capacity),) = session.ask("SELECT low, capacity FROM buffers WHERE id = ?", store.id)
    return 0 if capacity is None else max(0, int(low - capacity))


def sweep(store: Store) -> None:
    """Delete open episodes whose last position is more than `capacity` before the oldest step.

    Each call examines the next `SWEPT_AT_ONCE` episodes. Eviction keeps open episodes, because a
    writer may continue them. If a writer continues a swept episode, it inserts the episode again
    from memory. A trigger is not used: it would examine every open episode each time.
    """
    with store.writing() as (session, _):
        bound = swept_before(store, session)
        rows = session.ask(
            "SELECT id, status, last_position FROM episodes WHERE buffer_id = ? AND id >= ? ORDER "
            "BY id LIMIT ?",
            store.id, store.sweep_from, SWEPT_AT_ONCE,
        )  # fmt: skip
        gone = [(store.id, id) for id, status, last in rows if status == "open" and last < bound]
        session.many("DELETE FROM episodes WHERE buffer_id = ? AND id = ?", gone)
    store.sweep_from = rows[-1][0] + 1 if len(rows) == SWEPT_AT_ONCE else 0
    store.swept = max(store.swept, bound)


def sweep_if_due(store: Store, began: int) -> None:
    """Count the episodes that a committed write began; sweep every `SWEEP_EVERY` episodes."""
    store.begun += began
    if store.begun >= SWEEP_EVERY:
        store.begun = 0
        try:
            sweep(store)
        except (errors.ConnectionLost, errors.DatabaseBusy, errors.UnknownBuffer):
            return  # the steps are stored; a later sweep deletes the episodes


NAMES_AT_ONCE = 500


def find(store: Store, names: Sequence[str]) -> dict[str, tuple[EpisodeRecord, str]]:
    """Return the episodes with these names, and the status of each."""
    return store.engine.retry(_find, store, names)


def _find(store: Store, names: Sequence[str]) -> dict[str, tuple[EpisodeRecord, str]]:
    rows: list[Any] = []
    with store.engine.reading() as session:
        for start in range(0, len(names), NAMES_AT_ONCE):
            part = names[start : start + NAMES_AT_ONCE]
            rows += session.ask(FIND.format(", ".join("?" * len(part))), store.id, *part)
    episodes = {}
    for *values, status in rows:
        episode = EpisodeRecord(**dict(zip(_STORED, values, strict=True)))
        episode.ordered = bool(episode.ordered)
        episodes[episode.episode_id] = episode, status
    return episodes
