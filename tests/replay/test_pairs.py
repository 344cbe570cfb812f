"""Preference pairs of rollouts."""

import numpy as np
import pytest

import expdb
from expdb import Pairs, Tokens, Uniform

ALL = Uniform(replace=False)


def rollout(buffer, name, value, group="g", task="t", score=None):
    with buffer.episode(task, episode_id=name, group_id=group) as episode:
        episode.append(obs=1.0)
        episode.append(obs=2.0, reward=value)
    if score is not None:
        buffer.score(episode_id=name, name="judge", value=score)


def pairs_of(buffer, unit):
    """Return the margin of every pair, keyed by the ids of the better and the worse rollout."""
    size = 1
    while True:
        try:
            batch = buffer.sample(size, sampler=ALL, unit=unit, fields=["episode_id", "margin"])
        except expdb.TooFewRows:
            if size == 1:
                raise
            break
        size += 1
    names = map(tuple, batch["episode_id"].tolist())
    return dict(zip(names, batch["margin"].tolist(), strict=True))


def plain_pairs(values, margin):
    """Return the margins of the pairs of one group, given its rollout values, oldest first."""
    ranked = sorted(range(len(values)), key=lambda k: (-values[k], k))
    out = {}
    while len(ranked) > 1:
        better, worse = ranked.pop(0), ranked.pop()
        apart = values[better] - values[worse]
        if apart > 0 and apart >= margin:
            out[better, worse] = apart
    return out


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_pairs_match_a_reference_implementation(scratch, margin):
    rng = np.random.default_rng(1)
    expected = {}
    for group in range(6):
        values = rng.integers(0, 5, rng.integers(1, 8)) / 5
        for k, value in enumerate(values.tolist()):
            rollout(scratch, f"{group}/{k}", value, group=f"g{group}")
        for (better, worse), apart in plain_pairs(values.tolist(), margin).items():
            expected[f"{group}/{better}", f"{group}/{worse}"] = apart
    assert pairs_of(scratch, Pairs(margin=margin)) == pytest.approx(expected)


def test_pairs_of_a_task_ignore_groups(scratch):
    rollout(scratch, "a", 0.0, group="g1")
    rollout(scratch, "b", 1.0, group="g2")
    with pytest.raises(expdb.TooFewRows, match="no pairs of complete rollouts of one group"):
        pairs_of(scratch, Pairs())
    assert pairs_of(scratch, Pairs(per="task")) == {("b", "a"): 1.0}


def test_pairs_with_a_score_ignore_returns(scratch):
    rollout(scratch, "a", 1.0, score=0.1)
    rollout(scratch, "b", 0.0, score=0.9)
    rollout(scratch, "c", 0.5)
    assert pairs_of(scratch, Pairs(score="judge")) == pytest.approx({("b", "a"): 0.8})


def test_a_rollout_is_leased_in_one_pair_only(scratch):
    for k in range(5):
        rollout(scratch, f"e{k}", float(k))
    consumer = scratch.consumer("dpo", max_times_sampled=1)
    names = []
    for _ in range(2):
        with consumer.lease(1, sampler=ALL, unit=Pairs(), fields=["episode_id"]) as batch:
            names += batch["episode_id"].reshape(-1).tolist()
    assert sorted(names) == ["e0", "e1", "e3", "e4"]
    with pytest.raises(expdb.TooFewRows):
        consumer.lease(1, sampler=ALL, unit=Pairs())
    replayed = scratch.replay("dpo", units=[Pairs])
    assert [name for batch in replayed for name in batch["episode_id"][0].tolist()] == names


def test_tokens_have_the_chosen_rollout_before_the_rejected_one(db):
    buffer = db.buffer("tokens", fields=expdb.TOKEN_FIELDS)
    for k in range(2):
        with buffer.episode("t", group_id="g") as episode:
            episode.append(prompt_ids=[9], output_ids=[k], logprobs=[-1.0], reward=float(k))
    batch = buffer.sample(1, unit=Tokens(of=Pairs()))
    assert batch["rollout"].tolist() == [0, 1]
    assert batch["input_ids"].tolist() == [[9, 1], [9, 0]]
    assert batch["reward"].tolist() == [1.0, 0.0]
