"""Every sampler with every unit: selected steps, their frequencies, and the batches.

For the error rates of the statistical tests, see test_sampling.
"""

import itertools
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from behind import writing
from cases import combinations
from contents import steps_of
from test_sampling import assert_distributed, assert_uniform

import expdb
from expdb import (
    ByTask,
    Episode,
    Group,
    Newest,
    NStep,
    Ordered,
    Pairs,
    Prioritized,
    QueryBuilder,
    Sequence,
    Stack,
    Step,
    Uniform,
)

REPEATED = Uniform(replace=True)  # also for episodes
SAMPLERS = [
    REPEATED, Uniform(replace=False), Uniform(replace=True, over="episode"),
    Uniform(replace=True, over="task"), Prioritized(), Ordered("reward", descending=True),
    Newest(10),
]  # fmt: skip
UNITS = [
    Step(), NStep(3, gamma=0.9), Sequence(4, burn_in=1), Episode(), Stack(3),
    NStep(2, gamma=0.9, stack=3), Group(2),
]  # fmt: skip
LENGTHS = (5, 1, 7, 3, 8, 2, 6)  # of complete episodes, every second one terminated


def fill(buffer):
    """Store episodes of several lengths with obs 100 * episode + t.

    Episodes 4 to 6 have a final observation. Episode 7 stays open.
    """
    for k, length in enumerate(LENGTHS):
        with buffer.episode(f"t{k % 3}", episode_id=f"e{k}") as episode:
            for t in range(length):
                last = t == length - 1
                episode.append(
                    obs=100.0 * k + t,
                    action=t,
                    reward=float(t),
                    terminated=last and k % 2 == 0,
                    truncated=last and k % 2 == 1,
                )
            if k >= 4:
                episode.end(obs=100.0 * k + length)
    for t in range(4):
        buffer.store(task_id="t9", episode_id="open", obs=700.0 + t, action=t, reward=float(t))


@pytest.fixture
def filled(db):
    buffer = db.buffer("b")
    fill(buffer)
    return buffer


def starts():
    """Return the position, the episode and the step number of every step."""
    rows = [(k, t) for k, length in enumerate(LENGTHS) for t in range(length)] + [
        (7, t) for t in range(4)
    ]
    return [(p, k, t) for p, (k, t) in enumerate(rows)]


def drawable_positions(unit, matching):
    """Return the matching positions that a unit can draw according to its docstring."""
    lengths = dict(enumerate((*LENGTHS, 4)))
    chosen = {}
    for p, k, t in starts():
        last = t == lengths[k] - 1
        if isinstance(unit, NStep):
            ok = p in matching and (not last or (k < 7 and (k % 2 == 0 or k >= 4)))
            chosen[p] = ok
        elif isinstance(unit, Episode):
            chosen[p] = (
                t == 0 and k < 7 and any(other in matching for other, j, _ in starts() if j == k)
            )
        elif isinstance(unit, Group):
            chosen[p] = t == 0 and any(k == rollouts[0] for rollouts in groups(unit, matching))
        else:
            chosen[p] = p in matching
    return [p for p, ok in chosen.items() if ok]


def groups(unit, matching):
    """Yield the newest episodes with a matching step, grouped by task."""
    for task in range(3):
        rollouts = sorted({k for p, k, _ in starts() if p in matching and k < 7 and k % 3 == task})[
            -unit.size :
        ]
        if len(rollouts) == unit.size:
            yield rollouts


@pytest.fixture(scope="module")
def shared(module_db):
    """A filled buffer that no test changes."""
    fill(module_db.buffer("shared"))
    return module_db.buffer("shared")


@pytest.mark.parametrize(
    ("sampler", "unit", "query"), combinations(SAMPLERS, UNITS, [False, True]), ids=str
)
def test_samplers_draw_the_steps_that_a_unit_allows(shared, sampler, unit, query):
    where = QueryBuilder().gte("reward", 2) if query else None
    rows = {p: (k, t) for p, k, t in starts()}
    matching = {p for p, (_, t) in rows.items() if not query or t >= 2}
    allowed = drawable_positions(unit, matching)
    size = 6 if isinstance(unit, Episode) and query and not getattr(sampler, "replace", True) else 4
    size = min(size, len(allowed))
    seen = set()
    for seed in range(12):
        batch = shared.sample(size, where, sampler=sampler, unit=unit, seed=seed)
        assert batch.size == size
        position = batch["position"]
        anchors = (
            position
            if position.ndim == 1
            else position[:, getattr(unit, "burn_in", 0)].reshape(size, -1)[:, 0]
        )
        seen |= set(anchors.tolist())
        if not getattr(sampler, "replace", True) or isinstance(sampler, Ordered):
            assert len(set(anchors.tolist())) == size
        for j, anchor in enumerate(anchors.tolist()):
            k, t = rows[anchor]
            if isinstance(unit, NStep):
                taken = min(unit.n, (LENGTHS[k] if k < 7 else 3) - t)
                taken -= (
                    k < 7 and t + taken == LENGTHS[k] and k % 2 == 1 and k < 4
                )  # truncated, and the successor is unknown
                assert batch["n_steps"][j] == taken
                assert batch["reward"][j] == pytest.approx(
                    sum(0.9**i * (t + i) for i in range(taken))
                )
                ended = k < 7 and k % 2 == 0 and t + taken == LENGTHS[k]
                assert batch["discount"][j] == pytest.approx(0.0 if ended else 0.9**taken)
                after = 0.0 if ended and k < 4 else 100 * k + t + taken
                if unit.stack == 1:
                    assert batch["next_obs"][j] == after
                else:
                    frames = [100 * k + max(0, t + taken - i) for i in (2, 1)]
                    assert batch["next_obs"][j].tolist() == [*frames, after]
                    assert batch["obs"][j].tolist() == [100 * k + max(0, t - i) for i in (2, 1, 0)]
            elif isinstance(unit, Stack):
                assert batch["obs"][j].tolist() == [100 * k + max(0, t - i) for i in (2, 1, 0)]
                assert batch["action"][j] == t
            elif isinstance(unit, Group):
                (rollouts,) = [group for group in groups(unit, matching) if group[0] == k]
                assert batch["length"][j].tolist() == [LENGTHS[number] for number in rollouts]
                for i, number in enumerate(rollouts):
                    assert batch["obs"][j, i, batch["mask"][j, i]].tolist() == [
                        100 * number + step for step in range(LENGTHS[number])
                    ]
                    assert not batch["mask"][j, i, LENGTHS[number] :].any()
                    assert batch["episode_return"][j, i] == sum(range(LENGTHS[number]))
                assert batch["group_mean"][j] == pytest.approx(np.mean(batch["episode_return"][j]))
                assert batch["group_std"][j] == pytest.approx(np.std(batch["episode_return"][j]))
            elif isinstance(unit, Step):
                assert batch["obs"][j] == 100 * k + t
            else:
                first = t - getattr(unit, "burn_in", 0)
                length = LENGTHS[k] if k < 7 else 4
                line = [
                    first + i if 0 <= first + i < length else None
                    for i in range(batch["obs"].shape[1])
                ]
                assert batch["mask"][j].tolist() == [i is not None for i in line]
                assert batch["obs"][j].tolist() == [0.0 if i is None else 100 * k + i for i in line]
                assert batch["position"][j].tolist() == [
                    -1 if i is None else anchor - t + i for i in line
                ]
                assert batch["is_first"][j].tolist() == [i == 0 for i in line]
                assert batch["length"][j] == sum(i is not None for i in line)
                assert batch["reward"].shape == batch["mask"].shape
                assert batch["episode"].shape == (size,)
    if isinstance(sampler, Ordered):
        order = sorted(matching, key=lambda p: (-rows[p][1], p))
        if isinstance(unit, Episode):
            order = list(dict.fromkeys(p - rows[p][1] for p in order))
        elif isinstance(unit, Group):
            first = {
                p: next((group[0] for group in groups(unit, matching) if k in group), -1)
                for p, (k, _) in rows.items()
            }
            order = list(
                dict.fromkeys(
                    next((q for q, key in rows.items() if key == (first[p], 0)), -1) for p in order
                )
            )
        assert anchors.tolist() == [p for p in order if p in allowed][:size]
    elif isinstance(sampler, Newest):
        assert seen == set(allowed[-10:])
    else:
        assert seen <= set(allowed)
        assert len(seen) > 0.6 * len(allowed)
    if isinstance(sampler, Prioritized):
        assert batch["weight"].tolist() == [1.0] * size
        assert batch["probability"] == pytest.approx(1 / len(allowed))


# -- frequencies -----------------------------------------------------------------------------------


def drawn(buffer, size=250, rounds=40, **options):
    options = {"sampler": REPEATED, **options}
    rng = np.random.default_rng(11)
    positions = [buffer.sample(size, seed=rng, **options)["position"] for _ in range(rounds)]
    return np.concatenate([array if array.ndim == 1 else array[:, 0] for array in positions])


@pytest.mark.parametrize("unit", [Step(), NStep(2), Episode()], ids=str)
def test_anchors_are_drawn_uniformly_despite_queries_gaps_and_eviction(db, unit):
    buffer = db.buffer("b", capacity=45)
    for _ in range(3):
        for k, length in enumerate(LENGTHS):
            t = np.arange(length)
            with buffer.episode(f"t{k % 3}") as episode:
                episode.extend({"obs": t, "reward": t, "terminated": t == length - 1})
    buffer.delete(QueryBuilder().in_("position", [60, 71]))
    with writing(db) as session:
        session.query("DELETE FROM steps WHERE position = 80")
    for where in (None, QueryBuilder().gte("reward", 1)):
        everyone = buffer.sample(1, where, unit=unit, sampler=Newest(1000))
        assert everyone.size == 1
        positions = drawn(buffer, unit=unit, where=where)
        rows = {row["position"]: row for row in steps_of(buffer)}
        allowed = (
            set(rows) if where is None else {p for p, row in rows.items() if row["reward"] >= 1}
        )
        if isinstance(unit, NStep):
            allowed = {
                p
                for p in allowed
                if rows[p]["terminated"] or rows.get(p + 1, {}).get("episode") == rows[p]["episode"]
            }
        if isinstance(unit, Episode):
            wide = {row["episode"]: row["length"] for row in buffer.episodes().to_pylist()}
            members = {e: [p for p in rows if rows[p]["episode"] == e] for e in wide}
            allowed = {
                members[e][0]
                for e in wide
                if len(members[e]) == wide[e]
                and (where is None or any(p in allowed for p in members[e]))
            }
        assert_uniform(positions.tolist(), sorted(allowed))
        for over, of in (("episode", "episode"), ("task", "task_id")):
            owner = {p: rows[p][of] for p in allowed}
            positions = drawn(
                buffer, unit=unit, where=where, sampler=Uniform(replace=True, over=over), rounds=20
            )
            assert_uniform([owner[p] for p in positions.tolist()], sorted(set(owner.values())))


def test_over_episode_draws_the_steps_of_an_episode_uniformly(filled):
    owner = {p: k for p, k, _ in starts()}
    positions = drawn(filled, sampler=Uniform(over="episode", replace=True)).tolist()
    inside = [p for p in positions if owner[p] == 4]
    assert_uniform(inside, [p for p in owner if owner[p] == 4])


def test_over_task_without_replacement_draws_each_task_once(filled):
    sampler = Uniform(over="task", replace=False)
    with pytest.raises(expdb.TooFewRows, match="5 tasks with steps were requested, but only 4"):
        filled.sample(5, sampler=sampler)
    tasks = filled.sample(4, sampler=sampler, fields=["task_id"])["task_id"]
    assert sorted(tasks) == ["t0", "t1", "t2", "t9"]


@pytest.mark.parametrize("query", [None, QueryBuilder().gte("position", 10)], ids=["all", "query"])
@pytest.mark.parametrize("unit", [Step(), NStep(1)], ids=str)
def test_prioritized_draws_in_proportion_and_weights_correct_the_bias(filled, unit, query):
    alpha, beta, epsilon = 0.7, 0.5, 0.01
    everyone = np.arange(36)
    priorities = np.random.default_rng(0).random(36) * 3
    assert filled.update_priorities(everyone, priorities) == 36
    allowed = np.array(drawable_positions(unit, set(range(10 if query else 0, 36))))
    mass = (priorities[allowed] + epsilon) ** alpha
    wanted = dict(zip(allowed.tolist(), mass / mass.sum(), strict=True))
    for normalise in ("batch", "buffer"):
        sampler = Prioritized(alpha, beta, epsilon=epsilon, normalise=normalise)
        batch = filled.sample(500, query, sampler=sampler, unit=unit, seed=1)
        chance = np.array([wanted[p] for p in batch["position"].tolist()])
        assert batch["probability"] == pytest.approx(chance)
        weight = (len(allowed) * chance) ** -beta
        greatest = (
            weight.max()
            if normalise == "batch"
            else ((len(allowed) * min(wanted.values())) ** -beta)
        )
        assert batch["weight"] == pytest.approx(weight / greatest)
    # Samples are stratified, so their counts vary less than those of independent draws. Samples of
    # one step are independent.
    how = {"where": query, "sampler": sampler, "unit": unit, "seed": np.random.default_rng(2)}
    draws = [filled.sample(1, **how, fields=["position"])["position"] for _ in range(6000)]
    assert_distributed(np.concatenate(draws).tolist(), wanted)
    strata = filled.sample(1000, **how)["position"]
    for p, chance in wanted.items():
        assert abs((strata == p).sum() - 1000 * chance) <= 2.0


def test_changing_an_array_after_update_priorities_changes_no_priority(filled):
    sampler, positions, values = Prioritized(), np.array([1]), np.array([1000.0])
    filled.sample(4, sampler=sampler)
    filled.store(task_id="t9", episode_id="open", obs=704.0, action=4, reward=4.0)
    filled.update_priorities(positions, values)  # the weights of the sampler are not up to date
    positions[:], values[:] = 2, 0.0
    drawn = filled.sample(200, sampler=sampler, seed=0)["position"].tolist()
    assert drawn.count(1) > 50


def test_anneal_steps_increases_beta_with_every_call(filled):
    filled.update_priorities(np.arange(36), np.arange(1.0, 37.0))
    sampler = Prioritized(alpha=1.0, beta=0.2, anneal_steps=4, epsilon=0.0)
    for beta in (0.2, 0.4, 0.6, 0.8, 1.0, 1.0):
        batch = filled.sample(64, sampler=sampler, seed=0)
        weight = batch["probability"] ** -beta
        assert batch["weight"] == pytest.approx(weight / weight.max())


def test_new_steps_get_the_highest_priority_so_far(db):
    buffer = db.buffer("b")
    buffer.store_batch({"x": np.arange(4)})

    def assert_masses(masses, **settings):
        sampler = Prioritized(alpha=1.0, epsilon=0.0, **settings)
        batch = buffer.sample(200, sampler=sampler, seed=0)
        assert set(batch["position"].tolist()) == set(range(len(masses)))
        shares = np.array(masses) / sum(masses)
        assert batch["probability"] == pytest.approx(shares[batch["position"]])

    assert_masses([1, 1, 1, 1])
    assert buffer.update_priorities([0, 1], [5.0, 1.0]) == 2
    buffer.store(x=4)
    assert_masses([5, 1, 1, 1, 5])
    assert_masses([5, 1, 0.5, 0.5, 0.5], initial=0.5)


# -- priorities ------------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_priorities_are_persistent_and_shared_between_handles(open_db):
    db = open_db(max_lag_seconds=0.0)
    buffer = db.buffer("b", capacity=3000)
    buffer.store_batch({"x": np.arange(3000)})
    sampler = Prioritized(alpha=1.0, epsilon=0.0)
    buffer.sample(8, sampler=sampler)
    priorities = np.random.default_rng(3).random(3000)
    assert buffer.update_priorities(np.arange(3000), priorities) == 3000
    assert buffer.update_priorities([7, 7, 8], [1.0, 9.0, 2.0]) == 3  # the last value wins
    priorities[7], priorities[8] = 9.0, 2.0
    stored = db.sql("SELECT priority FROM experience ORDER BY position")["priority"].to_numpy()
    assert (stored == priorities).all()
    other = open_db(max_lag_seconds=0.0).buffer("b")
    batch = other.sample(64, sampler=sampler, seed=0)
    assert batch["probability"] == pytest.approx(priorities[batch["position"]] / priorities.sum())
    assert (
        other.sample(5, sampler=Ordered("priority", descending=True))["position"].tolist()
        == np.argsort(-priorities, kind="stable")[:5].tolist()
    )
    assert other.update_priorities([2999], [1e6]) == 1
    other._sampling.save()
    assert (buffer.sample(64, sampler=sampler, seed=0)["position"] == 2999).sum() >= 63
    assert buffer.count(QueryBuilder().gt("priority", 1e5)) == 1
    buffer.update_priorities([5], [2e6])
    assert sorted(
        buffer.sample(2, QueryBuilder().gt("priority", 1e5), sampler=Uniform(replace=False))[
            "position"
        ].tolist()
    ) == [5, 2999]
    few = QueryBuilder().gt("priority", 1e5)
    assert set(buffer.sample(50, few, sampler=sampler, seed=0)["position"].tolist()) == {5, 2999}
    buffer.update_priorities([5], [1.0])
    assert set(buffer.sample(50, few, sampler=sampler, seed=0)["position"].tolist()) == {2999}
    buffer.store_batch({"x": np.arange(2500)})
    assert buffer.update_priorities([5, 2999, 5499, 9999, -1], [1.0] * 5) == 2
    newest = "SELECT priority FROM experience WHERE position >= 5498 ORDER BY position"
    assert db.sql(newest)["priority"].to_pylist() == [None, 1.0]
    (blocks,) = db.sql("SELECT count(*) AS n FROM priorities")["n"].to_pylist()
    assert blocks <= 4


@pytest.mark.parametrize("unit", [Step(), NStep(1), Sequence(3)])
def test_batches_return_the_priorities_that_were_set(db, unit):
    buffer = db.buffer("b")
    buffer.store_batch([{"task_id": "t", "n": n, "terminated": n == 9} for n in range(10)])
    priorities = {2: 0.0, 3: 5.0, 8: 0.5}
    buffer.update_priorities([2, 3], [0.0, 5.0])
    buffer.sample(4, sampler=Prioritized())  # gives the other steps their initial priority
    buffer.update_priorities([8], [0.5])
    for _ in range(2):
        batch = buffer.sample(
            64, unit=unit, fields=["position", "priority", "mask"][: 2 + (type(unit) is Sequence)]
        )
        there = batch["mask"] if "mask" in batch else np.ones(64, np.bool_)
        for position, priority in zip(
            batch["position"][there].tolist(), batch["priority"][there].tolist(), strict=True
        ):
            assert priority == priorities.get(position) or (
                position not in priorities and np.isnan(priority)
            )
    assert {row["n"] for row in buffer.sample(64, sampler=Prioritized(epsilon=0)).to_list()} == {
        n for n in range(10) if n != 2
    }


@pytest.mark.parametrize("n", [2**62, (3, 2**62), 200])
def test_nstep_accepts_n_larger_than_every_episode(db, n):
    buffer = db.buffer("b")
    for _ in range(3):
        with buffer.episode("t") as episode:
            for t in range(150):
                episode.append(n=t, reward=1.0, terminated=t == 149)
    batch = buffer.sample(64, unit=NStep(n))
    if n == 2**62:
        assert (batch["n_steps"] == 150 - batch["n"]).all()
    assert (batch["reward"] == batch["n_steps"]).all()
    assert (batch["n_steps"] <= 150 - batch["n"]).all()


def test_restore_sampling_removes_priorities_missing_in_the_state(db):
    buffer = db.buffer("b")
    buffer.store_batch({"n": np.arange(10)})
    buffer.sample(4, sampler=Prioritized())
    state = buffer.sampling_state()
    buffer.update_priorities([2, 3], [5.0, 7.0])
    buffer.restore_sampling(state)
    buffer.sample(4, sampler=Prioritized())
    assert np.isnan(buffer.get(range(10), fields=["priority"])["priority"]).all()


class Inverse(Prioritized):
    """Draw steps with the lowest priorities most often."""

    def mass_of(self, priorities):
        return 1.0 / priorities


def test_subclasses_of_prioritized_use_their_own_mass_of(db):
    buffer = db.buffer("b")
    buffer.store_batch({"n": np.arange(2)})
    buffer.update_priorities([0, 1], [1.0, 9.0])
    for _ in range(2):
        for sampler, often in ((Prioritized(alpha=1.0), 1), (Inverse(alpha=1.0), 0)):
            drawn = buffer.sample(100, sampler=sampler, seed=0)["n"]
            assert (drawn == often).sum() in (89, 90, 91)


# -- units -----------------------------------------------------------------------------------------


def test_a_range_of_steps_includes_both_bounds(filled):
    long = QueryBuilder().eq("episode_id", "e4").and_().lt("reward", 3)
    batch = filled.sample(600, long, unit=NStep((2, 4)), seed=0)
    assert_uniform(batch["n_steps"].tolist(), (2, 3, 4))
    only = filled.sample(200, unit=NStep((2, 4), end="redraw"), seed=0)
    assert only["n_steps"].min() == 2
    for p, n in zip(only["position"].tolist(), only["n_steps"].tolist(), strict=True):
        _, k, t = starts()[p]
        length = (LENGTHS[k] - (k % 2 == 1 and k < 4)) if k < 7 else 3
        assert t + n <= length


def test_end_shortens_redraws_or_drops_short_transitions(filled):
    shortened = filled.sample(400, unit=NStep(3), seed=0)
    assert set(shortened["n_steps"].tolist()) == {1, 2, 3}
    redrawn = filled.sample(400, unit=NStep(3, end="redraw"), seed=0)
    assert redrawn.size == 400
    assert set(redrawn["n_steps"].tolist()) == {3}
    dropped = filled.sample(400, unit=NStep(3, end="drop"), seed=0)
    assert set(dropped["n_steps"].tolist()) == {3}
    assert dropped.size == (shortened["n_steps"] == 3).sum()
    assert set(dropped["position"].tolist()) == set(redrawn["position"].tolist())
    with pytest.raises(expdb.TooFewRows):
        filled.sample(1, unit=NStep(9, end="redraw"))


def test_sequences_start_at_strides_and_are_whole_without_padding(filled):
    batch = filled.sample(400, unit=Sequence(3, stride=3), seed=0)
    assert set(batch["step"][:, 0].tolist()) == {0, 3, 6}
    whole = filled.sample(400, unit=Sequence(3, burn_in=2, pad=False), seed=0)
    assert whole["mask"].all()
    wanted = {(k, t) for _, k, t in starts() if t >= 2 and t + 2 < (LENGTHS[k] if k < 7 else 4)}
    assert {(int(o) // 100, int(o) % 100) for o in whole["obs"][:, 2].tolist()} == wanted
    with pytest.raises(expdb.TooFewRows, match="no sequences"):
        filled.sample(1, unit=Sequence(9, pad=False))


def test_episodes_can_be_cut_to_a_length_or_ragged(filled):
    cut = filled.sample(50, unit=Episode(max_length=3), sampler=REPEATED, seed=0)
    assert cut["obs"].shape == (50, 3)
    assert cut["length"].max() == 3
    ragged = filled.sample(50, unit=Episode(pad=False), sampler=REPEATED, seed=0)
    assert "mask" not in ragged
    assert ragged["obs"].dtype == object
    for obs, length in zip(ragged["obs"], ragged["length"], strict=True):
        assert obs.shape == (length,)
        assert (np.diff(obs) == 1).all()


def test_sequences_contain_each_episode_column_once(filled):
    batch = filled.sample(
        5, unit=Sequence(3), fields=["task_id", "tags", "step", "mask", "pre_agent"], seed=0
    )
    assert batch["task_id"].shape == (5,)
    assert batch["tags"].shape == batch["step"].shape == (5, 3)
    with pytest.raises(expdb.QueryError, match="no key 'nope' in this batch"):
        filled.sample(5, unit=Sequence(3), fields=["nope"])


def test_arrays_of_a_batch_share_no_memory_with_each_other_or_the_buffer(filled):
    for unit in UNITS:
        batch = filled.sample(3, unit=unit)
        for one, other in itertools.combinations(batch.values(), 2):
            assert not np.shares_memory(one, other)
        columns = filled._sampling.resident.columns.values()
        for one, column in itertools.product(batch.values(), columns):
            assert not np.shares_memory(one, column)


# -- waiting, seeds, states and arguments ----------------------------------------------------------


def test_a_seed_gives_the_same_sample_with_and_without_a_wait(db):
    buffer = db.buffer("b")
    with buffer.episode("t") as episode:
        episode.append(x=0)
        episode.flush()

        def write():
            for x in range(1, 6):
                episode.append(x=x)
            episode.flush()

        writer = threading.Timer(0.2, write)
        writer.start()
        waited = buffer.sample(8, unit=NStep(1), seed=7, wait=20)
        writer.join()
        assert buffer.sample(8, unit=NStep(1), seed=7)["x"].tolist() == waited["x"].tolist()


REQUIRED = {Sequence: {"length": 3}, Ordered: {"column": "step"}, Group: {"size": 2}}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (NStep, "n", 0), (NStep, "n", (3, 2)), (NStep, "n", (1, 2, 3)), (NStep, "n", 2**63),
        (NStep, "gamma", 1.5), (NStep, "end", "x"), (NStep, "stack", True), (Stack, "k", 0),
        (Sequence, "length", 0), (Sequence, "burn_in", -1), (Sequence, "stride", 0),
        (Sequence, "pad", 1), (Episode, "max_length", 0), (Episode, "pad", "no"),
        (Uniform, "over", "group"), (Uniform, "replace", "no"), (Newest, "k", 0),
        (Ordered, "column", 3), (Ordered, "descending", 1), (Prioritized, "alpha", -1),
        (Prioritized, "beta", 2), (Prioritized, "anneal_steps", 0), (Prioritized, "initial", "min"),
        (Prioritized, "epsilon", float("nan")), (Prioritized, "normalise", "x"),
        (Group, "size", 0), (Group, "size", True), (Group, "complete", 1),
        (Group, "min_spread", -1), (Group, "max_length", 0), (Pairs, "margin", -1),
        (Pairs, "per", "episode"), (Pairs, "score", {}), (Pairs, "max_length", 0),
        (ByTask, "weight", "hard"), (ByTask, "success", "high"), (ByTask, "least", -1),
        (ByTask, "score", "no such name!"),
    ],
)  # fmt: skip
def test_invalid_settings_of_samplers_and_units_are_rejected(kind, name, value):
    with pytest.raises(expdb.InvalidValue, match=f"{name} must be"):
        kind(**REQUIRED.get(kind, {}) | {name: value})


def test_priorities_whose_sum_overflows_can_be_sampled(db):
    buffer = db.buffer("b")
    buffer.store_batch({"x": np.arange(4)})
    buffer.update_priorities([0, 1, 2], [1.7e308, 1.7e308, 1e308])
    for alpha in (1.0, 2.0):
        batch = buffer.sample(300, sampler=Prioritized(alpha=alpha), seed=0)
        assert set(batch["position"].tolist()) >= {0, 1, 2}
        assert np.isfinite(batch["weight"]).all()
        assert batch["probability"].min() > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.sample(1, fields=5), lambda b: b.sample(1, fields=[[1]]),
        lambda b: b.update_priorities([0], ["a"]),
        lambda b: b.update_priorities([0], [object()]),
        lambda b: b.update_priorities([0, 1], [[1], [1, 2]]),
        lambda b: b.update_priorities([[0], [1, 2]], [1, 2]),
        lambda b: b.sample(1, unit=NStep(1, next_fields=5)),
        lambda b: b.sample(1, unit=NStep(1, next_fields=(5,))),
        lambda b: b.sample(1, sampler=Uniform), lambda b: b.sample(1, wait="x"),
        lambda b: b.sample(True), lambda b: b.sample(1, seed="seed"),
        lambda b: b.sample(1, sampler="uniform"), lambda b: b.sample(1, fields=["nothing"]),
        lambda b: b.sample(1, fields=[np.array(["obs", "action"])]),
        lambda b: b.sample(1, shard=(2, 2)), lambda b: b.sample(1, empty=3),
    ],
)  # fmt: skip
def test_invalid_arguments_raise_one_line_errors(filled, call):
    for _ in range(2):
        with pytest.raises(expdb.ExpDBError) as caught:
            call(filled)
        assert "\n" not in str(caught.value)
        for options in ({}, {"fields": ["obs"]}, {"sampler": Prioritized()}):
            filled.sample(1, **options)


def test_numpy_integers_are_accepted_as_settings(filled):
    unit = Sequence(np.int64(2), stride=np.int64(2))
    filled.sample(2, sampler=Prioritized(), unit=unit)
    filled.sample(2, sampler=Prioritized(), unit=NStep(np.int64(3), end="redraw"))
    assert json.dumps(filled.sampling_state())
    assert unit == Sequence(2, stride=2)


def test_restoring_an_invalid_state_raises_and_changes_nothing(filled):
    sampler = Prioritized()
    filled.sample(4, sampler=sampler)
    state = filled.sampling_state()
    steps = state["priorities"]
    for wrong in (
        {"priorities": {}}, {"priorities": {**steps, "starts": "?"}},
        {"priorities": {**steps, "starts": ""}},
        {"priorities": {**steps, "slots": "many"}}, {"calls": 3}, {"greatest": float("nan")},
        {"priorities": {"first": 0, "values": "?"}}, {"format": 2},
    ):  # fmt: skip
        with pytest.raises(expdb.InvalidValue, match="sampling_state"):
            filled.restore_sampling({**state, **wrong})
    with pytest.raises(expdb.InvalidValue, match="sampling_state"):
        filled.restore_sampling({})
    assert filled.sampling_state() == state


def test_priorities_are_written_when_a_program_ends_without_closing(tmp_path):
    code = (
        "import expdb; b = expdb.open('runs.db').buffer('b'); b.store_batch({'x': [1, 2]}); "
        "b.sample(2, sampler=expdb.Prioritized()); print(b.update_priorities([0, 1], [3.0, 4.0]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("2\n", "")
    with expdb.open(tmp_path / "runs.db") as db:
        assert db.buffer("b").get([0, 1], fields=["priority"])["priority"].tolist() == [3.0, 4.0]


def test_stored_next_obs_comes_from_the_last_step_of_each_transition(open_db):
    t = np.arange(8, dtype=np.float32)
    for resident_bytes in (None, 0):
        buffer = open_db(resident_bytes=resident_bytes).buffer(f"b{resident_bytes}")
        with buffer.episode("e") as episode:
            columns = {"obs": t[:, None], "next_obs": t[:, None] + 1, "terminated": t == 7}
            episode.extend({**columns, "reward": np.ones(8)})
        for n, steps in ((1, 1), (3, 3), ((3, 3), 3)):
            batch = buffer.sample(8, sampler=Ordered("position"), unit=NStep(n, gamma=0.9))
            assert batch["next_obs"][:, 0].tolist() == np.minimum(t + steps, 8).tolist()


def test_sample_waits_for_an_empty_buffer_with_every_option(open_db):
    buffer, other = open_db(max_lag_seconds=0.0).buffer("b"), open_db().buffer("b")
    asked = (
        {"where": {"task_id": "late"}}, {"fields": ["obs"]},
        {"unit": NStep(2, next_fields=("obs",))}, {"unit": NStep(2), "fields": ["obs", "next_obs"]},
        {"sampler": Prioritized()},
    )  # fmt: skip
    for options in asked:
        with pytest.raises(expdb.TooFewRows, match="wait=seconds"):
            buffer.sample(1, wait=0.01, **options)
    rows = [{"obs": float(t), "task_id": "late", "episode_id": "e"} for t in range(4)]
    writer = threading.Timer(0.1, other.store_batch, [rows])
    writer.start()
    for options in asked:
        assert buffer.sample(2, wait=30, **options).size == 2
    writer.join()
