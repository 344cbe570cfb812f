"""Sampling is uniform, sees one snapshot, and returns only transitions that were stored.

For the error rates of the statistical tests, see CHI_SQUARE.
"""

import contextlib
import itertools

import numpy as np
import pytest
from behind import writing

import expdb
from expdb import NStep, QueryBuilder, Uniform, errors

# The seeds are fixed, so the result of a test never changes. A correct sampler fails a test for
# one in a million seeds.
CHI_SQUARE = 1e-6


def assert_distributed(draws, chances):
    """Run a chi-square test with the Wilson-Hilferty approximation, one-sided at 1e-6."""
    counts = dict.fromkeys(chances, 0)
    for draw in draws:
        counts[draw] += 1
    expected = {item: len(draws) * chance for item, chance in chances.items()}
    statistic = sum((counts[item] - count) ** 2 / count for item, count in expected.items())
    freedom = len(counts) - 1
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    assert z < 4.75, f"chi-square {statistic:.1f} with {freedom} degrees of freedom"


def assert_uniform(draws, population):
    population = list(population)
    assert len(draws) >= 5 * len(population)
    assert_distributed(draws, dict.fromkeys(population, 1 / len(population)))


def sample_positions(buffer, where=None, rounds=40, size=250, **options):
    rng = np.random.default_rng(7)
    return [
        p
        for _ in range(rounds)
        for p in buffer.sample(size, where, seed=rng, **options)["position"].tolist()
    ]


def test_the_chi_square_test_itself_can_fail():
    rng = np.random.default_rng(0)
    assert_uniform(rng.integers(0, 50, 10_000).tolist(), range(50))
    skewed = np.concatenate([rng.integers(0, 50, 9_000), rng.integers(0, 5, 1_000)])
    with pytest.raises(AssertionError, match="chi-square"):
        assert_uniform(skewed.tolist(), range(50))


def test_steps_are_drawn_uniformly_after_eviction(db):
    buffer = db.buffer("b", capacity=100)
    for k in range(25):
        buffer.store_batch({"task_id": f"t{k}", "x": np.arange(13)})
    assert_uniform(sample_positions(buffer), range(225, 325))


@pytest.mark.slow
def test_tasks_are_drawn_uniformly_regardless_of_their_length(db):
    buffer = db.buffer("b")
    for k in range(40):
        for _ in range(1 + k % 3):
            with buffer.episode(f"t{k}", task_name=f"n{k % 2}") as episode:
                for t in range(1 + (k * 7) % 30):
                    episode.append(x=t, reward=k % 5)
    rng = np.random.default_rng(3)
    for where, tasks in (
        (None, range(40)),
        ({"task_name": "n1"}, range(1, 40, 2)),
        (QueryBuilder().gte("reward", 3), [k for k in range(40) if k % 5 >= 3]),
        (QueryBuilder().eq("task_name", "n0").and_().eq("reward", 4), [4, 14, 24, 34]),
    ):
        draws = [
            int(task[1:])
            for _ in range(90)
            for task in buffer.sample_tasks(min(4, len(list(tasks))), where, seed=rng)
        ]
        assert_uniform(draws, tasks)
        assert_uniform(
            [int(next(iter(buffer.sample_tasks(1, where, seed=rng)))[1:]) for _ in range(210)],
            tasks,
        )


def test_rare_matching_tasks_are_found_and_drawn_uniformly(db):
    buffer = db.buffer("b")
    buffer.store_batch(
        [{"task_id": f"t{k}", "episode_id": f"e{k}", "reward": float(k % 100 == 7),
          "terminated": True} for k in range(1500)]
    )  # fmt: skip
    rng = np.random.default_rng(5)
    draws = [task for _ in range(30) for task in buffer.sample_tasks(5, {"reward": 1}, seed=rng)]
    assert_uniform(draws, [f"t{k}" for k in range(7, 1500, 100)])


def test_sampling_without_replacement_draws_every_step_once(db):
    buffer = db.buffer("b")
    buffer.store_batch({"x": np.arange(50)})
    batch = buffer.sample(50, sampler=Uniform(replace=False))
    assert sorted(batch["x"].tolist()) == list(range(50))
    assert batch["x"].tolist() != list(range(50))
    assert_uniform(
        sample_positions(buffer, rounds=400, size=10, sampler=Uniform(replace=False)), range(50)
    )


@pytest.mark.parametrize(
    "unit",
    [expdb.Episode(), expdb.Group(2), expdb.Pairs(), expdb.Tokens(of=expdb.Group(2))],
    ids=str,
)
def test_whole_episodes_are_drawn_without_replacement_by_default(new_buffer, unit):
    buffer = new_buffer(fields=expdb.TOKEN_FIELDS)
    for k in range(16):
        with buffer.episode(f"t{k // 2}", group_id=f"g{k // 2}") as episode:
            episode.append(prompt_ids=[k], output_ids=[k], reward=float(k), terminated=True)
    items = 16 if isinstance(unit, expdb.Episode) else 8
    for size in (items, 3):
        batch = buffer.sample(size, unit=unit, seed=0, fields=["episode"])
        episodes = np.unique(batch["episode"])
        assert len(episodes) == size * 16 // items
    with pytest.raises(
        expdb.TooFewRows, match=r"at_least=1 to accept fewer, pass sampler=Uniform\(replace=True\)"
    ):
        buffer.sample(items + 1, unit=unit)
    assert len(np.unique(buffer.sample(99, unit=unit, at_least=2)["episode"])) == 16
    repeated = expdb.Uniform(replace=True)
    assert len(buffer.sample(99, unit=unit, sampler=repeated)["episode"]) > 16
    learner = buffer.consumer("learner")
    with learner.lease(items, unit=unit, fields=["episode"]) as batch:
        assert len(np.unique(batch["episode"])) == 16


@pytest.mark.parametrize(
    "unit", [expdb.Episode(), expdb.Sequence(2), expdb.Group(2), expdb.Pairs(), NStep(2)], ids=str
)
def test_fields_never_exclude_the_keys_that_a_unit_adds(new_buffer, unit):
    buffer = new_buffer()
    for k in range(4):
        with buffer.episode("t", group_id=f"g{k // 2}") as episode:
            episode.extend({"x": np.arange(k + 1), "y": np.arange(k + 1), "reward": k})
            episode.end(x=9, y=9)
    every = buffer.sample(1, unit=unit, seed=0)
    batch = buffer.sample(1, unit=unit, seed=0, fields=["x"])
    added = set(unit.keys()) - {"reward", "terminated", "truncated"}
    assert batch.keys() == {"x", *added}
    for key in batch:
        np.testing.assert_array_equal(batch[key], every[key])


def test_sample_accepts_a_smaller_batch_if_at_least_is_given(scratch):
    scratch.store_batch({"x": np.arange(5)})
    once = Uniform(replace=False)
    assert sorted(scratch.sample(8, sampler=once, at_least=5)["x"].tolist()) == list(range(5))
    assert scratch.sample(4, sampler=once, at_least=1).size == 4
    with pytest.raises(expdb.TooFewRows, match="6 steps were requested, but only 5"):
        scratch.sample(8, sampler=once, at_least=6)
    with pytest.raises(expdb.InvalidValue, match="at_least must be an integer of at least 1"):
        scratch.sample(8, at_least=0)
    for equal in (1.0, True):  # equal to 1, which is valid
        with pytest.raises(expdb.InvalidValue, match="at_least must be an integer"):
            scratch.sample(4, sampler=once, at_least=equal)


def test_too_few_rows_error_states_the_requested_and_available_numbers(db):
    buffer = db.buffer("b")
    for call in (
        lambda: buffer.sample(1),
        lambda: buffer.sample_tasks(1),
        lambda: buffer.sample(1, unit=NStep(1)),
    ):
        with pytest.raises(expdb.TooFewRows):
            call()
    buffer.store_batch([{"task_id": f"t{k}"} for k in range(3)])
    assert buffer.sample(10).size == 10
    with pytest.raises(expdb.TooFewRows, match="4 steps were requested, but only 3"):
        buffer.sample(4, sampler=Uniform(replace=False))
    with pytest.raises(expdb.TooFewRows, match="4 tasks were requested, but only 3"):
        buffer.sample_tasks(4)
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(1, {"task_id": "none"})
    with pytest.raises(expdb.TooFewRows, match="successor"):
        buffer.sample(1, unit=NStep(1))
    for call in (
        lambda: buffer.sample(0),
        lambda: buffer.sample_tasks(0),
        lambda: buffer.sample_tasks(1, rows="some"),
    ):
        with pytest.raises(expdb.InvalidValue):
            call()


def test_a_seed_gives_the_same_batches(db):
    buffer = db.buffer("b")
    buffer.store_batch([{"task_id": f"t{k % 20}", "x": k} for k in range(200)])
    for call in (
        lambda rng: buffer.sample(20, seed=rng)["x"].tolist(),
        lambda rng: buffer.sample(20, {"task_id": "t3"}, seed=rng)["x"].tolist(),
        lambda rng: list(buffer.sample_tasks(5, seed=rng)),
    ):
        assert call(1) == call(1)
        assert call(np.random.default_rng(1)) == call(1)
        assert call(1) != call(2)
    assert buffer.sample(20)["x"].tolist() != buffer.sample(20)["x"].tolist()


def test_a_seed_gives_the_same_batch_before_and_after_rows_are_loaded(open_db):
    buffer = open_db().buffer("b")
    buffer.store_batch([{"task_id": "t", "x": k} for k in range(2_000)])
    buffer.delete([3, 700])
    other = open_db().buffer("b")
    batches = [other.sample(64, seed=1)["x"].tolist() for _ in range(3)]
    assert batches[0] == batches[1] == batches[2]


def test_sample_tasks_returns_all_steps_of_a_task_in_order(db):
    buffer = db.buffer("b")
    order = [3, 0, 2, 0, 1]
    for agent in ("a", "b"):
        for step in order:
            buffer.store(task_id="t", agent_id=agent, step=step, x=step, reward=float(step))
    buffer.store(task_id="other", x=1, reward=0.0)
    batch = buffer.sample_tasks(1, {"reward": 3})["t"]
    assert batch["step"].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert batch["position"].tolist() == [1, 3, 6, 8, 4, 9, 2, 7, 0, 5]
    assert batch["x"].tolist() == batch["step"].tolist()
    matching = buffer.sample_tasks(1, {"reward": 3}, rows="matching", fields=["x", "task_id"])["t"]
    assert matching["x"].tolist() == [3, 3]
    assert list(matching) == ["x", "task_id"]


def transitions(buffer, rounds=30, **options):
    """Return (obs, next_obs, discount) by position for all transitions of NStep(1)."""
    by_position = {}
    for k in range(rounds):
        batch = buffer.sample(64, unit=NStep(1, gamma=0.9), seed=k, **options)
        for p, obs, after, discount, n in zip(
            *(
                batch[key].tolist()
                for key in ("position", "obs", "next_obs", "discount", "n_steps")
            ),
            strict=True,
        ):
            assert n == 1
            assert by_position.setdefault(p, (obs, after, discount)) == (obs, after, discount)
    return by_position


def test_successors_follow_step_numbers_and_not_the_storage_order(db):
    buffer = db.buffer("b")
    for step in (2, 0, 1, 4, 3):
        buffer.store(episode_id="e", step=step, obs=float(step), terminated=False)
    buffer.end_episode("e")
    by_position = transitions(buffer)
    assert sorted(by_position.values()) == [(float(t), float(t + 1), 0.9) for t in range(4)]
    buffer.delete({"step": 2})
    by_position = transitions(buffer)
    assert sorted(by_position.values()) == [(0.0, 1.0, 0.9), (3.0, 4.0, 0.9)]


def test_transitions_do_not_span_deleted_steps(db):
    buffer = db.buffer("b")
    with buffer.episode("t") as episode:
        for t in range(30):
            episode.append(obs=float(t), truncated=t == 29)
        episode.end(obs=30.0)  # the successor of the last step only
    buffer.delete(QueryBuilder().in_("step", [10, 11, 20]))
    with writing(db) as session:
        session.query("DELETE FROM steps WHERE step = 25")
    by_position = transitions(buffer)
    gone = {10, 11, 20, 25}
    assert {obs for obs, _, _ in by_position.values()} == {
        float(t) for t in range(30) if t not in gone and t + 1 not in gone
    }
    assert all(after == obs + 1 for obs, after, _ in by_position.values())


def test_successors_are_correct_after_eviction_merging_and_interleaving(db):
    buffer = db.buffer("b", capacity=37)
    for t in range(40):
        for k in range(3):
            buffer.store(
                episode_id=f"e{k}", task_id=f"t{k}", obs=float(100 * k + t), terminated=t == 39
            )
    by_position = transitions(buffer)
    for obs, after, discount in by_position.values():
        assert (after, discount) == ((0.0, 0.0) if obs % 100 == 39 else (obs + 1, 0.9))
    assert len(by_position) == 37


def test_next_fields_selects_the_derived_keys(db):
    buffer = db.buffer("b")
    with buffer.episode("t") as episode:
        for t in range(5):
            episode.append(obs=float(t), observation=[0] * (t + 1), state={"t": t}, other=t)
        episode.end(obs=5.0, other=50)
    batch = buffer.sample(64, unit=NStep(1), seed=0)
    assert {"next_obs", "next_observation", "next_state", "next_other"} == {
        key for key in batch if key.startswith("next_")
    }
    last = batch["step"] == 4
    assert last.any()
    assert (batch["next_other"][last] == 50).all()
    assert batch["next_state"][last].tolist() == [None] * int(last.sum())
    assert batch["next_state"][~last][0] == {"t": int(batch["step"][~last][0]) + 1}
    only = buffer.sample(
        8, unit=NStep(1, next_fields=("other",)), fields=["next_other", "discount"], seed=0
    )
    assert list(only) == ["next_other", "discount", "n_steps"]
    with pytest.raises(ValueError, match="next_fields must name stored fields, got nope"):
        buffer.sample(8, unit=NStep(1, next_fields=("nope",)))
    with pytest.raises(expdb.QueryError, match="no key 'next_nope'"):
        buffer.sample(8, unit=NStep(1), fields=["next_nope"])


@pytest.mark.parametrize("seed", range(2))
def test_a_query_draws_every_whole_episode_with_a_matching_step(db, seed):
    # Steps of several episodes alternate, and episodes are evicted, deleted and completed between
    # the samples.
    rng = np.random.default_rng(seed)
    buffer, names, numbers = db.buffer("mixed", capacity=60), list("abcd"), itertools.count()
    query = expdb.QueryBuilder().eq("reward", 1)
    for _ in range(40):
        for _ in range(rng.integers(1, 8)):
            name = int(rng.integers(len(names)))
            ends = rng.random() < 0.3
            step = None if name else int(rng.integers(10**6))  # out of order in some episodes
            with contextlib.suppress(errors.Evicted):  # the episode may have lost steps
                buffer.store(
                    task_id="t", episode_id=names[name], step=step, obs=0.0,
                    reward=float(rng.random() < 0.3), terminated=bool(ends),
                )  # fmt: skip
            if ends:
                names[name] = str(next(numbers))
        if rng.random() < 0.2:
            stored = np.concatenate([batch["position"] for batch in buffer.scan()])
            buffer.delete(rng.choice(stored, 1))
        steps = {}
        columns = ["episode", "reward", "status", "length"]
        for row in buffer.to_arrow(fields=columns).read_all().to_pylist():
            steps.setdefault(row["episode"], []).append(row)
        expected = {
            episode
            for episode, rows in steps.items()
            if rows[0]["status"] == "complete" and rows[0]["length"] == len(rows)
            and any(row["reward"] == 1 for row in rows)
        }  # fmt: skip
        try:
            batch = buffer.sample(100, query, unit=expdb.Episode(), at_least=1)
        except expdb.TooFewRows:
            assert not expected
        else:
            assert set(np.unique(batch["episode"]).tolist()) == expected


def test_a_query_draws_an_episode_whose_steps_were_stored_out_of_order(db):
    buffer = db.buffer("late")
    for episode, step in [("e", 0), ("f", 0), ("e", 2), ("f", 1), ("e", 1)]:
        buffer.store(task_id="t", episode_id=episode, step=step, reward=float(step == 1))
    buffer.end_episode("e")
    query = expdb.QueryBuilder().eq("reward", 1)
    assert buffer.sample(1, query, unit=expdb.Episode())["step"].tolist() == [[0, 1, 2]]


def test_the_steps_of_each_agent_are_counted_from_its_first_step(db):
    # Two agents act alternately. Steps are numbered across both, from 10.
    buffer = db.buffer("turns")
    for step in range(10, 22):
        buffer.store(
            task_id="t", episode_id="e", agent_id="ab"[step % 2], step=step, obs=float(step),
            terminated=step == 21,
        )  # fmt: skip
    windows = buffer.sample(400, unit=expdb.Sequence(3, stride=3, gaps="join"), seed=1)
    assert {tuple(row) for row in windows["obs"].tolist()} == {
        (10, 12, 14), (11, 13, 15), (16, 18, 20), (17, 19, 21),
    }  # fmt: skip
    assert windows["is_first"].tolist() == (windows["step"] <= 11).tolist()
    stacks = buffer.sample(400, unit=expdb.Stack(2, gaps="join"), seed=1)["obs"]
    assert {tuple(row) for row in stacks.tolist()} == {
        (10, 10), (11, 11), *((step, step + 2) for step in range(10, 20)),
    }  # fmt: skip
