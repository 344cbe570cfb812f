"""The rows of episodes: insert, advance, end, and find by name."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.fields import Field
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.cached_records import BEGINNING, PARENT_COLUMNS, EpisodeRecord, ParentLink
from expdb.storage.outcome import WriteOutcome
from expdb.storage.store import Store
from expdb.storage.write_plan import EpisodeWrite, WritePlan
from expdb.storage.writing import compact, relations
from expdb.storage.writing.abandoned_episodes import swept_before

E = tables.episodes.c


_PROGRESS = ("status", "length", "episode_return", "ended", "ordered", "last_step", "last_position")
_VERSIONS = ("first_policy_version", "last_policy_version")
_NAMES = ("buffer_id", "id", *BEGINNING, *_PROGRESS, *_VERSIONS)
_COLUMNS = (*BEGINNING, "id", "length", "last_step", "last_position", "ordered", "generation")
_STORED = (*_COLUMNS, "uses_version", "gained")
FIND = (
    f"SELECT {', '.join(_COLUMNS)}, policy_version IS NULL OR policy_version BETWEEN "
    "first_policy_version AND last_policy_version, episode_return, status, (SELECT p.episode_id "
    "FROM episodes p WHERE p.buffer_id = e.buffer_id AND p.id = e.parent_episode), "
    f"{', '.join(PARENT_COLUMNS)} FROM episodes e WHERE buffer_id = ? AND episode_id IN ({{}})"
)
FIND_NAMES = "SELECT episode_id FROM episodes WHERE buffer_id = ? AND episode_id IN ({})"
NO_VERSION = -(2**63)  # stands for NULL in comparisons
ADVANCE = (
    "UPDATE episodes SET length = length + ?, status = ?, ended = ?, ordered = ?, last_step = ?, "
    "last_position = ?, episode_return = coalesce(episode_return + ?, episode_return, ?) "
    "WHERE buffer_id = ? AND id = ? AND status = 'open' AND length = ? AND generation = ? "
    f"AND coalesce(policy_version, {NO_VERSION}) = ? RETURNING 1"
)


def require_unused(store: Store, session: Session, records: Sequence[EpisodeRecord]) -> None:
    """Raise EpisodeMismatch or EpisodeResumed if the name of a new episode is already stored."""
    by_name = {record.episode_id: record for record in records}
    for (name,) in _query_named(store, session, FIND_NAMES, list(by_name)):
        if by_name[name].may_resume:
            raise resumed(name)
        raise errors.EpisodeMismatch(f"episode {name!r} already exists; choose another episode_id")


def insert(
    store: Store, session: Session, writes: Sequence[EpisodeWrite], first: int, now: float
) -> None:
    """Insert the rows of new episodes."""
    rows = []
    have_parents = any(write.after.parent is not None for write in writes)
    names = (*_NAMES, *PARENT_COLUMNS) if have_parents else _NAMES
    for write in writes:
        after = write.after
        beginning = {**after.columns(), "started": after.started or now}
        oldest = newest = after.policy_version if after.uses_version else None
        if after.parent is not None and (shared := after.parent.oldest) is not None:
            oldest = shared if oldest is None else min(shared, oldest)
            newest = shared if newest is None else max(shared, newest)
        rows.append((
            store.id, after.id, *beginning.values(), write.status, after.length, after.gained,
            None if write.status == "open" else now, after.ordered, after.last_step,
            first + write.rows[-1], oldest, newest,
            *(_parent_columns(after.parent) if have_parents else ()),
        ))  # fmt: skip
    store.dialect.insert_rows(session, tables.episodes, rows, names)


def _parent_columns(parent: ParentLink | None) -> tuple[Any, ...]:
    return (None,) * len(PARENT_COLUMNS) if parent is None else parent.columns


def _read_record(row: Sequence[Any]) -> tuple[EpisodeRecord, str]:
    """Return the episode and the status in a row of `FIND`."""
    count = len(_STORED)
    status, name, episode, step, position, relation, root, shared = row[count:]
    record = EpisodeRecord(**dict(zip(_STORED, row[:count], strict=True)))
    record.ordered = bool(record.ordered)
    record.trainable = None if record.trainable is None else bool(record.trainable)
    if episode is not None:
        record.parent = ParentLink(name, step, relation, episode, root, position, shared)
    return record, status


def advance(store: Store, session: Session, write: EpisodeWrite, first: int, now: float) -> bool:
    """Update a stored episode's row; return whether the stored state was as planned."""
    before, after = write.before, write.after
    ended = None if write.status == "open" else now
    if write.details:
        _add_details(store, session, write)
    return bool(
        session.query(
            ADVANCE, len(write.rows), write.status, ended, after.ordered, after.last_step,
            first + write.rows[-1], write.gained, write.gained, store.id, before.id, before.length,
            before.generation,
            NO_VERSION if after.policy_version is None else after.policy_version,
        )
    )  # fmt: skip


def _add_details(store: Store, session: Session, write: EpisodeWrite) -> None:
    """Set episode details that the steps add; raise EpisodeMismatch if a stored value differs.

    Another process may have set a detail after this process read the row.
    """
    names = {name: value for name, value in write.details.items() if name != "episode_tags"}
    same = [sa.or_(E[name].is_(None), E[name] == value) for name, value in names.items()]
    is_episode = E.buffer_id == store.id, E.id == write.before.id, E.status == "open"
    statement = sa.update(tables.episodes).where(*is_episode, *same).values(**write.details)
    if session.query(statement.returning(E.id)) or not names:
        return
    stored = session.query(sa.select(*[E[name] for name in names]).where(*is_episode))
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


def widen_versions(store: Store, session: Session, plan: WritePlan) -> None:
    """Include the versions of new steps in the first and last version of their episodes.

    A trigger on steps would cost time for every step, and few steps have their own version.
    """
    columns = plan.columns[-3:-1]
    have_versions = columns[0].count(None) + columns[1].count(None) < 2 * plan.count
    for write in plan.episodes:
        if not have_versions and not write.changes_version_use:
            continue
        usual = write.after.policy_version
        pairs = [tuple(column[row] for column in columns) for row in write.rows]
        versions = [usual if first is None else first for first, _ in pairs]
        versions += [last for _, last in pairs]
        present = [version for version in versions if version is not None]
        if present:
            low, high = min(present), max(present)
            session.execute(WIDEN, low, low, high, high, store.id, write.after.id)


def current(store: Store, session: Session, record: EpisodeRecord) -> EpisodeRecord:
    """Return the stored state of an episode that another process has changed.

    If the episode was swept, return a record without an id, so that it is inserted again. Raise
    EpisodeEnded if it has ended, and EpisodeResumed if another writer has resumed it.
    """
    rows = session.query(
        "SELECT status, length, last_step, ordered, policy_version, generation FROM episodes "
        "WHERE buffer_id = ? AND id = ?",
        store.id,
        record.id,
    )
    if not rows and 0 <= record.last_position < swept_before(store, session):
        return record.changed(id=None, generation=0)
    status, length, last_step, ordered, version, generation = (
        rows[0] if rows else ("gone", 0, None, True, None, record.generation)
    )
    if generation != record.generation:
        raise resumed(record.episode_id)
    if status != "open":
        raise errors.EpisodeEnded(
            f"episode {record.episode_id!r} is {status}; start another episode"
        )
    greatest = record.greatest if length == record.length else None
    return record.changed(
        length=length, last_step=last_step, ordered=bool(ordered), policy_version=version,
        greatest=greatest,
    )  # fmt: skip


def resumed(episode_id: str) -> errors.EpisodeResumed:
    """Return the error for a writer whose episode another writer has resumed."""
    return errors.EpisodeResumed(
        f"another writer has resumed episode {episode_id!r}, so this writer cannot change it; stop "
        "this rollout, or resume the episode again with buffer.episode(..., resume=True)"
    )


def end_stored(store: Store, id: int, status: str) -> None:
    """End a stored episode without pending steps."""
    with store.writing() as (session, outcome):
        end(store, session, outcome, id, status, None, {})


# Columns that must agree with the stored episode when it is resumed.
_RESUMED_WITH = ("task_id", "agent_id", "task_name", "group_id", "episode_tags", "trainable")


def begin(store: Store, episode: EpisodeRecord, is_named: bool, resume: bool) -> EpisodeRecord:
    """Return the episode of a new EpisodeWriter; with `resume`, the stored one if there is one.

    `is_named` means that the caller has chosen the `episode_id`.
    """
    if not is_named:
        if resume:
            raise errors.InvalidValue(
                "resume=True requires the episode_id of the episode to continue; pass episode_id="
            )
        relations.resolve_stored_parent(store, episode)
        return episode
    if not resume:
        if find(store, [episode.episode_id]):
            raise errors.EpisodeMismatch(
                f"episode {episode.episode_id!r} already exists; choose another episode_id, or "
                "pass resume=True to continue an open or aborted episode"
            )
        relations.resolve_stored_parent(store, episode)
        return episode
    expected = {name: getattr(episode, name) for name in _RESUMED_WITH}
    expected = {name: value for name, value in expected.items() if value is not None}
    stored = store.engine.retry(_resume, store, episode, expected)
    if stored is None:
        episode.may_resume = True
        relations.resolve_stored_parent(store, episode)
        return episode
    if episode.policy_version not in (None, stored.policy_version):
        stored.step_version = episode.policy_version
    return stored


def _resume(
    store: Store, requested: EpisodeRecord, expected: Mapping[str, Any]
) -> EpisodeRecord | None:
    """Open a stored episode for a new writer, and exclude its earlier writers.

    Return None if there is no such episode. Raise EpisodeEnded if it is complete. Raise
    EpisodeMismatch if one of its columns differs from `expected`, or if its relation differs from
    that of `requested`.
    """
    episode_id = requested.episode_id
    with store.writing() as (session, _):
        rows = session.query(FIND.format("?"), store.id, episode_id)
        if not rows:
            return None
        episode, status = _read_record(rows[0])
        if status == "complete":
            raise errors.EpisodeEnded(
                f"episode {episode_id!r} is complete and cannot be resumed; begin another episode"
            )
        if requested.parent is not None:
            relations.require_same_relation(episode, requested.parent)
        for name, value in expected.items():
            stored = getattr(episode, name)
            if name == "trainable":
                stored = stored is not False
            if stored != value:
                raise errors.EpisodeMismatch(
                    f"episode {episode_id!r} has {name}={stored!r}, so it cannot be resumed with "
                    f"{name}={value!r}; pass the stored value, or another episode_id"
                )
        episode.generation += 1
        # Rows in memory link an episode with `ordered` = false again after each change.
        episode.ordered = episode.ordered and status == "open"
        session.execute(
            "UPDATE episodes SET status = 'open', ended = NULL, tail_chunk = NULL, "
            "tail_row = NULL, tail_fields = NULL, ordered = ?, generation = ? "
            "WHERE buffer_id = ? AND id = ?",
            episode.ordered, episode.generation, store.id, episode.id,
        )  # fmt: skip
        last = session.query(
            "SELECT terminated OR truncated FROM steps WHERE buffer_id = ? AND position = ?",
            store.id, episode.last_position,
        )  # fmt: skip
        episode.is_over = bool(last and last[0][0])
    return episode


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
    ended = session.query(
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


def end_all(store: Store, generations: Mapping[int, int], status: str) -> None:
    """End the episodes that are still open and were not resumed, many in one transaction.

    `generations` maps the ids of episodes to their generations.
    """
    items = list(generations.items())
    for start in range(0, len(items), ENDED_AT_ONCE):
        store.engine.retry(_end_some, store, dict(items[start : start + ENDED_AT_ONCE]), status)


def _end_some(store: Store, generations: Mapping[int, int], status: str) -> None:
    with store.writing() as (session, outcome):
        stored = session.query(
            "SELECT id, generation FROM episodes WHERE buffer_id = ? AND id "
            f"{store.dialect.AMONG}",
            store.id, store.dialect.as_list(np.array(list(generations), np.int64)),
        )  # fmt: skip
        ids = [id for id, generation in stored if generations[id] == generation]
        ended = session.query(
            "UPDATE episodes SET status = ?, ended = ? WHERE buffer_id = ? AND status = 'open' "
            f"AND id {store.dialect.AMONG} RETURNING id",
            status, time.time(), store.id, store.dialect.as_list(np.array(ids, np.int64)),
        )  # fmt: skip
        for id in find_episodes_to_compact(store, session, [id for (id,) in ended]):
            compact.compact_episode(store, session, outcome, id, None, {})


def find_episodes_to_compact(store: Store, session: Session, ids: Sequence[int]) -> list[int]:
    """Return the ids of episodes that have several segments, or whose steps are all evicted.

    Most episodes have one segment, so there is nothing to merge.
    """
    rows = session.query(
        f"SELECT id FROM episodes e WHERE buffer_id = ? AND id {store.dialect.AMONG} AND "
        "(last_position < (SELECT low FROM buffers WHERE id = e.buffer_id) OR (SELECT count(*) "
        "FROM segments WHERE buffer_id = e.buffer_id AND episode = e.id) > 1) ORDER BY id",
        store.id, store.dialect.as_list(np.array(ids, np.int64)),
    )  # fmt: skip
    return [id for (id,) in rows]


NAMES_AT_ONCE = 500


def find(store: Store, names: Sequence[str]) -> dict[str, tuple[EpisodeRecord, str]]:
    """Return the episodes with these names, and the status of each."""
    return store.engine.retry(store.read, find_in_snapshot, names)


def find_in_snapshot(
    store: Store, session: Session, names: Sequence[str]
) -> dict[str, tuple[EpisodeRecord, str]]:
    """Return the episodes with these names in the snapshot of a session, as `find` does."""
    records = map(_read_record, _query_named(store, session, FIND, names))
    return {episode.episode_id: (episode, status) for episode, status in records}


def _query_named(store: Store, session: Session, statement: str, names: Sequence[str]) -> list[Any]:
    """Return the rows of a query for the episodes with these names."""
    rows: list[Any] = []
    for start in range(0, len(names), NAMES_AT_ONCE):
        part = names[start : start + NAMES_AT_ONCE]
        rows += session.query(statement.format(", ".join("?" * len(part))), store.id, *part)
    return rows
