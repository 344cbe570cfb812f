"""Import the trials of Harbor: the trajectory, the rewards and the timing of each trial folder.

A trial folder contains `result.json` and the ATIF document `agent/trajectory.json`; trials of
several steps have one below ``steps/<name>/agent/``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from expdb.errors import InvalidValue
from expdb.formats.atif import check_document, rollouts_of
from expdb.formats.records import Item, digest_of
from expdb.formats.rollouts import Rollout, Unreadable

TRAJECTORY = "trajectory.json"
DEPTH = 3  # levels of folders below a source: jobs, trials


def is_harbor(source: Any) -> bool:
    """Return whether a source is the folder of a trial, of a job, or of several jobs."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    return next(find_trials(Path(source)), None) is not None


def find_trials(path: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield the folders of trials below a folder, in the order of their names."""
    if not path.is_dir():
        return
    names = {entry.name: entry.is_dir() for entry in os.scandir(path)}
    if "config.json" in names and (names.get("agent") or names.get("steps")):
        yield path
    elif depth:
        for name in sorted(name for name, is_folder in names.items() if is_folder):
            yield from find_trials(path / name, depth - 1)


def read_harbor(source: str | os.PathLike[str]) -> Iterator[Item]:
    """Yield the rollouts of all trials below a folder."""
    for trial in find_trials(Path(source)):
        try:
            yield from _rollouts_of_trial(trial)
        except (InvalidValue, ValueError, LookupError, TypeError, RecursionError, OSError) as error:
            yield Unreadable(
                str(trial), f"the trial cannot be read ({error}); correct or remove it"
            )


def _rollouts_of_trial(trial: Path) -> list[Rollout]:
    result = _result_of(trial)
    folders = [trial / "agent"]
    if not (folders[0] / TRAJECTORY).is_file():
        folders = sorted(path / "agent" for path in trial.glob("steps/*"))
        folders = [folder for folder in folders if (folder / TRAJECTORY).is_file()]
    if not folders:
        raise InvalidValue(f"it has no agent/{TRAJECTORY}; use an agent that writes ATIF")
    name = str(result.get("id") or trial.name)
    rollouts: list[Rollout] = []
    roots: list[Rollout] = []
    for document in (doc for folder in folders for doc in _documents(folder)):
        number = len(roots)
        part = rollouts_of(str(trial), document, name if not number else f"{name}#{number}")
        if roots:
            last = roots[-1].episode["episode_id"]
            part[0].episode |= {"parent": last, "relation": "continuation"}
        roots.append(part[0])
        rollouts += part
    _describe(roots, result)
    for rollout in rollouts:
        rollout.digest = digest_of(rollout.digest.hex(), result)
    return rollouts


def _result_of(trial: Path) -> dict[str, Any]:
    for name in ("result.json", "results.json"):
        if (trial / name).is_file():
            result: dict[str, Any] = json.loads((trial / name).read_text("utf-8"))
            return result
    return {}


def _documents(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the trajectory in a folder and its continuations."""
    name, seen = TRAJECTORY, set[str]()
    while name not in seen and Path(name).name == name and (folder / name).is_file():
        seen.add(name)
        document = json.loads((folder / name).read_text("utf-8"))
        check_document(document)
        yield document
        name = document.get("continued_trajectory_ref") or TRAJECTORY


def _describe(roots: list[Rollout], result: Mapping[str, Any]) -> None:
    """Add the task, agent, times, tags, scores and reward of a trial to its rollouts."""
    columns = {
        "task_id": result.get("task_name"),
        "agent_id": (result.get("agent_info") or {}).get("name"),
        "started": _seconds(result.get("started_at")),
        "ended": _seconds(result.get("finished_at")),
    }
    exception = (result.get("exception_info") or {}).get("exception_type")
    tags = {"trial_name": result.get("trial_name"), "exception": exception}
    for rollout in roots:
        given = {name: value for name, value in columns.items() if value is not None}
        rollout.episode |= given
        known = {name: value for name, value in tags.items() if value is not None}
        rollout.episode["episode_tags"] = rollout.episode["episode_tags"] | {"harbor": known}
    if exception is not None:
        roots[-1].episode["status"] = "aborted"
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    if not isinstance(rewards, Mapping):
        rewards = {"reward": rewards}
    for rollout in roots:
        rollout.scores += [{"name": name, "value": value} for name, value in rewards.items()]
    if "reward" in rewards or len(rewards) == 1:
        steps = roots[-1].steps
        assert isinstance(steps, list)
        steps[-1]["reward"] = rewards.get("reward", next(iter(rewards.values())))


def _seconds(text: Any) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
