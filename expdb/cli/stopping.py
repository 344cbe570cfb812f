"""Stop commands that run until the user interrupts them."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watch_for_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGINT or SIGTERM arrived; a second signal interrupts."""
    # Event.set() in a handler could deadlock while the main thread holds the lock of the Event.
    received: list[object] = []

    def stop(*_: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(True)

    def is_stopped() -> bool:
        return bool(received)

    # Python handles signals only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield is_stopped
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield is_stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
