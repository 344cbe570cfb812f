"""Fixtures for tests of drop-in buffers."""

import pytest


@pytest.fixture
def close():
    """Return a function that registers a buffer to be closed after the test, and returns it."""
    buffers = []
    yield lambda buffer: buffers.append(buffer) or buffer
    for buffer in buffers:
        if hasattr(buffer, "close"):  # original buffers have no such method
            buffer.close()


@pytest.fixture(scope="module")
def cluster():
    """Start Ray, which trains algorithms of RLlib."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
