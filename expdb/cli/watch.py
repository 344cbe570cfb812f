"""Commands that watch a database in use: tail, actors, consumers, leases and metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

import expdb
from expdb.cli.main import as_json, for_terminal, verb
from expdb.cli.printing import as_json_text, cell, print_table, write_rows
from expdb.cli.stopping import watch_for_stop
from expdb.text.conditions import condition_of

FOLLOW_SECONDS = 0.5
FIRST_WINDOW = 1_024  # positions that `tail` searches first for the newest steps
COLUMNS = (
    "position", "episode_id", "step", "agent_id", "reward", "terminated", "truncated", "tags",
)  # fmt: skip


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@click.argument("conditions", nargs=-1)
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(0),
              help="Number of stored steps to print first.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Print new steps until you stop the command.")
@click.option("--field", "fields", multiple=True, help="Also print this field (repeatable).")
@as_json
def tail(
    location: str,
    buffer: str | None,
    conditions: Sequence[str],
    lines: int,
    follow: bool,
    fields: Sequence[str],
    as_json: bool,
) -> None:
    """Print the newest steps of a buffer, one per line, and with -f every new step.

    Conditions have the same syntax as in `expdb query`. BUFFER is optional if the database has only
    one buffer. With --json, each line is a JSON object. Stop the command with Ctrl-C or SIGTERM.

    Example: expdb tail runs.db train "reward > 0" -f
    """
    condition = condition_of(conditions, ())
    names = [*COLUMNS, *fields]
    with expdb.open(location, create=False, read_only=True) as db, watch_for_stop() as is_stopped:
        chosen = only_buffer(db, location, buffer)
        newest = chosen.added - 1
        for row in _newest(chosen, condition, names, lines, newest):
            if is_stopped():
                break
            _print_step(row, fields, as_json)
        while follow and not is_stopped():
            for batch in chosen.scan(condition, after=newest, fields=names):
                for row in batch.to_list() if not is_stopped() else ():
                    newest = row["position"]
                    _print_step(row, fields, as_json)
            time.sleep(FOLLOW_SECONDS)


def _newest(
    buffer: expdb.ReplayBuffer, condition: Any, names: Sequence[str], count: int, last: int
) -> list[dict[str, Any]]:
    """Return the newest matching steps at or before `last`; search a growing range of positions."""
    window = max(FIRST_WINDOW, count)
    while count:
        rows = [
            row
            for batch in buffer.scan(condition, after=max(-1, last - window), fields=names)
            for row in batch.to_list()
            if row["position"] <= last
        ]
        if len(rows) >= count or window > last:
            return rows[-count:]
        window *= 8
    return []


def _print_step(row: dict[str, Any], fields: Sequence[str], as_json: bool) -> None:
    if as_json:
        click.echo(as_json_text({name: row.get(name) for name in (*COLUMNS, *fields)}))
        return
    reward = "" if row["reward"] is None else f"reward {row['reward']:g}"
    parts = [
        str(row["position"]), cell(row["episode_id"]), f"step {row['step']}",
        cell(row["agent_id"]), reward, *[end for end in ("terminated", "truncated") if row[end]],
        cell(row["tags"]) if row["tags"] else "",
        *[f"{name} {cell(row.get(name))}" for name in fields],
    ]  # fmt: skip
    click.echo("  ".join(part for part in parts if part))


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@click.option(
    "--role",
    type=click.Choice(["actor", "learner", "judge"]),
    help="Show only workers with this role.",
)
@click.option("--all", "all_", is_flag=True, help="Also show workers that have ended or died.")
@as_json
def actors(location: str, buffer: str | None, role: str | None, all_: bool, as_json: bool) -> None:
    """Show the actors, learners and judges of a buffer.

    A handle registers one second after it first opens the buffer, with its next write, sample,
    lease, acknowledgement or score, and reports about every ten seconds. The state is active,
    waiting, silent (no report for a minute), ended, or died (the process ended without closing its
    handle). Without BUFFER, the command shows all buffers.

    Example: expdb actors runs.db --role learner
    """
    with expdb.open(location, create=False, read_only=True) as db:
        rows = [
            {"buffer": name, **worker}
            for name in _buffers(db, buffer)
            for worker in db.buffer(name, create=False).workers().to_pylist()
            if role in (None, worker["role"]) and (all_ or worker["state"] not in ("ended", "died"))
        ]
    if not as_json:
        rows = [_worker_row(row) for row in rows]
    print_table(rows, as_json)


def _worker_row(worker: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a worker that the table shows."""
    counter = {"actor": "steps", "learner": "batches_sampled", "judge": "scores"}.get(
        worker["role"], "steps"
    )
    if counter == "batches_sampled" and worker["counts"].get("leases"):
        counter = "leases"
    noun = counter.split("_")[0]
    is_live = worker["state"] in ("active", "waiting")
    return {
        "buffer": worker["buffer"],
        "role": worker["role"],
        "state": worker["state"],
        "process": worker["process"],
        "run": worker["run"],
        "done": f"{worker['counts'].get(counter) or 0:,.0f} {noun}",
        "rate": f"{worker['rates'].get(counter) or 0:,.1f}/s" if is_live else None,
        "report": f"{max(0.0, time.time() - worker['active']):.0f} s ago",
        "waits for": worker["waits_for"],
    }


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@as_json
def consumers(location: str, buffer: str | None, as_json: bool) -> None:
    """Show the consumers of a buffer with their settings and progress.

    `steps_behind` is the number of steps that are newer than every step of the latest lease.
    Without BUFFER, the command shows all buffers.

    Example: expdb consumers runs.db train
    """
    with expdb.open(location, create=False, read_only=True) as db:
        rows = [
            _consumer_row(chosen, consumer)
            for chosen in (db.buffer(name, create=False) for name in _buffers(db, buffer))
            for consumer in chosen.consumers()
        ]
    print_table(rows, as_json)


def _consumer_row(buffer: expdb.ReplayBuffer, name: str) -> dict[str, Any]:
    stats = buffer.consumer(name).stats()
    newest = buffer.leases(name, limit=1).to_pylist()
    behind = buffer.added - 1 - newest[0]["last_position"] if newest else None
    return {"buffer": buffer.name, "consumer": stats.pop("name"), **stats, "steps_behind": behind}


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@click.option("--consumer", help="Show only the leases of this consumer.")
@click.option("--status", type=click.Choice(["leased", "acknowledged", "released", "expired"]),
              help="Show only leases with this status.")  # fmt: skip
@click.option("--limit", "--newest", default=20, show_default=True, type=click.IntRange(1),
              help="Maximum number of leases.")  # fmt: skip
@as_json
def leases(
    location: str,
    buffer: str | None,
    consumer: str | None,
    status: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the newest leases of a buffer, oldest first.

    BUFFER is optional if the database has only one buffer. To see the history of one step, use
    `expdb why`.

    Example: expdb leases runs.db train --consumer learner --status leased
    """
    with expdb.open(location, create=False, read_only=True) as db:
        chosen = only_buffer(db, location, buffer)
        rows = chosen.leases(consumer, status=status, limit=limit).to_pylist()
    if not as_json:
        rows = [_lease_row(row) for row in rows]
    print_table(rows, as_json)


def _lease_row(lease: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a lease that the table shows."""
    shown = ("consumer", "lease", "status", "items", "trainer_step", "policy_version", "process")
    return {
        **{name: lease[name] for name in shown},
        "leased": _utc(lease["leased_at"]),
        "ended": None if lease["ended_at"] is None else _utc(lease["ended_at"]),
        "positions": f"{lease['first_position']} to {lease['last_position']}",
    }


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
HISTORY = (
    "time", "steps_per_second", "items_per_second", "mean_return", "mean_length", "steps",
    "actors", "waiting_actors", "learners", "waiting_learners", "policy_version",
)  # fmt: skip


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@click.option("--last", metavar="DURATION",
              help="Show the measurements of the past DURATION, such as 10m or 2h.")  # fmt: skip
@click.option(
    "--csv",
    is_flag=True,
    help="Print all metrics as CSV; without --last, only of the newest measurement.",
)
@click.option(
    "--prometheus", is_flag=True, help="Print the newest measurements as Prometheus text."
)
@as_json
def metrics(
    location: str,
    buffer: str | None,
    last: str | None,
    csv: bool,
    prometheus: bool,
    as_json: bool,
) -> None:
    """Show the newest metrics of a buffer, or their history.

    While processes use a buffer, one of them measures it about every ten seconds. BUFFER is
    optional if the database has only one buffer. --prometheus shows all buffers.

    Example: expdb metrics runs.db train --last 2h
    """
    if csv + prometheus + as_json > 1:
        raise click.UsageError("--csv, --prometheus and --json cannot be combined; pass only one")
    if prometheus and (buffer is not None or last is not None):
        raise click.UsageError(
            "--prometheus shows the newest measurements of all buffers; remove BUFFER and --last"
        )
    with expdb.open(location, create=False, read_only=True) as db:
        if prometheus:
            from expdb.text.prometheus import prometheus_text

            return click.echo(prometheus_text(db), nl=False)
        chosen = only_buffer(db, location, buffer)
        if last is None:
            table = chosen.metrics(limit=1)
        else:
            table = chosen.metrics(time.time() - _seconds(last))
    if not table.num_rows:
        click.echo(
            f"Warning: buffer {chosen.name!r} has no measurements; a handle measures a buffer that "
            "it has used for more than one second",
            err=True,
        )
    if csv:
        return write_rows(table, "-", "csv")
    if as_json:
        return print_table(table.to_pylist(), True)
    print_table(list(_history(table) if last else _metric_rows(table)), False)


def _metric_rows(table: Any) -> Iterator[dict[str, Any]]:
    """Yield one row per metric of the last measurement."""
    for name, value in table.to_pylist()[0].items() if table.num_rows else ():
        if value is not None:
            shown = _utc(value) if name == "time" else f"{value:,.6g}"
            yield {"metric": name, "value": shown}


def _history(table: Any) -> Iterator[dict[str, Any]]:
    """Yield one row per measurement with its most important metrics."""
    for row in table.to_pylist():
        shown = {name: row.get(name) for name in HISTORY}
        yield {
            name: _utc(value) if name == "time" else None if value is None else f"{value:,.4g}"
            for name, value in shown.items()
        }


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise click.BadParameter(
            f"expected a duration such as 30s, 10m, 2h or 1d, got {text!r}", param_hint="--last"
        )
    return float(match[1]) * UNITS[match[2]]


def _buffers(db: expdb.ExperienceDB, name: str | None) -> list[str]:
    """Return the name of a buffer if it exists, or the names of all buffers."""
    return db.buffers() if name is None else [db.buffer(name, create=False).name]


def only_buffer(db: expdb.ExperienceDB, location: str, name: str | None) -> expdb.ReplayBuffer:
    """Return the named buffer; without a name, return the only buffer."""
    names = db.buffers()
    if name is not None and not re.search(r"[=<>~]", name):
        return db.buffer(name, create=False)
    if name is None and len(names) != 1:
        raise click.UsageError(
            for_terminal(
                f"{location} has several buffers; pass --buffer with one of {', '.join(names)}"
            )
            if names
            else f"{location} has no buffer; store steps first"
        )
    if name is not None and name not in names:
        raise click.UsageError(
            for_terminal(
                f"no buffer {name!r} in {location}, only {', '.join(names) or 'none'}; pass the "
                "buffer before the conditions"
            )
        )
    return db.buffer(name or names[0])
