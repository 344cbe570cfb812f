"""Rows in memory match the database while other handles write, update, delete and evict."""

import numpy as np
import pytest
from behind import writing
from contents import steps_of
from processes import FORKSERVER

import expdb
from expdb import NStep, QueryBuilder, Sequence, Uniform, errors

pytestmark = pytest.mark.filterwarnings(
    "ignore:update.. sets the reward:expdb.errors.ExpDBWarning"
)  # these tests update the reward of every step on purpose

ALL = Uniform(replace=False)
PRIORITIZED = expdb.Prioritized()


LENGTHS = 40


def actor(location, number):
    """Write episodes in a separate process, update their rewards and delete some steps."""
    with expdb.open(location) as db:
        buffer = db.buffer("b")
        for k in range(12):
            name = f"e{number}-{k}"
            with buffer.episode(f"t{number}", episode_id=name, flush_steps=7) as episode:
                for t in range(LENGTHS):
                    episode.append(
                        obs=1e6 * number + 1e3 * k + t, reward=float(t), terminated=t == LENGTHS - 1
                    )
            buffer.update({"episode_id": name}, reward=-1.0)
            if k % 4 == 3:
                buffer.delete(QueryBuilder().eq("episode_id", name).and_().gte("step", 35))


@pytest.mark.slow
def test_a_learner_samples_consistent_steps_while_other_processes_write(open_db, location):

    learner = open_db(max_lag_seconds=0.0).buffer("b", capacity=700)
    processes = [FORKSERVER.Process(target=actor, args=(location, number)) for number in (1, 2)]
    for process in processes:
        process.start()
    rounds, sampler = 0, expdb.Prioritized()
    while any(process.is_alive() for process in processes) or rounds < 20:
        batch = learner.sample(64, sampler=sampler, unit=NStep(3), wait=60)
        same = np.floor(batch["obs"] / 1e3) == np.floor(batch["next_obs"] / 1e3)
        ended = batch["discount"] == 0
        assert (same | ended).all()
        assert (batch["next_obs"] - batch["obs"] == batch["n_steps"])[~ended].all()
        relabelled = (batch["reward"] == -batch["n_steps"]).sum()
        updated = learner.update_priorities(batch["position"], np.abs(batch["reward"]) + 1)
        assert 0 <= updated <= 64
        assert 0 <= relabelled <= 64
        sequences = learner.sample(
            8, QueryBuilder().eq("reward", -1.0).or_().gte("reward", 0), unit=Sequence(6, burn_in=2)
        )
        steps = np.where(sequences["mask"], sequences["obs"] - np.arange(8), np.nan)
        assert (np.nanmax(steps, 1) == np.nanmin(steps, 1)).all()
        rounds += 1
    for process in processes:
        process.join()
        assert process.exitcode == 0
    truth = {row["position"]: row for row in steps_of(learner)}
    batch = learner.sample(len(truth), sampler=ALL)
    assert set(batch["position"].tolist()) == truth.keys()
    assert all(
        truth[p]["reward"] == r
        for p, r in zip(batch["position"].tolist(), batch["reward"].tolist(), strict=True)
    )
    learner._sampling.save()
    stored = learner.get(batch["position"], fields=["priority"])["priority"]
    everything = learner.sample(len(truth), sampler=ALL, fields=["position", "priority"])
    priorities = dict(
        zip(everything["position"].tolist(), everything["priority"].tolist(), strict=True)
    )
    assert [priorities[p] for p in batch["position"].tolist()] == pytest.approx(
        stored.tolist(), nan_ok=True
    )


@pytest.mark.parametrize("resident_bytes", [0, 1500, 10**9])
def test_new_fields_are_loaded_and_the_widest_leaves_memory_at_its_limit(open_db, resident_bytes):
    buffer = open_db().buffer("b")
    other = open_db(resident_bytes=resident_bytes, max_lag_seconds=0.0).buffer("b")
    for k in range(30):
        fields = {"x": np.full(8, k, np.float32), "n": k}
        if k >= 10:
            fields["late"] = float(k)
        if k >= 20:
            fields["text"] = f"text {k}"
        buffer.store(episode_id="e", obs=np.array([k, k], np.int32), **fields)
        if k % 3 == 2:
            batch = other.sample(k, unit=NStep(1), sampler=ALL, seed=k)
            assert sorted(batch["n"].tolist()) == list(range(k))
            for row in batch.to_list():
                n = row["n"]
                assert row["x"].tolist() == [n] * 8
                assert row["next_obs"].tolist() == [n + 1] * 2
                if k >= 10:
                    assert row["late"] == (float(n) if n >= 10 else None)
                if k >= 20:
                    assert row["text"] == (f"text {n}" if n >= 20 else None)
    if resident_bytes == 1500:
        assert set(other._sampling.resident.fields) == {"late", "n", "obs"}, "the widest field left"


def test_fields_may_have_the_names_of_internal_columns(db):
    buffer = db.buffer("b")
    names = ("after", "before", "ordinal", "whole", "present", "unsaved", "zero")
    for t in range(6):
        buffer.store(episode_id="e", **{name: t + k for k, name in enumerate(names)})
    batch = buffer.sample(5, unit=NStep(1, next_fields=names), sampler=ALL)
    for k, name in enumerate(names):
        assert (batch[name] == batch["step"] + k).all()
        assert (batch[f"next_{name}"] == batch["step"] + k + 1).all()
    buffer.sample(5, sampler=expdb.Prioritized())
    assert buffer.update_priorities([1], [2.0]) == 1


def test_buffers_of_one_handle_share_the_resident_bytes_limit(open_db):
    db = open_db(resident_bytes=30_000)
    for name in ("a", "b"):
        db.buffer(name).store_batch({"x": np.zeros((100, 25)), "k": np.arange(100)})
    for _ in range(2):
        for name in ("a", "b"):
            batch = db.buffer(name).sample(100, sampler=ALL)
            assert sorted(batch["k"].tolist()) == list(range(100))
    assert [set(db.buffer(name)._sampling.resident.fields) for name in ("a", "b")] == [
        {"x", "k"},
        {"k"},
    ]


# -- regressions -----------------------------------------------------------------------------------


def positions(buffer, **options):
    """Return the distinct positions of 300 draws, in ascending order."""
    return sorted(
        set(buffer.sample(300, seed=0, **options)["position"].reshape(-1).tolist()) - {-1}
    )


def agree(open_db, buffer, **options):
    """Assert that `buffer` and a new handle draw the same batch; return the batch."""
    fresh = open_db(max_lag_seconds=0.0).buffer(buffer.name)
    draws = []
    for source in (buffer, fresh):
        try:
            draws.append(
                {key: value.tolist() for key, value in source.sample(64, seed=3, **options).items()}
            )
        except expdb.TooFewRows:
            draws.append(None)
    assert repr(draws[0]) == repr(draws[1])
    return draws[0]


@pytest.mark.parametrize(
    "unit",
    [Sequence(2, burn_in=1, pad=False), NStep(3, end="redraw"), Sequence(2, stride=2)],
    ids=str,
)
def test_multi_step_samples_ignore_rows_in_memory_without_a_step(db, unit):
    buffer = db.buffer("b")
    for _ in range(5):
        junk = [np.full(200 * j, 2**60 + 7) for j in range(1, 40)]
        del junk
        buffer.clear()
        buffer.store_batch([{"obs": float(i), "terminated": i % 30 == 29} for i in range(60)])
        buffer.delete(QueryBuilder().in_("step", list(range(10, 20, 2))))
        buffer._sampling.reset()
        assert buffer.sample(200, unit=unit, seed=0).size == 200


def test_sum_trees_are_rebuilt_after_a_failed_refresh(open_db, tmp_path):
    path = tmp_path / "runs.db"
    sampler = expdb.Prioritized(alpha=1.0, epsilon=0.0)
    with expdb.open(path) as own_db, expdb.open(path) as other_db:
        buffer, other = own_db.buffer("b"), other_db.buffer("b")
        buffer.store_batch({"x": np.arange(4.0)})
        buffer.update_priorities(range(4), [1.0] * 4)
        buffer.sample(2, sampler=sampler)
        other.store(x=5.0)
        with writing(other_db) as session:
            ((id, data),) = session.query("SELECT id, data FROM chunks ORDER BY id DESC LIMIT 1")
            session.query("UPDATE chunks SET data = ? WHERE id = ?", data[:-3] + b"abc", id)
        with pytest.raises(errors.ChunkDamaged):
            buffer.sample(2, sampler=sampler)
        other.update_priorities([0], [1000.0])
        with writing(other_db) as session:
            session.query("UPDATE chunks SET data = ? WHERE id = ?", data, id)
        batch = buffer.sample(300, sampler=sampler, seed=0)
        assert {0, 4} <= set(batch["position"].tolist())
        assert batch["probability"].max() == pytest.approx(1000 / 2003)


def test_updating_terminated_changes_the_valid_n_step_start_positions(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b")
    buffer.store_batch([{"obs": float(i), "episode_id": "e"} for i in range(10)])
    unit = NStep(3, end="redraw")
    for sampler in (expdb.Prioritized(), Uniform(replace=True)):
        assert positions(buffer, sampler=sampler, unit=unit) == [0, 1, 2, 3, 4, 5, 6]
    buffer.update({"position": 4}, terminated=True)
    for sampler in (expdb.Prioritized(), Uniform(replace=True)):
        assert positions(buffer, sampler=sampler, unit=unit) == [0, 1, 2, 5, 6]
    buffer.update({"position": 4}, terminated=False)
    buffer.update({"position": 9}, terminated=True)
    for sampler in (expdb.Prioritized(), Uniform(replace=True)):
        assert positions(buffer, sampler=sampler, unit=unit) == [0, 1, 2, 3, 4, 5, 6, 7]
    agree(open_db, buffer, unit=NStep(2))


def test_long_lived_and_new_handles_draw_the_same_samples(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b")
    sampler = expdb.Prioritized()
    for k in range(37):
        buffer.store_batch(
            [{"x": float(j), "task_id": "abc"[(k * j) % 3], "terminated": True} for j in range(7)]
        )
        for candidate in (sampler, Uniform(over="task"), Uniform(replace=True)):
            buffer.sample(4, sampler=candidate)
    buffer.capacity = 100
    for candidate in (
        sampler,
        Uniform(over="task"),
        Uniform(over="episode"),
        Uniform(replace=True),
        expdb.Newest(30),
    ):
        agree(open_db, buffer, sampler=candidate)
    state = buffer.sampling_state()
    fresh = open_db(max_lag_seconds=0.0).buffer("b")
    fresh.restore_sampling(state)
    for _ in range(3):
        assert (
            fresh.sample(8, sampler=sampler)["position"].tolist()
            == buffer.sample(8, sampler=sampler)["position"].tolist()
        )


def test_new_steps_get_the_maximum_priority_of_all_handles(open_db):
    first, second = (open_db(max_lag_seconds=0.0).buffer("b") for _ in range(2))
    sampler = expdb.Prioritized(alpha=1.0, epsilon=0.0)
    first.store_batch({"x": np.arange(4)})
    for buffer in (first, second):
        buffer.sample(2, sampler=sampler)
    second.update_priorities([0], [100.0])
    second._sampling.save()
    first.sample(2, sampler=sampler)
    second.store(x=4)
    for buffer in (first, second):
        batch = buffer.sample(500, sampler=sampler, seed=0)
        assert batch["probability"][batch["position"] == 4][0] == pytest.approx(100 / 203)


@pytest.mark.parametrize("resident_bytes", [None, 0])
def test_missing_and_padded_values_are_marked_in_every_unit(open_db, resident_bytes):
    buffer = open_db(resident_bytes=resident_bytes).buffer("b")
    buffer.store(obs=1.0, episode_id="a")
    buffer.store(episode_id="a", q=1)
    buffer.store(obs=2.0, episode_id="a", terminated=True)
    order = expdb.Ordered("position")
    assert buffer.sample(3, unit=NStep(), sampler=order)["has_next_obs"].tolist() == [
        False,
        True,
        False,
    ]
    assert buffer.sample(3, unit=Sequence(3), sampler=order)["has_obs"].tolist() == [
        [True, False, True],
        [False, True, False],
        [True, False, False],
    ]
    buffer.update_priorities([0, 1, 2], [1.0, 2.0, 3.0])
    for _ in range(2):
        assert buffer.sample(3, unit=Sequence(2), sampler=order, fields=["priority"])[
            "priority"
        ].tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 0.0]]
        buffer.sample(1, sampler=expdb.Prioritized())


def test_handles_agree_on_unordered_episodes_after_eviction(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b")
    for position, step in enumerate((0, 2, 1)):
        buffer.store(
            x=float(position), obs=float(step), episode_id="e", step=step, terminated=position == 2
        )
    for unit in (Sequence(1, stride=2), NStep(1)):
        agree(open_db, buffer, unit=unit)
    buffer.capacity = 2
    for unit in (Sequence(1, stride=2), NStep(1), Sequence(3)):
        agree(open_db, buffer, unit=unit)
    buffer.capacity = 1
    agree(open_db, buffer, unit=NStep(1))
    buffer.update({"episode_id": "e"}, terminated=False, truncated=True)
    assert agree(open_db, buffer, unit=NStep(1)) is None
    agree(open_db, buffer, unit=Sequence(1, stride=2))
