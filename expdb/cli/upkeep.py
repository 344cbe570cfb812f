"""Commands that maintain a database, such as check, doctor, upgrade, backup and copy."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import click

import expdb
from expdb import errors
from expdb.cli.main import as_json, verb
from expdb.cli.printing import counted, print_table
from expdb.cli.progress import progress
from expdb.cli.stopping import watch_for_stop
from expdb.cli.watch import only_buffer
from expdb.text.conditions import condition_of


@verb
@click.argument("location")
@as_json
def check(location: str, as_json: bool) -> None:
    """Check the schema and all stored data of a database.

    expdb verifies counters, positions, episodes and the checksum of every chunk. A chunk holds the
    fields of many steps. The exit status is 1 if the command finds a problem.

    Example: expdb check runs.db
    """
    with expdb.open(location, create=False, read_only=True) as db, progress("check"):
        problems = db.check()
    if as_json:
        click.echo(json.dumps(problems))
    else:
        click.echo("\n".join(problems) or f"{db.location} is sound")
    sys.exit(1 if problems else 0)


@verb
@click.argument("location")
@as_json
def doctor(location: str, as_json: bool) -> None:
    """Report settings, locks and disk space of a database, with advice.

    The report covers the SQLite library or the server, the write-ahead log, locks and the processes
    that hold locks, the file system and free space. It also lists unfinished copies, waiting
    processes, steps pinned by leases, and episodes open for more than a day.

    The command changes nothing and takes no locks. The exit status is 1 if the report contains
    advice.

    Example: expdb doctor runs.db
    """
    with expdb.open(location, create=False, read_only=True) as db, progress("doctor"):
        findings = db.doctor()
    if as_json:
        click.echo(json.dumps(findings))
    else:
        width = max(len(finding["what"]) for finding in findings)
        for finding in findings:
            click.echo(f"{finding['what']:<{width}}  {finding['found']}")
            if finding["advice"]:
                click.echo(f"{'':<{width}}  ! {finding['advice']}")
    sys.exit(1 if any(finding["advice"] for finding in findings) else 0)


@verb
@click.argument("location")
@click.argument("position", type=int)
@click.option("--buffer", help="Buffer name; required if the database has several buffers.")
@as_json
def why(location: str, position: int, buffer: str | None, as_json: bool) -> None:
    """Show when a step was stored, leased and acknowledged.

    For each consumer that cannot lease the step now, the output states the reason. POSITION is the
    value of the column `position`.

    Example: expdb why runs.db 1234 --buffer train
    """
    with expdb.open(location, create=False, read_only=True) as db:
        name = only_buffer(db, location, None).name if buffer is None else buffer
        history = db.buffer(name, create=False).why(position)
    click.echo(json.dumps(history) if as_json else "\n".join(history))


@verb
@click.argument("location")
@as_json
def vacuum(location: str, as_json: bool) -> None:
    """Return the free space of an SQLite file to the file system.

    Run it while no other process uses the file. SQLite writes the remaining data twice, to its
    temporary folder and to the write-ahead log.

    Example: expdb vacuum runs.db
    """
    with progress("vacuum"), expdb.open(location, create=False) as db:
        path = db.location
        before = os.path.getsize(path) if os.path.exists(path) else 0
        db.vacuum()
    after = os.path.getsize(path)
    if as_json:
        click.echo(json.dumps({"before": before, "after": after}))
    else:
        click.echo(f"{path}: {before:,} bytes before, {after:,} bytes after")


@verb
@click.argument("location")
@as_json
def upgrade(location: str, as_json: bool) -> None:
    """Upgrade a database to the schema of the installed expdb version.

    The upgrade is one transaction. If it fails, the database is unchanged.

    Example: expdb upgrade runs.db
    """
    with progress("upgrade"):
        before, after = expdb.upgrade(location)
    if as_json:
        click.echo(json.dumps({"before": before, "after": after}))
    else:
        named = re.sub(
            r"(password=)[^&]*", r"\1***", re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", location)
        )
        click.echo(
            f"{named}: schema {after}"
            + (" already" if before == after else f", was {before or 'none'}")
        )


@verb
@click.argument("location")
@click.argument("buffer")
@click.option("--yes", is_flag=True, help="Delete without a confirmation prompt.")
@as_json
def drop(location: str, buffer: str, yes: bool, as_json: bool) -> None:
    """Delete a buffer with its steps, episodes and consumers.

    BUFFER can also be the name of an unfinished copy, as `expdb doctor` shows it.

    Example: expdb drop runs.db old-experiment --yes
    """
    with expdb.open(location, create=False) as db:
        steps = len(db.buffer(buffer, create=False))
        if not yes:
            click.confirm(
                f"Delete buffer {buffer!r} with {counted(steps, 'step')}?", abort=True, err=True
            )
        with progress("drop"):
            db.drop(buffer)
    click.echo(
        json.dumps({"steps": steps}) if as_json else f"{buffer}: {counted(steps, 'step')} deleted"
    )


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@click.option("--follow", is_flag=True, help="Evict every second until you stop the command.")
@click.option("--plan", is_flag=True, help="Show the steps that are due, and evict nothing.")
@as_json
def evict(location: str, buffer: str | None, follow: bool, plan: bool, as_json: bool) -> None:
    """Evict the steps that the eviction policy of a buffer selects.

    If the policy has an archive, expdb archives the steps first. Without BUFFER, the command evicts
    from all buffers.

    If the policy is `Eviction(by="archiver")`, writers do not evict or archive steps. Run one
    process with --follow instead. Stop the process with Ctrl-C or SIGTERM.

    Example: expdb evict runs.db train --plan
    """
    if plan and follow:
        raise click.UsageError("--plan and --follow cannot be combined; remove one of the two")
    if plan:
        return _print_plan(location, buffer, as_json)
    evicted: dict[str, int] = {}
    with expdb.open(location, create=False) as db:
        chosen = db.buffers() if buffer is None else [buffer]
        if all(db.buffer(name, create=False).eviction is None for name in chosen):
            missing = "no buffer has an" if buffer is None else f"buffer {buffer!r} has no"
            click.echo(f"Warning: {missing} eviction policy; set buffer.eviction", err=True)
        if follow:
            click.echo(f"evicting from {db.location} until interrupted", err=True)
        with watch_for_stop() as is_stopped:
            while not is_stopped():
                for name in _names(db, buffer, follow):
                    with nullcontext() if follow else progress(f"evict {name}"):
                        steps = _evict(db, name, follow)
                    evicted[name] = evicted.get(name, 0) + steps
                    if steps and not as_json:
                        click.echo(f"{name}: {counted(steps, 'step')} evicted")
                if not follow:
                    break
                until = time.monotonic() + FOLLOW_SECONDS
                while not is_stopped() and time.monotonic() < until:
                    time.sleep(0.05)
    if as_json:
        click.echo(json.dumps(evicted))
    elif not any(evicted.values()):
        click.echo("nothing evicted")


def _print_plan(location: str, buffer: str | None, as_json: bool) -> None:
    with expdb.open(location, create=False, read_only=True) as db, progress("plan"):
        names = db.buffers() if buffer is None else [buffer]
        rows = [
            {"buffer": name, **row}
            for name in names
            for row in db.buffer(name, create=False).plan_eviction().to_pylist()
        ]
    print_table(rows, as_json)


def _names(db: expdb.ExperienceDB, buffer: str | None, follow: bool) -> list[str]:
    try:
        return db.buffers() if buffer is None else [buffer]
    except _transient_errors() as error:
        _report(error, follow)
        return []


def _evict(db: expdb.ExperienceDB, name: str, follow: bool) -> int:
    """Evict the steps that are due and return their number."""
    try:
        return db.buffer(name, create=False).evict()
    except _transient_errors() as error:
        _report(error, follow)
        return 0


def _report(error: expdb.ExpDBError, follow: bool) -> None:
    """Print a transient error with `follow`; otherwise raise it."""
    if not follow:
        raise error
    click.echo(str(error), err=True)


def _transient_errors() -> tuple[type[expdb.ExpDBError], ...]:
    """Return the errors that a retry may resolve."""
    return errors.ArchiveFailed, errors.ConnectionLost, errors.DatabaseBusy


FOLLOW_SECONDS = 1.0


@verb
@click.argument("location")
@click.option("--actor", multiple=True, help="Role that may write, delete and sample (repeatable).")
@click.option("--reader", multiple=True, help="Role that may sample and query (repeatable).")
@as_json
def grant(location: str, actor: tuple[str, ...], reader: tuple[str, ...], as_json: bool) -> None:
    """Grant PostgreSQL roles the privileges to use a database.

    The user in LOCATION must own the schema `expdb`. Upgrades keep the privileges.

    Example: expdb grant postgresql://owner@db.example/experience --actor actor --reader analyst
    """
    if not actor and not reader:
        raise click.UsageError("expected a role, got none; pass --actor NAME or --reader NAME")
    expdb.grant(location, actors=actor, readers=reader)
    if as_json:
        return click.echo(json.dumps({"actors": actor, "readers": reader}))
    for role in actor:
        click.echo(f"{role} may write, delete and sample")
    for role in reader:
        click.echo(f"{role} may sample and query")


@verb
@click.argument("location")
@click.argument("target")
@as_json
def backup(location: str, target: str, as_json: bool) -> None:
    """Copy an SQLite database to a new file.

    Other processes may write to the database during the backup.

    Example: expdb backup runs.db runs-monday.db
    """
    with expdb.open(location, create=False, read_only=True) as db, progress("backup"):
        db.backup(target)
    size = os.path.getsize(target)
    click.echo(
        json.dumps({"target": target, "bytes": size})
        if as_json
        else f"{target}: {counted(size, 'byte')}"
    )


@verb
@click.argument("source")
@click.argument("target")
@click.option("--buffer", help="Copy only this buffer.")
@click.option("--name", help="Name of the copy; requires --buffer.")
@click.option(
    "--where", multiple=True, help='Copy only steps that meet a condition such as "reward >= 0.5".'
)
@click.option(
    "--on-conflict",
    type=click.Choice(["error", "skip_equal", "prefix"]),
    help="Add the episodes to buffers that may exist. If an episode exists: fail, skip it if it is "
    "equal, or put the name of the source before all ids.",
)
@as_json
def copy(
    source: str,
    target: str,
    buffer: str | None,
    name: str | None,
    where: Sequence[str],
    on_conflict: Any,
    as_json: bool,
) -> None:
    """Copy buffers to another database, for example from a file to a server.

    Positions, episodes and chunks are copied unchanged. With --where or --on-conflict, episodes
    with the chosen steps are copied instead, and get new positions. If the copy is interrupted, run
    the same command again to resume it.

    Example: expdb copy runs.db postgresql://trainer@db.example/experience --buffer train
    """
    condition = condition_of((), where)
    with progress("copy") as state:
        copied = expdb.copy(
            source, target, buffer=buffer, name=name, where=condition, on_conflict=on_conflict,
            progress=state.set,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(copied))
    else:
        click.echo(
            "\n".join(f"{name}: {counted(steps, 'step')}" for name, steps in copied.items())
            or "no buffers"
        )
