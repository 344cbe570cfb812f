"""The storages of rows; every storage of expdb uses a buffer of an experience database."""

import json
import operator
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import expdb
from expdb import errors
from expdb.integrations.aworld.query_filter import QueryFilter
from expdb.integrations.aworld.rows import DataRow, Experience, ExpMeta

Condition = dict[str, Any] | None


class Storage(ABC):
    """Base class of storages, with the methods that a ReplayBuffer and its samplers call.

    You can write your own storage.
    """

    @abstractmethod
    def add(self, data: DataRow) -> None:
        """Add a row.

        Parameters
        ----------
        data : DataRow
            The row to add.
        """

    @abstractmethod
    def add_batch(self, data_batch: Sequence[DataRow]) -> None:
        """Add rows.

        Parameters
        ----------
        data_batch : sequence of DataRow
            The rows to add.
        """

    @abstractmethod
    def size(self, query_condition: Condition = None) -> int:
        """Return the number of matching rows.

        Parameters
        ----------
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        int
            The number of rows.
        """

    @abstractmethod
    def get_paginated(
        self, page: int, page_size: int, query_condition: Condition = None
    ) -> list[DataRow]:
        """Return a page of matching rows.

        Parameters
        ----------
        page : int
            Number of the page, from 1. A page past the end is empty.
        page_size : int
            Rows per page.
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        list of DataRow
            The rows of the page.
        """

    @abstractmethod
    def get_all(self, query_condition: Condition = None) -> list[DataRow]:
        """Return all matching rows.

        Parameters
        ----------
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        list of DataRow
            The rows.
        """

    @abstractmethod
    def get_by_task_id(self, task_id: str) -> list[DataRow]:
        """Return the rows of a task in order of step.

        Parameters
        ----------
        task_id : str
            Id of the task. An unknown task has no rows.

        Returns
        -------
        list of DataRow
            The rows.
        """

    @abstractmethod
    def get_bacth_by_task_ids(self, task_ids: Sequence[str]) -> dict[str, list[DataRow]]:
        """Return the rows of several tasks in order of step.

        The misspelling of the name is AWorld's.

        Parameters
        ----------
        task_ids : sequence of str
            Ids of the tasks. An unknown task has no rows.

        Returns
        -------
        dict of str to list of DataRow
            The rows of each task.
        """

    def get_task_ids(self, query_condition: Condition = None) -> list[str]:
        """Return the ids of the tasks that have a matching row.

        Parameters
        ----------
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        list of str
            The task ids.
        """
        return list(dict.fromkeys(row.exp_meta.task_id for row in self.get_all(query_condition)))


_BUFFER = "aworld"
_FIELDS = {
    "state": expdb.Field("json"),
    "actions": expdb.Field("json"),
    "messages": expdb.Field("json"),
}
_COLUMNS = (
    "task_id",
    "task_name",
    "agent_id",
    "step",
    "execute_time",
    "pre_agent",
    "reward",
    "tags",
    *_FIELDS,
)
_OPEN_EPISODES = 256
_TASKS_AT_ONCE = 1000


class SQLStorage(Storage):
    """Store rows in a database file or on a PostgreSQL server.

    Several processes may use the same storage. In another process, started by fork or spawn, the
    storage opens a connection of its own. A pydantic model is restored as a model only if its
    module is already imported, and otherwise as a dict. Stored data never makes expdb import
    anything.

    Parameters
    ----------
    url_or_path : str or path
        A database file, or the URL of a PostgreSQL database.
    max_capacity : int
        Maximum number of rows; the oldest rows are evicted first.
    """

    def __init__(self, url_or_path: str | os.PathLike[str], max_capacity: int = 10000):
        self._location, self._max_capacity = url_or_path, max_capacity
        self._db = expdb.open(url_or_path)
        self.buffer = self._db.buffer(_BUFFER, capacity=max_capacity, fields=_FIELDS)
        self._open: OrderedDict[tuple[str, str], tuple[str, str, set[int]]] = OrderedDict()
        self._replaced: list[str] = []  # episodes to complete after their rows are stored
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return SQLStorage, (self._location, self._max_capacity)

    # -- writing -----------------------------------------------------------------------------------

    def add(self, data: DataRow) -> None:
        """Add a row; the row is durable when the method returns.

        Parameters
        ----------
        data : DataRow
            The row to add.

        Raises
        ------
        ValueError
            If `data` is None or has no `exp_meta`.
        """
        self.add_batch([data])

    def add_batch(self, data_batch: Sequence[DataRow]) -> None:
        """Add either all rows or none, in one transaction.

        Parameters
        ----------
        data_batch : sequence of DataRow
            The rows to add.

        Raises
        ------
        ValueError
            If a row is None or has no `exp_meta`.
        """
        self.buffer.store_batch([self._stored(row) for row in data_batch])
        while self._replaced:
            self._complete(self._replaced.pop())

    def _stored(self, row: DataRow) -> dict[str, Any]:
        if row is None or getattr(row, "exp_meta", None) is None:
            raise ValueError(
                "a row must have exp_meta; pass DataRow(exp_meta=ExpMeta(...), "
                "exp_data=Experience(...))"
            )
        meta, data = row.exp_meta, row.exp_data
        stored = {
            "task_id": meta.task_id, "task_name": meta.task_name, "agent_id": meta.agent_id,
            "step": meta.step,
            "execute_time": meta.execute_time, "pre_agent": meta.pre_agent,
            "episode_id": self._episode_of(meta),
            "reward": data.reward_t, "state": _wrapped(data.state),
            # missing values are null, so that queries find the names
            "tags": {"id": row.id, "adv_t": data.adv_t, "v_t": data.v_t},
        }  # fmt: skip
        if data.actions is not None:
            stored["actions"] = [_wrapped(action) for action in data.actions]
        if data.messages is not None:
            stored["messages"] = data.messages
        return stored

    def _episode_of(self, meta: ExpMeta) -> str:
        """Return the id of a row's episode.

        A process has one episode for each task and agent, until the name of the task changes or a
        step number repeats.
        """
        if self._pid != os.getpid():  # the open episodes belong to the parent process
            self._open, self._pid = OrderedDict(), os.getpid()
        key = meta.task_id, meta.agent_id
        name, episode, steps = self._open.get(key, (None, "", set()))
        if name != meta.task_name or not episode or meta.step in steps:
            if episode:
                self._replaced.append(episode)
            episode, steps = uuid.uuid4().hex, set()
        steps.add(meta.step)
        self._open[key] = meta.task_name, episode, steps
        self._open.move_to_end(key)
        if len(self._open) > _OPEN_EPISODES:
            _, (_, oldest, _) = self._open.popitem(last=False)
            self._replaced.append(oldest)
        return episode

    def _complete(self, episode: str) -> None:
        # Another process may have cleared or evicted the episode.
        with suppress(errors.UnknownEpisode, errors.EpisodeEnded):
            self.buffer.end_episode(episode)

    def clear(self) -> None:
        """Delete all rows."""
        self._open.clear()
        self.buffer.clear()

    def close(self) -> None:
        """Complete the episodes that this process has begun, and close the connections."""
        if self._pid == os.getpid():
            for _, episode, _ in self._open.values():
                self._complete(episode)
        self._open.clear()
        self._db.close()

    # -- reading -----------------------------------------------------------------------------------

    def size(self, query_condition: Condition = None) -> int:
        """Return the number of matching rows.

        Parameters
        ----------
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        int
            The number of rows.
        """
        where = _where(query_condition)
        if where is _IN_PYTHON:
            return len(self.get_all(query_condition))
        return self.buffer.count(where)

    def get_paginated(
        self, page: int, page_size: int, query_condition: Condition = None
    ) -> list[DataRow]:
        """Return a page of matching rows in order of insertion.

        Parameters
        ----------
        page : int
            Number of the page, from 1. A page past the end is empty.
        page_size : int
            Rows per page.
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        list of DataRow
            The rows of the page.

        Raises
        ------
        ValueError
            If `page` or `page_size` is below 1.
        """
        try:
            page, page_size = operator.index(page), operator.index(page_size)
        except TypeError:
            raise ValueError(
                f"page and page_size must be integers, got {page!r} and {page_size!r}"
            ) from None
        if page < 1 or page_size < 1:
            raise ValueError(f"page and page_size must be at least 1, got {page} and {page_size}")
        where, begin, after = _where(query_condition), (page - 1) * page_size, -1
        if where is _IN_PYTHON:
            return self.get_all(query_condition)[begin : begin + page_size]
        if begin:
            size = min(begin, 2**63 - 1)
            earlier = next(self.buffer.scan(where, size=size, fields=["position"]), None)
            if earlier is None or earlier.size < begin:
                return []
            after = int(earlier["position"][-1])
        rows = next(self.buffer.scan(where, after=after, size=page_size, fields=_COLUMNS), None)
        return [] if rows is None else [_row(row) for row in rows.to_list()]

    def get_all(self, query_condition: Condition = None) -> list[DataRow]:
        """Return all matching rows in order of insertion.

        Parameters
        ----------
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        list of DataRow
            The rows.
        """
        where = _where(query_condition)
        if where is _IN_PYTHON:
            return QueryFilter(query_condition).filter(self._rows(None))
        return list(self._rows(where))

    def _rows(self, where: Any) -> Iterator[DataRow]:
        for batch in self.buffer.scan(where, fields=_COLUMNS):
            yield from map(_row, batch.to_list())

    def get_by_task_id(self, task_id: str) -> list[DataRow]:
        """Return the rows of a task in order of step.

        Parameters
        ----------
        task_id : str
            Id of the task. An unknown task has no rows.

        Returns
        -------
        list of DataRow
            The rows.
        """
        return self.get_bacth_by_task_ids([task_id])[task_id]

    def get_bacth_by_task_ids(self, task_ids: Sequence[str]) -> dict[str, list[DataRow]]:
        """Return the rows of several tasks in order of step.

        The misspelling of the name is AWorld's.

        Parameters
        ----------
        task_ids : sequence of str
            Ids of the tasks. An unknown task has no rows.

        Returns
        -------
        dict of str to list of DataRow
            The rows of each task.
        """
        rows_by_task: dict[str, list[DataRow]] = {task: [] for task in task_ids}
        wanted = list(rows_by_task)
        for start in range(0, len(wanted), _TASKS_AT_ONCE):
            for row in self._rows(
                expdb.QueryBuilder().in_("task_id", wanted[start : start + _TASKS_AT_ONCE])
            ):
                rows_by_task[row.exp_meta.task_id].append(row)
        for rows in rows_by_task.values():
            rows.sort(key=lambda row: row.exp_meta.step)
        return rows_by_task

    def get_task_ids(self, query_condition: Condition = None) -> list[str]:
        """Return the ids of the tasks that have a matching row, ordered by first matching row.

        Parameters
        ----------
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        list of str
            The task ids.
        """
        where = _where(query_condition)
        if where is _IN_PYTHON:
            return super().get_task_ids(query_condition)
        return self.buffer.tasks(where)


class InMemoryStorage(SQLStorage):
    """Store rows in a private temporary database, which is deleted with the storage.

    The storage cannot be passed to other processes.

    Parameters
    ----------
    max_capacity : int
        Maximum number of rows; the oldest rows are evicted first.
    """

    def __init__(self, max_capacity: int = 10000):
        super().__init__(":memory:", max_capacity)

    def __reduce__(self) -> tuple[Any, ...]:
        raise expdb.InvalidValue(
            "an InMemoryStorage cannot be passed to another process; use SQLStorage(path) instead"
        )


# -- rows and conditions in terms of expdb ---------------------------------------------------------


def _wrapped(value: Any) -> dict[str, Any]:
    """Return a value as JSON; the JSON of a pydantic model names its class."""
    if hasattr(value, "model_dump"):
        kind = type(value)
        return {
            "model": f"{kind.__module__}:{kind.__qualname__}",
            "value": value.model_dump(mode="json"),
        }
    return {"value": value}


def _unwrapped(stored: Mapping[str, Any] | None) -> Any:
    """Restore a value from the JSON that `_wrapped` returned.

    Look up only classes of modules that are already imported, and only pydantic models.
    """
    if stored is None or "model" not in stored:
        return None if stored is None else stored["value"]
    module, _, name = stored["model"].partition(":")
    model_class: Any = sys.modules.get(module)
    for part in name.split("."):
        model_class = getattr(model_class, part, None)
    bases = (
        {f"{base.__module__}.{base.__name__}" for base in model_class.__mro__}
        if isinstance(model_class, type)
        else set()
    )
    return (
        model_class.model_validate_json(json.dumps(stored["value"]))
        if "pydantic.main.BaseModel" in bases
        else stored["value"]
    )


def _row(stored: Mapping[str, Any]) -> DataRow:
    tags, reward = stored["tags"] or {}, stored["reward"]
    actions = stored.get("actions")
    return DataRow(
        exp_meta=ExpMeta(
            stored["task_id"],
            stored["task_name"],
            stored["agent_id"],
            stored["step"],
            stored["execute_time"],
            stored["pre_agent"],
        ),
        exp_data=Experience(
            state=_unwrapped(stored.get("state")),
            actions=None if actions is None else [_unwrapped(action) for action in actions],
            reward_t=None if reward is None or reward != reward else reward,
            adv_t=tags.get("adv_t"),
            v_t=tags.get("v_t"),
            messages=stored.get("messages"),
        ),
        id=tags.get("id", ""),
    )


_NAMES = {
    "id": "tags.id",
    "exp_data.reward_t": "reward",
    "exp_data.adv_t": "tags.adv_t",
    "exp_data.v_t": "tags.v_t",
}
_META = frozenset(("task_id", "task_name", "agent_id", "step", "execute_time", "pre_agent"))
_IN_PYTHON: Any = object()  # a condition on a field that is not a column


def _where(condition: Any) -> Any:
    """Return an AWorld condition as a condition of expdb; None selects all rows.

    Return `_IN_PYTHON` if the condition must be checked in Python, for example because it reads
    states or actions.
    """
    if not condition:
        return None
    if isinstance(condition, expdb.QueryBuilder):
        condition = condition.build()
    for join in ("and_", "or_"):
        if join in condition:
            parts = [_where(part) for part in condition[join]]
            return _IN_PYTHON if any(part is _IN_PYTHON for part in parts) else {join: parts}
    field, op, value = condition["field"], condition["op"], condition.get("value")
    name = field.removeprefix("exp_meta.")
    name = _NAMES.get(field) or (name if field.startswith("exp_meta.") and name in _META else None)
    if name is None or (op in ("in", "not_in") and None in value):
        return _IN_PYTHON
    if value is None and op in ("eq", "ne"):
        return {"field": name, "op": "is_null" if op == "eq" else "is_not_null"}
    if op in ("like", "not_like"):
        # AWorld's `like` means "contains", so `%`, `_` and backslash must be escaped in SQL.
        escaped = "".join(
            f"\\{character}" if character in "%_\\" else character for character in value
        )
        return {"field": name, "op": op, "value": f"%{escaped}%"}
    return dict(condition, field=name)
