"""The policy versions of steps, and the versions of episodes that derive from them."""

import numpy as np
import pytest
from contents import steps_of

import expdb
from expdb import errors

NAMES = ["policy_version", "policy_version_end", "first_policy_version", "last_policy_version"]


def versions(buffer, where=None):
    """Return the four versions of each step, by position."""
    batch = next(iter(buffer.scan(where, size=4096, fields=NAMES)))
    return [
        tuple(int(batch[n][k]) if batch[f"has_{n}"][k] else None for n in NAMES)
        for k in range(batch.size)
    ]


@pytest.mark.both_databases
def test_a_step_has_the_version_of_its_episode_unless_it_has_its_own(buffer):
    with buffer.episode("t", policy_version=3) as episode:
        episode.append(x=0)
        episode.append(x=1, policy_version=3, policy_version_end=4)
        episode.append(x=2, policy_version=5, terminated=True)
    assert versions(buffer) == [(3, 3, 3, 5), (3, 4, 3, 5), (5, 5, 3, 5)]
    assert buffer.episodes().select(["policy_version", *NAMES[2:]]).to_pylist() == [
        {"policy_version": 3, "first_policy_version": 3, "last_policy_version": 5}
    ]


@pytest.mark.both_databases
def test_first_policy_version_ignores_a_version_that_no_step_uses(buffer, open_db):
    with buffer.episode("t", episode_id="e", policy_version=3) as episode:
        episode.append(x=0, policy_version=5)
        episode.append(x=1, policy_version=6)
        episode.flush()
        assert versions(buffer) == [(5, 5, 5, 6), (6, 6, 5, 6)]
        episode.append(x=2, policy_version=7)
        episode.flush()
        assert versions(buffer)[-1] == (7, 7, 5, 7)
    buffer.store(episode_id="f", x=0, policy_version=3)
    buffer.store(episode_id="f", x=1, policy_version=4)
    episode = buffer.episode("t", episode_id="g", policy_version=3)
    episode.append(x=0, policy_version=5)
    episode.abort()
    other = open_db().buffer("train")
    with other.episode("t", episode_id="g", resume=True) as episode:
        episode.append(x=1)
    assert versions(buffer, {"episode_id": "f"})[0][2:] == (3, 4)
    assert versions(buffer, {"episode_id": "g"}) == [(5, 5, 3, 5), (3, 3, 3, 5)]
    buffer.policy_version = 5
    with buffer.consumer("learner", max_staleness=0).lease(1, unit=expdb.Episode()) as batch:
        assert batch["position"].tolist() == [[0, 1, 2]]


def test_the_version_of_an_episode_is_that_of_its_first_step(buffer):
    for version in (4, None, 4, 6):
        buffer.store(task_id="t", x=0, policy_version=version)
    assert versions(buffer) == [(4, 4, 4, 6)] * 3 + [(6, 6, 4, 6)]
    assert buffer.episodes()["policy_version"].to_pylist() == [4]


WRITERS = {
    "store": lambda buffer: buffer.store,
    "store_batch": lambda buffer: lambda **row: buffer.store_batch([row]),
    "columns": lambda buffer: (
        lambda **row: buffer.store_batch({name: [value] for name, value in row.items()})
    ),
}


@pytest.mark.parametrize("how", [*WRITERS, "writer", "one batch", "one writer"])
def test_a_step_stored_before_any_version_was_known_has_none(buffer, how):
    rows = [{"x": k, "task_id": "t", "policy_version": v} for k, v in enumerate((None, 4, None))]
    if how == "one batch":
        buffer.store_batch(rows)
    elif how in ("writer", "one writer"):
        with buffer.writer(flush_steps=1 if how == "writer" else 9) as writer:
            for row in rows:
                writer.append(**row)
    else:
        write = WRITERS[how](buffer)
        for row in rows:
            write(**{name: value for name, value in row.items() if value is not None})
    assert [numbers[0] for numbers in versions(buffer)] == [None, 4, None]
    assert buffer.episodes().select(NAMES[2:]).to_pylist() == [dict.fromkeys(NAMES[2:], 4)]
    assert buffer.episodes()["policy_version"].to_pylist() == [None]


@pytest.mark.both_databases
@pytest.mark.parametrize("how", WRITERS)
def test_two_handles_never_change_the_version_of_each_others_steps(open_db, how):
    buffers = [open_db().buffer("train") for _ in range(2)]
    first, second = (WRITERS[how](buffer) for buffer in buffers)
    first(episode_id="e", x=0)
    second(episode_id="e", x=1)
    first(episode_id="e", x=2, policy_version=6)
    second(episode_id="e", x=3, policy_version=7)
    second(episode_id="f", x=4, policy_version=7)
    first(episode_id="f", x=5, policy_version=6)
    first(episode_id="f", x=6)
    expected = [None, None, 6, 7, 7, 6, 7]
    for buffer in buffers:
        assert [numbers[0] for numbers in versions(buffer)] == expected
        assert [row["policy_version"] for row in steps_of(buffer)] == expected
        drawn = buffer.sample(7, sampler=expdb.Ordered("position"), fields=["policy_version"])
        has_version = drawn["has_policy_version"]
        assert [
            int(v) if k else None for v, k in zip(drawn["policy_version"], has_version, strict=True)
        ] == expected
    buffer.policy_version = 7
    lease = buffer.consumer("fresh", max_staleness=0).lease(64, fields=["x"])
    assert set(lease.batch["x"].tolist()) == {3, 4, 6}


@pytest.mark.both_databases
def test_two_handles_cannot_give_one_episode_different_groups(open_db):
    first, second = (open_db().buffer("train") for _ in range(2))
    first.store(episode_id="e", x=0)
    second.store(episode_id="e", x=1)
    first.store(episode_id="e", x=2, group_id="a")
    with pytest.raises(errors.EpisodeMismatch, match="already has group_id='a', got 'b'"):
        second.store(episode_id="e", x=3, group_id="b")
    second.store(episode_id="e", x=3, group_id="a")
    assert first.episodes()["group_id"].to_pylist() == ["a"]


def test_queries_can_filter_by_step_and_episode_versions(buffer):
    own = {"policy_version": [1, 1, 2, 2, 3, 3], "policy_version_end": [1, 2, 2, 3, 3, 4]}
    buffer.store_batch({"x": np.arange(6), **own})
    buffer.store(task_id="other", x=9)
    q = expdb.QueryBuilder
    assert buffer.count({"policy_version": 2}) == 2
    assert buffer.count(q().gte("policy_version_end", 3)) == 3
    assert buffer.count(q().eq("first_policy_version", 1).and_().eq("last_policy_version", 4)) == 6
    assert buffer.count(q().is_null("policy_version")) == 1
    assert buffer.tasks({"policy_version": 3}) == ["default"]
    drawn = buffer.sample(64, {"policy_version": 2}, seed=0)
    assert set(drawn["x"].tolist()) == {2, 3}
    ordered = buffer.sample(3, sampler=expdb.Ordered("policy_version", descending=True))
    assert ordered["x"].tolist() == [4, 5, 2]


def test_a_sequence_has_the_version_of_each_step(buffer):
    with buffer.episode("t", policy_version=1) as episode:
        for step in range(4):
            episode.append(x=step, policy_version=1 + step // 2, terminated=step == 3)
    batch = buffer.sample(1, unit=expdb.Episode(), fields=["policy_version", NAMES[3]], seed=0)
    assert batch["policy_version"].tolist() == [[1, 1, 2, 2]]
    assert batch["last_policy_version"].tolist() == [2]


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"policy_version": 4, "policy_version_end": 3}, "lower than policy_version 4"),
        ({"policy_version_end": 3}, "have no policy_version"),
        ({"policy_version": 1.5}, "policy_version"),
        ({"policy_version": 2, "policy_version_end": "3"}, "policy_version_end"),
    ],
)
def test_invalid_policy_versions_are_rejected(buffer, columns, error):
    with pytest.raises(expdb.InvalidValue, match=error):
        buffer.store(x=1, **columns)
    with buffer.episode("t") as episode, pytest.raises(expdb.InvalidValue, match=error):
        episode.append(x=1, **columns)
    assert len(buffer) == 0


@pytest.mark.both_databases
def test_updating_the_version_of_an_episode_changes_all_of_its_steps(buffer):
    for task in ("mixed", "other"):
        with buffer.episode(task) as episode:
            for step in range(3):
                episode.append(x=step, policy_version=1 + step, policy_version_end=2 + step)
    assert buffer.update({"task_id": "mixed", "step": 1}, policy_version=9) == 1
    assert versions(buffer, {"task_id": "mixed"}) == [(9, 9, 9, 9)] * 3
    assert versions(buffer, {"task_id": "other"}) == [(1, 2, 1, 4), (2, 3, 1, 4), (3, 4, 1, 4)]
    buffer.update({"task_id": "mixed"}, policy_version=None)
    assert versions(buffer, {"task_id": "mixed"}) == [(None,) * 4] * 3


@pytest.mark.both_databases
def test_queries_see_new_versions_of_all_handles(buffer, open_db):
    other = open_db().buffer("train")
    where = expdb.QueryBuilder().gte("last_policy_version", 3)
    buffer.store(task_id="t", x=0, policy_version=1)
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(1, where)
    other.store_batch([{"task_id": "u", "x": k, "policy_version": 2 + k} for k in range(3)])
    assert set(buffer.sample(32, where, seed=0, wait=5)["x"].tolist()) == {0, 1, 2}
    buffer.store(task_id="t", x=7, policy_version=5)
    batch = buffer.sample(99, where, seed=0, fields=["task_id"])
    assert set(batch["task_id"].tolist()) == {"t", "u"}


def test_staleness_counts_from_the_oldest_version(buffer):
    for start in (0, 4):
        with buffer.episode("t", policy_version=start) as episode:
            for step in range(8):
                episode.append(x=0, policy_version=start + step // 2, terminated=step == 7)
    consumer = buffer.consumer("trainer", max_staleness=3)

    def leased_steps(unit, size):
        """Return the first steps of leased items; the second episode starts at step 8."""
        repeated = expdb.Uniform(replace=True)
        lease = consumer.lease(size, unit=unit, sampler=repeated, fields=["episode", "step"])
        lease.release()
        batch = lease.batch
        first = [array.reshape(size, -1)[:, 0] for array in (batch["episode"], batch["step"])]
        return set((first[0] * 8 + first[1]).tolist())

    buffer.policy_version = 6  # versions 3, 4, 5, 6 and 7 are fresh enough
    assert leased_steps(expdb.Step(), 200) == set(range(6, 16))
    assert leased_steps(expdb.Sequence(2), 200) == set(range(6, 16))
    assert leased_steps(expdb.Episode(), 5) == {8}  # the first episode is as old as its first step
    buffer.store(task_id="late", x=1, policy_version=6, terminated=True)
    assert leased_steps(expdb.Step(), 400) == {*range(6, 16), 16}
    buffer.update([0], policy_version=7)
    assert leased_steps(expdb.Step(), 400) == set(range(17))


@pytest.mark.both_databases
def test_explicit_versions_are_stored_after_the_episode_is_updated(buffer, open_db):
    other = open_db().buffer("train")
    with buffer.episode("t", episode_id="e", policy_version=0) as episode:
        episode.append(x=0)
        episode.flush()
        other.update({"episode_id": "e"}, policy_version=8)
        episode.append(x=1, policy_version=0)
        episode.append(x=2, policy_version=1)
        episode.append(x=3)
    assert versions(buffer) == [(8, 8, 0, 8), (0, 0, 0, 8), (1, 1, 0, 8), (8, 8, 0, 8)]
    buffer.store(task_id="u", x=0, policy_version=4)
    other.update({"task_id": "u"}, policy_version=9)
    buffer.store(task_id="u", x=0, policy_version=4)
    assert [numbers[0] for numbers in versions(buffer, {"task_id": "u"})] == [9, 4]
    other.update({"task_id": "u"}, policy_version=None)
    buffer.store(task_id="u", x=0, policy_version=4)
    assert [numbers[0] for numbers in versions(buffer, {"task_id": "u"})] == [None, None, 4]


@pytest.mark.both_databases
def test_labels_of_versions_are_shared_and_cannot_change(buffer, open_db):
    buffer.policy_versions.add_label("step-7", 7)
    buffer.policy_versions.add_label("step-7", 7)
    labels = open_db().buffer("train").policy_versions
    labels.add_label("step-9", 9)
    versions = buffer.policy_versions.of_labels(["step-7", "step-9", "step-9"])
    assert (versions.tolist(), versions.dtype) == ([7, 9, 9], np.int32)
    assert (dict(buffer.policy_versions), buffer.policy_version) == ({}, None)
    with pytest.raises(errors.InvalidValue, match="stands for policy version 7 in"):
        labels.add_label("step-7", 8)
    buffer.policy_versions.add_label("step-10", 10)
    assert labels.of_labels(["step-10"]).tolist() == [10]
    with pytest.raises(errors.InvalidValue, match="'step-8' stands for no policy version"):
        labels.of_labels(["step-8"])
    for invalid in ("step-7", b"step-7", None, {"step-7"}, np.array("step-7")):
        with pytest.raises(errors.InvalidValue, match="labels must be a list of text, got"):
            labels.of_labels(invalid)
    for version in (-1, 2**31):
        with pytest.raises(errors.InvalidValue, match="version must be an integer of at least 0"):
            labels.add_label("invalid", version)


def test_labels_give_tokens_their_versions(new_buffer):
    buffer = new_buffer(fields=expdb.TOKEN_FIELDS)
    versions = buffer.policy_versions
    versions.add_label("step-7", 7)
    versions.add_label("step-9", 9)
    tokens = versions.of_labels(["step-7", "step-9"])
    buffer.store(task_id="t", prompt_ids=[1], output_ids=[2, 3], versions=tokens)
    assert (buffer.get([0], fields=["policy_version"])["policy_version"]).tolist() == [7]
