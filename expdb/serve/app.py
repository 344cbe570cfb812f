"""The web application: its routes, its handles and its errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import expdb
from expdb.serve.guard import Access, Guard
from expdb.serve.live import events
from expdb.serve.pages import FOLDER, show, show_error, source_of
from expdb.serve.source import Source
from expdb.serve.views import episode, episodes, group, labels, ledger, overview, sql
from expdb.text.prometheus import prometheus_text


class CachedStaticFiles(StaticFiles):
    """Static files that browsers may cache for one hour."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        """Return a file with a `Cache-Control` header."""
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["cache-control"] = "private, max-age=3600"
        return response


def metrics(request: Request) -> Response:
    """Return the newest measurements as Prometheus text."""
    text = prometheus_text(source_of(request).db)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


async def not_found(request: Request, _: Exception) -> Response:
    """Return a page for an unknown address."""
    return show(
        request, "error.html", 404, title="Not found", buffer=None,
        message=f"unknown page {request.url.path}", back=None,
    )  # fmt: skip


async def failed(request: Request, error: Exception) -> Response:
    """Return a page for an error of expdb."""
    return await asyncio.to_thread(show_error, request, error)


ROUTES = [
    Route("/", overview.list_buffers),
    Route("/metrics", metrics),
    Route("/sql", sql.sql),
    Route("/sql.csv", sql.export_csv),
    Route("/sql.parquet", sql.export_parquet),
    Route("/b/{buffer}", overview.overview),
    Route("/b/{buffer}/events", events),
    Route("/b/{buffer}/history.json", overview.history),
    Route("/b/{buffer}/episodes", episodes.episodes),
    Route("/b/{buffer}/facets", episodes.facets),
    Route("/b/{buffer}/e/{episode:path}/series.json", episode.series),
    Route("/b/{buffer}/e/{episode:path}/draws", episode.draws),
    Route("/b/{buffer}/e/{episode:path}/label", labels.label, methods=["POST"]),
    Route("/b/{buffer}/e/{episode:path}", episode.episode),
    Route("/b/{buffer}/group", group.group),
    Route("/b/{buffer}/ledger", ledger.ledger),
    Route("/b/{buffer}/ledger/{consumer}/{lease:int}", ledger.lease),
    Route("/b/{buffer}/random", ledger.random_transcripts),
    Route("/b/{buffer}/p/{position:int}", ledger.step),
    Route("/b/{buffer}/p/{position:int}/tokens.json", episode.tokens),
    Route("/b/{buffer}/p/{position:int}/picture/{field}", episode.picture),
    Route("/b/{buffer}/p/{position:int}/text/{field}", episode.text),
    Mount("/static", CachedStaticFiles(directory=FOLDER / "static"), name="static"),
]


def create_app(location: str, access: Access | None = None) -> Guard:
    """Return the ASGI application that serves the pages of a database.

    Raise DatabaseMissing if the database does not exist, or another error of `expdb.open`.
    """
    access = access or Access()
    source = Source(location, access.write)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(source.close)

    app = Starlette(
        routes=ROUTES,
        exception_handlers={404: not_found, expdb.ExpDBError: failed},
        lifespan=lifespan,
    )
    app.state.source, app.state.pollers = source, {}
    # As Starlette middleware, it would not add headers to internal errors.
    return Guard(app, access)
