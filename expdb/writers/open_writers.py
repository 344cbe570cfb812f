"""The writers of a buffer whose episodes have not ended.

Nothing that was appended may be lost without a word.
"""

import sys
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from expdb import errors
from expdb.process import exits
from expdb.process.living import Living
from expdb.storage.store import Store
from expdb.writers.writers import EpisodeWriter, StepWriter

Kind = TypeVar("Kind", EpisodeWriter, StepWriter)


Writer: TypeAlias = EpisodeWriter | StepWriter


class OpenWriters:
    """Ends writers that are left open.

    It does when the database is closed, the program exits or they are collected.
    """

    def __init__(self, store: Store):
        self._store = store
        self._open: Living[Writer] = Living()
        self._waiting: list[Writer] = []  # collected when nothing could be written

    def add(self, writer: Kind) -> Kind:
        """Look after a writer."""
        self._open.add(writer)
        exits.watch_worker()
        if self._waiting:
            self._end_collected(self._waiting)
        return writer

    def collected(self, writer: Writer) -> None:
        """End a writer that nobody holds any more.

        It is done later where the collector came in the midst of our own work.
        """
        # First of all: what an interrupt keeps from being done here is done when the handle is
        # closed.
        self._waiting.append(writer)
        if _is_running(_interrupted_frame()):
            return
        self._end_collected([writer])
        self._store.engine.release()  # of a database that was collected with it

    def _end_collected(self, writers: list[Writer]) -> None:
        told: list[str] = []
        self._end(writers, told)
        for message in told:
            errors.warn(message)

    def forget_episodes(self) -> None:
        """Start new episodes with the next steps, because the buffer was cleared."""
        for writer in self._open.list():
            if isinstance(writer, StepWriter):
                writer.forget_episodes()

    def unwritten(self) -> int:
        """Return how many steps were appended and are not written."""
        return sum(writer.unwritten for writer in self._open.list())

    def end_all(self, told: list[str]) -> None:
        """Flush all writers and end their episodes; add what is to be told of them.

        Complete is what a last step with terminated or truncated has completed, and aborted
        everything else.
        """
        self._end([*self._open.list(), *self._waiting], told)

    def _end(self, writers: list[Writer], told: list[str]) -> None:
        """End writers, all that can be; after an interrupt they can be ended again."""
        failed = None
        for writer in list(writers):
            try:
                self._end_one(writer, told)
            except Exception as error:
                failed = failed or error
            with suppress(ValueError):  # it was not among those that wait
                self._waiting.remove(writer)
        if failed is not None:
            raise failed

    def _end_one(self, writer: Writer, told: list[str]) -> None:
        left = writer.end_left_open()
        if left is None:
            return
        told.append(left.message(self._store.name))
        if left.error is not None and not isinstance(left.error, errors.ExpDBError):
            raise left.error


def _interrupted_frame() -> Any:
    """Return the frame that the finalizer of a writer came in the midst of.

    None where no Python code was running.
    """
    # OpenWriters.collected, called by the writer's sink, called by the finalizer.
    frame: Any = sys._getframe(1)
    for _ in range(3):
        frame = frame and frame.f_back
    return frame


def _is_running(frame: Any) -> bool:
    """Return whether a frame, or one that called it, is of this package.

    Then locks may be held that writing takes.
    """
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "expdb" or name.startswith("expdb."):
            return True
        frame = frame.f_back
    return False
