"""Chunks kept in memory, for what is not held in arrays."""

from collections import OrderedDict

from expdb.storage.codec import Chunk


class ChunkCache(OrderedDict[int, Chunk]):
    """Chunks by id, decompressed as far as they were used, up to a number of bytes; the one unused for longest goes first."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 0
        self._sizes: dict[int, int] = {}
        self._total = 0

    def keep(self, chunks: dict[int, Chunk]) -> None:
        """Keep chunks that were used just now."""
        for id, chunk in chunks.items():
            self[id] = chunk
            self.move_to_end(id)
            self._total += chunk.nbytes - self._sizes.get(id, 0)
            self._sizes[id] = chunk.nbytes
        while self._total > self.limit:
            id, _ = self.popitem(last=False)
            self._total -= self._sizes.pop(id)
