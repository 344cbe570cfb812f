"""The overview: who works, who waits and why, and how the buffer develops."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

import expdb
from expdb.serve import render
from expdb.serve.pages import buffer_of, buffer_url, integer, show, source_of

NEWEST_EPISODES = 8
PERIODS = {"10 min": 600, "1 h": 3_600, "6 h": 21_600, "1 d": 86_400, "30 d": 2_592_000}
OVER = ("ended", "died")  # states of workers whose process does not use the buffer any more
# The plots: title, and the metrics in it.
PLOTS = (
    ("Steps per second", ("steps_per_second",)),
    ("Items leased per second", ("items_per_second",)),
    ("Mean return", ("mean_return",)),
    ("Mean episode length", ("mean_length",)),
    ("Waiting", ("waiting_actors", "waiting_learners")),
    ("Tokens per second", ("tokens_per_second",)),
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
    workers = buffer.workers()
    newest = buffer.metrics(newest=1).to_pylist()
    metrics = newest[0] if newest else {}
    leases = buffer.leases(newest=1).to_pylist()
    return show(
        request,
        "overview.html",
        title="Overview",
        buffer=buffer.name,
        findings=list(describe_work(workers, buffer.waiting())),
        workers=[row for row in workers if row["state"] not in OVER],
        metrics=metrics,
        measured=time.time() - metrics["time"] if metrics else None,
        consumers=consumers_of(buffer, metrics),
        episodes=buffer.episodes(newest=NEWEST_EPISODES).to_pylist()[::-1],
        lease=leases[0] if leases else None,
        policy_version=buffer.policy_version,
        added=buffer.added,
        capacity=buffer.capacity,
        periods=PERIODS,
        plots=[title for title, _ in PLOTS],
        now=time.time(),
    )


def describe_work(
    workers: list[dict[str, Any]], waiting: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return sentences about the learners and the actors, each with the state that it reports."""
    sentences = []
    for role, idle in (("learner", "idle"), ("actor", "held")):
        own = [row for row in workers if row["role"] == role]
        live = [row for row in own if row["state"] not in OVER]
        silent = [row for row in live if row["state"] == "silent"]
        held = [row for row in live if row["state"] == "waiting"]
        if not live:
            last = f"; the last one {own[0]['state']} {_ago(own[0]['active'])}" if own else ""
            sentences.append(("silent", f"No {role} is running{last}."))
            continue
        if held:
            longest = max((row["seconds"] for row in waiting if row["role"] == role), default=None)
            since = "" if longest is None else f" for {render.duration(longest)}"
            reasons = ", ".join(sorted({row["waits_for"] for row in held}))
            if len(held) == 1:
                who = f"The {role} is" if len(live) == 1 else f"1 of {len(live)} {role}s is"
                waits = "it waits"
            else:
                who = f"{len(held)} of {len(live)} {role}s are"
                who = f"All {len(held)} {role}s are" if len(held) == len(live) else who
                waits = "they wait"
            sentences.append(("waiting", f"{who} {idle}{since}: {waits} for {reasons}."))
        elif len(silent) < len(live):
            count = len(live) - len(silent)
            sentences.append(
                ("active", f"{count} {role}{' is' if count == 1 else 's are'} active.")
            )
        if silent:
            last = _ago(max(row["active"] for row in silent))
            verb = "is" if len(silent) == 1 else "are"
            who = f"The {role}" if len(live) == 1 else f"{len(silent)} of {len(live)} {role}s"
            sentences.append(("silent", f"{who} {verb} silent; the last report came {last}."))
    return sentences


def _ago(seconds: float) -> str:
    return f"{render.duration(max(0.0, time.time() - seconds))} ago"


def consumers_of(buffer: expdb.ReplayBuffer, metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the consumers with the newest measurements of their progress."""
    rows = []
    for name in buffer.consumers():
        leases = buffer.leases(name, newest=1).to_pylist()
        newest = leases[0] if leases else None
        rows.append(
            {
                "name": name,
                "lease": newest,
                "behind": None if newest is None else buffer.added - 1 - newest["last_position"],
                "staleness": metrics.get(f"consumers.{name}.staleness"),
                "acknowledged": metrics.get(f"consumers.{name}.acknowledged"),
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
