"""Commands that sample steps and record scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

import expdb
from expdb.cli.main import as_json, verb
from expdb.cli.printing import counted, print_table
from expdb.cli.progress import progress
from expdb.text.conditions import condition_of, value_of

SAMPLERS = ("uniform", "prioritized", "newest")


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("size", type=click.IntRange(1))
@click.argument("conditions", nargs=-1)
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    default="uniform",
    show_default=True,
    help="How steps are drawn.",
)
@click.option(
    "--over",
    type=click.Choice(["step", "episode", "task"]),
    default="step",
    show_default=True,
    help="Unit of uniform sampling; only with --sampler uniform.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the random numbers.")
@click.option("--field", "fields", multiple=True, help="Print only this field (repeatable).")
@as_json
def sample(
    location: str,
    buffer: str,
    size: int,
    conditions: Sequence[str],
    sampler: str,
    over: Any,
    seed: int | None,
    fields: Sequence[str],
    as_json: bool,
) -> None:
    """Draw SIZE steps at random, as a learner would, and print them.

    A step may be drawn more than once. Conditions have the same syntax as in `expdb query`. The
    command creates no leases and does not count toward the rate limiter.

    Example: expdb sample runs.db train 5 "reward < 0" --seed 7
    """
    if over != "step" and sampler != "uniform":
        raise click.UsageError(f"--over {over} requires --sampler uniform; remove one of the two")
    samplers: dict[str, Any] = {
        "uniform": expdb.Uniform(over=over),
        "prioritized": expdb.Prioritized(),
        "newest": expdb.Newest(size),
    }
    condition = condition_of(conditions, ())
    with expdb.open(location, create=False, read_only=True) as db, progress("sample"):
        chosen = db.buffer(buffer, create=False)
        shown = fields or ("episode_id", "step", "reward", *chosen.stats()["fields"])
        names = ["position", *shown]
        batch = chosen.sample(size, condition, sampler=samplers[sampler], fields=names, seed=seed)
    print_table(batch.to_list(), as_json)


@verb
@click.argument("location")
@click.argument("buffer")
@click.argument("conditions", nargs=-1)
@click.argument("assignment", metavar="NAME=VALUE")
@click.option("--episode", "episode_id", help="Score this episode instead of matching steps.")
@click.option("--by", help="Judge that gives the score, such as judge-v2.")
@click.option("--detail", help="More information about the score, as a JSON object.")
@as_json
def score(
    location: str,
    buffer: str,
    conditions: Sequence[str],
    assignment: str,
    episode_id: str | None,
    by: str | None,
    detail: str | None,
    as_json: bool,
) -> None:
    """Record a score of an episode, or of each step that meets all conditions.

    VALUE is a number. Conditions have the same syntax as in `expdb query`. Earlier scores of the
    same name remain in the history, and queries use the latest one as `scores.NAME`.

    Example: expdb score runs.db train --episode refund-7/attempt-1 judge=0.7 --by reviewer
    """
    name, equals, text = (part.strip() for part in assignment.partition("="))
    value = value_of(text) if text else None
    if not equals or isinstance(value, bool) or not isinstance(value, (int, float)):
        raise click.BadParameter(
            f"expected NAME=VALUE with a number, such as judge=0.7, got {assignment!r}"
        )
    condition = condition_of(conditions, ())
    if (condition is None) == (episode_id is None):
        raise click.UsageError(
            "expected either conditions or --episode; pass, for example, --episode "
            "refund-7/attempt-1"
        )
    with expdb.open(location, create=False) as db:
        count = db.buffer(buffer, create=False).score(
            condition, name=name, value=value, episode_id=episode_id, by=by,
            detail=_detail_of(detail),
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"scores": count}))
    else:
        click.echo(f"{counted(count, 'score')} recorded")


def _detail_of(text: str | None) -> Any:
    if text is None:
        return None
    try:
        detail = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--detail is not valid JSON ({error})") from None
    if not isinstance(detail, dict):
        raise click.BadParameter(f"--detail must be a JSON object, got {text!r}")
    return detail
