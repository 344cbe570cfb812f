"""Relate new episodes to stored ones: find the parent, and the steps that both share."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from expdb import checks, errors
from expdb.names import DEFAULT_TASK, FORK_RELATIONS, RELATION_KEYS, RELATIONS
from expdb.sql.session import Session
from expdb.storage.cached_records import EpisodeRecord, ParentLink
from expdb.storage.reading.segments import Segments
from expdb.storage.store import Store
from expdb.storage.write_plan import EpisodeWrite, WritePlan
from expdb.storage.writing.pending_steps import PendingSteps
from expdb.storage.writing.plan import assign_numbers, make_plan

NO_VERSION = -(2**63)  # stands for an unknown policy version
NO_EPISODES: Mapping[str, EpisodeRecord] = {}
_FIND = (
    "SELECT id, episode_id, ordered, coalesce(root_episode, id), parent_episode, parent_step, "
    "relation, policy_version, CASE WHEN shared_steps > 0 THEN first_policy_version END, "
    "task_id, task_name, group_id "
    "FROM episodes WHERE buffer_id = ? AND {} = ?"
)


def parse_relation(arguments: Mapping[str, Any], episode_id: str) -> ParentLink | None:
    """Return the relation that the arguments of a step or an episode describe, or None.

    Raise InvalidValue if the arguments are invalid or contradict each other.
    """
    parent, step, relation = map(arguments.get, RELATION_KEYS)
    if parent is None:
        if step is not None or relation is not None:
            name, value = ("relation", relation) if step is None else ("parent_step", step)
            raise errors.InvalidValue(
                f"{name}={value!r} describes the relation to a parent; also pass parent=, the "
                "episode_id of the parent"
            )
        return None
    checks.text(parent, "parent")
    if relation is None:
        raise errors.InvalidValue(
            f"parent={parent!r} requires a relation; also pass relation='fork', 'retry', "
            "'subagent', 'continuation' or 'compaction'"
        )
    checks.choice(relation, "relation", *RELATIONS)
    if parent == episode_id:
        raise errors.InvalidValue(
            f"episode {episode_id!r} cannot be its own parent; pass another episode_id, or the "
            "episode_id of another episode as parent"
        )
    if step is not None:
        step = checks.whole(step, "parent_step", 0)
    elif relation == "fork":
        raise errors.InvalidValue(
            "relation='fork' requires parent_step, the number of the first step that differs from "
            "the parent; pass it, or relation='retry' to start again"
        )
    elif relation == "retry":
        step = 0
    return ParentLink(parent, step, relation)


def require_same_relation(record: EpisodeRecord, link: ParentLink) -> None:
    """Raise EpisodeMismatch unless an episode has the relation of `link`."""
    own = record.parent
    if own is None:
        raise errors.EpisodeMismatch(
            f"episode {record.episode_id!r} began without a parent; pass parent= with its first "
            "step, or use another episode_id"
        )
    if (own.name or link.name, own.step, own.relation) != (link.name, link.step, link.relation):
        raise errors.EpisodeMismatch(
            f"episode {record.episode_id!r} is a {own.relation} of {own.name!r} at step "
            f"{own.step}, not a {link.relation} of {link.name!r} at step {link.step}; pass the "
            "stored relation, or use another episode_id"
        )


class _ParentRow(NamedTuple):
    """The row of a parent, or of a parent of a parent."""

    id: int
    name: str
    ordered: bool
    root: int
    parent: int | None
    step: int | None
    relation: str | None
    policy_version: int | None
    oldest: int | None  # smallest policy version of the steps of a fork
    task_id: str
    task_name: str | None
    group_id: str | None

    def shares_step_before(self, number: int) -> bool:
        """Whether the episode shares the step before `number` with its own parent."""
        return self.relation in FORK_RELATIONS and self.step is not None and number <= self.step


class StoredEpisodes:
    """Find episodes and their steps in the database."""

    def __init__(self, store: Store, session: Session):
        self._store, self._session = store, session

    def find(self, column: str, value: Any) -> _ParentRow | None:
        """Return the episode with this `id` or `episode_id`, or None."""
        rows = self._session.query(_FIND.format(column), self._store.id, value)
        return _ParentRow(*rows[0]) if rows else None

    def steps(self, episode: _ParentRow) -> np.ndarray:
        """Return ordinal, number, position and policy version of the steps of an episode.

        The result is int64 [N, 4], with NO_VERSION for an unknown version.
        """
        segments = Segments.read(self._session, self._store.id, "AND episode = ?", episode.id)
        positions, index = segments.positions(0)
        if not len(positions):
            return np.empty((0, 4), np.int64)
        ordinals = segments.ordinal[index] + positions - segments.first[index]
        dialect, usual = self._store.dialect, episode.policy_version
        rows = self._session.query(
            "SELECT position, step, coalesce(policy_version, ?) FROM steps WHERE buffer_id = ? "
            f"AND position {dialect.AMONG} ORDER BY position",
            NO_VERSION if usual is None else usual, self._store.id, dialect.as_list(positions),
        )  # fmt: skip
        stored = np.array(rows, np.int64).reshape(-1, 3)
        of_stored = ordinals[np.searchsorted(positions, stored[:, 0])]
        return np.stack((of_stored, stored[:, 1], stored[:, 0], stored[:, 2]), 1)


class WrittenEpisodes(StoredEpisodes):
    """Find stored episodes, and episodes that a write begins or continues."""

    def __init__(self, store: Store, session: Session, plan: WritePlan, first: int):
        super().__init__(store, session)
        self._plan, self._first_position = plan, first
        self._rows: dict[Any, _ParentRow] = {}  # by id and by name
        self._writes: dict[int, tuple[EpisodeWrite, int]] = {}  # with the number of earlier steps

    def add(self, id: int, write: EpisodeWrite, before: EpisodeRecord) -> None:
        """Add an episode of the write; `before` is its state before the write."""
        link, name = before.parent, before.episode_id
        relation = (id, None, None, None)
        if link is not None and link.root is not None:
            relation = (link.root, link.episode, link.step, link.relation)  # type: ignore[assignment]
        row = _ParentRow(
            id, name, write.after.ordered, *relation, before.policy_version, None,
            before.task_id, before.task_name, before.group_id,
        )  # fmt: skip
        self._rows[id] = self._rows[name] = row
        self._writes[id] = write, before.length

    def find(self, column: str, value: Any) -> _ParentRow | None:
        """Return the episode with this `id` or `episode_id`, or None."""
        return self._rows.get(value) or super().find(column, value)

    def steps(self, episode: _ParentRow) -> np.ndarray:
        """Return ordinal, number, position and policy version of the steps of an episode."""
        stored = super().steps(episode)
        if episode.id not in self._writes:
            return stored
        write, length = self._writes[episode.id]
        rows = np.array(write.rows, np.int64)
        numbers = np.array(self._plan.step, np.int64)[rows]
        usual = NO_VERSION if episode.policy_version is None else episode.policy_version
        own = [self._plan.columns[-3][row] for row in write.rows]
        versions = np.array([usual if version is None else version for version in own], np.int64)
        new = length + np.arange(len(rows)), numbers, rows + self._first_position, versions
        return np.concatenate((stored, np.stack(new, 1)))


def relate_episodes(
    store: Store,
    session: Session,
    pending: PendingSteps,
    plan: WritePlan,
    first: int,
    next_id: int,
    current: dict[EpisodeRecord, EpisodeRecord],
) -> WritePlan:
    """Find the parents that the same write begins; return the plan with the shared steps.

    Set the states of the children in `current`. A parent that was found when the steps were
    gathered is not looked up again, because it may have been evicted since.
    """
    links = [write.after.parent for write in plan.episodes]
    if any(link is not None and link.episode is None for link in links):
        written = WrittenEpisodes(store, session, plan, first)
        for write, link in zip(plan.episodes, links, strict=True):
            before, id = write.before, write.before.id
            if id is None and write.record.id is None:
                id, next_id = next_id, next_id + 1
            if link is not None and link.episode is None:
                try:
                    before = current[write.record] = resolve_parent(store, written, before)
                except (errors.InvalidValue, errors.Evicted, errors.UnknownEpisode) as error:
                    pending.discard(set(write.rows))  # a writer can still write its other steps
                    error.discarded_steps = len(write.rows)
                    raise
                assign_numbers(pending.steps, before, write.rows, plan.step)
            if id is not None:
                written.add(id, write, before)
        plan = make_plan(pending, current)
    return plan


def resolve_parent(store: Store, stored: StoredEpisodes, record: EpisodeRecord) -> EpisodeRecord:
    """Return the record of a new episode with its parent and the steps that it shares.

    Raise UnknownEpisode if there is no such parent, InvalidValue if the parent has no such step,
    and Evicted if the step was evicted.
    """
    link = record.parent
    assert link is not None
    parent = stored.find("episode_id", link.name)
    if parent is None:
        raise errors.UnknownEpisode(
            f"no episode {link.name!r} in buffer {store.name!r}, so {record.episode_id!r} cannot "
            "have it as its parent; store a step of the parent first, or flush its writer"
        )
    resolved = link._replace(episode=parent.id, root=parent.root)
    if link.step is None:
        return record.changed(parent=resolved)
    if link.relation not in FORK_RELATIONS:
        _require_step(stored, parent, link.step)
        return record.changed(parent=resolved)
    record = _with_task_of(record, parent)
    if not link.step and not (stored.steps(parent)[:, 1] < 0).any():
        return record.changed(parent=resolved)
    owner = _find_owner(stored, parent, link.step)
    shared, position, oldest = _count_shared(owner, stored.steps(owner), link.step)
    resolved = resolved._replace(position=position, shared=shared, oldest=oldest)
    last_step = link.step - 1
    return record.changed(
        parent=resolved, length=shared, last_step=last_step, greatest={}, unknown_greatest=last_step
    )


def _with_task_of(record: EpisodeRecord, parent: _ParentRow) -> EpisodeRecord:
    """Return the record of a fork with the task, and by default the group, of its parent."""
    if record.task_id not in (parent.task_id, DEFAULT_TASK):
        raise errors.InvalidValue(
            f"a fork has the task of its parent, {parent.task_id!r}, got task_id="
            f"{record.task_id!r}; omit task_id, or pass relation='continuation'"
        )
    return record.changed(
        task_id=parent.task_id,
        task_name=parent.task_name if record.task_name is None else record.task_name,
        group_id=parent.group_id if record.group_id is None else record.group_id,
    )


def _find_owner(stored: StoredEpisodes, episode: _ParentRow, number: int) -> _ParentRow:
    """Return the episode that stores the step before `number` of an episode."""
    while episode.shares_step_before(number):
        earlier = stored.find("id", episode.parent)
        if earlier is None:
            raise errors.Evicted(
                f"step {number - 1} of episode {episode.name!r} belongs to an episode that was "
                "evicted or deleted; begin at a stored step"
            )
        episode = earlier
    return episode


def _require_step(stored: StoredEpisodes, parent: _ParentRow, number: int) -> None:
    """Raise InvalidValue unless a step of the parent is stored, or is its next step."""
    owner = _find_owner(stored, parent, number + 1)
    numbers = stored.steps(owner)[:, 1]
    if number not in numbers and len(numbers) and number != int(numbers.max()) + 1:
        raise _missing_step(parent, number, stored.steps(owner))


def _count_shared(owner: _ParentRow, steps: np.ndarray, number: int) -> tuple[int, int, int | None]:
    """Return the number, greatest position and smallest policy version of steps before a number."""
    ordinals, numbers, positions, _ = steps.T
    order = np.argsort(ordinals) if owner.ordered else np.lexsort((positions, numbers))
    ordinals, numbers, positions, versions = steps[order].T
    if number - 1 not in numbers:
        raise _missing_step(owner, number - 1, steps)
    count = int((numbers < number).sum())
    if (numbers[:count] >= number).any():
        raise errors.InvalidValue(
            f"episode {owner.name!r} cannot be forked at step {number}, because a step with this "
            "number or a greater one was written before other shared steps; write the steps of "
            "all agents in the order of their numbers"
        )
    shared = int(ordinals[count - 1]) + 1 if owner.ordered else int(ordinals.min()) + count
    if not owner.ordered and ordinals.max() - ordinals.min() + 1 != len(ordinals):
        raise errors.InvalidValue(
            f"episode {owner.name!r} cannot be forked, because its steps were written out of order "
            "and some were evicted or deleted; begin another episode"
        )
    known = versions[:count][versions[:count] != NO_VERSION].tolist()
    known += [] if owner.oldest is None else [owner.oldest]
    return shared, int(positions[:count].max()), min(known, default=None)


def _missing_step(episode: _ParentRow, number: int, steps: np.ndarray) -> errors.ExpDBError:
    if not len(steps):
        return errors.Evicted(
            f"all steps of episode {episode.name!r} were evicted or deleted; choose another parent"
        )
    first, last = int(steps[:, 1].min()), int(steps[:, 1].max())
    if number < first and steps[:, 0].min() > 0:
        return errors.Evicted(
            f"step {number} of episode {episode.name!r} was evicted or deleted; its stored steps "
            f"are {first} to {last}, so begin at another step"
        )
    return errors.InvalidValue(
        f"episode {episode.name!r} has no step {number}; its stored steps are {first} to {last}, "
        "so begin at another step, or flush the writer of the episode first"
    )


def resolve_stored_parent(
    store: Store, record: EpisodeRecord, pending: Mapping[str, EpisodeRecord] = NO_EPISODES
) -> None:
    """Find the parent of a new episode, unless the parent is only in `pending`."""
    link = record.parent
    if link is None or link.episode is not None:
        return
    parent = pending.get(link.name or "")
    if parent is not None and parent.id is None:
        return  # the write of both episodes finds the parent
    record.become(store.engine.retry(_resolve_stored, store, record))


def _resolve_stored(store: Store, record: EpisodeRecord) -> EpisodeRecord:
    with store.engine.reading() as session:
        return resolve_parent(store, StoredEpisodes(store, session), record)
