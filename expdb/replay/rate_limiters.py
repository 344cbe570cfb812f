"""Rate limiters, and the pace: how far writers and learners may be ahead of each other.

The terms, and the arithmetic, are those of Reverb (Cassirer et al. 2021, arXiv:2102.04736).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from expdb import checks
from expdb.errors import InvalidValue


@dataclass(frozen=True)
class RateLimiter:
    """Bound `inserts * ratio - samples`, both counted since it was set.

    Nothing is sampled before the buffer holds `min_size` steps, nor where it would bring the
    difference below `least`; nothing is inserted, after the first `min_size` steps, where it would
    bring it above `most`. Infinity stands for no bound.
    """

    ratio: float
    min_size: int
    least: float = -math.inf
    most: float = math.inf

    def may_sample(self, inserts: int, samples: int, count: int, size: int) -> bool:
        """Return whether `count` more rows may be handed out."""
        return size >= self.min_size and inserts * self.ratio - samples - count >= self.least

    def insert_limit(self, samples: int) -> int | None:
        """Return how many steps may be inserted in all, None for any number."""
        if self.most == math.inf:
            return None
        return max(self.min_size, math.floor((self.most + samples) / self.ratio))

    @property
    def largest_sample(self) -> float:
        """The most rows that one lease may have."""
        return max(self.most, self.ratio * self.min_size) - self.least

    @property
    def largest_write(self) -> float:
        """How many steps one write may have at most, so that it can ever be let in."""
        return (self.most - self.least) / self.ratio

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {key: None if abs(one) == math.inf else one for key, one in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> RateLimiter:
        """Return the one that `as_json` was asked of."""
        ratio, min_size = float(stored["ratio"]), int(stored["min_size"])
        least, most = (None if stored[n] is None else float(stored[n]) for n in ("least", "most"))
        if not (0 < ratio < math.inf and min_size >= 1):
            raise ValueError(f"ratio {ratio}, min_size {min_size}")
        return cls(
            ratio,
            min_size,
            -math.inf if least is None else least,
            math.inf if most is None else most,
        )


def MinSize(size: int) -> RateLimiter:
    """Let learners in once the buffer holds `size` steps; hold back no writer."""
    return RateLimiter(1.0, _steps(size, "size"))


def _steps(value: Any, name: str) -> int:
    """Return a number of steps that the counters of a buffer can hold with room to spare."""
    number = checks.whole(value, name, 1)
    if number > MOST_STEPS:
        raise InvalidValue(f"{name} must be at most {MOST_STEPS:,}, got {number}")
    return number


MOST_STEPS = 10**15


def Queue(size: int) -> RateLimiter:
    """Hold writers back that are more than `size` steps ahead; hand out as many as were stored.

    Use it with consumers of `max_times_sampled=1`.
    """
    return RateLimiter(1.0, 1, 0.0, float(_steps(size, "size")))


def SampleToInsertRatio(ratio: float, min_size: int, error_buffer: float) -> RateLimiter:
    """Hand out `ratio` rows for each step that is stored, once `min_size` are.

    Writers and learners may be ahead of that by `error_buffer` rows. Raises InvalidValue where
    that is less than twice what one step is sampled, as both would wait for each other.
    """
    ratio, min_size = checks.number(ratio, "ratio"), _steps(min_size, "min_size")
    error_buffer = checks.number(error_buffer, "error_buffer", 0)
    if not 1e-6 <= ratio <= 1e6:
        raise InvalidValue(f"ratio must be a number from 1e-6 to 1e6, got {ratio:g}")
    if error_buffer > MOST_STEPS:
        raise InvalidValue(f"error_buffer must be at most {MOST_STEPS:,}, got {error_buffer:g}")
    if error_buffer < 2 * max(1.0, ratio):
        raise InvalidValue(
            f"error_buffer is {error_buffer:g}, and a ratio of {ratio:g} cannot be kept within "
            f"that: give at least {2 * max(1.0, ratio):g}"
        )
    offset = ratio * min_size
    return RateLimiter(ratio, min_size, offset - error_buffer, offset + error_buffer)


@dataclass(frozen=True)
class Pace:
    """Let a group of episodes begin only if it is trained on before it is too stale.

    `groups_per_version` is how many groups the trainer trains on between two versions of the
    policy. Each of them trains on the oldest groups, or on those that finished first. A group then
    is at most `max_staleness` versions old when its turn comes, however long it takes: while one is
    under way, no more begin than can be trained on before it would be stale. So none has to be
    dropped, which would leave out the long ones.

    The bound on groups is that of AReaL (Fu et al. 2025, arXiv:2505.24298, eq. 3), with the version
    of the oldest group that is under way in place of the newest version.
    """

    max_staleness: int
    groups_per_version: int

    def __post_init__(self) -> None:
        for name, least in (("max_staleness", 0), ("groups_per_version", 1)):
            object.__setattr__(self, name, checks.whole(getattr(self, name), name, least))

    def limit(self, versions: int) -> int:
        """Return how many groups may have begun in all, so many versions after it was set."""
        return (versions + self.max_staleness + 1) * self.groups_per_version
