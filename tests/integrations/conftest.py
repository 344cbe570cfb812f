"""Fixtures for tests of drop-in buffers."""

import pytest


@pytest.fixture
def close():
    """Return a function that returns its argument, a buffer, and closes it after the test."""
    made = []
    yield lambda buffer: made.append(buffer) or buffer
    for buffer in made:
        if hasattr(buffer, "close"):  # original buffers have no such method
            buffer.close()


@pytest.fixture(scope="module")
def cluster():
    """Start Ray, which trains algorithms of RLlib."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
