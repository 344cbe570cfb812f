"""Rate limiters and the pace: limits on how far writers and learners can be ahead of each other.

The terms and the arithmetic of rate limiters are those of Reverb (Cassirer et al. 2021,
arXiv:2102.04736).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from expdb import checks
from expdb.errors import InvalidValue


@dataclass(frozen=True)
class RateLimiter:
    """Limit how far writers and learners can be ahead of each other.

    Assign a limiter to `ReplayBuffer.rate_limiter`; `Queue`, `MinSize` and `SampleToInsertRatio`
    return the usual limiters. A limiter bounds the difference ``inserts * ratio - samples``. Since
    the limiter was assigned, `inserts` counts the stored steps and `samples` the rows of leased
    batches. Learners wait until the buffer holds `min_size` steps, and whenever a lease would
    bring the difference below `least`. After the first `min_size` steps, writers wait whenever a
    write would bring the difference above `most`.

    Parameters
    ----------
    ratio : float
        Number of rows that may be leased for each stored step, above 0.
    min_size : int
        Number of steps that the buffer must hold before rows are leased, at least 1.
    least : float, default -inf
        Lower bound of the difference, in rows; -inf for no bound.
    most : float, default inf
        Upper bound of the difference, in rows; inf for no bound.

    References
    ----------
    Cassirer et al. (2021), *Reverb: A Framework for Experience Replay*, arXiv:2102.04736.
    """

    ratio: float
    min_size: int
    least: float = -math.inf
    most: float = math.inf

    def may_sample(self, inserts: int, samples: int, count: int, size: int) -> bool:
        """Return whether `count` more rows may be leased.

        Parameters
        ----------
        inserts : int
            Number of steps stored since the limiter was assigned.
        samples : float
            Number of rows leased since the limiter was assigned.
        count : int
            Number of rows to lease.
        size : int
            Number of steps that the buffer holds.

        Returns
        -------
        bool
            True if the lease stays within the bounds.
        """
        return size >= self.min_size and inserts * self.ratio - samples - count >= self.least

    def insert_limit(self, samples: int) -> int | None:
        """Return how many steps may be stored in total after `samples` leased rows.

        Parameters
        ----------
        samples : int
            Number of rows leased since the limiter was assigned.

        Returns
        -------
        int or None
            Number of steps since the limiter was assigned; None if there is no limit.
        """
        if self.most == math.inf:
            return None
        return max(self.min_size, math.floor((self.most + samples) / self.ratio))

    @property
    def largest_sample(self) -> float:
        """The largest number of rows that one lease can have, a float; infinity for no limit."""
        return max(self.most, self.ratio * self.min_size) - self.least

    @property
    def largest_write(self) -> float:
        """The largest number of steps in one write, a float; infinity for no limit.

        The first `min_size` steps can be written together even if `min_size` is larger.
        """
        return (self.most - self.least) / self.ratio

    def as_json(self) -> dict[str, Any]:
        """Return the settings as values that JSON can hold.

        Returns
        -------
        dict
            Settings by parameter name; None stands for an infinite bound.
        """
        return {
            key: None if abs(value) == math.inf else value for key, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> RateLimiter:
        """Create a limiter from the dict that `as_json` returned.

        Parameters
        ----------
        stored : dict
            Settings by parameter name; other keys are ignored.

        Returns
        -------
        RateLimiter
            Limiter with these settings.

        Raises
        ------
        KeyError
            If a setting is missing.
        TypeError
            If a setting is not a number.
        ValueError
            If a setting is not a number, `ratio` is not positive and finite, or `min_size` is less
            than 1.
        """
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
    """Return a limiter that delays leases until the buffer holds `size` steps.

    Writers are never delayed.

    Parameters
    ----------
    size : int
        Number of steps, from 1 to 10**15.

    Returns
    -------
    RateLimiter
        Limiter to assign to `ReplayBuffer.rate_limiter`.

    Raises
    ------
    InvalidValue
        If `size` is not an integer in this range.

    Examples
    --------
    >>> buffer.rate_limiter = expdb.MinSize(10_000)  # doctest: +SKIP
    """
    return RateLimiter(1.0, _steps(size, "size"))


def _steps(value: Any, name: str) -> int:
    """Return `value` as an int from 1 to MOST_STEPS, which the counters of a buffer can hold."""
    number = checks.whole(value, name, 1)
    if number > MOST_STEPS:
        raise InvalidValue(f"{name} must be at most {MOST_STEPS:,}, got {number}")
    return number


MOST_STEPS = 10**15


def Queue(size: int) -> RateLimiter:
    """Return a limiter that delays writers that are more than `size` steps ahead of the learners.

    Learners can lease at most as many rows as steps were stored. Use the limiter with consumers
    that have ``max_times_sampled=1``.

    Parameters
    ----------
    size : int
        Number of steps that writers can be ahead, from 1 to 10**15.

    Returns
    -------
    RateLimiter
        Limiter to assign to `ReplayBuffer.rate_limiter`.

    Raises
    ------
    InvalidValue
        If `size` is not an integer in this range.

    Examples
    --------
    >>> buffer.rate_limiter = expdb.Queue(1000)  # doctest: +SKIP
    >>> consumer = buffer.consumer("learner", max_times_sampled=1)  # doctest: +SKIP
    """
    return RateLimiter(1.0, 1, 0.0, float(_steps(size, "size")))


def SampleToInsertRatio(ratio: float, min_size: int, error_buffer: float) -> RateLimiter:
    """Return a limiter that keeps leased rows and stored steps near a ratio.

    Learners wait until the buffer holds `min_size` steps. After the first `min_size` steps,
    `ratio` rows are leased for each stored step. Writers and learners can each be ahead of this
    ratio by `error_buffer` rows.

    Parameters
    ----------
    ratio : float
        Number of rows to lease for each stored step, from 1e-6 to 1e6.
    min_size : int
        Number of steps that the buffer must hold before rows are leased, from 1 to 10**15.
    error_buffer : float
        Maximum lead of writers or learners over the ratio in rows, from ``2 * max(1, ratio)`` to
        10**15. With a smaller number, writers and learners would wait for each other.

    Returns
    -------
    RateLimiter
        Limiter to assign to `ReplayBuffer.rate_limiter`.

    Raises
    ------
    InvalidValue
        If an argument is not a number in its range.

    Examples
    --------
    >>> buffer.rate_limiter = expdb.SampleToInsertRatio(8.0, 1000, 512.0)  # doctest: +SKIP
    """
    ratio, min_size = checks.number(ratio, "ratio"), _steps(min_size, "min_size")
    error_buffer = checks.number(error_buffer, "error_buffer", 0)
    if not 1e-6 <= ratio <= 1e6:
        raise InvalidValue(f"ratio must be a number from 1e-6 to 1e6, got {ratio:g}")
    if error_buffer > MOST_STEPS:
        raise InvalidValue(f"error_buffer must be at most {MOST_STEPS:,}, got {error_buffer:g}")
    if error_buffer < 2 * max(1.0, ratio):
        raise InvalidValue(
            f"error_buffer must be at least {2 * max(1.0, ratio):g} to keep a ratio of {ratio:g}, "
            f"got {error_buffer:g}"
        )
    offset = ratio * min_size
    return RateLimiter(ratio, min_size, offset - error_buffer, offset + error_buffer)


@dataclass(frozen=True)
class Pace:
    """Delay new groups of episodes that would be too stale when they are trained on.

    Assign a pace to `ReplayBuffer.pace`, and call `ReplayBuffer.admit` before each group. A group
    is then at most `max_staleness` policy versions old when it is trained on, however long its
    generation takes. While the group is under way, expdb limits the number of groups that begin:
    the trainer can train on all of them before the group becomes too stale. No group has to be
    dropped for its age. Dropping groups would mostly remove long episodes.

    The bound assumes that the trainer trains on `groups_per_version` groups between two versions of
    the policy. It also assumes that the trainer always chooses the oldest groups, or the groups
    that finished first.

    Parameters
    ----------
    max_staleness : int
        Largest age of a group when it is trained on, in policy versions, at least 0.
    groups_per_version : int
        Number of groups that the trainer trains on between two policy versions, at least 1.

    Raises
    ------
    InvalidValue
        If a parameter is not an integer in its range.

    References
    ----------
    Fu et al. (2025), *AReaL*, arXiv:2505.24298, equation 3. expdb uses the policy version of the
    oldest group that is under way in place of the newest version.
    """

    max_staleness: int
    groups_per_version: int

    def __post_init__(self) -> None:
        for name, least in (("max_staleness", 0), ("groups_per_version", 1)):
            object.__setattr__(self, name, checks.whole(getattr(self, name), name, least))

    def limit(self, versions: int) -> int:
        """Return how many groups may have begun in total.

        Parameters
        ----------
        versions : int
            Number of policy versions since the pace was assigned, counted up to the version of the
            oldest group that is under way.

        Returns
        -------
        int
            Number of groups since the pace was assigned.
        """
        return (versions + self.max_staleness + 1) * self.groups_per_version
