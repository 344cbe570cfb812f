"""Tests of step numbers: they determine the episode of a step and the next step number."""

import itertools
import random

import numpy as np
import pytest

import expdb

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
    batch = buffer.sample(200, unit=expdb.NStep(1), rng=0)
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


@pytest.mark.both_databases
@pytest.mark.parametrize("how", WRITERS)
def test_random_step_numbers_form_episodes_with_increasing_numbers(buffer, how):
    rng = random.Random(how)
    numbers = [rng.randrange(5) for _ in range(60)]
    with pytest.warns(expdb.ExpDBWarning, match="pass an episode_id for each"):
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
    for row in buffer.page(1, 100):
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
    steps = [row["step"] for row in scratch.page(1, 9)]
    assert sorted(steps) == [0, 7, 8, 9, 10]


@pytest.mark.both_databases
@pytest.mark.parametrize("how", ["store", "append"])
def test_a_refused_step_does_not_complete_the_open_episode(buffer, how):
    with buffer.writer() as writer:
        store = buffer.store if how == "store" else writer.append
        for step in range(3):
            store(task_id="t", step=step, x=1)
        with pytest.raises(expdb.FieldMismatch):
            store(task_id="t", step=0, x="text")
        store(task_id="t", step=3, x=1)
    assert buffer.episodes()["length"].to_pylist() == [4]


@pytest.mark.both_databases
@pytest.mark.parametrize("in_one_write", [True, False])
def test_a_repeated_number_of_an_episode_causes_one_warning(buffer, in_one_write):
    def write(number, **columns):
        episode.append(step=number, x=number, **columns)
        if not in_one_write:
            episode.flush()

    with buffer.episode("t", episode_id="shuffled") as episode:
        for number in (3, 0, 2, 1):
            write(number)
    with buffer.episode("t", episode_id="two agents") as episode:
        for number in (0, 1):
            write(number, agent_id="white")
            write(number, agent_id="black")
    episode = buffer.episode("t", episode_id="again")
    with pytest.warns(expdb.ExpDBWarning, match="step 1 of episode 'again' is stored twice") as got:
        for number in (0, 1, 1, 0):
            write(number)
        episode.end()
    assert len(got) == 1


@pytest.mark.parametrize("numbers", [(-5, -4, -3, None), (0, 2**62, None)])
def test_step_numbers_may_be_negative_or_large(scratch, numbers):
    for number in numbers:
        scratch.store(task_id="t", step=number, x=1)
    steps = [*numbers[:-1], numbers[-2] + 1]
    assert sorted(row["step"] for row in scratch.page(1, 9)) == steps
    assert scratch.episodes()["length"].to_pylist() == [len(numbers)]
    scratch.store(task_id="t", step=2**63 - 1, x=1)
    with pytest.raises(expdb.InvalidValue, match="already has the greatest step number"):
        scratch.store(task_id="t", x=1)
