"""Batches: the arrays of drawn rows."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from typing import Any

import numpy as np

from expdb import errors
from expdb.batch import Batch
from expdb.memory import priorities
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.replay.layout import Layout
from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit
from expdb.sampling.keys import Plan, plan_keys
from expdb.sampling.memo import remembered
from expdb.sql.session import Session
from expdb.storage.reading import fetch
from expdb.storage.reading.chunk_cache import ChunkCache
from expdb.storage.reading.gather import Empty, as_objects, gather
from expdb.storage.store import State, Store

# Which rows of a layout a key is of.
_ROWS = {"next": "next_rows", "last": "last_rows", "stack": "stacks", "next_stack": "next_stacks"}


class Collator:
    """Makes batches of rows in memory, and of what has to be read for them."""

    def __init__(self, store: Store, resident: Resident):
        self._store, self._resident = store, resident
        self.cache = ChunkCache()
        self._plans: dict[Any, Plan] = {}
        self._planned = -1  # version of the resident that the plans are of

    def plan(self, fields: tuple[str, ...] | None, unit: Unit, sampler: Sampler) -> Plan:
        """Return where the keys of a batch come from.

        Raise QueryError for a key that there is not.
        """
        r = self._resident
        if self._planned != r.version:
            self._plans, self._planned = {}, r.version
        return remembered(
            self._plans,
            (fields, unit, sampler.keys()),
            lambda: plan_keys(self._store, self._resident, fields, unit, sampler),
        )

    def collate(
        self,
        session: Session | None,
        state: State | None,
        plan: Plan,
        positions: np.ndarray,
        layout: Layout,
        drawn: dict[str, np.ndarray],
        empty: Empty,
    ) -> Batch:
        """Gather the columns of a batch."""
        mask, rows = layout.mask, layout.rows
        shape, flat = rows.shape, rows.reshape(-1)
        taken = _Taken(self._resident, empty)
        arrays: dict[str, dict[str, np.ndarray]] = {"unit": layout.columns, "sampler": drawn}
        if session is not None and state is not None:
            arrays |= self._read(session, state, plan, positions, layout)
        out: dict[str, np.ndarray] = {}
        for key, source, name in plan.keys:
            if source == "row":
                array = taken.column(name, "rows", flat)
                out[key] = array if mask is None else array.reshape(*shape, *array.shape[1:])
            elif source in _ROWS:
                which = _ROWS[source]
                out[key] = taken.column(name, which, getattr(layout, which))
            elif source == "stored":
                array = arrays[source][name]
                out[key] = array if mask is None else array.reshape(*shape, *array.shape[1:])
            elif source in arrays:
                out[key] = arrays[source][name]
            else:
                out[key] = self._named(source, positions, layout)
        if layout.ragged and mask is not None:
            _make_ragged(out, layout.columns["length"], mask)
        return Batch(out, len(positions))

    def _named(self, name: str, positions: np.ndarray, layout: Layout) -> np.ndarray:
        """Return the positions of a batch, its episodes or priorities, or the buffer's name."""
        mask, rows, r = layout.mask, layout.rows, self._resident
        if name == "priority":
            return priorities.of_rows(r, rows.reshape(-1))[0].reshape(rows.shape)
        if name == "buffer":
            shape = (len(positions),) if layout.firsts is None else layout.firsts.shape
            return np.full(shape, self._store.name, object)
        if name == "episode":
            return r.episodes(rows) if mask is None else self._episodes(positions, layout)
        if mask is None:
            return positions
        return np.where(mask, r.positions(rows.reshape(-1)).reshape(rows.shape), UNKNOWN)

    def _read(
        self, session: Session, state: State, plan: Plan, positions: np.ndarray, layout: Layout
    ) -> dict[str, dict[str, np.ndarray]]:
        """Read what is not in memory, by source."""
        found: dict[str, dict[str, np.ndarray]] = {}
        if plan.stored:
            flat = layout.rows.reshape(-1)
            found["stored"] = self._stored(session, state, plan.stored, flat, layout.mask)
        if plan.of_episodes:
            found["episode_stored"] = self._of_episodes(
                session, state, plan.of_episodes, positions, layout
            )
        if plan.following:
            found["next_stored"] = self._stored_after(session, state, plan.following, layout)
        if plan.last:
            assert layout.last_rows is not None
            found["last_stored"] = self._stored(session, state, plan.last, layout.last_rows, None)
        if plan.frames:
            frames = self._frames(session, state, plan.frames, layout)
            found["stack_stored"], found["next_stack_stored"] = frames
        return found

    def _episodes(self, positions: np.ndarray, layout: Layout) -> np.ndarray:
        """Return the episode of each row that stands for one, -1 for none."""
        r, firsts = self._resident, layout.firsts
        if firsts is None:
            return r.episodes(r.rows(positions))
        return np.where(firsts >= 0, r.episodes(np.maximum(firsts, 0)), -1)

    def _of_episodes(
        self,
        session: Session,
        state: State,
        names: list[str],
        positions: np.ndarray,
        layout: Layout,
    ) -> dict[str, np.ndarray]:
        """Read columns of episodes, a value for each row that stands for one; nothing for none."""
        firsts = layout.firsts
        if firsts is None:
            return fetch.steps(self._store, session, state, positions, names)
        there = np.flatnonzero(firsts.reshape(-1) >= 0)
        found = fetch.steps(
            self._store, session, state, self._resident.positions(firsts.reshape(-1)[there]), names
        )
        out = {name: _spread(array, there, firsts.size) for name, array in found.items()}
        for array in out.values():
            if array.dtype.kind == "f":
                array[firsts.reshape(-1) < 0] = np.nan
        return {name: array.reshape(firsts.shape) for name, array in out.items()}

    def _frames(
        self, session: Session, state: State, names: list[str], layout: Layout
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Read the frames of stacks, each once.

        Puts together the stacks of steps and of what follows them.
        """
        stacks, following = layout.stacks, layout.next_stacks
        assert stacks is not None
        wanted = stacks if following is None else np.concatenate((stacks, following), 1)
        rows, place = np.unique(wanted, return_inverse=True)
        place = place.reshape(wanted.shape)
        before = np.empty(len(rows), np.int64)
        # Any of the steps that want a row: a stack stays in its episode.
        before[place] = layout.rows[:, None]
        found = self._read_rows(session, state, names, rows, before)
        width = stacks.shape[1]
        mine, theirs = (
            {name: self._resident.arrays.taken(array, part) for name, array in found.items()}
            for part in (place[:, :width], place[:, width:])
        )
        return mine, theirs

    def _stored(
        self,
        session: Session,
        state: State,
        names: list[str],
        flat: np.ndarray,
        mask: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Read what is not in memory, for steps; nothing where there is none."""
        there = np.arange(len(flat)) if mask is None else np.flatnonzero(mask.reshape(-1))
        positions = self._resident.positions(flat[there])
        found = self._fetched(session, state, positions, names)
        return (
            found
            if mask is None
            else {name: _spread(array, there, len(flat)) for name, array in found.items()}
        )

    def _fetched(
        self, session: Session, state: State, positions: np.ndarray, names: list[str]
    ) -> dict[str, np.ndarray]:
        empty = self._resident.arrays.empty
        return fetch.steps(
            self._store, session, state, positions, names, cache=self.cache, empty=empty
        )

    def _stored_after(
        self, session: Session, state: State, names: list[str], layout: Layout
    ) -> dict[str, np.ndarray]:
        """Read what is not in memory, for what follows steps.

        These are other steps, or the final observations of episodes.
        """
        rows = layout.next_rows
        assert rows is not None
        return self._read_rows(session, state, names, rows, layout.rows)

    def _read_rows(
        self, session: Session, state: State, names: list[str], rows: np.ndarray, before: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Read fields of rows.

        A row is a step, the final observation of the episode of the step `before`, or nothing.
        """
        r = self._resident
        steps, finals = np.flatnonzero(rows < r.slots), np.flatnonzero(rows > r.slots)
        found = self._fetched(session, state, r.positions(rows[steps]), names)
        if len(steps) == len(rows):
            return found
        out = {name: _spread(array, steps, len(rows)) for name, array in found.items()}
        episodes = r.episodes(before[finals])  # a transition stays in its episode
        known = fetch.final_observations(self._store, session, episodes) if len(finals) else {}
        for k, episode in zip(finals.tolist(), episodes.tolist(), strict=True):
            final = known[episode]
            for name in set(names) & set(final.fields):
                out[name][k] = gather(
                    {0: final.chunk},
                    [(0, final.row, final.row + 1)],
                    name,
                    self._store.fields.types[name],
                )[0]
                if f"has_{name}" in out:
                    out[f"has_{name}"][k] = True
        return out


def _spread(array: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """Return an array of `count` entries with some values at their places.

    Elsewhere it has zeros, or None.
    """
    out = (
        np.full((count, *array.shape[1:]), None)
        if array.dtype == object
        else np.zeros((count, *array.shape[1:]), array.dtype)
    )
    if array.dtype == object:
        for place, value in zip(places.tolist(), array, strict=True):
            out[place] = value
    else:
        out[places] = array
    return out


class _Taken:
    """Columns of drawn rows, in arrays of the caller's own making if need be.

    Of what is packed, each set of rows is taken once.
    """

    def __init__(self, resident: Resident, empty: Empty):
        self._resident, self._empty = resident, empty
        self._records: dict[str, np.ndarray] = {}

    def column(self, name: str, which: str, rows: np.ndarray) -> np.ndarray:
        """Return a column of rows; `which` tells these from other rows of the batch."""
        if name not in self._resident.packed.names:
            return self._gathered(self._resident.columns[name], rows)
        records = self._records.get(which)
        if records is None:
            records = self._records[which] = self._resident.packed.take(rows, self._resident.arrays)
        found = records[name]
        if self._empty is np.empty:
            return found.copy()
        out = _made(self._empty, found.shape, found.dtype)
        out[...] = found
        return out

    def _gathered(self, column: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if self._empty is np.empty:
            return self._resident.arrays.taken(column, rows)
        out = _made(self._empty, (*rows.shape, *column.shape[1:]), column.dtype)
        return column.take(rows, 0, out, "clip")


def _made(empty: Empty, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array of the caller's own making; raise InvalidValue for one of another kind."""
    out = empty(shape, dtype)
    if (
        not isinstance(out, np.ndarray)
        or out.shape != shape
        or out.dtype != dtype
        or not out.flags.writeable
    ):
        raise errors.InvalidValue(
            f"empty{shape, dtype} returned {type(out).__name__}: it is to return an array of that "
            "shape and dtype that can be written to"
        )
    return out


def _make_ragged(out: dict[str, np.ndarray], lengths: np.ndarray, mask: np.ndarray) -> None:
    """Give each row of a batch arrays of its own length."""
    for key, array in out.items():
        if array.ndim > 1 and array.shape[:2] == mask.shape and key not in _PER_ROW:
            out[key] = as_objects(
                [array[k, :length].copy() for k, length in enumerate(lengths.tolist())]
            )


_PER_ROW = ("probability", "weight", "length", "episode")
