"""Start processes that have imported expdb before, which takes milliseconds instead of seconds."""

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["expdb.testing", "expdb.database", "expdb.buffer", "expdb.api"])
