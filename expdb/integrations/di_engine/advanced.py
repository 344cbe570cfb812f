"""DI-engine's prioritized buffer, which limits uses, staleness and the push-to-sample ratio."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

import expdb
from expdb.integrations.di_engine.monitors import (
    SampledDataAttrMonitor,
    ThruputController,
    generate_id,
    logger,
)
from expdb.integrations.di_engine.naive import NaiveReplayBuffer
from expdb.integrations.di_engine.saved import load

EPSILON = 1e-5  # DI-engine adds it to updated priorities


class AdvancedReplayBuffer(NaiveReplayBuffer):
    """Draw items in proportion to their priority, with stratified sampling.

    Items are dicts. Pushed dicts are not modified. Sampled items are copies that also have
    `priority`, `IS` (the importance weight), `use` (how often this process has sampled the item),
    `staleness`, `replay_unique_id` and `replay_buffer_idx`. An item is sampled at most `max_use`
    times, even if one sample draws the item repeatedly or the program restarts. An item is removed
    if `cur_learner_iter - collect_iter >= max_staleness`.

    Parameters
    ----------
    cfg : mapping
        Configuration with the keys of DI-engine, and `location`, a path or PostgreSQL URL. By
        default, the location is `replay.db` in the folder `exp_name`.
    *args, **options
        Further arguments of `NaiveReplayBuffer`.

    Raises
    ------
    ValueError
        If a key of `cfg` is unknown, or `push_sample_rate_limit` is invalid.
    AssertionError
        If `alpha` or `beta` is not between 0 and 1, or `sample_min_limit_ratio` is below 1.
    CapacityMismatch
        If the stored buffer is larger than `replay_buffer_size`.
    ConsumerMismatch
        If the stored buffer has another `max_use`.

    References
    ----------
    Schaul et al. (2016), *Prioritized Experience Replay*, arXiv:1511.05952.
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "advanced",
        "replay_buffer_size": 4096,
        "max_use": float("inf"),
        "max_staleness": float("inf"),
        "alpha": 0.6,
        "beta": 0.4,
        "anneal_step": int(1e5),
        "enable_track_used_data": False,
        "deepcopy": False,
        "thruput_controller": {
            "push_sample_rate_limit": {"max": float("inf"), "min": 0},
            "window_seconds": 30,
            "sample_min_limit_ratio": 1,
        },
        "monitor": {
            "sampled_data_attr": {"average_range": 5, "print_freq": 200},
            "periodic_thruput": {"seconds": 60},
        },
        "location": None,
    }

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **options: Any):
        super().__init__(cfg, *args, **options)
        self.alpha, self._beta = float(self._cfg.alpha), float(self._cfg.beta)
        assert 0 <= self.alpha <= 1, self.alpha
        assert 0 <= self._beta <= 1, self._beta
        anneal = self._cfg.anneal_step
        self._beta_step = (1 - self._beta) / anneal if anneal else 0.0
        self._max_use, self._max_staleness = self._cfg.max_use, self._cfg.max_staleness
        self._max_priority = 1.0
        self._uses: dict[int, int] = {}  # by position: how often this process has sampled the item
        limits = self._cfg.thruput_controller
        rate = limits.push_sample_rate_limit
        limited = rate["max"] != float("inf") or rate["min"] != 0
        self._controller = ThruputController(limits) if limited else None
        assert limits.sample_min_limit_ratio >= 1
        attributes = self._cfg.monitor.sampled_data_attr
        self._attributes = SampledDataAttrMonitor(expire=attributes.average_range)
        self._samples, self._print_freq = 0, attributes.print_freq
        self._consumer = None
        if self._max_use != float("inf"):
            self._consumer = self.items.consumer(self._instance_name, self._max_use)

    def _seconds(self) -> float:
        return float(self._cfg.monitor.periodic_thruput.seconds)

    @property
    def beta(self) -> float:
        """The exponent of the importance weights `IS`; with `anneal_step`, it grows to 1."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = beta

    # -- adding --------------------------------------------------------------------------------

    def push(self, data: Any, cur_collector_envstep: int = -1) -> None:
        """Add one item or a list of items.

        If the push would exceed `push_sample_rate_limit`, log a message and add nothing.

        Parameters
        ----------
        data : dict or list of dict
            An item or a list of items. Items that are not dicts are skipped and logged.
        cur_collector_envstep : int
            Ignored.

        Raises
        ------
        InvalidValue
            If an item cannot be stored exactly.
        """
        items = data if isinstance(data, list) else [data]
        if self._controller is not None:
            may, why = self._controller.can_push(len(items))
            if not may:
                logger.info("buffer %s rejected a push: %s", self._instance_name, why)
                return
        kept = [item for item in items if isinstance(item, dict)]
        for item in items:
            if not isinstance(item, dict):
                logger.info(
                    "buffer %s rejected an item of %s; items must be dicts",
                    self._instance_name,
                    type(item),
                )
        super().push(kept, cur_collector_envstep)
        if self._controller is not None:
            self._controller.history_push_count += len(kept)

    def _push(self, item: dict[str, Any]) -> None:
        priority = item.get("priority")
        value = {key: entry for key, entry in item.items() if key not in _BOOKKEEPING}
        collected = _collected(item)
        self.items.push(
            value,
            priority=self._max_priority if priority is None else float(priority),
            policy_version=None if collected is None else math.floor(collected),
        )

    # -- sampling ------------------------------------------------------------------------------

    def sample(  # type: ignore[override]
        self, size: int, cur_learner_iter: int, sample_range: slice | None = None
    ) -> list[dict[str, Any]] | None:
        """Draw items in proportion to their priority.

        Parameters
        ----------
        size : int
            Number of items.
        cur_learner_iter : int
            Iteration of the learner, for the staleness of items.
        sample_range : slice, optional
            Slice of the items to draw from; 0 is the oldest item.

        Returns
        -------
        list of dict or None
            Copies of the items, or None if there are too few items or a limit is reached. A log
            message then gives the reason, unless `sample_range` selects no items.

        Raises
        ------
        ValueError
            If `sample_range` is given and the config has a finite `max_use`.
        """
        if size == 0:
            return []
        with self.items.lock:
            self._remove_stale(cur_learner_iter)
            if not self._may_sample(size):
                return None
            sampler = expdb.Prioritized(self.alpha, self._beta, None, 0.0, "max", "buffer")
            items, batch = self._drawn(size, sampler, sample_range)
            if not items:
                return None
            self._beta = min(1.0, self._beta + self._beta_step)
            self._tell(items, batch, cur_learner_iter)
            self._remove_used(batch["position"])
        self._watch(items)
        return items

    def _drawn(
        self, size: int, sampler: expdb.Sampler, sample_range: slice | None
    ) -> tuple[list[Any], Any]:
        keys = ("weight", "priority")
        if self._consumer is not None:
            if sample_range is not None:
                raise ValueError(
                    "sample_range cannot be combined with max_use; pass only one of them"
                )
            try:
                return self.items.lease(self._consumer, size, sampler, *keys)
            except expdb.TooFewRows as error:
                logger.info("buffer %s: %s", self._instance_name, error)
                return [], None
        where = None
        if sample_range is not None:
            self.items.flush()
            where = np.array([row["position"] for row in self.items.all()[1]])[sample_range]
            if not len(where):
                return [], None
        return self.items.draw(size, sampler, *keys, where=where)

    def _may_sample(self, size: int) -> bool:
        count, ratio = self.count(), self._cfg.thruput_controller.sample_min_limit_ratio
        if count / size < ratio:
            logger.info(
                "buffer %s: valid(%d) / sample(%d) < sample_min_limit_ratio(%s)",
                self._instance_name, count, size, ratio,
            )  # fmt: skip
            return False
        if self._controller is not None:
            may, why = self._controller.can_sample(size)
            if not may:
                logger.info("buffer %s rejected a sample: %s", self._instance_name, why)
                return False
            self._controller.history_sample_count += size
        return True

    def _tell(self, items: list[dict[str, Any]], batch: Any, now: int) -> None:
        """Set the entries that describe each sampled item, such as `IS` and `use`."""
        size, uses = self._replay_buffer_size, self._uses
        positions = batch["position"].tolist()
        columns = positions, batch["priority"].tolist(), batch["weight"].tolist()
        for item, position, priority, weight in zip(items, *columns, strict=True):
            uses[position] = use = uses.get(position, 0) + 1
            item["replay_unique_id"] = generate_id(self._instance_name, position)
            item["replay_buffer_idx"] = position % size
            item["priority"], item["IS"], item["use"] = priority, weight, use
            collected = _collected(item)
            item["staleness"] = -1 if collected is None else now - collected
        if len(uses) > 4 * size:
            oldest = min(positions)
            self._uses = {key: use for key, use in uses.items() if key >= oldest - size}

    def _watch(self, items: list[dict[str, Any]]) -> None:
        self._monitor.count("sample", len(items))
        columns = [[item[key] for item in items] for key in ("use", "priority", "staleness")]
        self._attributes.add_sample(*columns)
        self._samples += 1
        if self._samples % self._print_freq == 0:
            logger.info(
                "buffer %s: average %s, max %s, min %s", self._instance_name,
                self._attributes.avg, self._attributes.max, self._attributes.min,
            )  # fmt: skip

    def _remove_stale(self, now: int) -> None:
        if self._max_staleness != float("inf"):
            self.items.flush()
            self._remove(expdb.QueryBuilder().lte("policy_version", now - self._max_staleness))

    def _remove_used(self, positions: np.ndarray) -> None:
        used = [
            int(position)
            for position in np.unique(positions)
            if self._uses[int(position)] >= self._max_use
        ]
        if used:
            self._remove(np.array(used))

    def _remove(self, where: Any) -> None:
        if self._remover is not None:
            fields = self.items.fields()
            for batch in self.items.buffer.scan(where, fields=fields):
                for item in self.items.records.values(batch):
                    self._remover.add_used_data(item)
        removed = self.items.buffer.delete(where)
        if removed:
            self._monitor.count("remove", removed)

    # -- updates and states --------------------------------------------------------------------

    def update(self, info: Mapping[str, Any]) -> None:
        """Set the priorities of sampled items, and ignore items that are no longer stored.

        Parameters
        ----------
        info : mapping
            The lists `replay_unique_id` and `priority`. Without `priority`, nothing changes. The
            buffer ignores ids of other buffers and the list `replay_buffer_idx`.

        Raises
        ------
        AssertionError
            If a priority is negative.
        """
        if "priority" not in info:
            return
        priorities = np.array([float(priority) for priority in info["priority"]])
        assert (priorities >= 0).all(), priorities.min()
        prefix = f"{self._instance_name}_"
        named = [str(unique_id) for unique_id in info["replay_unique_id"]]
        ours = [
            unique_id.startswith(prefix) and unique_id[len(prefix) :].isdigit()
            for unique_id in named
        ]
        positions = np.array(
            [
                int(unique_id[len(prefix) :])
                for unique_id, is_ours in zip(named, ours, strict=True)
                if is_ours
            ],
            np.int64,
        )
        if len(positions):
            self.items.buffer.update_priorities(positions, priorities[ours] + EPSILON)
            self._max_priority = max(self._max_priority, float(priorities[ours].max()))

    def clear(self) -> None:
        """Delete all items, and reset the default priority of new items to 1."""
        super().clear()
        self._max_priority = 1.0
        self._uses.clear()

    def load_data(self, file_name: str | os.PathLike[str]) -> None:
        """Push the items of a file that `save_data` wrote, with their priorities.

        Parameters
        ----------
        file_name : str or path-like
            Path of the file.
        """
        stored = load(file_name)
        self.push([{**value, "priority": options["priority"]} for value, options in stored], 0)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the items with their priorities, and the state of the buffer.

        Returns
        -------
        dict
            A state for `load_state_dict`.
        """
        items, table = self.items.all("priority")
        data = [
            {**item, "priority": row["priority"]} for item, row in zip(items, table, strict=True)
        ]
        return {
            "data": data, "valid_count": len(data), "push_count": self.push_count,
            "beta": self._beta, "anneal_step": self._cfg.anneal_step,
            "max_priority": self._max_priority,
            "use_count": [self._uses.get(row["position"], 0) for row in table],
        }  # fmt: skip

    def load_state_dict(self, _state_dict: dict[str, Any], deepcopy: bool = False) -> None:
        """Replace the items and the state of the buffer with a saved state.

        If "data" is the only key of the state, add its items to the stored items instead.

        Parameters
        ----------
        _state_dict : dict
            A state that `state_dict` returned.
        deepcopy : bool
            Ignored.
        """
        super().load_state_dict(_state_dict)
        self._beta = _state_dict.get("beta", self._beta)
        self._max_priority = _state_dict.get("max_priority", self._max_priority)
        if "use_count" in _state_dict:
            table = self.items.all()[1]
            uses = _state_dict["use_count"][-len(table) :] if table else []
            self._uses = {row["position"]: use for row, use in zip(table, uses, strict=True) if use}


def _collected(item: Mapping[str, Any]) -> Any:
    """Return the learner iteration at which an item was collected, or None if unknown."""
    iterations = item.get("collect_iter")
    return min(iterations) if isinstance(iterations, list) else iterations


_BOOKKEEPING = frozenset(
    ("priority", "IS", "use", "staleness", "replay_unique_id", "replay_buffer_idx")
)  # fmt: skip
