"""The overview: the state of workers and consumers, and the history of the metrics."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

import expdb
from expdb.serve import render
from expdb.serve.pages import buffer_of, buffer_url, integer, show, source_of

NEWEST_EPISODES = 8
MAX_CONSUMERS = 20
PERIODS = {"10 min": 600, "1 h": 3_600, "6 h": 21_600, "1 d": 86_400, "30 d": 2_592_000}
ENDED_STATES = ("ended", "died")  # of workers that no longer use the buffer
# The plots: title, and the metrics in it.
PLOTS = (
    ("Steps per second", ("steps_per_second",)),
    ("Items leased per second", ("items_per_second",)),
    ("Mean return", ("mean_return",)),
    ("Mean episode length", ("mean_length",)),
    ("Waiting", ("waiting_actors", "waiting_learners")),
    ("Tokens per second", ("tokens_per_second",)),
    ("Groups", ("groups_open", "groups_without_return", "groups_with_returns", "groups_leased")),
    ("Steps stored", ("steps",)),
    ("Policy version", ("policy_version",)),
)


def list_buffers(request: Request) -> Response:
    """Show the buffers, or the only buffer."""
    source = source_of(request)
    names = source.db.buffers()
    if len(names) == 1:
        return RedirectResponse(buffer_url(names[0]), 303)
    buffers = [{"name": name, "added": source.buffer(name).added} for name in names]
    return show(request, "buffers.html", buffers=buffers, buffer=None, title="Buffers")


def overview(request: Request) -> Response:
    """Show the state of a buffer."""
    buffer = buffer_of(request)
    workers = buffer.workers().to_pylist()
    newest = buffer.metrics(limit=1).to_pylist()
    metrics = newest[0] if newest else {}
    measured = time.time() - metrics["time"] if metrics else None
    newest_step = metrics.get("newest_step_seconds")
    return show(
        request,
        "overview.html",
        title="Overview",
        buffer=buffer.name,
        findings=list(describe_work(workers, buffer.waiting().to_pylist())),
        workers=[row for row in workers if row["state"] not in ENDED_STATES],
        metrics=metrics,
        measured=measured,
        newest_step=None if newest_step is None or measured is None else newest_step + measured,
        consumers=consumers_of(buffer, metrics),
        episodes=buffer.episodes(limit=NEWEST_EPISODES).to_pylist()[::-1],
        policy_version=buffer.policy_version,
        added=buffer.added,
        size=len(buffer),
        capacity=buffer.capacity,
        periods=PERIODS,
        now=time.time(),
    )


def describe_work(
    workers: list[dict[str, Any]], waiting: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return sentences about the learners and the actors, each with the state that it reports."""
    sentences = []
    for role in ("learner", "actor"):
        own = [row for row in workers if row["role"] == role]
        live = [row for row in own if row["state"] not in ENDED_STATES]
        silent = [row for row in live if row["state"] == "silent"]
        blocked = [row for row in live if row["state"] == "waiting"]
        if not live:
            last = f"; the last one {own[0]['state']} {_ago(own[0]['active'])}" if own else ""
            sentences.append(("silent", f"No {role} is running{last}."))
            continue
        if blocked:
            longest = max((row["seconds"] for row in waiting if row["role"] == role), default=None)
            since = "" if longest is None else f" (longest wait so far: {render.duration(longest)})"
            reasons = " / ".join(sorted({_without_advice(row["waits_for"]) for row in blocked}))
            who = _subject(len(blocked), len(live), role)
            sentences.append(("waiting", f"{who} waiting{since}; reason: {reasons}."))
        elif len(silent) < len(live):
            who = _subject(len(live) - len(silent), len(live), role)
            sentences.append(("active", f"{who} active."))
        if silent:
            who = _subject(len(silent), len(live), role)
            last = _ago(max(row["active"] for row in silent))
            sentences.append(("silent", f"{who} silent; the last report was {last}."))
    return sentences


def _subject(count: int, total: int, role: str) -> str:
    """Return a subject with its verb, such as "1 of 3 actors is"."""
    if total == 1:
        return f"The {role} is"
    if count == total:
        return f"The {total} {role}s are"
    return f"{count} of {total} {role}s {'is' if count == 1 else 'are'}"


def _without_advice(reason: str) -> str:
    """Return a reason without the advice after its last semicolon, which is for programs."""
    return reason.rpartition("; ")[0] or reason


def _ago(seconds: float) -> str:
    return f"{render.duration(max(0.0, time.time() - seconds))} ago"


def consumers_of(buffer: expdb.ReplayBuffer, metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the consumers with their progress."""
    rows = []
    for name in buffer.consumers()[:MAX_CONSUMERS]:
        stats = buffer.consumer(name).stats()
        leases = buffer.leases(name, limit=1).to_pylist()
        newest = leases[0] if leases else None
        rows.append(
            {
                "name": name,
                "lease": newest,
                "last_step": stats["last_trainer_step"],
                "acknowledged": stats["acknowledged"],
                "behind": None if newest is None else buffer.added - 1 - newest["last_position"],
                "staleness": metrics.get(f"consumers.{name}.staleness"),
            }
        )
    return rows


def history(request: Request) -> Response:
    """Return the history of the metrics that the overview draws, as JSON."""
    buffer = buffer_of(request)
    seconds = integer(request, "seconds", 3_600)
    table = buffer.metrics(time.time() - min(seconds or 3_600, 31 * 86_400))
    columns = {name: table[name].to_pylist() for name in table.column_names}
    plots = [
        {
            "title": title,
            "series": [
                {"name": name, "values": render.plain(columns[name])}
                for name in names
                if any(value is not None for value in columns.get(name, ()))
            ],
        }
        for title, names in PLOTS
    ]
    drawn = [plot for plot in plots if plot["series"]]
    return JSONResponse({"time": columns.get("time", []), "plots": drawn})
