"""Find the keys of a batch and the source of each key."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from expdb import errors
from expdb.chunks.fields import SYSTEM, TOKEN_FIELDS
from expdb.errors import warn
from expdb.memory.resident import Resident
from expdb.names import COLUMN_KINDS, GIVEN_SUCCESSORS, nearest
from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit
from expdb.sql.tables import ViewColumn
from expdb.storage.reading.annotations import find_annotation
from expdb.storage.reading.columns import table_column
from expdb.storage.store import Store


@dataclass(frozen=True)
class KeySources:
    """The keys of a batch, by source."""

    keys: dict[str, None]  # all keys, in their order
    stored: list[str]  # read from the database, one value per step
    of_episodes: list[str]  # read from the database, one value per drawn step
    following: list[str]  # fields read from the database for successors
    last: list[str]  # fields read from the database for the last steps of transitions
    frames: list[str]  # fields read from the database for stacks
    # Keys in memory by source, in the record array (`packed`) or in arrays of their own (`alone`),
    # and all other keys (`others`).
    packed: dict[str, list[tuple[str, str, np.dtype[Any] | None]]]
    alone: dict[str, list[tuple[str, str]]]
    others: list[tuple[str, str, str]]
    # Whether fields whose first dimension varies are `RaggedArray`, and policy versions come from
    # columns of episodes, which the unit must read.
    reads_ragged: bool

    @cached_property
    def in_memory(self) -> bool:
        """Whether a batch never needs the database."""
        database_keys = self.stored, self.of_episodes, self.following, self.last, self.frames
        return not (any(database_keys) or self.reads_ragged)


# For each source in memory, the source of its fields that must be read from the database.
_STORED = {
    "row": "stored",
    "next": "next_stored",
    "last": "last_stored",
    "stack": "stack_stored",
    "next_stack": "next_stack_stored",
}


def key_sources(
    store: Store, r: Resident, fields: tuple[str, ...] | None, unit: Unit, sampler: Sampler
) -> KeySources:
    """Return the keys of a batch by source.

    If `fields` is None, the keys are the columns of a batch, all fields, and the keys of the unit
    and the sampler. The batch always contains the keys that the unit adds. Raise QueryError for an
    unknown key.
    """
    types, optional = store.fields.types, store.fields.optional
    own = dict.fromkeys(unit.keys(), "unit") | dict.fromkeys(sampler.keys(), "sampler")
    derived = unit.derived(list(types), r.final_fields)
    stacked = unit.stacked(list(types), derived)
    if unit.makes_transitions:
        _warn_of_missing_successors(store, derived, fields)
    following = {f"next_{name}": name for name in derived}
    usual = dict.fromkeys(["position", "episode", *SYSTEM, *types, *following, *own])
    keys: list[tuple[str, str, str]] = []
    read: dict[str, list[str]] = {source: [] for source in (*_STORED.values(), "episode_stored")}

    def add(key: str, source: str, name: str) -> None:
        if source in _STORED and name in types and name not in r.fields:
            source = _STORED[source]
        if source in read:
            read[source].append(name)
        keys.append((key, source, name))
        may_lack = name in optional or find_annotation(store, name) is not None
        if may_lack or (source in read and COLUMN_KINDS.get(name) == "integer?"):
            keys.append((f"has_{key}", source, f"has_{name}"))

    # Without keys of the unit such as `mask`, padding looks like data in the other arrays.
    added = [key for key in own if own[key] == "unit" and key not in SYSTEM]
    wanted = usual if fields is None else dict.fromkeys([*fields, *added])
    if unit.assembles:
        inputs = unit.inputs(fields, list(types))
        wanted = wanted if inputs is None else dict.fromkeys(inputs)
    for name in wanted:
        if name in own:
            keys.append((name, own[name], name))
        elif name == "policy_version" and unit.reads_ragged:
            keys += [(name, "versions", name), (f"has_{name}", "versions", f"has_{name}")]
        elif name in following:
            add(name, "next_stack" if following[name] in stacked else "next", following[name])
        elif name in ("position", "episode", "buffer"):
            keys.append((name, name, name))
        elif name in types or name in SYSTEM:
            is_successor = name.split(".", 1)[0] in GIVEN_SUCCESSORS
            is_last = unit.takes_last_step and is_successor
            add(name, "stack" if name in stacked else "last" if is_last else "row", name)
        elif name == "priority" and r.priorities is not None:
            keys.append((name, name, name))
        elif find_annotation(store, name) is not None:
            add(name, "stored", name)
        else:
            column = _require_column(store, name, usual)
            add(name, "stored" if column.of_steps else "episode_stored", name)
    frames = list(dict.fromkeys(read["stack_stored"] + read["next_stack_stored"]))
    packed: dict[str, list[tuple[str, str, np.dtype[Any] | None]]] = {}
    alone: dict[str, list[tuple[str, str]]] = {}
    others: list[tuple[str, str, str]] = []
    for key, source, name in keys:
        if source not in _STORED:
            others.append((key, source, name))
        elif name in r.packed.types:
            packed.setdefault(source, []).append((key, name, r.packed.types[name]))
        else:
            alone.setdefault(source, []).append((key, name))
    return KeySources(
        dict.fromkeys([key for key, _, _ in keys]),
        read["stored"],
        read["episode_stored"],
        read["next_stored"],
        read["last_stored"],
        frames,
        packed,
        alone,
        others,
        unit.reads_ragged,
    )


def _warn_of_missing_successors(
    store: Store, derived: list[str], fields: tuple[str, ...] | None
) -> None:
    """Warn if a batch contains a stored `next_<field>` that only some steps have."""
    for name in store.fields.types:
        following = f"next_{name}"
        is_taken = name not in derived and (fields is None or following in fields)
        if following in store.fields.optional and is_taken and name not in store.fields.optional:
            warn(
                f"{following} was stored with only some steps, and is zero or NaN for all other "
                f"steps; pass next_fields=({name!r},) to the unit to derive {following} for all "
                "steps"
            )


def _require_column(store: Store, name: str, usual: Iterable[str]) -> ViewColumn:
    try:
        return table_column(store, name)
    except errors.QueryError:
        if name in TOKEN_FIELDS:
            raise errors.QueryError(
                f"the buffer has no field {name!r}; create it with fields=expdb.TOKEN_FIELDS and "
                "store tokens, or pass the names of your fields to Tokens"
            ) from None
        names = dict.fromkeys((*usual, *store.fields.annotations))
        hint = nearest(name, names) or ";"
        raise errors.QueryError(
            f"no key {name!r} in this batch{hint} the keys are {', '.join(names)}, scores.<name> "
            "and the columns of the view experience"
        ) from None
