"""Commands that show data: info, sql, query, show, tag and plot."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

import expdb
from expdb.cli.main import as_json, verb
from expdb.cli.printing import (
    ENDINGS,
    FORMATS,
    counted,
    plain,
    print_rows,
    print_table,
    write_rows,
)
from expdb.cli.progress import progress
from expdb.cli.watch import only_buffer
from expdb.text.conditions import condition_of, value_of

WHERE = click.option(
    "--where",
    multiple=True,
    help='Condition such as "reward >= 0.5", or a JSON query. '
    "If you repeat this option, all conditions must hold.",
)


@verb
@click.argument("location")
@as_json
def info(location: str, as_json: bool) -> None:
    """Show the size, counts and fields of each buffer in a database.

    Example: expdb info runs.db
    """
    with expdb.open(location, create=False, read_only=True) as db:
        stats, nbytes = [db.buffer(name).stats() for name in db.buffers()], db.nbytes
    if as_json:
        click.echo(json.dumps({"location": db.location, "bytes": nbytes, "buffers": stats}))
        return
    click.echo(f"{db.location}: {counted(nbytes, 'byte')}, {counted(len(stats), 'buffer')}")
    if not stats:
        copied = (
            " If this file was copied while a program used the original, the copy lacks the "
            "write-ahead log; make copies with `expdb backup`."
        )
        click.echo(f"The database has no buffers.{copied * os.path.exists(location)}")
    for buffer in stats:
        episodes = buffer["episodes"]
        gap = "\n" if sys.stdout.isatty() else ""
        click.echo(
            f"{gap}{buffer['name']}: {counted(buffer['steps'], 'step')} ("
            f"{buffer['capacity'] or 'no'} capacity, {buffer['added']:,} added), "
            f"{counted(sum(episodes.values()), 'episode')} ({episodes['open']} open, "
            f"{episodes['aborted']} aborted), "
            f"{counted(buffer['tasks'], 'task')}, {counted(buffer['bytes'], 'byte')} of payload"
        )
        if not buffer["fields"]:
            continue
        print_rows(
            [
                {
                    "field": name,
                    "type": kind,
                    "optional": "yes" if name in buffer["optional_fields"] else "",
                }
                for name, kind in buffer["fields"].items()
            ]
        )


@verb
@click.argument("location")
@click.argument("query")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of the parameter :NAME in the query (repeatable).",
)
@click.option(
    "--csv", "forms", multiple=True, flag_value="csv", help="Print comma-separated values."
)
@click.option("--tsv", "forms", multiple=True, flag_value="tsv", help="Print tab-separated values.")
@click.option(
    "--jsonl", "forms", multiple=True, flag_value="jsonl", help="Print one JSON object per row."
)
@click.option(
    "--to",
    "target",
    metavar="FILE",
    help="Write to a new .csv, .tsv, .jsonl or .parquet file, or to stdout if FILE is -.",
)
@click.option(
    "--timestamps",
    is_flag=True,
    help="Show started, ended and execute_time as UTC timestamps instead of Unix seconds.",
)
@as_json
def sql(
    location: str,
    query: str,
    params: Sequence[str],
    forms: Sequence[str],
    target: str | None,
    timestamps: bool,
    as_json: bool,
) -> None:
    """Run one read-only SQL query.

    The view `experience` has one row per step. The view `experience_episodes` has one row per
    episode. If QUERY is -, expdb reads the query from stdin.

    Example: expdb sql runs.db "SELECT task_name, avg(reward) FROM experience GROUP BY 1"
    """
    parameters = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals:
            raise click.BadParameter(f"{param!r} has no value; write --param name=value")
        parameters[name] = value_of(value)
    form = _format_of(forms, target, as_json)
    text = sys.stdin.read() if query == "-" else query
    with expdb.open(location, create=False, read_only=True) as db, progress("query"):
        table = db.sql(text, parameters, timestamps=timestamps)
    if form is None:
        print_table(table.to_pylist(), as_json)
    else:
        write_rows(table, target or "-", form)
        if target not in (None, "-"):
            click.echo(f"{target}: {counted(table.num_rows, 'row')}")


def _format_of(forms: Sequence[str], target: str | None, as_json: bool) -> str | None:
    """Return the output format that an option or the file name selects, or None for a table."""
    if len({*forms, *(["json"] if as_json else [])}) > 1 or (as_json and target):
        raise click.UsageError(
            "--json, --csv, --tsv and --jsonl cannot be combined, and --json cannot be combined "
            "with --to; pass only one of these options"
        )
    form = forms[0] if forms else None
    if target in (None, "-"):
        return form or ("csv" if target else None)
    named = ENDINGS.get(Path(target).suffix.lower())
    if form is not None and named not in (None, form):
        raise click.UsageError(
            f"{target} cannot be written as {form}; remove --{form} or rename the file"
        )
    if form is None and named is None:
        raise click.BadParameter(
            f"the file name must end in {', '.join(ENDINGS)}, got {target!r}; rename the file or "
            f"pass one of {', '.join(f'--{option}' for option in FORMATS)}"
        )
    return form or named


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("conditions", nargs=-1)
@WHERE
@click.option("--count", "what", flag_value="count", help="Print the number of matching steps.")
@click.option(
    "--tasks", "what", flag_value="tasks", help="Print the ids of tasks with a matching step."
)
@click.option(
    "--episodes", "what", flag_value="episodes", help="Print the episodes with a matching step."
)
@click.option(
    "--page", "number", default=1, show_default=True, type=click.IntRange(min=1),
    help="Number of the page to print.",
)  # fmt: skip
@click.option(
    "--size", default=20, show_default=True, type=click.IntRange(min=1),
    help="Steps or episodes per page.",
)  # fmt: skip
@as_json
def query(
    location: str,
    buffer: str,
    conditions: Sequence[str],
    where: Sequence[str],
    what: str | None,
    number: int,
    size: int,
    as_json: bool,
) -> None:
    """Show the steps of a buffer that meet all conditions.

    With --tasks or --episodes, show the tasks or episodes that have such a step.

    A condition has the form NAME OPERATOR VALUE. NAME is a column, or a tag such as tags.judge. The
    operators are =, !=, >, >=, <, <=, ~ or like (SQL LIKE), in (...), and is null. VALUE is a
    number, true, false, null or text; put text with spaces in quotation marks. `and`, `or` and
    parentheses join conditions.

    Example: expdb query runs.db train "task_name = 'book flight'" "reward >= 0.5" --tasks
    """
    condition = condition_of(conditions, where)
    with expdb.open(location, create=False, read_only=True) as db, progress("query"):
        chosen = only_buffer(db, location, buffer)
        if what == "count":
            return click.echo(chosen.count(condition))
        if what == "tasks":
            tasks = chosen.tasks(condition)
            return click.echo(json.dumps(tasks) if as_json else "\n".join(tasks))
        if what == "episodes":
            rows = chosen.episodes(condition).slice((number - 1) * size, size).to_pylist()
        else:
            rows = _page(chosen, condition, number, size)
    if what == "episodes" and not as_json:
        rows = [_episode_row(row) for row in rows]
    print_table(rows, as_json)


# Columns that `query` shows before the fields.
COLUMNS = (
    "position", "episode", "episode_id", "run", "task_id", "task_name", "agent_id", "group_id",
    "status", "policy_version", "first_policy_version", "last_policy_version", "step", "pre_agent",
    "execute_time", "reward", "terminated", "truncated", "tags", "scores", "policy_version_end",
)  # fmt: skip


def _page(buffer: expdb.ReplayBuffer, where: Any, number: int, size: int) -> list[dict[str, Any]]:
    """Return one page of the matching steps; the first page has number 1."""
    after, count = -1, min((number - 1) * size, 2**63 - 1)
    if count:
        earlier = next(buffer.scan(where, size=count, fields=["position"]), None)
        if earlier is None or earlier.size < count:
            return []
        after = int(earlier["position"][-1])
    names = [*COLUMNS, *buffer.stats()["fields"]]
    page = next(buffer.scan(where, after=after, size=size, fields=names), None)
    return [] if page is None else page.to_list()


def _episode_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of an episode that the table shows."""
    episode_return, started = row["episode_return"], row["started"]
    return {
        "episode_id": row["episode_id"],
        "task": row["task_name"] or row["task_id"],
        "agent": row["agent_id"],
        "status": row["status"],
        "steps": row["length"],
        "return": None if episode_return is None else float(f"{episode_return:.6g}"),
        "started": f"{datetime.fromtimestamp(started, UTC):%Y-%m-%d %H:%M:%S}",
        "run": row["run"],
    }


@verb
@click.argument("location")
@click.argument("episode", required=False)
@click.option(
    "--buffer",
    help="Search only this buffer. EPISODE can then also be a number from the column `episode`.",
)
@click.option(
    "--last", "which", multiple=True, flag_value="last", help="Show the episode that started last."
)
@click.option(
    "--worst",
    "which",
    multiple=True,
    flag_value="worst",
    help="Show the episode with the lowest return.",
)
@click.option(
    "--best",
    "which",
    multiple=True,
    flag_value="best",
    help="Show the episode with the highest return.",
)
@WHERE
@click.option("--full", is_flag=True, help="Do not shorten long texts and arrays.")
@as_json
def show(
    location: str,
    episode: str | None,
    buffer: str | None,
    which: Sequence[str],
    where: Sequence[str],
    full: bool,
    as_json: bool,
) -> None:
    """Show an episode as a conversation.

    The output contains the messages, tool calls, reward and other fields of each step.

    EPISODE is an `episode_id`. Instead of EPISODE, pass --last, --worst, --best or --where. With
    --where, expdb considers only episodes that have a matching step. --where alone shows the last
    matching episode. Episodes without a known return are never the worst or best.

    Example: expdb show runs.db --worst --where "task_name = refund"
    """
    import expdb.text.episode_text as conversation

    if (episode is None) == (not which and not where) or len(which) > 1:
        raise click.UsageError(
            "expected EPISODE, or one of --last, --worst and --best, or --where; "
            "EPISODE cannot be combined with these options"
        )
    condition = condition_of((), where)
    with expdb.open(location, create=False, read_only=True) as db, progress("query"):
        if episode is not None:
            chosen, row = conversation.find(db, episode, buffer)
        else:
            chosen, row = conversation.choose(db, which[0] if which else "last", condition, buffer)
        rows = conversation.steps(chosen, row)
    if as_json:
        return click.echo(json.dumps({**row, "buffer": chosen.name, "steps": rows}, default=plain))
    if sys.stdout.isatty():
        return click.echo_via_pager(f"{line}\n" for line in conversation.lines(row, rows, full))
    for line in conversation.lines(row, rows, full):
        if line:  # only terminals get empty lines
            click.echo(line)


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("conditions", nargs=-1)
@click.argument("assignment", metavar="KEY=VALUE")
@WHERE
@click.option(
    "--episode",
    is_flag=True,
    help="Tag the episodes of the matching steps instead of the steps.",
)
@click.option("--required", is_flag=True, help="Exit with status 1 if no step matches.")
@as_json
def tag(
    location: str,
    buffer: str,
    conditions: Sequence[str],
    assignment: str,
    where: Sequence[str],
    episode: bool,
    required: bool,
    as_json: bool,
) -> None:
    """Set one tag of each step that meets all conditions.

    Other tags do not change. Conditions have the same syntax as in `expdb query`. If VALUE is not
    valid JSON, expdb stores it as text. KEY=null removes the tag.

    Example: expdb tag runs.db train "episode_id = refund-7/attempt-1" judge=0.7
    """
    column, key, value = _tag_of(assignment, "episode_tags" if episode else "tags")
    condition = condition_of(conditions, where)
    if condition is None:
        raise click.UsageError(
            'expected a condition, got none; pass a condition such as "episode_id = a-1"'
        )
    with expdb.open(location, create=False) as db:
        chosen = db.buffer(buffer, create=False)
        named = assignment.partition("=")[0].strip()
        if named in db.sql("SELECT * FROM experience LIMIT 0").column_names:
            raise click.UsageError(
                f"{named} is a column, not a tag; end the command with the tag to set, such as "
                f"judge=0.7; to set a tag of this name, write {column}.{named}=..."
            )
        count = chosen.update(condition, required=required, **{f"{column}.{key}": value})
    if as_json:
        click.echo(json.dumps({"steps": count}))
    elif column == "tags":
        click.echo(f"{counted(count, 'step')} tagged")
    else:
        click.echo(f"the episodes of {counted(count, 'step')} tagged")


def _tag_of(assignment: str, column: str) -> tuple[str, str, Any]:
    """Return the column, the key and the value of KEY=VALUE, without the column in the key."""
    key, equals, text = (part.strip() for part in assignment.partition("="))
    if not equals or not key or re.match(r"[^=]*(\s=|=\s|[!<>]=|==)", assignment):
        raise click.BadParameter(
            f"expected KEY=VALUE without spaces around =, such as judge=0.7, got {assignment!r}"
        )
    head, dot, rest = key.partition(".")
    if dot and head == column:
        key = rest
    elif dot and head in ("tags", "episode_tags"):
        option = "remove --episode" if head == "tags" else "add --episode"
        raise click.BadParameter(f"{key} is not a tag of {column}; {option}, or rename the key")
    if not text:
        raise click.BadParameter(
            f"{assignment!r} has no value; write KEY=VALUE, or {key}=null to remove the tag"
        )
    value = value_of(text)
    if isinstance(value, str) and text[0] in "{[":
        raise click.BadParameter(
            f"{text!r} is not valid JSON; to store text, write {json.dumps(text)!r}"
        )
    return column, key, value


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@click.argument("conditions", nargs=-1)
@click.option(
    "--by",
    type=click.Choice(["task", "run", "agent", "policy_version"]),
    default="task",
    show_default=True,
    help="Draw one curve per task, run, agent or policy version.",
)
@click.option(
    "--smooth",
    type=click.IntRange(1),
    help="Episodes per moving average. Default: 1/50 of the episodes of the curve, at least 1.",
)
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, writable=True),
    help="Save the plot to a .png, .svg or .pdf file instead of printing it.",
)
@as_json
def plot(
    location: str,
    buffer: str | None,
    conditions: Sequence[str],
    by: Any,
    smooth: int | None,
    target: str | None,
    as_json: bool,
) -> None:
    """Plot the returns, lengths and rewards of complete episodes.

    With conditions, plot only episodes that have a step that meets all conditions. BUFFER is
    optional if the database has only one buffer. The command requires the extra `plot`.

    Example: expdb plot runs.db train --by run --to curves.png
    """
    from expdb import plot as pictures

    with expdb.open(location, create=False, read_only=True) as db, progress("plot"):
        chosen = only_buffer(db, location, buffer)
        curves, count = pictures.curves(
            chosen, by, where=condition_of(conditions, ()), smooth=smooth
        )
    if target is not None and curves:
        try:
            pictures.save(pictures.draw(curves, f"{chosen.name}, by {by}"), Path(target))
        except OSError as error:
            raise click.ClickException(
                f"{target} cannot be written ({error.strerror or error}); choose another path"
            ) from None
    if as_json:
        return click.echo(json.dumps([_plain_curve(curve) for curve in curves]))
    if not curves:
        if target is not None:
            raise click.ClickException(
                f"no complete episode to draw, so {target} was not written; end an episode, or "
                "use a wider condition"
            )
        return click.echo("no complete episode to draw")
    if target is not None:
        click.echo(f"{target}: {len(curves)} curve{'s' * (len(curves) != 1)}")
    else:
        for picture in pictures.characters(
            curves, min(100, shutil.get_terminal_size((100, 30)).columns)
        ):
            click.echo(picture)
    if count > len(curves):
        click.echo(f"showing the {len(curves)} of {count} curves with the most episodes")


def _plain_curve(curve: Any) -> dict[str, Any]:
    values = {
        panel: [None if value != value else value for value in values.tolist()]
        for panel, values in curve.values.items()
    }
    return {"name": curve.name, "steps": curve.steps.tolist(), **values}
