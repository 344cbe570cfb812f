"""Findings about the buffers of a database for `expdb doctor`."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from expdb import errors
from expdb.sql.dialects.base import Finding, finding
from expdb.storage import catalog
from expdb.storage.reading.ends import count_ends

NEWEST_STEPS = 10_000  # number of steps whose policy versions are compared with their tokens
LONG_WAIT = 60.0  # seconds of a wait after which there is advice
LONG_OPEN = 86_400.0  # seconds after which an open episode is reported
WAIT_ADVICE = {
    "learner": "the learner gets no batch; start actors, or lower `min_size` or the batch size",
    "actor": "the actor may not write; start a learner, or change the rate limiter or the pace",
}
OPEN_EPISODES = (
    "SELECT count(*) FROM experience_episodes WHERE buffer = :buffer AND status = 'open' "
    "AND started < :before"
)
# The number of trajectories with missing step numbers, the number with repeated step numbers, and
# one episode with either. Versions of expdb before 0.3 could store a step number twice.
NUMBERS = (
    "SELECT count(CASE WHEN span > numbers THEN 1 END), count(CASE WHEN steps > numbers THEN 1 END)"
    ", min(CASE WHEN span > numbers OR steps > numbers THEN episode_id END) FROM (SELECT "
    "episode_id, max(step) - min(step) + 1 AS span, count(DISTINCT step) AS numbers, "
    "count(*) AS steps FROM experience WHERE buffer = :buffer GROUP BY episode_id, agent_id) AS n"
)


def examine_buffers(db: Any) -> Iterator[Finding]:
    """Yield the findings of each buffer of an ExperienceDB."""
    for name in db.buffers():
        buffer = db.buffer(name, create=False)
        yield from _copies(db, buffer)
        workers = [worker for worker in buffer.workers().to_pylist() if worker["state"] != "ended"]
        silent = {worker["process"] for worker in workers if worker["state"] == "silent"}
        for waiter in buffer.waiting().to_pylist():
            waited = f"has waited {waiter['seconds']:.0f} s for {waiter['waits_for']}"
            text = f"{waiter['process']} {waited}"
            advice = WAIT_ADVICE.get(waiter["role"], "")
            if waiter["process"] in silent:
                advice = "no report for over a minute; check whether the process is suspended"
            yield finding(f"waiting at {name!r}", text, waiter["seconds"] > LONG_WAIT, advice)
        if workers:
            yield _workers(name, workers, sorted(silent))
        yield from _pins(db, buffer)
        yield from _step_numbers(db, name)
        yield from _token_versions(buffer)
        count, missing, _ = buffer._store.read(count_ends)
        if missing:
            yield finding(
                f"ends of episodes of {name!r}",
                f"{missing} of the newest {count} complete episodes have no terminated or "
                "truncated step and no final observation",
                True,
                "pass terminated=True with the last step, or call end(obs=...); otherwise NStep "
                "never draws the last steps",
            )
        opened = {"buffer": name, "before": time.time() - LONG_OPEN}
        if open_long := db.sql(OPEN_EPISODES, opened).column(0)[0].as_py():
            yield (
                f"episodes of {name!r} open for more than a day", str(open_long),
                "call buffer.end_episode(episode_id), or pass terminated=True with the last "
                "step; an open episode is not sampled as a whole episode or in a group",
            )  # fmt: skip


def _token_versions(buffer: Any) -> Iterator[Finding]:
    """Report steps whose policy version differs from that of their tokens.

    Writes reject such steps, but earlier versions of expdb stored them.
    """
    field = buffer._store.fields.types.get("versions")
    if field is None or not field.ascending:
        return
    positions: list[int] = []
    with suppress(errors.DatabaseDamaged):  # `expdb check` reports it
        after = max(-1, buffer.added - NEWEST_STEPS - 1)
        for batch in buffer.scan(after=after, fields=("versions", "policy_version", "position")):
            known = batch.get("has_policy_version", np.ones(batch.size, np.bool_))
            for tokens, version, is_known, position in zip(
                batch["versions"], batch["policy_version"], known, batch["position"], strict=True
            ):
                if tokens is not None and len(tokens) and not (is_known and version == tokens[0]):
                    positions.append(int(position))
    if positions:
        yield finding(
            f"policy versions of {buffer.name!r}",
            f"{len(positions)} of the newest {NEWEST_STEPS:,} steps, for example the step at "
            f"position {positions[0]}, have another policy_version than their first token",
            True,
            "max_staleness uses policy_version; exclude or delete these steps",
        )


def _step_numbers(db: Any, name: str) -> Iterator[Finding]:
    """Report episodes with missing or repeated step numbers, which trajectories depend on."""
    gaps, repeats, example = (
        column[0].as_py() for column in db.sql(NUMBERS, {"buffer": name}).columns
    )
    if gaps or repeats:
        yield finding(
            f"step numbers of {name!r}",
            f"{gaps} trajectories lack step numbers and {repeats} repeat step numbers, for example "
            f"in episode {example!r}; trajectories end at missing numbers unless the unit has "
            "gaps='join'",
        )


def _copies(db: Any, buffer: Any) -> Iterator[Finding]:
    original = catalog.source_of_copy(buffer.name)
    if original is not None:
        yield (
            f"unfinished copy of {original!r}", f"{len(buffer)} steps in {buffer.name!r}",
            f"run `expdb copy SOURCE {db.location} --buffer {shlex.quote(original)}` "
            "again to resume it, or remove it with "
            f"`expdb drop {db.location} {shlex.quote(buffer.name)}`",
        )  # fmt: skip


def _workers(name: str, workers: list[dict[str, Any]], silent: list[str]) -> Finding:
    """Return the number of workers in each state, with advice if some are silent."""
    counts = Counter(f"{worker['state']} {worker['role']}" for worker in workers)
    return finding(
        f"workers of {name!r}",
        ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items()),
        bool(silent),
        f"no report for over a minute from {', '.join(silent[:3])}; check whether these "
        "processes are idle, suspended or unreachable",
    )


def _pins(db: Any, buffer: Any) -> Iterator[Finding]:
    figures = buffer.stats()
    if figures["pinned"] is not None:
        kept = f"{figures['steps']} steps; steps from position {figures['pinned']} on are kept"
        yield finding(
            f"pinned in {buffer.name!r}",
            f"{kept} for leases",
            figures["capacity"] is not None and figures["steps"] > figures["capacity"],
            "the buffer exceeds its capacity; acknowledge or release the leases that `expdb "
            f"leases {db.location} {shlex.quote(buffer.name)} --status leased` shows",
        )
