"""Draw by priority with sum trees that follow the rows in memory."""

from __future__ import annotations  # so that annotations do not import numpy.random

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expdb.memory import priorities as row_priorities
from expdb.memory.followers import Follower
from expdb.memory.journal import NONE, Change
from expdb.memory.priorities import load_priorities
from expdb.memory.resident import Resident
from expdb.memory.trajectories import AgentTrajectories
from expdb.memory.usage import Usage
from expdb.replay.population import check_size
from expdb.replay.samplers import Prioritized
from expdb.replay.sumtree import SumTree
from expdb.sampling.candidates import Candidates, get_or_create
from expdb.sampling.drawing import surplus
from expdb.sampling.request import SampleRequest
from expdb.sampling.unsaved_priorities import SAVE_SECONDS, UnsavedPriorities
from expdb.sql.session import Session
from expdb.storage.store import Store

MANY_UPDATES = 1000  # pending updates of a sum tree, above which it is rebuilt


class Weights(Follower):
    """The weights of a prioritized sampler for one population, in a sum tree.

    The tree depends only on the rows in memory and their column `:priority`, so it can be
    discarded and rebuilt at any time.
    """

    def __init__(self, resident: Resident, sampler: Prioritized):
        super().__init__(resident)
        self.sampler, self.tree = sampler, SumTree(0)
        self.member = np.zeros(0, np.bool_)  # by row: whether it may be drawn
        self.used = -1  # epoch of the consumer's usage that the tree includes
        # State of the rows in memory at the last update.
        self.layout_version, self.first_place, self.high = -1, 0, 0
        # Positions whose priority was set while the tree was outdated.
        self.again: list[np.ndarray] = []

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return (
            self.tree.nbytes
            + self.member.nbytes
            + sum(positions.nbytes for positions in self.again)
        )


class PriorityTrees:
    """The priorities of a buffer's steps in this process, and the sum trees that use them."""

    def __init__(
        self,
        store: Store,
        resident: Resident,
        candidates: Candidates,
        unsaved_priorities: UnsavedPriorities,
    ):
        self._store, self._resident, self._candidates = store, resident, candidates
        self._unsaved = unsaved_priorities
        self._draws: dict[Any, Weights] = {}
        self._calls: dict[str, int] = {}  # calls of samplers that anneal beta, by schedule
        self.is_used = False  # whether priorities were used for a draw, or restored

    @property
    def nbytes(self) -> int:
        """Bytes of the sum trees."""
        return sum(draws.nbytes for draws in self._draws.values())

    def tree(
        self,
        session: Session | None,
        request: SampleRequest,
        sampler: Prioritized,
        rng: np.random.Generator,
    ) -> TreeByPosition:
        """Return the up-to-date weights that a sampler gives to the steps."""
        r, self.is_used = self._resident, True
        if r.priorities is None:
            assert session is not None
            load_priorities(self._store, session, r, self._store.state(session))
        if request.priority_score is not None:
            self._candidates.scores(session, request.priority_score)
        if r.started < r.high:
            row_priorities.start_new_steps(r)
        draws = get_or_create(self._draws, _name_of(request, sampler), lambda: Weights(r, sampler))
        if request.asks_priorities:
            draws.epoch = -1  # a changed priority may change whether a step matches
        if (draws.epoch, draws.used) != request.epoch(r) or draws.again or request.uses_time:
            self._follow(session, request, draws)
        if not draws.tree.total > 0.0:
            what = request.unit.what + " with a priority above 0"
            check_size(0, request.size, what, replace=True)
        usage = None if request.limits is None else request.limits.usage
        return TreeByPosition(draws.tree, r, usage, rng)

    def count_call(self, request: SampleRequest, sampler: Prioritized) -> int:
        """Count a call of a sampler that anneals beta; return the number of earlier calls."""
        name = _name_of(request, sampler), sampler.beta, sampler.anneal_steps
        schedule = json.dumps(name, default=repr)
        call = self._calls.get(schedule, 0)
        self._calls[schedule] = call + 1
        return call

    def _follow(self, session: Session | None, request: SampleRequest, draws: Weights) -> None:
        """Bring a sum tree up to date with the rows."""
        r = self._resident
        changes = draws.changes()
        must_rebuild = self._match_tree(draws, changes is None)
        looked = self._find_changed_matches(session, request, draws.epoch)
        used = NONE if request.limits is None else request.limits.usage.since(draws.used)
        reach = request.unit.reach
        if request.limits is not None and request.limits.reads:
            relabelled = any(len(change.episodes) for change in changes or ())
            reach = None if relabelled else reach
        deleted = any(change.deleted for change in changes or ())
        # The next step of an agent may be far from its evicted step.
        cuts_agents = r.has_agents and any(len(change.orphaned) for change in changes or ())
        must_rebuild = must_rebuild or deleted or (cuts_agents and request.unit.lookback > 0)
        if must_rebuild or changes is None or looked is None or used is None or reach is None:
            chosen = np.zeros(r.slots, np.bool_)
            positions = self._candidates.drawable(session, request)
            chosen[r.rows(positions) if len(positions) else positions] = True
            _, rows = r.positions_and_rows()
            self._weigh(draws, rows, lambda rows: chosen[rows])
        else:
            new = r.positions_from(draws.high)
            near = self._around(request.trajectories(r), changes, new, reach, request.unit.lookback)
            affected = np.unique(np.concatenate([new, looked, used, *near]))
            matches = None if request.key is None else self._candidates.matches(session, request)

            def matching(rows: np.ndarray) -> np.ndarray:
                starts = request.may_start(r, rows)
                return starts if matches is None else starts & matches.contain(r.positions(rows))

            self._weigh(draws, r.rows(affected[r.are_stored(affected)]), matching)
        again = [*draws.again, *[change.prioritised for change in changes or ()]]
        if request.priority_score is not None:
            again += [change.revised for change in changes or ()]
        if again:
            positions = np.unique(np.concatenate(again))
            rows = r.rows(positions[r.are_stored(positions)])
            rows = rows[draws.member[rows]]
            draws.tree.set(rows, self._mass(draws, rows))
        draws.epoch, draws.used = request.epoch(r)
        draws.first_place, draws.high, draws.again = r.first_place, r.high, []

    def _match_tree(self, draws: Weights, must_rebuild: bool) -> bool:
        """Match the sum tree to the ring; return True if it is new and all its weights are 0."""
        r = self._resident
        if not must_rebuild and draws.layout_version == r.layout_version:
            end = min(r.first_place, draws.first_place + r.slots)
            gone = np.arange(draws.first_place, end) % max(r.slots, 1)
            self._weigh(draws, gone, lambda rows: np.zeros(len(rows), np.bool_))
            return False
        draws.tree, draws.member = SumTree(r.slots), np.zeros(r.slots, np.bool_)
        draws.layout_version = r.layout_version
        return True

    def _around(
        self,
        trajectories: Resident | AgentTrajectories,
        changes: list[Change],
        new: np.ndarray,
        reach: int,
        lookback: int,
    ) -> Iterator[np.ndarray]:
        """Yield the positions of steps that may become drawable or undrawable by changed links.

        These are up to `reach` steps that end with a relinked step, and up to `lookback` steps
        from a relinked or orphaned step on.
        """
        r = self._resident
        relinked = np.unique(np.concatenate([NONE, *[change.relinked for change in changes]]))
        relinked = relinked[r.are_stored(relinked)]
        if r.has_agents:  # the step before a new step may have another agent
            before = trajectories.previous_steps(r.rows(new))
            relinked = np.union1d(relinked, r.positions(before[before >= 0]))
        orphaned = np.unique(np.concatenate([relinked, *[change.orphaned for change in changes]]))
        orphaned = orphaned[r.are_stored(orphaned)]
        for _ in range(reach):
            yield relinked
            before = trajectories.previous_steps(r.rows(relinked))
            relinked = r.positions(before[before >= 0])
        for _ in range(lookback):
            yield orphaned
            after = trajectories.next_steps(r.rows(orphaned))
            orphaned = r.positions(after[after >= 0])

    def _find_changed_matches(
        self, session: Session | None, request: SampleRequest, epoch: int
    ) -> np.ndarray | None:
        """Return the positions whose match may have changed since an epoch; None if unknown."""
        if request.key is None:
            return NONE
        if isinstance(request.where, np.ndarray):
            return None
        return self._candidates.matches(session, request).find_changed_matches(epoch)

    def _weigh(
        self, draws: Weights, rows: np.ndarray, chosen: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        """Set the weights of steps that may be drawn, and set the weights of other steps to 0."""
        if not len(rows):
            return
        is_chosen, was = chosen(rows), draws.member[rows]
        lost, gained = rows[was & ~is_chosen], is_chosen & ~was
        draws.member[rows] = is_chosen
        draws.tree.set(lost, 0.0)
        draws.tree.set(rows[gained], self._mass(draws, rows[gained]))

    def _mass(self, draws: Weights, rows: np.ndarray) -> np.ndarray:
        """Return the sampling weights of rows."""
        r, sampler = self._resident, draws.sampler
        if sampler.score is None:
            return sampler.mass(*row_priorities.of_rows(r, rows))
        scores = self._candidates.scores(None, sampler.score).of(rows)
        return sampler.mass(np.maximum(scores, 0.0), 1.0)

    def update(self, positions: np.ndarray, values: np.ndarray) -> int:
        """Set the priority of steps; return the number of updates of stored steps."""
        r = self._resident
        if not len(positions):
            return 0
        if (
            r.gaps
            or positions[positions.argmin()] < r.low
            or positions[positions.argmax()] >= r.high
        ):
            there = r.are_stored(positions)
            positions, values = positions[there], values[there]
            if not len(positions):
                return 0
        rows = r.rows(positions)
        self._unsaved.exist = True
        row_priorities.set_priorities(r, rows, values)
        for draws in self._draws.values():
            if draws.sampler.score is not None:
                continue
            if draws.epoch == r.epoch:
                members = draws.member[rows]
                are_members = members[members.argmin()]
                member_rows, member_values = (
                    (rows, values) if are_members else (rows[members], values[members])
                )
                draws.tree.set(member_rows, draws.sampler.mass_of(member_values))
            elif len(draws.again) < MANY_UPDATES:
                draws.again.append(positions.copy())  # the caller may change the array
            else:  # a sampler that is no longer used
                draws.epoch, draws.again = -1, []
        self._unsaved.save(SAVE_SECONDS)
        return len(positions)

    def state(self) -> dict[str, Any]:
        """Return priorities, call counts and fields with `next_<field>` as plain JSON values."""
        r, priority_state = self._resident, None
        self._unsaved.save()
        if r.priorities is not None:
            r.rearrange(r.slots)  # restore() does the same, so weights are summed in the same order
            positions, rows = r.positions_and_rows()
            priority, start = row_priorities.of_rows(r, rows)
            priority_state = {
                "first": r.low,
                "values": encoded(priority),
                "starts": encoded(start),
                "started": r.started,
                "slots": r.slots,
            }
            if r.gaps:
                priority_state["positions"] = encoded(positions, "<i8")
        return {
            "greatest": r.greatest,
            "priorities": priority_state,
            "calls": dict(self._calls),
            "ends": sorted(r.final_fields),
        }

    def restore(self, saved: SavedState, session: Session | None) -> None:
        """Restore priorities and call counts from a state.

        If the state has priorities, `session` is required and the rows must be up to date.
        """
        r = self._resident
        if saved.has_priorities:
            assert session is not None
            self.is_used = True
            if r.priorities is None:
                load_priorities(self._store, session, r, self._store.state(session))
            writable = not self._store.engine.read_only
            differ = row_priorities.restore(
                r, saved.positions, saved.values, saved.starts, writable
            )
            self._unsaved.exist |= differ and writable
            # Steps that have no priority and are missing in the state start with the greatest
            # priority of the state.
            r.started, r.greatest = min(saved.started, r.high), saved.greatest
            row_priorities.start_steps(r, r.low, r.started)
            r.rearrange(saved.slots)  # the order of the rows is the order of summation
        r.final_fields, r.version = r.final_fields | saved.ends, r.version + 1
        self._draws.clear()
        self._calls, r.greatest = saved.calls, saved.greatest


def _name_of(request: SampleRequest, sampler: Prioritized) -> tuple[Any, ...]:
    """Return the key of a tree, without beta, which a caller may change at each sample."""
    own: tuple[Any, ...] = (type(sampler), sampler.score)
    return (sampler.alpha, sampler.epsilon, sampler.initial, request.key, request.anchor_key, *own)


class TreeByPosition:
    """A sum tree whose draws are positions instead of rows."""

    def __init__(
        self, tree: SumTree, resident: Resident, usage: Usage | None, rng: np.random.Generator
    ):
        self._tree, self._resident, self.total = tree, resident, tree.total
        self._usage, self._rng = usage, rng

    def draw(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions that shares of the total select, and their weights.

        The sum begins at the oldest step, so the size of the ring does not change the result.
        """
        r, usage = self._resident, self._usage
        rows, weights = self._tree.find(shares, r.first_place % r.slots)
        if usage is not None and usage.most is not None:
            return self._draw_within(usage, rows, weights)
        return r.positions(rows), weights

    def _draw_within(
        self, usage: Usage, rows: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Replace draws that exceed the lease limit of their step by draws of other steps."""
        r, tree = self._resident, self._tree
        blocked: list[tuple[np.ndarray, np.ndarray]] = []
        while (again := np.flatnonzero(surplus(usage, r.positions(rows)))).size:
            full = np.unique(rows[again])
            blocked.append((full, tree.weights.take(full)))
            tree.set(full, 0.0)
            if not tree.total > 0.0:
                break  # the surplus is left out of the batch
            rows[again], weights[again] = tree.find(self._rng.random(len(again)))
        for full, before in reversed(blocked):
            tree.set(full, before)
        return r.positions(rows), weights

    def minimum(self) -> float:
        """Return the lowest weight above 0."""
        return self._tree.minimum()


@dataclass
class SavedState:
    """The parsed result of `PriorityTrees.state`."""

    greatest: float
    calls: dict[str, int]
    ends: set[str]  # fields that were passed to any end(); batches have `next_<field>` for them
    has_priorities: bool = False
    positions: np.ndarray = field(default_factory=lambda: NONE)
    values: np.ndarray = field(default_factory=lambda: np.empty(0))  # priorities
    starts: np.ndarray = field(default_factory=lambda: np.empty(0))
    started: int = 0
    slots: int = 0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> SavedState:
        """Parse a state; raise KeyError, TypeError or ValueError if it is invalid."""
        saved = cls(
            float(state["greatest"]),
            {str(name): int(count) for name, count in state["calls"].items()},
            set(map(str, state.get("ends", []))),
        )
        if not 0.0 <= saved.greatest < float("inf"):
            raise ValueError(f"invalid greatest priority {saved.greatest}")
        priority_state = state["priorities"]
        if priority_state is None:
            return saved
        saved.has_priorities, saved.values = True, decoded(priority_state["values"])
        first, count = int(priority_state["first"]), len(saved.values)
        saved.positions = (
            decoded(priority_state["positions"], "<i8")
            if "positions" in priority_state
            else np.arange(first, first + count)
        )
        # States of earlier versions lack the initial priorities of steps without a priority. These
        # steps get the initial priority of a new step.
        saved.starts = (
            decoded(priority_state["starts"])
            if "starts" in priority_state
            else np.full(len(saved.values), saved.greatest or 1.0)
        )
        saved.started, saved.slots = (
            int(priority_state.get("started", first + count)),
            int(priority_state.get("slots", 0)),
        )
        if not len(saved.starts) == len(saved.positions) == len(saved.values):
            counts = len(saved.starts), len(saved.positions), len(saved.values)
            raise ValueError("got {} starts and {} positions for {} priorities".format(*counts))
        if (np.diff(saved.positions) <= 0).any():
            raise ValueError("positions must be strictly ascending")
        return saved


def encoded(values: np.ndarray, dtype: str = "<f8") -> str:
    """Encode an array as base64 text."""
    return base64.b64encode(values.astype(dtype).tobytes()).decode()


def decoded(text: str, dtype: str = "<f8") -> np.ndarray:
    """Decode base64 text to an array; raise ValueError if it is invalid."""
    array = np.frombuffer(base64.b64decode(text, validate=True), dtype)
    return array.astype(array.dtype.newbyteorder("="))


def parse_state(state: Mapping[str, Any], buffer: str) -> tuple[np.random.Generator, SavedState]:
    """Parse a result of `ReplayBuffer.sampling_state`.

    Raise KeyError, TypeError, ValueError or AttributeError if it is invalid.
    """
    if state["format"] != 1:
        raise ValueError(f"unknown format {state['format']!r}")
    if state["buffer"] != buffer:
        raise ValueError(f"it belongs to buffer {state['buffer']!r}, not to {buffer!r}")
    generator = np.random.default_rng()
    generator.bit_generator.state = state["generator"]
    return generator, SavedState.of(state)
