"""The newer buffer with the older one's interface, and buffers by the name of their type."""

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
    """A `DequeBuffer` for DI-engine's older pipelines; its config has `location` as well."""

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
        """Return `size` items, or None where there are too few."""
        found = self.buffer.sample(size=size, ignore_insufficient=True)
        if not found:
            return None
        self._last = found
        self._log(train_iter)
        data = [item.data for item in found]
        if self.cfg.priority_IS_weight:
            for one, item in zip(data, found, strict=True):
                one["IS"] = item.meta["priority_IS"]
        return data

    def _log(self, train_iter: int) -> None:
        due = self._logged_at is None or train_iter - self._logged_at >= self.cfg.train_iter_per_log
        if self.tb_logger is None or not due:
            return
        self._logged_at = train_iter
        told: dict[str, float] = {"buffer_data_count": self.count()}
        for key in ("use_count", "priority"):
            seen = [item.meta[key] for item in self._last if key in item.meta]
            if seen:
                told[f"{key}_avg"], told[f"{key}_max"] = float(np.mean(seen)), float(max(seen))
        for key, value in told.items():
            self.tb_logger.add_scalar(f"{self.name}/{key}", value, train_iter)

    def push(self, data: list[Any], cur_collector_envstep: int = -1) -> None:
        """Add a list of items."""
        for one in data:
            meta = {}
            if self.cfg.priority and "priority" in one:
                one = dict(one)
                meta["priority"] = one.pop("priority")
            self.buffer.push(one, meta=meta)

    def update(self, meta: Mapping[str, Any]) -> None:
        """Set the priorities of the items of the last sample."""
        if not self.cfg.priority:
            return
        for item, priority in zip(self._last, meta["priority"], strict=True):
            item.meta["priority"] = min(self.priority_max_limit, priority)
            self.buffer.update(item.index, data=None, meta=item.meta)
        self._last = []

    def count(self) -> int:
        """Return how many items are held."""
        return self.buffer.count()

    def clear(self) -> None:
        """Delete all items."""
        self.buffer.clear()

    def save_data(self, file_name: str) -> None:
        """Save the items in a new database file."""
        self.buffer.save_data(file_name)

    def load_data(self, file_name: str) -> None:
        """Hold the items of a file that `save_data` has written."""
        self.buffer.load_data(file_name)

    def close(self) -> None:
        """Flush, and close the database."""
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
    """Return the class of a config's `type`."""
    if cfg.get("import_names"):
        raise ValueError("import_names cannot be honoured: import the modules in your program")
    try:
        return BUFFERS[cfg["type"]]
    except KeyError:
        raise KeyError(
            f"no buffer of the type {cfg.get('type')!r}: there are {', '.join(BUFFERS)}"
        ) from None


def create_buffer(cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Return a buffer by its config."""
    return get_buffer_cls(cfg)(cfg, *args, **kwargs)
