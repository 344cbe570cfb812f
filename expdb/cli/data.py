"""Verbs that show data: demo, info, sql, query, show, export, plot."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import expdb
from expdb import export as parquet
from expdb import plot as pictures
from expdb import show as conversation
from expdb.cli.conditions import condition_of, value_of
from expdb.cli.main import as_json, verb
from expdb.cli.printing import plain, print_rows, print_table


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
        print_rows(db.sql(question).to_pylist())
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
        print_rows(
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
        print_rows(
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
    """Run one reading SQL statement; the view is `experience`, one row per step.

    Example: expdb sql runs.db "SELECT task_name, avg(reward) FROM experience GROUP BY 1"
    """
    given = {}
    for param in params:
        name, equals, value = param.partition("=")
        if not equals:
            raise click.BadParameter(f"{param!r}: write --param name=value")
        given[name] = value_of(value)
    with expdb.open(location, create=False, read_only=True) as db:
        rows = db.sql(query, given).to_pylist()
    print_table(rows, as_json)


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
    condition = condition_of(conditions, where)
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
    print_table(rows, as_json)


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
        return click.echo(json.dumps({**row, "buffer": chosen.name, "steps": rows}, default=plain))
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
    condition = condition_of(conditions, where)
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
            chosen, by, where=condition_of(conditions, None), smooth=smooth
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
