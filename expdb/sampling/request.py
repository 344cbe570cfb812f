"""SampleRequest: the checked arguments of a sample, and their JSON form for the ledger."""

from __future__ import annotations  # so that annotations do not import numpy.random

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from expdb.errors import InvalidValue, warn
from expdb.memory.resident import Resident
from expdb.memory.trajectories import AgentTrajectories
from expdb.memory.usage import Usage
from expdb.names import SCORE
from expdb.replay.layout import Trajectories
from expdb.replay.samplers import Sampler, Uniform
from expdb.replay.settings import settings_of
from expdb.replay.units import Step, Unit
from expdb.sampling.extensions import check_starts, read_only
from expdb.sql.conditions import Condition
from expdb.sql.query import QueryBuilder, Where, plain_where
from expdb.storage.ledger.entries import DISCARDED


@dataclass(frozen=True)
class Limits:
    """The limits of a consumer on the items that it may lease."""

    consumer: str
    usage: Usage
    min_size: int
    at_least: int  # smallest number of items in a batch
    oldest_version: int | None  # oldest policy version that is not too stale
    by_episode: bool  # whether items are episodes, which are as old as their oldest step
    takes_newest: bool = False  # whether episodes are as old as their newest step instead
    # The oldest versions of agents whose policies have versions of their own.
    oldest_of_agents: tuple[tuple[str, int], ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that the limits read."""
        if self.reads_versions:
            return ("policy_version",)
        return () if self.oldest_version is None else (self._episode_version,)

    @property
    def _episode_version(self) -> str:
        return "last_policy_version" if self.takes_newest else "first_policy_version"

    @property
    def reads_versions(self) -> bool:
        """Whether the limits read the policy versions of single steps."""
        if self.oldest_of_agents:
            return True
        return self.oldest_version is not None and not self.by_episode

    @property
    def reads_agents(self) -> bool:
        """Whether the limits read the agents of single steps."""
        return bool(self.oldest_of_agents)

    def allow(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return a mask of the steps that may be leased now."""
        allowed = self.usage.may_be_drawn(resident, rows)
        if self.oldest_of_agents:
            return np.asarray(allowed & self._are_new_by_agent(resident, rows))
        if self.oldest_version is None:
            return allowed
        if self.by_episode:
            versions = resident.of_episodes(self._episode_version, rows)
        else:
            assert resident.step_versions is not None
            versions = resident.step_versions.of(rows)
        return np.asarray(allowed & (versions >= self.oldest_version))

    def _are_new_by_agent(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return a mask of the steps, or of the episodes, that are not too stale for any agent."""
        if not self.by_episode:
            return self._are_new(resident, rows)
        _, all_rows = resident.positions_and_rows()
        is_new = self._are_new(resident, all_rows)
        if self.takes_newest:
            return np.isin(resident.episodes(rows), resident.episodes(all_rows[is_new]))
        return ~np.isin(resident.episodes(rows), resident.episodes(all_rows[~is_new]))

    def _are_new(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        assert resident.step_versions is not None
        assert resident.step_agents is not None
        usual = -np.inf if self.oldest_version is None else self.oldest_version
        oldest = np.full(len(rows), usual, np.float64)
        for agent, version in self.oldest_of_agents:
            oldest[resident.step_agents.are(agent, rows)] = version
        versions = resident.step_versions.of(rows)
        is_new: np.ndarray = (versions >= oldest) | np.isneginf(oldest)
        return is_new

    def explained(self, new_only: bool) -> str:
        """Return the limits that exclude items, as a part of an error message."""
        lease_ids, most, oldest = sorted(self.usage.held), self.usage.most, self.oldest_version
        reasons = []
        if lease_ids:
            named = ", ".join(map(str, lease_ids[:3])) + ", ..." * (len(lease_ids) > 3)
            reasons = [f"some items are in active lease{'s' * (len(lease_ids) > 1)} {named}"]
        times = "once" if most == 1 else f"{most} times"
        reasons += [f"each item may be leased {times}"] if most is not None else []
        if oldest is not None and oldest <= 0:
            reasons.append("max_staleness excludes steps without a policy_version")
        elif oldest is not None:
            reasons.append(f"policy_version must be {oldest} or newer")
        reasons += [f"{version} or newer for agent {a!r}" for a, version in self.oldest_of_agents]
        reasons += ["new_only excludes steps stored before the consumer was created"] * new_only
        return f" (consumer {self.consumer!r}: {', '.join(reasons)})" if reasons else ""


@dataclass(frozen=True)
class SampleRequest:
    """The checked arguments of a sample."""

    size: int
    key: str | None  # key of the query; None selects every step
    where: Where = field(compare=False)
    condition: Condition | None = field(compare=False)
    sampler: Sampler
    unit: Unit
    fields: tuple[str, ...] | None = None
    shard: tuple[int, int] | None = None
    limits: Limits | None = None
    at_least: int | None = None  # smallest number of items in a batch; by default, `size`

    @cached_property
    def anchor_key(self) -> tuple[Any, ...]:
        """Key of all restrictions on drawable steps except the query; `()` for none."""
        key = _anchor_key(self.unit)
        if key and self.unit.joins_gaps:
            key = (*key, "join")
        if self.shard is not None:
            key = (*key, "shard", *self.shard)
        if self.limits is not None:
            key = (*key, "consumer", self.limits.consumer, self.limits.oldest_version)
            key = (*key, *self.limits.oldest_of_agents)
        return key

    @cached_property
    def name(self) -> tuple[Any, ...]:
        """Key of all restrictions on the steps that may be drawn."""
        return self.key, self.anchor_key

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that the unit, the sampler and the consumer read."""
        limits = () if self.limits is None else self.limits.reads
        return tuple(sorted({*self.unit.reads, *self.sampler.reads, *limits}))

    @cached_property
    def lists_anchors(self) -> bool:
        """Whether the unit forms items from all matching steps instead of testing each step."""
        return self.unit.lists_anchors

    @cached_property
    def asks_priorities(self) -> bool:
        """Whether the query reads priorities; cached lists do not follow changes of priorities."""
        return self.condition is not None and "priority" in self.condition.names

    @cached_property
    def priority_score(self) -> str | None:
        """The name of the score that replaces the priorities of steps, or None."""
        return self.sampler.priority_score

    @cached_property
    def uses_time(self) -> bool:
        """Whether the steps that may be drawn also depend on the time."""
        return self.unit.uses_time

    @cached_property
    def asks_database(self) -> bool:
        """Whether the query or the sampler reads data that may be stored only in the database."""
        return self.asks_priorities or self.sampler.asks_database

    @cached_property
    def needs_no_rows(self) -> bool:
        """Whether the request draws single steps uniformly, so that no rows need to be loaded."""
        draws_steps = (self.sampler, self.unit) == (Uniform(replace=True), Step())
        return draws_steps and self.key is None and self.shard is None and self.limits is None

    @cached_property
    def needs_only_rows(self) -> bool:
        """Whether a draw needs only the rows in memory: no query, episode column or priority."""
        needs_more = self.reads or self.sampler.uses_priorities or self.asks_database
        return not needs_more and self.key is None and self.limits is None

    @cached_property
    def is_plain(self) -> bool:
        """Whether `draw_in_memory` can omit checks, limits, budgets and assembly."""
        unit = self.unit
        return not (
            unit.checks_results
            or unit.has_budget
            or unit.assembles
            or unit.lists_anchors
            or self.sampler.checks_results
            or self.reads
            or self.limits is not None
            or self.at_least is not None
        )

    @cached_property
    def has_no_filter(self) -> bool:
        """Whether neither a query nor a shard excludes steps."""
        return self.key is None and self.shard is None

    def trajectories(self, resident: Resident) -> Resident | AgentTrajectories:
        """Return the rows with the links that the unit follows.

        Warn at the first gap between step numbers that ends a trajectory.
        """
        if resident.has_plain_links:
            return resident
        gap = resident.number_gap
        cuts_gaps = not self.unit.joins_gaps
        if not self.follows_links or not (cuts_gaps or resident.has_agents):
            return resident
        if cuts_gaps and gap is not None and not resident.is_gap_reported:
            resident.is_gap_reported = True
            _warn_of_gap(*gap)
        return AgentTrajectories(resident, cuts_gaps)

    def may_start(
        self, resident: Resident, rows: np.ndarray, trajectories: Trajectories | None = None
    ) -> np.ndarray:
        """Return a mask of the steps that may be drawn; each step is checked independently.

        `trajectories` may be a window that has already read the rows around the steps.
        """
        around = self.trajectories(resident) if trajectories is None else trajectories
        if self.unit.checks_results:
            returned = self.unit.may_start(around, read_only(rows) if around is resident else rows)
            mask = check_starts(self.unit, returned, len(rows))
        else:
            mask = self.unit.may_start(around, rows)
        if self.limits is not None:
            mask = mask & self.limits.allow(resident, rows)
        return mask if self.shard is None else mask & self.in_shard(resident, rows)

    @cached_property
    def follows_links(self) -> bool:
        """Whether the unit follows links between steps."""
        return self.unit.follows_links

    @cached_property
    def only_unit_decides(self) -> bool:
        """Whether only the unit restricts the steps, and its results are not checked."""
        return self.limits is None and self.shard is None and not self.unit.checks_results

    def epoch(self, resident: Resident) -> tuple[int, int]:
        """Return counters that change whenever the set of drawable steps may have changed."""
        return resident.epoch, 0 if self.limits is None else self.limits.usage.epoch

    def state(self, resident: Resident) -> tuple[int, int, int]:
        """Return the epoch, and the second if the drawable steps also depend on the time."""
        return *self.epoch(resident), int(time.monotonic()) if self.uses_time else 0

    def in_shard(self, resident: Resident, rows: np.ndarray, of_groups: bool = False) -> np.ndarray:
        """Return a mask of the steps that belong to the shard by their episodes.

        With `of_groups`, `rows` are the first steps of the first rollouts of groups.
        """
        if self.shard is None:
            return np.ones(len(rows), np.bool_)
        index, count = self.shard
        episodes = resident.episodes(rows)
        if of_groups:  # groups often begin at every n-th episode, so hash the numbers
            episodes = _hashed(episodes)
        mask: np.ndarray = episodes % count == index
        return mask


def _warn_of_gap(episode: int, before: int, after: int) -> None:
    warn(
        f"an agent of episode {episode} has step {before} and then step {after}, so trajectories "
        f"end at step {before}; number the steps of each agent 0, 1, 2 and so on, or pass "
        "gaps='join' to the unit if numbers are skipped on purpose"
    )


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """Return pseudorandom numbers that depend only on `numbers`, int64 from 0.

    Source: the finalizer of SplitMix64 (Steele et al. 2014, doi:10.1145/2714064.2660195).
    """
    bits = numbers.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    hashed: np.ndarray = ((bits ^ (bits >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
    return hashed


def _anchor_key(unit: Unit) -> tuple[Any, ...]:
    """Return a key that identifies, among all units, the steps that a unit may start from."""
    key = () if unit.starts_anywhere else unit.anchor_key
    if not key or key == (unit,):
        return key
    own = ("may_start", "anchors")
    owner = next(kind for kind in type(unit).__mro__ if any(name in vars(kind) for name in own))
    return (owner, *key)


def check_empty(empty: Any) -> None:
    """Raise InvalidValue unless `empty` is callable."""
    if not callable(empty):
        raise InvalidValue(
            f"empty must be a function of a shape and a dtype, such as numpy.empty, got {empty!r}"
        )


def find_scores(sampler: Sampler, unit: Unit, names: tuple[str, ...] | None) -> list[str]:
    """Return the scores, such as "scores.judge", that a sampler, a unit or `fields` reads."""
    read = [*unit.reads, *sampler.named_columns, *(names or ())]
    return [name for name in dict.fromkeys(read) if SCORE.fullmatch(name)]


def field_names(fields: Any) -> tuple[str, ...]:
    """Return the names of fields; accept a single name, too."""
    names = (fields,) if isinstance(fields, str) else fields
    as_tuple = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in as_tuple):
        raise InvalidValue(f"fields must be a list of names, got {fields!r}")
    return as_tuple


# -- JSON form for the ledger ----------------------------------------------------------------------


def as_text(
    where: Where,
    sampler: Sampler,
    unit: Unit,
    names: tuple[str, ...] | None,
    columns: Mapping[str, Any],
    discards: bool = False,
    ranks: tuple[int, int] | None = None,
) -> str:
    """Return the JSON text of a request for the ledger.

    `columns` describes the columns of the sampler. `discards` means that the batch is discarded
    without training. `ranks` is the number of ranks that share the batch, and `rows_multiple`.
    """
    description = {
        "unit": settings_of(unit),
        "sampler": settings_of(sampler),
        "where": describe_query(where),
        "fields": names,
        "columns": columns,
    }
    if discards:
        description[DISCARDED] = True
    if ranks is not None:
        description["ranks"] = ranks
    return json.dumps(description, default=_plain)


def describe_query(where: Where) -> Any:
    """Return a query as plain JSON values; an array of positions becomes only its length."""
    plain = plain_where(where)
    if isinstance(plain, np.ndarray):
        return f"{len(plain)} positions"
    return plain.build() if isinstance(plain, QueryBuilder) else plain


REPR = "repr"  # the JSON key for the repr of a value that JSON cannot represent


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else {REPR: repr(value)}
