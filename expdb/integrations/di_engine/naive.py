"""DI-engine's uniform buffers: naive, elastic, sequence and episode."""

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
from expdb.integrations.positions import AtIndices


class IBuffer(Configured, ABC):
    """The interface of buffers in DI-engine's older pipelines."""

    @abstractmethod
    def push(self, data: Any, cur_collector_envstep: int) -> None:
        """Add one item or a list of items.

        Parameters
        ----------
        data : object or list
            An item or a list of items.
        cur_collector_envstep : int
            Number of environment steps of the collector.
        """

    @abstractmethod
    def update(self, info: Any) -> None:
        """Process information from the learner, such as new priorities.

        Parameters
        ----------
        info : object
            The information.
        """

    @abstractmethod
    def sample(self, size: int, cur_learner_iter: int) -> list[Any] | None:
        """Draw items.

        Parameters
        ----------
        size : int
            Number of items.
        cur_learner_iter : int
            Iteration of the learner.

        Returns
        -------
        list or None
            The items, or None if there are too few.
        """

    @abstractmethod
    def clear(self) -> None:
        """Delete all items."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of stored items.

        Returns
        -------
        int
            The number of items.
        """

    @abstractmethod
    def save_data(self, file_name: str) -> None:
        """Save the items to a separate file.

        Parameters
        ----------
        file_name : str
            Path of the file.
        """

    @abstractmethod
    def load_data(self, file_name: str) -> None:
        """Push the items of a file that `save_data` wrote.

        Parameters
        ----------
        file_name : str
            Path of the file.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the items and the state of the buffer.

        Returns
        -------
        dict
            A state for `load_state_dict`.
        """

    @abstractmethod
    def load_state_dict(self, _state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Parameters
        ----------
        _state_dict : dict
            A state that `state_dict` returned.
        """


class NaiveReplayBuffer(IBuffer):
    """Store the newest `replay_buffer_size` items and draw uniformly.

    Sampled items are always copies; the option `deepcopy` has no effect.

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
        Name of the buffer in the database. An existing buffer keeps its contents.

    Raises
    ------
    ValueError
        If a key of `cfg` is unknown.
    CapacityMismatch
        If the stored buffer is larger than `replay_buffer_size`.
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
        """The largest number of items, an int."""
        return self._replay_buffer_size

    @property
    def push_count(self) -> int:
        """The number of items pushed before this object opened the buffer and by this object."""
        return self.items.pushed

    def start(self) -> None:
        """With `enable_track_used_data`, start the thread that deletes files of removed items."""
        if self._remover is not None:
            self._remover.start()

    def close(self) -> None:
        """Write all pushed items and close the database. A private database is then deleted."""
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
        """Add one item or a list of items.

        Parameters
        ----------
        data : object or list
            An item or a list of items. Items are built from values such as numbers,
            text, arrays, tensors, dicts, lists and tuples.
        cur_collector_envstep : int
            Ignored.

        Raises
        ------
        InvalidValue
            If an item cannot be stored exactly.
        """
        items = data if isinstance(data, list) else [data]
        with self.items.lock:
            self._track_evicted(len(items))
            for item in items:
                self._push(item)
        self._monitor.count("push", len(items))

    def _push(self, item: Any) -> None:
        self.items.push(item)

    def _track_evicted(self, count: int) -> None:
        """Schedule the removal of the files of items that `count` new items will evict."""
        if self._remover is None:
            return
        over = len(self.items) + count - self._replay_buffer_size
        if over <= 0:
            return
        places = np.arange(min(over, len(self.items)))
        for item in self.items.draw(len(places), AtIndices(places))[0]:
            self._remover.add_used_data(item)

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[Any] | None:
        """Draw items uniformly.

        Parameters
        ----------
        size : int
            Number of items.
        cur_learner_iter : int
            Ignored.
        sample_range : slice, optional
            Slice of the items to draw from; 0 is the oldest item, and `slice(-10, None)` the ten
            newest items.
        replace : bool
            Whether an item may be drawn more than once.

        Returns
        -------
        list or None
            Copies of the items, or None if there are too few.
        """
        if size == 0:
            return []

        def choose(count: int) -> np.ndarray:
            places = np.arange(count) if sample_range is None else np.arange(count)[sample_range]
            if not self._is_enough(len(places), size, replace):
                raise expdb.TooFewRows(
                    f"cannot sample {size} items, because only {len(places)} items are "
                    "available; reduce size, or push more items"
                )
            return np.random.choice(places, size, replace)

        try:
            items = self.items.draw_with_unwritten(size, choose)[0]
        except expdb.TooFewRows:
            return None
        self._monitor.count("sample", size)
        return items

    def _is_enough(self, count: int, size: int, replace: bool) -> bool:
        if count >= (1 if replace else size):
            return True
        logger.info(
            "buffer %s: cannot sample %d items; only %d are available",
            self._instance_name,
            size,
            count,
        )
        return False

    def update(self, info: Any) -> None:
        """Log a warning: a uniform buffer has no priorities to update.

        Parameters
        ----------
        info : object
            Ignored.
        """
        logger.warning("%s ignores update() because it has no priorities", type(self).__name__)

    def clear(self) -> None:
        """Delete all items. `push_count` keeps its value."""
        with self.items.lock:
            if self._remover is not None:
                for item in self.items.all()[0]:
                    self._remover.add_used_data(item)
            self.items.clear()

    def count(self) -> int:
        """Return the number of stored items.

        Returns
        -------
        int
            The number of items.
        """
        return len(self.items)

    def save_data(self, file_name: str | os.PathLike[str]) -> None:
        """Save the items to a separate database file; see `saved.save`.

        Parameters
        ----------
        file_name : str or path-like
            Path of the file.
        """
        save(self.items, file_name)

    def load_data(self, file_name: str | os.PathLike[str]) -> None:
        """Push the items of a file that `save_data` wrote; see `saved.load`.

        Parameters
        ----------
        file_name : str or path-like
            Path of the file.
        """
        self.push([value for value, _ in load(file_name)], 0)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the items, oldest first, with `valid_count` and `push_count`.

        Returns
        -------
        dict
            A state for `load_state_dict`.
        """
        items = self.items.all()[0]
        return {"data": items, "valid_count": len(items), "push_count": self.push_count}

    def load_state_dict(self, _state_dict: dict[str, Any]) -> None:
        """Replace the items with the items of a state.

        If "data" is the only key of the state, add its items to the stored items instead.

        Parameters
        ----------
        _state_dict : dict
            A state that `state_dict` returned.
        """
        if set(_state_dict) != {"data"}:
            self.clear()
        self.push([item for item in _state_dict["data"] if item is not None], 0)


class ElasticReplayBuffer(NaiveReplayBuffer):
    """Draw uniformly from the newest `set_buffer_size(envstep)` items.

    Parameters
    ----------
    cfg : mapping
        Configuration of `NaiveReplayBuffer`, and the function `set_buffer_size`.
    *args, **options
        Further arguments of `NaiveReplayBuffer`.

    Raises
    ------
    ValueError
        If `set_buffer_size` is not a function, or a key of `cfg` is unknown.
    """

    config: ClassVar[dict[str, Any]] = {
        **NaiveReplayBuffer.config, "type": "elastic", "set_buffer_size": None,
    }  # fmt: skip

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **options: Any):
        if not callable(cfg.get("set_buffer_size")):
            raise ValueError(
                "set_buffer_size is required; pass a function from envstep to a number of items"
            )
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
        """Draw uniformly from the newest items.

        Parameters
        ----------
        size : int
            Number of items.
        cur_learner_iter : int
            Ignored.
        sample_range : slice, optional
            Must be None.
        replace : bool
            Whether an item may be drawn more than once.

        Returns
        -------
        list or None
            Copies of the items, or None if there are too few.

        Raises
        ------
        ValueError
            If `sample_range` is given.
        """
        if sample_range is not None:
            raise ValueError("an elastic buffer does not support sample_range; omit sample_range")
        newest = slice(-self._current_buffer_size, None)
        return super().sample(size, cur_learner_iter, newest, replace)

    def update(self, envstep: int) -> None:
        """Set the number of newest items to draw from to `set_buffer_size(envstep)`.

        Parameters
        ----------
        envstep : int
            Step of the environment.
        """
        self._current_buffer_size = self._set_buffer_size(envstep)


class SequenceReplayBuffer(NaiveReplayBuffer):
    """Draw windows of consecutive items.

    Parameters
    ----------
    cfg : mapping
        Configuration, as for `NaiveReplayBuffer`.
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

    config: ClassVar[dict[str, Any]] = {**NaiveReplayBuffer.config, "type": "sequence"}

    def sample(  # type: ignore[override]
        self,
        batch: int,
        sequence: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[list[Any]] | None:
        """Draw windows of consecutive items.

        Parameters
        ----------
        batch : int
            Number of windows.
        sequence : int
            Number of items in a window.
        cur_learner_iter : int
            Ignored.
        sample_range : slice, optional
            Must be None.
        replace : bool
            Whether the buffer may have fewer than `batch * sequence` items.

        Returns
        -------
        list of list or None
            The windows, or None if there are too few items.

        Raises
        ------
        ValueError
            If `sample_range` is given.
        """
        if sample_range is not None:
            raise ValueError("a sequence buffer does not support sample_range; omit sample_range")
        if batch == 0:
            return []
        with self.items.lock:
            count = len(self.items)
            if count < sequence or not self._is_enough(count, batch * sequence, replace):
                return None
            starts = np.random.randint(0, count - sequence + 1, batch)
            places = (starts[:, None] + np.arange(sequence)).reshape(-1)
            items = self.items.draw(batch * sequence, AtIndices(places))[0]
        self._monitor.count("sample", batch)
        return [items[k : k + sequence] for k in range(0, len(items), sequence)]


class EpisodeReplayBuffer(NaiveReplayBuffer):
    """Store and draw whole episodes. Each episode is one item, a list of steps.

    Parameters
    ----------
    cfg : mapping
        Configuration, as for `NaiveReplayBuffer`.
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

    config: ClassVar[dict[str, Any]] = {**NaiveReplayBuffer.config, "type": "episode"}

    def push(self, data: Any, cur_collector_envstep: int = -1) -> None:
        """Add one episode or a list of episodes.

        Parameters
        ----------
        data : list
            A list of dicts is one episode; a list of lists is several episodes.
        cur_collector_envstep : int
            Ignored.
        """
        several = isinstance(data, list) and all(isinstance(entry, list) for entry in data)
        super().push(data if several else [data], cur_collector_envstep)

    @property
    def episode_len(self) -> list[int]:
        """A list of the lengths of the episodes, oldest first."""
        return [len(episode) for episode in self.items.all()[0]]
