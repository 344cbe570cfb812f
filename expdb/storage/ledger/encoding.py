"""Encode drawn samples in few bytes: positions, and the columns that a sampler adds."""

import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from expdb import errors
from expdb.chunks.chunk import CODEC
from expdb.names import UNKNOWN

# An anchor is one item that the sampler drew: a position, or a row of positions. The head holds the
# bytes per offset, the positions per anchor (0 for a single one), twice the attempt plus 1 if some
# anchors were left out of the batch, the number of anchors, and the least position.
_HEAD = struct.Struct("<BIBIq")
_WIDTHS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}

_KINDS = "biuf"  # kinds of dtypes that can be stored

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class LeasedItems:
    """The items of a leased batch, in the order of the draw."""

    # [B], or [B, n] for n positions per anchor, padded with UNKNOWN.
    positions: np.ndarray
    columns: Columns  # columns that the sampler adds, one value per anchor
    kept: np.ndarray | None = None  # whether each anchor is part of the batch; None for all
    attempt: int = 0  # number of earlier draws that kept no anchor

    @cached_property
    def items(self) -> np.ndarray:
        """The leased positions, each as often as it was leased."""
        kept = self.positions if self.kept is None else self.positions[self.kept]
        positions: np.ndarray = kept.reshape(-1)
        return positions if kept.ndim == 1 else positions[positions != UNKNOWN]


def bounds(drawn: LeasedItems) -> tuple[int, int]:
    """Return the least and the greatest position, including anchors that were left out."""
    positions = drawn.positions
    least = int(positions.min())
    if least == UNKNOWN:
        least = int(positions[positions != UNKNOWN].min())
    return least, int(positions.max())


def pack_positions(drawn: LeasedItems) -> bytes:
    """Return the positions as offsets from the least one, in as few bytes as possible."""
    positions = drawn.positions
    least = int(positions.min())
    span = int(positions.max()) - least
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    members, left_out = 0 if positions.ndim == 1 else positions.shape[1], drawn.kept is not None
    head = _HEAD.pack(width, members, 2 * drawn.attempt + left_out, len(positions), least)
    data = head + (positions - least).astype(_WIDTHS[width]).tobytes()
    return data if drawn.kept is None else data + np.packbits(drawn.kept).tobytes()


def unpack_positions(data: bytes) -> LeasedItems:
    """Decode the result of `pack_positions`, without columns; raise ValueError if it is invalid."""
    width, members, flags, count, least = _HEAD.unpack_from(data)
    attempt, left_out = divmod(flags, 2)
    if width not in _WIDTHS:
        raise ValueError(f"numbers of {width} bytes")
    end = _HEAD.size + count * max(members, 1) * width
    if len(data) != end + (left_out and (count + 7) // 8):
        raise ValueError(f"{len(data)} bytes for {count} anchors")
    offsets = np.frombuffer(data[_HEAD.size : end], _WIDTHS[width])
    positions = offsets.astype(np.int64) + least
    kept = None
    if left_out:
        bits = np.frombuffer(data[end:], np.uint8)
        kept = np.unpackbits(bits, count=count).astype(np.bool_)
    positions = positions.reshape(count, members) if members else positions
    return LeasedItems(positions, {}, kept, attempt)


def describe_columns(drawn: LeasedItems) -> dict[str, Any]:
    """Return the dtype and shape of each column as JSON; the packed bytes do not contain them.

    Raise InvalidValue if a column cannot be stored.
    """
    described: dict[str, Any] = {}
    for name, array in drawn.columns.items():
        is_array = isinstance(array, np.ndarray) and array.shape[:1] == drawn.positions.shape[:1]
        if not is_array or array.dtype.kind not in _KINDS:
            raise errors.InvalidValue(
                f"a lease cannot store the array {name!r} of the sampler; return a NumPy array of "
                "booleans or numbers from draw(), with one value for each drawn position"
            )
        described[name] = [array.dtype.str, *array.shape[1:]]
    return described


def pack_columns(columns: Columns) -> bytes:
    """Return the columns, compressed if that is smaller.

    Bytes of equal significance are stored together. They compress better, because the signs and
    exponents of floats are similar.
    """
    parts = []
    for array in columns.values():
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1, array.dtype.itemsize)
        parts.append(flat.T.tobytes())
    whole = b"".join(parts)
    if not whole:
        return b""
    compressed = bytes(CODEC.compress(whole, asbytes=True))
    if len(compressed) < len(whole):
        return b"\1" + compressed
    return b"\0" + whole


def unpack_columns(data: bytes, described: dict[str, Any], count: int) -> Columns:
    """Return the columns of `count` anchors; raise ValueError if the bytes do not match."""
    dtypes = {name: np.dtype(dtype) for name, (dtype, *_) in described.items()}
    if any(dtype.kind not in _KINDS for dtype in dtypes.values()):
        raise ValueError("columns of a kind that is never stored")
    shapes = {name: (count, *shape) for name, (_, *shape) in described.items()}
    sizes = {name: int(np.prod(shapes[name])) * dtypes[name].itemsize for name in described}
    total = sum(sizes.values())
    whole = data[1:]
    if data[:1] == b"\1":
        whole = CODEC.decompress(whole, total, asbytes=True)
    if len(whole) != total:
        raise ValueError(f"{len(whole)} bytes of columns, not {total}")
    columns, begin = {}, 0
    for name, size in sizes.items():
        ranks = np.frombuffer(whole[begin : begin + size], np.uint8)
        flat = np.ascontiguousarray(ranks.reshape(dtypes[name].itemsize, -1).T)
        columns[name] = flat.view(dtypes[name]).reshape(shapes[name])
        begin += size
    return columns


def crc_of(positions: bytes, columns: bytes, number: int, request: int) -> int:
    """Return the checksum of a row of the ledger."""
    return zlib.crc32(columns, zlib.crc32(positions, zlib.crc32(f"{number} {request}".encode())))


def damaged(buffer: str, consumer: str, lease: int, why: object) -> errors.DatabaseDamaged:
    """Return the error for a row of the ledger that cannot be read."""
    return errors.DatabaseDamaged(
        f"lease {lease} of consumer {consumer!r} of buffer {buffer!r} is corrupted ({why}); "
        "restore a backup"
    )
