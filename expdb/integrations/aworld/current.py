"""A storage for AWorld 0.3 that keeps blocks of items in an experience database.

    from aworld.core.storage.inmemory_store import InmemoryConfig, InmemoryStorage         # before
    from expdb.integrations.aworld.current import ExperienceConfig, ExperienceStorage      # after

    storage = ExperienceStorage(ExperienceConfig(location="runs.db"))

Use it wherever AWorld takes a `storage=`. `docs/how-to/move-from-aworld.md` describes the
differences.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import expdb
from expdb import errors
from expdb.integrations.positions import first_value

try:
    from aworld.config import StorageConfig
    from aworld.core.storage.base import Storage
    from aworld.core.storage.data import Data, DataBlock
    from pydantic import BaseModel
except ImportError as error:
    raise errors.DriverMissing(
        f"AWorld 0.3 cannot be imported ({error}); run `pip install aworld`"
    ) from error

__all__ = ["ExperienceConfig", "ExperienceStorage"]


class ExperienceConfig(StorageConfig):
    """The settings of an ExperienceStorage.

    Parameters
    ----------
    location : str
        A path or a PostgreSQL URL; by default a private temporary database.
    buffer : str
        Name of the buffer in the database.
    max_capacity : int
        Maximum number of blocks; the oldest blocks are deleted first.
    max_items_per_block : int
        Maximum number of items in a block; 0 for no limit.
    eviction_policy : {"fifo", "lru"}
        With "fifo", the oldest items of a block are deleted first. With "lru", the items that were
        written least recently are deleted first.
    """

    name: str = "expdb"
    location: str = ":memory:"
    buffer: str = "aworld_blocks"
    max_capacity: int = 10000
    max_items_per_block: int = 1000
    eviction_policy: Literal["lru", "fifo"] = "fifo"


class ExperienceStorage(Storage[Any]):
    """Store blocks of items in a buffer.

    An item is a step. The task of the step is the block, and the tag `id` is the id of the item.
    When a method returns, its changes are durable and visible to every process. Items are AWorld's
    `Data`, or pydantic models with an `id`. Values are pydantic models or plain JSON; other values
    raise InvalidValue.

    Parameters
    ----------
    conf : ExperienceConfig, optional
        The settings; by default `ExperienceConfig()`.
    """

    def __init__(self, conf: ExperienceConfig | None = None):
        super().__init__(conf or ExperienceConfig())
        self.database = expdb.open(self.conf.location)
        self.buffer = self.database.buffer(self.conf.buffer, fields={"item": expdb.Field("json")})
        self._blocks = self.database.buffer(
            f"{self.conf.buffer}.blocks", fields={"block": expdb.Field("json")}
        )
        self.buffer.index("tags.id")

    def backend(self) -> expdb.ReplayBuffer:
        """Return the buffer of the items."""
        return self.buffer

    def close(self) -> None:
        """Close the database; the items remain stored."""
        self.database.close()

    # -- blocks --------------------------------------------------------------------------------

    async def create_block(self, block_id: str, overwrite: bool = True) -> bool:
        """Create a block; return False if it exists and `overwrite` is False."""
        there = self._blocks.count({"task_id": str(block_id)}) > 0
        if there and not overwrite:
            return False
        if not there:
            self._make_room_for_a_block()
            self._blocks.store(
                task_id=str(block_id), episode_id=str(block_id), block={"create_at": time.time()}
            )
        return True

    def _make_room_for_a_block(self) -> None:
        over = len(self._blocks) + 1 - self.conf.max_capacity
        if over > 0:
            for block_id in self._blocks.tasks()[:over]:
                self._delete_block(block_id)

    async def delete_block(self, block_id: str, exists: bool = False) -> bool:
        """Delete a block with its items; return False if there is no such block."""
        return self._delete_block(str(block_id))

    def _delete_block(self, block_id: str) -> bool:
        self.buffer.delete({"task_id": block_id})
        return self._blocks.delete({"task_id": block_id}) > 0

    async def get_block(self, block_id: str) -> DataBlock | None:
        """Return a block, or None if there is no such block."""
        block = first_value(self._blocks, "block", {"task_id": str(block_id)})
        return None if block is None else DataBlock(str(block_id), block["create_at"])

    # -- items ---------------------------------------------------------------------------------

    async def create_data(
        self, data: Any, block_id: str | None = None, overwrite: bool = True
    ) -> bool:
        """Store an item in its block, which is created if necessary.

        Parameters
        ----------
        data : Data, pydantic model, list or tuple
            The item, or several items.
        block_id : str, optional
            The block, if the item has no `block_id`.
        overwrite : bool
            Whether to replace an item with the same id.

        Returns
        -------
        bool
            False if an item exists and `overwrite` is False.

        Raises
        ------
        InvalidValue
            If a value is neither a pydantic model nor plain JSON.
        """
        if isinstance(data, (list, tuple)):
            return all([await self.create_data(item, block_id, overwrite) for item in data])
        block, id = _block_of(data, block_id), _id_of(data)
        before = self._find(block, id)
        if before and not overwrite:
            return False
        stored = _stored(data)
        if not before:
            await self.create_block(block)
            self._make_room(block)
        self._write(block, id, stored, before)
        return True

    def _write(self, block: str, id: str, stored: Any, before: list[dict[str, Any]]) -> None:
        """Store an item, and then delete the item that it replaces.

        With the "fifo" policy, the new item keeps the `order` tag of the replaced item.
        """
        order = time.time_ns()
        if before and self.conf.eviction_policy == "fifo":
            order = _order_of(before[0])
        self.buffer.store(
            task_id=block, episode_id=f"block {block}", tags={"id": id, "order": order}, item=stored
        )
        self._delete([row["position"] for row in before])

    def _delete(self, positions: list[int]) -> None:
        if positions:
            self.buffer.delete(expdb.QueryBuilder().in_("position", positions))

    def _make_room(self, block: str) -> None:
        most = self.conf.max_items_per_block
        items = self._items({"task_id": block}) if most > 0 else []
        self._delete([row["position"] for row in items[: max(0, len(items) + 1 - most)]])

    def _find(self, block: str, id: str) -> list[dict[str, Any]]:
        return self._items(expdb.QueryBuilder().eq("task_id", block).and_().eq("tags.id", id))

    def _items(self, where: Any) -> list[dict[str, Any]]:
        """Return the newest item of each id, in the order of the items and by position."""
        newest: dict[tuple[str, str], dict[str, Any]] = {}
        fields = ["position", "step", "task_id", "tags", "item"]
        for batch in self.buffer.scan(where, fields=fields):
            for row in batch.to_list():
                newest[row["task_id"], row["tags"]["id"]] = row
        return sorted(newest.values(), key=lambda row: (_order_of(row), row["position"]))

    async def update_data(
        self, data: Any, block_id: str | None = None, exists: bool = False
    ) -> bool:
        """Replace an item.

        Parameters
        ----------
        data : Data or pydantic model
            The new item, whose id names the item to replace.
        block_id : str, optional
            The block, if the item has no `block_id`.
        exists : bool
            Whether to return False if there is no such item.

        Returns
        -------
        bool
            False if there is no such item and `exists` is True.

        Raises
        ------
        InvalidValue
            If a value is neither a pydantic model nor plain JSON.
        """
        block, id = _block_of(data, block_id), _id_of(data)
        before = self._find(block, id)
        if before:
            self._write(block, id, _stored(data), before)
        return bool(before) or not exists

    async def delete_data(
        self,
        data_id: str | None = None,
        data: Any = None,
        block_id: str | None = None,
        exists: bool = False,
    ) -> bool:
        """Delete an item.

        Parameters
        ----------
        data_id : str, optional
            The id of the item.
        data : Data or pydantic model, optional
            The item, if `data_id` is not given.
        block_id : str, optional
            The block, if `data` has no `block_id`.
        exists : bool
            Whether to return False if there is no such item.

        Returns
        -------
        bool
            False if there is no such item and `exists` is True.
        """
        block = _block_of(data, block_id)
        id = data_id if data is None or data_id else _id_of(data)
        before = self._find(block, str(id))
        self._delete([row["position"] for row in before])
        return bool(before) or not exists

    async def select_data(self, condition: Any = None) -> list[Any]:
        """Return the matching items of all blocks, oldest first.

        Parameters
        ----------
        condition : mapping, optional
            A condition on the values, with dotted paths as fields. By default, return all items.

        Returns
        -------
        list
            The items.

        Raises
        ------
        InvalidValue
            If a comparison is unknown.
        """
        items = [_item(row["item"]) for row in self._items(None)]
        return [item for item in items if not condition or _matches(item, condition)]

    async def get_data_items(self, block_id: str | None = None) -> list[Any]:
        """Return the items of a block, oldest first."""
        return [_item(row["item"]) for row in self._items({"task_id": str(block_id)})]

    async def size(self, condition: Any = None) -> int:
        """Return the number of matching items."""
        return len(await self.select_data(condition))

    async def delete_all(self) -> None:
        """Delete all blocks with their items."""
        self.buffer.clear()
        self._blocks.clear()


def _block_of(data: Any, block_id: str | None) -> str:
    return str(getattr(data, "block_id", None) or block_id)


def _order_of(row: dict[str, Any]) -> int:
    """Return the sort key of an item, a time in nanoseconds.

    Earlier versions of expdb stored this time as the step number.
    """
    order: int = row["tags"].get("order", row["step"])
    return order


def _id_of(data: Any) -> str:
    return str(data.id if hasattr(data, "id") else data)


# -- items as JSON -----------------------------------------------------------------------------


def _stored(data: Any) -> dict[str, Any]:
    """Return an item as JSON; raise InvalidValue if JSON cannot represent it exactly."""
    if type(data) is Data:
        attributes = {name: getattr(data, name) for name in _ATTRIBUTES}
        return {"data": _json(attributes, "the item"), "value": _json(data.value, "value")}
    return {"value": _json(data, "the item")}


_ATTRIBUTES = ("block_id", "id", "create_at", "update_at", "expires_at", "meta_info")


def _json(value: Any, path: str) -> Any:
    kind = type(value)
    if value is None or kind in (str, int, bool) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_json(element, f"{path}.{k}") for k, element in enumerate(value)]
    if kind is dict and all(type(key) is str for key in value) and "model" not in value:
        return {key: _json(element, f"{path}.{key}") for key, element in value.items()}
    if isinstance(value, BaseModel):
        dumped = BaseModel.model_dump(value, mode="json")
        return {"model": f"{kind.__module__}:{kind.__qualname__}", "value": dumped}
    raise expdb.InvalidValue(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored exactly; use "
        "pydantic models or plain JSON"
    )


def _plain(stored: Any) -> Any:
    """Undo `_json`; models whose modules are not imported become dicts."""
    if isinstance(stored, list):
        return [_plain(element) for element in stored]
    if not isinstance(stored, Mapping):
        return stored
    if "model" not in stored:
        return {key: _plain(element) for key, element in stored.items()}
    module, _, name = stored["model"].partition(":")
    model_class: Any = sys.modules.get(module)
    for part in name.split("."):
        model_class = getattr(model_class, part, None)
    is_model = isinstance(model_class, type) and issubclass(model_class, BaseModel)
    model: Any = model_class if is_model else None
    return model.model_validate_json(json.dumps(stored["value"])) if model else stored["value"]


def _item(stored: Mapping[str, Any]) -> Any:
    value = _plain(stored["value"])
    return Data(**stored["data"], value=value) if "data" in stored else value


# -- conditions --------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, other: bool(value == other),
    "ne": lambda value, other: bool(value != other),
    "gt": lambda value, other: bool(value > other),
    "gte": lambda value, other: bool(value >= other),
    "lt": lambda value, other: bool(value < other),
    "lte": lambda value, other: bool(value <= other),
    "in": lambda value, other: value in other,
    "not_in": lambda value, other: value not in other,
    "like": lambda value, other: other in value,
    "not_like": lambda value, other: other not in value,
}


def _matches(item: Any, condition: Mapping[str, Any]) -> bool:
    """Return whether the value of an item matches.

    Comparisons with None do not match, except with `eq`, `ne`, `not_in`, `is_null` and
    `is_not_null`.
    """
    for join, every in (("and_", all), ("or_", any)):
        if join in condition:
            return every(_matches(item, operand) for operand in condition[join])
    value = item.value if isinstance(item, Data) else item
    for part in condition["field"].split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    op = condition["op"]
    if op in ("is_null", "is_not_null"):
        return bool((value is None) == (op == "is_null"))
    if op not in _COMPARE:
        raise expdb.InvalidValue(
            f"{op!r} is not a comparison; expected one of {', '.join(_COMPARE)}"
        )
    wanted = condition.get("value")
    if op in ("eq", "ne") or (op == "not_in" and wanted is not None):
        return _COMPARE[op](value, wanted)
    if value is None or wanted is None:
        return False
    return _COMPARE[op](value, wanted)
