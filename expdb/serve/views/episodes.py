"""The table of episodes, with a query, a text search and facets."""

from collections import defaultdict
from typing import Any

import click
from starlette.requests import Request
from starlette.responses import Response

import expdb
from expdb.serve import search
from expdb.serve.pages import buffer_of, buffer_url, integer, show, source_of
from expdb.text.conditions import parse_query

PER_PAGE = 50
FACET_EPISODES = 10_000  # the newest matching episodes that the facets count
FACET_SECONDS = 0.6  # time limit; the page is complete within a second
FACET_VALUES = 12
FACETS = ("status", "run", "agent_id", "policy_version")
EXAMPLES = (
    "episode_return < 0.5", 'status = "open"', 'task_id = "t1" and length > 10', "reward > 0",
    "episode_tags.checked = true", "scores.quality < 0.3",
)  # fmt: skip


def query_of(text: str) -> expdb.QueryBuilder | None:
    """Return the query of the text box, or None if it is empty; raise QueryError if invalid."""
    try:
        return parse_query(text) if text.strip() else None
    except click.ClickException as error:
        raise expdb.QueryError(error.message) from None


def episodes(request: Request) -> Response:
    """Show the newest episodes that match."""
    buffer = buffer_of(request)
    query = request.query_params.get("q", "")
    text = request.query_params.get("text", "")
    before = integer(request, "before")
    message, status = None, 200
    result = search.SearchResult([], 0, True)
    try:
        result = _find(request, buffer, query, text, before, PER_PAGE)
    except expdb.QueryError as error:
        message, status = str(error), 400
    return show(
        request,
        "episodes.html",
        status,
        title="Episodes",
        buffer=buffer.name,
        query=query,
        text=text,
        result=result,
        message=message,
        examples=EXAMPLES,
        older=result.next_before
        and buffer_url(buffer.name, "episodes", q=query, text=text, before=result.next_before),
        newest=before and buffer_url(buffer.name, "episodes", q=query, text=text),
        per_page=PER_PAGE,
    )


def _find(
    request: Request,
    buffer: expdb.ReplayBuffer,
    query: str,
    text: str,
    before: int | None,
    limit: int,
    seconds: float = search.SEARCH_SECONDS,
) -> search.SearchResult:
    text = text.strip()
    keep = search.contains_text(source_of(request), buffer, text) if text else None
    return search.find_episodes(
        buffer, query_of(query), before=before, limit=limit, seconds=seconds, keep=keep
    )


def facets(request: Request) -> Response:
    """Show the values of the newest matching episodes with their counts, and the worst tasks."""
    buffer = buffer_of(request)
    query = request.query_params.get("q", "")
    result = _find(request, buffer, query, "", None, FACET_EPISODES, FACET_SECONDS)
    counts = {name: _count(result.rows, name) for name in FACETS}
    tasks = _tasks(result.rows)
    return show(
        request, "facets.html", title="Facets", buffer=buffer.name, query=query, result=result,
        facets={name: values for name, values in counts.items() if len(values) > 1},
        tasks=tasks[:FACET_VALUES], tasks_count=len(tasks), limit=FACET_EPISODES,
    )  # fmt: skip


def _count(rows: search.Rows, name: str) -> list[tuple[Any, int]]:
    """Return the most frequent values of a column with their counts."""
    counts: dict[Any, int] = defaultdict(int)
    for row in rows:
        counts[row[name]] += 1
    return sorted(counts.items(), key=lambda item: -item[1])[:FACET_VALUES]


def _tasks(rows: search.Rows) -> list[dict[str, Any]]:
    """Return the tasks with their mean return, the worst one first."""
    returns: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row["task_id"]] += 1
        if row["status"] == "complete" and row["episode_return"] is not None:
            returns[row["task_id"]].append(row["episode_return"])
    tasks = [
        {
            "task_id": task,
            "count": count,
            "mean_return": sum(returns[task]) / len(returns[task]) if returns[task] else None,
        }
        for task, count in counts.items()
    ]
    return sorted(
        tasks, key=lambda task: (task["mean_return"] is None, task["mean_return"], task["task_id"])
    )
