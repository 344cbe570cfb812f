"""Chunks kept in memory, for what is not held in arrays."""

import heapq
from collections import OrderedDict

from expdb.chunks.chunk import Chunk

OPEN_SHARE = 4  # chunks are kept open where one of so many can be


class ChunkCache:
    """Chunks by id, up to a number of bytes; the one unused for longest goes first.

    What was opened goes before any chunk does: a compressed one takes a fraction of the memory, and
    to decompress it again is faster than to read and check it. Room is left for as much as the last
    batch brought, so that the next one does not exceed the limit while it is made.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.nbytes = 0  # of memory, of all that is kept
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._open: OrderedDict[int, int] = OrderedDict()  # bytes of what is open, by chunk
        self._open_bytes = 0
        self._oldest: list[int] = []  # a heap of ids, of chunks that may be gone as well

    def __len__(self) -> int:
        return len(self._chunks)

    def get(self, id: int) -> Chunk | None:
        """Return a chunk, None where it is not kept."""
        return self._chunks.get(id)

    def keeps_open(self, nbytes: int, count: int) -> bool:
        """Return whether to keep open what `count` chunks hold, `nbytes` that are decompressed now.

        Where little of what all chunks hold fits, it is closed again before it is met with a second
        time, and only costs.
        """
        room = self.limit - (self.nbytes - self._open_bytes)
        fits = 2 * nbytes <= room  # beside as much of the next batch
        return fits and nbytes * len(self._chunks) <= OPEN_SHARE * count * room

    def keep(self, chunks: dict[int, Chunk]) -> None:
        """Keep chunks that were used just now."""
        known, opened, brought = self._chunks, self._open, 0
        for id, chunk in chunks.items():
            size, now = chunk.nbytes, chunk.opened_bytes
            if known.get(id) is not chunk:
                self._forget(id)
                known[id] = chunk
                self.nbytes += size
                heapq.heappush(self._oldest, id)
            known.move_to_end(id)
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
        """Forget the chunks of which every step is evicted.

        Their ids are the last positions they hold.
        """
        while self._oldest and self._oldest[0] < low:
            self._forget(heapq.heappop(self._oldest))

    def _forget(self, id: int) -> None:
        chunk = self._chunks.get(id)
        if chunk is not None:
            self._close(id)
            self.nbytes -= chunk.nbytes
            del self._chunks[id]

    def _close(self, id: int) -> None:
        size = self._open.pop(id, 0)
        self.nbytes -= size
        self._open_bytes -= size
        self._chunks[id].close()
