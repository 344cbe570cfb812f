"""A proxy between a client and a PostgreSQL server that delays, counts and cuts messages."""

import asyncio
import threading
from typing import Any

# A client waits for a response only after these messages. It may pipeline all other messages
# (postgresql.org/docs/current/protocol-flow.html, pipelining).
LAST = (b"S\0\0\0\4", b"H\0\0\0\4")  # Sync, Flush
ALONE = (b"Q", b"\0")  # a simple query, and a startup message


class Proxy:
    """Forwards 127.0.0.1:port to the socket of a server, in a separate thread.

    `delay` is the delay in seconds in each direction. `trips` counts the round trips: complete
    requests that were followed by a response. `cut()` closes all connections. `swallow` drops the
    next response and closes the connection: the server has executed the request, but the client
    does not know. With `refuse`, which refuses new connections, it drops all responses, because
    background threads of the client also use connections. `swallow_after` is the number of the
    response to drop, counted from 1. `silent` stops forwarding.
    """

    def __init__(self, socket: str, delay: float = 0.0):
        self.socket, self.delay = socket, delay
        self.trips = 0
        self.swallow = self.refuse = self.silent = False
        self.swallow_after: int | None = None
        self.cut_after_bytes: int | None = None
        self._writers: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _accept(self, reader: Any, writer: Any) -> None:
        if self.refuse:
            writer.close()
            return
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            writer.close()
            return
        state = {"asked": False}
        pair = (writer, server_writer)
        self._writers |= set(pair)
        await asyncio.gather(
            self._pump(reader, server_writer, True, state, pair),
            self._pump(server_reader, writer, False, state, pair),
        )

    async def _pump(
        self, reader: Any, writer: Any, from_client: bool, state: dict[str, bool], pair: Any
    ) -> None:
        sent = b""
        try:
            while data := await reader.read(1 << 16):
                answers = not from_client and state["asked"]
                if from_client:
                    sent = (sent + data)[-5:]
                    state["asked"] |= sent in LAST or data[:1] in ALONE
                else:
                    state["asked"] = False
                if self.silent:
                    continue
                if from_client:
                    if self.cut_after_bytes is not None:
                        self.cut_after_bytes -= len(data)
                        if self.cut_after_bytes <= 0:
                            self.cut_after_bytes = None
                            break
                elif answers:
                    self.trips += 1
                if answers and self.swallow_after is not None:
                    self.swallow_after -= 1
                    if not self.swallow_after:
                        self.swallow_after = None
                        break
                if not from_client and self.swallow:
                    self.swallow = self.refuse
                    break
                if self.delay:
                    self._loop.call_later(self.delay, self._write, writer, data)
                else:
                    self._write(writer, data)
        finally:
            for connection in pair:
                connection.close()
                self._writers.discard(connection)

    @staticmethod
    def _write(writer: Any, data: bytes) -> None:
        if not writer.is_closing():
            writer.write(data)

    def cut(self) -> None:
        """Close all connections."""

        async def close() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._call(close())

    def url(self, url: str) -> str:
        """Return the URL of a database with this proxy as its host."""
        head, _, _ = url.partition("?")
        user, _, database = head.removeprefix("postgresql://").partition("@/")
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: Any) -> None:
        async def stop() -> None:
            self._server.close()

        self.cut()
        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
