"""The ReplayBuffer of memmap-replay-buffer: episodes of limited length in the slots of a ring."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from expdb import errors
from expdb.integrations.memmap.episodes import StoredEpisode
from expdb.integrations.memmap.loading import Loading
from expdb.integrations.memmap.specs import Spec, as_array


class ReplayBuffer(Loading):
    """Store episodes of declared fields, with the arguments of memmap-replay-buffer.

    If the buffer exists, it is opened with its episodes.

    Parameters
    ----------
    folder : str or path
        The folder of the database file, or a PostgreSQL URL.
    max_episodes : int
        Maximum number of episodes.
    max_timesteps : int
        Maximum length of an episode. No space is reserved for missing steps.
    fields, meta_fields : mapping
        The fields of steps and of episodes, declared as a type, a shape and a default:
        `"float"`, `("int", 2)` or `("float", (3, 16, 16), 0.)`.
    circular : bool
        Whether new episodes replace the oldest when the buffer is full.
    overwrite : bool
        Whether to delete an existing buffer first.
    read_only : bool
        Whether to open an existing buffer for reading only.
    flush_every_store_step : int
        Number of steps that the buffer collects before it writes them. With 0, the writer
        collects up to 1,024 steps.
    name : str
        Name of the buffer in the database.

    Raises
    ------
    ValueError
        If the existing buffer has a different configuration.
    """

    # -- step by step --------------------------------------------------------------------------

    def store(self, **data: Any) -> Any:
        """Store a step of the current episode.

        With `flush_every_store_step=1`, the step is durable when the method returns. With a greater
        number N, the stored steps are durable after every N steps.

        Parameters
        ----------
        **data
            Values of fields; a field that is left out gets its default.

        Returns
        -------
        namedtuple
            The stored values, with defaults.

        Raises
        ------
        ValueError
            If a name is not a field, or the episode already has `max_timesteps` steps.
        """
        self._check_writable("store")
        self._check_names(data, self.fields, "field")
        values = {
            name: spec.full() if data.get(name) is None else _broadcast(spec, data[name])
            for name, spec in self.fields.items()
        }
        self._append([values])
        return self.memory_namedtuple(**values)

    def store_batch(self, **data: Any) -> None:
        """Store one step in each of several parallel episodes.

        Parameters
        ----------
        **data
            Fields as arrays [B, ...]. A field that is left out gets its default.

        Raises
        ------
        ValueError
            If a name is not a field, the lengths differ, the buffer is full, or the episodes
            already have `max_timesteps` steps.
        """
        self._check_writable("store_batch")
        values = self._batch(data, self.fields, "store_batch")
        defaults = {name: spec.full() for name, spec in self.fields.items()}
        self._append([{**defaults, **row} for row in values])

    def store_meta_batch(self, **data: Any) -> None:
        """Set meta fields of several parallel episodes.

        Parameters
        ----------
        **data
            Meta fields as arrays [B, ...].

        Raises
        ------
        ValueError
            If a name is not a meta field, the lengths differ, or the buffer is full.
        """
        self._check_writable("store_meta_batch")
        values = self._batch(data, self.meta_fields, "store_meta_batch")
        self._begin(len(values))
        for episode, meta in zip(self._open, values, strict=False):
            self._set_meta(episode, meta)

    def _batch(
        self, data: Mapping[str, Any], specs: Mapping[str, Spec], what: str
    ) -> list[dict[str, np.ndarray]]:
        if not data:
            raise ValueError(f"{what}() got no data; pass at least one field")
        self._check_names(data, specs, "meta field" if specs is self.meta_fields else "field")
        arrays = {name: specs[name].checked(value, 1) for name, value in data.items()}
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"all fields of a batch must have the same batch size, got {sizes}")
        rows = [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]
        if self.circular or len(rows) <= len(self._open):  # the limit was checked before
            return rows
        room = self.max_episodes - self.num_episodes
        if room <= 0:
            self._check_room()
        if room < len(rows):
            warnings.warn(
                f"{what}() got {len(rows)} episodes, but the buffer has room for {room}, so only "
                f"the first {room} episodes are stored; set circular=True or clear the buffer",
                errors.ExpDBWarning,
                stacklevel=3,
            )  # fmt: skip
        return rows[:room]

    def _append(self, rows: list[dict[str, np.ndarray]]) -> None:
        if self._timestep >= self.max_timesteps:
            raise ValueError(
                f"the episode already has max_timesteps={self.max_timesteps} steps; end the "
                "episode, or create the buffer with a greater max_timesteps"
            )
        self._begin(len(rows))
        assert self._writer is not None
        for episode, values in zip(self._open, rows, strict=False):
            self._pad(episode)
            self._writer.append(**self.rows.step(episode, values))
            episode.length += 1
        self._timestep += 1
        self._stored_steps += 1
        if self.flush_every_store_step and self._stored_steps % self.flush_every_store_step == 0:
            self._writer.flush()

    def _begin(self, count: int) -> None:
        """Begin episodes until `count` episodes are open."""
        if count > len(self._open):
            self._check_room(count)
            number = self._open[-1].number + 1 if self._open else self._next_number()
            for k in range(count - len(self._open)):
                meta = {name: spec.full().tolist() for name, spec in self.meta_fields.items()}
                self._open.append(StoredEpisode(-1, uuid.uuid4().hex, number + k, 0, 0, True, meta))

    def _pad(self, episode: StoredEpisode) -> None:
        """Store default values for the steps that an episode lacks."""
        assert self._writer is not None
        while episode.length < self._timestep:
            values = {name: spec.full() for name, spec in self.fields.items()}
            self._writer.append(**self.rows.step(episode, values))
            episode.length += 1

    def advance_episode(self, batch_size: int = 1) -> None:
        """End the current episodes.

        With `batch_size=1`, do nothing if no step was stored.

        Parameters
        ----------
        batch_size : int
            Number of parallel episodes.

        Raises
        ------
        ValueError
            If the buffer is read-only or full.
        """
        self._check_writable("advance_episode")
        if self._timestep == 0 and batch_size == 1:
            self._open = []  # without a stored step, there is no episode
            return
        self._begin(batch_size)
        self._timestep = max(self._timestep, 1)  # an episode has at least one step
        for episode in self._open:
            self._pad(episode)
        self.flush()
        for episode in self._open:
            self.buffer.end_episode(episode.episode_id)
        self._open, self._timestep = [], 0
        self._evict()

    def _evict(self) -> None:
        """Delete the oldest episodes, whose slots newer episodes have taken."""
        if self.circular:  # else `_check_room` has limited the number of episodes
            self.rows.delete(
                [episode.episode_id for episode in self.others()[: -self.max_episodes]]
            )

    @contextmanager
    def one_episode(self, **meta: Any) -> Iterator[dict[str, Any]]:
        """Return a context manager that begins and ends one episode.

        An exception in the block deletes the episode.

        Parameters
        ----------
        **meta
            Meta fields that are known at the beginning.

        Yields
        ------
        dict
            A dict to fill with meta fields that are known only at the end.

        Raises
        ------
        ValueError
            If another episode is open, or the buffer is read-only or full.
        """
        with self._episodes(1, {name: [value] for name, value in meta.items()}) as last:
            yield last

    @contextmanager
    def batched_episode(self, batch_size: int, **meta: Any) -> Iterator[None]:
        """Return a context manager that begins and ends several parallel episodes.

        An exception in the block deletes the episodes.

        Parameters
        ----------
        batch_size : int
            Number of episodes.
        **meta
            Meta fields as arrays [batch_size, ...].

        Yields
        ------
        None
            Nothing.

        Raises
        ------
        ValueError
            If another episode is open, or the buffer is read-only or full.
        """
        with self._episodes(batch_size, meta):
            yield

    @contextmanager
    def _episodes(self, count: int, meta: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self._check_writable("one_episode")
        if self._open:
            raise ValueError(
                "an episode is open; call advance_episode() before you begin another one"
            )
        last: dict[str, Any] = {}
        try:
            self._begin(count)
            if meta:
                self.store_meta_batch(**meta)
            yield last
            if last:
                self._check_names(last, self.meta_fields, "meta field")
                checked = {name: self.meta_fields[name].checked(v) for name, v in last.items()}
                self.flush()
                for episode in self._open:
                    self._set_meta(episode, checked)
            self.advance_episode(count)
        except BaseException:
            self.flush()
            self.rows.delete([episode.episode_id for episode in self._open])
            self._open, self._timestep = [], 0
            raise

    def _set_meta(self, episode: StoredEpisode, values: Mapping[str, np.ndarray]) -> None:
        episode.meta |= {name: value.tolist() for name, value in values.items()}
        if episode.length:
            self.flush()
            self.rows.set_tags(episode)

    # -- whole episodes, and changes -----------------------------------------------------------

    def store_episode(self, **data: Any) -> None:
        """Store a whole episode in one transaction.

        Parameters
        ----------
        **data
            Fields as arrays [T, ...], and meta fields as arrays [...].

        Raises
        ------
        ValueError
            If a name is unknown, no field is given, the lengths differ or exceed `max_timesteps`,
            or the buffer is full.
        """
        self._check_writable("store_episode")
        if not data:
            raise ValueError("store_episode() got no data; pass at least one field")
        self._check_names(data, {**self.fields, **self.meta_fields}, "field")
        arrays = {n: self.fields[n].checked(v, 1) for n, v in data.items() if n in self.fields}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(
                f"expected at least one field, and the same length for all fields, got {lengths}"
            )
        (length,) = set(lengths.values())
        self._check_length(length)
        meta = {name: spec.full() for name, spec in self.meta_fields.items()}
        meta |= {n: self.meta_fields[n].checked(v) for n, v in data.items() if n in meta}
        self._check_room()
        if self._timestep:
            warnings.warn(
                f"store_episode() deletes the open episode, which has {self._timestep} steps; call "
                "advance_episode() first to keep it",
                errors.ExpDBWarning, stacklevel=2,
            )  # fmt: skip
            self.flush()
            self.rows.delete([episode.episode_id for episode in self._open])
        self._open, self._timestep = [], 0
        meta_values = {name: value.tolist() for name, value in meta.items()}
        new_episode = StoredEpisode(
            -1, uuid.uuid4().hex, self._next_number(), 0, 0, False, meta_values
        )  # fmt: skip
        full = {name: spec.full(length) for name, spec in self.fields.items()}
        self.rows.write(new_episode, {**full, **arrays})
        self._evict()

    def update(self, indices: Any = None, **data: Any) -> None:
        """Set fields or meta fields of stored episodes.

        If fields are set, each episode is written again in one transaction, and its steps get new
        positions.

        Parameters
        ----------
        indices : int, sequence of int, slice or None
            The slots of the episodes; None for all.
        **data
            Fields as arrays [E, T, ...], which set the first T steps, and meta fields as arrays
            [E, ...].

        Raises
        ------
        ValueError
            If a name is unknown, a slot is empty, or the episode has not ended.
        """
        self._check_writable("update")
        if not data:
            raise ValueError("update() got no data; pass at least one field")
        self._check_names(data, {**self.fields, **self.meta_fields}, "field")
        slots = {self.slot_of(episode): episode for episode in self.held()}
        wanted = _slots(indices, self.max_episodes, slots)
        arrays = {name: self._for_slots(name, value, indices, len(wanted))
                 for name, value in data.items()}  # fmt: skip
        for k, slot in enumerate(wanted):
            if slot not in slots:
                raise ValueError(
                    f"no episode in slot {slot}; episodes are in the slots {sorted(slots)}"
                )
            self._update(slots[slot], {name: array[k] for name, array in arrays.items()})

    def _for_slots(self, name: str, value: Any, indices: Any, count: int) -> np.ndarray:
        array, is_field = as_array(value), name in self.fields
        if np.ndim(indices) == 0 and isinstance(indices, (int, np.integer)) and array.ndim:
            array = array[None]
        spec = self.fields[name] if is_field else self.meta_fields[name]
        leading = 2 if is_field else 1
        if array.ndim == 0:
            array = np.broadcast_to(array, (1,) * leading + spec.shape)
        if array.ndim < leading:
            raise ValueError(
                f"values of field {name} must have the shape (num_episodes, time, *shape), got "
                f"{array.shape}"
            )
        array = spec.checked(array, leading)
        if is_field:
            self._check_length(array.shape[1])
        return np.broadcast_to(array, (count, *array.shape[1:]))

    def _update(self, episode: StoredEpisode, values: Mapping[str, np.ndarray]) -> None:
        episode.meta |= {n: v.tolist() for n, v in values.items() if n in self.meta_fields}
        fields = {name: value for name, value in values.items() if name in self.fields}
        if not fields or episode.is_open:
            if fields:
                raise ValueError("the episode is open; call advance_episode() before update()")
            return self.rows.set_tags(episode)
        stored = self.rows.read(episode)
        longest = max(episode.length, *(len(value) for value in fields.values()))
        full = {name: spec.full(longest) for name, spec in self.fields.items()}
        for name, array in full.items():
            array[: episode.length] = stored[name]
            if name in fields:
                array[: len(fields[name])] = fields[name]
        old, episode.episode_id, episode.revision = (
            episode.episode_id,
            uuid.uuid4().hex,
            episode.revision + 1,
        )
        self.rows.write(episode, {name: array[: episode.length] for name, array in full.items()})
        self.rows.delete([old])

    def store_datapoint(
        self, episode_index: int, timestep_index: int, name: str, datapoint: Any
    ) -> None:
        """Set a field of one step of an episode that has ended.

        The episode is written again, so its steps get new positions.

        Parameters
        ----------
        episode_index : int
            The slot of the episode.
        timestep_index : int
            The index of the step in the episode.
        name : str
            The field.
        datapoint : array_like
            The new value.

        Raises
        ------
        ValueError
            If the slot, the step or the field does not exist, or the value does not fit.
        """
        self._check_slot(episode_index)
        slots = {self.slot_of(stored): stored for stored in self.held()}
        self._check_names({name: datapoint}, self.fields, "field")
        episode = slots.get(episode_index)
        if episode is None or not 0 <= timestep_index < episode.length:
            raise ValueError(f"the episode in slot {episode_index} has no step {timestep_index}")
        whole = self.rows.read(episode)[name]
        whole[timestep_index] = self.fields[name].checked(datapoint)
        self.update(episode_index, **{name: whole})

    def store_meta_datapoint(self, episode_index: int, name: str, datapoint: Any) -> None:
        """Set a meta field of an episode.

        Parameters
        ----------
        episode_index : int
            The slot of the episode.
        name : str
            The meta field.
        datapoint : array_like
            The new value.

        Raises
        ------
        ValueError
            If the slot or the meta field does not exist, or the value does not fit.
        """
        self._check_slot(episode_index)
        self._check_names({name: datapoint}, self.meta_fields, "meta field")
        self.update(episode_index, **{name: self.meta_fields[name].checked(datapoint)})

    def clear(self) -> None:
        """Delete all episodes."""
        self._check_writable("clear")
        self._open, self._timestep = [], 0
        self.flush()
        self.buffer.clear()

    reset_ = clear

    def _check_names(self, values: Mapping[str, Any], specs: Mapping[str, Any], what: str) -> None:
        if unknown := values.keys() - specs.keys():
            raise ValueError(f"unknown {what} names {unknown}; expected names from {set(specs)}")

    def _check_length(self, length: int) -> None:
        if length > self.max_timesteps:
            raise ValueError(
                f"an episode must have at most max_timesteps={self.max_timesteps} steps, got "
                f"{length}; create the buffer with a greater max_timesteps"
            )

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.max_episodes:
            raise ValueError(f"episode_index must be in [0, {self.max_episodes}), got {slot}")


def _broadcast(spec: Spec, value: Any) -> np.ndarray:
    """Return the array of a field's value; a single number fills the whole array."""
    array = as_array(value)
    return spec.checked(
        np.broadcast_to(array, spec.shape) if array.ndim == 0 and spec.shape else array
    )


def _slots(indices: Any, count: int, occupied: Mapping[int, StoredEpisode]) -> list[int]:
    """Return the slots that `indices` selects."""
    if indices is None:
        return sorted(occupied)
    if isinstance(indices, slice):
        return list(range(*indices.indices(count)))
    return [int(slot) for slot in np.atleast_1d(as_array(indices))]
