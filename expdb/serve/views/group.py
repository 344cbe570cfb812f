"""The rollouts of one prompt side by side."""

import statistics
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import expdb
from expdb.serve import search, transcript
from expdb.serve.pages import buffer_of, show, source_of

MAX_ROLLOUTS = 16
COMPARED_STEPS = 25  # first steps of each rollout that are compared


def group(request: Request) -> Response:
    """Show the newest rollouts of a group, or of a task if the URL names no group."""
    source, buffer = source_of(request), buffer_of(request)
    task = request.query_params.get("task", "")
    group_id = request.query_params.get("group")
    where = expdb.QueryBuilder().eq("task_id", task)
    where = where if group_id is None else where.and_().eq("group_id", group_id)
    is_rollout = expdb.QueryBuilder().is_null("relation").or_().in_("relation", transcript.FORKS)
    result = search.find_episodes(buffer, where.and_().nested(is_rollout), limit=MAX_ROLLOUTS)
    rows = result.rows[::-1]
    steps = transcript.read_beginnings(source, buffer, rows, COMPARED_STEPS)
    long = [row["episode_id"] for row in rows if row["length"] > COMPARED_STEPS]
    last = source.positions(buffer.name, long, "step >= length - 2")
    ends = transcript.read_positions(source, buffer, last)
    rollouts = [
        _rollout(row, steps.get(row["episode_id"], []), ends.get(row["episode_id"])) for row in rows
    ]
    returns = [row["episode_return"] for row in result.rows if row["episode_return"] is not None]
    return show(
        request, "group.html", title=f"Group {group_id or task}", buffer=buffer.name, task=task,
        group_id=group_id, rollouts=rollouts, result=result, limit=MAX_ROLLOUTS,
        mean=sum(returns) / len(returns) if returns else None,
        spread=statistics.pstdev(returns) if returns else None,
        compared=COMPARED_STEPS,
        first_difference=first_difference([rollout["steps"] for rollout in rollouts]),
    )  # fmt: skip


def _rollout(
    row: dict[str, Any], steps: list[transcript.Step], ending: list[transcript.Step] | None
) -> dict[str, Any]:
    """Return the values of a rollout for the page; `ending` is the end of a long rollout."""
    ending = steps if ending is None else ending
    if row["relation"] in transcript.FORKS:  # the shared steps have the scores of the parent
        ending = [step for step in ending if step.number >= row["parent_step"]]
    scores = next((step.columns["scores"] for step in ending[::-1] if step.columns["scores"]), None)
    calls = sum(part.kind == "call" for step in steps for part in step.parts)
    errors = sum(part.is_error for step in steps for part in step.parts)
    return {
        "row": row, "steps": steps, "last": transcript.last_text(ending), "scores": scores,
        "calls": calls, "errors": errors,
    }  # fmt: skip


def first_difference(rollouts: list[list[transcript.Step]]) -> int | None:
    """Return the number of the first step at which rollouts differ, or None if none does.

    A rollout that has ended differs from one that continues. A rollout without its first steps is
    compared from its first stored step on. Tokens are not compared.
    """
    by_number: list[dict[int, list[Any]]] = [{} for _ in rollouts]
    for contents, steps in zip(by_number, rollouts, strict=True):
        for step in steps:
            contents.setdefault(step.number, []).append(_content(step))
    for number in sorted({number for contents in by_number for number in contents}):
        begun = [contents for contents in by_number if contents and min(contents) <= number]
        if any(contents.get(number) != begun[0].get(number) for contents in begun):
            return number
    return None


def _content(step: transcript.Step) -> tuple[Any, ...]:
    return tuple((part.kind, part.title, part.text) for part in step.parts), tuple(step.values)
