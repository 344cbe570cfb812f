"""Build the columns of a batch: copy them from memory, or read them from the database."""

from __future__ import annotations  # so that annotations do not import numpy.random

from typing import Any

import numpy as np

from expdb import errors
from expdb.memory import priorities
from expdb.memory.resident import Resident
from expdb.names import EPISODE_VERSION_COLUMNS, UNKNOWN
from expdb.replay.layout import Layout
from expdb.replay.ragged import RaggedArray
from expdb.sampling.keys import KeySources
from expdb.sampling.window import Window
from expdb.storage.reading import fetch
from expdb.storage.reading.chunk_cache import ChunkCache
from expdb.storage.reading.chunk_values import Empty, as_objects, gather
from expdb.storage.store import Snapshot, Store

# For each source of values, the attribute of a layout that has its rows.
_ROWS = {"next": "next_rows", "last": "last_rows", "stack": "stacks", "next_stack": "next_stacks"}
_PER_ROW = ("probability", "weight", "length", "episode")


class Gatherer:
    """Build the columns of batches."""

    def __init__(self, store: Store, resident: Resident):
        self._store, self._resident = store, resident
        self.cache = ChunkCache()

    def gather(
        self,
        keys: KeySources,
        window: Window | None,
        positions: np.ndarray,
        layout: Layout,
        drawn: dict[str, np.ndarray],
        snapshot: Snapshot | None,
        empty: Empty,
    ) -> dict[str, np.ndarray]:
        """Return the columns of a batch; columns that are not in memory require a snapshot."""
        r = self._resident
        out: dict[str, Any] = keys.keys.copy()
        for source, packed in keys.packed.items():
            if window is None:
                items = r.packed.take(_rows(source, None, layout), r.arrays).items
            elif source != "row":
                items = window.items_of(getattr(layout, _ROWS[source]), source)
            elif layout.mask is None and layout.kept is None:
                items = window.of_drawn
            else:
                items = self._items_of_layout(window, layout)
            for key, name, kind in packed:
                column = items[name].copy()
                out[key] = column if kind is None else column.view(kind)
        for source, alone in keys.alone.items():
            rows = _rows(source, window, layout)
            for key, name in alone:
                taken = r.columns[name]
                out[key] = r.arrays.taken(taken, rows) if empty is np.empty else taken[rows]
        if empty is not np.empty:
            for key in [key for key, array in out.items() if array is not None]:
                out[key] = _copy_into(out[key], empty)
        stored: dict[str, dict[str, Any]] = {}
        if not keys.in_memory:
            assert snapshot is not None
            stored = self._read(snapshot, keys, positions, layout, window)
        for key, source, name in keys.others:
            if source == "unit":
                out[key] = layout.columns[name]
            elif source == "sampler":
                out[key] = drawn[name]
            elif source == "position" and layout.mask is None:
                out[key] = positions
            elif source == "episode" and window is not None and layout.kept is None:
                out[key] = window.of_drawn[source].copy()
            elif source in stored:
                out[key] = stored[source][name]
            else:
                out[key] = self._named(source, window, positions, layout)
        if layout.ragged and layout.mask is not None:
            _make_ragged(out, layout.columns["length"], layout.mask)
        return out

    def _items_of_layout(self, window: Window, layout: Layout) -> dict[str, np.ndarray]:
        """Return the record columns of the rows of a layout."""
        if layout.rows is window.rows:
            return window.items
        if layout.mask is None:
            return {name: column[layout.kept] for name, column in window.of_drawn.items()}
        return self._resident.packed.take(layout.rows, self._resident.arrays).items

    def _named(
        self, name: str, window: Window | None, positions: np.ndarray, layout: Layout
    ) -> np.ndarray:
        """Return the positions or episodes of steps, priorities, or the buffer's name."""
        mask, rows, r = layout.mask, layout.rows, self._resident
        if name == "priority":
            return priorities.of_rows(r, rows.reshape(-1))[0].reshape(rows.shape)
        if name == "buffer":
            shape = (len(positions),) if layout.firsts is None else layout.firsts.shape
            return np.full(shape, self._store.name, object)
        if name == "episode":
            return r.episodes(rows) if mask is None else self._episodes(positions, layout)
        if window is None or rows is not window.rows:
            assert mask is not None
            return np.where(mask, r.positions(rows), UNKNOWN)
        row_positions = window.positions(rows)
        return row_positions.copy() if row_positions is rows else row_positions

    def _read(
        self,
        snapshot: Snapshot,
        keys: KeySources,
        positions: np.ndarray,
        layout: Layout,
        window: Window | None,
    ) -> dict[str, dict[str, Any]]:
        """Read the columns that are not in memory, by source."""
        by_source: dict[str, dict[str, Any]] = {}
        if keys.reads_ragged:
            by_source["versions"] = self._read_versions(snapshot, layout)
        if keys.stored:
            flat = _rows("row", window, layout).reshape(-1)
            is_last_read = not (keys.of_episodes or keys.following or keys.last or keys.frames)
            stored = self._stored(
                snapshot,
                keys.stored,
                flat,
                layout.mask,
                keys.reads_ragged,
                is_last_read,
            )
            shape = layout.rows.shape
            by_source["stored"] = {
                name: array
                if isinstance(array, RaggedArray)
                else array.reshape(*shape, *array.shape[1:])
                for name, array in stored.items()
            }
        if keys.of_episodes:
            by_source["episode_stored"] = self._of_episodes(
                snapshot, keys.of_episodes, positions, layout
            )
        if keys.following:
            assert layout.next_rows is not None
            by_source["next_stored"] = self._read_rows(
                snapshot, keys.following, layout.next_rows, layout.rows
            )
        if keys.last:
            assert layout.last_rows is not None
            by_source["last_stored"] = self._stored(snapshot, keys.last, layout.last_rows, None)
        if keys.frames:
            frames = self._frames(snapshot, keys.frames, layout)
            by_source["stack_stored"], by_source["next_stack_stored"] = frames
        return by_source

    def _read_versions(self, snapshot: Snapshot, layout: Layout) -> dict[str, np.ndarray]:
        """Return the policy version of each step of a batch of episodes.

        The version comes from memory if all steps of the episode share it or lack it. Other
        versions are read from the database.
        """
        r, rows, mask = self._resident, layout.rows, layout.mask
        assert mask is not None
        firsts = rows[..., 0] if layout.firsts is None else layout.firsts
        versions = np.stack([r.of_episodes(name, firsts) for name in EPISODE_VERSION_COLUMNS])
        has_version = ~np.isnan(versions[0])
        # Memory stores versions as float64, which is exact only below 2^53.
        is_in_memory = (versions == versions[0]).all(0) & (abs(versions[0]) < 1 << 53)
        is_in_memory |= np.isnan(versions).all(0)
        is_own = r.episodes(rows) == r.episodes(firsts)[..., None]  # not shared with a parent
        out = {
            "policy_version": np.where(has_version & is_in_memory, versions[0], 0).astype(np.int64),
            "has_policy_version": has_version & is_in_memory,
        }
        out = {name: np.where(mask & is_own, array[..., None], 0) for name, array in out.items()}
        out["has_policy_version"] = out["has_policy_version"].astype(np.bool_)
        is_in_database = mask & ~(is_own & is_in_memory[..., None])
        if is_in_database.any():
            columns = self._fetched(snapshot, r.positions(rows[is_in_database]), ["policy_version"])
            for name, array in columns.items():
                out[name][is_in_database] = array
        return out

    def _episodes(self, positions: np.ndarray, layout: Layout) -> np.ndarray:
        """Return the episode of each row in `layout.firsts`, or of each position by default.

        The episode is -1 if there is no row.
        """
        r, firsts = self._resident, layout.firsts
        if firsts is None:
            return r.episodes(r.rows(positions))
        return np.where(firsts >= 0, r.episodes(np.maximum(firsts, 0)), -1)

    def _of_episodes(
        self,
        snapshot: Snapshot,
        names: list[str],
        positions: np.ndarray,
        layout: Layout,
    ) -> dict[str, np.ndarray]:
        """Read columns of episodes, one value for each row in `layout.firsts`.

        By default, read one value for each position. If there is no row, the value is NaN for
        floating-point columns, otherwise zero or None.
        """
        firsts = layout.firsts
        if firsts is None:
            return fetch.steps(self._store, *snapshot, positions, names)
        there = np.flatnonzero(firsts.reshape(-1) >= 0)
        columns = fetch.steps(
            self._store, *snapshot, self._resident.positions(firsts.reshape(-1)[there]), names
        )
        out = {name: _place_at(array, there, firsts.size) for name, array in columns.items()}
        for array in out.values():
            if array.dtype.kind == "f":
                array[firsts.reshape(-1) < 0] = np.nan
        return {name: array.reshape(firsts.shape) for name, array in out.items()}

    def _frames(
        self, snapshot: Snapshot, names: list[str], layout: Layout
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Read each frame once, and return the stacks of steps and of the rows that follow them."""
        stacks, following = layout.stacks, layout.next_stacks
        assert stacks is not None
        wanted = stacks if following is None else np.concatenate((stacks, following), 1)
        rows, place = np.unique(wanted, return_inverse=True)
        place = place.reshape(wanted.shape)
        before = np.empty(len(rows), np.int64)
        # Any step whose stack has the row is sufficient, because a stack has only one episode.
        before[place] = layout.rows[:, None]
        columns = self._read_rows(snapshot, names, rows, before)
        width = stacks.shape[1]
        stack_columns, next_columns = (
            {name: self._resident.arrays.taken(array, part) for name, array in columns.items()}
            for part in (place[:, :width], place[:, width:])
        )
        return stack_columns, next_columns

    def _stored(
        self,
        snapshot: Snapshot,
        names: list[str],
        flat: np.ndarray,
        mask: np.ndarray | None,
        as_ragged: bool = False,
        last: bool = False,
    ) -> dict[str, Any]:
        """Read columns of steps from the database; masked entries are 0, None or a missing array.

        With `as_ragged`, arrays whose first dimension varies are `RaggedArray`. `last` means that
        nothing more is read in this transaction.
        """
        there = np.arange(len(flat)) if mask is None else np.flatnonzero(mask.reshape(-1))
        positions = self._resident.positions(flat[there])
        columns = self._fetched(snapshot, positions, names, as_ragged, last)
        if mask is None:
            return columns
        return {name: _place_at(array, there, len(flat)) for name, array in columns.items()}

    def _fetched(
        self,
        snapshot: Snapshot,
        positions: np.ndarray,
        names: list[str],
        as_ragged: bool = False,
        last: bool = False,
    ) -> dict[str, Any]:
        empty = self._resident.arrays.empty
        return fetch.steps(
            self._store, *snapshot, positions, names, cache=self.cache, empty=empty,
            as_ragged=as_ragged, last=last,
        )  # fmt: skip

    def _read_rows(
        self, snapshot: Snapshot, names: list[str], rows: np.ndarray, before: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Read fields of rows.

        A row is a step, the final observation of the episode of the step in `before`, or the zero
        row.
        """
        r = self._resident
        steps, finals = np.flatnonzero(rows < r.slots), np.flatnonzero(rows > r.slots)
        columns = self._fetched(snapshot, r.positions(rows[steps]), names)
        if len(steps) == len(rows):
            return columns
        out = {name: _place_at(array, steps, len(rows)) for name, array in columns.items()}
        episodes = r.episodes(before[finals])  # a transition has only one episode
        observations = (
            fetch.final_observations(self._store, snapshot.session, episodes) if len(finals) else {}
        )
        for k, episode in zip(finals.tolist(), episodes.tolist(), strict=True):
            final = observations[episode]
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


def _rows(source: str, window: Window | None, layout: Layout) -> np.ndarray:
    """Return the rows of a source of values, with the zero row where there is no step."""
    rows: np.ndarray = layout.rows if source == "row" else getattr(layout, _ROWS[source])
    return window.filled if window is not None and rows is window.rows else rows


def _place_at(array: Any, indices: np.ndarray, count: int) -> Any:
    """Return `count` entries: the values at `indices`, and 0, None or no array elsewhere."""
    if isinstance(array, RaggedArray):
        return array.place_at(indices, count)
    shape = count, *array.shape[1:]
    out = np.full(shape, None) if array.dtype == object else np.zeros(shape, array.dtype)
    out[indices] = array
    return out


def _copy_into(array: np.ndarray, empty: Empty) -> np.ndarray:
    """Return a copy in an array that `empty` allocates; raise InvalidValue if it is unsuitable."""
    out = empty(array.shape, array.dtype)
    if (
        not isinstance(out, np.ndarray)
        or out.shape != array.shape
        or out.dtype != array.dtype
        or not out.flags.writeable
    ):
        raise errors.InvalidValue(
            f"empty{array.shape, array.dtype} must return a writable array of that shape and "
            f"dtype, got {type(out).__name__}"
        )
    out[...] = array
    return out


def _make_ragged(out: dict[str, np.ndarray], lengths: np.ndarray, mask: np.ndarray) -> None:
    """Replace padded arrays with one array of the actual length for each row of a batch."""
    for key, array in out.items():
        if array.ndim > 1 and array.shape[:2] == mask.shape and key not in _PER_ROW:
            out[key] = as_objects(
                [array[k, :length].copy() for k, length in enumerate(lengths.tolist())]
            )
