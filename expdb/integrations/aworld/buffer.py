"""AWorld's ReplayBuffer: stores rows, samples tasks."""

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
    """Keeps rows in a storage and samples them by task.

    Alone, it has a private database of its own.
    """

    def __init__(self, storage: Storage | None = None):
        self._storage = InMemoryStorage() if storage is None else storage

    @property
    def storage(self) -> Storage:
        """Where the rows are."""
        return self._storage

    def store(self, data: DataRow) -> None:
        """Store a row; it is durable when this returns. Raises ValueError for none."""
        if not data:
            raise ValueError("data is required: give a DataRow")
        self._storage.add(data)

    def store_batch(self, data_batch: Sequence[DataRow]) -> None:
        """Store rows, all or none of them."""
        if not data_batch:
            logger.warning("store_batch was given no rows")
            return
        self._storage.add_batch(data_batch)

    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: Converter | None = None,
        batch_size: int = 1000,
    ) -> list[Any]:
        """Return what the converter makes of the rows of each of up to `batch_size` tasks.

        In order of step.
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
        """Return what the converter makes of a sample: by default a dict of rows by task id."""
        sampler, converter = sampler or RandomTaskSample(), converter or DefaultConverter()
        return converter.to_dataset_row(sampler.sample(self._storage, batch_size, query_condition))
