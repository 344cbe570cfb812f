"""The database behind the pages: one handle that reads, and one that writes scores and tags."""

import json
from dataclasses import dataclass
from typing import Any

import expdb

SQL_SECONDS = 1.8  # time limit of a statement on the SQL page

FIELDS = "SELECT fields FROM buffers WHERE name = :name"
# If the content of a page changes, at least one of these numbers changes.
CHANGE_NUMBERS = (
    "SELECT b.added, b.revision, b.policy_version, b.admitted, "
    "(SELECT sum(c.version) FROM consumers c WHERE c.buffer_id = b.id) AS leases, "
    "(SELECT max(w.active) FROM workers w WHERE w.buffer_id = b.id) AS reports, "
    "(SELECT max(m.id) FROM metrics m WHERE m.buffer_id = b.id) AS measured, "
    "(SELECT count(*) FROM waiters x WHERE x.buffer_id = b.id) AS waiters "
    "FROM buffers b WHERE b.name = :name"
)


@dataclass(frozen=True)
class FieldType:
    """The type of a field: its dtype, and its shape with None for dimensions that vary.

    If `is_optional` is True, some steps may lack the field.
    """

    dtype: str
    shape: tuple[int | None, ...]
    is_optional: bool

    @property
    def is_image(self) -> bool:
        """Whether the values may be pictures."""
        is_flat = len(self.shape) == 2
        has_channels = len(self.shape) == 3 and self.shape[2] in (1, 3, 4)
        return self.dtype == "uint8" and (is_flat or has_channels)

    @property
    def is_scalar(self) -> bool:
        """Whether the values are single numbers."""
        return not self.shape and self.dtype not in ("text", "bytes", "json")

    @property
    def is_per_token(self) -> bool:
        """Whether the values are lists of numbers of varying length."""
        return self.shape == (None,) and self.dtype not in ("text", "bytes", "json")


class Source:
    """The handles of one server."""

    def __init__(self, location: str, write: bool):
        self.db = expdb.open(location, create=False, read_only=True, timeout=SQL_SECONDS)
        self.location, self.may_write = self.db.location, write
        self._writer: expdb.ExperienceDB | None = None
        if write:
            self._writer = expdb.open(location, create=False, run="expdb serve")
        for name in self.db.buffers()[:1]:
            # Import the modules that are loaded lazily, before the first request.
            self.buffer(name).episodes(limit=1)

    def buffer(self, name: str) -> expdb.ReplayBuffer:
        """Return a buffer; raise UnknownBuffer if there is no such buffer."""
        return self.db.buffer(name, create=False)

    def fields(self, name: str) -> dict[str, FieldType]:
        """Return the types of the fields and annotations of a buffer."""
        rows = self.db.sql(FIELDS, {"name": name}).column(0).to_pylist()
        stored = json.loads(rows[0]) if rows else {}
        annotations = stored.get("annotations", {})
        optional = {*stored.get("optional", ()), *annotations}
        types = {**stored.get("types", {}), **annotations}
        return {
            field: FieldType(dtype, tuple(shape), field in optional)
            for field, (dtype, shape, *_) in types.items()
        }

    def positions(
        self, buffer: str, episode_ids: list[str], condition: str = "TRUE", **params: Any
    ) -> list[int]:
        """Return the positions of the steps of episodes, restricted by an SQL condition.

        Reading steps by position is about ten times faster than a query with `in_` and a condition.
        """
        ids = {f"id{index}": episode_id for index, episode_id in enumerate(episode_ids)}
        if not ids:
            return []
        names = ", ".join(f":{name}" for name in ids)
        statement = (
            "SELECT position FROM experience WHERE buffer = :buffer AND episode_id IN "
            f"({names}) AND {condition} ORDER BY position"
        )
        rows = self.db.sql(statement, {"buffer": buffer, **ids, **params})
        positions: list[int] = rows.column(0).to_pylist()
        return positions

    def change_numbers(self, name: str) -> tuple[Any, ...]:
        """Return numbers that change whenever the content of a page of the buffer may change."""
        rows = self.db.sql(CHANGE_NUMBERS, {"name": name}).to_pylist()
        return tuple(rows[0].values()) if rows else ()

    def writable(self, name: str) -> expdb.ReplayBuffer:
        """Return a buffer of the handle that writes."""
        assert self._writer is not None  # without `write`, the guard refuses requests that write
        return self._writer.buffer(name, create=False)

    def close(self) -> None:
        """Close the handles."""
        if self._writer is not None:
            self._writer.close()
        self.db.close()
