"""DI-engine's uniform buffers: naive, elastic, sequence, episode."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

import expdb
from expdb.integrations.di_engine.config import Configured, location_of, merged
from expdb.integrations.di_engine.items import Items
from expdb.integrations.di_engine.monitors import PeriodicThruputMonitor, UsedDataRemover, logger
from expdb.integrations.di_engine.saved import load, save
from expdb.integrations.positions import Places


class IBuffer(Configured, ABC):
    """What DI-engine's older pipelines ask of a buffer."""

    @abstractmethod
    def push(self, data: Any, cur_collector_envstep: int) -> None:
        """Add one item, or a list of them."""

    @abstractmethod
    def update(self, info: Any) -> None:
        """Take what the learner tells of items."""

    @abstractmethod
    def sample(self, size: int, cur_learner_iter: int) -> list[Any] | None:
        """Draw items; None where there are too few."""

    @abstractmethod
    def clear(self) -> None:
        """Delete all items."""

    @abstractmethod
    def count(self) -> int:
        """Return how many items are held."""

    @abstractmethod
    def save_data(self, file_name: str) -> None:
        """Save the items in a file of their own."""

    @abstractmethod
    def load_data(self, file_name: str) -> None:
        """Push the items of a file that `save_data` has written."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the items, and what the buffer knows of them."""

    @abstractmethod
    def load_state_dict(self, _state_dict: dict[str, Any]) -> None:
        """Hold what `state_dict` returned."""


class NaiveReplayBuffer(IBuffer):
    """Hold the newest `replay_buffer_size` items, and draw uniformly.

    The config's keys are DI-engine's, and `location`, a path or a PostgreSQL URL (default: in the
    folder `exp_name`). The buffer in the database is called `instance_name`, and what it holds is
    gone on with. `deepcopy` is as good as always True. Raises ValueError for an unknown key.
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "naive",
        "replay_buffer_size": 10000,
        "deepcopy": False,
        "enable_track_used_data": False,
        "periodic_thruput_seconds": 60,
        "location": None,
    }

    def __init__(
        self,
        cfg: Mapping[str, Any],
        tb_logger: Any = None,
        exp_name: str | None = "default_experiment",
        instance_name: str = "buffer",
    ):
        self._cfg = merged(self.config, cfg)
        self._exp_name, self._instance_name = exp_name, instance_name
        self._is_closed = False
        self._replay_buffer_size = int(self._cfg.replay_buffer_size)
        self.items = Items(
            location_of(self._cfg, exp_name), instance_name, self._replay_buffer_size
        )
        self._remover = UsedDataRemover() if self._cfg.enable_track_used_data else None
        self._monitor = PeriodicThruputMonitor(
            instance_name, {"seconds": self._seconds()}, logger, tb_logger, self.count
        )

    def _seconds(self) -> float:
        return float(self._cfg.periodic_thruput_seconds)

    @property
    def replay_buffer_size(self) -> int:
        """How many items are held at most."""
        return self._replay_buffer_size

    @property
    def push_count(self) -> int:
        """How many items were ever pushed, by anybody."""
        return self.items.pushed

    def start(self) -> None:
        """Begin to remove files, with `enable_track_used_data`."""
        if self._remover is not None:
            self._remover.start()

    def close(self) -> None:
        """Flush and close; the items stay in the database."""
        if self._is_closed:
            return
        self._is_closed = True
        self._monitor.close()
        self.items.close()
        if self._remover is not None:
            self._remover.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(self, data: Any, cur_collector_envstep: int = -1) -> None:
        """Add one item, or a list of items; any values that `Records` keeps."""
        items = data if isinstance(data, list) else [data]
        with self.items.lock:
            self._track_evicted(len(items))
            for item in items:
                self._push(item)
        self._monitor.count("push", len(items))

    def _push(self, item: Any) -> None:
        self.items.push(item)

    def _track_evicted(self, count: int) -> None:
        """Have the files of those items removed that make room for new ones."""
        if self._remover is None:
            return
        over = len(self.items) + count - self._replay_buffer_size
        if over <= 0:
            return
        places = np.arange(min(over, len(self.items)))
        for item in self.items.draw(len(places), Places(places))[0]:
            self._remover.add_used_data(item)

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[Any] | None:
        """Return `size` items, None where there are too few.

        `sample_range` counts by age: slice(-10, None) are the ten newest.
        """
        if size == 0:
            return []

        def choose(count: int) -> np.ndarray:
            places = np.arange(count) if sample_range is None else np.arange(count)[sample_range]
            if not self._is_enough(len(places), size, replace):
                raise expdb.TooFewRows(f"cannot sample {size} items from {len(places)}")
            return np.random.choice(places, size, replace)

        try:
            items = self.items.draw_with_unwritten(size, choose)[0]
        except expdb.TooFewRows:
            return None
        self._monitor.count("sample", size)
        return items

    def _is_enough(self, held: int, size: int, replace: bool) -> bool:
        if held >= (1 if replace else size):
            return True
        logger.info("buffer %s: %d items wanted, %d held", self._instance_name, size, held)
        return False

    def update(self, info: Any) -> None:
        """Do nothing but say so: a uniform buffer has no priorities."""
        logger.warning("%s has nothing to update", type(self).__name__)

    def clear(self) -> None:
        """Delete all items; `push_count` counts on."""
        with self.items.lock:
            if self._remover is not None:
                for item in self.items.all()[0]:
                    self._remover.add_used_data(item)
            self.items.clear()

    def count(self) -> int:
        """Return how many items are held."""
        return len(self.items)

    def save_data(self, file_name: str | os.PathLike[str]) -> None:
        """Save the items in a database file of their own: see `saved.save`."""
        save(self.items, file_name)

    def load_data(self, file_name: str | os.PathLike[str]) -> None:
        """Push the items of a file that `save_data` has written: see `saved.load`."""
        self.push([value for value, _ in load(file_name)], 0)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the items, oldest first, and the counts."""
        items = self.items.all()[0]
        return {"data": items, "valid_count": len(items), "push_count": self.push_count}

    def load_state_dict(self, _state_dict: dict[str, Any]) -> None:
        """Hold what `state_dict` returned; with "data" alone, its items are added."""
        if set(_state_dict) != {"data"}:
            self.clear()
        self.push([item for item in _state_dict["data"] if item is not None], 0)


class ElasticReplayBuffer(NaiveReplayBuffer):
    """Draw from the newest `set_buffer_size(envstep)` items; that function is in the config."""

    config: ClassVar[dict[str, Any]] = {
        **NaiveReplayBuffer.config, "type": "elastic", "set_buffer_size": None,
    }  # fmt: skip

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **options: Any):
        if not callable(cfg.get("set_buffer_size")):
            raise ValueError("set_buffer_size is missing: give a function of the envstep")
        super().__init__(cfg, *args, **options)
        self._set_buffer_size = self._cfg.set_buffer_size
        self._current_buffer_size = self._set_buffer_size(0)

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[Any] | None:
        """Return `size` of the newest items, None where there are too few."""
        if sample_range is not None:
            raise ValueError("an elastic buffer has a range of its own: leave sample_range out")
        newest = slice(-self._current_buffer_size, None)
        return super().sample(size, cur_learner_iter, newest, replace)

    def update(self, envstep: int) -> None:
        """Draw from so many of the newest items as `set_buffer_size` says from now on."""
        self._current_buffer_size = self._set_buffer_size(envstep)


class SequenceReplayBuffer(NaiveReplayBuffer):
    """Draw windows of items that were pushed one after another."""

    config: ClassVar[dict[str, Any]] = {**NaiveReplayBuffer.config, "type": "sequence"}

    def sample(  # type: ignore[override]
        self,
        batch: int,
        sequence: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[list[Any]] | None:
        """Return `batch` lists of `sequence` neighbours, None where there are too few."""
        if sample_range is not None:
            raise ValueError("sample_range cannot be honoured for windows: leave it out")
        if batch == 0:
            return []
        with self.items.lock:
            held = len(self.items)
            if held < sequence or not self._is_enough(held, batch * sequence, replace):
                return None
            starts = np.random.randint(0, held - sequence + 1, batch)
            places = (starts[:, None] + np.arange(sequence)).reshape(-1)
            items = self.items.draw(batch * sequence, Places(places))[0]
        self._monitor.count("sample", batch)
        return [items[k : k + sequence] for k in range(0, len(items), sequence)]


class EpisodeReplayBuffer(NaiveReplayBuffer):
    """Hold whole episodes, each a list of steps, and draw them whole.

    A list of dicts is one episode, a list of lists several.
    """

    config: ClassVar[dict[str, Any]] = {**NaiveReplayBuffer.config, "type": "episode"}

    def push(self, data: Any, cur_collector_envstep: int = -1) -> None:
        """Add one episode, or a list of episodes."""
        several = isinstance(data, list) and all(isinstance(one, list) for one in data)
        super().push(data if several else [data], cur_collector_envstep)

    @property
    def episode_len(self) -> list[int]:
        """The lengths of the episodes, oldest first."""
        return [len(episode) for episode in self.items.all()[0]]
