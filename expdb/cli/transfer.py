"""Commands that read and write files of other programs: import and export."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import expdb
from expdb.cli.data import WHERE
from expdb.cli.main import as_json, for_terminal, verb
from expdb.cli.printing import counted, create_file, plain
from expdb.cli.progress import progress
from expdb.text.conditions import condition_of

MOST_SHOWN = 20  # refused records that are printed one by one
LONGEST = 60  # characters of a value in a plan


def _names_of(mapped: Sequence[str], option: str) -> dict[str, str]:
    """Return the mapping that options such as --map task_id=question describe."""
    names = {}
    for text in mapped:
        name, equals, key = text.partition("=")
        if not equals or not name or not key:
            raise click.BadParameter(f"expected {option} NAME=KEY, got {text!r}")
        names[name] = key
    return names


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.option(
    "--format",
    "format",
    type=click.Choice(["chat", "steps", "atif", "otlp", "verifiers", "harbor", "minari", "expdb"]),
    help="Format of the records; by default, the first record decides.",
)
@click.option(
    "--map",
    "mapped",
    multiple=True,
    metavar="NAME=KEY",
    help="Read the column or field NAME from the key KEY of the records (repeatable).",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the episodes of records that have changed since their first import.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the first rollout of the files, and store nothing."
)
@as_json
def import_(
    location: str,
    buffer: str,
    sources: Sequence[str],
    format: str | None,
    mapped: Sequence[str],
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Store the rollouts in files as episodes of a buffer, each exactly once.

    SOURCES are files or folders. JSONL, JSON, CSV, Arrow and Parquet files may contain one
    conversation per record (`messages`) or one step per record (`episode_id`). Parquet files of
    `expdb export` and of archives become the same episodes again.

    A record that was imported before is skipped, so you can run an interrupted import again. If
    records cannot be imported, the others are stored and the exit status is 1.

    Example: expdb import runs.db train chats.jsonl --map task_id=question_id
    """
    from expdb import formats

    rollouts = formats.read(*sources, format=format, names=_names_of(mapped, "--map"))
    if dry_run:
        return _show_plan(rollouts, as_json)
    started = time.monotonic()
    first = next(rollouts, None)  # raises before a database is created
    if first is None:
        raise click.ClickException(f"{', '.join(sources)}: no record was found; name other files")
    rollouts = itertools.chain([first], rollouts)
    with expdb.open(location) as db, progress("import") as state:

        def show(report: formats.ImportReport) -> None:
            done = report.episodes + report.known
            rate = done / max(time.monotonic() - started, 1e-3)
            state.label = f"import: {counted(done, 'record')}, {rate:,.0f} per second"

        report = formats.import_rollouts(
            db.buffer(buffer), rollouts, replace=replace, progress=show
        )
    for reason in report.refused[:MOST_SHOWN]:
        click.echo(f"Refused: {for_terminal(reason)}", err=True)
    if len(report.refused) > MOST_SHOWN:
        click.echo(f"Refused: {len(report.refused) - MOST_SHOWN:,} more", err=True)
    if as_json:
        click.echo(json.dumps(vars(report)))
    else:
        done = f"{counted(report.episodes, 'episode')} with {counted(report.steps, 'step')} stored"
        replaced = f" ({report.replaced:,} replaced)" if report.replaced else ""
        click.echo(
            f"{done}{replaced}, {report.known:,} imported before, {len(report.refused):,} refused"
        )
    if report.refused:
        raise SystemExit(1)


def _show_plan(rollouts: Any, as_json: bool) -> None:
    """Print the first rollout, and what cannot be read before it."""
    from expdb import formats

    for item in itertools.islice(rollouts, MOST_SHOWN):
        if isinstance(item, formats.Unreadable):
            click.echo(f"Refused: {for_terminal(f'{item.source}: {item.reason}')}", err=True)
            continue
        first = {"source": item.source, "record": item.record, "episode": item.episode}
        step = item.first_step
        first |= {"steps": item.length, "first_step": step}
        first |= {"final": item.final, "scores": item.scores}
        if as_json:
            return click.echo(json.dumps(first, default=plain))
        click.echo(f"the first record, {item.source}, would become this episode:")
        for name, value in item.episode.items():
            click.echo(f"  {name}: {_short(value)}")
        for title, values in (("first", step), ("last", item.last_step)):
            if title == "first" or item.length > 1:
                click.echo(f"  {title} of {counted(item.length, 'step')}:")
                for name, value in values.items():
                    click.echo(f"    {name}: {_short(value)}")
        for name, value in (item.final or {}).items():
            click.echo(f"  final observation {name}: {_short(value)}")
        return click.echo("nothing was stored; run the command without --dry-run")
    raise click.ClickException("no record can be imported; correct the files or the mapping")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=plain)
    text = for_terminal(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


ENDINGS = {".parquet": "parquet", ".pq": "parquet"}


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("target", type=click.Path(dir_okay=False, allow_dash=True))
@click.argument("conditions", nargs=-1)
@WHERE
@click.option(
    "--format",
    "format",
    type=click.Choice(["parquet", "chat", "pairs", "atif", "dataset", "minari"]),
    help="parquet: one row per step. chat: one conversation per line, for fine-tuning. pairs: one "
    "preference pair per line, for DPO. atif: one trajectory per line of a .jsonl file, or per "
    "file of a new folder. dataset, minari: a new folder for Hugging Face datasets or Minari. "
    "Default: parquet for names that end in .parquet or .pq.",
)
@click.option("--score", help="With pairs: the score to compare instead of the return.")
@click.option("--margin", type=float, default=0.0, help="With pairs: the smallest difference.")
@click.option(
    "--split",
    metavar="train:SHARE|test:SHARE",
    help="Write one part of the episodes, chosen by a hash of the task. Not with parquet.",
)
@click.option(
    "--map",
    "mapped",
    multiple=True,
    metavar="PART=FIELD",
    help="With chat, pairs and dataset: the field that holds messages, action or tools.",
)
@click.option(
    "--lineage",
    is_flag=True,
    help="Also write the steps that matching forks and retries share with their parents, each "
    "step once.",
)
@click.option(
    "--timestamps",
    is_flag=True,
    help="Write started, ended and execute_time as UTC timestamps instead of Unix seconds.",
)
@as_json
def export(
    location: str,
    buffer: str,
    target: str,
    conditions: Sequence[str],
    where: Sequence[str],
    format: str | None,
    score: str | None,
    margin: float,
    split: str | None,
    mapped: Sequence[str],
    lineage: bool,
    timestamps: bool,
    as_json: bool,
) -> None:
    """Write steps to a Parquet file, or episodes in a format that trainers read.

    A Parquet file has one row per step that meets all conditions. The other formats contain the
    episodes that have such a step. Without conditions, all steps or episodes are written.
    Conditions have the same syntax as in `expdb query`. If TARGET is -, expdb writes Parquet to
    stdout.

    Example: expdb export runs.db train hard.parquet "tags.difficulty = hard"
    """
    condition = condition_of(conditions, where)
    format = format or ("parquet" if target == "-" else ENDINGS.get(Path(target).suffix.lower()))
    if format is None and Path(target).suffix.lower() == ".jsonl":
        raise click.UsageError(
            f"{target} can hold conversations, preference pairs or ATIF; pass --format chat, "
            "--format pairs or --format atif"
        )
    if format in (None, "parquet"):
        if score is not None or margin or split is not None or mapped:
            raise click.UsageError(
                "--score, --margin, --split and --map do not apply to Parquet files; remove them, "
                "or pass another --format"
            )
        options: dict[str, Any] = {"lineage": lineage, "timestamps": timestamps}
    elif lineage or timestamps:
        raise click.UsageError("--lineage and --timestamps apply to Parquet files; remove them")
    else:
        options = {"split": split}
        if format not in ("atif", "minari"):
            options["names"] = _names_of(mapped, "--map")
        elif mapped:
            raise click.UsageError(f"--map does not apply to --format {format}; remove it")
        if format == "pairs":
            options |= {"score": score, "margin": margin}
        elif score is not None or margin:
            raise click.UsageError("--score and --margin apply to --format pairs; remove them")
    if target == "-" and format not in (None, "parquet"):
        raise click.UsageError("only Parquet can be written to stdout; name a file")
    if target == "-":
        with create_file(target) as draft:
            _export(location, buffer, draft, condition, "parquet", **options)
        return
    count = _export(location, buffer, target, condition, format or "parquet", **options)
    noun = {
        "chat": "conversation",
        "pairs": "pair",
        "atif": "document",
        "dataset": "row",
        "minari": "episode",
    }.get(format or "", "step")
    if not count:
        what = "step matches" if noun == "step" else f"{noun} was found"
        click.echo(f"Warning: no {what}; the file has no rows", err=True)
    size = sum(
        path.stat().st_size for path in (Path(target), *Path(target).rglob("*")) if path.is_file()
    )
    click.echo(
        json.dumps({"target": target, f"{noun}s": count, "bytes": size})
        if as_json
        else f"{target}: {counted(count, noun)}, {counted(size, 'byte')}"
    )


def _export(
    location: str, buffer: str, path: str, condition: Any, format: str, **options: Any
) -> int:
    from expdb import formats
    from expdb.export import export as write_parquet

    write: Any = {
        "chat": formats.write_chat, "pairs": formats.write_pairs, "atif": formats.write_atif,
        "dataset": formats.write_dataset, "minari": formats.write_minari,
    }.get(format)  # fmt: skip
    with expdb.open(location, create=False, read_only=True) as db:
        chosen, total = db.buffer(buffer, create=False), None
        if write is None:
            write = write_parquet
            total = None if options["lineage"] else chosen.count(condition)
        with progress("export", total) as state:
            count: int = write(chosen, path, condition, progress=state.add, **options)
        return count
