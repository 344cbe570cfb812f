"""The line of the program that called expdb, for warnings and messages."""

import sys
import threading
import types
import warnings


def calling_frame() -> tuple[types.FrameType, int]:
    """Return the innermost frame outside of expdb, and its distance from the calling function."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "expdb",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return frame, level


def current_line() -> tuple[str, int]:
    """Return the file and the number of the line that called expdb, also in another thread."""
    line = CallingLine.current()
    return (CallingLine() if line is None else line).place


class CallingLine:
    """The innermost line outside of expdb, for warnings that another thread emits."""

    _current = threading.local()

    def __init__(self) -> None:
        frame, _ = calling_frame()
        self.place = frame.f_code.co_filename, frame.f_lineno
        self._globals = frame.f_globals

    def __enter__(self) -> None:
        self._current.line = self

    def __exit__(self, *error: object) -> None:
        self._current.line = None

    @classmethod
    def current(cls) -> "CallingLine | None":
        """Return the line at which this thread emits warnings, if it was set."""
        return getattr(cls._current, "line", None)

    def warn(self, message: str, category: type[Warning]) -> None:
        """Emit a warning that points at the line."""
        registry = self._globals.setdefault("__warningregistry__", {})
        module = self._globals.get("__name__")
        warnings.warn_explicit(message, category, *self.place, module, registry)
