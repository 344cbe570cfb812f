"""Read annotations: arrays that were added to steps after they were written."""

import json
import math
import zlib
from typing import Any

import numpy as np

from expdb.chunks.fields import Field
from expdb.sql.session import Session
from expdb.storage.reading.chunk_values import blank
from expdb.storage.store import Store
from expdb.storage.stored_json import damaged

NO_VERSION = -1


def find_annotation(store: Store, name: str) -> tuple[str, int | None, Field] | None:
    """Return the name, version and type of an annotation that a key such as "values@3" names.

    The version is None for the latest one. Return None if there is no such annotation.
    """
    base, at, version = name.partition("@")
    field = store.fields.annotations.get(base)
    if field is None or (at and not (version.isdecimal() and len(version) < 19)):
        return None
    return base, int(version) if at else None, field


def read_annotation(
    store: Store, session: Session, positions: np.ndarray, name: str
) -> dict[str, np.ndarray]:
    """Return an annotation of steps, and `has_<name>`, in the order of `positions`."""
    annotation = find_annotation(store, name)
    assert annotation is not None
    base, version, field = annotation
    wanted, places = np.unique(positions, return_inverse=True)
    rows = session.query(
        "SELECT position, version, shape, crc, data FROM annotations WHERE buffer_id = ? "
        f"AND name = ? AND position {store.dialect.AMONG}"
        + ("" if version is None else " AND version = ?"),
        store.id, base, store.dialect.as_list(wanted), *([] if version is None else [version]),
    )  # fmt: skip
    latest: dict[int, Any] = {}
    for position, *row in sorted(rows, key=lambda row: (row[0], row[1])):
        latest[position] = row
    is_there = np.array([position in latest for position in wanted.tolist()], np.bool_)
    values = np.full(len(wanted), None) if field.shape else np.zeros(len(wanted), field.numpy)
    for place, position in enumerate(wanted.tolist()):
        if position in latest:
            values[place] = decoded(store, base, position, field, *latest[position][1:])
    blank(values, ~is_there)
    return {name: values[places], f"has_{name}": is_there[places]}


def crc_of_annotation(data: bytes, position: int, name: str) -> int:
    """Return the checksum of an annotation; it differs if the row is moved to another step."""
    return zlib.crc32(f"{position} {name}".encode(), zlib.crc32(data))


def decoded(
    store: Store, name: str, position: int, field: Field, shape: str, crc: int, data: bytes
) -> np.ndarray:
    """Return the array of an annotation; raise DatabaseDamaged if it is corrupted."""
    what = f"annotation {name!r} of position {position} of buffer {store.name!r}"
    try:
        sizes = tuple(json.loads(shape))
        sound = all(type(size) is int and size >= 0 for size in sizes) and field.has_shape(sizes)
        sound = sound and len(data) == math.prod(sizes) * field.numpy.itemsize
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise damaged(what, f"its shape {shape[:40]!r} does not fit {len(data)} bytes of {field}")
    # The checksum of rows written by earlier versions covers only the data, not the position.
    if crc not in (crc_of_annotation(data, position, name), zlib.crc32(data)):
        raise damaged(what, "its checksum does not match")
    return np.frombuffer(data, field.numpy).reshape(sizes).copy()
