"""Start processes that have imported expdb before, which takes milliseconds instead of seconds."""

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["expdb.testing", "expdb.database", "expdb.buffer", "expdb.api"])


def run_at_once(workers):
    """Run threads or processes at the same time; each process must end without an error."""
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert getattr(worker, "exitcode", 0) == 0
