"""Monitors of DI-engine's buffers, and limits on the ratio of pushed to sampled items."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

logger = logging.getLogger("expdb.di_engine")


def generate_id(name: str, data_id: int) -> str:
    """Return the unique id of an item, `<name>_<data_id>`.

    Parameters
    ----------
    name : str
        Name of the buffer.
    data_id : int
        Number of the item.

    Returns
    -------
    str
        The id.
    """
    return f"{name}_{data_id}"


class UsedDataRemover:
    """Remove the files of removed items. The `data_id` of an item is the path of its file."""

    def __init__(self) -> None:
        self._paths: Queue[str | None] = Queue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that removes files."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Remove the remaining files and end the thread."""
        self.start()
        thread, self._thread = self._thread, None
        self._paths.put(None)
        assert thread is not None
        thread.join()

    def add_used_data(self, data: Any) -> None:
        """Schedule the file of an item for removal.

        Parameters
        ----------
        data : mapping
            The item. Its `data_id` is the path of the file.

        Raises
        ------
        ValueError
            If the item has no `data_id`.
        """
        if not isinstance(data, Mapping) or "data_id" not in data:
            raise ValueError(
                "data must be a mapping whose key 'data_id' contains the path of the item's "
                f"file, got {type(data).__name__}"
            )
        self._paths.put(str(data["data_id"]))

    def _work(self) -> None:
        while (path := self._paths.get()) is not None:
            with suppress(FileNotFoundError):
                Path(path).unlink()


class SampledDataAttrMonitor:
    """Compute averages, maxima and minima over the last samples.

    Each sample has the statistics `use_max`, `use_avg`, `priority_max`, `priority_avg`,
    `priority_min`, `staleness_max` and `staleness_avg`. `avg`, `max` and `min` combine the
    statistics of the last `expire` samples.

    Parameters
    ----------
    time_ : object, optional
        Stored as the attribute `time`, but not used.
    expire : int
        Number of samples to cover.
    """

    def __init__(self, time_: Any = None, expire: int = 5):
        self.time, self.expire = time_, expire
        self._seen: dict[str, deque[float]] = {}

    def add(self, **values: float) -> None:
        """Add the statistics of a sample.

        Parameters
        ----------
        **values : float
            Statistics by name.
        """
        for name, value in values.items():
            self._seen.setdefault(name, deque(maxlen=self.expire)).append(float(value))

    def add_sample(
        self, uses: Iterable[float], priorities: Iterable[float], staleness: Iterable[float]
    ) -> None:
        """Add the statistics of the items of a sample.

        Parameters
        ----------
        uses, priorities, staleness : iterable of float
            Use counts, priorities and staleness of the items.
        """
        use, priority, stale = list(uses), list(priorities), list(staleness)
        self.add(
            use_max=max(use), use_avg=sum(use) / len(use),
            priority_max=max(priority), priority_min=min(priority),
            priority_avg=sum(priority) / len(priority),
            staleness_max=max(stale), staleness_avg=sum(stale) / len(stale),
        )  # fmt: skip

    def _over(self, name: str) -> list[float]:
        return list(self._seen.get(name, ()))

    @property
    def avg(self) -> dict[str, float]:
        """A dict of the averages of use, priority and staleness."""
        return {
            what: sum(seen) / len(seen) if (seen := self._over(f"{what}_avg")) else 0.0
            for what in ("use", "priority", "staleness")
        }

    @property
    def max(self) -> dict[str, float]:
        """A dict of the maxima of use, priority and staleness."""
        return {
            what: max(self._over(f"{what}_max"), default=0.0)
            for what in ("use", "priority", "staleness")
        }

    @property
    def min(self) -> dict[str, float]:
        """A dict with the minimum priority."""
        return {"priority": min(self._over("priority_min"), default=0.0)}


class PeriodicThruputMonitor:
    """Log the numbers of pushed, sampled, removed and stored items periodically.

    No thread is used: `count` logs the numbers if `cfg["seconds"]` seconds have passed since the
    last log message.

    Parameters
    ----------
    name : str
        Name of the buffer.
    cfg : mapping
        `seconds` is the length of a period in seconds.
    logger : logging.Logger
        Logger for the messages.
    tb_logger : SummaryWriter, optional
        TensorBoard logger.
    held : callable
        Function that returns the number of stored items.
    """

    def __init__(
        self,
        name: str,
        cfg: Any,
        logger: Any = logger,
        tb_logger: Any = None,
        held: Callable[[], int] = int,
    ):
        self.name, self._seconds, self._logger, self._tb = name, cfg["seconds"], logger, tb_logger
        self._count_items = held
        self._begin = time.monotonic()
        self._reports = 0
        self._counts = dict.fromkeys(("push", "sample", "remove"), 0)

    @property
    def valid_count(self) -> int:
        """The number of stored items, an int."""
        return self._count_items()

    def count(self, what: str, number: int) -> None:
        """Add to a count, and log the counts if the period is over.

        Parameters
        ----------
        what : {"push", "sample", "remove"}
            The count to increase.
        number : int
            Number to add.
        """
        self._counts[what] += number
        passed = time.monotonic() - self._begin
        if passed >= self._seconds:
            self._tell(passed)

    @property
    def push_data_count(self) -> int:
        """The number of items pushed in this period, an int."""
        return self._counts["push"]

    @property
    def sample_data_count(self) -> int:
        """The number of items sampled in this period, an int."""
        return self._counts["sample"]

    @property
    def remove_data_count(self) -> int:
        """The number of items removed in this period, an int."""
        return self._counts["remove"]

    def _tell(self, passed: float) -> None:
        metrics = {
            "pushed_in": self._counts["push"], "sampled_out": self._counts["sample"],
            "removed": self._counts["remove"], "current_have": self.valid_count,
        }  # fmt: skip
        self._logger.info("in the past %.1f seconds, buffer %s: %s", passed, self.name, metrics)
        if self._tb is not None:
            for key, value in metrics.items():
                self._tb.add_scalar(f"{self.name}_sec/{key}", value, self._reports)
        self._reports += 1
        self._begin = time.monotonic()
        self._counts = dict.fromkeys(self._counts, 0)

    def close(self) -> None:
        """Log the counts of the current period, if any."""
        if any(self._counts.values()):
            self._tell(time.monotonic() - self._begin)


class ThruputController:
    """Check pushes and samples against limits on the ratio of pushed to sampled items.

    The counts of both decay exponentially, to 1% of their value after `window_seconds`.

    Parameters
    ----------
    cfg : mapping
        `push_sample_rate_limit` has the limits `min` and `max`; `window_seconds` is the window.

    Raises
    ------
    ValueError
        If the limits are not `0 <= min <= max`.
    """

    def __init__(self, cfg: Any):
        limit = cfg["push_sample_rate_limit"]
        if not 0 <= limit["min"] <= limit["max"]:
            raise ValueError(f"push_sample_rate_limit must have 0 <= min <= max, got {dict(limit)}")
        self._limit, self._decay = limit, math.log(100) / cfg["window_seconds"]
        self._seen = time.monotonic()
        self._pushed = self._drawn = 0.0

    def _now(self) -> None:
        now = time.monotonic()
        factor = math.exp(-self._decay * (now - self._seen))
        self._pushed, self._drawn, self._seen = self._pushed * factor, self._drawn * factor, now

    def can_push(self, push_size: int) -> tuple[bool, str]:
        """Return whether items may be pushed.

        Parameters
        ----------
        push_size : int
            Number of items.

        Returns
        -------
        tuple of bool and str
            Whether the items may be pushed, and the reason.
        """
        self._now()
        if self._drawn < 1e-5:
            return True, "Can push: nothing was sampled."
        if (self._pushed + push_size) / self._drawn > self._limit["max"]:
            return False, (
                f"push({self._pushed:.1f}+{push_size}) / sample({self._drawn:.1f}) > "
                f"limit_max({self._limit['max']})"
            )
        return True, "Can push."

    def can_sample(self, sample_size: int) -> tuple[bool, str]:
        """Return whether items may be sampled.

        Parameters
        ----------
        sample_size : int
            Number of items.

        Returns
        -------
        tuple of bool and str
            Whether the items may be sampled, and the reason.
        """
        self._now()
        if self._pushed / (self._drawn + sample_size) < self._limit["min"]:
            return False, (
                f"push({self._pushed:.1f}) / sample({self._drawn:.1f}+{sample_size}) < "
                f"limit_min({self._limit['min']})"
            )
        return True, "Can sample."

    @property
    def history_push_count(self) -> float:
        """The decayed number of pushed items, a float."""
        self._now()
        return self._pushed

    @history_push_count.setter
    def history_push_count(self, count: float) -> None:
        self._now()
        self._pushed = count

    @property
    def history_sample_count(self) -> float:
        """The decayed number of sampled items, a float."""
        self._now()
        return self._drawn

    @history_sample_count.setter
    def history_sample_count(self, count: float) -> None:
        self._now()
        self._drawn = count

    def close(self) -> None:
        """Do nothing, because no thread is used."""
