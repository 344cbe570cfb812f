"""Offline datasets of Minari: import episodes, and export a dataset with its final observations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import expdb
from expdb.errors import DriverMissing, InvalidValue, warn
from expdb.export import new_file
from expdb.formats.episodes import StoredEpisode, check_buffer, read_episodes, split_of
from expdb.formats.records import Item, digest_of
from expdb.formats.rollouts import Rollout, Unreadable

METADATA = "metadata.json"  # the file of a dataset that describes the others


def _minari() -> ModuleType:
    try:
        import minari
    except ImportError:
        raise DriverMissing(
            "Minari datasets require the package minari; run `pip install 'expdb[minari]'`"
        ) from None
    module: ModuleType = minari
    return module


def is_minari(source: Any) -> bool:
    """Return whether a source is a dataset of Minari, or the folder of one."""
    if hasattr(source, "iterate_episodes") and hasattr(source, "storage"):
        return True
    return isinstance(source, (str, os.PathLike)) and _data_folder(Path(source)) is not None


def _data_folder(path: Path) -> Path | None:
    folders = (path / "data", path)
    return next((f for f in folders if (f / METADATA).is_file()), None)


def read_minari(source: Any) -> Iterator[Item]:
    """Yield the episodes of a Minari dataset."""
    if isinstance(source, (str, os.PathLike)):
        folder = _data_folder(Path(source))
        if folder is None:
            raise InvalidValue(
                f"{source} has no file data/{METADATA}; pass the folder of a dataset"
            )
        source = _minari().MinariDataset(folder)
    spec = source.spec
    task = getattr(spec.env_spec, "id", None) or str(spec.dataset_id)
    for episode in source.iterate_episodes():
        try:
            yield _rollout(source, spec, task, episode)
        except InvalidValue as error:
            yield Unreadable(f"{spec.dataset_id}[{episode.id}]", str(error))


def _rollout(source: Any, spec: Any, task: str, episode: Any) -> Rollout:
    """Return an episode of a dataset as a rollout."""
    (about,) = source.storage.get_episode_metadata([episode.id])
    columns, final = _columns_of(episode)
    name = f"{spec.dataset_id}/{episode.id}"
    status = "complete" if len(episode.rewards) else "aborted"
    tags = {key: about[key] for key in ("seed", "options") if about.get(key) is not None}
    plain = {key: [array.dtype.str, array.tobytes().hex()] for key, array in columns.items()}
    ends = {key: np.asarray(value).tobytes().hex() for key, value in final.items()}
    return Rollout(
        record=name, digest=digest_of(plain, ends), steps=columns, final=final,
        episode={
            "episode_id": name, "task_id": task, "status": status, "episode_tags": tags or None,
        },
        source=f"{spec.dataset_id}[{episode.id}]",
    )  # fmt: skip


def _columns_of(episode: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of the steps, and the final observation."""
    columns: dict[str, Any] = {}
    final: dict[str, Any] = {}
    count = len(episode.rewards)
    parts = [("obs", episode.observations), ("action", episode.actions), ("info", episode.infos)]
    for name, array in (leaf for part in parts for leaf in _leaves(*part)):
        columns[name] = array[:count]
        if len(array) == count + 1:
            final[name] = array[count]
    columns |= {
        "reward": np.asarray(episode.rewards, np.float64),
        "terminated": np.asarray(episode.terminations, bool),
        "truncated": np.asarray(episode.truncations, bool),
    }
    return columns, final


def _leaves(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays in nested dicts and tuples with their dotted names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from _leaves(f"{name}.item_{index}", inner)
    else:
        array = np.asarray(value)
        if array.dtype.kind in "OSU":
            raise InvalidValue(
                f"{name} has the type {array.dtype}, but values must be numbers; write the "
                "episodes to JSONL, and import them as rows of steps"
            )
        yield name, array


def write_minari(
    buffer: expdb.ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    dataset_id: str | None = None,
    observation: str = "obs",
    action: str = "action",
    observation_space: Any = None,
    action_space: Any = None,
    split: str | None = None,
    split_by: str = "task_id",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write complete episodes as a Minari dataset in a new folder.

    ``minari.MinariDataset(f"{target}/data")`` opens it. Each episode needs a final observation;
    episodes without one are left out with a warning.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read.
    target : path
        The folder to create.
    where : query, optional
        Query that selects episodes: those with a matching step. By default, all episodes.
    dataset_id : str, optional
        Id of the dataset. By default, the name of the buffer and ``-v0``.
    observation, action : str
        Names of the fields that hold observations and actions: arrays of a fixed shape. For fields
        such as ``obs.image``, name their common part, ``obs``.
    observation_space, action_space : gymnasium.Space, optional
        Spaces of the values. By default, boxes with the dtypes and shapes of the fields.
    split : str, optional
        Share of the episodes to write; see `write_chat`.
    split_by : str, default "task_id"
        Column of episodes for `split`.
    progress : callable, optional
        Function that is called with the number of episodes since the last call.

    Returns
    -------
    int
        Number of episodes in the dataset.

    Raises
    ------
    InvalidValue
        If an argument is not valid, or a field is missing or has no fixed shape.
    DriverMissing
        If the package `minari` is not installed.
    TargetExists
        If the folder exists.
    DatabaseMissing, StorageFull, DatabaseReadOnly
        If the folder cannot be written.

    Warns
    -----
    ExpDBWarning
        If episodes have no final observation.
    """
    check_buffer(buffer)
    minari = _minari()
    types = buffer._store.fields.types
    names = {part: _fields_of(buffer, part, types) for part in (observation, action)}
    spaces = {
        part: given if given is not None else _space_of(part, names[part], types)
        for part, given in ((observation, observation_space), (action, action_space))
    }
    fields = [*names[observation], *names[action]]
    count = lacking = 0
    with new_file(Path(target)) as draft:
        draft.mkdir()
        storage = minari.dataset.minari_storage.MinariStorage.new(
            draft / "data", spaces[observation], spaces[action], jpeg_encoding=False
        )
        for episode in read_episodes(buffer, where, fields, split_of(split, split_by)):
            if progress is not None:
                progress(1)
            if episode.columns["status"] != "complete" or not episode.steps:
                continue
            observations = _stack_values(episode, observation, names[observation], with_final=True)
            if observations is None:
                lacking += 1
                continue
            storage.update_episodes([_buffer_of(minari, episode, observations, action, names)])
            about = {"id": count, "total_steps": len(episode.steps)}
            storage.update_episode_metadata([about | _seed_of(episode)], [count])
            count += 1
        name = dataset_id or f"{buffer.name.replace(' ', '-')}-v0"
        storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
    if lacking:
        warn(
            f"{lacking} episodes are left out of {target}, because they have no final observation; "
            "pass it to end() of an episode"
        )
    return count


def _fields_of(buffer: expdb.ReplayBuffer, part: str, types: Mapping[str, Any]) -> list[str]:
    """Return the fields with the name `part`, or below it."""
    found = [name for name in types if name == part or name.startswith(f"{part}.")]
    if not found:
        raise InvalidValue(
            f"buffer {buffer.name!r} has no field {part!r}; pass observation= and action=, the "
            f"fields are {', '.join(types) or 'none'}"
        )
    for name in found:
        if types[name].varies or types[name].dtype in ("text", "json", "bytes"):
            raise InvalidValue(
                f"field {name!r} has the type {types[name]}, but Minari needs arrays of a fixed "
                "shape; name another field"
            )
    return found


def _space_of(part: str, names: list[str], types: Mapping[str, Any]) -> Any:
    from gymnasium import spaces

    def box(field: Any) -> Any:
        dtype = field.numpy
        if dtype.kind == "f":
            low, high = -np.inf, np.inf
        elif dtype.kind == "b":
            low, high = 0, 1
        else:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return spaces.Box(low, high, tuple(field.shape), dtype)

    if names == [part]:
        return box(types[part])
    return spaces.Dict({name.removeprefix(f"{part}."): box(types[name]) for name in names})


def _stack_values(episode: StoredEpisode, part: str, names: list[str], with_final: bool) -> Any:
    """Return the values of a part as arrays, None if the final ones are missing."""
    arrays: dict[str, Any] = {}
    for name in names:
        values = [step[name] for step in episode.steps]
        if with_final:
            values.append(episode.steps[-1].get(f"next_{name}"))
        if any(value is None for value in values):
            return None
        arrays[name.removeprefix(f"{part}.")] = np.stack(list(map(np.asarray, values)))
    return arrays[part] if names == [part] else arrays


def _buffer_of(
    minari: ModuleType,
    episode: StoredEpisode,
    observations: Any,
    action: str,
    names: Mapping[str, list[str]],
) -> Any:
    steps = episode.steps
    return minari.data_collector.EpisodeBuffer(
        observations=observations,
        actions=_stack_values(episode, action, names[action], with_final=False),
        rewards=[0.0 if step["reward"] is None else step["reward"] for step in steps],
        terminations=[bool(step["terminated"]) for step in steps],
        truncations=[bool(step["truncated"]) for step in steps],
        infos={},
    )


def _seed_of(episode: StoredEpisode) -> dict[str, Any]:
    seed = episode.columns["episode_tags"].get("seed")
    return {} if seed is None else {"seed": seed}
