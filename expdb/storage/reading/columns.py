"""Read columns of the tables as arrays."""

from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.names import EPISODE_COLUMNS, STEP_COLUMNS, kind_of, nearest
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.reading.chunk_values import as_objects
from expdb.storage.reading.segments import inconsistent, is_dense
from expdb.storage.reading.select import columns_of_episodes
from expdb.storage.store import Store, evicted
from expdb.storage.stored_json import damaged, parse_object

S, E = tables.steps.c, tables.episodes.c

LONG_RANGE = 1024  # for fewer steps, a second statement takes longer than it saves
BLOCK_BITS = 10  # a row of `priorities` holds 1,024 positions


def table_column(store: Store, name: str) -> tables.ViewColumn:
    """Return the column of the view `experience` with this name; raise QueryError if unknown."""
    column = tables.view_column(name)
    if column is not None:
        return column
    names = dict.fromkeys((*store.fields.with_annotations(), *STEP_COLUMNS, *EPISODE_COLUMNS))
    hint = nearest(name, names) or ";"
    raise errors.QueryError(
        f"no field or column {name!r}{hint} the names are {', '.join(names)} and scores.<name>"
    )


def read_columns(
    store: Store,
    session: Session,
    positions: np.ndarray,
    names: list[str],
    json_text: bool = False,
) -> dict[str, np.ndarray]:
    """Read columns of the tables, in the order of `positions`.

    Chunks do not hold these columns, or hold values from before a change. With `json_text`, tags
    are not parsed.
    """
    if "priority" in names:
        others = [name for name in names if name != "priority"]
        columns = read_columns(store, session, positions, others, json_text)
        return {**columns, "priority": read_priorities(store, session, positions)}
    wanted = np.unique(positions)
    # Steps of an episode have the same values, so long ranges read them once per episode. Each step
    # has its own mapping of JSON.
    is_long = is_dense(wanted) and len(wanted) > LONG_RANGE
    once = tuple(
        name
        for name in names
        if is_long and name in tables.OF_EPISODES and (json_text or kind_of(name) != "json")
    )
    others = [name for name in names if name not in once]
    join: sa.FromClause = tables.steps
    view_columns = [table_column(store, name) for name in others]
    if any(column.of_episodes for column in view_columns):
        join = join.join(tables.episodes, sa.and_(E.buffer_id == S.buffer_id, E.id == S.episode))
    selected = [S.position, S.episode, *[column.sql for column in view_columns]]
    statement = sa.select(*selected).select_from(join).where(S.buffer_id == store.id)
    if is_dense(wanted):
        statement = statement.where(S.position.between(int(wanted[0]), int(wanted[-1])))
    else:
        statement = statement.where(store.dialect.among(S.position, wanted.tolist()))
    rows = {row[0]: row for row in session.fetch(statement)}
    missing = [position for position in positions.tolist() if position not in rows]
    if missing:
        raise evicted(np.array(missing))
    ordered = [rows[position] for position in positions.tolist()]
    columns = {
        key: array
        for k, name in enumerate(others, 2)
        for key, array in column_arrays(name, [row[k] for row in ordered], json_text).items()
    }
    if not once:
        return columns
    episodes, place = np.unique([row[1] for row in ordered], return_inverse=True)
    of_episodes = sorted(columns_of_episodes(store, session, once, 1 << 62, episodes))
    if len(of_episodes) < len(episodes):
        raise inconsistent(f"an episode of buffer {store.name!r} is missing")
    return columns | {
        key: array[place]
        for k, name in enumerate(once, 1)
        for key, array in column_arrays(name, [row[k] for row in of_episodes], True).items()
    }


def priorities_of(store: Store, block: Any, data: Any) -> np.ndarray:
    """Return the priorities of a stored block, float64; NaN where a step has none."""
    what = f"block {block} of the priorities of buffer {store.name!r}"
    try:
        values = store.dialect.from_block(data)
    except (ValueError, TypeError) as error:
        raise damaged(what, error) from None
    if values.shape != (1 << BLOCK_BITS,) or not 0 <= block < 1 << 53:
        raise damaged(what, f"{values.size} values")
    return values


def read_priorities(store: Store, session: Session, positions: np.ndarray) -> np.ndarray:
    """Read the priorities of stored steps, float64; NaN where a step has none."""
    blocks, block = np.unique(positions >> BLOCK_BITS, return_inverse=True)
    rows = session.query(
        f"SELECT block, data FROM priorities WHERE buffer_id = ? AND block {store.dialect.AMONG}",
        store.id, store.dialect.as_list(blocks),
    )  # fmt: skip
    stored = {number: priorities_of(store, number, data) for number, data in rows}
    none = np.full(1 << BLOCK_BITS, np.nan)
    values = np.stack([stored.get(number, none) for number in blocks.tolist()] or [none])
    priorities: np.ndarray = values[block, positions & ((1 << BLOCK_BITS) - 1)]
    return priorities


_DTYPES: dict[str | None, Any] = {"integer": np.int64, "real": np.float64, "flag": np.bool_}


def column_arrays(name: str, values: list[Any], json_text: bool = False) -> dict[str, np.ndarray]:
    """Return a column of the tables in the form that batches use.

    For integers that may be missing, also return `has_<name>`.
    """
    if kind_of(name) != "integer?":
        return {name: column_array(name, values, json_text)}
    there = np.array([value is not None for value in values], np.bool_)
    return {name: np.array([value or 0 for value in values], np.int64), f"has_{name}": there}


def column_array(name: str, values: list[Any], json_text: bool = False) -> np.ndarray:
    """Return a column as an array: tags as mappings, NULL as NaN for reals and None elsewhere."""
    kind = kind_of(name)
    if kind in _DTYPES:
        try:
            return np.array(values, _DTYPES[kind])
        except (ValueError, TypeError, OverflowError) as error:
            raise damaged(f"column {name!r}", error) from None
    if kind == "json" and not json_text:
        values = [None if text is None else parse_object(text, name) for text in values]
    return as_objects(values)
