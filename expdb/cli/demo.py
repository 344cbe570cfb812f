"""The command demo: train a CartPole agent, then query its stored experience."""

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
    help="Time limit of the training in seconds.",
)
@as_json
def demo(path: str, seconds: float, as_json: bool) -> None:
    """Train a CartPole agent, then query its stored experience.

    If you run the command again, the new agent first trains on the stored steps. Training stops
    after --seconds, or after 60 episodes if the mean return of the last 20 episodes is at least
    350. A run always has at least 20 episodes and 10,000 updates, even if they take longer.

    The exit status is 1 if the agent did not learn. The agent learned if the mean return of its
    last 20 episodes is at least 3 times that of the first 20 episodes in the file.

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
    click.echo("\nReturns of the episodes in this run:")
    click.echo("\n".join(curve))
    with expdb.open(figures["file"], create=False) as db:
        buffer = db.buffer("cartpole")
        click.echo(f"\nSQL query:\n{textwrap.indent(QUESTION, '  ')}")
        print_rows(db.sql(QUESTION).to_pylist())
        good = (
            expdb.QueryBuilder()
            .eq("task_name", "CartPole-v1")
            .and_()
            .gte("episode_return", figures["last"])
        )
        click.echo(
            f"\nThe query episode_return >= {figures['last']} matches {buffer.count(good)} steps "
            f"in {len(buffer.tasks(good))} tasks"
        )
        tasks = buffer.sample_tasks(
            min(2, len(buffer.tasks(good))),
            good,
            fields=("step", "obs", "action", "reward"),
            seed=0,
        )
        click.echo("A sample of these tasks:")
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
    verdict = "The agent learned" if figures["learned"] else "The agent did NOT learn"
    file, stored = figures["file"], f"{figures['stored']:,}"
    if figures["stored_at_start"]:
        if figures["learned"] and figures["last"] <= figures["first"]:
            verdict = "The agent kept what it had learned before"
        return (
            f"\n{verdict}: the mean return was {figures['first_ever']} in the first 20 episodes of "
            f"{file}, {figures['first']} in the first 20 episodes of this run and "
            f"{figures['last']} in the last 20 episodes of this run.\n{file} contained "
            f"{figures['stored_at_start']:,} steps at the start and now contains {stored} steps."
        )
    return (
        f"\n{verdict}: the mean return was {figures['first']} in the first 20 episodes and "
        f"{figures['last']} in the last 20 episodes.\n{file} contains {stored} steps. Run the demo "
        "again to continue with these steps."
    )
