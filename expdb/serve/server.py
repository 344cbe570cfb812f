"""The HTTP server of the pages."""

import socket
from typing import Any

import uvicorn

from expdb.serve.guard import Guard
from expdb.serve.live import ChangePoller


class PageServer(uvicorn.Server):
    """A server that ends the streams of events when it stops, instead of waiting for them."""

    def __init__(self, app: Guard):
        super().__init__(
            uvicorn.Config(
                app, log_level="warning", proxy_headers=False, server_header=False, ws="none",
                timeout_graceful_shutdown=5,
            )
        )  # fmt: skip
        self._app = app.app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections."""
        pollers: dict[Any, ChangePoller] = self._app.state.pollers
        for poller in pollers.values():
            await poller.stop()
        await super().shutdown(sockets)
