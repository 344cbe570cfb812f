"""The memory for rows depends on the number of steps, not on the range of positions."""

import contextlib

import numpy as np
import pytest
from row_histories import FIELDS, History, assert_matches_new_reader

import expdb
from expdb.memory import resident

UNITS = (
    expdb.NStep(2),
    expdb.Sequence(4, burn_in=2),
    expdb.Stack(3),
    expdb.NStep(1, stack=2),
    expdb.Episode(),
)


class HistoryWithDeletions(History):
    """Random writes, and deletions that leave a few early steps."""

    def change(self):
        if self._rng.random() < 0.5:
            super().change()
            return
        kept = self._rng.random() * 0.5
        positions = np.arange(max(0, self.number - int(self._rng.integers(5, 60))))
        self.buffer.delete(positions[self._rng.random(len(positions)) > kept])


def _sample(buffer, sampler, unit, seed):
    with contextlib.suppress(expdb.TooFewRows):
        return dict(buffer.sample(9, sampler=sampler, unit=unit, seed=np.random.default_rng(seed)))
    return {}


def assert_same_samples(buffer, reader, seed):
    """Compare samples for every unit and sampler."""
    positions = buffer.sample(200)["position"]
    values = np.random.default_rng(seed).random(len(positions))
    buffer.update_priorities(positions, values)
    buffer._sampling.save(wait=True)
    for unit in UNITS:
        for sampler in (expdb.Uniform(True), expdb.Newest(7), expdb.Prioritized(initial=1.0)):
            ours, theirs = (_sample(source, sampler, unit, seed) for source in (buffer, reader))
            assert ours.keys() >= theirs.keys()
            for key in theirs:
                what = f"{unit} {sampler} {key}"
                if key in ("probability", "weight"):  # weights are summed in row order
                    np.testing.assert_allclose(ours[key], theirs[key], 1e-12, err_msg=what)
                else:
                    np.testing.assert_array_equal(ours[key], theirs[key], what)


@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 40))]
)
def test_rows_in_memory_match_the_database_after_random_deletions(open_db, seed, monkeypatch):
    monkeypatch.setattr(resident, "LEAST", 2)
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(20, 60)) if seed % 3 == 0 else None
    buffer = open_db(max_lag_seconds=0.0).buffer("b", capacity=capacity, fields=FIELDS)
    history = HistoryWithDeletions(rng, buffer, open_db().buffer("b"))
    reader = open_db(max_lag_seconds=0.0).buffer("b")
    for k in range(60):
        history.write_or_change()
        if rng.random() < 0.2:
            history.change()
        if rng.random() < 0.7:
            assert_matches_new_reader(buffer, reader, k)
        if k % 10 == 9 and len(buffer):
            assert_same_samples(buffer, reader, k)
    history.close()
    assert_matches_new_reader(buffer, reader, seed)


def write_after_an_open_episode(buffer, count):
    """Write episodes of 25 steps after one that stays open; evict and sample in between."""
    first = buffer.episode("open")
    first.extend({"x": np.arange(3)})
    first.flush()
    for k in range(count):
        with buffer.episode("short") as episode:
            episode.extend({"x": np.arange(25) + k})
            episode.end(x=-k)  # a final observation
        if k % 10 == 9:
            buffer.evict()
        buffer.sample(1, unit=expdb.NStep(1))
    return first


@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
def test_an_open_episode_reserves_no_rows_for_evicted_steps_after_it(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b", capacity=500)
    buffer.eviction = expdb.Eviction(whole_episodes=True)
    first = write_after_an_open_episode(buffer, 200)
    reader = open_db(max_lag_seconds=0.0).buffer("b")
    assert_matches_new_reader(buffer, reader, 0)
    for source in (buffer, reader):
        rows = source._sampling.resident
        assert rows.high - rows.low > 5000
        assert rows.slots < 1000
        assert rows.final_rows < 200
    first.append(x=9)
    first.end()
    assert_matches_new_reader(buffer, reader, 1)
    assert buffer.sample(300, unit=expdb.NStep(1))["position"].min() < 3


@pytest.mark.parametrize("keeps", ["nothing", "an open episode"])
def test_a_restored_checkpoint_continues_with_the_same_draws(open_db, keeps, monkeypatch):
    monkeypatch.setattr(resident, "LEAST", 2)
    prioritized = {"sampler": expdb.Prioritized(), "unit": expdb.NStep(1)}
    buffer = open_db(max_lag_seconds=0.0).buffer("b", capacity=100)
    if keeps == "an open episode":
        buffer.eviction = expdb.Eviction(whole_episodes=True)
        first = buffer.episode("open")
        first.extend({"x": np.arange(3)})
        first.flush()
    for k in range(30):
        with buffer.episode("short") as episode:
            episode.extend({"x": np.arange(7) + k, "truncated": np.arange(7) == 6})
        buffer.evict()
        batch = buffer.sample(20, **prioritized)
        buffer.update_priorities(batch["position"], np.arange(20) + 0.3)
    state = buffer.sampling_state()
    other = open_db(max_lag_seconds=0.0).buffer("b")
    other.restore_sampling(state)
    for _ in range(5):
        np.testing.assert_equal(
            *[dict(source.sample(20, **prioritized)) for source in (buffer, other)]
        )
    if keeps == "an open episode":
        assert len(buffer._sampling.resident.early)
        first.end()


def buffer_without(open_db, gone):
    """Return a buffer of 100 steps, loaded into memory, without the steps in `gone`."""
    buffer = open_db(max_lag_seconds=0.0).buffer("b")
    buffer.store_batch({"x": np.arange(100)})
    buffer.sample(1, unit=expdb.NStep(1))
    buffer.update_priorities(np.arange(100), np.arange(100) + 0.5)
    buffer.sample(1, sampler=expdb.Prioritized())
    buffer.delete(gone)
    return buffer


@pytest.mark.parametrize("gone", [range(30, 60), range(10), range(90, 100)], ids=str)
def test_a_checkpoint_changes_neither_draws_nor_priorities(open_db, gone):
    buffer = buffer_without(open_db, np.array(gone))
    prioritized = expdb.Prioritized(epsilon=0.0)

    def draw(source):
        return dict(source.sample(50, sampler=prioritized, seed=np.random.default_rng(0)))

    before = draw(buffer)
    assert not set(before["position"]) & set(gone)
    state = buffer.sampling_state()
    np.testing.assert_array_equal(draw(buffer)["x"], before["x"])
    other = open_db(max_lag_seconds=0.0).buffer("b")
    for source in (buffer, other):
        source.restore_sampling(state)
        np.testing.assert_array_equal(draw(source)["x"], before["x"])
        batch = source.sample(200, fields=["position", "priority"])
        np.testing.assert_array_equal(batch["priority"], batch["position"] + 0.5)
    kept = np.setdiff1d(np.arange(100), gone)
    buffer.update_priorities(kept, np.where(kept == 20, 1.0, 0.0))
    assert set(draw(buffer)["position"]) == {20}


def test_handles_agree_after_steps_of_an_unordered_episode_are_evicted(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b", capacity=20)
    with buffer.episode("unordered") as episode:
        for step in (0, 2, 1, 3, 4, 5):
            episode.append(x=step, step=step)
    for k in range(17):
        buffer.store(x=100 + k)
        buffer.sample(1, unit=expdb.Stack(1, stack_fields=("x",)))
    reader = open_db(max_lag_seconds=0.0).buffer("b")
    ours, theirs = (source.sample(200, unit=expdb.NStep(1), seed=0) for source in (buffer, reader))
    np.testing.assert_array_equal(ours["position"], theirs["position"])


@pytest.mark.both_databases
def test_a_sample_excludes_steps_deleted_by_another_handle(open_db):
    gone = [0, *range(1_023, 2_048), *range(2_100, 4_000, 700)]
    buffer, other = (open_db(max_lag_seconds=0.0).buffer("b") for _ in range(2))
    buffer.store_batch({"x": np.arange(4_000)})
    buffer.sample(1, unit=expdb.NStep(1))
    assert other.delete(np.array(gone)) == len(gone)
    drawn = set(buffer.sample(200_000, seed=0, fields=["x"])["x"].tolist())
    assert drawn == set(range(4_000)) - set(gone)


def test_a_state_with_unordered_positions_is_rejected(open_db):
    buffer = buffer_without(open_db, np.array([3]))
    state = buffer.sampling_state()
    state["priorities"]["positions"] = state["priorities"]["starts"]
    with pytest.raises(expdb.InvalidValue, match="positions must be strictly ascending"):
        buffer.restore_sampling(state)
