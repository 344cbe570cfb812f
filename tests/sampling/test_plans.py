"""Batches read from a window of rows equal batches that follow rows one by one."""

import threading

import numpy as np
import pytest
from cases import combinations
from processes import run_at_once

import expdb
from expdb.replay.sumtree import SumTree
from expdb.sampling.gatherer import Gatherer
from expdb.sampling.sample_plan import MOST_ROWS_KEPT

UNITS = [
    expdb.Step(), expdb.NStep(1), expdb.NStep(1, gamma=0.9, end="redraw"),
    expdb.NStep(1, next_fields=("n",)), expdb.NStep(3, gamma=0.9),
    expdb.NStep(4, gamma=0.9, end="redraw"), expdb.Sequence(4), expdb.Sequence(9, stride=2),
    expdb.Sequence(3, pad=False), expdb.Sequence(1), expdb.NStep(1, stack=2),
    expdb.NStep(1, stack=4, gamma=0.5, end="redraw"),
    expdb.NStep(1, stack=3, stack_fields=("obs", "n")),
]  # fmt: skip
OTHER_UNITS = [
    expdb.NStep(3, end="drop"), expdb.NStep((1, 4), gamma=0.5), expdb.NStep(2, stack=2),
    expdb.Stack(3), expdb.Sequence(4, burn_in=2), expdb.Episode(), expdb.Group(1),
]  # fmt: skip
SAMPLERS = [
    expdb.Uniform(),
    expdb.Prioritized(),
    expdb.Prioritized(alpha=2.0, beta=0.5, normalise="buffer", initial=0.5),
]
OTHER_SAMPLERS = [
    expdb.Uniform(replace=False), expdb.Uniform(over="episode"), expdb.Uniform(over="task"),
    expdb.Newest(20), expdb.Prioritized(anneal_steps=10), expdb.Ordered("reward"),
]  # fmt: skip
QUERIES = [{"task_id": "task1"}, expdb.QueryBuilder().gt("reward", 4), [3, 20, 21, 22, 40]]


def sample_without_window(buffer, size, **how):
    """Return the sample of a plan that looks up each row instead of using a window."""
    sampling = buffer._sampling
    plans, sampling._plans = sampling._plans, {}
    try:
        asked = {"where": None, "sampler": expdb.Uniform(), "unit": expdb.Step(), "fields": None}
        asked |= {name: value for name, value in how.items() if name in asked}
        sampling._plan(size, shard=None, **asked)._offsets = None
        return buffer.sample(size, **how)
    finally:
        sampling._plans = plans


def assert_same(actual, other):
    assert list(actual) == list(other)
    for key in actual:
        assert actual[key].dtype == other[key].dtype, key
        assert actual[key].flags.c_contiguous
        if actual[key].dtype == object:
            for a, b in zip(actual[key].tolist(), other[key].tolist(), strict=True):
                np.testing.assert_array_equal(a, b, err_msg=key)
            continue
        np.testing.assert_array_equal(actual[key], other[key], err_msg=key)


def both(buffer, size, seed=0, **how):
    """Return the same sample twice, built without and with a window."""
    return tuple(
        sample(buffer, size, seed=np.random.default_rng(seed), **how)
        for sample in (sample_without_window, expdb.ReplayBuffer.sample)
    )


def steps(n, length, terminates, wide):
    for number in range(n, n + length):
        step = {
            "obs": np.array([number, number + 0.5], np.float32), "n": number,
            "reward": number / 2, "terminated": terminates and number == n + length - 1,
        }  # fmt: skip
        if number % 3 == 0:
            step["note"] = np.float32(number)
        if wide:
            step["image"] = np.full((20, 20), number % 256, np.uint8)
        yield step


def store_episodes(buffer, lengths, n=0, wide=False, left_open=()):
    for k, length in enumerate(lengths):
        episode_steps = steps(n, length, k % 2 == 0, wide)
        n += length
        if k in left_open:
            for step in episode_steps:
                buffer.store(task_id="open", episode_id=f"open {n}", **step)
            continue
        with buffer.episode(f"task{k % 3}") as episode:
            for step in episode_steps:
                episode.append(**step)
            episode.end(obs=np.array([-n, -n], np.float32))
    return n


@pytest.fixture(scope="module")
def filled(module_db):
    """Return two buffers that no test changes, one without and one with a capacity."""
    buffers = {
        capacity: module_db.buffer(f"{capacity}", capacity=capacity) for capacity in (None, 40)
    }
    for buffer in buffers.values():
        store_episodes(buffer, [5, 1, 9, 20, 12, 7], wide=True, left_open=(5,))
        buffer.sample(1, unit=expdb.NStep(1))  # loads all rows, unlike samples of single steps
    return buffers


@pytest.fixture
def buffer(scratch):
    scratch.capacity = 40
    store_episodes(scratch, [5, 1, 9, 20, 12, 7], wide=True, left_open=(5,))
    return scratch


FIELDS = [None, ["obs", "reward"], ("image", "position", "episode", "note", "n")]
REQUESTS = combinations(UNITS, SAMPLERS, FIELDS, (None, 40), (1, 300))
OTHER_REQUESTS = combinations(
    [*UNITS, *OTHER_UNITS], [*SAMPLERS[:2], *OTHER_SAMPLERS], [None, *QUERIES], (None, 40)
)


def test_window_and_stepwise_sampling_give_equal_batches(filled):
    for unit, sampler, fields, capacity, size in REQUESTS:
        for seed in range(2):
            assert_same(*both(
                filled[capacity], size, seed, sampler=sampler, unit=unit, fields=fields
            ))  # fmt: skip


def test_window_and_stepwise_sampling_give_equal_batches_for_every_request(filled):
    compared = 0
    for unit, sampler, query, capacity in OTHER_REQUESTS:
        how = {"where": query, "unit": unit, "sampler": sampler}
        try:
            stepwise, other = both(filled[capacity], 2, **how)
        except expdb.TooFewRows:
            continue
        weights = {"weight"}  # an annealed beta changes them with each sample
        assert_same(
            {key: stepwise[key] for key in stepwise if key not in weights},
            {key: other[key] for key in other if key not in weights},
        )
        compared += 1
    assert compared >= 0.7 * len(OTHER_REQUESTS)  # some units need more steps than a query matches


def test_changing_a_query_in_place_takes_effect(buffer):
    query = {"task_id": "task1"}
    for _ in range(3):
        tasks = set(buffer.sample(50, query, fields=["n", "task_id"])["task_id"])
        assert tasks == {"task1"}
        assert buffer.sample(50, query, fields=["n"]).size == 50
    before = set(buffer.sample(200, query, fields=["n"])["n"].tolist())
    query["task_id"] = "task2"
    for _ in range(3):
        assert not before & set(buffer.sample(200, query, fields=["n"])["n"].tolist())


def test_a_query_matches_steps_loaded_by_another_sample(buffer):
    query = {"task_id": "new"}
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(9, query)
    for n in range(3):
        buffer.store(task_id="new", n=n)
        buffer.sample(9)
        for unit in (expdb.Step(), expdb.Sequence(1)):
            for _ in range(2):
                numbers = buffer.sample(90, query, unit=unit, fields=["n"])["n"]
                assert set(numbers.reshape(-1).tolist()) == set(range(n + 1))


def test_interleaved_episodes_give_equal_batches(tmp_path):
    """The rows of an episode are not contiguous, so they are followed one by one."""
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("b")
        for n in range(200):
            episode = int(n) % 2 if n < 100 else 2
            buffer.store(
                obs=np.float32(n), n=n, reward=n / 7, task_id="t", episode_id=f"{episode}",
                terminated=n in (98, 99, 199),
            )  # fmt: skip
        for unit in UNITS:
            for seed in range(4):
                stepwise, other = both(buffer, 64, seed, unit=unit)
                assert_same(stepwise, other)


def test_batches_are_writable_and_do_not_affect_later_batches(buffer):
    for unit in UNITS:
        batches = [buffer.sample(64, unit=unit) for _ in range(5)]
        for k, batch in enumerate(batches):
            for key in batch:
                batch[key][:] = k % 2
        for _ in range(3):
            batch = buffer.sample(64, unit=unit)
            obs, n = batch["obs"][..., 0], batch["n"]
            assert ((obs[:, -1] if obs.ndim > n.ndim else obs) == n).all()
        for k, batch in enumerate(batches):
            assert all((batch[key] == k % 2).all() for key in batch)


def test_a_call_in_a_signal_handler_is_refused_during_a_sample(buffer, monkeypatch):
    gather, unit = Gatherer.gather, expdb.NStep(1)
    expected = buffer.sample(40, seed=1, unit=unit)
    calls = [
        lambda: buffer.sample(1),
        lambda: buffer.update_priorities(expected["position"], expected["reward"]),
    ]

    def interrupted(*arguments):
        for call in calls:
            with pytest.raises(expdb.ExpDBError, match="during another call of the same thread"):
                call()
        return gather(*arguments)

    monkeypatch.setattr(Gatherer, "gather", interrupted)
    assert_same(buffer.sample(40, seed=1, unit=unit), expected)


def test_an_update_of_priorities_that_a_signal_handler_has_interrupted_is_consistent(
    buffer, monkeypatch
):
    sampler = expdb.Prioritized(alpha=1.0, epsilon=0.0)
    positions = np.unique(buffer.sample(400, sampler=sampler)["position"])
    values = np.zeros(len(positions))
    values[0] = 5.0
    monkeypatch.setattr(SumTree, "set", lambda *arguments: buffer.sample(1))
    with pytest.raises(expdb.ExpDBError, match="during another call of the same thread"):
        buffer.update_priorities(positions, values)
    monkeypatch.undo()
    batch = buffer.sample(400, sampler=sampler, fields=["priority"])
    assert not (batch["priority"] == 0).any()  # steps with this priority are never drawn


def test_a_list_of_fields_can_change_between_samples(buffer):
    fields = ["n"]
    for _ in range(3):
        assert list(buffer.sample(4, fields=fields)) == ["n"]
    fields.append("reward")
    assert list(buffer.sample(4, fields=fields)) == ["n", "reward"]
    assert list(buffer.sample(4, fields="n")) == ["n"]
    assert list(buffer.sample(4, fields=(name for name in ("reward", "n")))) == ["reward", "n"]


def test_batches_too_large_for_window_reuse_are_equal(buffer):
    stepwise, other = both(buffer, MOST_ROWS_KEPT + 1)
    assert_same(stepwise, other)


# Few enough requests for all of their plans to be cached.
KINDS = [
    {},
    {"unit": expdb.NStep(1)},
    {"unit": expdb.NStep(1), "sampler": SAMPLERS[1]},
    {"unit": UNITS[2], "sampler": SAMPLERS[2]},
]


@pytest.mark.parametrize("seed", range(3))
def test_window_and_stepwise_sampling_agree_after_random_changes(tmp_path, seed):
    rng = np.random.default_rng(seed)
    with expdb.open(tmp_path / "runs.db") as db, expdb.open(tmp_path / "runs.db") as other:
        buffer, n = db.buffer("b", capacity=int(rng.integers(20, 200))), 0
        n = store_episodes(buffer, [10, 10])

        def store(buffer=buffer):
            return store_episodes(buffer, rng.integers(1, 9, 3).tolist(), n, False, (2,))

        def learn():
            batch = buffer.sample(20, sampler=expdb.Prioritized())
            buffer.update_priorities(batch["position"], rng.random(20))

        for _ in range(25):
            match int(rng.integers(0, 8)):
                case 0:
                    n = store()
                case 1:
                    n = store_episodes(other.buffer("b"), [100], n)
                case 2 if n > 40:
                    buffer.delete(rng.integers(0, n, 2).tolist())
                case 3:
                    buffer.capacity = int(rng.integers(20, 2000))
                case 4:
                    buffer.store(n=n, reward=None, **{f"field{n % 3}": n})
                    n += 1
                case _:
                    learn()
            for how in KINDS:
                try:
                    batches = [
                        buffer.sample(16, seed=np.random.default_rng(n), **how) for _ in range(3)
                    ]
                except expdb.TooFewRows:
                    continue
                expected = sample_without_window(buffer, 16, seed=np.random.default_rng(n), **how)
                for batch in batches:
                    assert_same(expected, batch)


def test_concurrent_threads_get_consistent_batches(buffer):
    wrong = []

    def draw(unit):
        for _ in range(300):
            batch = buffer.sample(32, unit=unit)
            if not (batch["obs"][..., 0] == batch["n"]).all():
                wrong.append(batch)

    run_at_once([threading.Thread(target=draw, args=(unit,)) for unit in UNITS[:3]])
    assert wrong == []


@pytest.mark.parametrize("unit", [expdb.Sequence(4), expdb.NStep(3), expdb.Sequence(3, burn_in=2)])
def test_an_episode_can_end_in_the_last_row_of_the_ring(tmp_path, unit):
    """The row after a terminated step does not belong to its episode."""
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("b", capacity=64)
        for _ in range(8):
            with buffer.episode("t") as episode:
                for k in range(8):
                    episode.append(n=k, reward=1.0, terminated=k == 7)
        buffer.sample(1, unit=unit)
        assert buffer._sampling.resident.slots == buffer._sampling.resident.high == 64
        last = buffer.sample(9, [61, 62, 63], unit=unit)
        stepwise, other = both(buffer, 90, unit=unit)
        assert_same(stepwise, other)
        if "mask" in last:
            assert (last["position"][last["mask"]] < 64).all()
            assert (last["n"][last["mask"]] >= 3).all()
        else:
            assert (last["n_steps"] == 64 - last["position"]).all()


class OversizedSampler(expdb.Sampler):
    def draw(self, population, size, rng):
        return population.uniform(size + 1, rng), {}


def test_a_failed_draw_does_not_change_the_generator(new_buffer):
    buffer = new_buffer()
    buffer.store(task_id="t", x=1.0)
    buffer.sample(1)
    buffer.sample(1, unit=expdb.Sequence(1))
    rng = np.random.default_rng(1)
    for _ in range(2):  # the second draws do not read the database
        with pytest.raises(expdb.InvalidValue):
            buffer.sample(1, sampler=OversizedSampler(), seed=rng)
        with pytest.raises(expdb.TooFewRows):
            buffer.sample(1, unit=expdb.Sequence(2, pad=False), seed=rng)
    assert rng.bit_generator.state == np.random.default_rng(1).bit_generator.state
