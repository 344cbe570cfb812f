"""AWorld's storage for several processes.

The same arguments, but the rows are in an SQL file and not in shared memory.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import MutableMapping
from contextlib import nullcontext
from typing import Any

from expdb.integrations.aworld.storage import SQLStorage

_KEY = "expdb.integrations.aworld"


class MultiProcMemoryStorage(SQLStorage):
    """Rows shared by processes, in a temporary file that goes with the storage that made it.

    `data_dict` (a manager's dict) tells the others where the file is, under `lock`; `fifo_queue` is
    not needed.
    """

    def __init__(
        self,
        data_dict: MutableMapping[str, Any],
        fifo_queue: Any = None,
        lock: Any = None,
        max_capacity: int = 10000,
    ):
        with lock if lock is not None else nullcontext():
            path = data_dict.get(_KEY)
            made = None
            if path is None:
                made = tempfile.mkdtemp(prefix="expdb-aworld-")
                path = data_dict[_KEY] = os.path.join(made, "rows.db")
            super().__init__(path, max_capacity)
        if made is not None:
            weakref.finalize(self, _remove, made, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return _handed_over, (self._location, self._max_capacity)


def _handed_over(path: str, max_capacity: int) -> MultiProcMemoryStorage:
    storage = MultiProcMemoryStorage.__new__(MultiProcMemoryStorage)
    SQLStorage.__init__(storage, path, max_capacity)
    return storage


def _remove(folder: str, pid: int) -> None:
    if pid == os.getpid():  # a forked child that ends leaves the parent its file
        shutil.rmtree(folder, ignore_errors=True)
