"""Groups whose rollouts are compared by scores instead of returns."""

import time

import numpy as np
import pytest

import expdb
from expdb import Group, QueryBuilder, Uniform, errors

ALL = Uniform(replace=False)


def rollouts(buffer, group, count, *, reward=None):
    """Write complete episodes of two steps; return their ids."""
    names = []
    for _ in range(count):
        with buffer.episode("prompt", group_id=group) as episode:
            episode.append(obs=0.0)
            episode.append(obs=1.0, reward=reward)
        names.append(episode.episode_id)
    return names


def judge(buffer, names, values, name="judge", **options):
    buffer.score_batch(
        [
            {"episode_id": episode, "name": name, "value": value, **options}
            for episode, value in zip(names, values, strict=True)
        ]
    )


def ready(buffer, unit):
    """Return the sorted scores of each group that can be drawn."""
    try:
        batch = buffer.sample(
            buffer.consumer("counts").stats(unit=unit)["groups"]["ready"], unit=unit, sampler=ALL
        )
    except (expdb.TooFewRows, expdb.InvalidValue):
        return []
    return sorted(sorted(row[~np.isnan(row)].tolist()) for row in batch["episode_score"])


def test_scores_replace_returns_in_groups(scratch):
    judge(scratch, rollouts(scratch, "a", 2), [0.25, 0.75])
    judge(scratch, rollouts(scratch, "b", 2, reward=3.0), [1.0, 1.0])
    batch = scratch.sample(2, unit=Group(2, score="judge"), sampler=ALL, seed=0)
    order = np.argsort(batch["group_mean"])
    assert batch["episode_score"][order].tolist() == [[0.25, 0.75], [1.0, 1.0]]
    assert batch["group_mean"][order].tolist() == [0.5, 1.0]
    assert batch["group_std"][order].tolist() == [0.25, 0.0]
    assert np.isnan(batch["episode_return"][order[0]]).all()
    assert batch["episode_return"][order[1]].tolist() == [3.0, 3.0]
    assert ready(scratch, Group(2, min_spread=1e-6, score="judge")) == [[0.25, 0.75]]
    assert "episode_score" not in scratch.sample(1, unit=Group(2))


def test_several_scores_are_summed_with_weights(scratch):
    names = rollouts(scratch, "a", 2)
    judge(scratch, names, [0.5, 1.0])
    judge(scratch, names, [1.0, 0.0], "format")
    unit = Group(2, score={"judge": 0.75, "format": 0.25})
    assert ready(scratch, unit) == [[0.625, 0.75]]
    judge(scratch, names[:1], [0.0])
    assert ready(scratch, unit) == [[0.25, 0.75]]


def test_rollouts_without_a_score_are_excluded(scratch):
    names = rollouts(scratch, "a", 3)
    unit = Group(2, score="judge")
    judge(scratch, names[:1], [0.5])
    assert ready(scratch, unit) == []
    assert ready(scratch, Group(2, complete=False, score="judge")) == [[0.5]]
    judge(scratch, names[1:2], [None], status="timeout")
    assert ready(scratch, unit) == []
    judge(scratch, names[2:], [1.0])
    assert ready(scratch, unit) == [[0.5, 1.0]]


def test_missing_sets_the_value_of_missing_scores(scratch):
    names = rollouts(scratch, "a", 3)
    judge(scratch, names[:2], [0.5, None], status="timeout")
    assert ready(scratch, Group(3, score="judge", missing=-1.0)) == [[-1.0, -1.0, 0.5]]
    both = Group(3, score={"judge": 1.0, "format": 2.0}, missing=-1.0)
    assert ready(scratch, both) == [[-3.0, -3.0, -1.5]]


def test_missing_ignore_takes_the_weighted_mean_of_known_scores(scratch):
    names = rollouts(scratch, "a", 4)
    judge(scratch, names[:3], [0.5, 1.0, None], status="timeout")
    judge(scratch, [names[0], names[2]], [1.0, 0.25], "format")
    unit = Group(4, complete=False, score={"judge": 3.0, "format": 1.0}, missing="ignore")
    assert ready(scratch, unit) == [[0.25, 0.625, 1.0]]
    with pytest.raises(expdb.InvalidValue, match="must be greater than 0"):
        Group(2, score={"judge": 1.0, "format": -1.0}, missing="ignore")


def test_a_group_waits_until_each_rollout_has_a_score_or_a_failure(buffer):
    names = rollouts(buffer, "a", 3)
    unit = Group(3, complete=False, score="judge", missing="wait")
    judge(buffer, names[:2], [0.5, 1.0])
    counts = buffer.consumer("trainer").stats(unit=unit)["groups"]
    assert counts == {"ready": 0, "leased": 0, "incomplete": 0, "no_spread": 0, "too_stale": 0,
                      "waiting": 1}  # fmt: skip
    with pytest.raises(expdb.TooFewRows, match="with the score judge and no missing score"):
        buffer.sample(1, unit=unit)
    judge(buffer, names[2:], [None], status="timeout")
    assert ready(buffer, unit) == [[0.5, 1.0]]
    judge(buffer, names[2:], [0.0])
    assert ready(buffer, unit) == [[0.0, 0.5, 1.0]]


@pytest.mark.parametrize(
    ("missing", "expected"), [("wait", [0.5]), ("drop", [0.5]), (0.0, [0, 0.5])]
)
def test_a_deadline_ends_the_wait_for_a_score(scratch, missing, expected):
    judge(scratch, rollouts(scratch, "a", 2)[:1], [0.5])
    unit = Group(2, complete=False, score="judge", missing=missing, deadline=1.5)
    began = time.monotonic()
    with pytest.raises(expdb.TooFewRows):
        scratch.sample(1, unit=unit)
    batch = scratch.sample(1, unit=unit, wait=20.0)
    assert 0.4 < time.monotonic() - began < 10
    assert sorted(batch["episode_score"][0][: len(expected)].tolist()) == expected


def test_a_learner_waits_for_the_scores_of_a_judge(buffer):
    names = rollouts(buffer, "a", 2)
    trainer, unit = buffer.consumer("trainer", max_times_sampled=1), Group(2, score="judge")
    with pytest.raises(expdb.TooFewRows):
        trainer.lease(1, unit=unit)
    lease = buffer.consumer("judge").lease(
        2, QueryBuilder().is_null("scores.judge"), unit=expdb.Episode(), sampler=ALL
    )
    lease.acknowledge(
        scores={"episode": lease.batch["episode"], "name": "judge", "value": [0.0, 1.0]}
    )
    with trainer.lease(1, unit=unit, trainer_step=3) as batch:
        assert sorted(batch["episode_score"][0].tolist()) == [0.0, 1.0]
    (replayed,) = buffer.replay("trainer")
    assert replayed["episode_score"].tolist() == batch["episode_score"].tolist()
    judge(buffer, names[:1], [0.5], "other")
    assert len(list(buffer.replay("trainer"))) == 1  # the batch does not contain this score
    judge(buffer, names[:1], [0.5])
    with pytest.raises(errors.ReplayMismatch):
        list(buffer.replay("trainer"))


def test_a_failure_of_one_judge_ends_the_wait_for_the_others(scratch):
    names = rollouts(scratch, "a", 2)
    both = {"judge": 1.0, "format": 1.0}
    judge(scratch, names, [0.5, None], status="timeout")
    judge(scratch, names[:1], [1.0], "format")
    unit = Group(2, complete=False, score=both, missing="wait")
    assert ready(scratch, unit) == [[1.5]]  # the sum of the second rollout is undefined
    assert ready(scratch, Group(2, score=both, missing=0.0, deadline=60)) == []
    judge(scratch, names[1:], [0.25], "format")
    assert ready(scratch, Group(2, score=both, missing=0.0, deadline=60)) == [[0.25, 1.5]]


def test_misspelt_score_names_warn(scratch):
    judge(scratch, rollouts(scratch, "a", 2), [0.5, 1.0])
    for name, call in (
        ("judgea", lambda: scratch.sample(1, unit=Group(2, score="judgea", missing=0.0))),
        ("judgeb", lambda: scratch.sample(1, sampler=expdb.Prioritized(score="judgeb"))),
        ("judgec", lambda: scratch.sample(1, sampler=expdb.Ordered("scores.judgec"))),
        ("judged", lambda: scratch.sample(1, fields=["scores.judged"])),
        ("judgee", lambda: scratch.task_statistics(score="judgee")),
        ("judgef", lambda: scratch.consumer("c").stats(unit=Group(2, score="judgef"))),
    ):
        with pytest.warns(errors.ExpDBWarning, match=f"{name}', did you mean 'judge'"):
            call()


def test_an_overflowing_sum_of_scores_raises(scratch):
    judge(scratch, rollouts(scratch, "a", 2), [1e308, -1e308])
    assert ready(scratch, Group(2, score="judge")) == [[-1e308, 1e308]]
    with pytest.raises(expdb.InvalidValue, match="weighted sum of the scores judge"):
        scratch.sample(1, unit=Group(2, score={"judge": 1e10}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "judge-v2"}, "the name of a score must be"),
        ({"score": {"judge": "much"}}, "the weight of the score 'judge' must be a number"),
        ({"score": "judge", "missing": "mean"}, "missing must be 'drop', 'wait', 'ignore'"),
        ({"score": "judge", "missing": np.nan}, "missing must be a finite number"),
        ({"score": "judge", "deadline": -1}, "deadline must be a number of at least 0"),
        ({"missing": "wait"}, "apply to scores; also pass score"),
    ],
)
def test_invalid_settings_of_group_scores_are_rejected(arguments, message):
    with pytest.raises(expdb.InvalidValue, match=message):
        Group(4, **arguments)


def test_the_groups_of_an_empty_buffer_are_counted(scratch):
    counts = scratch.consumer("trainer").stats(unit=Group(2))["groups"]
    assert set(counts.values()) == {0}
