"""Check the scores that a caller records, before anything is stored."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from expdb import checks, errors
from expdb.chunks.values import encode_tags
from expdb.names import nearest
from expdb.storage.writing.batches import columns_of_table

TARGETS = ("position", "episode_id", "episode")
KEYS = (*TARGETS, "name", "value", "by", "status", "detail")


class NewScore(NamedTuple):
    """A checked score of one step, or of an episode, which is named by its id or its number."""

    position: int | None
    episode: str | int | None
    name: str
    value: float | None
    scored_by: str | None
    status: str | None
    detail: str | None  # JSON object
    scored: float | None = None  # time in Unix seconds; None for the time of the recording


def scores_of(batch: Any, is_batch: bool = True) -> list[NewScore]:
    """Return the checked scores of a batch: rows, columns or an Arrow table.

    With `is_batch`, errors name the row.
    """
    scores = []
    for index, row in enumerate(_rows(batch)):
        try:
            scores.append(_score(row))
        except errors.InvalidValue as error:
            if is_batch:
                errors.name_row(error, index)
            raise
    return scores


def scores_of_steps(
    where: Any, name: Any, value: Any, by: Any, status: Any, detail: Any
) -> list[NewScore]:
    """Return the checked scores of the steps that match `where`.

    For an array of positions, return one score for each position; otherwise, return one score
    without a position.
    """
    fixed = _names_of(name, by, status, detail)
    if not isinstance(where, np.ndarray):
        return [_with_value(None, None, value, *fixed)]
    positions = where.tolist()
    values = value.tolist() if isinstance(value, np.ndarray) and value.ndim else value
    if not isinstance(values, (list, tuple)):
        values = [values] * len(positions)
    elif len(values) != len(positions):
        raise errors.InvalidValue(
            f"{len(values)} values were passed for {len(positions)} positions; pass one value, or "
            "one value for each position"
        )
    return [
        _with_value(position, None, single, *fixed)
        for position, single in zip(positions, values, strict=True)
    ]


def _names_of(
    name: Any, by: Any, status: Any, detail: Any
) -> tuple[str, str | None, str | None, str | None]:
    """Return the checked name of a score, its author, status and details."""
    return (
        checks.score_name(name),
        None if by is None else checks.name(by, "the author of a score (by=)"),
        None if status is None else checks.name(status, "a status"),
        None if detail is None else encode_tags(detail, "detail"),
    )


def _with_value(
    position: int | None,
    episode: str | int | None,
    value: Any,
    name: str,
    by: str | None,
    status: str | None,
    detail: str | None,
) -> NewScore:
    if value is None:
        if status is None:
            raise errors.InvalidValue(
                f"the score {name!r} has neither a value nor a status; pass value=, or "
                "value=None with a status such as 'timeout'"
            )
    elif isinstance(value, (bool, np.bool_)):
        value = float(value)
    else:
        value = checks.number(value, f"the score {name!r}")
    return NewScore(position, episode, name, value, by, status, detail)


def _score(row: Mapping[str, Any]) -> NewScore:
    unknown = row.keys() - set(KEYS)
    if unknown:
        key = min(map(str, unknown))
        raise errors.InvalidValue(
            f"a score has no key {key!r}{nearest(key, KEYS) or ';'} the keys are {', '.join(KEYS)}"
        )
    targets = [key for key in TARGETS if row.get(key) is not None]
    if len(targets) != 1:
        raise errors.InvalidValue(
            f"a score must have one of {', '.join(TARGETS)}, got {' and '.join(targets) or 'none'}"
            "; pass the position of a step, or the id of an episode"
        )
    names = _names_of(row.get("name"), row.get("by"), row.get("status"), row.get("detail"))
    target = row[targets[0]]
    if targets[0] == "position":
        return _with_value(checks.whole(target, "position", 0), None, row.get("value"), *names)
    if targets[0] == "episode_id":
        episode: str | int = checks.text(target, "episode_id")
    else:
        episode = checks.whole(target, "episode", 0)
    return _with_value(None, episode, row.get("value"), *names)


def _rows(batch: Any) -> Iterator[Mapping[str, Any]]:
    if hasattr(batch, "__arrow_c_stream__"):
        batch = columns_of_table(batch)
    if isinstance(batch, Mapping):
        yield from _rows_of_columns(batch)
        return
    if not isinstance(batch, (list, tuple)):
        raise errors.InvalidValue(
            "scores must be a list of mappings, a mapping of columns or an Arrow table, got "
            f"{type(batch).__name__}"
        )
    for row in batch:
        if not isinstance(row, Mapping):
            raise errors.InvalidValue(
                f"a score must be a mapping with keys such as position, name and value, got "
                f"{type(row).__name__}"
            )
        yield row


def _rows_of_columns(columns: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of columns; a single value applies to every row."""
    lists: dict[str, Sequence[Any]] = {
        name: values.tolist() if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
        if isinstance(values, (list, tuple)) or (isinstance(values, np.ndarray) and values.ndim)
    }
    lengths = {name: len(values) for name, values in lists.items()}
    if not lengths:
        raise errors.InvalidValue(
            "no column of the scores is a list or an array; pass lists, or use score() for one "
            "score"
        )
    if len(set(lengths.values())) > 1:
        raise errors.InvalidValue(
            f"all columns must have the same length, got "
            f"{', '.join(f'{name} {length}' for name, length in lengths.items())}"
        )
    constants = {name: value for name, value in columns.items() if name not in lists}
    for row in zip(*lists.values(), strict=True):
        yield {**constants, **dict(zip(lists, row, strict=True))}
