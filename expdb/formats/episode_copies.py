"""Copy chosen episodes of a buffer to another buffer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import expdb
from expdb.errors import EpisodeMismatch, InvalidValue, TargetExists, warn
from expdb.formats.importing import BATCH_ROLLOUTS, BATCH_STEPS
from expdb.formats.parquet_exports import plain_value
from expdb.formats.records import digest_of
from expdb.formats.rollouts import Rollout
from expdb.formats.storing import find_records, store_rollouts
from expdb.names import FORK_RELATIONS
from expdb.storage.reading.annotations import NO_VERSION, decoded

EPISODES_AT_ONCE = 64
_OF_STEP = (
    "step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "tags",
)  # fmt: skip
_OF_EPISODE = (
    "run", "task_id", "task_name", "agent_id", "group_id", "status", "policy_version", "started",
    "ended", "trainable", "relation", "parent_step", "episode_return", "length",
    "first_policy_version", "last_policy_version",
)  # fmt: skip

Transform = Callable[[dict[str, Any]], Mapping[str, Any] | None]


class _CopyIds(NamedTuple):
    """The ids of the copies, and which episodes their children can have as parents."""

    location: str  # location and buffer of the source
    prefix: str
    episodes: dict[int, str]  # `episode_id` in the source of the episodes that are copied
    cut: set[int]  # numbers of the episodes with missing steps
    without_parent: list[str]  # ids of the copies that lost their relation

    @classmethod
    def in_source(
        cls, source: expdb.ReplayBuffer, rows: Sequence[Mapping[str, Any]], prefixed: bool
    ) -> _CopyIds:
        location = source._database.location.partition("?")[0]
        prefix = f"{Path(location.rsplit('/', 1)[-1]).stem}/" if prefixed else ""
        episodes = {row["episode"]: row["episode_id"] for row in rows}
        return cls(f"{location} {source.name}", prefix, episodes, set(), [])

    def of(self, name: str | None) -> str | None:
        """Return the id in the copy for an id of the source."""
        return None if name is None else f"{self.prefix}{name}"

    def key(self, episode_id: str) -> str:
        """Return the id of the record of an episode, for `imports`."""
        return f"{self.location}: {self.prefix}{episode_id}"


def copy_episodes(
    source: expdb.ReplayBuffer,
    target: expdb.ReplayBuffer | None,
    create: Callable[[], expdb.ReplayBuffer],
    where: Any,
    transform: Transform | None,
    on_conflict: str | None,
    report_progress: Callable[[int, int], None],
) -> int:
    """Copy the matching steps with their episodes, and return the number of copied steps.

    `target` is None if it does not exist yet; `create` creates it when the first episode is ready.
    """
    rows = source.episodes(where).to_pylist()
    names = _CopyIds.in_source(source, rows, on_conflict == "prefix")
    known: Mapping[str, Any] = {}
    equal: set[str] = set()
    positions = None if where is None else _matching(source, where)
    if target is not None:
        known = find_records(target._store, [names.key(row["episode_id"]) for row in rows])
        _refuse_conflicts(rows, target, names, on_conflict, known)
        stored = set(target.episodes()["episode_id"].to_pylist())
        both = [
            row
            for row in rows
            if names.of(row["episode_id"]) in stored and names.key(row["episode_id"]) not in known
        ]
        _require_equal(source, target, both, positions, transform)
        equal = {str(names.of(row["episode_id"])) for row in both}
    count, done, waiting = 0, 0, list[Rollout]()
    found = False
    for rollout in _rollouts(source, rows, names, positions, transform):
        done += 1
        if not rollout.steps:  # all were left out
            continue
        found = True
        target = target or create()
        if rollout.episode["episode_id"] not in equal:
            waiting.append(rollout)
        steps = sum(each.length for each in waiting)
        if len(waiting) >= BATCH_ROLLOUTS or steps >= BATCH_STEPS:
            count += _store(target, waiting)
            waiting = []
            report_progress(done, len(rows))
    target = target or create()
    count += _store(target, waiting)
    report_progress(len(rows), len(rows))
    if rows and not found:
        warn(
            f"copy() copied no step of buffer {source.name!r}, because transform= returned None "
            "for all of them; return the changed values"
        )
    if names.without_parent:
        warn(
            f"{len(names.without_parent)} episodes are copied without their relation, such as "
            f"{names.without_parent[0]!r}, because steps of their parents are not copied; select "
            "the parents too"
        )
    return count


def _matching(source: expdb.ReplayBuffer, where: Any) -> np.ndarray:
    found = [batch["position"] for batch in source.scan(where, fields=["position"])]
    return np.concatenate([np.empty(0, np.int64), *found])


def _refuse_conflicts(
    rows: Sequence[Mapping[str, Any]],
    target: expdb.ReplayBuffer,
    names: _CopyIds,
    on_conflict: str | None,
    known: Mapping[str, Any],
) -> None:
    """Raise EpisodeMismatch if the target has the episodes, or groups of other runs.

    Without `on_conflict`, raise TargetExists if it has any episodes except from this copy.
    """
    stored = target.episodes().select(["episode_id", "group_id", "run"]).to_pylist()
    if known:  # the copy was interrupted
        own = {names.of(row["episode_id"]) for row in rows if names.key(row["episode_id"]) in known}
        stored = [row for row in stored if row["episode_id"] not in own]
    if on_conflict is None and (stored or not known):
        raise TargetExists(
            f"{target._database.location} already has a buffer {target.name!r}; drop this buffer "
            "first, copy to another database or name, or pass on_conflict= to add episodes to the "
            "buffer"
        )
    taken = {row["episode_id"] for row in stored}
    runs: dict[str, set[str]] = {}
    for row in stored:
        if row["group_id"] is not None:
            runs.setdefault(row["group_id"], set()).add(row["run"])
    for row in rows:
        name, group = names.of(row["episode_id"]), names.of(row["group_id"])
        if name in taken and on_conflict != "skip_equal":
            raise EpisodeMismatch(
                f"buffer {target.name!r} already has an episode {name!r}, so nothing was copied; "
                'pass on_conflict="prefix" to rename the copies, or "skip_equal" to skip equal '
                "episodes"
            )
        if name not in taken and group in runs and row["run"] not in runs[group]:
            raise EpisodeMismatch(
                f"buffer {target.name!r} already has a group {group!r} of another run, so nothing "
                'was copied; pass on_conflict="prefix" to rename the copies'
            )


def _store(target: expdb.ReplayBuffer, rollouts: Sequence[Rollout]) -> int:
    if not rollouts:
        return 0
    report = store_rollouts(target._store, target._database.run, rollouts)
    if report.refused:
        reason = report.refused[0]
        if "was imported before" in reason:
            reason = (
                f"{reason.partition(':')[0]}, which differs from its earlier copy; drop the "
                "buffer, or copy to another name"
            )
        raise InvalidValue(f"the copy stopped at {reason}")
    target._evict_and_report()
    return report.steps


def _require_equal(
    source: expdb.ReplayBuffer,
    target: expdb.ReplayBuffer,
    rows: Sequence[Mapping[str, Any]],
    positions: np.ndarray | None,
    transform: Transform | None,
) -> None:
    """Raise EpisodeMismatch unless the target has equal episodes for these rows of the source."""
    if not rows:
        return
    wanted = {row["episode_id"] for row in rows}
    all_rows = source.episodes().to_pylist(), target.episodes().to_pylist()
    theirs, ours = (
        {
            rollout.episode["episode_id"]: rollout.digest
            for rollout in _rollouts(
                buffer, [row for row in own if row["episode_id"] in wanted],
                _CopyIds.in_source(buffer, own, False), chosen, change,
            )
        }
        for buffer, own, chosen, change in (
            (source, all_rows[0], positions, transform), (target, all_rows[1], None, None),
        )
    )  # fmt: skip
    for name, digest in theirs.items():
        if ours.get(name) != digest:
            raise EpisodeMismatch(
                f"buffer {target.name!r} already has an episode {name!r} with other values, so "
                'nothing was copied; pass on_conflict="prefix" to rename the copies'
            )


def _rollouts(
    source: expdb.ReplayBuffer,
    rows: Sequence[Mapping[str, Any]],
    names: _CopyIds,
    positions: np.ndarray | None,
    transform: Transform | None,
) -> Iterator[Rollout]:
    """Yield the episodes with their chosen steps."""
    fields = list(source.stats()["fields"])
    finals = [name for name in map("next_{}".format, fields) if name not in fields]
    wanted = [
        "position", "episode", *_OF_STEP, "agent_id", "policy_version", "policy_version_end",
        "priority", *fields, *finals,
    ]  # fmt: skip
    for start in range(0, len(rows), EPISODES_AT_ONCE):
        chosen = rows[start : start + EPISODES_AT_ONCE]
        query = expdb.QueryBuilder().in_("episode", [row["episode"] for row in chosen])
        steps: dict[int, list[dict[str, Any]]] = {}
        for batch in source.scan(query, fields=wanted):
            for step in batch.to_list():
                steps.setdefault(step["episode"], []).append(step)
        scores: dict[str, list[dict[str, Any]]] = {}
        for score in source.scores(query).to_pylist():
            scores.setdefault(score["episode_id"], []).append(score)
        for row in chosen:
            own = steps.get(row["episode"], [])
            if positions is not None:
                inside = np.isin([step["position"] for step in own], positions)
                own = [step for step, keep in zip(own, inside, strict=True) if keep]
            rollout = _rollout(source, row, own, scores.get(row["episode_id"], []), names)
            kept = _apply_transform(rollout, transform)
            shared = 0 if row["parent_position"] is None else row["parent_step"] or 0
            if len(kept) + shared < row["length"]:
                names.cut.add(row["episode"])
            if not kept:
                names.episodes.pop(row["episode"], None)
            _annotate(source, rollout, [own[index]["position"] for index in kept])
            rollout.digest = _digest(rollout)
            yield rollout


def _rollout(
    source: expdb.ReplayBuffer,
    row: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    scores: Sequence[Mapping[str, Any]],
    names: _CopyIds,
) -> Rollout:
    """Return an episode with its scores; the positions of the scores become indices of steps."""
    stats = source._store.fields.types
    episode = {name: row[name] for name in _OF_EPISODE if row[name] is not None}
    episode |= {"episode_id": names.of(row["episode_id"]), "group_id": names.of(row["group_id"])}
    if names.prefix and row["group_id"] is None:  # the task would be a group of both sources
        episode["group_id"] = names.of(row["task_id"])
    if row["episode_tags"] is not None:
        episode["episode_tags"] = json.loads(row["episode_tags"])
    parent = names.episodes.get(row["parent_episode"])
    if row["relation"] in FORK_RELATIONS and row["parent_episode"] in names.cut:
        parent = None
    if parent is None and row["relation"] is not None:
        names.without_parent.append(str(episode["episode_id"]))
        del episode["relation"]
        episode.pop("parent_step", None)
    episode["parent"] = names.of(parent)
    places = {step["position"]: index for index, step in enumerate(steps)}
    rollout = Rollout(
        record=names.key(row["episode_id"]), digest=b"", episode=episode,
        steps=[_step(step, row, stats) for step in steps], types=stats,
        source=f"episode {row['episode_id']!r}",
    )  # fmt: skip
    if steps:
        last = steps[-1]
        final = {name: last.get(f"next_{name}") for name in stats}
        is_last = row["status"] != "open"
        rollout.final = {n: v for n, v in final.items() if v is not None} if is_last else None
        rollout.final = rollout.final or None
        nan = float("nan")
        rollout.priorities = [nan if (p := step["priority"]) is None else p for step in steps]
        if np.isnan(rollout.priorities).all():
            rollout.priorities = []
    for score in scores:
        if score["position"] is not None and score["position"] not in places:
            continue
        entry = {name: score[name] for name in ("name", "value", "status", "scored")}
        entry |= {"by": score["scored_by"], "step": places.get(score["position"])}
        entry["detail"] = score["detail"] and json.loads(score["detail"])
        rollout.scores.append(entry)
    return rollout


def _step(
    step: Mapping[str, Any], row: Mapping[str, Any], types: Mapping[str, Any]
) -> dict[str, Any]:
    values = {name: step[name] for name in (*_OF_STEP, *types) if step[name] is not None}
    if step["agent_id"] != row["agent_id"]:
        values["agent_id"] = step["agent_id"]
    if step["policy_version"] != row["policy_version"]:
        values["policy_version"] = step["policy_version"]
    if step["policy_version_end"] != step["policy_version"]:
        values["policy_version_end"] = step["policy_version_end"]
    return values


def _apply_transform(rollout: Rollout, transform: Transform | None) -> list[int]:
    """Change the steps of a rollout, and return the indices of the steps to copy."""
    assert isinstance(rollout.steps, list)
    if transform is None:
        return list(range(len(rollout.steps)))
    changed = [
        _call_transform(transform, step, f"step {step['step']} of {rollout.source}")
        for step in rollout.steps
    ]
    kept = [index for index, step in enumerate(changed) if step is not None]
    if rollout.episode.get("episode_return") is not None:
        before = sum(rollout.steps[index].get("reward") or 0.0 for index in kept)
        after = sum(_reward_of(changed[index]) for index in kept)
        if before != after:
            rollout.episode["episode_return"] += after - before
    places = {index: place for place, index in enumerate(kept)}
    rollout.steps = [step for step in changed if step is not None]
    if rollout.final is not None:
        final = _call_transform(
            transform, rollout.final, f"the final observation of {rollout.source}"
        )
        is_last = len(changed) - 1 in places
        rollout.final = final if final and is_last else None
    rollout.scores = [
        {**score, "step": places.get(score["step"])}
        for score in rollout.scores
        if score["step"] is None or score["step"] in places
    ]
    if rollout.priorities:
        rollout.priorities = [rollout.priorities[index] for index in kept]
    return kept


def _reward_of(step: Mapping[str, Any] | None) -> float:
    reward = None if step is None else step.get("reward")
    return float(reward) if isinstance(reward, (int, float)) else 0.0


def _call_transform(
    transform: Transform, values: dict[str, Any], what: str
) -> dict[str, Any] | None:
    """Return the values that `transform` returns; raise InvalidValue if it fails."""
    try:
        changed = transform(dict(values))
    except Exception as error:
        raise InvalidValue(
            f"transform= raised {type(error).__name__} ({error}) for {what}, so the copy stopped; "
            "correct the function"
        ) from error
    if changed is None:
        return None
    if not isinstance(changed, Mapping):
        raise InvalidValue(
            f"transform= must return a dict or None, got {type(changed).__name__} for {what}; "
            "return the changed values"
        )
    return dict(changed)


def _annotate(source: expdb.ReplayBuffer, rollout: Rollout, positions: Sequence[int]) -> None:
    """Add the annotations of the steps at `positions`, each version separately."""
    store = source._store
    types = store.fields.annotations
    if not types or not positions:
        return
    with store.engine.reading() as session:
        rows = session.query(
            "SELECT position, name, version, shape, crc, data FROM annotations "
            f"WHERE buffer_id = ? AND position {store.dialect.AMONG} ORDER BY name, version",
            store.id, store.dialect.as_list(np.array(positions, np.int64)),
        )  # fmt: skip
    places = {position: index for index, position in enumerate(positions)}
    for position, name, version, *stored in rows:
        array = decoded(store, name, position, types[name], *stored)
        number = None if version == NO_VERSION else version
        rollout.annotations.append((name, number, places[position], array))


def _digest(rollout: Rollout) -> bytes:
    """Return a hash of everything that is stored of an episode."""
    assert isinstance(rollout.steps, list)
    steps = [{name: plain_value(value) for name, value in step.items()} for step in rollout.steps]
    final = rollout.final and {name: plain_value(value) for name, value in rollout.final.items()}
    annotations = [(*rest, plain_value(array)) for *rest, array in rollout.annotations]
    priorities = [value if value == value else None for value in rollout.priorities]
    return digest_of(rollout.episode, steps, final, rollout.scores, annotations, priorities)
