"""Chunks kept in memory, for what is not held in arrays."""

from collections import OrderedDict

from expdb.storage.codec import Chunk


class ChunkCache(OrderedDict[int, Chunk]):
    """Chunks by id, up to a number of bytes; the one unused for longest goes first.

    What was decompressed goes before any chunk does: a compressed one takes a fraction of the memory, and to decompress
    it again is faster than to read and check it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit = 0
        self._stored = 0  # bytes of the messages
        self._decompressed: OrderedDict[int, int] = OrderedDict()  # bytes of what was decompressed, by chunk
        self._opened = 0  # their sum

    def keep(self, chunks: dict[int, Chunk]) -> None:
        """Keep chunks that were used just now."""
        for id, chunk in chunks.items():
            known = self.get(id)
            if known is not chunk:
                self._stored += len(chunk.data) - (0 if known is None else len(known.data))
                self[id] = chunk
            self.move_to_end(id)
            self._opened += chunk.decompressed_bytes - self._decompressed.get(id, 0)
            self._decompressed[id] = chunk.decompressed_bytes
            self._decompressed.move_to_end(id)
        while self._stored + self._opened > self.limit and self._decompressed:
            id, size = self._decompressed.popitem(last=False)
            self[id].close()
            self._opened -= size
        while self._stored > self.limit:
            _, chunk = self.popitem(last=False)
            self._stored -= len(chunk.data)
