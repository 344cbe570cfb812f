"""Import rollouts: store each record as an episode exactly once, many in one transaction.

The table `imports` has the id and a hash of each imported record. The transaction that stores an
episode also inserts the row of its record, so an interrupted import continues where it stopped, and
a record is known even after its episode is evicted.
"""

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expdb import checks, errors
from expdb.chunks.fields import Field
from expdb.formats.rollouts import EPISODE_NAMES, OF_EXPORTS, ImportReport, Rollout, Unreadable
from expdb.names import EPISODE_DETAILS, FORK_RELATIONS, RELATION_KEYS, STEP_KEYS, nearest
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage import annotate, priorities
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.catalog import Fields, check_declared
from expdb.storage.outcome import WriteOutcome
from expdb.storage.reading import select
from expdb.storage.scores.recording import Recording
from expdb.storage.scores.requested import NewScore, scores_of
from expdb.storage.store import Store, Writing
from expdb.storage.writing import episodes, relations, transaction
from expdb.storage.writing.batches import rows_of
from expdb.storage.writing.change import delete_positions
from expdb.storage.writing.columnar import Columnar, columnar
from expdb.storage.writing.open_episodes import episode_details
from expdb.storage.writing.pending_steps import PendingSteps, create_steps, step_columns

RECORDS_AT_ONCE = 500  # in one query
ATTEMPTS = 32  # other processes may import the same records, or set the types of fields
_STEP_NAMES = frozenset(STEP_KEYS)


def store_rollouts(
    store: Store, run: str, items: Sequence[Rollout | Unreadable], replace: bool = False
) -> ImportReport:
    """Store the rollouts that were not imported before, in one transaction.

    A record whose content differs from that of its first import is refused. With `replace`, its
    episode is deleted and stored again.
    """
    refused: dict[int, object] = {}  # the reasons, by the index of the item
    valid: dict[int, Rollout] = {}
    for index, item in enumerate(items):
        if isinstance(item, Unreadable):
            refused[index] = item.reason
            continue
        try:
            _check(item)
            valid[index] = item
        except errors.ExpDBError as error:
            refused[index] = error
    report = _store(store, run, valid, replace, refused)
    for index, reason in sorted(refused.items()):
        report.refuse(items[index].source, reason)
    return report


# Errors of a transaction that single rollouts can cause, such as a parent that lacks a step.
_ERRORS_OF_ROLLOUTS = (
    errors.EpisodeEnded, errors.EpisodeMismatch, errors.Evicted, errors.FieldMismatch,
    errors.InvalidValue, errors.OutOfDate, errors.UnknownEpisode,
)  # fmt: skip


def _store(
    store: Store,
    run: str,
    rollouts: Mapping[int, Rollout],
    replace: bool,
    refused: dict[int, object],
) -> ImportReport:
    """Store checked rollouts in one transaction; if it is refused, store them one by one."""
    for _ in range(ATTEMPTS):
        attempt = dict(refused)
        try:
            report: ImportReport = store.engine.retry(
                _attempt, store, run, rollouts, replace, attempt
            )
            refused |= attempt
            return report
        except _ERRORS_OF_ROLLOUTS as error:
            failure = error
            if not isinstance(error, (errors.OutOfDate, errors.EpisodeMismatch)):
                break
    if len(rollouts) == 1:
        ((index, rollout),) = rollouts.items()
        if rollout.episode.get("parent") is None:
            refused[index] = failure
            return ImportReport()
        errors.warn(
            f"episode {rollout.episode['episode_id']!r} is stored without its relation to episode "
            f"{rollout.episode['parent']!r}: {failure}"
        )
        episode = {
            name: value for name, value in rollout.episode.items() if name not in RELATION_KEYS
        }
        alone = {index: dataclasses.replace(rollout, episode=episode)}
        return _store(store, run, alone, replace, refused)
    report = ImportReport()
    for index, rollout in rollouts.items():
        report.add(_store(store, run, {index: rollout}, replace, refused))
    return report


def _check(rollout: Rollout) -> None:
    """Raise InvalidValue unless the ids and the form of a rollout are valid."""
    if not checks.text(rollout.record, "id"):
        raise errors.InvalidValue("the id of the record is empty; give it an id")
    checks.text(rollout.episode.get("episode_id"), "episode_id")
    if rollout.episode.get("parent") is not None:
        checks.text(rollout.episode["parent"], "parent")
    if rollout.final is not None and rollout.episode.get("status") == "open":
        raise errors.InvalidValue(
            "an open episode cannot have a final observation; set its status to complete or aborted"
        )
    if not rollout.length:
        raise errors.InvalidValue("the record has no step; remove it, or add a step")


@dataclass
class _NewEpisode:
    """An episode to store."""

    index: int  # of its rollout
    rollout: Rollout
    record: EpisodeRecord
    scores: list[tuple[NewScore, int | None]]  # with the index of the step
    replaces: int | None  # number of the episode of an earlier version of the record


def _attempt(
    store: Store,
    run: str,
    rollouts: Mapping[int, Rollout],
    replace: bool,
    refused: dict[int, object],
) -> ImportReport:
    report = ImportReport()
    records = list({rollout.record for rollout in rollouts.values()})
    named = {
        rollout.episode.get(key)
        for rollout in rollouts.values()
        for key in ("episode_id", "parent")
    }
    with store.engine.reading() as session:  # one snapshot
        known = _find_known(store, session, records)
        names = sorted(name for name in named if isinstance(name, str))
        stored = episodes.find_in_snapshot(store, session, names)
    taken = {name: episode.id for name, (episode, _) in stored.items()}
    chosen = _choose(run, rollouts, known, taken, replace, report, refused)
    group, new = _gather(store, chosen, refused)
    if not new:
        return report
    _settle_fields(store, group)
    drafts = [transaction.build_draft(store, pending) for pending in group]
    with Writing(store) as (session, outcome):
        if _find_known(store, session, records) != known:
            raise errors.OutOfDate("another process has imported some of the records")
        _delete_replaced(store, session, outcome, new)
        positions_of: dict[EpisodeRecord, np.ndarray] = {}
        for pending, draft in zip(group, drafts, strict=True):
            positions, _, _ = transaction.write_draft(store, session, pending, draft, outcome)
            transaction.refuse_new_fields(outcome)
            for record, indices in pending.indices_by_episode().items():
                positions_of[record] = positions[indices]
        written = dict(outcome.episodes)
        _record(store, session, new, written)
        _add_details(store, session, outcome, new, positions_of)
    for pending in group:
        store.activity.add_steps(len(pending), pending.ended)
    report.episodes, report.steps = len(new), sum(map(len, group))
    report.replaced = sum(episode.replaces is not None for episode in new)
    return report


def find_records(store: Store, records: Sequence[str]) -> dict[str, tuple[bytes, int]]:
    """Return the digest and the episode of each record that was imported before."""
    known: dict[str, tuple[bytes, int]] = {}
    for start in range(0, len(records), RECORDS_AT_ONCE):
        known |= store.engine.retry(store.read, _find_known, records[start:][:RECORDS_AT_ONCE])
    return known


def _find_known(
    store: Store, session: Session, records: Sequence[str]
) -> dict[str, tuple[bytes, int]]:
    """Return the digest and the episode of each record that was imported before."""
    if not records:
        return {}
    rows = session.query(
        "SELECT record, digest, episode FROM imports WHERE buffer_id = ? "
        f"AND record IN ({', '.join('?' * len(records))})",
        store.id, *records,
    )  # fmt: skip
    return {record: (bytes(digest), episode) for record, digest, episode in rows}


def _choose(
    run: str,
    rollouts: Mapping[int, Rollout],
    known: Mapping[str, tuple[bytes, int]],
    taken: dict[str, int | None],
    replace: bool,
    report: ImportReport,
    refused: dict[int, object],
) -> list[_NewEpisode]:
    """Return the rollouts to store; count the known ones, and refuse the invalid ones.

    `taken` has the numbers of the stored episodes by name; the names of the new ones are added.
    """
    chosen: list[_NewEpisode] = []
    digests = {record: digest for record, (digest, _) in known.items()}
    for index, rollout in rollouts.items():
        digest, (_, replaced) = digests.get(rollout.record), known.get(rollout.record, (b"", None))
        if digest == rollout.digest:
            report.known += 1
            continue
        name = rollout.episode["episode_id"]
        try:
            if digest is not None and (replaced is None or not replace):
                raise errors.InvalidValue(
                    f"record {rollout.record!r} was imported before with other content, or in "
                    "another format or mapping; pass replace=True (--replace) to replace its "
                    "episode, or give it another id"
                    if replaced is not None
                    else f"record {rollout.record!r} occurs twice with different content; give "
                    "each record its own id"
                )
            if taken.get(name, replaced) != replaced:
                raise errors.EpisodeMismatch(
                    f"episode {name!r} already exists and was not imported from this record; give "
                    "the record another id, or import it into another buffer"
                )
            record = _record_of(run, rollout.episode, rollout.length)
            if record.parent is not None and record.parent.name not in taken:
                raise errors.UnknownEpisode(
                    f"its parent, episode {record.parent.name!r}, is not stored; import the parent "
                    "first, or together with this record"
                )
            scores = [_score_of(name, score) for score in rollout.scores]
        except errors.ExpDBError as error:
            refused[index] = error
            continue
        digests[rollout.record], taken[name] = rollout.digest, -1
        chosen.append(_NewEpisode(index, rollout, record, scores, replaced))
    return chosen


def _score_of(episode_id: str, score: Mapping[str, Any]) -> tuple[NewScore, int | None]:
    """Return a checked score, and the index of its step; None for the whole episode."""
    values = {**score, "episode_id": episode_id}
    step, scored = values.pop("step", None), values.pop("scored", None)
    (checked,) = scores_of([values], is_batch=False)
    return checked._replace(scored=scored), step


def _record_of(run: str, columns: Mapping[str, Any], count: int) -> EpisodeRecord:
    """Return the record of an episode with `count` steps; raise InvalidValue if it is invalid."""
    unknown = columns.keys() - set(EPISODE_NAMES)
    if unknown:
        name = min(unknown)
        raise errors.InvalidValue(
            f"an episode has no column {name!r}{nearest(name, EPISODE_NAMES) or ';'} the columns "
            f"are {', '.join(EPISODE_NAMES)}"
        )
    given = {name: value for name, value in columns.items() if value is not None}
    record = EpisodeRecord(
        episode_id=checks.text(columns["episode_id"], "episode_id"),
        run=checks.text(given.get("run", run), "run"),
        task_id=checks.text(given.get("task_id", "default"), "task_id"),
        agent_id=checks.text(given.get("agent_id", "agent"), "agent_id"),
        started=checks.number(given.get("started", time.time()), "started"),
    )
    details = {name: given[name] for name in EPISODE_DETAILS if name in given}
    for name, value in episode_details(details).items():
        setattr(record, name, value)
    checks.choice(given.get("status", "complete"), "status", "complete", "aborted", "open")
    record.parent = relations.parse_relation(given, record.episode_id)
    for name in ("episode_return", "ended"):
        if name in given:
            checks.number(given[name], name)
    for name in ("first_policy_version", "last_policy_version"):
        if name in given:
            checks.whole(given[name], name)
    missing = checks.whole(given.get("length", count), "length", 0, 2**53) - count
    if missing > 0 and (record.parent is None or record.parent.relation not in FORK_RELATIONS):
        record.length, record.greatest = missing, {}
    return record


def _gather(
    store: Store, chosen: Sequence[_NewEpisode], refused: dict[int, object]
) -> tuple[list[PendingSteps], list[_NewEpisode]]:
    """Return the steps to write, and their episodes; refuse rollouts with invalid values.

    One write can store the final observation of only one episode, so an episode with a final
    observation has a write of its own.
    """
    group, new = [create_steps(store, _known_fields(store, chosen))], list[_NewEpisode]()
    for episode in chosen:
        pending, final = group[-1], episode.rollout.final
        if final is not None and len(pending):
            pending = create_steps(store, pending.fields)
        state = pending.capture_state()
        try:
            _add(pending, episode)
        except errors.ExpDBError as error:
            pending.restore_state(state)
            refused[episode.index] = error
            continue
        if pending is not group[-1]:
            group.append(pending)
        if final is not None:
            group.append(create_steps(store, pending.fields))
        new.append(episode)
    group = [pending for pending in group if len(pending)]
    for pending in group:
        pending.close()
    return group, new


def _known_fields(store: Store, chosen: Sequence[_NewEpisode]) -> Fields:
    """Return the fields of the buffer, and those that rollouts declare."""
    stored, declared = store.fields, dict[str, Any]()
    for episode in chosen:
        declared |= episode.rollout.types
    new = {name: type for name, type in declared.items() if name not in stored.types}
    if not new:
        return stored
    known = {**stored.types, **check_declared(new)}
    return Fields(known, stored.optional, stored.version, stored.annotations)


def _add(pending: PendingSteps, episode: _NewEpisode) -> None:
    """Add the steps of an episode; raise an error of its row if one of them is not valid."""
    record, rollout = episode.record, episode.rollout
    steps = rollout.steps
    many = _as_arrays(steps, pending) if isinstance(steps, dict) and not record.parent else None
    if many is not None:
        pending.extend([record] * many.size, many)
    else:
        for index, row in enumerate(rows_of(steps)):
            fields = {name: value for name, value in row.items() if name not in _STEP_NAMES}
            if rollout.has_json_text:
                fields = _parse_json_fields(fields, pending.types)
            try:
                pending.add(record, fields, _columns_of(row))
            except (errors.InvalidValue, errors.FieldMismatch) as error:
                errors.name_row(error, index)
                raise
    _check_numbers(record, pending, len(pending) - rollout.length)
    status = rollout.episode.get("status") or "complete"
    if rollout.final is not None:
        final = rollout.final
        pending.add_final(
            _parse_json_fields(final, pending.types) if rollout.has_json_text else final
        )
        pending.end(record, status)
    elif status != "open":
        pending.ended[record] = status


def _check_numbers(record: EpisodeRecord, pending: PendingSteps, start: int) -> None:
    """Raise InvalidValue if two steps of an agent have the same number."""
    last: dict[str | None, int] = {}
    taken: set[tuple[str | None, int]] = set()
    first = 0 if record.parent is None or record.parent.step is None else record.parent.step
    for entry in pending.taken[start:]:
        number, agent = entry[1], entry[-1]
        if number is None:
            number = last.get(agent, first - 1) + 1
        if (agent, number) in taken:
            raise errors.InvalidValue(
                f"two steps of agent {agent or record.agent_id!r} have the number {number}; number "
                "the steps of an episode 0, 1, 2 and so on, or omit the numbers"
            )
        taken.add((agent, number))
        last[agent] = max(number, last.get(agent, number))


def _columns_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the columns of a step; a missing flag is False."""
    flags = {name: False for name in ("terminated", "truncated") if row.get(name) is None}
    return step_columns({**row, **flags} if flags else row)


def _as_arrays(columns: Mapping[str, Sequence[Any]], pending: PendingSteps) -> Columnar | None:
    """Return columns that can be added at once, None if they must be added row by row."""
    plain = _STEP_NAMES & columns.keys()
    if not pending.rows.takes_arrays or not plain <= {
        *_COLUMNAR_NAMES,
        "execute_time",
        "pre_agent",
    }:
        return None
    times, before = columns.get("execute_time", ()), columns.get("pre_agent", ())
    own = {name: list(columns[name]) for name in plain & _COLUMNAR_NAMES}
    if "reward" in own and None not in own["reward"]:
        own["reward"] = np.array(own["reward"], np.float64)  # type: ignore[assignment]
    many = columnar({**own, **{n: c for n, c in columns.items() if n not in plain}}, pending.types)
    if many is None or not set(map(type, times)) <= {float}:
        return None
    if not set(map(type, before)) <= {type(None)}:
        return None
    taken = dict(zip(STEP_KEYS, many.taken, strict=True))
    if len(times):
        taken["execute_time"] = list(times)
    return many._replace(taken=tuple(taken.values()))


_COLUMNAR_NAMES = frozenset(("step", "reward", "terminated", "truncated"))


def _parse_json_fields(values: Mapping[str, Any], types: Mapping[str, Field]) -> dict[str, Any]:
    """Return values of fields with the JSON text of JSON fields parsed."""
    return {
        name: json.loads(value)
        if isinstance(value, str) and name in types and types[name].dtype == "json"
        else value
        for name, value in values.items()
    }


def _settle_fields(store: Store, group: Sequence[PendingSteps]) -> None:
    """Store the types of new fields, and which fields some steps lack, before the steps.

    The writes of one transaction must not change the fields; see `transaction.refuse_new_fields`.
    """
    collected = [pending.collect_fields(store.fields) for pending in group]
    types = {name: type for of_write, _ in collected for name, type in of_write.items()}
    lacking = set().union(*(missing for _, missing in collected))
    lacking |= {name for name in types for of_write, _ in collected if name not in of_write}
    if types.keys() <= store.fields.types.keys() and lacking <= store.fields.optional:
        return
    with store.writing() as (session, outcome):
        ((version, added),) = session.query(
            "SELECT fields_version, added FROM buffers WHERE id = ?", store.id
        )
        fields = store.fields_at(session, version)
        store.settle_fields(session, fields, types, lacking, added == 0, outcome)


def _delete_replaced(
    store: Store, session: Session, outcome: WriteOutcome, new: Sequence[_NewEpisode]
) -> None:
    """Delete the episodes of the earlier versions of records."""
    replaced = [episode.replaces for episode in new if episode.replaces is not None]
    if not replaced:
        return
    ids = np.array(sorted(replaced), np.int64)
    positions = select.positions_of_episodes(store, session, ids, store.state(session).added)
    delete_positions(store, session, outcome, positions, is_eviction=False)
    for table, column in ("episodes", "id"), ("imports", "episode"):
        session.execute(
            f"DELETE FROM {table} WHERE buffer_id = ? AND {column} {store.dialect.AMONG}",
            store.id, store.dialect.as_list(ids),
        )  # fmt: skip


def _record(
    store: Store,
    session: Session,
    new: Sequence[_NewEpisode],
    written: Mapping[EpisodeRecord, EpisodeRecord],
) -> None:
    """Record the imported records, and set columns of their episodes that a write computes."""
    rows = [
        (store.id, episode.rollout.record, episode.rollout.digest, written[episode.record].id)
        for episode in new
    ]
    store.dialect.insert_rows(session, tables.imports, rows)
    for name in ("ended", *OF_EXPORTS):
        values = []
        for episode in new:
            value, after = episode.rollout.episode.get(name), written[episode.record]
            if name == "length" and value is not None:
                value = _length_of(episode, after, value)
            if name == "episode_return" and value is not None and _differs(episode, after, value):
                value = None
            if value is not None:
                values.append((value, store.id, after.id))
        session.execute_many(
            f"UPDATE episodes SET {name} = ? WHERE buffer_id = ? AND id = ?", values
        )


def _length_of(episode: _NewEpisode, after: EpisodeRecord, length: int) -> int | None:
    """Return the length to set for a fork, None if it is set already.

    Raise InvalidValue if the fork would share more steps with its parent than before.
    """
    if after.length > length:
        raise errors.InvalidValue(
            f"episode {after.episode_id!r} is a {after.parent and after.parent.relation} that "
            "began before its parent got some of the earlier steps, so their order cannot be "
            "restored; use expdb.copy() without where, transform and on_conflict to keep it"
        )
    return length if after.length < length else None


def _differs(episode: _NewEpisode, after: EpisodeRecord, value: float) -> bool:
    """Return whether a return is not the sum of the rewards of a complete episode."""
    if (episode.rollout.episode.get("length") or 0) > episode.rollout.length:
        return False
    return after.gained is None or not math.isclose(after.gained, value, rel_tol=1e-6)


def _add_details(
    store: Store,
    session: Session,
    outcome: WriteOutcome,
    new: Sequence[_NewEpisode],
    positions_of: Mapping[EpisodeRecord, np.ndarray],
) -> None:
    """Store the scores, annotations and priorities of the new episodes.

    The capacity of the buffer may already have evicted some of the new steps.
    """
    low = int(store.column(session, "low"))
    scores = []
    arrays: dict[tuple[str, int | None], dict[int, np.ndarray]] = {}
    for episode in new:
        positions = positions_of[episode.record].tolist()
        for score, step in episode.scores:
            if positions[-1 if step is None else step] < low:
                continue
            at = {} if step is None else {"episode": None, "position": positions[step]}
            scores.append(score._replace(**at))
        for name, version, step, array in episode.rollout.annotations:
            if positions[step] >= low:
                arrays.setdefault((name, version), {})[positions[step]] = array
    if scores:
        Recording(store, scores).record(session)
    for (name, version), by_position in arrays.items():
        places = np.array(list(by_position), np.int64)
        own = list(by_position.values())
        annotate.write(store, session, outcome, places, version, name, own)
    given = [
        (positions_of[episode.record], np.array(episode.rollout.priorities, np.float64))
        for episode in new
        if episode.rollout.priorities
    ]
    if given:
        places, values = map(np.concatenate, zip(*given, strict=True))
        is_known = ~np.isnan(values)
        priorities.write(store, session, places[is_known], values[is_known])
