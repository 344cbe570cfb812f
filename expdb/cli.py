"""The command line: one function a verb. Open, call the library, print.

Every verb is named after the method it calls, takes `--json` where a machine might read, and ends
its help in an example. Errors are one line, with the cure, and exit status 1.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import expdb
from expdb import export as parquet
from expdb import plot as pictures
from expdb import show as conversation


class _Group(click.Group):
    """Show an expdb error as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except expdb.ExpDBError as error:
            raise click.ClickException(str(error)) from None
        except FileExistsError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(expdb.__version__, prog_name="expdb")
def main() -> None:
    """expdb: the experience database for reinforcement-learning and LLM agents."""


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def verb(function: Callable[..., Any]) -> click.Command:
    """Make a command of a function.

    Its name without the underscore, its docstring as it is laid out.
    """
    if function.__doc__:
        function.__doc__ = function.__doc__.replace("\n    Example:", "\n    \b\n    Example:")
    return main.command(function.__name__.rstrip("_"))(function)


@verb
@click.option(
    "--file", "path", default="demo.db", show_default=True, help="Where the experience is kept."
)
@click.option(
    "--seconds",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0),
    help="How long to learn.",
)
@as_json
def demo(path: str, seconds: float, as_json: bool) -> None:
    """Learn CartPole from a database, and show what can be asked of it.

    Run it twice: the second time it goes on from what is stored. Exits 1 if it did not learn: if
    the mean return of the last 20 episodes is below 3 times that of the first 20 ever stored. Where
    too little was played to tell, it says so.

    Example: expdb demo --file demo.db
    """
    from expdb import demo as learner

    say = (lambda _: None) if as_json else click.echo
    figures = learner.run(path, seconds=seconds, say=say)
    if as_json:
        click.echo(json.dumps(figures))
    else:
        _show_demo(figures, learner.curve(figures["returns"]))
    sys.exit(1 if figures["learned"] is False else 0)


def _show_demo(figures: dict[str, Any], curve: list[str]) -> None:
    click.echo("\nReturn by episode, this run:")
    click.echo("\n".join(curve))
    question = (
        "SELECT run, count(*) AS episodes, sum(length) AS steps, round(CAST(avg(episode_return) AS "
        "numeric), 1) AS mean_return "
        "FROM experience_episodes WHERE buffer = 'cartpole' GROUP BY run ORDER BY min(started)"
    )
    with expdb.open(figures["file"], create=False) as db:
        buffer = db.buffer("cartpole")
        click.echo(f"\nA question in SQL:\n  {question}")
        _print_rows(db.sql(question).to_pylist())
        good = (
            expdb.QueryBuilder()
            .eq("task_name", "CartPole-v1")
            .and_()
            .gte("episode_return", figures["last"])
        )
        click.echo(
            f"\nA query, episode_return >= {figures['last']}: {buffer.count(good)} steps in "
            f"{len(buffer.tasks(good))} tasks"
        )
        tasks = buffer.sample_tasks(
            min(2, len(buffer.tasks(good))), good, fields=("step", "obs", "action", "reward"), rng=0
        )
        click.echo("A sample of tasks among them:")
        _print_rows(
            [
                {
                    "task": task,
                    "steps": batch.size,
                    "reward": float(batch["reward"].sum()),
                    "keys": ", ".join(batch),
                }
                for task, batch in tasks.items()
            ]
        )
    if figures["learned"] is None:
        click.echo(
            f"\nToo little was played to tell whether it learned: {figures['episodes']} episodes "
            f"and {figures['updates']:,} updates in "
            f"{figures['seconds']} seconds. Give it longer, with --seconds, or a machine that is "
            f"less busy.\n{figures['stored']} steps are stored."
        )
        return
    verdict = "learned" if figures["learned"] else "did NOT learn"
    click.echo(
        f"\nIt {verdict}: mean return {figures['first_ever']} in the first 20 episodes ever, "
        f"{figures['first']} in the first "
        f"and {figures['last']} in the last 20 of this run.\n{figures['stored_at_start']} steps "
        "were stored at the start, "
        f"{figures['stored']} are now. Run it again: it goes on from them."
    )


@verb
@click.argument("location")
@as_json
def info(location: str, as_json: bool) -> None:
    """Show the buffers of a database: counts, sizes, fields.

    Example: expdb info runs.db
    """
    with expdb.open(location, create=False, read_only=True) as db:
        stats, nbytes = [db.buffer(name).stats() for name in db.buffers()], db.nbytes
    if as_json:
        click.echo(json.dumps({"location": db.location, "bytes": nbytes, "buffers": stats}))
        return
    click.echo(f"{db.location}: {nbytes:,} bytes, {len(stats)} buffer{'s' * (len(stats) != 1)}")
    if not stats:
        click.echo(
            "Nothing was stored. If the file was copied while a program had it open, its log was "
            "left behind: make copies with `expdb backup`."
        )
    for one in stats:
        episodes = one["episodes"]
        click.echo(
            f"\n{one['name']}: {one['steps']:,} steps ({one['capacity'] or 'no'} capacity, "
            f"{one['added']:,} added), "
            f"{sum(episodes.values()):,} episodes ({episodes['open']} open, {episodes['aborted']} "
            "aborted), "
            f"{one['tasks']:,} tasks, {one['bytes']:,} bytes of payload"
        )
        _print_rows(
            [
                {
                    "field": name,
                    "type": kind,
                    "optional": "yes" if name in one["optional_fields"] else "",
                }
                for name, kind in one["fields"].items()
            ]
        )


@verb
@click.argument("location")
@click.argument("query")
@click.option(
    "--param", "params", multiple=True, metavar="NAME=VALUE", help="A value for :NAME in the query."
)
@as_json
def sql(location: str, query: str, params: Sequence[str], as_json: bool) -> None:
    """Run one reading SQL statement; the view is `experience`, one row a step.

    Example: expdb sql runs.db "SELECT task_name, avg(reward) FROM experience GROUP BY 1"
    """
    given = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals:
            raise click.BadParameter(f"{param!r}: write --param name=value")
        given[name] = _value(value)
    with expdb.open(location, create=False, read_only=True) as db:
        rows = db.sql(query, given).to_pylist()
    _print(rows, as_json)


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("conditions", nargs=-1)
@click.option("--where", help="The condition as JSON, as QueryBuilder.build() gives it.")
@click.option("--count", "what", flag_value="count", help="Print how many steps match.")
@click.option("--tasks", "what", flag_value="tasks", help="Print the tasks that match.")
@click.option("--episodes", "what", flag_value="episodes", help="Print the episodes that match.")
@click.option(
    "--page", "number", default=1, show_default=True, help="Which page of matching steps to print."
)
@click.option("--size", default=20, show_default=True, help="Steps a page.")
@as_json
def query(
    location: str,
    buffer: str,
    conditions: Sequence[str],
    where: str | None,
    what: str | None,
    number: int,
    size: int,
    as_json: bool,
) -> None:
    """Show the steps, tasks or episodes of a buffer that meet all conditions.

    A condition is NAME OP VALUE, with = != > >= < <= or ~ (like); a value that is JSON (0.5, true,
    null, "5") is taken as that.

    Example: expdb query runs.db train "task_name = book flight" "reward >= 0.5" --tasks
    """
    condition = _condition(conditions, where)
    with expdb.open(location, create=False, read_only=True) as db:
        chosen = db.buffer(buffer)
        if what == "count":
            return click.echo(chosen.count(condition))
        if what == "tasks":
            tasks = chosen.tasks(condition)
            return click.echo(json.dumps(tasks) if as_json else "\n".join(tasks))
        rows = (
            chosen.episodes(condition).to_pylist()
            if what == "episodes"
            else chosen.page(number, size, condition)
        )
    _print(rows, as_json)


@verb
@click.argument("location")
@click.argument("episode")
@click.option("--buffer", help="The buffer that it is in; then EPISODE may also be its number.")
@click.option("--full", is_flag=True, help="Print long texts and arrays whole.")
@as_json
def show(location: str, episode: str, buffer: str | None, full: bool, as_json: bool) -> None:
    """Show an episode as a conversation: messages, tool calls, rewards, and every other field.

    EPISODE is its episode_id.

    Example: expdb show runs.db refund-7/attempt-1 --full
    """
    with expdb.open(location, create=False, read_only=True) as db:
        chosen, row = conversation.find(db, episode, buffer)
        rows = conversation.steps(chosen, row)
    if as_json:
        return click.echo(json.dumps({**row, "buffer": chosen.name, "steps": rows}, default=_plain))
    for line in conversation.lines(row, rows, full):
        click.echo(line)


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("target", type=click.Path(dir_okay=False))
@click.argument("conditions", nargs=-1)
@click.option("--where", help="The condition as JSON, as QueryBuilder.build() gives it.")
@as_json
def export(
    location: str,
    buffer: str,
    target: str,
    conditions: Sequence[str],
    where: str | None,
    as_json: bool,
) -> None:
    """Write the steps that meet all conditions into a new Parquet file, one row per step.

    Conditions are as for `query`.

    Example: expdb export runs.db train hard.parquet "tags.difficulty = hard"
    """
    condition = _condition(conditions, where)
    with expdb.open(location, create=False, read_only=True) as db:
        chosen = db.buffer(buffer, create=False)
        with click.progressbar(
            length=chosen.count(condition), label=target, file=sys.stderr
        ) as bar:
            count = parquet.export(chosen, target, condition, progress=bar.update)
    size = os.path.getsize(target)
    click.echo(
        json.dumps({"target": target, "steps": count, "bytes": size})
        if as_json
        else f"{target}: {count:,} steps, {size:,} bytes"
    )


@verb
@click.argument("location")
@click.argument("buffer", required=False)
@click.argument("conditions", nargs=-1)
@click.option(
    "--by",
    type=click.Choice(["task", "run", "agent", "policy_version"]),
    default="task",
    show_default=True,
    help="What a curve is of.",
)
@click.option(
    "--smooth",
    type=click.IntRange(1),
    help="Episodes that a value is the mean of; by default a fiftieth of them.",
)
@click.option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, writable=True),
    help="Write a picture, .png, .svg or .pdf, instead of drawing here.",
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
    """Draw returns, lengths and rewards of the complete episodes of a buffer.

    Of those with a step that meets all conditions.

    BUFFER may be left out where there is only one. Needs the extra `plot`.

    Example: expdb plot runs.db train --by run --to curves.png
    """
    with expdb.open(location, create=False, read_only=True) as db:
        names = db.buffers()
        if buffer is None and len(names) != 1:
            raise click.UsageError(
                f"name a buffer: there are {', '.join(names)}"
                if names
                else f"{location} has no buffer: nothing was stored yet"
            )
        if buffer is not None and buffer not in names:
            raise click.UsageError(
                f"no buffer {buffer!r} in {location}: there are {', '.join(names) or 'none'}; name "
                "it before the conditions"
            )
        chosen = db.buffer(buffer or names[0])
        found, count = pictures.curves(
            chosen, by, where=_condition(conditions, None), smooth=smooth
        )
    if target is not None and found:
        try:
            pictures.save(pictures.draw(found, f"{chosen.name}, by {by}"), Path(target))
        except OSError as error:
            raise click.ClickException(
                f"{target} cannot be written: {error.strerror or error}"
            ) from None
    if as_json:
        return click.echo(json.dumps([
            {"name": one.name, "steps": one.steps.tolist(),
                **{panel: [None if v != v else v for v in values.tolist()] for panel,
                    values in one.values.items()}}
            for one in found
        ]))  # fmt: skip
    if not found:
        if target is not None:
            raise click.ClickException(f"no complete episode to draw: {target} was not written")
        return click.echo("no complete episode to draw")
    if target is not None:
        click.echo(f"{target}: {len(found)} curve{'s' * (len(found) != 1)}")
    else:
        for picture in pictures.characters(
            found, min(100, shutil.get_terminal_size((100, 30)).columns)
        ):
            click.echo(picture)
    if count > len(found):
        click.echo(f"the {len(found)} with the most episodes, of {count}")


@verb
@click.argument("location")
@as_json
def check(location: str, as_json: bool) -> None:
    """Prove that a database is sound: books, rows, chunks and their checksums.

    Exits 1 if it is not.

    Example: expdb check runs.db
    """
    with expdb.open(location, create=False, read_only=True) as db:
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
    """Show what a database stands on.

    Library or server, log, locks and who holds them, file system, room.

    Changes nothing, and waits for nobody. Exits 1 if there is anything to be done.

    Example: expdb doctor runs.db
    """
    with expdb.open(location, create=False, read_only=True) as db:
        found = db.doctor()
    if as_json:
        click.echo(json.dumps(found))
    else:
        width = max(len(one["what"]) for one in found)
        for one in found:
            click.echo(f"{one['what']:<{width}}  {one['found']}")
            if one["advice"]:
                click.echo(f"{'':<{width}}  ! {one['advice']}")
    sys.exit(1 if any(one["advice"] for one in found) else 0)


@verb
@click.argument("location")
@as_json
def upgrade(location: str, as_json: bool) -> None:
    """Bring a database of an older expdb to this one's schema, in one transaction.

    Example: expdb upgrade runs.db
    """
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
@click.argument("target")
@as_json
def backup(location: str, target: str, as_json: bool) -> None:
    """Copy a database, while others may write to it, into a new file.

    Example: expdb backup runs.db runs-monday.db
    """
    with expdb.open(location, create=False, read_only=True) as db:
        db.backup(target)
    size = os.path.getsize(target)
    click.echo(
        json.dumps({"target": target, "bytes": size}) if as_json else f"{target}: {size:,} bytes"
    )


@verb
@click.argument("source")
@click.argument("target")
@click.option("--buffer", help="Copy only this one.")
@as_json
def copy(source: str, target: str, buffer: str | None, as_json: bool) -> None:
    """Copy buffers into another database: from a file to a server, from a server to a file.

    Positions, episodes and chunks stay as they are. Interrupted, it goes on where it was when it is
    run again.

    Example: expdb copy runs.db postgresql://trainer@db.example/experience --buffer train
    """
    bars: dict[str, Any] = {}

    def progress(name: str, done: int, total: int) -> None:
        if name not in bars:
            bars[name] = click.progressbar(length=total, label=name, file=sys.stderr)
            bars[name].render_progress()
        bars[name].update(done - bars[name].pos)
        if done == total:
            bars[name].render_finish()

    copied = expdb.copy(source, target, buffer=buffer, progress=progress)
    if as_json:
        click.echo(json.dumps(copied))
    else:
        click.echo(
            "\n".join(f"{name}: {steps:,} steps" for name, steps in copied.items()) or "no buffers"
        )


# -- words and tables ------------------------------------------------------------------------------

_OPERATORS = {"=": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte", "~": "like"}
_NULL = {"=": "is_null", "!=": "is_not_null"}
_CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|>=|<=|=|>|<|~)\s*(.*?)\s*", re.DOTALL)


def _condition(conditions: Sequence[str], where: str | None) -> Any:
    if where is not None and conditions:
        raise click.UsageError("give conditions or --where, not both")
    if where is not None:
        try:
            return json.loads(where)
        except ValueError as error:
            raise click.BadParameter(
                f"--where is no JSON ({error}): print QueryBuilder.build() with json.dumps"
            ) from None
    built = expdb.QueryBuilder()
    for index, text in enumerate(conditions):
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise click.BadParameter(f'{text!r}: write NAME OP VALUE, such as "reward >= 0.5"')
        name, operator, value = match.groups()
        built = built.and_() if index else built
        given = value if operator == "~" else _value(value)
        if given is None and operator in _NULL:
            getattr(built, _NULL[operator])(name)
        else:
            getattr(built, _OPERATORS[operator])(name, given)
    return built if conditions else None


_PYTHON = {"True": True, "False": False, "None": None}


def _value(text: str) -> Any:
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, default=_plain))
    else:
        _print_rows(rows)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.tolist() if hasattr(value, "tolist") else str(value)


_WIDE = 8


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table: rich's where it is installed, plain columns elsewhere."""
    if not rows:
        click.echo("no rows")
        return
    names = list(rows[0])
    if len(names) > _WIDE:  # too wide for a table: one block a row, without what is not known
        for row in rows:
            click.echo(
                "\n".join(
                    f"{name:>14}  {_cell(value)}"
                    for name, value in row.items()
                    if value is not None
                )
                + "\n"
            )
        return
    cells = [[_cell(row[name]) for name in names] for row in rows]
    try:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        widths = [max(len(name), *(len(row[k]) for row in cells)) for k, name in enumerate(names)]
        for line in (names, *cells):
            click.echo(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(line, widths, strict=True)
                ).rstrip()
            )
        return
    table = Table(box=SIMPLE)
    for name in names:
        table.add_column(Text(name))
    for line in cells:
        table.add_row(
            *map(Text, line)
        )  # Text, not markup: what agents said may hold square brackets
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: Any) -> str:
    text = (
        ""
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=_plain, ensure_ascii=False)
    )
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= 80 else f"{text[:79]}…"
