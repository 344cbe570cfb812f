"""Columns of JSON that store each distinct list element once per chunk."""

import itertools
from array import array as numbers
from collections.abc import Iterator
from typing import Any

from expdb.chunks.column import EMPTY, Buffer, Column, Node, bits_of, offsets_of
from expdb.chunks.fields import MIN_SHARED_BYTES, Field
from expdb.chunks.infer import as_array, is_array
from expdb.chunks.values import encode_json, is_object


class JsonColumn(Column):
    """A column of JSON that stores each distinct element once per chunk.

    A list of mappings (messages, tools) has one element per mapping. Every other value is one
    element. Each row stores the JSON of the elements that are new in the chunk. It also stores a
    reference to each element of the row: the index of the element in the chunk. For example, if
    each of the fifty turns of an episode has all earlier messages, every message is stored once.

    Arrow layout: struct validity; `new`: list validity, offsets, text validity, offsets, data;
    `refs`: list validity, offsets, child validity, data; `is_list`: validity, data.
    """

    nodes_per_column, buffers_per_column = 6, 12
    value_buffer = 5

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self._places: dict[bytes, int] = {}
        self._elements: list[bytes] = []
        self._new: list[int] = []
        self._refs: list[list[int]] = []
        self._is_list: list[bool] = []

    def append(self, value: Any) -> None:
        if is_array(value):
            raise self.mismatch(as_array(value, self.name))
        is_list = (
            isinstance(value, (list, tuple))
            and bool(value)
            and all(is_object(element) for element in value)
        )
        self._append(
            [encode_json(element, self.name) for element in (value if is_list else [value])],
            is_list,
        )

    def copy(self, stored: Any, present: bytes) -> None:
        for (texts, is_list), there in zip(stored, present, strict=True):
            if there:
                self._append(texts, is_list)
            else:
                self.append_null()

    def _append(self, texts: list[bytes], is_list: bool) -> None:
        places, elements = self._places, self._elements
        before, refs = len(elements), []
        for text in texts:
            place = places.get(text)
            if place is None:
                place = places[text] = len(elements)
                elements.append(text)
                self.nbytes += len(text) + 4
            refs.append(place)
        self._add(len(elements) - before, refs, is_list)
        self.rows += 1
        self.nbytes += len(refs) + 8

    def _add(self, new: int, refs: list[int], is_list: bool) -> None:
        self._new.append(new)
        self._refs.append(refs)
        self._is_list.append(is_list)

    def _add_blank(self) -> None:
        self._add(0, [], False)

    def _truncate(self, rows: int) -> None:
        del self._new[rows:], self._refs[rows:], self._is_list[rows:]
        if len(self._places) != (kept := sum(self._new)) or len(self._elements) != kept:
            del self._elements[kept:]
            self._places = {text: place for place, text in enumerate(self._elements)}

    def value_sizes(self) -> list[int]:
        return [size for sizes in self._sizes_of_rows() for size in sizes]

    def value_counts(self) -> list[int]:
        return [len(sizes) for sizes in self._sizes_of_rows()]

    def _sizes_of_rows(self) -> Iterator[list[int]]:
        """Yield the sizes of the values of each row: large elements, and runs of small ones.

        Small elements, such as the tools of a model, are shared together.
        """
        elements = iter(self._elements)
        for new in self._new:
            sizes, run = list[int](), 0
            for text in itertools.islice(elements, new):
                if len(text) < MIN_SHARED_BYTES:
                    run += len(text)
                    continue
                sizes += [run, len(text)] if run else [len(text)]
                run = 0
            yield [*sizes, run] if run else sizes

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        refs = numbers("i", itertools.chain.from_iterable(self._refs))
        nodes = [
            (self.rows, nulls),
            (self.rows, 0),
            (len(self._elements), 0),
            (self.rows, 0),
            (len(refs), 0),
            (self.rows, 0),
        ]
        buffers: list[Buffer] = [
            valid,
            *(EMPTY, offsets_of(self._new)),
            *(EMPTY, offsets_of([len(text) for text in self._elements]), b"".join(self._elements)),
            *(EMPTY, offsets_of([len(row) for row in self._refs])),
            *(EMPTY, refs.tobytes()),
            *(EMPTY, bits_of(self._is_list)),
        ]
        return nodes, buffers
