"""What all pages share: templates, addresses and errors."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

import expdb
from expdb.serve import render
from expdb.serve.source import Source

FOLDER = Path(__file__).parent
_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    lstrip_blocks=True,
)


def buffer_url(buffer: str, page: str = "", **query: Any) -> str:
    """Return the address of a page of a buffer.

    The name is quoted twice, because the server decodes the path once before it separates its
    parts, and names may contain slashes.
    """
    path = f"/b/{quote(quote(buffer, safe=''), safe='')}"
    return with_query(f"{path}/{page}" if page else path, **query)


def episode_url(buffer: str, episode_id: str, step: int | None = None) -> str:
    """Return the address of an episode, or of one of its steps."""
    url = buffer_url(buffer, f"e/{quote(quote(episode_id, safe=''), safe='')}")
    return url if step is None else f"{url}?from={step}#step-{step}"


def lease_url(buffer: str, consumer: str, lease: int) -> str:
    """Return the address of a lease."""
    return buffer_url(buffer, f"ledger/{quote(quote(consumer, safe=''), safe='')}/{lease}")


def value_url(buffer: str, position: int, kind: str, field: str) -> str:
    """Return the address of a field of a step as a "picture" or as "text"."""
    return buffer_url(buffer, f"p/{position}/{kind}/{quote(quote(field, safe=''), safe='')}")


def group_url(buffer: str, task_id: str, group_id: str | None) -> str:
    """Return the address of the rollouts of a group; without a group, those of a task."""
    group = {} if group_id is None else {"group": group_id}
    return buffer_url(buffer, "group", task=task_id, **group)


def with_query(path: str, **query: Any) -> str:
    """Return a path with a query, without the arguments that are None or empty."""
    kept = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def condition_url(buffer: str, query: str, name: str, value: Any) -> str:
    """Return the address of the episodes that match a query and have a value in a column."""
    text = "null" if value is None else json.dumps(value, ensure_ascii=False)
    added = f"{name} = {text}"
    return buffer_url(buffer, "episodes", q=f"{query} and {added}" if query.strip() else added)


_environment.globals.update(
    buffer_url=buffer_url, episode_url=episode_url, group_url=group_url,
    condition_url=condition_url, lease_url=lease_url, value_url=value_url, with_query=with_query,
    version=expdb.__version__,
)  # fmt: skip
_environment.filters.update(
    number=render.number, nbytes=render.nbytes, duration=render.duration, time=render.time_text,
    readable=lambda text: render.readable(str(text)), value=render.value_text,
)  # fmt: skip


def source_of(request: Request) -> Source:
    """Return the database of the server."""
    source: Source = request.app.state.source
    return source


def buffer_of(request: Request) -> expdb.ReplayBuffer:
    """Return the buffer in the address; raise UnknownBuffer if there is no such buffer."""
    return source_of(request).buffer(unquote(request.path_params["buffer"]))


def integer(request: Request, name: str, default: int | None = None) -> int | None:
    """Return an integer of the query of an address; `default` if it is missing or no integer."""
    text = request.query_params.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 19 else default


def show(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page."""
    source = source_of(request)
    shared = {"location": source.location, "may_write": source.may_write, "path": request.url.path}
    html = _environment.get_template(template).render(shared | values)
    return HTMLResponse(html, status)


STATUS = (
    (expdb.UnknownBuffer, 404),
    (expdb.UnknownEpisode, 404),
    (expdb.UnknownConsumer, 404),
    (expdb.Evicted, 404),
    (expdb.QueryError, 400),
    (expdb.InvalidValue, 400),
    (expdb.SqlError, 400),
    (expdb.SqlRefused, 400),
)


def show_error(request: Request, error: Exception) -> Response:
    """Return a page for an error of expdb."""
    status = next((code for kind, code in STATUS if isinstance(error, kind)), 503)
    if request.headers.get("accept", "").startswith("text/html"):
        return show(request, "error.html", status, message=str(error), buffer=None, title="Error")
    return PlainTextResponse(f"{error}\n", status)
