"""Tests of step numbers: they determine the episode of a step and the next step number."""

import asyncio
import dataclasses
import itertools
import random
import warnings

import numpy as np
import pytest
from behind import writing
from contents import steps_of

import expdb
from expdb import errors

WRITERS = ["store", "store_batch", "append", "extend"]


def write(buffer, how, rows):
    """Store rows in one of four ways."""
    columns = {name: np.array([row[name] for row in rows]) for name in ("step", "obs")}
    columns |= {"task_id": "t", "reward": np.ones(len(rows))}
    with buffer.writer() as writer:
        match how:
            case "store":
                for row in rows:
                    buffer.store(task_id="t", reward=1.0, **row)
            case "store_batch":
                buffer.store_batch(columns)
            case "append":
                for row in rows:
                    writer.append(task_id="t", reward=1.0, **row)
            case "extend":
                writer.extend(columns)


def transitions(buffer):
    """Return all drawn pairs of an observation and the next one."""
    batch = buffer.sample(200, unit=expdb.NStep(1), seed=0)
    return set(zip(batch["obs"].tolist(), batch["next_obs"].tolist(), strict=True))


@pytest.mark.parametrize("how", WRITERS)
def test_a_step_number_that_does_not_increase_begins_another_episode(new_buffer, how):
    buffer = new_buffer(fields={"obs": expdb.Field("float64")})
    write(buffer, how, [{"step": t, "obs": 100.0 * a + t} for a in (0, 1) for t in range(4)])
    assert buffer.episodes()["length"].to_pylist() == [4, 4]
    inside = {(100.0 * a + t, 100.0 * a + t + 1) for a in (0, 1) for t in range(3)}
    assert transitions(buffer) == inside
    last = "complete" if how in ("append", "extend") else "open"
    assert buffer.episodes()["status"].to_pylist() == ["complete", last]


@pytest.mark.parametrize("how", ["store", "extend"])
def test_random_step_numbers_form_episodes_with_increasing_numbers(buffer, how):
    rng = random.Random(how)
    numbers = [rng.randrange(5) for _ in range(60)]
    with pytest.warns(errors.ExpDBWarning, match="pass an episode_id for each"):
        for start in range(0, 60, 7):
            rows = [{"step": n, "obs": float(n)} for n in numbers[start : start + 7]]
            write(buffer, how, rows)
    expected = [numbers[:1]]  # step numbers by episode
    for index, (before, number) in enumerate(itertools.pairwise(numbers), 1):
        is_new_writer = how in ("append", "extend") and index % 7 == 0  # it has its own episodes
        if number <= before or is_new_writer:
            expected.append([])
        expected[-1].append(number)
    stored = {}
    for row in steps_of(buffer):
        stored.setdefault(row["episode"], []).append((row["position"], row["step"]))
    assert [[step for _, step in sorted(rows)] for _, rows in sorted(stored.items())] == expected


@pytest.mark.parametrize("how", ["store", "append", "episode"])
def test_the_default_step_number_is_the_greatest_number_plus_one(scratch, how):
    with scratch.episode("t", episode_id="e") as episode, scratch.writer() as writer:
        for number in (None, 7, None, 9, None):
            if how == "episode":
                episode.append(step=number, x=1)
            else:
                store = scratch.store if how == "store" else writer.append
                store(task_id="other", step=number, x=1)
    steps = [row["step"] for row in steps_of(scratch)]
    assert sorted(steps) == [0, 7, 8, 9, 10]


@pytest.mark.both_databases
@pytest.mark.parametrize("how", ["store", "append"])
def test_a_refused_step_does_not_complete_the_open_episode(buffer, how):
    with buffer.writer() as writer:
        store = buffer.store if how == "store" else writer.append
        for step in range(3):
            store(task_id="t", step=step, x=1)
        with pytest.raises(errors.FieldMismatch):
            store(task_id="t", step=0, x="text")
        store(task_id="t", step=3, x=1)
    assert buffer.episodes()["length"].to_pylist() == [4]


class Model:
    """Episodes with the steps that the rule for step numbers stores."""

    def __init__(self):
        self.steps = {}  # value by (episode, agent, number)
        self.positions = {}

    def write(self, rows, positions, in_part=False):
        """Store rows with the positions that a call returned; return whether it is accepted.

        With `in_part`, store the other rows if some are refused.
        """
        steps, keys, is_accepted = dict(self.steps), [], True
        for row in rows:
            episode, agent, number = row["episode_id"], row["agent_id"], row["step"]
            if number is None:
                taken = [n for e, a, n in steps if (e, a) == (episode, agent)]
                number = max(taken, default=-1) + 1
            key = episode, agent, number
            is_accepted &= steps.setdefault(key, row["obs"]) == row["obs"]
            keys.append(key)
        if is_accepted or in_part:
            self.steps = steps
        if positions is not None:
            for key, position in zip(keys, positions, strict=True):
                assert self.positions.setdefault(key, position) == position
        return is_accepted

    def transitions(self):
        """Return all pairs of values of neighbouring steps."""
        following = {key: (*key[:2], key[2] + 1) for key in self.steps}
        steps = self.steps
        return {(steps[key], steps[after]) for key, after in following.items() if after in steps}


def write_named(buffer, how, rows):
    """Store rows of named episodes in one of five ways; return the positions."""
    names = ("episode_id", "agent_id", "step", "obs")
    columns = {name: [row[name] for row in rows] for name in names}
    columns["obs"] = np.array(columns["obs"], np.float64)
    match how:
        case "store":
            return [buffer.store(**row) for row in rows]
        case "store_batch":
            return buffer.store_batch(columns).tolist()
        case "extend" | "append":
            with buffer.writer() as writer:
                if how == "extend":
                    writer.extend(columns)
                else:
                    for row in rows:
                        writer.append(**row)
                return writer.flush().tolist()
    writer = buffer.episode("default", episode_id=rows[0]["episode_id"], resume=True)
    for row in rows:
        writer.append(**{name: row[name] for name in names[1:]})
    try:
        return writer.flush().tolist()
    finally:
        writer.abort()


def run_random_writes(new_handle, seed):
    """Write a random sequence through two handles; compare it with the model."""
    rng, model = random.Random(seed), Model()
    handles = [new_handle(), new_handle()]
    for _ in range(rng.randrange(4, 12)):
        if rng.random() < 0.15:  # a restart
            handles.pop(0).close()
            handles.append(new_handle())
        how = rng.choice(["store", "store_batch", "append", "extend", "episode"])
        # Resuming an episode excludes its earlier writers, so `episode` has an episode of its own.
        episode = "z" if how == "episode" else rng.choice("xy")
        count = 1 if how == "store" else rng.randrange(1, 5)
        rows = []
        for _ in range(count):
            agent, number = rng.choice(["a", "a", "b"]), rng.choice([None, *range(6)])
            value = 100.0 * "xyz".index(episode) + 10.0 * "ab".index(agent) + (number or 0)
            if number is None:
                value = rng.random()
            elif rng.random() < 0.1:
                value += 0.5  # not equal to a stored step
            rows.append({"episode_id": episode, "agent_id": agent, "step": number, "obs": value})
        buffer = handles[rng.randrange(2)].buffer("numbers")
        try:
            positions = write_named(buffer, how, rows)
        except expdb.InvalidValue:
            is_writer = how in ("append", "extend", "episode")  # it keeps and writes other steps
            assert not model.write(rows, None, in_part=is_writer)
        else:
            assert model.write(rows, positions)
    for handle in handles:
        buffer = handle.buffer("numbers")
        names = ["episode_id", "agent_id", "step", "obs"]
        table = buffer.to_arrow(fields=names).read_all().to_pylist()
        stored = {(row["episode_id"], row["agent_id"], row["step"]): row["obs"] for row in table}
        assert stored == model.steps
        assert len(table) == len(stored)
        if model.transitions():
            batches = buffer.epochs(64, unit=expdb.NStep(1))
            drawn = [zip(b["obs"].tolist(), b["next_obs"].tolist(), strict=True) for b in batches]
            assert sorted(itertools.chain(*drawn)) == sorted(model.transitions())
        assert handle.check() == []
        handle.close()


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "seeds",
    [
        range(10),
        *[pytest.param(range(k, k + 90), marks=pytest.mark.slow) for k in range(10, 1000, 90)],
    ],
)
@pytest.mark.filterwarnings("ignore:an agent of episode .* and then step")
def test_random_numbers_of_named_episodes_follow_the_rule(location, seeds):
    for seed in seeds:
        with expdb.open(location) as db:
            if "numbers" in db.buffers():
                db.drop("numbers")
            db.buffer("numbers", fields={"obs": expdb.Field("float64")})
        run_random_writes(lambda: expdb.open(location), seed)


def test_a_repeated_step_is_stored_once(new_buffer):
    fields = {"obs": expdb.Field("float32", (2,)), "note": expdb.Field("text")}
    buffer = new_buffer(fields=fields)
    step = {
        "episode_id": "e", "step": 3, "obs": np.array([np.nan, 1], np.float32), "reward": 1.0,
        "tags": {"k": [1]}, "policy_version": 2, "messages": [{"role": "user", "content": "x"}],
        "terminated": True,
    }  # fmt: skip
    position = buffer.store(**step)
    assert buffer.store(**step) == position  # also after the end of the episode
    buffer.update([position], reward=5.0, tags={"k": 2})
    assert buffer.store(**step) == position  # updated values are not compared
    assert buffer.store_batch([step, step]).tolist() == [position, position]
    assert len(buffer) == 1
    assert buffer.get([position])["reward"].tolist() == [5.0]


@pytest.mark.parametrize(
    "change",
    [
        {"obs": np.zeros(2, np.float32)}, {"reward": 2.0}, {"terminated": True}, {"note": "new"},
        {"pre_agent": "b"}, {"tags": {"k": 2}}, {"policy_version": 3}, {"new": 1},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_step_that_differs_from_the_stored_one_is_refused(new_buffer, change):
    buffer = new_buffer(fields={"note": expdb.Field("text")})
    step = {"episode_id": "e", "step": 3, "obs": np.ones(2, np.float32), "reward": 1.0}
    step |= {"tags": {"k": 1}, "policy_version": 2}
    buffer.store(**step)
    (name,) = change
    with pytest.raises(expdb.InvalidValue, match=f"step 3 of episode 'e' .* value of '{name}'"):
        buffer.store(**(step | change))
    with pytest.raises(expdb.InvalidValue, match="step 3 of episode 'e'"):
        buffer.store_batch([step | {"step": 4}, step | change])
    assert len(buffer) == 1


@pytest.mark.parametrize("detail", [{"group_id": "g"}, {"task_name": "n"}])
def test_a_repeated_step_with_new_details_of_its_episode_is_refused(scratch, detail):
    step = {"episode_id": "e", "step": 0, "x": 1}
    scratch.store(**step)
    (name,) = detail
    with pytest.raises(expdb.InvalidValue, match=f"{name} of the episode is None, so {name}="):
        scratch.store(**step, **detail)
    scratch.store(**(step | {"step": 1}), **detail)
    assert scratch.store(**step, **detail) == 0  # equal to the stored details
    scratch.update({"episode_id": "e"}, episode_tags={"other": 2})
    assert scratch.store(**step, episode_tags={"k": 1}) == 0  # updated tags are not compared


def test_any_missing_number_of_a_partly_evicted_shuffled_episode_raises_evicted(new_buffer):
    buffer = new_buffer(capacity=2)
    for step in (5, 0, 1):
        buffer.store(episode_id="e", step=step, x=step)
    for step in (3, 5):
        with pytest.raises(errors.Evicted, match=f"step {step} of episode 'e' may have been"):
            buffer.store(episode_id="e", step=step, x=step)
    assert buffer.store(episode_id="e", x=6) == 3
    assert buffer.get([3])["step"].tolist() == [6]


@pytest.mark.both_databases
def test_an_evicted_step_fails_only_its_own_call_of_a_group(open_db):
    buffer = open_db().buffer("b", capacity=4)
    for step in range(8):
        buffer.store(episode_id="e", step=step, x=step)

    async def store_all():
        evicted = buffer.store_async(episode_id="e", step=0, x=0)
        others = [buffer.store_async(episode_id=f"g{k}", step=0, x=0) for k in range(5)]
        return await asyncio.gather(evicted, *others, return_exceptions=True)

    error, *positions = asyncio.run(store_all())
    assert isinstance(error, errors.Evicted)
    assert sorted(positions) == [8, 9, 10, 11, 12]


def test_a_block_with_a_refused_step_stores_the_others_and_completes_its_episode(new_buffer):
    buffer = new_buffer()
    buffer.store(episode_id="a", step=0, x=0)
    buffer.store(episode_id="b", step=0, x=0)
    with pytest.raises(expdb.InvalidValue), buffer.episode("t", episode_id="w") as episode:
        episode.extend({"step": [0, 0, 1], "x": [0, 1, 2]})
    with pytest.raises(expdb.InvalidValue), buffer.writer() as writer:
        writer.extend({"episode_id": list("abc"), "step": [0] * 3, "x": [9] * 3})
    rows = buffer.episodes()
    assert rows["episode_id"].to_pylist() == ["a", "b", "w", "c"]
    assert rows["length"].to_pylist() == [1, 1, 2, 1]
    assert rows["status"].to_pylist()[2] == "complete"


@pytest.mark.parametrize("kind", ["episode", "writer"])
def test_a_refused_terminated_step_does_not_end_its_episode(scratch, kind):
    names = {"episode_id": "e"}
    writer = scratch.episode("default", **names) if kind == "episode" else scratch.writer()
    names = {} if kind == "episode" else names
    writer.append(step=0, x=0, **names)
    writer.flush()
    writer.append(step=1, x=1, **names)
    writer.append(step=0, x=9, terminated=True, **names)
    with pytest.raises(expdb.InvalidValue):
        writer.flush()
    writer.append(step=2, x=2, **names)
    writer.flush()
    assert scratch.episodes()["length"].to_pylist() == [3]
    assert scratch.episodes()["status"].to_pylist() == ["open"]
    (writer.end if kind == "episode" else writer.close)()


def test_steps_of_other_agents_do_not_cause_a_warning_about_gaps(new_buffer):
    buffer = new_buffer()
    for agent in "AAABABA":
        buffer.store(episode_id="e", agent_id=agent, obs=0.0)
    assert buffer.sample(4, unit=expdb.NStep(2), seed=0).size == 4
    buffer.store(episode_id="e", agent_id="B", step=7, obs=0.0)
    with pytest.warns(errors.ExpDBWarning, match="step 1 and then step 7"):
        for seed in range(3):
            buffer.sample(64, unit=expdb.NStep(1), seed=seed)


UNITS = [expdb.NStep(1), expdb.Sequence(3), expdb.Stack(2)]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
@pytest.mark.parametrize("sampler", [expdb.Uniform(), expdb.Prioritized()], ids=["any", "prio"])
def test_a_gap_ends_a_trajectory_and_causes_one_warning(new_buffer, unit, sampler):
    buffer = new_buffer()
    for step in (0, 1, 3, 4):
        buffer.store(episode_id="e", step=step, obs=np.float32(step), terminated=step == 4)
    join = dataclasses.replace(unit, gaps="join")
    with pytest.warns(errors.ExpDBWarning, match="step 1 and then step 3") as found:
        ended = [buffer.sample(64, unit=unit, sampler=sampler, seed=seed) for seed in (0, 1)]
    assert len(found) == 1
    joined = buffer.sample(64, unit=join, sampler=sampler, seed=0)
    name = "next_obs" if isinstance(unit, expdb.NStep) else "obs"
    for batches, may_join in ((ended, False), ([joined], True)):
        rows = np.concatenate([b[name].reshape(64, -1) for b in batches])
        starts = np.concatenate([b["obs"].reshape(64, -1)[:, :1] for b in batches])
        pairs = np.concatenate((starts, rows), 1)
        crosses = ((pairs == 1).any(1) & (pairs == 3).any(1)).any()
        assert crosses == may_join


def test_a_token_row_ends_at_a_gap(new_buffer):
    buffer = new_buffer(fields=expdb.TOKEN_FIELDS)
    for step, prompt, output in ((0, [1], [2]), (2, [1, 2, 3], [4])):
        ids = {"prompt_ids": prompt, "output_ids": output}
        buffer.store(episode_id="e", step=step, terminated=step == 2, **ids)
    with pytest.warns(errors.ExpDBWarning, match="a new row begins after the gap"):
        batch = buffer.sample(1, unit=expdb.Tokens(), seed=0)
    assert sorted(batch["input_ids"].tolist()) == [[1, 2, 0, 0], [1, 2, 3, 4]]
    joined = buffer.sample(1, unit=expdb.Tokens(gaps="join"), seed=0)
    assert joined["input_ids"].tolist() == [[1, 2, 3, 4]]


def test_tokens_of_an_agent_end_at_a_gap_of_this_agent(new_buffer):
    buffer = new_buffer(fields=expdb.TOKEN_FIELDS)
    for agent, step in (("A", 0), ("B", 0), ("A", 1), ("B", 2)):
        ids = {"prompt_ids": [1, 2, 3] if step == 2 else [1], "output_ids": [2]}
        buffer.store(episode_id="e", agent_id=agent, step=step, terminated=step == 2, **ids)
    with warnings.catch_warnings(record=True):
        batch = buffer.sample(1, unit=expdb.Tokens(agent="B"), seed=0)
    assert len(batch["input_ids"]) == 2
    joined = buffer.sample(1, unit=expdb.Tokens(agent="B", gaps="join"), seed=0)
    assert joined["input_ids"].tolist() == [[1, 2, 3, 2]]


def test_too_few_rows_names_gaps_as_the_reason(scratch):
    for step in (0, 2, 4):
        scratch.store(episode_id="e", step=step, obs=step)
    with (
        pytest.warns(errors.ExpDBWarning, match="step 0 and then step 2"),
        pytest.raises(expdb.TooFewRows, match=r"between step 0 and step 2 .* unless gaps='join'"),
    ):
        scratch.sample(1, unit=expdb.NStep(1))


def findings(db, about):
    return [row for row in db.doctor() if row["what"].startswith(about)]


@pytest.mark.both_databases
def test_doctor_lists_missing_and_repeated_step_numbers(db):
    buffer = db.buffer("b")
    for step in (0, 1):
        buffer.store(episode_id="whole", step=step, x=step)
    assert findings(db, "step numbers") == []
    buffer.store(episode_id="gap", step=3, x=0)
    buffer.store(episode_id="gap", step=5, x=0)
    with writing(db) as session:  # as earlier versions stored it
        session.execute("UPDATE steps SET step = 0 WHERE position = 1")
    (row,) = findings(db, "step numbers of 'b'")
    expected = "1 trajectories lack step numbers and 1 repeat step numbers, for example in episode "
    assert row["found"].startswith(expected + "'gap'")


def test_doctor_reports_episodes_without_an_end(db):
    buffer = db.buffer("b")
    for _ in range(8):
        with buffer.episode("t") as episode:
            episode.append(obs=0.0, reward=1.0)
    (row,) = findings(db, "ends of episodes of 'b'")
    assert row["found"].startswith("8 of the newest 8 complete episodes have no terminated")
    assert "pass terminated=True" in row["advice"]


@pytest.mark.parametrize("numbers", [(-5, -4, -3, None), (0, 2**62, None)])
def test_step_numbers_may_be_negative_or_large(scratch, numbers):
    for number in numbers:
        scratch.store(task_id="t", step=number, x=1)
    steps = [*numbers[:-1], numbers[-2] + 1]
    assert sorted(row["step"] for row in steps_of(scratch)) == steps
    assert scratch.episodes()["length"].to_pylist() == [len(numbers)]
    scratch.store(task_id="t", step=2**63 - 1, x=1)
    with pytest.raises(expdb.InvalidValue, match="already has the greatest step number"):
        scratch.store(task_id="t", x=1)
