"""Name processes, and check whether the process with a name has ended."""

import functools
import os
import socket
import time
from pathlib import Path


def named(serial: int) -> str:
    """Return a name that is unique across processes and machines.

    The name consists of the machine, the process id, the start time of the process and `serial`.
    """
    return _named(os.getpid(), serial)


@functools.lru_cache
def _named(pid: int, serial: int) -> str:
    return f"{_machine()} {pid} {_start_time(pid)} {serial}"


def _machine() -> str:
    """Return the scope in which process ids are unique: host name, boot id and PID namespace.

    On systems other than Linux, the scope is only the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        space = os.readlink("/proc/self/ns/pid")[5:-1]
    except OSError:  # not Linux
        return socket.gethostname()
    return f"{socket.gethostname()}/{boot}/{space}"


def _start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks, as Linux reports it.

    Return an empty string if the start time is unknown or if the process is a zombie.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    values = stat.rpartition(")")[2].split()  # from the third value of proc(5), the state
    return "" if values[0] in "ZX" else values[19]


def describe_process(name: str) -> str:
    """Return the process id and the host in a name, as text for a message."""
    machine, pid, *_ = *name.split(" "), ""
    return f"process {pid} on {machine.partition('/')[0]}" if pid else name


def has_ended(name: str) -> bool:
    """Return whether the process with a name is known to have ended.

    The state of a process on another machine is unknown, so the result is False.
    """
    machine, pid, started, *_ = *name.split(" "), "", ""
    if machine != _machine() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # the process exists and belongs to another user
        return False
    return bool(started) and started != _start_time(int(pid))


class ProcessLiveness:
    """Check whether other processes have ended, at most once per second for each process."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._look: dict[str, float] = {}  # time of the next check, by name

    def has_ended(self, name: str) -> bool:
        """Return whether a check has found that the process with a name has ended."""
        now = time.monotonic()
        if name not in self._ended and now >= self._look.get(name, now):
            self._look[name] = now + LOOK_SECONDS
            if has_ended(name):
                self._ended.add(name)
        return name in self._ended


LOOK_SECONDS = 1.0
