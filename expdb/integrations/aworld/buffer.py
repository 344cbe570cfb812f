"""A ReplayBuffer with AWorld's API: it stores rows and samples tasks."""

import logging
from collections.abc import Sequence
from typing import Any

from expdb.integrations.aworld.rows import DataRow
from expdb.integrations.aworld.samplers import (
    Condition,
    Converter,
    DefaultConverter,
    RandomTaskSample,
    Sampler,
    TaskSampler,
)
from expdb.integrations.aworld.storage import InMemoryStorage, Storage

logger = logging.getLogger(__name__)


class ReplayBuffer:
    """Store rows in a storage and sample them by task.

    Parameters
    ----------
    storage : Storage, optional
        The storage of the rows; by default an `InMemoryStorage`, a private temporary database.
    """

    def __init__(self, storage: Storage | None = None):
        self._storage = InMemoryStorage() if storage is None else storage

    @property
    def storage(self) -> Storage:
        """The storage of the rows."""
        return self._storage

    def store(self, data: DataRow) -> None:
        """Store a row.

        With the storages of expdb, the row is durable when the method returns.

        Parameters
        ----------
        data : DataRow
            The row to store.

        Raises
        ------
        ValueError
            If `data` is None.
        """
        if not data:
            raise ValueError("data must be a DataRow, got None")
        self._storage.add(data)

    def store_batch(self, data_batch: Sequence[DataRow]) -> None:
        """Store either all rows or none.

        Parameters
        ----------
        data_batch : sequence of DataRow
            The rows to store. An empty sequence only logs a warning.
        """
        if not data_batch:
            logger.warning("store_batch() got no rows; nothing is stored")
            return
        self._storage.add_batch(data_batch)

    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: Converter | None = None,
        batch_size: int = 1000,
    ) -> list[Any]:
        """Sample tasks, and convert the rows of each task.

        Parameters
        ----------
        sampler : TaskSampler, optional
            Chooses the tasks; by default `RandomTaskSample`.
        query_condition : dict, optional
            Selects the tasks that have a matching row. By default, all tasks.
        converter : Converter, optional
            Converts the rows of each task; by default it returns them unchanged.
        batch_size : int
            Maximum number of tasks.

        Returns
        -------
        list
            The converted rows of each task. The rows are in order of step and time.
        """
        sampler, converter = sampler or RandomTaskSample(), converter or DefaultConverter()
        return [
            converter.to_dataset_row(rows)
            for rows in sampler.sample_tasks(self._storage, batch_size, query_condition).values()
        ]

    def sample(
        self,
        sampler: Sampler | None = None,
        query_condition: Condition = None,
        converter: Converter | None = None,
        batch_size: int = 1000,
    ) -> Any:
        """Sample rows, and convert the whole sample.

        Parameters
        ----------
        sampler : Sampler, optional
            Chooses the rows; by default `RandomTaskSample`.
        query_condition : dict, optional
            The condition that is passed to the sampler.
        converter : Converter, optional
            Converts the sample; by default it returns the sample unchanged.
        batch_size : int
            The size that is passed to the sampler. For `RandomTaskSample`, this is the maximum
            number of tasks.

        Returns
        -------
        object
            The converted sample; by default, a dict that maps each task id to a list of rows.
        """
        sampler, converter = sampler or RandomTaskSample(), converter or DefaultConverter()
        return converter.to_dataset_row(sampler.sample(self._storage, batch_size, query_condition))
