"""AWorld's storage for several processes.

The class takes AWorld's arguments, but stores the rows in a database file instead of shared
memory.
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
    """Share rows among processes in a temporary database file.

    The file is deleted with the storage that created it.

    Parameters
    ----------
    data_dict : dict
        A dict of a multiprocessing manager, which passes the path of the file to other processes.
    fifo_queue : object, optional
        Ignored.
    lock : context manager, optional
        A lock to hold while `data_dict` is read and the file is created.
    max_capacity : int
        Maximum number of rows; the oldest rows are evicted first.
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
    if pid == os.getpid():  # a forked child must not delete the file of its parent
        shutil.rmtree(folder, ignore_errors=True)
