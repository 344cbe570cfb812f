"""Steps whose numbers are taken: repeated writes of stored steps, conflicts, and evicted steps.

A step is identified by its episode, its agent and its number. Most steps have a number above all
earlier ones of their agent, so the stored numbers of an episode are read only for other steps.
"""

import json
from typing import Any, NamedTuple

import numpy as np

from expdb import errors
from expdb.chunks.codec import decoded
from expdb.names import STEP_KEYS
from expdb.sql.session import Session
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.reading import fetch, select
from expdb.storage.store import Store
from expdb.storage.write_plan import EpisodeWrite, WritePlan
from expdb.storage.writing import episodes
from expdb.storage.writing.pending_steps import PendingSteps
from expdb.storage.writing.plan import make_plan

# Columns that `update` can change. If it did, they are not compared with those of a repeated step.
_UPDATED = ("reward", "terminated", "truncated", "tags")
_COMPARED = ("pre_agent", *_UPDATED, "policy_version", "policy_version_end")
_UNKNOWN: Any = object()  # a value that was updated after the step was stored

Numbers = dict[tuple[str | None, int], int]  # position by agent and step number


class NumberConflict(NamedTuple):
    """A step of a write whose number is taken by another step."""

    place: int  # index of the step in the write
    episode_id: str
    number: int
    position: int | None  # of the stored step; None if the step was evicted or is in the write
    first: int | None  # place of the earlier step in the write with this number


class NumberConflicts(errors.OutOfDate):
    """Some steps have numbers that are taken; internal, handled by transaction.write."""

    def __init__(self, steps: list[NumberConflict]):
        super().__init__("step numbers are taken")
        self.steps = steps


def read(
    store: Store, session: Session, write: EpisodeWrite, state: EpisodeRecord
) -> Numbers | None:
    """Return the numbers of the stored steps of an episode, whose current state is `state`.

    Return None if the greatest number of the episode suffices: if no step of the buffer has an
    agent of its own, and no step of the write is out of order.
    """
    if state.id is None:
        return {}
    if not write.out_of_order and not session.query(
        "SELECT 1 FROM steps WHERE buffer_id = ? AND agent_id IS NOT NULL LIMIT 1", store.id
    ):
        return None
    ids = np.array([state.id], np.int64)
    positions = select.positions_of_episodes(store, session, ids, 2**62)
    rows = session.query(
        "SELECT agent_id, step, position FROM steps WHERE buffer_id = ? AND position "
        f"{store.dialect.AMONG}", store.id, store.dialect.as_list(positions),
    )  # fmt: skip
    return {(agent, step): position for agent, step, position in rows}


def with_greatest(numbers: Numbers | None, state: EpisodeRecord) -> EpisodeRecord:
    """Return the state of an episode with the greatest number of each agent.

    If steps of the episode were evicted or deleted, an agent whose greatest number is unknown
    continues above all numbers of the episode.
    """
    if numbers is None:
        assert state.last_step is not None
        return state.changed(greatest={None: state.last_step}, unknown_greatest=None)
    by_agent: dict[str | None, int] = {}
    for agent, number in numbers:
        by_agent[agent] = max(number, by_agent.get(agent, number))
    is_partial = state.own_length > len(numbers)
    floor = state.last_step if is_partial else state.last_shared_step
    # The step with the greatest number of an agent may be evicted.
    if is_partial and floor is not None and not state.ordered:
        by_agent = dict.fromkeys(by_agent, floor)
    return state.changed(greatest=by_agent, unknown_greatest=floor)


def find_conflicts(
    pending: PendingSteps, plan: WritePlan, write: EpisodeWrite, numbers: Numbers | None
) -> list[NumberConflict]:
    """Return the steps of an episode whose numbers are taken, or were taken by evicted steps."""
    taken, seen, out_of_order = list[NumberConflict](), dict[Any, int](), set(write.out_of_order)
    numbers = numbers or {}
    smallest: dict[str | None, int] = {}
    is_partial = write.before.own_length > len(numbers)  # steps were evicted or deleted
    for agent, number in numbers if is_partial else ():
        smallest[agent] = min(number, smallest.get(agent, number))
    for index in write.rows:
        agent, number = key = pending.steps.agent_id[index], plan.step[index]
        first = seen.setdefault(key, index)
        # Steps that were written in order are evicted in order. Otherwise, any number that is not
        # stored may have been evicted.
        is_evicted = (
            is_partial
            and index in out_of_order
            and not (write.before.ordered and smallest.get(agent, number + 1) < number)
        )
        if key in numbers or first != index or is_evicted:
            earlier = None if first == index else first
            position = None if earlier is not None else numbers.get(key)
            name = write.record.episode_id
            taken.append(NumberConflict(index, name, number, position, earlier))
    return taken


def _write_of(
    pending: PendingSteps, current: dict[EpisodeRecord, EpisodeRecord], record: EpisodeRecord
) -> EpisodeWrite:
    """Return the planned write of an episode, given the current states of episodes."""
    (write,) = [other for other in make_plan(pending, current).episodes if other.record is record]
    return write


def plan_with_numbers(
    store: Store,
    session: Session,
    pending: PendingSteps,
    write: EpisodeWrite,
    current: dict[EpisodeRecord, EpisodeRecord],
) -> WritePlan:
    """Make the plan again with the greatest stored number of each agent of an episode.

    Also record the state of the episode in `current`. Raise NumberConflicts if stored steps
    already have these numbers.
    """
    state, ended = current.get(write.record, write.before), None
    if state.id is not None:
        try:
            state = episodes.current(store, session, write.record)
        except errors.EpisodeEnded as error:
            if len(write.out_of_order) < len(write.rows):
                raise
            ended = error  # the steps may repeat stored steps
    current[write.record] = state
    numbers = read(store, session, _write_of(pending, current, write.record), state)
    current[write.record] = with_greatest(numbers, state)
    plan = make_plan(pending, current)
    (write,) = [other for other in plan.episodes if other.record is write.record]
    taken = find_conflicts(pending, plan, write, numbers)
    if ended is not None and len(taken) < len(write.rows):
        raise ended
    if taken:
        raise NumberConflicts(taken)
    return plan


def require_equal(store: Store, pending: PendingSteps, taken: list[NumberConflict]) -> None:
    """Raise if a step is not equal to the stored step with its number.

    Raise Evicted if the stored step was evicted, and InvalidValue if a value differs.
    """
    rows = [values for block in pending.blocks for values in decoded(block)]
    stored = store.engine.retry(_read_stored, store, [step for step in taken if step.first is None])
    field = store.fields.types.get("versions")
    for step in taken:
        values = _values(pending, rows, step.place)
        tokens = values.get("versions") if field is not None and field.ascending else None
        # Earlier versions of expdb did not derive these columns from the tokens.
        derived = (
            ("policy_version", "policy_version_end") if tokens is not None and len(tokens) else ()
        )
        other = stored[step.place] if step.first is None else _values(pending, rows, step.first)
        for name, value in values.items():
            if name in derived:
                continue
            if name not in other or not _are_equal(value, other[name]):
                where = "already stored" if step.first is None else "in this write twice,"
                raise errors.InvalidValue(
                    f"step {step.number} of episode {step.episode_id!r} is {where} with another "
                    f"value of {name!r}, so this step was not stored; pass a number that is free, "
                    "or pass another episode_id for another attempt"
                )
    if pending.details:
        places = {step.place for step in taken}
        new = {record for k, (record, *_) in enumerate(pending.taken) if k not in places}
        for record in pending.details.keys() - new:
            store.engine.retry(_require_equal_details, store, record, pending.details[record])


def _require_equal_details(store: Store, record: EpisodeRecord, details: dict[str, Any]) -> None:
    """Raise InvalidValue if details passed only with repeated steps differ from the stored ones."""
    with store.engine.reading() as session:
        rows = session.query(
            f"SELECT revision, {', '.join(details)} FROM episodes WHERE buffer_id = ? "
            "AND episode_id = ?",
            store.id, record.episode_id,
        )  # fmt: skip
    revision, *stored_details = rows[0] if rows else (None, *details.values())
    for (name, value), stored in zip(details.items(), stored_details, strict=True):
        if name == "episode_tags":  # `update` may have changed them
            is_equal = revision is not None or json.loads(stored or "{}") == json.loads(value)
        else:
            is_equal = value == stored
        if not is_equal:
            raise errors.InvalidValue(
                f"the steps of episode {record.episode_id!r} are already stored, and {name} of the "
                f"episode is {stored!r}, so {name}={value!r} was not stored; pass it with a new "
                "step"
            )


def _values(pending: PendingSteps, rows: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """Return the values of a step that its caller passed, by name."""
    columns = dict(zip(STEP_KEYS, pending.taken[index][1:], strict=True))
    passed = {name: columns[name] for name in _COMPARED if columns[name] is not None}
    if "tags" in passed:
        passed["tags"] = json.loads(passed["tags"])
    return passed | rows[index]


def _read_stored(store: Store, taken: list[NumberConflict]) -> dict[int, dict[str, Any]]:
    """Return the stored values of steps by their index in the write."""
    for step in taken:
        if step.position is None:
            raise errors.Evicted(
                f"step {step.number} of episode {step.episode_id!r} may have been evicted or "
                "deleted, so it cannot be stored; pass another episode_id for another attempt"
            )
    if not taken:
        return {}
    positions = np.array([step.position for step in taken], np.int64)
    with store.engine.reading() as session:
        names = dict.fromkeys((*_COMPARED, *store.fields.types))
        columns = fetch.steps(store, session, store.state(session), positions, names)
        rows = session.query(
            "SELECT position FROM steps WHERE buffer_id = ? AND revision IS NOT NULL AND position "
            f"{store.dialect.AMONG}", store.id, store.dialect.as_list(positions),
        )  # fmt: skip
    updated = {position for (position,) in rows}
    stored: dict[int, dict[str, Any]] = {}
    for k, step in enumerate(taken):
        stored[step.place] = values = {}
        for name in names:
            is_there = columns.get(f"has_{name}")
            if step.position in updated and name in _UPDATED:
                values[name] = _UNKNOWN
            elif is_there is None or is_there[k]:
                values[name] = columns[name][k]
    return stored


def _are_equal(value: Any, stored: Any) -> bool:
    """Return whether a value that the caller passed equals the stored value."""
    if stored is _UNKNOWN:
        return True
    if isinstance(stored, (np.ndarray, np.generic)) and stored.dtype.kind in "fc":
        return np.array_equal(np.asarray(value, stored.dtype), stored, equal_nan=True)
    if isinstance(stored, (np.ndarray, np.generic)):
        return np.array_equal(np.asarray(value), stored)
    return bool(value == stored)
