"""Samplers, which choose tasks, and converters, which convert the rows of a sample."""

import random
from abc import ABC, abstractmethod
from typing import Any

from expdb.integrations.aworld.rows import DataRow
from expdb.integrations.aworld.storage import Storage

Condition = dict[str, Any] | None


class Sampler(ABC):
    """Base class of samplers, which choose rows of a storage."""

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int, query_condition: Condition = None) -> Any:
        """Return a sample of the rows of a storage.

        Parameters
        ----------
        storage : Storage
            The storage to sample.
        batch_size : int
            Size of the sample.
        query_condition : dict, optional
            Selects the rows; by default, all rows.

        Returns
        -------
        object
            The sample.
        """


class TaskSampler(Sampler):
    """Base class of samplers of whole tasks; `sample_task_ids` chooses the tasks.

    A condition selects tasks. A sample has all rows of the chosen tasks.
    """

    @abstractmethod
    def sample_task_ids(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[str]:
        """Return the ids of up to `batch_size` distinct tasks that have a matching row.

        Parameters
        ----------
        storage : Storage
            The storage to sample.
        batch_size : int
            Largest number of tasks.
        query_condition : dict, optional
            Selects the tasks that have a matching row; by default, all tasks.

        Returns
        -------
        list of str
            The task ids.
        """

    def sample(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of the chosen tasks, by task id.

        Parameters
        ----------
        storage : Storage
            The storage to sample.
        batch_size : int
            Largest number of tasks.
        query_condition : dict, optional
            Selects the tasks that have a matching row; by default, all tasks.

        Returns
        -------
        dict of str to list of DataRow
            All rows of each chosen task.
        """
        return storage.get_bacth_by_task_ids(
            self.sample_task_ids(storage, batch_size, query_condition)
        )

    def sample_tasks(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of the chosen tasks, by task id, in order of step and time.

        Parameters
        ----------
        storage : Storage
            The storage to sample.
        batch_size : int
            Largest number of tasks.
        query_condition : dict, optional
            Selects the tasks that have a matching row; by default, all tasks.

        Returns
        -------
        dict of str to list of DataRow
            All rows of each chosen task.
        """
        rows_by_task = self.sample(storage, batch_size, query_condition)
        return {
            task: sorted(rows, key=lambda row: (row.exp_meta.step, row.exp_meta.execute_time))
            for task, rows in rows_by_task.items()
        }


class RandomTaskSample(TaskSampler):
    """Choose tasks uniformly among the tasks that have a matching row.

    If there are fewer than `batch_size` such tasks, choose all of them.
    """

    def sample_task_ids(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[str]:
        """Return the ids of up to `batch_size` matching tasks, distinct and in random order.

        Parameters
        ----------
        storage : Storage
            The storage to sample.
        batch_size : int
            Largest number of tasks.
        query_condition : dict, optional
            Selects the tasks that have a matching row; by default, all tasks.

        Returns
        -------
        list of str
            The task ids.
        """
        tasks = storage.get_task_ids(query_condition)
        return random.sample(tasks, min(batch_size, len(tasks)))


class Converter(ABC):
    """Base class of converters, which convert the rows of a sample for a trainer."""

    @abstractmethod
    def to_dataset_row(self, rows: Any) -> Any:
        """Return the converted rows.

        Parameters
        ----------
        rows : object
            The rows of a sample.

        Returns
        -------
        object
            The converted rows.
        """


class DefaultConverter(Converter):
    """Return rows unchanged."""

    def to_dataset_row(self, rows: Any) -> Any:
        """Return the rows.

        Parameters
        ----------
        rows : object
            The rows of a sample.

        Returns
        -------
        object
            The converted rows.
        """
        return rows
