"""Extract large values that several chunks share from a chunk, and restore them.

A compressed buffer begins with its size, or with -1. A buffer with pointers begins with -2 and the
number of pointers. A pointer is the offset and the length of a value in the restored buffer, and
its digest. The compressed rest of the buffer comes last.
"""

import hashlib
import itertools
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from expdb.chunks.column import Buffer, Column
from expdb.chunks.fields import MIN_SHARED_BYTES, Field
from expdb.errors import ChunkDamaged

POINTERS_MARKER = -2
# Arrays of a fixed shape are read faster if they are not shared.
MIN_FIXED_BYTES = 64 << 10
DIGEST_BYTES = 20
# The fingerprint of a value covers as many bytes of its middle and of its end. The beginning often
# is equal in different values: images have black borders, and messages begin with a role.
_SAMPLE_BYTES = 64

_HEAD, _POINTER = struct.Struct("<2q"), struct.Struct(f"<2q{DIGEST_BYTES}s")


def digest_of(value: Buffer) -> bytes:
    """Return the BLAKE2b hash that identifies a value."""
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()


def fingerprint_of(value: Buffer) -> int:
    """Return a fast hash of a value, which is valid only in this process."""
    # find_values_to_share() computes the same hash.
    middle = len(value) // 2
    samples = bytes(value[middle : middle + _SAMPLE_BYTES]), bytes(value[-_SAMPLE_BYTES:])
    return hash((len(value), samples))


class ValueSelector(ABC):
    """Selects values of a chunk to share; values that occur twice in a column always are shared."""

    @abstractmethod
    def find_repeated(self, fingerprints: Iterable[int], field: Field) -> list[int]:
        """Return those of the fingerprints of a field whose values also occur elsewhere."""

    @abstractmethod
    def find_prompt_rows(self) -> list[int]:
        """Return the rows that probably contain the prompt of a group."""


class ValuePointer(NamedTuple):
    """A pointer from a buffer to a shared value."""

    offset: int  # in bytes
    length: int
    digest: bytes


def find_values_to_share(
    column: Column, data: Buffer, selector: ValueSelector
) -> list[tuple[int, int]]:
    """Return the offset and length of each value of a column to share."""
    field = column.field
    min_bytes = MIN_SHARED_BYTES if field.varies or field.shared else MIN_FIXED_BYTES
    if field.shared is False or len(data) < min_bytes:
        return []
    if not field.varies and field.nbytes < min_bytes:
        return []
    large, fingerprints, end = list[tuple[int, int, int]](), list[int](), 0
    for index, size in enumerate(column.value_sizes()):
        start, end = end, end + size
        if size >= min_bytes:
            large.append((index, start, size))
            middle = start + size // 2
            samples = data[middle : middle + _SAMPLE_BYTES], data[end - _SAMPLE_BYTES : end]
            fingerprints.append(hash((size, samples)))
    if not large or field.shared:
        return [(start, size) for _, start, size in large]
    repeated = selector.find_repeated(fingerprints, field)
    if len(large) > 1 and len(set(fingerprints)) < len(fingerprints):
        repeated += [fingerprint for fingerprint, n in Counter(fingerprints).items() if n > 1]
    prompt_rows = selector.find_prompt_rows() if field.varies else []
    if not repeated and not prompt_rows:
        return []
    prompts, all_repeated = set[int](), set(repeated)
    if prompt_rows:
        stops = list(itertools.accumulate(column.value_counts(), initial=0))
        prompts.update(*(range(stops[row], stops[row + 1]) for row in prompt_rows))
    return [
        (start, size)
        for (index, start, size), fingerprint in zip(large, fingerprints, strict=True)
        if fingerprint in all_repeated or index in prompts
    ]


def extract_values(
    data: Buffer, spans: Iterable[tuple[int, int]]
) -> tuple[list[ValuePointer], bytes, list[bytes]]:
    """Return pointers to the values in the spans, the rest of the buffer, and the values."""
    view = memoryview(data)
    pointers, rest, values, end = list[ValuePointer](), list[Buffer](), list[bytes](), 0
    for offset, length in spans:
        value = bytes(view[offset : offset + length])
        pointers.append(ValuePointer(offset, length, digest_of(value)))
        values.append(value)
        rest.append(view[end:offset])
        end = offset + length
    rest.append(view[end:])
    return pointers, b"".join(rest), values


def encode_pointers(pointers: Sequence[ValuePointer], rest: Buffer) -> bytes:
    """Return a stored buffer: the pointers and the compressed rest."""
    packed = [_POINTER.pack(*pointer) for pointer in pointers]
    return b"".join((_HEAD.pack(POINTERS_MARKER, len(pointers)), *packed, rest))


def decode_pointers(stored: Buffer) -> tuple[list[ValuePointer], int]:
    """Return the pointers of a stored buffer and the offset of its compressed rest."""
    _, count = _HEAD.unpack_from(stored)
    end = _HEAD.size + count * _POINTER.size
    if not 0 < count <= len(stored) // _POINTER.size or end > len(stored):
        raise ChunkDamaged("the number of shared values is not valid")
    pointers = _POINTER.iter_unpack(stored[_HEAD.size : end])
    return [ValuePointer(*pointer) for pointer in pointers], end


def check_pointers(pointers: Sequence[ValuePointer], rest_bytes: int, max_bytes: int) -> None:
    """Raise ChunkDamaged unless the values fit between the bytes of the rest of the buffer."""
    end, left = 0, rest_bytes
    lengths = dict[bytes, int]()
    for offset, length, digest in pointers:
        left -= offset - end
        if offset < end or left < 0 or length < 0 or lengths.setdefault(digest, length) != length:
            raise ChunkDamaged("the pointers to shared values are not valid")
        end = offset + length
        if end > max_bytes:
            raise ChunkDamaged("the size of a buffer with shared values is not valid")


def restore_values(
    pointers: Sequence[ValuePointer], rest: Buffer, values: Mapping[bytes, Buffer]
) -> bytes:
    """Return a buffer with its shared values; `check_pointers` has checked the pointers."""
    parts, end, at, view = list[Buffer](), 0, 0, memoryview(rest)
    for offset, length, digest in pointers:
        parts += (view[at : at + offset - end], values[digest])
        at, end = at + offset - end, offset + length
    parts.append(view[at:])
    return b"".join(parts)
