"""Templates, addresses and errors that all pages share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import anyio
import anyio.to_thread
import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

import expdb
from expdb import errors
from expdb.serve import render
from expdb.serve.source import Source

FOLDER = Path(__file__).parent
_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    lstrip_blocks=True,
)


def in_path(name: str) -> str:
    """Return a name as a part of a path.

    The name is quoted twice, because the server decodes the path once before it separates its
    parts, and names may contain slashes. Browsers would resolve `.` and `..`.
    """
    quoted = name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")
    return quote(quoted, safe="")


def buffer_url(buffer: str, page: str = "", **query: Any) -> str:
    """Return the URL of a page of a buffer."""
    path = f"/b/{in_path(buffer)}"
    return with_query(f"{path}/{page}" if page else path, **query)


def episode_url(buffer: str, episode_id: str, step: int | None = None) -> str:
    """Return the URL of an episode, or of one of its steps."""
    url = buffer_url(buffer, f"e/{in_path(episode_id)}")
    return url if step is None else f"{url}?from={step}#step-{step}"


def lease_url(buffer: str, consumer: str, lease: int) -> str:
    """Return the URL of a lease."""
    return buffer_url(buffer, f"ledger/{in_path(consumer)}/{lease}")


def value_url(buffer: str, position: int, kind: str, field: str) -> str:
    """Return the URL of a field of a step as a "picture" or as "text"."""
    return buffer_url(buffer, f"p/{position}/{kind}/{in_path(field)}")


def group_url(buffer: str, task_id: str, group_id: str | None) -> str:
    """Return the URL of the page of a group, or of a task if `group_id` is None."""
    group = {} if group_id is None else {"group": group_id}
    return buffer_url(buffer, "group", task=task_id, **group)


def with_query(path: str, **query: Any) -> str:
    """Return a path with a query, without the arguments that are None or empty."""
    kept = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def condition_url(buffer: str, query: str, name: str, value: Any) -> str:
    """Return the URL of the episodes that match a query and an equality condition."""
    text = "null" if value is None else json.dumps(value, ensure_ascii=False)
    added = f"{name} = {text}"
    return buffer_url(buffer, "episodes", q=f"{query} and {added}" if query.strip() else added)


_environment.globals.update(
    buffer_url=buffer_url, episode_url=episode_url, group_url=group_url,
    condition_url=condition_url, lease_url=lease_url, value_url=value_url, with_query=with_query,
    version=expdb.__version__,
)  # fmt: skip
_environment.filters.update(
    number=render.number, count_of=render.count_of, nbytes=render.nbytes,
    duration=render.duration, time=render.time_text, value=render.value_text,
    readable=lambda text: render.readable(str(text)),
)  # fmt: skip


def source_of(request: Request) -> Source:
    """Return the database of the server."""
    source: Source = request.app.state.source
    return source


async def in_few_threads(
    request: Request, name: str, most: int, work: Callable[..., Response], *arguments: Any
) -> Response:
    """Return the response of `work(*arguments)`, which at most `most` threads run at once.

    `name` names the attribute of the application that keeps the limit.
    """
    state = request.app.state
    if not hasattr(state, name):
        setattr(state, name, anyio.CapacityLimiter(most))
    return await anyio.to_thread.run_sync(work, *arguments, limiter=getattr(state, name))


def buffer_of(request: Request) -> expdb.ReplayBuffer:
    """Return the buffer in the address; raise UnknownBuffer if there is no such buffer."""
    return source_of(request).buffer(unquote(request.path_params["buffer"]))


def integer(request: Request, name: str, default: int | None = None) -> int | None:
    """Return an integer from the query string, or `default` if it is missing or invalid."""
    text = request.query_params.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 19 else default


def show(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page."""
    source = source_of(request)
    shared = {"location": source.location, "may_write": source.may_write}
    html = _environment.get_template(template).render(shared | values)
    return HTMLResponse(html, status)


STATUS = (
    (errors.UnknownBuffer, 404),
    (errors.UnknownEpisode, 404),
    (errors.UnknownConsumer, 404),
    (errors.Evicted, 404),
    (expdb.QueryError, 400),
    (expdb.InvalidValue, 400),
    (errors.SqlError, 400),
    (errors.SqlRefused, 400),
)


def show_error(request: Request, error: Exception) -> Response:
    """Return a page for an error of expdb."""
    status = next((code for kind, code in STATUS if isinstance(error, kind)), 503)
    if request.headers.get("accept", "").startswith("text/html"):
        path = request.url.path
        message = str(error).replace(
            "close this handle and open the database again", "restart `expdb serve`"
        )
        back = path.removesuffix("/label") if path.endswith("/label") else None
        return show(
            request, "error.html", status, title="Error", buffer=None, message=message, back=back
        )
    return PlainTextResponse(f"{error}\n", status)
