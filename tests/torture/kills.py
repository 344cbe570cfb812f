"""kill -9 of writers at random times, and of processes that change stored steps."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import expdb
from expdb import QueryBuilder
from torture.oracle import BUFFER, Log, content, step, verify, wrong_fields
from torture.table import DATABASES, Outcome, Place, fault

# Takes a tenth of the time of spawn; no connection is open at a fork.
FORK = multiprocessing.get_context("fork")
CAPACITY = 4_000


class Crew:
    """Processes that work until they are killed.

    `work` gets the index of a process, and returns a function and its arguments.
    """

    def __init__(self, size: int, work: Callable[[int], tuple[Any, ...]]):
        self._work = work
        self.processes = [self._begin(index) for index in range(size)]

    def _begin(self, index: int) -> BaseProcess:
        function, *arguments = self._work(index)
        process = FORK.Process(target=function, args=arguments)
        process.start()
        return process

    def replace(self, index: int) -> None:
        """Kill a process, and begin another one."""
        killed(self.processes[index])
        self.processes[index] = self._begin(index)

    def end(self, seconds: float) -> None:
        """Kill all processes after some seconds."""
        time.sleep(seconds)
        for process in self.processes:
            killed(process)


def killed(process: BaseProcess) -> None:
    """Kill a process and wait for its end."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def write_for_ever(location: str, writer: int, log: Log) -> None:
    """Write steps in all ways, and record the acknowledged steps."""
    number = 0
    with expdb.open(location, timeout=120.0) as db:
        buffer = db.buffer(BUFFER)
        for turn in itertools.count():
            match turn % 3:
                case 0:
                    position = buffer.store(task_id=f"w{writer}", **step(writer, number))
                    log.add([position], writer, number)
                    number += 1
                case 1:
                    rows = [step(writer, number + k, number, 7) for k in range(7)]
                    rows = [{"task_id": f"w{writer}", **row} for row in rows]
                    log.add(buffer.store_batch(rows).tolist(), writer, number)
                    number += 7
                case 2:
                    episode = buffer.episode(f"w{writer}", flush_steps=1000, flush_seconds=1e6)
                    for flush in range(3):
                        for k in range(5):
                            is_last = flush == 2 and k == 4
                            row = step(writer, number + k, number, 5)
                            episode.append(**row, terminated=is_last)
                        log.add(episode.flush().tolist(), writer, number)
                        number += 5
                    episode.end(obs=content(writer, number)["obs"])


@fault(
    "kill -9 of {processes} writers, {database}",
    "0 acknowledged steps lost, 0 repeated, 0 torn batches, capacity exact", 25, 1_000,
    "kill_{processes}_writers_{database}", database=DATABASES, processes=(4, 32),
)  # fmt: skip
def kill_writers(kind: str, processes: int, place: Place, kills: int) -> Outcome:
    """Run `processes` writers, kill one after the other, and verify the stored steps."""
    location, rng = place.location(kind, f"kills{processes}"), random.Random(place.seed)
    with expdb.open(location) as db:
        db.buffer(BUFFER, capacity=CAPACITY)
    log, numbers = Log(place.folder / f"{kind}{processes}.log"), itertools.count()
    crew = Crew(processes, lambda _: (write_for_ever, location, next(numbers), log))
    time.sleep(0.3)
    for _ in range(kills):
        time.sleep(rng.random() * 0.06)
        crew.replace(rng.randrange(processes))
    crew.end(0.2)
    acknowledged = log.read()
    log.close()
    with expdb.open(location, timeout=60.0) as db:
        violations = verify(db, acknowledged)
        added = db.buffer(BUFFER).stats()["added"]
    count = len(acknowledged)
    if count < 5 * kills:
        violations.append(f"only {count} steps were acknowledged: the writers hardly wrote")
    note = f"{count:,} steps acknowledged, {added - count:,} more stored"
    return Outcome(kills + processes, violations, note)


# -- changes ---------------------------------------------------------------------------------------

TASKS, STEPS = 8, 12


def change_for_ever(location: str, first: int, notes: int) -> None:
    """Relabel, delete and seal; record each change before it begins and after it is done."""

    def note(text: str) -> None:
        os.write(notes, f"{text}\n".encode())

    with expdb.open(location, timeout=60.0) as db:
        buffer = db.buffer(BUFFER)
        for turn in itertools.count(first):
            task = f"t{turn % TASKS}"
            match turn % 3:
                case 0:
                    note(f"relabel {task} {turn}")
                    buffer.update(QueryBuilder().eq("task_id", task), reward=float(turn))
                case 1:
                    note(f"delete {task} {turn}")
                    buffer.delete({"task_id": task})
                # steps stored one by one, which the end of the episode merges into one chunk
                case 2:
                    note(f"seal {task} {turn}")
                    names = {"task_id": task, "episode_id": f"e{turn}"}
                    for k in range(STEPS):
                        buffer.store(reward=float(turn), **names, **step(turn, k))
                    buffer.end_episode(f"e{turn}")
            note("done")


def settled(db: expdb.ExperienceDB, notes: list[str]) -> list[str]:
    """Return problems unless the steps are those before or those after the last change."""
    if not notes:
        return []
    # Episode (by its turn) to reward, by task.
    state: dict[str, dict[int, float]] = {f"t{k}": {} for k in range(TASKS)}

    def changed(state: dict[str, dict[int, float]], text: str) -> dict[str, dict[int, float]]:
        what, task, turn = text.split()
        now = dict(state[task])
        match what:
            case "relabel":
                now = dict.fromkeys(now, float(turn))
            case "delete":
                now = {}
            case "seal":
                now[int(turn)] = float(turn)
            case "forget":
                now.pop(int(turn), None)
        return {**state, task: now}

    *changes, last = [text for text in notes if text != "done"]
    for text in changes:
        state = changed(state, text)
    after = changed(state, last)
    allowed = [after] if notes[-1] == "done" else [state, after]
    rewards: dict[str, dict[int, float]] = {f"t{k}": {} for k in range(TASKS)}
    counts: dict[int, int] = {}
    for row in _rows(db, "task_id", "writer", "reward"):
        writer, reward = row["writer"], row["reward"]
        before = rewards[row["task_id"]].setdefault(writer, reward)
        if before != reward:
            return [f"episode {writer} has rewards {before} and {reward}: half of a change"]
        counts[writer] = counts.get(writer, 0) + 1
    what, task, turn = last.split()
    if what == "seal" and notes[-1] != "done" and 0 < counts.get(int(turn), 0) < STEPS:
        del rewards[task][int(turn)], counts[int(turn)]  # each of its steps is a separate write
    problems = [
        f"episode {writer} has {count} of its {STEPS} steps"
        for writer, count in counts.items()
        if count != STEPS
    ]
    if rewards not in allowed:
        is_done = notes[-1] == "done"
        problems.append(f"after {last!r} (done: {is_done}) there are {rewards}, not {allowed}")
    return problems


@fault(
    "kill -9 while sealing, deleting, relabelling, {database}", "old or new, never between",
    25, 500, database=DATABASES,
)  # fmt: skip
def kill_changes(kind: str, place: Place, kills: int) -> Outcome:
    """Repeatedly kill a process that relabels, deletes and seals, and verify each time."""
    location, rng = place.location(kind, "changes"), random.Random(place.seed)
    violations: list[str] = []
    path = place.folder / f"{kind}.changes"
    notes = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    with expdb.open(location) as db:
        db.buffer(BUFFER)
    done, midway = 0, 0
    for _ in range(kills):
        turns = sum(text != "done" for text in path.read_text().splitlines())
        process = FORK.Process(target=change_for_ever, args=(location, turns, notes))
        process.start()
        size = path.stat().st_size
        while path.stat().st_size == size and process.is_alive():  # until its first record
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05)
        killed(process)
        lines = path.read_text().splitlines()
        midway += lines[-1] != "done"
        with expdb.open(location, timeout=60.0) as db:
            violations += db.check() + settled(db, lines)
            rows = _rows(db, "position", "writer", "number", "obs", "text", "call")
            violations += [problem for row in rows for problem in wrong_fields(row)]
            _forget(db, path, lines)
        done += 1
        if violations:
            break
    os.close(notes)
    return Outcome(done, violations, f"{midway} of them in the midst of a change")


def _rows(db: expdb.ExperienceDB, *keys: str) -> list[dict[str, Any]]:
    batches = db.buffer(BUFFER).scan(fields=keys) if len(db.buffer(BUFFER)) else ()
    return [row for batch in batches for row in batch.to_list()]


def _forget(db: expdb.ExperienceDB, path: Path, lines: list[str]) -> None:
    """Complete or undo an interrupted change, so that its outcome is known."""
    if lines[-1] == "done":
        return
    what, task, turn = lines[-1].split()
    buffer, settled = db.buffer(BUFFER), "done\n"
    match what:
        case "relabel":
            buffer.update({"task_id": task}, reward=float(turn))
        case "delete":
            buffer.delete({"task_id": task})
        case "seal":
            buffer.delete({"episode_id": f"e{turn}"})
            settled = f"done\nforget {task} {turn}\ndone\n"
    with path.open("a") as file:
        file.write(settled)
