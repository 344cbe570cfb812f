"""A `DequeBuffer` with the interface of the older buffers, and functions that create buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from expdb.integrations.di_engine.advanced import AdvancedReplayBuffer
from expdb.integrations.di_engine.buffer import DequeBuffer
from expdb.integrations.di_engine.config import Configured, location_of, merged
from expdb.integrations.di_engine.middleware import PriorityExperienceReplay, use_time_check
from expdb.integrations.di_engine.naive import (
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)


class DequeBufferWrapper(Configured):
    """Use a `DequeBuffer` in DI-engine's older pipelines.

    Parameters
    ----------
    cfg : mapping
        Configuration with the keys of DI-engine, and `location`, a path or PostgreSQL URL. By
        default, the location is `replay.db` in the folder `exp_name`.
    tb_logger : SummaryWriter, optional
        TensorBoard logger.
    exp_name : str, optional
        Name of the experiment.
    instance_name : str
        Name of the buffer in the database.

    Raises
    ------
    ValueError
        If a key of `cfg` is unknown.
    CapacityMismatch
        If the stored buffer is larger than `replay_buffer_size`.
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "deque",
        "replay_buffer_size": 10000,
        "max_use": float("inf"),
        "train_iter_per_log": 100,
        "priority": False,
        "priority_IS_weight": False,
        "priority_power_factor": 0.6,
        "IS_weight_power_factor": 0.4,
        "IS_weight_anneal_train_iter": int(1e5),
        "priority_max_limit": 1000,
        "location": None,
    }

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tb_logger: Any = None,
        exp_name: str | None = "default_experiment",
        instance_name: str = "buffer",
    ):
        self.cfg = cfg = merged(self.config, cfg)
        self.name, self.tb_logger = f"{instance_name}_iter", tb_logger
        self.priority_max_limit = cfg.priority_max_limit
        self.buffer = DequeBuffer(
            cfg.replay_buffer_size, location=location_of(cfg, exp_name), name=instance_name
        )
        self._logged_at: int | None = None
        self._last: list[Any] = []
        if cfg.max_use != float("inf"):
            self.buffer.use(use_time_check(self.buffer, max_use=cfg.max_use))
        if cfg.priority:
            self.buffer.use(
                PriorityExperienceReplay(
                    self.buffer, cfg.priority_IS_weight, cfg.priority_power_factor,
                    cfg.IS_weight_power_factor, cfg.IS_weight_anneal_train_iter,
                )
            )  # fmt: skip

    def sample(self, size: int, train_iter: int = 0) -> list[Any] | None:
        """Draw items.

        Parameters
        ----------
        size : int
            Number of items.
        train_iter : int
            Training iteration, for the log.

        Returns
        -------
        list or None
            The data of the items, or None if there are too few. With `priority_IS_weight`, each
            item has its importance weight as `IS`.
        """
        items = self.buffer.sample(size=size, ignore_insufficient=True)
        if not items:
            return None
        self._last = items
        self._log(train_iter)
        data = [item.data for item in items]
        if self.cfg.priority_IS_weight:
            for step, item in zip(data, items, strict=True):
                step["IS"] = item.meta["priority_IS"]
        return data

    def _log(self, train_iter: int) -> None:
        due = self._logged_at is None or train_iter - self._logged_at >= self.cfg.train_iter_per_log
        if self.tb_logger is None or not due:
            return
        self._logged_at = train_iter
        metrics: dict[str, float] = {"buffer_data_count": self.count()}
        for key in ("use_count", "priority"):
            seen = [item.meta[key] for item in self._last if key in item.meta]
            if seen:
                metrics[f"{key}_avg"], metrics[f"{key}_max"] = (
                    float(np.mean(seen)),
                    float(max(seen)),
                )
        for key, value in metrics.items():
            self.tb_logger.add_scalar(f"{self.name}/{key}", value, train_iter)

    def push(self, data: list[Any], cur_collector_envstep: int = -1) -> None:
        """Add a list of items.

        Parameters
        ----------
        data : list
            The items. With `cfg.priority`, the key `priority` of an item sets its priority.
        cur_collector_envstep : int
            Ignored.
        """
        for item in data:
            meta = {}
            if self.cfg.priority and "priority" in item:
                item = dict(item)
                meta["priority"] = item.pop("priority")
            self.buffer.push(item, meta=meta)

    def update(self, meta: Mapping[str, Any]) -> None:
        """Set the priorities of the items of the last sample.

        Do nothing unless `cfg.priority` is set.

        Parameters
        ----------
        meta : mapping
            `priority` is a list with one priority per item. Greater priorities than
            `priority_max_limit` are reduced to that limit.
        """
        if not self.cfg.priority:
            return
        for item, priority in zip(self._last, meta["priority"], strict=True):
            item.meta["priority"] = min(self.priority_max_limit, priority)
            self.buffer.update(item.index, data=None, meta=item.meta)
        self._last = []

    def count(self) -> int:
        """Return the number of stored items.

        Returns
        -------
        int
            The number of items.
        """
        return self.buffer.count()

    def clear(self) -> None:
        """Delete all items."""
        self.buffer.clear()

    def save_data(self, file_name: str) -> None:
        """Save the items to a separate database file; see `saved.save`.

        Parameters
        ----------
        file_name : str or path-like
            Path of the file.
        """
        self.buffer.save_data(file_name)

    def load_data(self, file_name: str) -> None:
        """Replace the items with the items of a file that `save_data` wrote; see `saved.load`.

        Parameters
        ----------
        file_name : str or path-like
            Path of the file.
        """
        self.buffer.load_data(file_name)

    def close(self) -> None:
        """Write all pushed items and close the database."""
        self.buffer.close()


BUFFERS: dict[str, type[Any]] = {
    "naive": NaiveReplayBuffer,
    "elastic": ElasticReplayBuffer,
    "sequence": SequenceReplayBuffer,
    "advanced": AdvancedReplayBuffer,
    "episode": EpisodeReplayBuffer,
    "deque": DequeBufferWrapper,
}


def get_buffer_cls(cfg: Mapping[str, Any]) -> type[Any]:
    """Return the buffer class of a config.

    Parameters
    ----------
    cfg : mapping
        Configuration. Its `type` is a key of `BUFFERS`.

    Returns
    -------
    type
        The class.

    Raises
    ------
    KeyError
        If the type is unknown.
    ValueError
        If `cfg` has `import_names`. Import these modules in your program instead.
    """
    if cfg.get("import_names"):
        raise ValueError("import_names is not supported; import the modules in your program")
    try:
        return BUFFERS[cfg["type"]]
    except KeyError:
        raise KeyError(
            f"{cfg.get('type')!r} is not a buffer type; expected one of {', '.join(BUFFERS)}"
        ) from None


def create_buffer(cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Create a buffer of the class that `get_buffer_cls` returns for its config.

    Parameters
    ----------
    cfg : mapping
        Configuration of the buffer; see `get_buffer_cls`.
    *args, **kwargs
        Further arguments of the class.

    Returns
    -------
    IBuffer or DequeBufferWrapper
        The buffer.

    Raises
    ------
    KeyError
        If the type is unknown.
    ValueError
        If `cfg` has `import_names` or an unknown key.
    """
    return get_buffer_cls(cfg)(cfg, *args, **kwargs)
