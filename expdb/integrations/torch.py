"""PyTorch datasets and a loader that draw from a buffer, and pinned memory for batches.

>>> from torch.utils.data import DataLoader
>>> from expdb.integrations.torch import Samples
>>> samples = Samples(buffer, 256, unit=expdb.NStep(3))  # doctest: +SKIP
>>> for batch in DataLoader(samples, batch_size=None, num_workers=2):  # doctest: +SKIP
...     loss = learner(batch["obs"], batch["reward"])
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import expdb

__all__ = ["Episodes", "Loader", "Minibatches", "Samples", "pad", "pinned"]

MESSAGE_BYTES = 256 << 10  # a Loader worker collects about this many bytes per message
MESSAGE_BATCHES = 64
PIPE_BYTES = 1 << 20  # a larger message is sent through shared memory

Tensors = dict[str, Any]
Progress = dict[str, Any] | None  # a worker's random generator and remaining batches in a pass


class Samples(IterableDataset[Tensors]):
    """Draw batches from a buffer as tensors, as an iterable dataset over `buffer.sample(...)`.

    Pass it to a `DataLoader` with `batch_size=None`, because each item is a batch. Each worker,
    started by fork or spawn, draws through its own connection with its own random numbers.
    `torch.manual_seed` determines the random numbers.

    Workers draw up to `prefetch_factor` batches in advance. A batch therefore lacks the steps that
    were stored after it was drawn.

    An interrupted pass can continue after its last batch: save `state_dict()` with the checkpoint,
    and call `load_state_dict` before the first pass of the resumed training. With workers, use
    `Loader`, or the `StatefulDataLoader` of torchdata.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to sample.
    size : int
        The size of a batch.
    where : str, dict or QueryBuilder, optional
        Selects the steps, as for `buffer.sample`.
    sampler : Sampler
        Chooses the steps, as for `buffer.sample`.
    unit : Unit
        What a drawn step becomes, as for `buffer.sample`.
    fields : sequence of str, optional
        Names of the columns and fields of a batch; all by default.
    batches : int, optional
        Number of batches per pass, divided among the workers. By default, a pass does not end.
    disjoint : bool
        Whether each worker draws from its own part of the episodes.
    shard : (int, int)
        The rank of this learner and the world size, if several learners share the buffer. All
        workers together draw from the part of the episodes that belongs to the rank.
    wait : float, optional
        Seconds to wait for steps if the buffer is empty.

    Raises
    ------
    InvalidValue
        If `buffer`, `size` or `batches` is invalid.
    """

    def __init__(
        self,
        buffer: expdb.ReplayBuffer,
        size: int,
        where: Any = None,
        *,
        sampler: Any = expdb.Uniform(),  # noqa: B008 (frozen)
        unit: Any = expdb.Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        batches: int | None = None,
        disjoint: bool = False,
        shard: tuple[int, int] = (0, 1),
        wait: float | None = None,
    ):
        if not isinstance(buffer, expdb.ReplayBuffer):
            raise expdb.InvalidValue(
                f"buffer must be a ReplayBuffer such as db.buffer('train'), got {buffer!r}"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise expdb.InvalidValue(f"size must be an integer of at least 1, got {size!r}")
        if batches is not None and (
            isinstance(batches, bool) or not isinstance(batches, int) or batches < 1
        ):
            raise expdb.InvalidValue(
                f"batches must be an integer of at least 1, or None for no end, got {batches!r}"
            )
        self.buffer, self.size, self.where = buffer, size, where
        self.options = {"sampler": sampler, "unit": unit, "fields": fields, "wait": wait}
        self.batches, self.disjoint, self.shard = batches, disjoint, shard
        self._passes = 0
        self._before: Progress = None  # before the last draw of this process
        self._progress: Progress = None  # after the last draw of this process
        self.resumed: dict[int, Progress] = {}  # worker: start of the next pass

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of this process for a checkpoint.

        Returns
        -------
        dict
            A state for `load_state_dict`.
        """
        return {"passes": self._passes, "progress": self._progress, **self._shape()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the pass that was in progress when `state_dict` was called.

        If the buffer has not changed, the next pass yields the remaining batches.

        Parameters
        ----------
        state : dict
            The result of `state_dict`.

        Raises
        ------
        InvalidValue
            If `state` is not a state, or `size` or `batches` differ.
        """
        self.check_state(state)
        _require_keys(state, "passes")
        self._passes, self._progress = state["passes"], state["progress"]
        self.resumed = {} if self._progress is None else {0: self._progress}

    def _shape(self) -> dict[str, Any]:
        return {"size": self.size, "batches": self.batches}

    def check_state(self, state: Any) -> None:
        """Check that a state belongs to samples with the same `size` and `batches`.

        Parameters
        ----------
        state : dict
            The result of `state_dict`.

        Raises
        ------
        InvalidValue
            If `state` is not a state, or `size` or `batches` differ.
        """
        _require_keys(state, "progress", "size", "batches")
        for name, value in self._shape().items():
            if state[name] != value:
                raise expdb.InvalidValue(
                    f"the state was saved with {name}={state[name]}, but these samples have "
                    f"{name}={value}; use the same number"
                )

    def __len__(self) -> int:
        """Return the number of batches of a pass; raise TypeError if a pass does not end."""
        if self.batches is None:
            raise TypeError("Samples without batches= have no end and no length; set batches=")
        return self.batches

    def __iter__(self) -> Iterator[Tensors]:
        """Yield the batches of a pass."""
        for batch, _ in self.drawn():
            yield batch

    def drawn(self, most: int = 1) -> Iterator[tuple[Tensors, int]]:
        """Yield the batches of this worker, or of this process if there are no workers.

        Parameters
        ----------
        most : int
            Largest number of batches to draw at once.

        Yields
        ------
        tuple of dict and int
            A tensor dict that contains up to `most` batches, and the number of batches in it.
        """
        info = get_worker_info()
        seed = int(torch.empty((), dtype=torch.int64).random_()) if info is None else info.seed
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        resumed = self.resumed.pop(worker, None)
        progress = self.initial_progress(worker, workers, seed) if resumed is None else resumed
        if resumed is None:
            self._passes += 1  # a persistent worker has the same seed in every pass
        rng = np.random.default_rng(0)
        rng.bit_generator.state = progress["generator"]
        worker, left = progress["worker"], progress["left"]
        part, parts = self.shard
        # A part has the episodes with one remainder, so the parts of the workers divide the shard.
        if self.disjoint:
            part, parts = part + parts * worker, parts * workers
        self._progress = progress
        while left is None or left > 0:
            many = most if left is None else min(most, left)
            self._before = self._progress
            batch = self.buffer.sample(
                many * self.size,
                self.where,
                seed=rng,
                shard=None if parts == 1 else (part, parts),
                **self.options,
            )
            left = None if left is None else left - many
            self._progress = {"worker": worker, "generator": rng.bit_generator.state, "left": left}
            yield batch.to_torch(), many
        if info is None:
            self._progress = None

    def initial_progress(self, worker: int, workers: int, seed: int) -> dict[str, Any]:
        """Return the progress of a worker at the start of a pass.

        Parameters
        ----------
        worker : int
            Index of the worker.
        workers : int
            Number of workers.
        seed : int
            Seed of the worker.

        Returns
        -------
        dict
            The worker, the state of its random generator and the number of its remaining batches.
        """
        left = self.batches
        if left is not None:
            left = left // workers + (worker < left % workers)
        rng = np.random.default_rng((seed, self._passes))
        return {"worker": worker, "generator": rng.bit_generator.state, "left": left}

    @property
    def divisible(self) -> bool:
        """Whether a large batch can be split into several batches.

        This requires draws that are independent of each other and have equal shapes.
        """
        sampler, unit = self.options["sampler"], self.options["unit"]
        sampler = sampler.for_unit(unit.lists_anchors)
        return bool(sampler.is_independent and unit.has_fixed_shapes)


class Minibatches(IterableDataset[Tensors]):
    """Yield every item of a buffer once per pass as tensors, like `buffer.epochs`.

    An item is a step, or a sequence, episode or other item that `unit` builds from a step.

    Pass it to a `DataLoader` with `batch_size=None`, because each item of the dataset is a batch.
    The workers divide the episodes among themselves. `torch.manual_seed` determines the order.

    An interrupted pass can continue after its last batch: save `state_dict()` with the checkpoint,
    and call `load_state_dict` before the first pass of the resumed training. With workers, use the
    `StatefulDataLoader` of torchdata.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read.
    size : int
        Number of items in a batch.
    where : str, dict or QueryBuilder, optional
        Selects the steps, as for `buffer.epochs`.
    unit : Unit
        What a drawn step becomes, as for `buffer.epochs`.
    fields : sequence of str, optional
        Names of the columns and fields of a batch; all by default.
    shard : (int, int)
        The rank of this learner and the world size. All workers together read the part of the
        episodes that belongs to the rank.
    drop_last : bool
        Whether to leave out the last batch of a pass if it has fewer than `size` items.

    Raises
    ------
    InvalidValue
        If an argument is invalid.
    """

    def __init__(
        self,
        buffer: expdb.ReplayBuffer,
        size: int,
        where: Any = None,
        *,
        unit: Any = expdb.Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        shard: tuple[int, int] = (0, 1),
        drop_last: bool = False,
    ):
        if not isinstance(buffer, expdb.ReplayBuffer):
            raise expdb.InvalidValue(
                f"buffer must be a ReplayBuffer such as db.buffer('train'), got {buffer!r}"
            )
        self.buffer, self.size, self.shard = buffer, size, shard
        self.options = {"where": where, "unit": unit, "fields": fields, "drop_last": drop_last}
        self._epochs: expdb.Epochs | None = None
        self._resumed: dict[str, Any] | None = None
        buffer.epochs(size, shard=shard, **self.options)  # raises InvalidValue for wrong arguments

    def __iter__(self) -> Iterator[Tensors]:
        """Begin a pass, or continue the pass of the loaded state."""
        info, resumed, self._resumed = get_worker_info(), self._resumed, None
        seed = int(torch.empty((), dtype=torch.int64).random_()) if info is None else info.seed
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        part, parts = self.shard
        self._epochs = self.buffer.epochs(
            self.size,
            seed=seed if resumed is None else resumed["seed"],
            shard=(part + parts * worker, parts * workers) if parts * workers > 1 else None,
            **self.options,
        )
        if resumed is not None:
            self._epochs.load_state_dict(resumed)
        for batch in self._epochs:
            yield batch.to_torch()
        self._epochs = None

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the current pass, for a checkpoint.

        Returns
        -------
        dict
            A state for `load_state_dict`.
        """
        return {"epochs": None if self._epochs is None else self._epochs.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the pass after the last batch that was yielded before `state_dict` was called.

        Parameters
        ----------
        state : dict
            The result of `state_dict`.

        Raises
        ------
        InvalidValue
            If `state` is not a state.
        """
        _require_keys(state, "epochs")
        self._resumed = state["epochs"]


def _require_keys(state: Any, *keys: str) -> None:
    """Raise InvalidValue if a state is not a mapping with these keys."""
    missing = set(keys) - state.keys() if isinstance(state, Mapping) else None
    if missing or missing is None:
        problem = f"has no key {min(missing)!r}" if missing else f"is a {type(state).__name__}"
        raise expdb.InvalidValue(
            f"the state {problem}; pass the value that state_dict() of the same class returned"
        )


class Loader(DataLoader[Tensors]):
    """Load `Samples` in workers that send many small batches per message.

    Sending a message takes about as long as drawing ten batches of small steps. A `DataLoader`
    sends one message per batch, so it is slower than sampling without workers. A worker of this
    loader sends about 256 KB per message, so each batch takes a fraction of that time.

    The batches of a message share one block of memory, which is freed when no batch is in use.

    Parameters
    ----------
    samples : Samples
        The batches to load.
    num_workers : int
        Number of worker processes; 0 samples in this process.
    **options
        Options of `torch.utils.data.DataLoader` except `batch_size`, `sampler`, `batch_sampler`,
        `collate_fn`, `shuffle` and `drop_last`. `prefetch_factor` counts messages.

    Raises
    ------
    InvalidValue
        If `samples` is not a `Samples`, or an option is not supported.
    """

    def __init__(self, samples: Samples, *, num_workers: int = 0, **options: Any):
        if not isinstance(samples, Samples):
            raise expdb.InvalidValue(f"samples must be Samples(buffer, size, ...), got {samples!r}")
        if taken := {
            "batch_size",
            "sampler",
            "batch_sampler",
            "collate_fn",
            "shuffle",
            "drop_last",
        } & set(options):
            raise expdb.InvalidValue(
                f"Loader does not support {min(taken)}, because the items of Samples are batches; "
                "leave this option out"
            )
        self.samples = samples
        self._skip = 0  # number of batches of the first message that precede the checkpoint
        self._last_message: tuple[_Message, int] | None = None  # and its used batches
        self._progress: dict[int, Progress] = {}  # progress of each worker after its last message
        dataset: Any = _Messages(samples) if num_workers else samples
        super().__init__(dataset, batch_size=None, num_workers=num_workers, **options)

    def __len__(self) -> int:
        """Return the number of batches of a pass; raise TypeError if a pass does not end."""
        return len(self.samples)

    def __iter__(self) -> Iterator[Tensors]:
        """Yield the batches of a pass."""
        if not self.num_workers:
            yield from super().__iter__()
            return
        skip = self._skip
        messages: Any = super().__iter__()  # the workers have copied `samples.resumed`
        self._progress, self.samples.resumed = dict(self.samples.resumed), {}
        for worker in range(self.num_workers):
            if worker not in self._progress:
                seed = messages._base_seed + worker  # as in the workers
                start = self.samples.initial_progress(worker, self.num_workers, seed)
                self._progress[worker] = start
        for message in messages:
            for k, batch in enumerate(message.batches()):
                self._last_message = message, k + 1
                if k >= skip:
                    yield batch
            skip = self._skip = 0
            self._progress[message.worker] = message.after
        self._last_message, self._progress = None, {}

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the pass, for a checkpoint.

        Returns
        -------
        dict
            A state for `load_state_dict`.

        Raises
        ------
        InvalidValue
            With `persistent_workers=True`, because the seeds of the workers are unknown after the
            first pass.
        """
        if self.persistent_workers:
            raise expdb.InvalidValue(
                "a loader with persistent_workers=True cannot be resumed; leave out this option"
            )
        if not self.num_workers:
            return {"num_workers": 0, **self.samples.state_dict()}
        progress, first, skip = self._progress or self.samples.resumed, 0, self._skip
        progress = dict(progress)
        if self._last_message is not None:
            message, count = self._last_message
            first, skip = message.worker, count
            progress[first] = message.before
            if count == message.count:
                first, skip = (message.worker + 1) % self.num_workers, 0
                progress[message.worker] = message.after
        return {
            "num_workers": self.num_workers, "first": first, "skip": skip, "progress": progress,
            **self.samples._shape(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the pass that was in progress when `state_dict` was called.

        Call it before the first pass. If the buffer has not changed, the next pass yields the
        remaining batches.

        Parameters
        ----------
        state : dict
            The result of `state_dict`.

        Raises
        ------
        InvalidValue
            If `state` is not a state, or `size`, `batches` or `num_workers` differ.
        """
        self.samples.check_state(state)
        _require_keys(state, "num_workers")
        if state["num_workers"] != self.num_workers:
            raise expdb.InvalidValue(
                f"the state was saved with num_workers={state['num_workers']}, but this loader "
                f"has num_workers={self.num_workers}; use the same number"
            )
        if not self.num_workers:
            self.samples.load_state_dict(state)
            return
        # A loader reads from its workers in turn and starts with worker 0.
        first, workers = state["first"], self.num_workers
        self.samples.resumed = {
            (worker - first) % workers: progress for worker, progress in state["progress"].items()
        }
        self._skip = state["skip"]


class _Messages(IterableDataset["_Message"]):
    """A dataset of messages, which contain the batches of a `Samples`."""

    def __init__(self, samples: Samples):
        self.samples = samples

    def __iter__(self) -> Iterator[_Message]:
        many, alike = 1, list[Tensors]()
        if self.samples.divisible:
            many = _how_many(
                self.samples.buffer.sample(
                    self.samples.size, self.samples.where, seed=0, **self.samples.options
                ).to_torch()
            )
            for batch, count in self.samples.drawn(many):
                yield self._message([_parted(batch, count)], count, self.samples._before)
            return
        first: Progress = None
        for batch in self.samples:
            if alike and (len(alike) == many or _shapes(batch) != _shapes(alike[0])):
                yield self._message(
                    [_parted(sample, 1) for sample in alike],
                    len(alike),
                    first,
                    self.samples._before,
                )
                alike = []
            many = many if alike else _how_many(batch)
            first = first if alike else self.samples._before
            alike.append(batch)
        if alike:
            yield self._message([_parted(sample, 1) for sample in alike], len(alike), first)

    def _message(
        self, parts: list[Tensors], count: int, before: Progress, after: Progress = None
    ) -> _Message:
        info = get_worker_info()
        message = _Message(parts, count)
        message.worker = 0 if info is None else info.id
        message.before, message.after = before, after or self.samples._progress
        return message


def _how_many(batch: Tensors) -> int:
    """Return the number of batches of this size that fit into a message."""
    nbytes = sum(int(value.nbytes) for value in batch.values() if isinstance(value, torch.Tensor))
    return max(1, min(MESSAGE_BATCHES, MESSAGE_BYTES // max(1, nbytes)))


def _shapes(batch: Tensors) -> list[tuple[str, Any]]:
    return [
        (name, value.shape if isinstance(value, torch.Tensor) else None)
        for name, value in batch.items()
    ]


def _parted(batch: Tensors, count: int) -> Tensors:
    """Split a batch into `count` batches: tensors [count, size, ...] and lists of lists."""
    out: Tensors = {}
    for name, value in batch.items():
        size = len(value) // count
        parted = isinstance(value, torch.Tensor)
        out[name] = (
            value.view(count, size, *value.shape[1:])
            if parted
            else [value[k : k + size] for k in range(0, len(value), size)]
        )
    return out


class _Message:
    """Batches of equal shapes in one block of memory, which stores the keys one after another."""

    worker: int
    before: Progress
    after: Progress

    def __init__(self, parts: list[Tensors], count: int):
        self.count = count
        self.names, self.lists = list(parts[0]), dict[str, list[Any]]()
        self.places: list[tuple[str, torch.dtype, tuple[int, ...], int]] = []
        end, tensors = 0, []
        for name, value in parts[0].items():
            values = [part[name] for part in parts]
            if isinstance(value, torch.Tensor):
                self.places.append((name, value.dtype, (count, *value.shape[1:]), end))
                tensors.append(values)
                end += -(-sum(tensor.nbytes for tensor in values) // 64) * 64
            else:
                self.lists[name] = [row for batch_rows in values for row in batch_rows]
        self.block = torch.empty(end, dtype=torch.uint8)
        for values, view in zip(tensors, self._views(), strict=True):
            torch.cat(values, out=view)

    def __getstate__(self) -> dict[str, Any]:
        # Shared memory requires a connection to the worker, which takes about a millisecond, so
        # small blocks are sent through the pipe.
        if self.block.nbytes > PIPE_BYTES:
            return self.__dict__
        return {**self.__dict__, "block": bytearray(self.block.numpy())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["block"], bytearray):
            state["block"] = torch.frombuffer(state["block"], dtype=torch.uint8)
        self.__dict__.update(state)

    def pin_memory(self, *_: Any) -> _Message:
        """Move the block to pinned memory; DataLoader calls this with `pin_memory=True`."""
        self.block = self.block.pin_memory()
        return self

    def _views(self) -> list[torch.Tensor]:
        out = []
        for _, dtype, shape, start in self.places:
            nbytes = math.prod(shape) * dtype.itemsize
            out.append(self.block[start : start + nbytes].view(dtype).view(shape))
        return out

    def batches(self) -> Iterator[Tensors]:
        """Yield the batches without copying them."""
        columns: dict[str, Any] = dict.fromkeys(self.names)
        columns |= self.lists
        for (name, *_), view in zip(self.places, self._views(), strict=True):
            columns[name] = view.unbind(0)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


class Episodes(Dataset[Tensors]):
    """A dataset of the episodes that are complete when the dataset is created.

    Item k is the k-th episode as tensors [T, ...]. Episodes with evicted or deleted steps are left
    out. If an episode is evicted later, reading it raises `expdb.errors.Evicted`.

    Pass it to a `DataLoader` with `collate_fn=pad`. The loader can shuffle, and its workers read
    different episodes.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read.
    where : query, optional
        Selects the episodes that have a matching step; by default, all episodes.
    fields : sequence of str, optional
        The keys of an item, as for `buffer.get`.

    Raises
    ------
    InvalidValue
        If `buffer` is not a ReplayBuffer.
    """

    def __init__(
        self, buffer: expdb.ReplayBuffer, where: Any = None, *, fields: Sequence[str] | None = None
    ):
        if not isinstance(buffer, expdb.ReplayBuffer):
            raise expdb.InvalidValue(
                f"buffer must be a ReplayBuffer such as db.buffer('train'), got {buffer!r}"
            )
        self.buffer, self.fields = buffer, [fields] if isinstance(fields, str) else fields
        table = buffer.episodes(where)
        complete = np.array(
            [status == "complete" for status in table["status"].to_pylist()], np.bool_
        )
        ids, lengths = (table[name].to_numpy()[complete] for name in ("episode", "length"))
        parts = [
            (batch["episode"], batch["step"], batch["position"])
            for batch in buffer.scan(fields=("episode", "step", "position"), size=1 << 16)
        ]
        owners, steps, positions = (
            (np.concatenate(columns) for columns in zip(*parts, strict=True))
            if parts
            else (np.empty(0, np.int64),) * 3
        )
        order = np.lexsort((positions, steps, owners))
        owners, positions = owners[order], positions[order]
        first, after = owners.searchsorted(ids), owners.searchsorted(ids, "right")
        whole = after - first == lengths
        self.ids = ids[whole]
        self._steps = [
            positions[a:b]
            for a, b in zip(first[whole].tolist(), after[whole].tolist(), strict=True)
        ]

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._steps)

    def __getitem__(self, index: int) -> Tensors:
        """Return the episode at an index."""
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"the index of an episode must be an integer, got {index!r}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Tensors]:
        """Return several episodes, which are read together."""
        steps = [self._steps[index] for index in indices]
        batch = self.buffer.get(np.concatenate(steps), fields=self.fields).to_torch()
        ends = np.cumsum([len(positions) for positions in steps]).tolist()
        return [
            {name: values[end - len(positions) : end] for name, values in batch.items()}
            for positions, end in zip(steps, ends, strict=True)
        ]


def pad(episodes: Sequence[Tensors]) -> Tensors:
    """Join episodes into one batch, padded with zeros to the longest episode.

    Parameters
    ----------
    episodes : sequence of dict
        Items of `Episodes`.

    Returns
    -------
    dict
        Tensors [B, T, ...], and `mask` [B, T], which is False after the end of an episode. Values
        that are not tensors become lists.

    Raises
    ------
    InvalidValue
        If there are no episodes, or the episodes have no fields.
    """
    if not episodes or not episodes[0]:
        raise expdb.InvalidValue(
            "episodes must not be empty, and must have at least one field; pass items of Episodes"
        )
    lengths = [len(next(iter(episode.values()))) for episode in episodes]
    out: Tensors = {}
    for name, value in episodes[0].items():
        values = [episode[name] for episode in episodes]
        out[name] = (
            torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
            if isinstance(value, torch.Tensor)
            else values
        )
    out["mask"] = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    return out


def pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an uninitialized array in pinned memory, from which an accelerator copies directly.

    Without an accelerator, and for objects, the array is in ordinary memory. Use the function as
    `empty=` to move a batch to the device without another copy on the CPU.

    Parameters
    ----------
    shape : tuple of int
        The shape of the array.
    dtype : numpy.dtype
        The dtype of the array.

    Returns
    -------
    numpy.ndarray
        The array.

    Examples
    --------
    >>> batch = buffer.sample(256, empty=pinned)  # doctest: +SKIP
    >>> batch = batch.to_torch("cuda", non_blocking=True)  # doctest: +SKIP
    """
    if dtype.hasobject:
        return np.empty(shape, dtype)
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    array: np.ndarray = torch.empty(
        shape, dtype=kind, pin_memory=torch.accelerator.is_available()
    ).numpy()
    return array
