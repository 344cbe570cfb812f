"""The configuration of a buffer and its stored episodes."""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from expdb.integrations.memmap.episodes import StoredEpisode, read_episodes
from expdb.integrations.memmap.rows import StoredRows
from expdb.integrations.memmap.specs import as_json, parsed
from expdb.integrations.positions import first_value

FILE = "experience.db"


class BufferState:
    """A buffer of a database, and the open episodes of this process."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_episodes: int,
        max_timesteps: int,
        fields: Mapping[str, Any],
        meta_fields: Mapping[str, Any] | None = None,
        circular: bool = False,
        overwrite: bool = False,
        read_only: bool = False,
        flush_every_store_step: int = 1,
        *,
        name: str = "replay",
    ):
        assert not (read_only and overwrite), (
            "overwrite cannot be combined with read_only; pass only one of them"
        )
        if flush_every_store_step < 0:
            raise ValueError(f"flush_every_store_step must be >= 0, got {flush_every_store_step}")
        self.folder, self.name, self.read_only = folder, name, read_only
        self.max_episodes, self.max_timesteps = max_episodes, max_timesteps
        self.circular, self.flush_every_store_step = circular, flush_every_store_step
        self.fields, self.meta_fields = parsed(fields), parsed(meta_fields or {})
        self.fieldnames, self.meta_fieldnames = set(self.fields), set(self.meta_fields)
        if both := self.fieldnames & self.meta_fieldnames:
            raise ValueError(f"fields and meta_fields must have different names, but share {both}")
        self.memory_namedtuple = namedtuple("Memory", list(self.fields))  # type: ignore[misc]
        self.database = open_database(folder, read_only)
        try:
            if overwrite:
                for old in {name, f"{name}.config"} & set(self.database.buffers()):
                    self.database.drop(old)
            self._keep_config()
            self.rows = StoredRows(self.database, name, self.fields, read_only)
        except BaseException:
            self.database.close()
            raise
        self.buffer = self.rows.buffer
        self._open: list[StoredEpisode] = []  # open episodes, all of the same length
        self._timestep = self._stored_steps = 0
        self._writer = None if read_only else self.buffer.writer(flush_steps=1024)

    def __reduce__(self) -> tuple[Any, ...]:
        self.flush()
        return _reopened, (type(self), self.folder, self.name)

    def flush(self) -> None:
        """Write all stored steps, so that they are durable."""
        if self._writer is not None and self._writer.unwritten:
            self._writer.flush()

    def close(self) -> None:
        """Flush, and close the database."""
        self.flush()
        self.database.close()

    @classmethod
    def from_folder(
        cls, folder: str | os.PathLike[str], read_only: bool = False, *, name: str = "replay"
    ) -> Any:
        """Open an existing buffer with its stored configuration.

        Parameters
        ----------
        folder : str or path
            The folder of the database file, or a PostgreSQL URL.
        read_only : bool
            Whether to open the buffer for reading only.
        name : str
            Name of the buffer in the database.

        Raises
        ------
        ValueError
            If the folder or the buffer does not exist.
        """
        if "://" not in str(folder) and not (Path(folder) / FILE).exists():
            hint = (
                "; import the files of memmap-replay-buffer with import_folder()"
                if (Path(folder) / "metadata.pkl").exists()
                else "; check the folder"
            )
            raise ValueError(f"no {FILE} in {folder}, and metadata.pkl is not read{hint}")
        with open_database(folder, read_only=True) as database:
            config = stored_config(database, name)
        if config is None:
            raise ValueError(
                f"no buffer {name!r} in {folder}, which holds {database.location}; check name and "
                "folder"
            )
        return cls(folder, read_only=read_only, name=name, **config)

    # -- state ---------------------------------------------------------------------------------

    def held(self) -> list[StoredEpisode]:
        """Return the stored episodes, one per slot, in order of the slots.

        An open episode replaces the older episode in its slot only when the open episode ends.

        Returns
        -------
        list of StoredEpisode
            The episodes.
        """
        self.flush()
        slots: dict[int, StoredEpisode] = {}
        for episode in read_episodes(self.buffer):
            slot = episode.number % self.max_episodes
            if slot not in slots or not episode.is_open:
                slots[slot] = episode
        return [slots[slot] for slot in sorted(slots)]

    def slot_of(self, episode: StoredEpisode) -> int:
        """Return the slot of an episode, from 0 to `max_episodes - 1`.

        Parameters
        ----------
        episode : StoredEpisode
            An episode of this buffer.

        Returns
        -------
        int
            The slot.
        """
        return episode.number % self.max_episodes

    def __len__(self) -> int:
        return sum(episode.length > 0 for episode in self.held())

    @property
    def num_episodes(self) -> int:
        """Number of stored episodes that have ended."""
        return sum(not episode.is_open for episode in self.held())

    @property
    def episode_index(self) -> int:
        """The slot of the current episode, or of the next one if no episode is open."""
        if self._open:
            return self.slot_of(self._open[0])
        return self._next_number() % self.max_episodes

    @property
    def timestep_index(self) -> int:
        """Number of steps of the current episodes."""
        return self._timestep

    @property
    def is_new_episode(self) -> bool:
        """Whether no step of a current episode is stored."""
        return self._timestep == 0

    @property
    def episode_lens(self) -> np.ndarray:
        """Lengths of the episodes by slot, int32 [max_episodes]; 0 for free slots."""
        lengths = np.zeros(self.max_episodes, np.int32)
        for episode in self.held():
            lengths[self.slot_of(episode)] = episode.length
        return lengths

    def _next_number(self) -> int:
        episodes = read_episodes(self.buffer)
        return episodes[-1].number + 1 if episodes else 0

    def others(self) -> list[StoredEpisode]:
        """Return all episodes except the open episodes of this process, oldest first.

        Returns
        -------
        list of StoredEpisode
            The episodes.
        """
        own_ids = {episode.episode_id for episode in self._open}
        return [
            episode for episode in read_episodes(self.buffer) if episode.episode_id not in own_ids
        ]

    def _keep_config(self) -> None:
        config = {
            "max_episodes": self.max_episodes, "max_timesteps": self.max_timesteps,
            "fields": as_json(self.fields), "meta_fields": as_json(self.meta_fields),
            "circular": self.circular,
        }  # fmt: skip
        stored = stored_config(self.database, self.name)
        if stored is None and not self.read_only:
            self.database.buffer(
                f"{self.name}.config", fields={"config": expdb.Field("json")}
            ).store(config=config)
        elif stored != config:
            differ = ", ".join(
                f"{key}: stored {(stored or {}).get(key)!r}, passed {value!r}"
                for key, value in config.items()
                if stored is None or stored[key] != value
            )
            raise ValueError(
                f"the buffer in {self.folder} was created with a different config ({differ}); "
                "pass the stored config, or overwrite=True to delete the stored episodes"
            )

    def _check_writable(self, what: str) -> None:
        if self.read_only:
            raise ValueError(
                f"cannot call {what}() on a read-only buffer; open it with read_only=False"
            )

    def _check_room(self, count: int = 1) -> None:
        if not self.circular and len(self.others()) + count > self.max_episodes:
            raise ValueError(
                f"the buffer is full ({self.max_episodes} episodes); set circular=True or clear "
                "the buffer"
            )


def open_database(folder: str | os.PathLike[str], read_only: bool) -> expdb.ExperienceDB:
    """Open the database of a folder, or of a URL."""
    if "://" in str(folder):
        return expdb.open(str(folder), read_only=read_only)
    path = Path(folder)
    if read_only:
        assert (path / FILE).exists(), f"cannot open {path} with read_only=True; it has no {FILE}"
        return expdb.open(path / FILE, read_only=True)
    if (path / "metadata.pkl").exists() and not (path / FILE).exists():
        raise ValueError(
            f"{path} was written by memmap-replay-buffer; import it with import_folder("
            f"{str(path)!r}, another_folder), or choose another folder"
        )
    path.mkdir(exist_ok=True, parents=True)
    return expdb.open(path / FILE)


def stored_config(database: expdb.ExperienceDB, name: str) -> dict[str, Any] | None:
    """Return the stored configuration of a buffer, or None if there is none."""
    if f"{name}.config" not in database.buffers():
        return None
    config: dict[str, Any] | None
    config = first_value(database.buffer(f"{name}.config", create=False), "config")
    return config


def _reopened(kind: type[BufferState], folder: str, name: str) -> Any:
    """Return a read-only buffer in another process, such as the worker of a loader."""
    return kind.from_folder(folder, read_only=True, name=name)
