"""The command `serve`."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from contextlib import suppress

import click

from expdb.cli.main import as_json, for_terminal, verb

INSTALL = "expdb serve requires more packages; run pip install 'expdb[serve]'"


@verb
@click.argument("location")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535),
              help="Port to listen on; 0 for any free port.")  # fmt: skip
@click.option("--write", is_flag=True,
              help="Add a form for scores and tags; creates a token by default.")  # fmt: skip
@click.option("--token", envvar="EXPDB_TOKEN",
              help="Secret that requests must send.")  # fmt: skip
@click.option("--user-header", metavar="NAME",
              help="Header that an authenticating proxy sets to the user's name.")  # fmt: skip
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME",
              help="Additional host name of this server (repeatable).")  # fmt: skip
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
    """Show a database as web pages: episodes, transcripts, metrics, leases and SQL.

    The pages update while actors and learners use the database. They are read-only unless you pass
    --write. By default, only this machine can open the pages. Another --host requires --token, or
    --user-header behind an authenticating proxy. You can also pass the token in the environment
    variable EXPDB_TOKEN. Stop the server with Ctrl-C.

    The path /metrics returns the metrics as Prometheus text. --json prints the URL as JSON.

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
    if token is not None and re.fullmatch(r"[\w.~+/=-]{8,}", token, re.ASCII) is None:
        raise click.UsageError("--token must consist of at least 8 letters, digits or .~+/=_-")
    is_new = write and token is None and user_header is None
    if is_new:
        token = new_token()
    for name in hosts:
        if re.fullmatch(r"[A-Za-z0-9.-]+", name) is None:
            raise click.UsageError(f"--allow-host must be a host name, got {name!r}")
    host_names = {host.lower(), *(name.lower() for name in hosts)}
    if not is_loopback(host):
        host_names |= names_of_this_machine()
    access = Access(write=write, token=token, hosts=frozenset(host_names), user_header=user_header)
    app = create_app(location, access)
    with _listen(host, port) as listener:
        is_any = host in ("0.0.0.0", "::")
        name = socket.gethostname() if is_any else f"[{host}]" if ":" in host else host
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
