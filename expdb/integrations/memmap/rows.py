"""Write and read the steps of declared fields in a buffer of a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import expdb
from expdb import errors
from expdb.integrations.memmap.episodes import StoredEpisode
from expdb.integrations.memmap.specs import Spec
from expdb.integrations.positions import AtPositions


class StoredRows:
    """Write, read and delete steps; `names` maps declared fields to stored fields."""

    def __init__(
        self,
        database: expdb.ExperienceDB,
        name: str,
        specs: Mapping[str, Spec],
        read_only: bool,
    ):
        self.buffer = database.buffer(name, create=not read_only)
        self._specs = specs
        self.names = {
            spec.name: self._declared(database, spec, read_only) for spec in specs.values()
        }

    def _declared(self, database: expdb.ExperienceDB, spec: Spec, read_only: bool) -> str:
        """Return the column or field that stores a declared field, under another name if needed."""
        if spec.name == "reward" and spec.kind == "float" and not spec.shape:
            return "reward"
        for name in (spec.name, f"item.{spec.name}"):
            if read_only:
                if name in self.buffer.stats()["fields"]:
                    return name
                continue
            try:
                field = expdb.Field(spec.dtype.name, spec.shape)
                database.buffer(self.buffer.name, fields={name: field})
                return name
            except errors.ReservedName:
                continue
        raise ValueError(f"{spec.name!r} is not a valid field name; rename the field")

    def step(self, episode: StoredEpisode, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the arguments of `append` that store a step."""
        step: dict[str, Any] = {self.names[name]: value for name, value in values.items()}
        if "reward" in step:
            step["reward"] = float(step["reward"])
        if episode.length == 0:
            step["episode_tags"] = episode.tags()
        return {**step, "episode_id": episode.episode_id}

    def write(self, stored: StoredEpisode, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a whole episode in one transaction."""
        columns = {self.names[name]: array for name, array in arrays.items()}
        length = len(next(iter(columns.values())))
        with self.buffer.episode(
            "default", episode_id=stored.episode_id, episode_tags=stored.tags(),
            flush_steps=length + 1, flush_bytes=2**62, flush_seconds=1e9,
        ) as episode:  # fmt: skip
            episode.extend(columns)

    def set_tags(self, episode: StoredEpisode) -> None:
        """Set the tags of an episode that has a stored step."""
        self.buffer.update(
            {"episode_id": episode.episode_id}, episode_tags=episode.tags(), replace_tags=True
        )

    def delete(self, episode_ids: Iterable[str]) -> None:
        """Delete episodes."""
        if ids := list(episode_ids):
            self.buffer.delete(expdb.QueryBuilder().in_("episode_id", ids))

    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of all steps, and the database's episode number of each step.

        Within an episode, the positions ascend in the order of the steps.
        """
        batches = [
            (batch["position"], batch["episode"])
            for batch in self.buffer.scan(size=65_536, fields=["position", "episode"])
        ]
        empty = np.empty(0, np.int64)
        positions, episodes = zip(*batches, strict=True) if batches else ((empty,), (empty,))
        return np.concatenate(positions), np.concatenate(episodes)

    def gather(self, positions: np.ndarray, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return fields of steps in the order of `positions`, from memory if the steps fit."""
        wanted = list(names)
        fields = [self.names[name] for name in wanted]
        if not len(positions):
            return {name: self._specs[name].full(0) for name in wanted}
        try:
            batch = self.buffer.sample(
                len(positions), sampler=AtPositions(positions), fields=fields
            )
        except errors.Evicted as error:
            raise ValueError(
                "episodes of the dataset were evicted or changed; create the dataset again"
            ) from error
        return {
            name: batch[field].astype(self._specs[name].dtype, copy=False)
            for name, field in zip(wanted, fields, strict=True)
        }

    def read(self, episode: StoredEpisode) -> dict[str, np.ndarray]:
        """Return all fields of an episode, [T, ...]."""
        where = expdb.QueryBuilder().eq("episode_id", episode.episode_id)
        fields = list(self.names.values())
        batches = list(self.buffer.scan(where, fields=fields))
        return {
            name: np.concatenate([batch[field] for batch in batches]).astype(
                self._specs[name].dtype, copy=False
            )
            for name, field in self.names.items()
        }
