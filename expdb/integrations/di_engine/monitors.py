"""What DI-engine's buffers watch: how much goes in and out, and what is drawn."""

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
    """Return the unique id of an item: the name of its buffer, and a number."""
    return f"{name}_{data_id}"


class UsedDataRemover:
    """Remove the files of items that were removed: those that their `data_id` names."""

    def __init__(self) -> None:
        self._paths: Queue[str | None] = Queue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Remove files from now on, in a thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Remove the files that are left, and end the thread."""
        self.start()
        thread, self._thread = self._thread, None
        self._paths.put(None)
        assert thread is not None
        thread.join()

    def add_used_data(self, data: Any) -> None:
        """Have the file of an item removed; raises ValueError where it names none."""
        if not isinstance(data, Mapping) or "data_id" not in data:
            raise ValueError("an item with a 'data_id', the path of its file, is needed")
        self._paths.put(str(data["data_id"]))

    def _work(self) -> None:
        while (path := self._paths.get()) is not None:
            with suppress(FileNotFoundError):
                Path(path).unlink()


class SampledDataAttrMonitor:
    """Averages and extremes of what was drawn in the last `expire` samples.

    `use_max`, `use_avg`, `priority_max`, `priority_avg`, `priority_min`, `staleness_max` and
    `staleness_avg` are set for each sample; `avg`, `max` and `min` give them over the last ones.
    """

    def __init__(self, time_: Any = None, expire: int = 5):
        self.time, self.expire = time_, expire
        self._seen: dict[str, deque[float]] = {}

    def add(self, **values: float) -> None:
        """Note the figures of a sample."""
        for name, value in values.items():
            self._seen.setdefault(name, deque(maxlen=self.expire)).append(float(value))

    def add_sample(
        self, uses: Iterable[float], priorities: Iterable[float], staleness: Iterable[float]
    ) -> None:
        """Note what was drawn."""
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
        """The averages of use, priority and staleness."""
        return {
            what: sum(seen) / len(seen) if (seen := self._over(f"{what}_avg")) else 0.0
            for what in ("use", "priority", "staleness")
        }

    @property
    def max(self) -> dict[str, float]:
        """The greatest use, priority and staleness."""
        return {
            what: max(self._over(f"{what}_max"), default=0.0)
            for what in ("use", "priority", "staleness")
        }

    @property
    def min(self) -> dict[str, float]:
        """The least priority."""
        return {"priority": min(self._over("priority_min"), default=0.0)}


class PeriodicThruputMonitor:
    """Log, every `cfg.seconds`, how many items were pushed, drawn and removed, and are held.

    There is no thread: it is looked at when something is counted.
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
        self._held = held
        self._begin = time.monotonic()
        self._told = 0
        self._counts = dict.fromkeys(("push", "sample", "remove"), 0)

    @property
    def valid_count(self) -> int:
        """How many items are held."""
        return self._held()

    def count(self, what: str, number: int) -> None:
        """Count `number` more."""
        self._counts[what] += number
        passed = time.monotonic() - self._begin
        if passed >= self._seconds:
            self._tell(passed)

    @property
    def push_data_count(self) -> int:
        """Items that were pushed in this period."""
        return self._counts["push"]

    @property
    def sample_data_count(self) -> int:
        """Items that were drawn in this period."""
        return self._counts["sample"]

    @property
    def remove_data_count(self) -> int:
        """Items that were removed in this period."""
        return self._counts["remove"]

    def _tell(self, passed: float) -> None:
        told = {
            "pushed_in": self._counts["push"], "sampled_out": self._counts["sample"],
            "removed": self._counts["remove"], "current_have": self.valid_count,
        }  # fmt: skip
        self._logger.info("in the past %.1f seconds, buffer %s: %s", passed, self.name, told)
        if self._tb is not None:
            for key, value in told.items():
                self._tb.add_scalar(f"{self.name}_sec/{key}", value, self._told)
        self._told += 1
        self._begin = time.monotonic()
        self._counts = dict.fromkeys(self._counts, 0)

    def close(self) -> None:
        """Log what was counted since."""
        if any(self._counts.values()):
            self._tell(time.monotonic() - self._begin)


class ThruputController:
    """Refuse pushes and samples whose ratio, over a window of time, is out of bounds.

    The ratio is that of items pushed to items drawn; counts decay to a hundredth in
    `cfg.window_seconds`.
    """

    def __init__(self, cfg: Any):
        limit = cfg["push_sample_rate_limit"]
        if not 0 <= limit["min"] <= limit["max"]:
            raise ValueError(f"push_sample_rate_limit is {dict(limit)}: give 0 <= min <= max")
        self._limit, self._decay = limit, math.log(100) / cfg["window_seconds"]
        self._seen = time.monotonic()
        self._pushed = self._drawn = 0.0

    def _now(self) -> None:
        now = time.monotonic()
        factor = math.exp(-self._decay * (now - self._seen))
        self._pushed, self._drawn, self._seen = self._pushed * factor, self._drawn * factor, now

    def can_push(self, push_size: int) -> tuple[bool, str]:
        """Return whether so many may be pushed, and why."""
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
        """Return whether so many may be drawn, and why."""
        self._now()
        if self._pushed / (self._drawn + sample_size) < self._limit["min"]:
            return False, (
                f"push({self._pushed:.1f}) / sample({self._drawn:.1f}+{sample_size}) < "
                f"limit_min({self._limit['min']})"
            )
        return True, "Can sample."

    @property
    def history_push_count(self) -> float:
        """How many were pushed in the window."""
        self._now()
        return self._pushed

    @history_push_count.setter
    def history_push_count(self, count: float) -> None:
        self._now()
        self._pushed = count

    @property
    def history_sample_count(self) -> float:
        """How many were drawn in the window."""
        self._now()
        return self._drawn

    @history_sample_count.setter
    def history_sample_count(self, count: float) -> None:
        self._now()
        self._drawn = count

    def close(self) -> None:
        """Do nothing: there is no thread."""
