"""A cache of chunks, for fields that are not in memory as arrays."""

import heapq
from collections import OrderedDict

import numpy as np

from expdb.chunks.chunk import Chunk

OPEN_SHARE = 4  # Chunks stay decompressed if the memory holds at least one in OPEN_SHARE of them.


class ChunkCache:
    """Chunks by id, up to a number of bytes; the least recently used one is removed first.

    Decompressed fields are removed before any chunk: a compressed chunk takes a fraction of the
    memory, and decompressing it again is faster than reading and checking it. The cache leaves as
    much free space as the last batch needed, so that the next batch does not exceed the limit.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.nbytes = 0  # of memory, for chunks and decompressed fields
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._open: OrderedDict[int, int] = OrderedDict()  # bytes of decompressed fields, by chunk
        self._open_bytes = 0
        self._oldest: list[int] = []  # a heap of ids, including removed chunks
        self._sorted_ids: np.ndarray | None = None  # None after a change

    def __len__(self) -> int:
        return len(self._chunks)

    def get(self, id: int) -> Chunk | None:
        """Return a chunk, or None if it is not in the cache."""
        return self._chunks.get(id)

    def find_candidates(self, positions: np.ndarray) -> dict[int, Chunk]:
        """Return by id the cached chunks that probably contain the positions.

        For each position, this is the chunk with the lowest id at or after the position: the id of
        a new chunk is the position of its last step.
        """
        if self._sorted_ids is None:
            self._sorted_ids = np.sort(np.fromiter(self._chunks, np.int64, len(self._chunks)))
        indices = np.unique(self._sorted_ids.searchsorted(positions))
        ids = self._sorted_ids[indices[indices < len(self._sorted_ids)]]
        return {id: self._chunks[id] for id in ids.tolist()}

    def keeps_open(self, nbytes: int, count: int) -> bool:
        """Return whether to keep `count` chunks decompressed, which take `nbytes` bytes.

        If only a small part of all chunks fits, their fields would be discarded before their next
        use, so keeping them would cost time without a benefit.
        """
        room = self.limit - (self.nbytes - self._open_bytes)
        fits = 2 * nbytes <= room  # with as much again for the next batch
        return fits and nbytes * len(self._chunks) <= OPEN_SHARE * count * room

    def keep(self, chunks: dict[int, Chunk]) -> None:
        """Keep chunks that were just used."""
        kept, opened, brought = self._chunks, self._open, 0
        for id, chunk in chunks.items():
            size, now = chunk.nbytes, chunk.opened_bytes
            if kept.get(id) is not chunk:
                self._forget(id)
                kept[id] = chunk
                self._sorted_ids = None
                self.nbytes += size
                heapq.heappush(self._oldest, id)
            kept.move_to_end(id)
            if now:
                more = now - opened.pop(id, 0)
                opened[id] = now
                self._open_bytes += more
                self.nbytes += more
            brought += size + now
        limit = self.limit - brought
        while self.nbytes > limit and self._open:
            self._close(next(iter(self._open)))
        while self.nbytes > limit and self._chunks:
            self._forget(next(iter(self._chunks)))
        if len(self._oldest) > 2 * len(self._chunks) + 64:
            self._oldest = sorted(self._chunks)

    def evict(self, low: int) -> None:
        """Remove the chunks whose steps are all evicted; an id is the last position of a chunk."""
        while self._oldest and self._oldest[0] < low:
            self._forget(heapq.heappop(self._oldest))

    def _forget(self, id: int) -> None:
        chunk = self._chunks.get(id)
        if chunk is not None:
            self._close(id)
            self.nbytes -= chunk.nbytes
            self._sorted_ids = None
            del self._chunks[id]

    def _close(self, id: int) -> None:
        size = self._open.pop(id, 0)
        self.nbytes -= size
        self._open_bytes -= size
        self._chunks[id].close()
