"""A prepared sample request, which draws any number of batches."""

from __future__ import annotations  # so that annotations do not import numpy.random

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from expdb import checks
from expdb.batch import Batch
from expdb.errors import InvalidValue, TooFewRows
from expdb.memory.resident import Resident
from expdb.names import EPISODE_COLUMNS, SCORE, UNKNOWN
from expdb.replay.layout import Layout
from expdb.replay.population import (
    Grouped,
    Interval,
    Listed,
    Positions,
    check_size,
    random_positions,
)
from expdb.replay.samplers import Draw, Prioritized, PriorityTree, Sampler
from expdb.replay.settings import have_same_settings
from expdb.replay.units import Unit
from expdb.sampling.assembly import assemble, select_items
from expdb.sampling.candidates import Candidates
from expdb.sampling.checksums import least_position, rows_crc
from expdb.sampling.drawing import draw_at_least, draw_within
from expdb.sampling.extensions import (
    check_draw,
    check_layout,
    check_selection,
    incomplete_draw,
    read_only,
    unknown_column,
)
from expdb.sampling.gatherer import Gatherer
from expdb.sampling.keys import KeySources, key_sources
from expdb.sampling.priority_trees import PriorityTrees
from expdb.sampling.request import SampleRequest
from expdb.sampling.window import Window
from expdb.sql.session import Session
from expdb.storage.ledger.encoding import LeasedItems
from expdb.storage.reading import fetch
from expdb.storage.reading.chunk_values import Empty
from expdb.storage.store import Snapshot, Store, evicted

MOST_ROWS_KEPT = 4096  # windows with more rows are not reused: reading dominates their cost


class Chosen(NamedTuple):
    """The items that a sampler has drawn."""

    positions: np.ndarray
    rows: np.ndarray
    columns: dict[str, np.ndarray]  # that the sampler adds


class Context(NamedTuple):
    """The random generator, the allocator and the snapshot for building a batch."""

    rng: np.random.Generator
    empty: Empty = np.empty
    snapshot: Snapshot | None = None  # None if all data are in memory

    @property
    def session(self) -> Session | None:
        """The session of the snapshot, if any."""
        return None if self.snapshot is None else self.snapshot.session


# A layout, the window that the unit has read, and the columns of the batch if they were read.
LayoutResult = tuple[Layout, Window | None, dict[str, np.ndarray] | None]


@dataclass(frozen=True)
class RecordedBatch:
    """A batch with the data that the ledger records about it."""

    batch: Batch
    drawn: LeasedItems
    rows_crc: int  # checksum of the rows that make up the batch
    least: int | None  # lowest position of these rows; None if it was not requested


class SamplePlan:
    """Draw and build the batches of one request.

    Before you draw, take the lock of the rows in memory and bring the rows up to date.
    """

    def __init__(
        self,
        request: SampleRequest,
        store: Store,
        resident: Resident,
        candidates: Candidates,
        priority_trees: PriorityTrees,
        gatherer: Gatherer,
    ):
        self.request, self._store, self.resident = request, store, resident
        self.candidates, self.priority_trees, self._gatherer = candidates, priority_trees, gatherer
        self.unit_type = type(request.unit)
        self._keys: KeySources
        # Version and records of the resident for which `_keys` was built.
        self._version, self._packed = -1, resident.packed
        window = request.unit.window
        # The sampler and the unit of the call that the plan was made for; see `serves`.
        self.sampler, self.unit = request.sampler, request.unit
        self.options: tuple[Any, ...] = ()  # arguments of this call without sampler and unit
        self._checks_unit = request.unit.checks_results
        self._checks_sampler = request.sampler.checks_results
        self._has_budget = request.unit.has_budget
        # The offsets always include 0, even if the unit's window does not.
        self._offsets = None if window is None else range(min(window.start, 0), max(window.stop, 1))
        # Drawable positions, and the epoch for which they are valid.
        self._positions: Positions | None = None
        self._epoch = -1, -1
        # The next draw can reuse `window`. `loaded` is the window around the steps checked last.
        self.window: Window | None = None
        self.loaded: Window | None = None
        self._most_rows_kept = MOST_ROWS_KEPT if request.limits is None else 0
        # Whether a draw from memory can fail after it has drawn random numbers, even if there are
        # many steps. If it cannot, the engine does not save the state of the generator.
        self.saves_generator = request.unit.by_episode or self._checks_unit or self._checks_sampler
        self.scores: list[str] = []  # names of the scores that the request reads
        self._drawn_from = PopulationInMemory(self, None, None)

    def serves(self, sampler: Sampler, unit: Unit) -> bool:
        """Return whether the plan can serve a call with an equal sampler and an equal unit.

        They may have settings that `==` does not compare, or equal settings of different types.
        """
        return have_same_settings(self.unit, unit) and have_same_settings(self.sampler, sampler)

    @property
    def keys(self) -> KeySources:
        """The sources of the keys of a batch; raises QueryError for an unknown key."""
        if self._version != self.resident.version or self._packed is not self.resident.packed:
            self._set_keys()
        return self._keys

    def _set_keys(self) -> None:
        r, request = self.resident, self.request
        self._keys = key_sources(self._store, r, request.fields, request.unit, request.sampler)
        self._version, self._packed = r.version, r.packed

    @property
    def is_in_memory(self) -> bool:
        """Whether a batch can be drawn without reading the database."""
        r = self.resident
        if not (r.complete and r.size):
            return False
        if self._version != r.version or self._packed is not r.packed:
            self._set_keys()
        if not self._keys.in_memory:
            return False
        if self.request.needs_only_rows and r.has_plain_links:
            return True
        return self.candidates.are_current(self.request)

    # -- drawing -----------------------------------------------------------------------------------

    def draw(self, context: Context) -> Batch:
        """Draw a batch; data that are not in memory are read from the snapshot."""
        if context.snapshot is not None and not self.resident.complete:
            return self._draw_stored(context.rng, context.snapshot)
        chosen = self._choose(context)
        return self._build_batch(chosen, self._lay_out(chosen, context), context)

    def draw_in_memory(self, rng: np.random.Generator, empty: Empty) -> Batch:
        """Draw a batch from memory; `is_in_memory` must be True. Simple requests take few calls."""
        r, request, unit = self.resident, self.request, self.request.unit
        if not (request.is_plain and r.has_plain_links) or self._offsets is None:
            return self.draw(Context(rng, empty))
        r.owners = {}  # the request reads no columns of episodes
        self._drawn_from.rng = rng
        positions, columns = self._draw_from(self._drawn_from, request.size, rng)
        window, self.loaded = self.loaded, None
        if window is None or window.positions_drawn is not positions:
            self.window = self.window if window is None else window
            window = self.load(positions, r.rows(positions))
        layout = unit.layout(window, window.drawn, rng)
        if layout.mask is not None:
            self._add_mask(layout, window)
        if layout.kept is not None:
            positions = positions[layout.kept]
            columns = {name: array[layout.kept] for name, array in columns.items()}
        batch = self._gatherer.gather(self._keys, window, positions, layout, columns, None, empty)
        if window.rows.size <= self._most_rows_kept:
            self.window = window
        return Batch(batch, len(positions))

    def draw_recorded(
        self,
        context: Context,
        layout_rng: np.random.Generator,
        number: int,
        wants_least: bool = False,
    ) -> RecordedBatch:
        """Draw batch `number` of a consumer, with the data that the ledger records."""
        chosen = self._choose(context, number)
        return self._record(chosen, context._replace(rng=layout_rng), wants_least)

    def rebuild(self, drawn: LeasedItems, context: Context) -> RecordedBatch:
        """Rebuild a batch from recorded positions; raise Evicted if a step is no longer stored."""
        r = self.resident
        if drawn.kept is not None:  # the other items exceeded the budget of the unit
            columns = {name: array[drawn.kept] for name, array in drawn.columns.items()}
            drawn = LeasedItems(drawn.positions[drawn.kept], columns)
        items = drawn.items
        if not (is_stored := r.are_stored(items)).all():
            raise evicted(np.unique(items[~is_stored]))
        self.candidates.read_owners(context.session, self.request)
        there = drawn.positions >= 0
        positions = np.where(there, drawn.positions, r.low)
        rows = np.where(there, r.rows(positions), UNKNOWN)
        names = positions if positions.ndim == 1 else positions[:, 0]
        return self._record(Chosen(names, rows, drawn.columns), context)

    def build_batch(self, positions: np.ndarray, context: Context) -> Batch:
        """Build a batch from positions that can be sampled."""
        self._read_owners(context.session)
        rows = self.candidates.rows(context.session, self.request, positions)
        chosen = Chosen(positions, rows, {})
        return self._build_batch(chosen, self._lay_out(chosen, context), context)

    def _read_owners(self, session: Session | None) -> None:
        """Read the columns of episodes that the request needs, if they may be outdated."""
        r = self.resident
        if self.request.reads or r.owners or not r.has_plain_links:
            self.candidates.read_owners(session, self.request)

    def _record(self, chosen: Chosen, context: Context, wants_least: bool = False) -> RecordedBatch:
        r, rows = self.resident, chosen.rows
        laid_out = self._lay_out(chosen, context)
        layout, window, _ = laid_out
        whole = layout
        if window is not None and layout.rows is window.rows:
            whole = replace(layout, rows=window.filled)
        crc = rows_crc(r, whole)
        least = least_position(r, whole) if wants_least else None
        batch = self._build_batch(chosen, laid_out, context)
        items = np.where(rows >= 0, r.positions(rows), UNKNOWN)
        return RecordedBatch(batch, LeasedItems(items, chosen.columns, layout.kept), crc, least)

    def _draw_stored(self, rng: np.random.Generator, snapshot: Snapshot) -> Batch:
        """Draw single steps from the database; positions must have no gaps.

        This is possible before all steps are in memory.
        """
        store, size, state = self._store, self.request.size, snapshot.state
        check_size(state.size, 1, self.request.unit.what, replace=True)
        positions = random_positions(state.oldest, state.added, size, rng)
        fields = self.request.fields
        return Batch(fetch.steps(store, *snapshot, positions, fields, last=True), size)

    # -- drawing positions -------------------------------------------------------------------------

    def _choose(self, context: Context, number: int | None = None) -> Chosen:
        """Draw items with the sampler.

        For a consumer, `number` is the number of the batch, and the consumer's limits apply.
        """
        request, rng, session = self.request, context.rng, context.session
        self._read_owners(session)
        population = MatchingPopulation(self, session, rng, number)

        def draw(size: int) -> Draw:
            return self._draw_from(population, size, rng)

        rows_of = partial(self.candidates.rows, session, request)
        if request.limits is not None:
            return Chosen(*draw_within(self.resident, request, draw, rows_of))
        if request.at_least is not None:
            positions, columns = draw_at_least(draw, request.at_least, request.size)
        else:
            positions, columns = draw(request.size)
        if request.lists_anchors:
            return Chosen(positions, rows_of(positions), columns)
        return Chosen(positions, self.resident.rows(positions), columns)

    def _draw_from(
        self, population: MatchingPopulation, size: int, rng: np.random.Generator
    ) -> Draw:
        sampler, unit = self.request.sampler, self.request.unit
        if self._checks_sampler:
            check_size(population.size, 1, unit.what, replace=True)
            return check_draw(sampler, size, sampler.draw(population, size, rng), population.holds)
        try:
            drawn = sampler.draw(population, size, rng)
            if len(drawn[0]) == size:
                return drawn
            failure: Exception = incomplete_draw(sampler, size, len(drawn[0]))
        except TooFewRows:
            raise
        except Exception as error:
            failure = error
        # The sampler may have failed because no step matches. In that case, raise TooFewRows.
        check_size(population.size, 1, unit.what, replace=True)
        raise failure

    def drawable(self, session: Session | None) -> Positions:
        """Return the positions that the query matches and the unit may start from."""
        request, r = self.request, self.resident
        epoch = r.epoch, -1 if request.limits is None else request.limits.usage.epoch
        is_outdated = epoch != self._epoch or request.asks_priorities or request.uses_time
        if self._positions is None or is_outdated:
            self._read_owners(session)
            positions = self.candidates.positions(session, request, self._fit)
            self._positions, self._epoch = positions, epoch
        return self._positions

    def _fit(self, positions: np.ndarray) -> np.ndarray:
        """Return a mask of the positions that the unit may start from; keep their window."""
        r, request, offsets = self.resident, self.request, self._offsets
        if self.loaded is not None:
            self.window, self.loaded = self.loaded, None
        rows = r.rows(positions)
        is_linked = r.has_plain_links or request.trajectories(r) is r
        if offsets is None or len(positions) != request.size or not is_linked:
            return request.may_start(r, rows)
        window = self.load(positions, rows)
        if request.only_unit_decides:
            fit = request.unit.may_start(window, window.drawn)
        else:
            fit = request.may_start(r, window.drawn, window)
        self.loaded = window
        return fit

    def load(self, positions: np.ndarray, rows: np.ndarray) -> Window:
        """Load the window around steps."""
        window, self.window, r = self.window, None, self.resident
        if window is None or window.packed is not r.packed or window.size != len(rows):
            assert self._offsets is not None
            window = Window(r, self._offsets, len(rows), not self.request.unit.fills_with_zeros)
        window.load(positions, read_only(rows) if self._checks_unit else rows)
        return window

    def _window_of(self, positions: np.ndarray, rows: np.ndarray) -> Window:
        """Return the window around steps; `_fit` may have loaded it."""
        window, self.loaded = self.loaded, None
        if window is not None and window.positions_drawn is positions:
            return window
        if window is not None:
            self.window = window
        return self.load(positions, rows)

    # -- building the batch ------------------------------------------------------------------------

    def _lay_out(self, chosen: Chosen, context: Context) -> LayoutResult:
        """Return the layout of chosen items, the window of the unit, and the columns if read."""
        r, unit, rows, rng = self.resident, self.request.unit, chosen.rows, context.rng
        trajectories = r if r.has_plain_links else self.request.trajectories(r)
        window = None
        if self._offsets is not None and rows.ndim == 1 and trajectories is r:
            window = self._window_of(chosen.positions, rows)
        if window is not None:
            layout = unit.layout(window, window.drawn, rng)
        else:
            layout = unit.layout(trajectories, read_only(rows) if self._checks_unit else rows, rng)
        if self._checks_unit:
            read_rows = None if window is None else window.rows
            layout = check_layout(unit, layout, rows, r, read_rows)
        if layout.mask is not None:
            self._add_mask(layout, window)
        if self._has_budget:
            return self._apply_budget(layout, chosen, context)
        return layout, window, None

    def _add_mask(self, layout: Layout, window: Window | None) -> None:
        """Add the mask to the columns, and replace rows outside the mask with the zero row."""
        assert layout.mask is not None
        layout.columns.setdefault("mask", layout.mask)
        if window is None or layout.rows is not window.rows:
            layout.rows = np.where(layout.mask, layout.rows, self.resident.zero)

    def _apply_budget(self, layout: Layout, chosen: Chosen, context: Context) -> LayoutResult:
        """Read the drawn items, and omit the newest items if the batch exceeds the budget."""
        unit, (positions, rows, columns) = self.request.unit, chosen
        batch = self._gatherer.gather(
            self._keys, None, positions, layout, columns, context.snapshot, np.empty
        )
        is_kept = unit.select_within_budget(batch, positions)
        if self._checks_unit:
            is_kept = check_selection(unit, is_kept, len(positions))
        if is_kept.all():
            return layout, None, batch
        limited = unit.layout(self.resident, rows[is_kept], context.rng)
        assert limited.mask is not None
        limited.rows = np.where(limited.mask, limited.rows, self.resident.zero)
        limited.kept = is_kept
        return limited, None, {name: select_items(array, is_kept) for name, array in batch.items()}

    def _build_batch(self, chosen: Chosen, laid_out: LayoutResult, context: Context) -> Batch:
        """Build a batch from chosen items and their layout."""
        (positions, _, columns), (layout, window, batch) = chosen, laid_out
        if layout.kept is not None:
            positions = positions[layout.kept]
            columns = {name: array[layout.kept] for name, array in columns.items()}
        if batch is None:
            batch = self._gatherer.gather(
                self._keys, window, positions, layout, columns, context.snapshot, context.empty
            )
        if window is not None and window.rows.size <= self._most_rows_kept:
            self.window = window
        if not self.request.unit.assembles:
            return Batch(batch, len(positions))
        return assemble(self._store, self.request, batch, positions, columns, context.rng)


STEP_COLUMNS = ("episode", "step", "reward", "terminated", "truncated")


class MatchingPopulation:
    """The steps that one sample draws from; implements `Population` of replay/samplers.py."""

    __slots__ = ("_number", "_plan", "_session", "rng")

    def __init__(
        self,
        plan: SamplePlan,
        session: Session | None,
        rng: np.random.Generator | None,
        number: int | None = None,
    ):
        self._plan, self._session, self.rng, self._number = plan, session, rng, number

    def _drawable(self) -> Positions:
        return self._plan.drawable(self._session)

    @property
    def positions(self) -> np.ndarray:
        """All positions, ascending."""
        return read_only(self._drawable().listed())

    @property
    def size(self) -> int:
        """Number of positions."""
        return self._drawable().count()

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the positions at indices; index 0 is the oldest position."""
        positions, places = self._drawable(), np.asarray(places)
        if places.size and not 0 <= places.min() <= places.max() < positions.count():
            raise InvalidValue(
                f"population.at() expects indices from 0 to {positions.count() - 1}, got "
                f"{places.min()} to {places.max()}"
            )
        return positions.at(places)

    def holds(self, positions: np.ndarray) -> np.ndarray:
        """Return a mask of the positions that may be drawn."""
        return self._drawable().holds(np.asarray(positions))

    def uniform(self, size: int, rng: np.random.Generator, replace: bool = True) -> np.ndarray:
        """Return `size` positions that are drawn uniformly."""
        return self._plan.drawable(self._session).draw(size, replace, rng)

    def newest(self, k: int) -> Listed:
        """Return the newest `k` positions."""
        checks.whole(k, "k", 1)
        return self._drawable().newest(k)

    def by(self, over: Literal["episode", "task"]) -> Grouped:
        """Return the positions, grouped by episode or task."""
        checks.choice(over, "over", "episode", "task")
        return self._plan.candidates.grouped(self._session, self._plan.request, over)

    def column(self, name: str, places: np.ndarray | None = None) -> np.ndarray:
        """Return a column of steps or episodes for all positions, or for those at `places`."""
        positions, r = self.positions if places is None else self.at(places), self._plan.resident
        rows = r.rows(positions) if len(positions) else positions
        if name in STEP_COLUMNS:
            return read_only(r.columns[name][rows])
        if name not in EPISODE_COLUMNS and not SCORE.fullmatch(name):
            raise unknown_column(name)
        return read_only(r.of_episodes(name, rows))

    def ordered(self, column: str, descending: bool, size: int) -> np.ndarray:
        """Return the first `size` positions in the order of a column of the view."""
        if not self._plan.request.sampler.asks_database:
            raise InvalidValue(
                "ordered() requires a sampler with asks_database = True; set asks_database in "
                "the sampler class"
            )
        assert self._session is not None
        return self._plan.candidates.ordered(
            self._session, self._plan.request, column, descending, size
        )

    def priorities(self, sampler: Prioritized) -> PriorityTree:
        """Return the weights that a sampler gives to the steps."""
        if not self._plan.request.sampler.uses_priorities:
            raise InvalidValue(
                "priorities() requires a sampler with uses_priorities = True; set "
                "uses_priorities in the sampler class"
            )
        assert self.rng is not None
        return self._plan.priority_trees.tree(self._session, self._plan.request, sampler, self.rng)

    def calls(self, sampler: Prioritized) -> int:
        """Count a call of a sampler, and return the number of earlier calls.

        For a consumer, return the number of the batch, so that a redrawn batch is the same.
        """
        if self._number is not None:
            return self._number
        return self._plan.priority_trees.count_call(self._plan.request, sampler)


class PopulationInMemory(MatchingPopulation):
    """A population whose rows are all in memory; `uniform` keeps the window of its draw."""

    __slots__ = ()

    def uniform(self, size: int, rng: np.random.Generator, replace: bool = True) -> np.ndarray:
        """Draw `size` positions uniformly, and keep their window in the plan."""
        plan = self._plan
        r, request = plan.resident, plan.request
        if not (replace and request.has_no_filter) or r.gaps or size != request.size:
            return plan.drawable(None).draw(size, replace, rng)
        positions = random_positions(r.low, r.high, size, rng)
        window = plan.load(positions, r.rows(positions))
        if request.anchor_key:
            fit = request.unit.may_start(window, window.drawn)
            # `argmin` is faster than `all`, which calls Python code in NumPy.
            if not fit[fit.argmin()]:
                plan.window = window
                drawable = plan.drawable(None)
                assert isinstance(drawable, Interval)
                return drawable.redraw(positions, fit, rng)
        plan.loaded = window
        return positions
