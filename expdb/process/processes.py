"""Processes by name: which one this is, and whether another one has ended."""

import functools
import os
import socket
import time
from pathlib import Path


def named(serial: int) -> str:
    """Return a name that no other process has, on this machine or another, with a number of ours.

    What it is made of: machine, process, when that was started, and the number.
    """
    return _named(os.getpid(), serial)


@functools.lru_cache
def _named(pid: int, serial: int) -> str:
    return f"{_machine()} {pid} {_started(pid)} {serial}"


def _machine() -> str:
    """Return what process numbers are unique within: this boot, and its namespace of numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        space = os.readlink("/proc/self/ns/pid")[5:-1]
    except OSError:  # not Linux
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}/{space}"


def _started(pid: int) -> str:
    """Return when a process started, in the clock ticks of Linux.

    Return nothing where nobody can tell, or where only its exit status is left of it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    values = stat.rpartition(")")[2].split()  # proc(5): from the third value, the state, on
    return "" if values[0] in "ZX" else values[19]


def has_ended(name: str) -> bool:
    """Return whether the process of a name is known to have ended.

    Of one on another machine nobody here knows.
    """
    machine, pid, started, *_ = *name.split(" "), "", ""
    if machine != _machine() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # there is one, and it is somebody else's
        return False
    return bool(started) and started != _started(int(pid))


class Others:
    """Other processes, of each of which it is looked once a second whether it is there."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._look: dict[str, float] = {}  # when to look again

    def has_ended(self, name: str) -> bool:
        """Return whether the process of a name was seen to have ended."""
        now = time.monotonic()
        if name not in self._ended and now >= self._look.get(name, now):
            self._look[name] = now + LOOK_SECONDS
            if has_ended(name):
                self._ended.add(name)
        return name in self._ended


LOOK_SECONDS = 1.0
