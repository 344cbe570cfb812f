"""Change stored experience: updates, deletion, declared fields, capacity, indexes."""

import zlib
from collections import Counter
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.fields import DETAILS, Field
from expdb.chunks.values import encode_tags
from expdb.names import EPISODE_COLUMNS, SCORE
from expdb.sql import tables
from expdb.sql.conditions import Condition, resolve
from expdb.sql.session import Session
from expdb.storage.commits import BufferCounters, Commit
from expdb.storage.ledger.consumers import find_consumer, list_consumers, refuse_minimum
from expdb.storage.ledger.pins import pinned_positions
from expdb.storage.ledger.rates import rate_limiter
from expdb.storage.outcome import WriteOutcome
from expdb.storage.reading import select
from expdb.storage.reading.fetch import alive
from expdb.storage.reading.segments import locate
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_object
from expdb.storage.writing.compact import rewrite

S, E, G, B = tables.steps.c, tables.episodes.c, tables.segments.c, tables.buffers.c


def update(store: Store, where: Condition, changes: dict[str, Any], last: bool) -> int:
    """Call `_update`, and repeat it while the server restarts.

    If the outcome of a commit is unknown, the repetition changes only those steps of the first
    attempt that still match. The first attempt or another process has changed the other steps.
    """
    matched: list[np.ndarray] = []
    in_doubt = False

    def attempt() -> int:
        nonlocal in_doubt
        if not in_doubt:
            matched.clear()
        try:
            return _update(store, where, changes, last, matched)
        except errors.CommitUnknown:
            in_doubt = True
            raise

    return store.engine.retry(attempt)


def _update(
    store: Store,
    where: Condition,
    changes: dict[str, Any],
    last: bool,
    found_before: list[np.ndarray],
) -> int:
    """Set columns of the matching steps, or of their episodes; return how many steps matched.

    With `last`, update only the last step of each matching episode. A mapping of tags is merged
    into the stored tags. If `found_before` is not empty, update only the steps in it that still
    match, and return how many steps in it are stored.
    """
    of_episodes = {name: value for name, value in changes.items() if name in EPISODE_COLUMNS}
    of_steps = {name: value for name, value in changes.items() if name not in of_episodes}
    merged = {name: value for name, value in changes.items() if isinstance(value, dict)}
    with store.writing() as (session, _):
        session.is_repeated = True
        positions = select.positions(store, session, where)
        if found_before:
            (before,) = found_before
            count = int(alive(store, session, before).sum()) if len(before) else 0
            positions = np.intersect1d(positions, before)
        else:
            positions = _last_steps(store, session, positions) if last else positions
            count = len(positions)
            found_before.append(positions)
        if last:
            _warn_of_open_episodes(store, session, positions)
        elif changes.get("reward") and len(positions):
            _warn_of_repeated_rewards(store, session, positions)
        if of_episodes and len(positions):
            in_episodes = sa.and_(E.buffer_id == store.id, _of_episodes(store, E.id, positions))
            if "policy_version" in of_episodes:
                _take_own_versions(store, session, in_episodes)
            if "episode_tags" in merged:
                tags = merged["episode_tags"]
                _merge_tags(store, session, E.id, E.episode_tags, in_episodes, tags)
                del of_episodes["episode_tags"]
            if of_episodes:
                session.execute(sa.update(tables.episodes).where(in_episodes).values(of_episodes))
        if "tags" in merged and len(positions):
            _merge_tags(store, session, S.position, S.tags, _at(store, positions), merged["tags"])
            del of_steps["tags"]
        if of_steps and len(positions):
            session.execute(sa.update(tables.steps).where(_at(store, positions)).values(of_steps))
        if "reward" in of_steps and len(positions):
            _sum_returns(store, session, positions)
    return count


def _merge_tags(
    store: Store,
    session: Session,
    key: sa.Column[Any],
    column: sa.Column[Any],
    where: sa.ColumnElement[bool],
    new_tags: dict[str, Any],
) -> None:
    """Merge tags into the stored tags of the matching rows; None removes a key.

    The transaction holds the writers' lock, so no other process changes the tags between the read
    and the write. Python merges the tags, because the databases' JSON functions change numbers and
    nesting.
    """
    rows_of: dict[str | None, list[int]] = {}
    for row, stored in session.fetch(sa.select(key, column).where(where)):
        rows_of.setdefault(stored, []).append(row)
    changes: dict[int, str | None] = {}
    for stored, rows in rows_of.items():
        tags = {} if stored is None else parse_object(stored, column.name)
        for name, value in new_tags.items():
            if value is None:
                tags.pop(name, None)
            else:
                tags[name] = value
        text = encode_tags(tags, column.name) if tags else None
        if text != stored:
            changes |= dict.fromkeys(rows, text)
    if changes:
        store.dialect.set_texts(session, column, key, store.id, changes)


def _take_own_versions(store: Store, session: Session, of_episodes: sa.ColumnElement[bool]) -> None:
    """Remove the versions of all steps of some episodes, so that the episode's version applies."""
    first, last = E.first_policy_version, E.last_policy_version
    differ = sa.or_(first < last, first.is_distinct_from(E.policy_version))
    mixed = sa.select(E.id).where(of_episodes, differ)
    ids = np.array([id for (id,) in session.query(mixed)], np.int64)
    if len(ids):
        steps = sa.update(tables.steps).where(
            _at(
                store, select.positions_of_episodes(store, session, ids, store.state(session).added)
            )
        )
        session.execute(steps.values(policy_version=None, policy_version_end=None))


def _last_steps(store: Store, session: Session, positions: np.ndarray) -> np.ndarray:
    """Return the last positions of the agents with a step at one of the positions, by episode.

    The last step has the greatest `step`; of several such steps, it is the newest one.
    """
    rows = session.fetch(
        sa.select(G.episode, S.agent_id, S.step, S.position)
        .select_from(tables.STEPS_OF_SEGMENTS)
        .where(G.buffer_id == store.id)
        .where(_of_episodes(store, G.episode, positions))
    )
    matching = set(positions.tolist())
    chosen = {tuple(row[:2]) for row in rows if row[3] in matching}
    last = {tuple(row[:2]): row[3] for row in sorted(rows, key=lambda row: tuple(row[2:]))}
    return np.array(sorted(last[agent] for agent in chosen), np.int64)


def _warn_of_open_episodes(store: Store, session: Session, positions: np.ndarray) -> None:
    if store.warned_of_open or not len(positions):
        return
    ((count,),) = session.query(
        sa.select(sa.func.count())
        .where(E.buffer_id == store.id, E.status == "open")
        .where(_of_episodes(store, E.id, positions))
    )
    if count:
        store.warned_of_open = True
        errors.warn(
            f"{count} of the {len(positions)} episodes whose last step is updated "
            f"{'is' if count == 1 else 'are'} still open, so a later step may become the last "
            "step; end episodes first with terminated=True, end(), the `with` block or "
            "end_episode()"
        )


def _warn_of_repeated_rewards(store: Store, session: Session, positions: np.ndarray) -> None:
    if store.warned_of_rewards or len(positions) == 1:
        return
    ((steps, episodes),) = session.query(
        sa.select(sa.func.count(), sa.func.count(S.episode.distinct())).where(_at(store, positions))
    )
    if steps > episodes:
        store.warned_of_rewards = True
        errors.warn(
            f"update() sets the reward of {steps} steps of {episodes} "
            f"episode{'s' * (episodes != 1)}, and the return of an episode is the sum of its "
            'rewards; to set one reward for a whole episode, use update(..., which="last")'
        )


def _sum_returns(store: Store, session: Session, positions: np.ndarray) -> None:
    """Compute the returns of episodes without missing steps from all their rewards.

    The trigger adds differences to the return, which accumulates rounding errors. For episodes with
    missing steps, the trigger remains the only source.
    """

    def of_steps(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
        # One subquery per segment: for a join with segments, PostgreSQL would scan all steps.
        of_segment = sa.select(column).where(tables.IN_RANGE).correlate(tables.segments)
        total = sa.select(sa.func.sum(of_segment.scalar_subquery())).where(tables.OF_EPISODE)
        return total.correlate(tables.episodes).scalar_subquery()

    own = E.buffer_id == store.id, _of_episodes(store, E.id, positions)
    whole = E.length == of_steps(sa.func.count())
    returns = sa.update(tables.episodes).where(*own, whole)
    session.execute(returns.values(episode_return=of_steps(sa.func.sum(S.reward))))


def _at(store: Store, positions: np.ndarray) -> sa.ColumnElement[bool]:
    return sa.and_(S.buffer_id == store.id, store.dialect.among(S.position, positions.tolist()))


def _of_episodes(
    store: Store, column: sa.ColumnElement[Any], positions: np.ndarray
) -> sa.ColumnElement[bool]:
    """Return the condition that a column is the episode of a step at one of the positions."""
    steps = tables.steps.alias()
    among = store.dialect.among(steps.c.position, positions.tolist())
    episodes = sa.select(steps.c.episode).where(steps.c.buffer_id == store.id, among)
    return store.dialect.among_selected(column, episodes)


def delete(store: Store, where: Condition, keep_pinned: bool) -> int:
    """Delete the matching steps and rewrite their chunks; return how many steps were deleted."""
    with store.writing() as (session, outcome):
        positions = select.positions(store, session, where)
        if keep_pinned and len(positions):
            pinned = pinned_positions(store, session)
            pinned = pinned[alive(store, session, pinned)] if len(pinned) else pinned
            owners, kept = (_episodes_at(store, session, at) for at in (positions, pinned))
            roots, kept_roots = (_find_roots(store, session, ids) for ids in (owners, kept))
            positions = positions[~np.isin(roots, kept_roots)]
        return delete_positions(store, session, outcome, positions, is_eviction=False)


def _count_complete_rollouts(
    store: Store, session: Session, episodes: np.ndarray
) -> Counter[tuple[str, bool]]:
    """Count the complete episodes of each group; without a `group_id`, of each task.

    A key is the group and False, or the task and True.
    """
    among = store.dialect.among(E.id, episodes.tolist())
    is_complete = E.buffer_id == store.id, E.status == "complete", among
    is_rollout = sa.text(tables.IS_ROLLOUT)
    rows = session.query(sa.select(E.group_id, E.task_id).where(*is_complete, is_rollout))
    return Counter((task, True) if group is None else (group, False) for group, task in rows)


def _find_roots(store: Store, session: Session, episodes: np.ndarray) -> np.ndarray:
    """Return the number of the root of each episode."""
    rows = session.query(
        "SELECT id, root_episode FROM episodes WHERE buffer_id = ? AND root_episode IS NOT NULL",
        store.id,
    )
    root_of = dict(rows)
    ids, inverse = np.unique(episodes, return_inverse=True)
    roots = np.array([root_of.get(id, id) for id in ids.tolist()], np.int64)
    return roots[inverse]


def _episodes_at(store: Store, session: Session, positions: np.ndarray) -> np.ndarray:
    """Return the episode of each stored step."""
    if not len(positions):
        return positions
    segments = locate(store, session, positions)
    episodes: np.ndarray = segments.episode[segments.find(positions)]
    return episodes


def delete_positions(
    store: Store,
    session: Session,
    outcome: WriteOutcome,
    positions: np.ndarray,
    is_eviction: bool,
) -> int:
    """Delete steps under the lock of the buffer's row, and return the number of deleted steps.

    If `is_eviction`, groups continue to count the rollouts as complete.
    """
    stored = positions[alive(store, session, positions)] if len(positions) else positions
    if not len(stored):
        return 0
    segments = locate(store, session, stored)
    index = segments.find(stored)
    episodes = np.unique(segments.episode[index])
    decreases = Counter() if is_eviction else _count_complete_rollouts(store, session, episodes)
    session.execute(sa.delete(tables.steps).where(_at(store, stored)))
    for chunk in np.unique(segments.chunk[index]).tolist():
        rewrite(store, session, outcome, [chunk])
    _settle_episodes(store, session, episodes, stored)
    if not is_eviction:
        decreases.subtract(_count_complete_rollouts(store, session, episodes))
        session.execute_many(
            "UPDATE rollout_groups SET complete = complete - ? "
            "WHERE buffer_id = ? AND name = ? AND is_task = ?",
            [(decrease, store.id, *group) for group, decrease in decreases.items() if decrease],
        )
    return len(stored)


def _settle_episodes(
    store: Store, session: Session, episodes: np.ndarray, gone: np.ndarray
) -> None:
    """Update the last position of episodes; delete ended episodes without remaining steps."""
    among = store.dialect.among
    is_affected = sa.and_(E.buffer_id == store.id, among(E.id, episodes.tolist()))
    episode = sa.update(tables.episodes).where(is_affected)
    no_observation = dict.fromkeys(("tail_chunk", "tail_row", "tail_fields"))
    session.execute(episode.where(among(E.last_position, gone.tolist())).values(no_observation))
    last = sa.select(sa.func.coalesce(sa.func.max(G.last), -1)).where(tables.OF_EPISODE)
    # Because of deleted steps, other processes may have cached the episode as out of order. The new
    # revision makes them read the episode again.
    revision = sa.select(B.revision).where(B.id == store.id).scalar_subquery()
    session.execute(
        episode.values(
            last_position=last.correlate(tables.episodes).scalar_subquery(), revision=revision
        )
    )
    session.execute(
        sa.delete(tables.episodes).where(is_affected, E.last_position < 0, E.status != "open")
    )


def clear(store: Store) -> int:
    """Delete every step and episode; return how many steps there were.

    Positions continue from the last one, and consumers keep their ledgers.
    """
    buffer = sa.update(tables.buffers).where(B.id == store.id)
    writing = store.writing()
    with writing as (session, _):
        columns = B.size, B.added, B.revision, B.deleted
        ((size, added, revision, deleted),) = session.query(
            sa.select(*columns).where(B.id == store.id)
        )
        # As in an eviction, `low` is above every position, so that triggers do not update the
        # counters row by row.
        session.execute(
            buffer.values(low=B.added, size=0, holes=0, pinned=None, revision=B.revision + 1)
        )
        for table in tables.EXPERIENCE:
            session.execute(sa.delete(table).where(table.c.buffer_id == store.id))
        session.execute(buffer.values(size=0, bytes=0))
    if store.commit_queue.is_accepting:
        counters = BufferCounters(added, 0, revision + 1, deleted)
        store.commit_queue.put(
            Commit(added, None, store.fields, counters, writing.commit_versions), 0
        )
    return int(size)


def declare(store: Store, fields: dict[str, Field]) -> None:
    """Set the types of fields before their first values.

    Raise FieldMismatch if a field is stored with another type or alignment.
    """
    with store.writing() as (session, outcome):
        ((version, added),) = session.query(
            sa.select(B.fields_version, B.added).where(B.id == store.id)
        )
        stored = store.fields_at(session, version)
        for name, field in fields.items():
            for argument in DETAILS:
                given = getattr(field, argument)
                known = getattr(stored.types.get(name, field), argument)
                if None not in (given, known) and given != known and given == given:
                    raise errors.FieldMismatch(
                        f"field {name!r} is stored with {argument}={known!r}, but fields= declares "
                        f"{given!r}; declare the stored value, or use another buffer"
                    )
        store.settle_fields(session, stored, fields, set(), added == 0, outcome)


def raise_capacity(store: Store, capacity: int | None) -> int | bool | None:
    """Raise the capacity (None for no limit), and return True.

    If the stored capacity is larger, return it and change nothing.
    """
    with store.writing() as (session, _):
        ((stored,),) = session.query(sa.select(B.capacity).where(B.id == store.id))
        if stored is None or (capacity is not None and capacity < stored):
            return True if stored == capacity else stored
        _set_capacity(store, session, capacity)
        return True


def set_capacity(store: Store, capacity: int | None) -> None:
    """Change the capacity; if the new capacity is lower, the trigger evicts steps at once.

    Raise InvalidValue if the capacity is smaller than the `min_size` of the rate limiter or of a
    consumer.
    """
    with store.writing() as (session, _):
        limiter, _since = rate_limiter(store, session)
        if limiter is not None:
            refuse_minimum(store, limiter.min_size, capacity)
        for name in list_consumers(store, session):
            record = find_consumer(store, session, name)
            if record is not None:
                refuse_minimum(store, record.settings.min_size, capacity, f" of consumer {name!r}")
        _set_capacity(store, session, capacity)


def _set_capacity(store: Store, session: Session, capacity: int | None) -> None:
    session.execute(sa.update(tables.buffers).where(B.id == store.id).values(capacity=capacity))


LONGEST_IDENTIFIER = 63  # bytes; limit of PostgreSQL


def index(store: Store, name: str) -> None:
    """Index a column, a tag or a score for queries of all buffers, unless the index exists."""
    resolved, key = resolve(name)
    # An index of `agent_id` serves steps with the agent of their episode.
    column = E.agent_id if name == "agent_id" else resolved.sql
    if not isinstance(column, sa.Column) and not SCORE.fullmatch(name):
        raise errors.QueryError(
            f"{name!r} cannot be indexed; choose a column of the tables, a tag or a score"
        )
    if "." in name:
        store.tags.warn_of_unknown([name])
    is_of_steps = resolved.of_steps and name != "agent_id"
    table = tables.steps if is_of_steps else tables.episodes
    expression = column if key is None else store.dialect.tag_value(column, key)
    label = f"{table.name}_by_{name.replace('.', '_')}"
    # SQLite ignores the case of the names of indexes, and names of scores differ by case.
    has_capitals = SCORE.fullmatch(name) is not None and name != name.lower()
    if len(label.encode()) > LONGEST_IDENTIFIER or has_capitals:
        label = f"{table.name}_by_{zlib.crc32(label.encode()):08x}"
    with store.writing() as (session, _):
        if session.query(store.dialect.HAS_INDEX, label):
            return
        # The buffer id comes first, because every query compares it.
        columns: list[Any] = [table.c.buffer_id, expression]
        if SCORE.fullmatch(name) and store.dialect.INDEXES_ALL_SCORES:
            columns.append(table.c.scores)
        definition = sa.Index(label, *columns)
        try:
            definition.create(session.connection, checkfirst=False)
        finally:
            # The index belongs to this database, not to the schema.
            table.indexes.discard(definition)
        store.dialect.estimate(session, table.name, label)
