"""The command that serves the pages of a database."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import suppress

import click

from expdb.cli.main import as_json, for_terminal, verb

INSTALL = "the pages need more packages; run pip install 'expdb[serve]'"


@verb
@click.argument("location")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535),
              help="Port to listen on; 0 for any free port.")  # fmt: skip
@click.option("--write", is_flag=True, help="Allow scores and tags; requires a token.")
@click.option("--token", envvar="EXPDB_TOKEN",
              help="Secret that requests must send; --write creates one.")  # fmt: skip
@click.option("--user-header", metavar="NAME",
              help="Header with the user's name, which an authenticating proxy sets.")  # fmt: skip
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME",
              help="Host name under which browsers open the pages (repeatable).")  # fmt: skip
@as_json
def serve(
    location: str,
    host: str,
    port: int,
    write: bool,
    token: str | None,
    user_header: str | None,
    hosts: Sequence[str],
    as_json: bool,
) -> None:
    """Serve web pages over a database: episodes, transcripts, metrics, leases and SQL.

    The pages follow the database while actors and learners use it. They only read, unless you pass
    --write. By default, only this machine can open them. Another --host requires --token, or
    --user-header behind an authenticating proxy. The token can also come from the environment
    variable EXPDB_TOKEN. Stop the server with Ctrl-C.

    The path /metrics returns the metrics as Prometheus text. --json prints the address as JSON.

    Example: expdb serve runs.db
    """
    try:
        from expdb.serve.app import create_app
        from expdb.serve.guard import Access, is_loopback, names_of_this_machine, new_token
        from expdb.serve.server import PageServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "expdb":
            raise
        raise click.ClickException(f"{INSTALL} (missing: {error.name})") from None
    if not is_loopback(host) and token is None and user_header is None:
        raise click.UsageError(
            f"--host {host} makes the pages available to other machines; also pass --token, or "
            "--user-header if an authenticating proxy sets that header"
        )
    if token is not None and len(token) < 8:
        raise click.UsageError("--token must have at least 8 characters")
    is_new = write and token is None
    if is_new:
        token = new_token()
    known = {host.lower(), *(name.lower() for name in hosts)}
    if not is_loopback(host):
        known |= names_of_this_machine()
    access = Access(write=write, token=token, hosts=frozenset(known), user_header=user_header)
    app = create_app(location, access)
    with _listen(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        url = f"{address}?token={token}" if is_new else address
        click.echo(
            json.dumps({"url": url}) if as_json else for_terminal(f"Serving {location} at {url}")
        )
        with suppress(KeyboardInterrupt):  # uvicorn raises it after it has closed everything
            PageServer(app).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; fail before the server starts if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {error.strerror}; pass another --host or --port"
        ) from None
