"""Loading steps of many chunks into memory at once, for chunks of any layout."""

import numpy as np
import pytest

import expdb
from expdb.memory import new_steps
from expdb.storage.reading import chunk_values as bulk

pytestmark = pytest.mark.filterwarnings("ignore:.*end without terminated")


def steps(first, count, wide):
    n = np.arange(first, first + count)
    values = {"n": n, "even": n % 2 == 0, "obs": np.repeat(n[:, None], 60, 1).astype(np.float32)}
    values |= {"reward": n / 4, "terminated": np.zeros(count, np.bool_)}
    return values if wide else {name: values[name] for name in values if name != "obs"}


def write(buffer, first, counts, wide=True):
    for k, count in enumerate(counts):
        with buffer.episode(f"t{first}", group_id=f"g{k}") as episode:
            episode.extend(steps(first, count, wide))
        first += count
    return first


@pytest.fixture
def joined(monkeypatch):
    """Return a list with, for each load, the joined chunks per layout and the other chunks."""
    monkeypatch.setattr(new_steps, "MAX_RANGES", 0)  # load a few new steps in the same way as many
    joins, original = [], bulk._by_layout

    def noting(chunks, spans):
        alike, others = original(chunks, spans)
        joins.append((sorted(map(len, alike)), len(others)))
        return alike, others

    monkeypatch.setattr(bulk, "_by_layout", noting)
    return joins


def assert_right(buffer, low, high, wide):
    """Draw nearly every step and compare its values with those that were written.

    The seed is fixed because 8 draws per step miss at least one of 60 steps in 2 % of the runs.
    """
    buffer.sample(1, unit=expdb.NStep(1, next_fields=()))  # a first `Step` sample loads no rows
    batch = buffer.sample(8 * (high - low), seed=5)
    n = batch["n"]
    assert len(set(n.tolist())) > 0.99 * (high - low)
    assert low <= n.min()
    assert n.max() < high
    np.testing.assert_array_equal(batch["position"], n)
    np.testing.assert_array_equal(batch["even"], n % 2 == 0)
    np.testing.assert_array_equal(batch["reward"], n / 4)
    there = wide(n)
    np.testing.assert_array_equal(batch.get("has_obs", np.full(len(n), True)), there)
    np.testing.assert_array_equal(batch["obs"][there], np.repeat(n[there][:, None], 60, 1))
    assert np.isnan(batch["obs"][~there]).all()


LONG = 200  # steps per episode, more than fit in one chunk


def test_chunks_are_joined_by_layout_and_single_chunks_load_separately(open_db, joined):
    high = write(open_db().buffer("b"), 0, [LONG, 7, *[LONG] * 9, 3, 5])
    assert_right(open_db().buffer("b"), 0, high, lambda n: n >= 0)
    ((alike, others),) = joined
    assert len(alike) == 2
    assert others == 3


def test_steps_of_chunks_without_a_field_have_missing_values(open_db, joined):
    buffer = open_db().buffer("b")
    middle = write(buffer, 0, [20] * 6)
    high = write(buffer, middle, [20] * 7, wide=False)
    write(buffer, high, [3])
    assert_right(open_db().buffer("b"), 0, high + 3, lambda n: (n < middle) | (n >= high))
    assert joined == [([6, 7], 1)]


def test_a_field_missing_from_some_steps_of_a_chunk_is_loaded_correctly(open_db, joined):
    buffer = open_db().buffer("b")
    high = write(buffer, 0, [20] * 6)
    for k in range(6):
        with buffer.episode(f"s{k}") as episode:
            for n in range(high, high + 10):
                values = {name: array[0] for name, array in steps(n, 1, n % 2).items()}
                episode.append(**values)
        high += 10
    assert_right(open_db().buffer("b"), 0, high, lambda n: (n < 120) | (n % 2 == 1))
    assert joined == [([6], 6)]


def test_partly_evicted_chunks_are_loaded_separately(open_db, joined):
    buffer = open_db().buffer("b", capacity=10 * LONG)
    high = write(buffer, 0, [LONG] * 12)
    low = high - 10 * LONG
    assert_right(open_db().buffer("b"), low, high, lambda n: n >= 0)
    buffer.capacity = 10 * LONG - 37
    assert_right(open_db().buffer("b"), low + 37, high, lambda n: n >= 0)
    assert all(alike for alike, _ in joined)
    assert joined[1][1] > joined[0][1]  # one chunk is partly evicted


def test_a_load_may_wrap_around_the_end_of_the_row_arrays(open_db, joined):
    """A single load fills rows at the end and at the beginning of the arrays."""
    writer, buffer = open_db().buffer("b", capacity=300), open_db(max_lag_seconds=0.0).buffer("b")
    high = write(writer, 0, [30] * 10)
    buffer.sample(1, unit=expdb.NStep(1))
    for _ in range(4):
        high = write(writer, high, [30] * 7)
        assert_right(buffer, high - 300, high, lambda n: n >= 0)
    assert [alike for alike, _ in joined] == [[10], [7], [7], [7], [7]]
