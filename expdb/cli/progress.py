"""Report the progress of long commands on stderr.

A terminal shows a bar; other outputs get a line every 10 s.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

FIRST_SECONDS = 2.0  # operations that take less time print nothing
BAR_SECONDS = 0.2
LINE_SECONDS = 10.0
WIDTH = 30


class Progress:
    """The progress of an operation; `total` is None if the amount of work is unknown."""

    def __init__(self, label: str, total: int | None = None):
        self.label, self.total, self.done = label, total, 0
        self._start = time.monotonic()

    def add(self, count: int) -> None:
        """Add finished units of work."""
        self.done += count

    def set(self, label: str, done: int, total: int) -> None:
        """Set the label, the finished amount and the total."""
        self.label, self.done, self.total = label, done, total

    def line(self, bar: bool) -> str:
        """Return the state as text."""
        seconds = f"{time.monotonic() - self._start:.0f} s"
        if not self.total:
            return f"{self.label}: {seconds}"
        share = min(self.done / self.total, 1.0)
        filled = f"[{'#' * round(WIDTH * share):<{WIDTH}}] " if bar else ""
        return f"{self.label}: {filled}{share:.0%}, {seconds}"


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Progress]:
    """Report the progress of a block: after 2 s in a terminal, every 10 s elsewhere."""
    state, ended = Progress(label, total), threading.Event()
    is_terminal = sys.stderr.isatty()

    def report() -> None:
        seconds = FIRST_SECONDS if is_terminal else LINE_SECONDS
        while not ended.wait(seconds):
            text = state.line(bar=is_terminal)
            click.echo(f"\r{text}\033[K" if is_terminal else text, err=True, nl=not is_terminal)
            seconds = BAR_SECONDS if is_terminal else LINE_SECONDS

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        ended.set()
        thread.join()
        if is_terminal and time.monotonic() - state._start >= FIRST_SECONDS:
            click.echo("\r\033[K", err=True, nl=False)
