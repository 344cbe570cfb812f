"""Wide fields over the memory limit: chunks are decompressed per batch or kept open."""

import numpy as np
import pytest

import expdb
from expdb.storage.reading.chunk_cache import ChunkCache

EPISODES, LENGTH = 24, 25
SIDE = 40  # height and width of a frame; a compressed chunk contains several frames
BYTES = {"nothing stays open": 160_000, "some stay open": 900_000, "most stay open": 1_700_000}


def frame(n):
    """Return a frame that compresses well and differs from every other frame."""
    image = np.zeros((SIDE, SIDE), np.uint16)
    image[0], image[-1] = n + 1, n + 1
    return image


def is_frame(images, n):
    """Return True if images [..., SIDE, SIDE] are the frames of the steps n [...]."""
    expected = np.zeros_like(images)
    expected[..., 0, :] = expected[..., -1, :] = np.asarray(n)[..., None] + 1
    return np.array_equal(images, expected)


@pytest.fixture(params=BYTES.values(), ids=BYTES.keys())
def buffer(request, open_db):
    """Return a buffer whose frames exceed the memory limit; some steps have a shade."""
    with open_db() as db:
        for k in range(EPISODES):
            with db.buffer("b").episode(f"t{k}") as episode:
                for n in range(LENGTH * k, LENGTH * (k + 1)):
                    shade = {"shade": frame(n)} if k % 3 and n % 2 else {}
                    episode.append(obs=frame(n), n=n, **shade)
                episode.end(obs=frame(LENGTH * (k + 1)))
    return open_db(resident_bytes=request.param).buffer("b")


@pytest.fixture
def kept_open(monkeypatch):
    """Return a list that records whether each batch kept its chunks open."""
    flags, original = [], ChunkCache.keeps_open

    def noting(*arguments):
        flags.append(original(*arguments))
        return flags[-1]

    monkeypatch.setattr(ChunkCache, "keeps_open", noting)
    return flags


def test_steps_and_next_steps_have_the_correct_frames(buffer, kept_open):
    for _ in range(30):
        batch = buffer.sample(24, unit=expdb.NStep(1))
        assert is_frame(batch["obs"], batch["n"])
        assert is_frame(batch["next_obs"], batch["n"] + 1)
        there = (batch["n"] // LENGTH % 3 > 0) & (batch["n"] % 2 > 0)
        np.testing.assert_array_equal(batch["has_shade"], there)
        assert is_frame(batch["shade"][there], batch["n"][there])
        assert not batch["shade"][~there].any()
    assert kept_open


def test_frame_stacks_contain_the_correct_frames(buffer, kept_open):
    for _ in range(30):
        batch = buffer.sample(8, unit=expdb.NStep(1, stack=3))
        begin = batch["n"] // LENGTH * LENGTH
        n = np.maximum(batch["n"][:, None] + np.arange(-2, 2), begin[:, None] - 1)
        shown = n >= begin[:, None]
        for k in range(3):
            for name, at in (("obs", k), ("next_obs", k + 1)):
                assert is_frame(batch[name][shown[:, at], k], n[shown[:, at], at])
    assert kept_open


def test_sequences_contain_the_correct_frames(buffer, kept_open):
    for _ in range(20):
        batch = buffer.sample(6, unit=expdb.Sequence(7))
        assert is_frame(batch["obs"][batch["mask"]], batch["n"][batch["mask"]])
        assert not batch["obs"][~batch["mask"]].any()
    assert kept_open


def test_an_empty_function_that_returns_read_only_arrays_is_rejected(buffer):
    def read_only(shape, dtype):
        return np.broadcast_to(dtype.type(0), shape)

    for _ in range(3):
        with pytest.raises(expdb.InvalidValue, match="must return a writable array"):
            buffer.sample(4, unit=expdb.NStep(1), empty=read_only)
        buffer.sample(4, unit=expdb.NStep(1))
