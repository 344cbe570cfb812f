"""The HTTP server of the pages."""

import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

from expdb.serve.live import Pulse


class PageServer(uvicorn.Server):
    """A server that ends the streams of events when it stops, instead of waiting for them."""

    def __init__(self, app: Starlette):
        super().__init__(
            uvicorn.Config(
                app, log_level="warning", proxy_headers=False, server_header=False, ws="none",
                timeout_graceful_shutdown=5,
            )
        )  # fmt: skip
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections."""
        pulses: dict[Any, Pulse] = self._app.state.pulses
        for pulse in pulses.values():
            await pulse.stop()
        await super().shutdown(sockets)
