"""Store the steps of RLlib's episodes in a buffer."""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import expdb
from expdb import errors
from expdb.integrations.positions import AtPositions
from expdb.integrations.prioritized import PrioritizedWriter
from expdb.integrations.records import Records

FLUSH_STEPS = 256
EXTRA = "extra."  # prefix of the names of extra model outputs
NUMBERED = "extra_key."  # prefix of names that are numbers, encoded as JSON
EPISODE_COLUMNS = "episode_id", "task_id", "agent_id", "group_id"  # constant within an episode
SPARE_CACHED_EPISODES = 4096


@dataclass(frozen=True)
class NextSteps(expdb.NStep):
    """A transition over `n` steps, whose last step provides the next observation.

    The episode may be unfinished, because the next observation of every step is stored. A step is
    drawn only if at least `n` steps are stored from this step on. If `n` is a range, the lower
    bound decides, and longer transitions are shortened to the stored steps.
    """

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that `layout` adds to a batch."""
        return (*super().keys(), "last_position")

    @property
    def reach(self) -> int:
        """The number of newest steps that may become drawable when a step is added, an int."""
        return self.bounds[0]

    def may_start(self, trajectories: expdb.Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return for each step whether enough steps are stored from this step on."""
        if self.bounds[0] == 1:
            return np.ones(len(rows), np.bool_)
        is_long_enough: np.ndarray = (
            _walked(trajectories, rows, self.bounds[0])[1] == self.bounds[0]
        )
        return is_long_enough

    def layout(
        self, trajectories: expdb.Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> expdb.Layout:
        """Return each step, its discounted reward, and the last step of its transition."""
        low, high = self.bounds
        path, there = _walked(trajectories, rows, high)
        taken = np.minimum(there, rng.integers(low, high + 1, len(rows)) if low < high else low)
        within = np.arange(high) < taken[:, None]
        rewards = trajectories.rewards(np.where(within, path, trajectories.zero))
        gained = (np.where(within, rewards, 0.0) * self.gamma ** np.arange(high)).sum(1)
        last = path[np.arange(len(rows)), taken - 1]
        terminated = trajectories.terminated(last)
        columns = {
            "reward": gained, "terminated": terminated, "truncated": trajectories.truncated(last),
            "discount": np.where(terminated, 0.0, self.gamma**taken), "n_steps": taken,
            "last_position": trajectories.positions(last),
        }  # fmt: skip
        return expdb.Layout(rows, {key: columns[key] for key in self.keys()}, last_rows=last)


def _walked(
    trajectories: expdb.Trajectories, rows: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return up to `steps` rows from each row on, [B, steps], and the number of rows in each."""
    path = np.empty((len(rows), steps), np.int64)
    path[:, 0] = rows
    there = np.ones(len(rows), np.int64)
    for k in range(1, steps):
        after = trajectories.next_steps(path[:, k - 1])
        there += (there == k) & (after >= 0)
        path[:, k] = np.where(after >= 0, after, path[:, k - 1])
    return path, there


class Episodes:
    """Add, draw and evict episodes. Whole episodes are evicted, the oldest first."""

    # Columns of all steps that are kept in memory; the first one identifies the episode.
    STEP_COLUMNS: tuple[str, ...] = ("episode_id",)

    def __init__(self, location: str | os.PathLike[str], name: str, capacity: int, infos: bool):
        self._capacity, self._infos = capacity, infos
        self._name = name
        self.database = expdb.open(location)
        self._open_buffer()
        self._positions: OrderedDict[str, np.ndarray] = OrderedDict()
        self._unwritten: list[tuple[Any, ...]] = []  # `STEP_COLUMNS` of each unwritten step
        self._after, self._step_count = -1, 0
        self._revision = -1  # revision of the buffer at the last call of learn()
        self._episode_columns: dict[int, dict[str, Any]] = {}  # by the column `episode`
        self.evicted = 0
        self.learn()
        if self.timesteps > capacity and len(self._positions) > 1:
            timesteps = self.timesteps
            self.database.close()
            raise errors.CapacityMismatch(
                f"buffer {name!r} has {timesteps} timesteps, and capacity={capacity} would evict "
                "some of them; set a greater capacity, or another name"
            )

    def _open_buffer(self) -> None:
        self.buffer = self.database.buffer(self._name)
        self.records = Records(self.database, self.buffer)
        self._writer = PrioritizedWriter(self.buffer)
        self.added = int(self.buffer.stats()["added"])

    def reopen(self, replace: Callable[[], None]) -> None:
        """Replace the buffer by calling `replace`, and read the episodes of the new buffer."""
        self._writer.close()
        replace()
        self._open_buffer()
        self._forget()
        self._episode_columns.clear()  # a new buffer numbers its episodes from 0
        self._revision = -1
        self.learn()

    def __len__(self) -> int:
        return len(self.buffer) + self._writer.unwritten

    @property
    def timesteps(self) -> int:
        """The number of stored timesteps, an int. `capacity` limits it."""
        return len(self)

    def length(self, id: str) -> int:
        """Return the number of timesteps of an episode that this process has added or read."""
        return len(self._positions[id])

    def flush(self) -> None:
        """Write all added steps and record their positions."""
        if not self._writer.is_flushed:
            rows, self._unwritten = self._unwritten, []
            positions = self._writer.flush()
            if (
                0 < len(rows) == len(positions) and int(positions[0]) == self._after + 1
            ):  # no other process has written since the last call
                columns = [_objects(column) for column in zip(*rows, strict=True)]
                self._add_positions(positions, *columns)
                if self.STEP_COLUMNS == ("episode_id",):
                    self._cache_episode_ids(positions, columns[0])
        self.learn()

    def learn(self) -> None:
        """Read the changes that other processes have made since the last call."""
        revision = self.buffer.revision
        if len(self.buffer) == self._step_count and revision == self._revision:
            return
        self._revision = revision
        self._learn_added()
        if len(self.buffer) < self._step_count:  # other processes have evicted steps
            self._forget()
            self._learn_added()

    def _learn_added(self) -> None:
        if not len(self.buffer):
            return
        wanted = ["position", *self.STEP_COLUMNS]
        for batch in self.buffer.scan(after=self._after, size=65_536, fields=wanted):
            self._add_positions(batch["position"], *[batch[name] for name in self.STEP_COLUMNS])

    def _add_positions(self, positions: np.ndarray, ids: np.ndarray, *more: np.ndarray) -> None:
        self._after = int(positions[-1])
        self._step_count += len(positions)
        for id in dict.fromkeys(ids.tolist()):
            new, old = positions[ids == id], self._positions.get(id)
            self._positions[id] = new if old is None else np.concatenate((old, new))

    def _cache_episode_ids(self, positions: np.ndarray, ids: np.ndarray) -> None:
        """Cache the ids of the episodes of new steps, so that `draw` does not read them."""
        firsts = {id: row for row, id in reversed(list(enumerate(ids.tolist())))}
        rows = list(firsts.values())
        with suppress(errors.Evicted):
            batch = self.buffer.get(positions[rows], fields=("episode",))
            for episode, id in zip(batch["episode"].tolist(), firsts, strict=True):
                self._episode_columns.setdefault(episode, {"episode_id": id})

    def _forget(self) -> None:
        self._positions.clear()
        self._after, self._step_count = -1, 0

    @property
    def ids(self) -> list[str]:
        """The ids of the stored episodes, oldest first."""
        unwritten = {row[0]: None for row in self._unwritten}
        return [*self._positions, *(id for id in unwritten if id not in self._positions)]

    def positions(self, id: str) -> np.ndarray:
        """Return the positions of the steps of an episode; raise Evicted if there are none."""
        if id not in self._positions:  # unknown if another process just wrote it
            self.learn()
        if id not in self._positions:
            raise errors.Evicted(f"episode {id} was evicted; sample again")
        return self._positions[id]

    def add(self, episode: Any, weight: float | None) -> int:
        """Add an episode, or the next part of one, and return the number of added steps."""
        steps = self._steps(episode)
        self._append(steps, weight, [(str(episode.id_),)] * len(steps))
        self.added += len(steps)
        return len(steps)

    def _append(
        self, steps: list[dict[str, Any]], weight: float | None, rows: list[tuple[Any, ...]]
    ) -> None:
        for step, row in zip(steps, rows, strict=True):
            self._writer.append(weight, **step)
            self._unwritten.append(row)
        if len(self._unwritten) >= FLUSH_STEPS:
            self.flush()

    def _steps(
        self, episode: Any, more: Callable[[int], dict[str, Any]] | None = None, **columns: Any
    ) -> list[dict[str, Any]]:
        """Return the steps of a single-agent episode as arguments of the writer.

        Each step has `columns` and the fields that `more` returns for its index.
        """
        length = len(episode)
        id = str(episode.id_)
        observations = episode.get_observations(slice(0, length + 1))
        actions, rewards = episode.get_actions(slice(0, length)), episode.get_rewards()
        extra = {
            key: episode.get_extra_model_outputs(key, slice(0, length))
            for key in episode.extra_model_outputs
        }
        infos = episode.get_infos(slice(0, length + 1)) if self._infos else None
        steps = []
        for k in range(length):
            value: dict[str, Any] = {
                "obs": _item(observations, k), "next_obs": _item(observations, k + 1),
                "action": _item(actions, k), **(more(k) if more else {}),
            }  # fmt: skip
            for name, column in extra.items():
                value[_extra_key(name)] = _item(column, k)
            if infos is not None and (infos[k] or infos[k + 1]):
                value["info"], value["following_info"] = infos[k], infos[k + 1]
            last, reward = k == length - 1, float(rewards[k])
            if not math.isfinite(reward):
                raise expdb.InvalidValue(f"reward {k} of episode {id} must be finite, got {reward}")
            step = {
                "episode_id": id, "step": episode.t_started + k, "reward": reward,
                "terminated": bool(last and episode.is_terminated),
                "truncated": bool(last and episode.is_truncated),
            }  # fmt: skip
            steps.append(step | columns | self.records.step(value))
        return steps

    def evict(self) -> list[tuple[str, int]]:
        """Evict the oldest episodes beyond the capacity; return their ids and lengths."""
        if self.timesteps <= self._capacity:
            return []
        self.flush()
        over = self.timesteps - self._capacity
        gone: list[tuple[str, int]] = []
        while over > 0 and len(self._positions) > 1:
            id = next(iter(self._positions))
            gone.append((id, self.length(id)))
            over -= gone[-1][1]
            self._step_count -= len(self._positions.pop(id))
        if gone:
            whose = self.STEP_COLUMNS[0]
            self.buffer.delete(expdb.QueryBuilder().in_(whose, [id for id, _ in gone]))
        self.evicted += len(gone)
        return gone

    def sample(
        self,
        size: int,
        sampler: expdb.Sampler,
        unit: expdb.Unit,
        rng: np.random.Generator,
        *keys: str,
        where: Any = None,
    ) -> tuple[list[Any], expdb.Batch]:
        """Draw steps; return their values and the batch with `keys`."""
        batch = self.draw(size, sampler, unit, rng, *keys, where=where)
        return [_step(value) for value in self.records.values(batch)], batch

    def draw(
        self,
        size: int,
        sampler: expdb.Sampler,
        unit: expdb.Unit,
        rng: np.random.Generator,
        *keys: str,
        where: Any = None,
    ) -> expdb.Batch:
        """Draw steps; return a batch with `keys` and the fields that `records` needs."""
        self.flush()
        usual = ("position", "episode", "reward", "terminated", "truncated", *self.records.fields)
        draw = partial(self.buffer.sample, size, where, sampler=sampler, unit=unit, seed=rng)
        batch = draw(fields=(*usual, *[key for key in keys if key not in EPISODE_COLUMNS]))
        try:
            texts = self._episode_columns_of(batch, [key for key in keys if key in EPISODE_COLUMNS])
            batch = expdb.Batch({**batch, **texts}, batch.size)
        except errors.Evicted:  # evicted after the batch was drawn
            batch = draw(fields=(*usual, *keys))
        return batch

    def _episode_columns_of(self, batch: expdb.Batch, names: list[str]) -> dict[str, np.ndarray]:
        """Return columns of the episodes of a batch; raise Evicted if an episode was evicted."""
        if not names:
            return {}
        episodes, cache = batch["episode"].tolist(), self._episode_columns
        # If the cache is this large, most entries belong to evicted episodes.
        if len(cache) > 2 * len(self._positions) + SPARE_CACHED_EPISODES:
            cache.clear()
        positions = dict(zip(episodes, batch["position"].tolist(), strict=True))
        missing = [
            episode
            for episode in positions
            if episode not in cache or not cache[episode].keys() >= {*names}
        ]
        if missing:
            batch_of_missing = self.buffer.get(
                [positions[episode] for episode in missing], fields=EPISODE_COLUMNS
            )
            rows = zip(*[batch_of_missing[name].tolist() for name in EPISODE_COLUMNS], strict=True)
            cache |= {
                episode: dict(zip(EPISODE_COLUMNS, row, strict=True))
                for episode, row in zip(missing, rows, strict=True)
            }
        return {
            name: _objects(tuple([cache[episode][name] for episode in episodes])) for name in names
        }

    def at(self, positions: np.ndarray, *keys: str) -> tuple[list[Any], expdb.Batch]:
        """Return the values of the steps at `positions`, and their batch."""
        rng = np.random.default_rng(0)
        return self.sample(len(positions), AtPositions(positions), expdb.Step(), rng, "step", *keys)

    def batch_at(self, positions: np.ndarray) -> expdb.Batch:
        """Return a batch of the steps at `positions`, with the fields that `records` needs."""
        rng = np.random.default_rng(0)
        return self.draw(len(positions), AtPositions(positions), expdb.Step(), rng)

    def close(self) -> None:
        """Write all added steps and close the database. A private database is then deleted."""
        if self._writer.is_open:
            self._writer.close()
            self.database.close()


def _step(value: dict[str, Any]) -> dict[str, Any]:
    """Collect the extra model outputs of a stored step, and set missing infos to {}."""
    extra: dict[Any, Any] = {}
    for key in list(value):
        if key.startswith(EXTRA):
            extra[key.removeprefix(EXTRA)] = value.pop(key)
        elif key.startswith(NUMBERED):
            extra[json.loads(key.removeprefix(NUMBERED))] = value.pop(key)
    value["extra"] = extra
    value.setdefault("info", {})
    value.setdefault("following_info", {})
    return value


def _extra_key(name: Any) -> str:
    if isinstance(name, str):
        return EXTRA + name
    if isinstance(name, (int, float)):  # json.dumps would change keys of other types
        return NUMBERED + json.dumps(name)
    raise expdb.InvalidValue(
        f"key {name!r} of extra_model_outputs must be text or a number; rename the key"
    )


def _objects(values: tuple[Any, ...]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _item(values: Any, k: int) -> Any:
    """Return element `k` of a list, an array, or every array of a tree."""
    if isinstance(values, (list, np.ndarray)):
        return values[k]
    if isinstance(values, dict):
        return {key: _item(part, k) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_item(part, k) for part in values)
    raise expdb.InvalidValue(
        "a column of an episode must be a list, an array or a tree of arrays, got "
        f"{type(values).__name__}"
    )
