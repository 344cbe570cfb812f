"""Notify open pages of changes to the database with server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

import expdb
from expdb.serve.pages import buffer_of, source_of
from expdb.serve.source import Source

POLL_SECONDS = 0.4
HEARTBEAT_SECONDS = 15.0  # proxies close connections without traffic


class ChangePoller:
    """Poll one buffer for changes, once for all open pages."""

    def __init__(self, source: Source, buffer: str):
        self._source, self._buffer = source, buffer
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._pages = 0
        self._is_stopped = False
        self.state: tuple[Any, ...] = ()

    async def watch(self) -> AsyncIterator[tuple[Any, ...] | None]:
        """Yield the current state, then each new state; yield None if none comes in time."""
        self._pages += 1
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        try:
            seen: tuple[Any, ...] = ()
            while not self._is_stopped:
                if self.state != seen:
                    seen = self.state
                    yield seen
                    continue
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS), self._changed:
                        while self.state == seen and not self._is_stopped:
                            await self._changed.wait()
                except TimeoutError:
                    yield None
        finally:
            self._pages -= 1
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None

    async def stop(self) -> None:
        """End all streams, because the server stops."""
        self._is_stopped = True
        async with self._changed:
            self._changed.notify_all()

    async def _poll(self) -> None:
        while True:
            try:
                state = await asyncio.to_thread(self._source.change_numbers, self._buffer)
            except expdb.ExpDBError:  # the pages themselves show the error
                state = ()
            if state != self.state:
                async with self._changed:
                    self.state = state
                    self._changed.notify_all()
            await asyncio.sleep(POLL_SECONDS)


async def events(request: Request) -> StreamingResponse:
    """Send an event after each change of the buffer."""
    name = (await asyncio.to_thread(buffer_of, request)).name
    pollers: dict[str, ChangePoller] = request.app.state.pollers
    poller = pollers.setdefault(name, ChangePoller(source_of(request), name))

    async def stream() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        async for state in poller.watch():
            yield ": nothing new\n\n" if state is None else f"data: {json.dumps(state)}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")
