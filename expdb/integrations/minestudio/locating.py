"""The location, the stored config and the owner process of MineStudio's replay buffer."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import expdb
from expdb.integrations.positions import first_value

WHERE = "EXPDB_REPLAY_BUFFER"  # the environment variable that names the database
FILE = "fragments.db"
_REQUIRED = ("max_chunks", "max_staleness", "max_reuse", "database_config", "fragments_per_chunk")
_OPTIONAL = ("fragments_per_report",)


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError for a config with a missing, unknown or invalid option."""
    if missing := [key for key in _REQUIRED if key not in config]:
        raise ValueError(f"the config must have {', '.join(missing)}")
    if unknown := [key for key in config if key not in (*_REQUIRED, *_OPTIONAL)]:
        raise ValueError(
            f"{unknown[0]} is not an option; expected one of {', '.join((*_REQUIRED, *_OPTIONAL))}"
        )
    for key in ("max_chunks", "max_reuse", "fragments_per_chunk"):
        if int(config[key]) < 1:
            raise ValueError(f"{key} must be at least 1, got {config[key]}")


def plain(value: Any) -> Any:
    """Return a config, or a part of a config, with plain dicts instead of other mappings."""
    return {key: plain(value[key]) for key in value} if hasattr(value, "keys") else value


def location_of(config: Mapping[str, Any] | None, location: str | os.PathLike[str] | None) -> str:
    """Return the location from the config, from `location`, or from the environment."""
    if config is not None:
        path = config.get("database_config", {}).get("path")
        if path is None:
            keys = ", ".join(config.get("database_config", {})) or "nothing"
            raise ValueError(
                f"database_config must have a path (a folder or a PostgreSQL URL), got {keys}"
            )
        return str(path)
    place = location if location is not None else os.environ.get(WHERE)
    if place is None:
        raise ValueError(
            "replay buffer not initialized; create it with a config, or pass its location"
        )
    return os.fspath(place)


def file_of(where: str) -> str:
    """Return the path or URL of the database, and create its folder."""
    if "://" in where:
        return where
    Path(where).mkdir(parents=True, exist_ok=True)
    return str(Path(where) / FILE)


def stored_config(where: str) -> dict[str, Any]:
    """Return the stored config of a buffer; raise ValueError if there is none."""
    if "://" not in where and not (Path(where) / FILE).exists():
        raise ValueError(
            f"replay buffer not initialized: no {FILE} in {where}; create it with a config"
        )
    with expdb.open(file_of(where)) as database:
        state = None
        if "replay_buffer.state" in database.buffers():
            state = first_value(database.buffer("replay_buffer.state"), "state")
    if state is None:
        raise ValueError(
            f"replay buffer not initialized: no buffer in {where}; create it with a config"
        )
    config: dict[str, Any] = state["config"]
    return config


class Owner:
    """Mark this process as the owner of the buffer with a file lock.

    The lock is released when the object is closed or garbage-collected, or the process ends. On
    PostgreSQL, there is no lock. Raises ValueError if another process or handle is the owner.
    """

    def __init__(self, where: str):
        self._file: int | None = None
        if "://" in where:
            return
        Path(where).mkdir(parents=True, exist_ok=True)
        self._file = os.open(Path(where) / "owner.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ValueError(
                f"replay buffer already initialized: another process or handle owns the buffer in "
                f"{where}; open it without a config"
            ) from None
        _owners.add(self)

    def close(self) -> None:
        """Release the lock, so that another process or handle can own the buffer."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        self.close()


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    for owner in list(_owners):
        owner.close()


os.register_at_fork(after_in_child=_leave_to_the_parent)
