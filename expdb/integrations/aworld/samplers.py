"""Which tasks a sample has, and what becomes of their rows."""

import random
from abc import ABC, abstractmethod
from typing import Any

from expdb.integrations.aworld.rows import DataRow
from expdb.integrations.aworld.storage import Storage

Condition = dict[str, Any] | None


class Sampler(ABC):
    """Chooses rows of a storage."""

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int, query_condition: Condition = None) -> Any:
        """Return a sample."""


class TaskSampler(Sampler):
    """Chooses tasks; `sample_task_ids` says which.

    A condition selects tasks: all rows of those tasks come.
    """

    @abstractmethod
    def sample_task_ids(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[str]:
        """Return the ids of up to `batch_size` distinct tasks that have a matching row."""

    def sample(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of the chosen tasks, by task id."""
        return storage.get_bacth_by_task_ids(
            self.sample_task_ids(storage, batch_size, query_condition)
        )

    def sample_tasks(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of the chosen tasks, by task id, in order of step and time."""
        found = self.sample(storage, batch_size, query_condition)
        return {
            task: sorted(rows, key=lambda row: (row.exp_meta.step, row.exp_meta.execute_time))
            for task, rows in found.items()
        }


class RandomTaskSample(TaskSampler):
    """Chooses tasks uniformly among those that have a matching row.

    It chooses all of them where there are fewer than asked for.
    """

    def sample_task_ids(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[str]:
        """Return the ids of up to `batch_size` distinct tasks that have a matching row.

        In random order.
        """
        tasks = storage.get_task_ids(query_condition)
        return random.sample(tasks, min(batch_size, len(tasks)))


class Converter(ABC):
    """Makes of the rows of a sample what a trainer wants."""

    @abstractmethod
    def to_dataset_row(self, rows: Any) -> Any:
        """Return what the rows become."""


class DefaultConverter(Converter):
    """Leaves rows as they are."""

    def to_dataset_row(self, rows: Any) -> Any:
        """Return the rows."""
        return rows
