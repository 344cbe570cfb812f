"""The command demo: train a CartPole agent, and query the stored experience."""

import json
import sys
import textwrap
from typing import Any

import click

import expdb
from expdb.cli.main import as_json, verb
from expdb.cli.printing import print_rows

QUESTION = """\
SELECT run, count(*) AS episodes, sum(length) AS steps, avg(episode_return) AS mean_return
FROM experience_episodes
WHERE buffer = 'cartpole'
GROUP BY run
ORDER BY min(started)"""


@verb
@click.option(
    "--file", "path", default="demo.db", show_default=True, help="Database file for the experience."
)
@click.option(
    "--seconds",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Training time in seconds.",
)
@as_json
def demo(path: str, seconds: float, as_json: bool) -> None:
    """Train a CartPole agent from a database, then query the stored experience.

    Run it twice: the second run continues from the stored steps. It trains for about --seconds, or
    longer until there are 20 episodes and 10,000 updates. The exit status is 1 if the mean return
    of the last 20 episodes is below 3 times that of the first 20 episodes in the file.

    Example: expdb demo --file demo.db
    """
    import expdb.cli.demo_agent as learner

    say = (lambda _: None) if as_json else click.echo
    figures = learner.run(path, seconds=seconds, say=say)
    if as_json:
        click.echo(json.dumps(figures))
    else:
        _show_demo(figures, learner.curve(figures["returns"]))
    sys.exit(0 if figures["learned"] else 1)


def _show_demo(figures: dict[str, Any], curve: list[str]) -> None:
    click.echo("\nReturn by episode, this run:")
    click.echo("\n".join(curve))
    with expdb.open(figures["file"], create=False) as db:
        buffer = db.buffer("cartpole")
        click.echo(f"\nA question in SQL:\n{textwrap.indent(QUESTION, '  ')}")
        print_rows(db.sql(QUESTION).to_pylist())
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
    click.echo(_outcome(figures))


def _outcome(figures: dict[str, Any]) -> str:
    verdict = "It learned" if figures["learned"] else "It did NOT learn"
    file, stored = figures["file"], f"{figures['stored']:,}"
    if figures["stored_at_start"]:
        return (
            f"\n{verdict}: the mean return was {figures['first_ever']} in the first 20 episodes of "
            f"{file}, {figures['first']} in the first 20 of this run and {figures['last']} in its "
            f"last 20.\n{file} held {figures['stored_at_start']:,} steps at the start and holds "
            f"{stored} now."
        )
    return (
        f"\n{verdict}: the mean return was {figures['first']} in the first 20 episodes and "
        f"{figures['last']} in the last 20.\n{file} holds {stored} steps. Run the demo again to "
        "continue from them."
    )
