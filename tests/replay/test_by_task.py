"""ByTask draws tasks by success rate, and task_statistics() reports the success rates."""

import numpy as np
import pytest

import expdb
from expdb import ByTask, Episode, QueryBuilder

RATES = {"never": 0.0, "seldom": 0.25, "half": 0.5, "always": 1.0}


def fill(buffer, episodes=8):
    """Store complete episodes of each task, with its success rate and with varying lengths."""
    for task, rate in RATES.items():
        for k in range(episodes):
            with buffer.episode(task, policy_version=k) as episode:
                for step in range(1 + k % 3):
                    last = step == k % 3
                    episode.append(obs=0.0, reward=float(k < rate * episodes) if last else None)


def drawn_shares(buffer, sampler, size=20_000, **options):
    """Return the share of each task in a large sample."""
    batch = buffer.sample(
        size, sampler=sampler, fields=["task_id", "probability"], seed=1, **options
    )
    tasks, counts = np.unique(batch["task_id"].astype(str), return_counts=True)
    return dict(zip(tasks.tolist(), (counts / size).tolist(), strict=True)), batch


def expected_shares(weights, least):
    raised = {task: weight + least * max(weights.values()) for task, weight in weights.items()}
    return {task: weight / sum(raised.values()) for task, weight in raised.items() if weight}


@pytest.mark.parametrize(
    ("unit", "weight", "formula"),
    [(expdb.Step(), "difficulty", lambda p: p * (1 - p)), (Episode(), "failure", lambda p: 1 - p)],
)
def test_tasks_are_drawn_by_their_success_rates(scratch, weight, formula, unit):
    fill(scratch)
    sampler = ByTask(weight=weight, least=0.1)
    shares, batch = drawn_shares(scratch, sampler, unit=unit)
    expected = expected_shares({task: formula(p) for task, p in RATES.items()}, 0.1)
    for task, share in expected.items():  # six standard deviations, so 1 of 10**8 tests fails
        assert shares.get(task, 0.0) == pytest.approx(share, abs=6 * (share / 20_000) ** 0.5)
    items = {task: 8 if isinstance(unit, Episode) else 15 for task in RATES}
    for task, probability in zip(batch["task_id"][:50], batch["probability"][:50], strict=True):
        assert probability == pytest.approx(expected[task] / items[task])


def test_a_weight_function_maps_success_rates_to_weights(scratch):
    fill(scratch)
    received = []

    def function(rates):
        received.append(sorted(rates.tolist()))
        return rates == 0.5

    shares, _ = drawn_shares(scratch, ByTask(weight=function, least=0.0), 100)
    assert shares == {"half": 1.0}
    assert received == [sorted(RATES.values())]


def test_scores_replace_returns_and_unknown_rates_get_the_greatest_weight(scratch):
    for task in ("a", "b", "c"):
        for k in range(2):
            with scratch.episode(task, episode_id=f"{task}{k}") as episode:
                episode.append(obs=0.0, reward=1.0)
    scratch.score(episode_id="a0", name="judge", value=0.9)
    scratch.score(episode_id="a1", name="judge", value=0.1)
    scratch.score(episode_id="b0", name="judge", value=0.9)
    scratch.score(episode_id="b1", name="judge", value=None, status="timeout")
    shares, _ = drawn_shares(scratch, ByTask(score="judge", success=0.5, least=0.0), unit=Episode())
    assert shares == pytest.approx({"a": 0.5, "c": 0.5}, abs=0.03)


@pytest.mark.parametrize(
    "weights", [lambda p: p[:-1], lambda p: -p - 1, lambda p: np.full(4, np.inf)]
)
def test_invalid_results_of_a_weight_function_are_rejected(scratch, weights):
    fill(scratch)
    with pytest.raises(expdb.InvalidValue, match="the function weight of ByTask must return 4"):
        scratch.sample(4, sampler=ByTask(weight=weights))


def test_sampling_raises_if_every_task_has_weight_0(scratch):
    scratch.store(task_id="a", reward=1.0, terminated=True)
    with pytest.raises(expdb.InvalidValue, match="weight is 0 for each success rate"):
        scratch.sample(1, sampler=ByTask(least=0.0))
    assert scratch.sample(1, sampler=ByTask()).size == 1


def test_sampling_an_empty_buffer_raises(scratch):
    with pytest.raises(expdb.TooFewRows):
        scratch.sample(1, sampler=ByTask())


# -- statistics ------------------------------------------------------------------------------------


def test_task_statistics_report_rates_and_policy_versions(scratch):
    fill(scratch)
    scratch.store(task_id="open", reward=1.0)
    with scratch.episode("unknown") as episode:
        episode.append(obs=0.0)
    scratch.policy_version = 10
    rows = {row["task_id"]: row for row in scratch.task_statistics().to_pylist()}
    assert list(rows) == [*RATES, "unknown"]
    for task, rate in RATES.items():
        row = rows[task]
        assert (row["episodes"], row["known"]) == (8, 8)
        assert (row["success_rate"], row["mean"]) == (rate, rate)
        assert (row["first_policy_version"], row["last_policy_version"]) == (0, 7)
        assert row["staleness"] == 3
        assert row["last_ended"] > 0
    unknown = rows["unknown"]
    assert (unknown["episodes"], unknown["known"]) == (1, 0)
    assert unknown["success_rate"] is unknown["mean"] is unknown["staleness"] is None


def test_task_statistics_accept_a_query_and_a_success_threshold(scratch):
    fill(scratch)
    query = QueryBuilder().in_("task_id", ["half", "always"]).and_().gte("policy_version", 4)
    rows = scratch.task_statistics(query, success=2.0).to_pylist()
    assert [(row["task_id"], row["episodes"], row["success_rate"]) for row in rows] == [
        ("half", 4, 0.0), ("always", 4, 0.0)
    ]  # fmt: skip
    query = QueryBuilder().gte("reward", 1.0)
    rows = scratch.task_statistics(query).to_pylist()
    counts = {row["task_id"]: row["episodes"] for row in rows}
    assert counts == {"seldom": 2, "half": 4, "always": 8}


def test_task_statistics_can_use_scores_instead_of_returns(scratch):
    for k, (value, status) in enumerate([(0.9, None), (0.1, None), (None, "timeout")]):
        with scratch.episode("a", episode_id=f"e{k}") as episode:
            episode.append(obs=0.0)
            episode.append(obs=1.0)
        scratch.score(episode_id=f"e{k}", name="judge", value=value, status=status)
    (row,) = scratch.task_statistics(score="judge", success=0.5).to_pylist()
    assert (row["episodes"], row["known"], row["success_rate"]) == (3, 2, 0.5)
    assert row["mean"] == pytest.approx(0.5)


def test_task_statistics_of_an_empty_buffer_have_no_rows(scratch):
    table = scratch.task_statistics()
    assert table.num_rows == 0
    assert "success_rate" in table.column_names
    with pytest.raises(expdb.InvalidValue):
        scratch.task_statistics(success=None)


def test_new_episodes_and_updates_change_the_success_rates(scratch):
    for task in ("a", "b"):
        for k in range(2):
            scratch.store(task_id=task, episode_id=f"{task}{k}", reward=float(k), terminated=True)
    sampler = ByTask(least=0.0)
    for _ in range(2):  # the second sample uses the shares of the first
        assert drawn_shares(scratch, sampler, 400)[0].keys() == {"a", "b"}
    scratch.store(task_id="a", episode_id="a2", reward=0.0, terminated=True)
    assert drawn_shares(scratch, sampler, 4000)[0]["b"] == pytest.approx(9 / 17, abs=0.05)
    scratch.update({"episode_id": "b0"}, reward=1.0)
    assert drawn_shares(scratch, sampler, 400)[0].keys() == {"a"}


def test_samplers_with_different_weights_do_not_share_results(scratch):
    fill(scratch)
    assert drawn_shares(scratch, ByTask(least=0.0), 400)[0].keys() == {"seldom", "half"}
    failure = drawn_shares(scratch, ByTask(least=0.0, weight="failure"), 4000)[0]
    assert failure.keys() == {"never", "seldom", "half"}


def test_interleaved_episodes_are_counted_once(scratch):
    for _ in range(6):
        for task in ("a", "b"):
            scratch.store(task_id=task, episode_id=f"{task}0", reward=0.0)
    for task in ("a", "b"):
        scratch.store(task_id=task, episode_id=f"{task}1", reward=1.0)
    received = []
    scratch.sample(1, sampler=ByTask(weight=lambda rates: received.append(rates) or rates))
    assert received[0].tolist() == [0.5, 0.5]
