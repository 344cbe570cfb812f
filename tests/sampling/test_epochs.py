"""Epochs return every item once, in an order given by a seed, and can be resumed."""

import json
import threading

import numpy as np
import pytest
from processes import run_at_once

import expdb
from expdb import errors

UNITS = [
    expdb.Step(), expdb.NStep(1), expdb.NStep((1, 3)), expdb.NStep(2, stack=2), expdb.Sequence(4),
    expdb.Episode(),
]  # fmt: skip


def fill(buffer, episodes=7, length=9, first=0):
    """Store complete episodes; the field x numbers their steps."""
    rng = np.random.default_rng(first)
    for k in range(first, first + episodes):
        with buffer.episode(f"task-{k % 3}") as episode:
            episode.extend(
                {"x": np.arange(length) + 100 * k, "obs": rng.random((length, 2)),
                 "reward": rng.random(length)}
            )  # fmt: skip
            if k % 2:
                episode.end(obs=rng.random(2))
            else:
                episode.append(x=100 * k + length, obs=rng.random(2), reward=1.0, terminated=True)


@pytest.fixture
def filled(db):
    buffer = db.buffer("b")
    fill(buffer)
    return buffer


@pytest.fixture(scope="module")
def shared(module_db):
    """A filled buffer that no test changes."""
    fill(module_db.buffer("shared"))
    return module_db.buffer("shared")


def items_of(batch):
    """Return the position of each item, or of its first step if it has several."""
    positions = batch["position"]
    return positions if positions.ndim == 1 else positions[:, 0]


def drawn_positions(epochs):
    return [items_of(batch).tolist() for batch in epochs]


def drawable(buffer, unit, **options):
    """Return the positions that a large sample draws."""
    repeated = expdb.Uniform(replace=True)
    batch = buffer.sample(4000, unit=unit, sampler=repeated, seed=0, **options)
    return np.unique(items_of(batch)).tolist()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("options", [{}, {"where": {"task_id": "task-1"}}, {"shard": (1, 2)}])
def test_each_epoch_returns_every_item_once(shared, unit, options):
    batches = drawn_positions(shared.epochs(8, epochs=2, unit=unit, **options))
    half = len(batches) // 2
    first, second = (
        np.concatenate(half_batches).tolist() for half_batches in (batches[:half], batches[half:])
    )
    assert sorted(first) == sorted(second) == drawable(shared, unit, **options)
    assert first != second or len(first) < 5
    assert all(len(batch) == 8 for batch in batches[: half - 1])


def test_the_seed_determines_the_order(open_db, filled):
    order = drawn_positions(filled.epochs(8, epochs=2, seed=5))
    assert order == drawn_positions(open_db().buffer("b").epochs(8, epochs=2, seed=5))
    assert order != drawn_positions(filled.epochs(8, epochs=2, seed=6))


def test_drop_last_drops_the_short_batch(filled):
    count = len(drawable(filled, expdb.Step()))
    sizes = [len(batch) for batch in drawn_positions(filled.epochs(10, epochs=3, drop_last=True))]
    assert count % 10
    assert sizes == [10] * (3 * (count // 10))


def test_refresh_includes_new_steps_in_the_next_epoch(filled):
    count = len(filled)
    for refresh in (False, True):
        epochs = filled.epochs(1000, epochs=2, refresh=refresh)
        assert len(next(epochs)["x"]) == count
        fill(filled, 1, first=20 + refresh)
        assert len(next(epochs)["x"]) == count + (len(filled) - count) * refresh
        count = len(filled)


@pytest.mark.parametrize("unit", UNITS)
def test_epochs_resume_from_a_saved_state(open_db, filled, unit):
    epochs = filled.epochs(5, epochs=2, unit=unit, seed=1)
    for _ in range(13):
        next(epochs, None)
    state = json.loads(json.dumps(epochs.state_dict()))
    rest = list(epochs)
    fill(filled, 2, first=30)  # the saved epochs do not contain these steps
    resumed = open_db().buffer("b").epochs(5, epochs=2, unit=unit, seed=1)
    resumed.load_state_dict(state)
    for expected, actual in zip(rest, resumed, strict=True):
        np.testing.assert_equal(dict(actual), dict(expected))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 6}, "size=5"), ({"seed": 2}, "seed=0"),
        ({"unit": expdb.NStep(1)}, "NStep"), ({"where": {"task_id": "task-1"}}, "task-1"),
    ],
)  # fmt: skip
def test_load_state_dict_rejects_changed_arguments(filled, change, message):
    state = json.loads(json.dumps(filled.epochs(5).state_dict()))
    with pytest.raises(expdb.InvalidValue, match=message):
        filled.epochs(**{"size": 5, **change}).load_state_dict(state)


def test_load_state_dict_rejects_the_state_of_another_buffer(db, filled):
    state = filled.epochs(5).state_dict()
    other = db.buffer("other")
    fill(other)
    with pytest.raises(expdb.InvalidValue, match="other"):
        other.epochs(5).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"items": [[5, 3]]}, {"items": [[0, 2**62]]}, {"items": "text"}, {"items": [[0.5, 3]]},
        {"items": [[-5, -1]]}, {"items": [[0, 3], [0, 3]]}, {"start": 10**9}, {"skipped": None},
        {"epoch": -1}, {"start": "x"}, {"generator": {}}, {"generator": 3},
    ],
)  # fmt: skip
def test_load_state_dict_rejects_invalid_states(filled, change):
    epochs = filled.epochs(5)
    next(epochs)
    with pytest.raises(expdb.InvalidValue):
        filled.epochs(5).load_state_dict(epochs.state_dict() | change)
    for wrong in ({"seed": 0}, None, [1]):
        with pytest.raises(expdb.InvalidValue, match="state"):
            filled.epochs(5).load_state_dict(wrong)


def test_evicted_and_deleted_items_are_skipped_with_a_warning(db):
    buffer = db.buffer("b", capacity=100)
    fill(buffer, 10)
    before = buffer.get(np.arange(buffer.stats()["oldest"], buffer.stats()["oldest"] + 90))
    epochs = buffer.epochs(8, unit=expdb.NStep(1))
    seen = next(epochs)["position"].tolist()
    fill(buffer, 3, first=40)
    buffer.delete(np.array([98]))
    with pytest.warns(errors.ExpDBWarning, match="skipped"):
        rest = list(epochs)
    assert all(len(batch["x"]) == 8 for batch in rest[:-1])
    seen += np.concatenate([batch["position"] for batch in rest]).tolist()
    assert len(set(seen)) == len(seen)
    assert epochs.skipped == len(epochs.items) - len(seen) > 20
    assert set(seen) <= set(epochs.items.tolist())
    assert len(before["x"]) == 90


def test_epochs_load_a_state_from_version_0_2(filled):
    epochs = filled.epochs(5)
    next(epochs)
    state = epochs.state_dict()
    state["batch_size"] = state.pop("size")
    resumed = filled.epochs(5)
    resumed.load_state_dict(state)
    assert drawn_positions(resumed) == drawn_positions(epochs)


@pytest.mark.parametrize(
    "options", [{"size": 0}, {"epochs": 0}, {"seed": -1}, {"drop_last": 1}, {"unit": "step"}]
)
def test_invalid_arguments_raise_when_epochs_is_called(filled, options):
    with pytest.raises(expdb.InvalidValue):
        filled.epochs(**{"size": 8, **options})


@pytest.mark.parametrize("fields", [None, ["x", "obs"], ["task_id", "x"], ["buffer", "position"]])
def test_get_returns_the_same_from_memory_and_database(open_db, filled, fields):
    wanted = np.array([5, 3, 3, 60, 0])
    stored = open_db().buffer("b").get(wanted, fields=fields)
    for _ in range(2):
        filled.sample(4, unit=expdb.NStep(1))
    cached = filled.get(wanted, fields=fields)
    assert list(stored) == list(cached)
    for key in stored:
        np.testing.assert_array_equal(stored[key], cached[key])
        assert stored[key].dtype == cached[key].dtype
    cached["position" if fields is None else next(iter(cached))][:] = 0  # the caller owns the array
    assert wanted.tolist() == [5, 3, 3, 60, 0]
    with pytest.raises(errors.Evicted, match="1000"):
        filled.get([3, 1000])


@pytest.mark.parametrize("unit", [expdb.Group(2), expdb.Pairs()])
def test_epochs_of_groups_continue_while_episodes_are_stored(open_db, unit):
    buffer, other = open_db().buffer("b"), open_db().buffer("b")

    def store(first, groups):
        for number in range(first, first + groups):
            for reward in (0.0, 1.0):
                other.store(group_id=f"g{number}", x=number, reward=reward, terminated=True)

    store(0, 6)
    epochs = buffer.epochs(2, epochs=1, unit=unit, refresh=True)
    groups = [next(epochs)["x"]]
    state = json.loads(json.dumps(epochs.state_dict()))
    store(6, 3)
    groups += [batch["x"] for batch in epochs]
    assert sorted(np.concatenate(groups)[:, 0].reshape(-1).tolist()) == list(range(6))
    resumed = open_db().buffer("b").epochs(2, epochs=1, unit=unit, refresh=True)
    resumed.load_state_dict(state)
    for batch, expected in zip(resumed, groups[1:], strict=True):
        np.testing.assert_array_equal(batch["x"], expected)


@pytest.mark.filterwarnings("ignore:epoch:expdb.errors.ExpDBWarning")
def test_an_epoch_without_remaining_items_raises(filled):
    epochs = filled.epochs(8, epochs=None)
    next(epochs)
    filled.clear()
    fill(filled, 2, first=50)
    with pytest.raises(expdb.TooFewRows, match="epoch 1 has no batch, because all 67 items were"):
        next(epochs)
    assert epochs.skipped == 67


def test_drop_last_raises_if_the_only_batch_is_short(filled):
    with pytest.raises(expdb.TooFewRows, match="drop_last"):
        next(filled.epochs(1000, epochs=None, drop_last=True))


def test_too_few_rows_error_mentions_unflushed_steps(db):
    buffer = db.buffer("b")
    with buffer.writer() as writer:
        writer.append(x=1)
        for draw in (lambda: next(buffer.epochs(4)), lambda: buffer.consumer("trainer").lease(4)):
            with pytest.raises(expdb.TooFewRows, match=r"1 steps .* flush"):
                draw()


def test_threads_that_share_epochs_get_different_batches(filled):
    epochs = filled.epochs(2, epochs=30)
    positions = []

    def draw():
        for batch in epochs:
            positions.extend(batch["position"].tolist())

    run_at_once([threading.Thread(target=draw) for _ in range(4)])
    assert np.bincount(positions).tolist() == [30] * len(filled)


def test_a_state_saved_before_the_first_batch_includes_later_steps(filled):
    state = filled.epochs(5, epochs=2).state_dict()
    epochs = filled.epochs(5, epochs=2)
    next(epochs)
    fill(filled, 2, first=60)
    epochs.load_state_dict(state)
    assert sum(len(batch["x"]) for batch in epochs) == 2 * len(filled)


def test_get_sees_stores_and_deletions_of_other_handles(open_db):
    ours, theirs = open_db(max_lag_seconds=60.0).buffer("b"), open_db().buffer("b")
    ours.store(x=0)
    for _ in range(3):
        ours.sample(1)
    for k in range(1, 20):
        (position,) = theirs.store_batch({"x": [k]})
        assert ours.get([position])["x"].tolist() == [k]
        ours.sample(1)
        theirs.delete(np.array([position]))
        with pytest.raises(errors.Evicted):
            ours.get([position])
