"""The fault tests by name, and the table of their results."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from postgres_server import Server

DATABASES = "SQLite", "PostgreSQL"


class Servers:
    """Servers that all fault tests share; the end of the context removes them."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}

    def __call__(self, fsync: str) -> Server:
        if fsync not in self._running:
            self._running[fsync] = Server(fsync=fsync, max_connections="200")
        return self._running[fsync]

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._running.values():
            server.remove()


@dataclass
class Place:
    """The environment of a fault test: a folder, a seed, and servers that start on first use."""

    folder: Path
    seed: int
    servers: Servers

    def server(self, fsync: str = "off") -> Server:
        """Return a server; without fsync by default, because only clients are killed."""
        return self.servers(fsync)

    def location(self, kind: str, name: str, *, ordinary: bool = False) -> str:
        """Return the location of a new database, a file or a database of the server.

        With `ordinary`, the user is not a superuser.
        """
        if kind == "SQLite":
            return str(self.folder / f"{name}.db")
        server = self.server()
        database = server.database()
        if not ordinary or server.given:
            return server.url(database)
        if not server.execute("SELECT 1 FROM pg_roles WHERE rolname = 'ordinary'"):
            server.execute("CREATE ROLE ordinary LOGIN")
        server.execute(f'ALTER DATABASE "{database}" OWNER TO ordinary')
        return server.url(database, "ordinary")


@dataclass
class Outcome:
    """The result of a fault test: the number of repetitions, the violations and a note."""

    count: int
    violations: list[str]
    note: str = ""


@dataclass(frozen=True)
class Fault:
    """A fault test with its requirement and its repetitions in a short and a long run."""

    name: str
    must_hold: str
    short: int
    long: int
    strike: Callable[[Place, int], Outcome]


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, must_hold: str, short: int, long: int, key: str = "", **axes: tuple[Any, ...]
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Register a function that causes a fault `count` times and returns the outcome.

    With `axes`, register the function once for each combination of values, and pass the values as
    its first arguments. `name` and `key` may contain the values; the default key ends with them.
    """

    def enter(strike: Callable[..., Outcome]) -> Callable[..., Outcome]:
        for values in itertools.product(*axes.values()):
            of = dict(zip(axes, values, strict=True))
            own = key.format(**of) or "_".join([strike.__name__, *values])
            FAULTS[own.lower().replace(" ", "_")] = Fault(
                name.format(**of), must_hold, short, long, partial(strike, *values)
            )
        return strike

    return enter


def run(key: str, place: Place, count: int) -> tuple[Outcome, float]:
    """Run a fault test, and return its outcome and its duration in seconds.

    An unexpected error is also a violation.
    """
    start = time.monotonic()
    try:
        outcome = FAULTS[key].strike(place, count)
    except Exception:
        outcome = Outcome(0, ["the harness failed: " + traceback.format_exc()])
    return outcome, time.monotonic() - start


def line(key: str, outcome: Outcome, seconds: float) -> str:
    """Return a row of the table in Markdown."""
    verdict = f"**{len(outcome.violations)} violations**" if outcome.violations else "held"
    return (
        f"| {FAULTS[key].name} | {outcome.count:,} | {FAULTS[key].must_hold} | "
        f"{verdict}{': ' * bool(outcome.note)}{outcome.note} | {seconds:.0f} s |"
    )


HEAD = "| fault | times | must hold | outcome | took |\n|---|---|---|---|---|"
