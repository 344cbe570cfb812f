"""Scores of judges: a history that is never overwritten, and the latest score of each step."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import FORKSERVER, run_at_once

import expdb
from expdb import Ordered, Prioritized, QueryBuilder, errors
from expdb.export import export
from expdb.storage import tags

pytestmark = pytest.mark.both_databases


def fill(buffer, episodes=3, length=4):
    """Store whole episodes named e0, e1 and so on."""
    for number in range(episodes):
        with buffer.episode("task", episode_id=f"e{number}", group_id="g") as episode:
            for step in range(length):
                episode.append(obs=float(step), reward=1.0)


def latest(buffer, name="judge"):
    """Return the latest score of every step by position, or None without a score."""
    positions = np.sort(np.concatenate([batch["position"] for batch in buffer.scan()]))
    values = buffer.get(positions, fields=[f"scores.{name}"])[f"scores.{name}"]
    return {
        position: None if math.isnan(value) else value
        for position, value in zip(positions.tolist(), values.tolist(), strict=True)
    }


@pytest.fixture
def buffer(db):
    """A buffer of three episodes of four steps."""
    buffer = db.buffer("train")
    fill(buffer)
    return buffer


def test_the_score_of_an_episode_applies_to_all_of_its_steps(buffer):
    assert buffer.score(episode_id="e1", name="judge", value=0.7, by="judge-v2") == 1
    assert latest(buffer) == {p: 0.7 if 4 <= p < 8 else None for p in range(12)}
    assert buffer.count(QueryBuilder().gte("scores.judge", 0.7)) == 4
    assert buffer.count(QueryBuilder().is_null("scores.judge")) == 8


def test_a_score_is_added_to_the_history_and_never_overwrites_another(buffer):
    buffer.score([5], name="judge", value=0.25, by="v1", detail={"why": "short"})
    buffer.score([5], name="judge", value=0.5, by="v2")
    buffer.score([5], name="format", value=True)
    assert latest(buffer)[5] == 0.5
    table = buffer.scores()
    assert table["value"].to_pylist() == [0.25, 0.5, 1.0]
    assert table["scored_by"].to_pylist() == ["v1", "v2", None]
    assert table["detail"].to_pylist() == ['{"why":"short"}', None, None]
    assert table["episode_id"].to_pylist() == ["e1"] * 3
    assert table["position"].to_pylist() == [5, 5, 5]
    assert buffer.scores(name="format")["value"].to_pylist() == [1.0]
    assert buffer.get([5], fields=["scores"])["scores"][0] == {"judge": 0.5, "format": 1.0}


def test_a_failed_judge_is_recorded_and_does_not_replace_a_value(buffer):
    buffer.score([0, 1], name="judge", value=None, status="timeout")
    buffer.score([1], name="judge", value=0.3)
    buffer.score([1], name="judge", value=None, status="refused")
    assert latest(buffer) == {0: None, 1: 0.3, **dict.fromkeys(range(2, 12))}
    assert buffer.scores()["status"].to_pylist() == ["timeout", "timeout", None, "refused"]
    assert buffer.count(QueryBuilder().is_null("scores.judge")) == 11


def test_steps_are_scored_by_query_or_with_one_value_per_position(buffer):
    assert buffer.score({"episode_id": "e0"}, name="judge", value=1) == 4
    assert buffer.score(np.array([11, 4]), name="judge", value=np.array([0.5, 0.25])) == 2
    expected = dict.fromkeys(range(12)) | dict.fromkeys(range(4), 1.0) | {11: 0.5, 4: 0.25}
    assert latest(buffer) == expected
    history = buffer.scores({"episode_id": "e2"})
    assert history["position"].to_pylist() == [11]


@pytest.mark.parametrize("form", ["rows", "columns", "table"])
def test_score_batch_accepts_rows_columns_and_tables(buffer, form):
    columns = {"position": [0, 5, 9], "name": ["judge"] * 3, "value": [0.1, 0.2, 0.3]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    batch = {"rows": rows, "columns": columns | {"name": "judge"}, "table": pa.table(columns)}[form]
    assert buffer.score_batch(batch) == 3
    assert {p: v for p, v in latest(buffer).items() if v is not None} == {0: 0.1, 5: 0.2, 9: 0.3}


def test_score_batch_identifies_episodes_by_id_or_number(buffer):
    batch = buffer.sample(1, {"episode_id": "e2"})
    buffer.score_batch({"episode": batch["episode"], "name": "judge", "value": [0.75]})
    buffer.score_batch([{"episode_id": "e0", "name": "judge", "value": 0.5}])
    assert latest(buffer) == {p: (0.5, None, 0.75)[p // 4] for p in range(12)}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"value": math.nan}, r"rows\[1\]: the score 'judge' must be a finite number, got nan"),
        ({"value": math.inf}, r"rows\[1\]: the score 'judge' must be a finite number, got inf"),
        ({"value": "high"}, r"rows\[1\]: the score 'judge' must be a number, got 'high'"),
        ({"value": None}, r"rows\[1\]: the score 'judge' has neither a value nor a status"),
        ({"name": "judge-v2"}, r"rows\[1\]: the name of a score must be 1 to 64 letters"),
        ({"name": ""}, r"rows\[1\]: the name of a score must be 1 to 64 letters"),
        ({"nmae": "x"}, r"rows\[1\]: a score has no key 'nmae', did you mean 'name'\?"),
        ({"episode_id": "e1"}, r"rows\[1\]: a score must have one of position.*got position and"),
        ({"position": None}, r"rows\[1\]: a score must have one of position.*got none"),
        ({"detail": "text"}, r"rows\[1\]: detail must be a mapping"),
        ({"by": 3}, r"rows\[1\]: the name of the author of a score \(by=\) must be text"),
        ({"position": -1}, r"rows\[1\]: position must be an integer of at least 0"),
    ],
)
def test_an_invalid_score_names_its_row_and_nothing_is_stored(scratch, row, message):
    fill(scratch)
    valid = {"position": 0, "name": "judge", "value": 1.0}
    with pytest.raises(expdb.InvalidValue, match=message):
        scratch.score_batch([valid, {**valid, **row}])
    assert scratch.scores().num_rows == 0


@pytest.mark.one_database
def test_a_score_of_a_missing_step_or_episode_is_an_error_and_nothing_is_stored(buffer):
    buffer.delete([3])
    valid = {"position": 0, "name": "judge", "value": 1.0}
    with pytest.raises(errors.Evicted, match=r"1 position has no step \(3\)"):
        buffer.score_batch([valid, valid | {"position": 3}])
    with pytest.raises(errors.Evicted, match="99"):
        buffer.score([99], name="judge", value=1.0)
    with pytest.raises(errors.UnknownEpisode, match=r"no episode 'e9' in buffer 'train'"):
        buffer.score(episode_id="e9", name="judge", value=1.0)
    with pytest.raises(errors.UnknownEpisode, match=r"rows\[1\]: no episode 77"):
        buffer.score_batch([valid, {"episode": 77, "name": "judge", "value": 1.0}])
    assert buffer.scores().num_rows == 0


def test_score_takes_either_a_query_or_an_episode(buffer):
    for arguments in ({}, {"where": [0], "episode_id": "e0"}):
        with pytest.raises(expdb.InvalidValue, match="either where or episode_id"):
            buffer.score(name="judge", value=1.0, **arguments)
    with pytest.raises(expdb.InvalidValue, match="2 values were passed for 3 positions"):
        buffer.score([0, 1, 2], name="judge", value=[1.0, 2.0])
    with pytest.raises(expdb.QueryError, match=r"'scores.judge' must be compared with numbers"):
        buffer.count({"scores.judge": "high"})
    with pytest.raises(expdb.QueryError, match=r"write scores.<name>"):
        buffer.count({"scores": 1.0})
    with pytest.raises(expdb.QueryError, match=r"write scores.<name>"):
        buffer.count({"scores.judge-v2": 1.0})


def test_scoring_no_steps_or_an_open_episode_warns(buffer):
    with pytest.warns(errors.ExpDBWarning, match=r'recorded nothing.*"episode_id": "e9"'):
        assert buffer.score({"episode_id": "e9"}, name="judge", value=1.0) == 0
    episode = buffer.episode("task", episode_id="open")
    episode.append(obs=0.0)
    episode.flush()
    with pytest.warns(errors.ExpDBWarning, match="episode 'open' is scored while it is open"):
        buffer.score(episode_id="open", name="judge", value=1.0)
    buffer.score(episode_id="open", name="judge", value=2.0)  # warns once
    episode.end()


def test_a_misspelt_score_in_a_query_warns(buffer):
    buffer.score([0], name="judge", value=1.0)
    with pytest.warns(errors.ExpDBWarning, match="has the name 'jugde', did you mean 'judge'"):
        buffer.count(QueryBuilder().is_null("scores.jugde"))
    assert buffer.count(QueryBuilder().is_null("scores.quality")) == 12  # no warning


def test_the_same_queries_match_with_and_without_an_index(db):
    buffer = db.buffer("large")
    fill(buffer, 8)
    values = np.random.default_rng(0).normal(size=32)
    buffer.score(np.arange(0, 32, 2), name="judge", value=values[::2])
    for indexed in (False, True):
        if indexed:
            buffer.index("scores.judge")
            buffer.index("scores.judge")
        assert buffer.count(QueryBuilder().gt("scores.judge", 0)) == (values[::2] > 0).sum()
        assert buffer.count(QueryBuilder().in_("scores.judge", values[:8:2].tolist())) == 4
        assert buffer.count(QueryBuilder().ne("scores.judge", values[0])) == 31
        assert buffer.count(QueryBuilder().lte("scores.judge", 10)) == 16


def test_sampling_sees_new_scores(buffer):
    judged = QueryBuilder().gt("scores.judge", 0.5)
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(1, judged)
    buffer.score([7, 8], name="judge", value=[0.6, 0.4])
    assert set(buffer.sample(20, judged, seed=0)["position"].tolist()) == {7}
    buffer.score([8], name="judge", value=0.9)
    batch = buffer.sample(50, judged, fields=["position", "scores.judge"], seed=0)
    assert set(zip(*map(np.ndarray.tolist, batch.values()), strict=True)) == {(7, 0.6), (8, 0.9)}
    buffer.score([7], name="judge", value=0.1)
    assert set(buffer.sample(20, judged, seed=0)["position"].tolist()) == {8}


def test_ordered_draws_the_best_scores_first_and_unscored_steps_last(buffer):
    buffer.score([2, 9, 4], name="judge", value=[0.5, 0.25, 1.0])
    batch = buffer.sample(4, sampler=Ordered("scores.judge", descending=True))
    assert batch["position"].tolist() == [4, 2, 9, 0]


def test_prioritized_draws_in_proportion_to_a_score(db):
    buffer = db.buffer("large")
    fill(buffer, 5)
    sampler = Prioritized(alpha=1.0, epsilon=0.0, initial=0.0, score="judge")
    buffer.score([3, 6, 19], name="judge", value=[1.0, 3.0, -2.0])
    batch = buffer.sample(4000, sampler=sampler, seed=1)
    shares = np.bincount(batch["position"], minlength=20) / 4000
    assert shares[[3, 6]] == pytest.approx([0.25, 0.75], abs=0.005)  # stratified
    assert batch["probability"][batch["position"] == 6] == pytest.approx(0.75)
    buffer.score([6, 12], name="judge", value=[0.0, 1.0])
    shares = np.bincount(buffer.sample(4000, sampler=sampler, seed=1)["position"]) / 4000
    assert shares[[3, 12]] == pytest.approx([0.5, 0.5], abs=0.005)
    buffer.update_priorities([0], [1e9])  # does not concern this sampler
    assert set(buffer.sample(100, sampler=sampler, seed=1)["position"].tolist()) == {3, 12}
    buffer.store(episode_id="new", obs=0.0)
    usual = Prioritized(alpha=1.0, epsilon=0.0, score="judge")  # 1.0 without a score
    shares = np.bincount(buffer.sample(4000, sampler=usual, seed=1)["position"]) / 4000
    assert shares[20] == pytest.approx(1 / 19, abs=0.005)


def test_each_prioritized_sampler_draws_by_its_own_score(open_db):
    def counts(buffer, **settings):
        sampler = Prioritized(alpha=1.0, epsilon=0.0, **settings)
        return np.bincount(buffer.sample(100, sampler=sampler, seed=0)["position"]).tolist()

    buffer, other = open_db().buffer("train"), open_db().buffer("train")
    fill(buffer, 1, 2)
    buffer.score_batch({"position": [0, 1], "name": "judge", "value": [1.0, 0.0]})
    buffer.score_batch({"position": [0, 1], "name": "format", "value": [0.0, 1.0]})
    assert counts(buffer) == [50, 50]
    assert counts(buffer, score="judge") == [100]
    assert counts(buffer, score="format") == [0, 100]
    assert counts(other, score="format") == [0, 100]
    assert counts(other) == [50, 50]
    other.update_priorities([0], [3.0])
    assert counts(other) == [75, 25]
    assert counts(other, score="format") == [0, 100]


def test_names_of_scores_are_case_sensitive_in_indexes(buffer):
    buffer.score([0], name="j", value=1.0)
    buffer.score([0, 1], name="J", value=1.0)
    for name, expected in (("j", 1), ("J", 2)):
        buffer.index(f"scores.{name}")
        buffer.index(f"scores.{name}")
        assert buffer.count({f"scores.{name}": 1.0}) == expected


@pytest.mark.parametrize("name", ["\ud800", "a\0", 5, "judge-v2"])
def test_scores_rejects_an_invalid_name(scratch, name):
    with pytest.raises(expdb.InvalidValue, match="the name of a score must be"):
        scratch.scores(name=name)


def test_scores_of_evicted_episodes_are_deleted(db):
    buffer = db.buffer("small", capacity=8)
    fill(buffer, 2)
    buffer.score(episode_id="e0", name="judge", value=0.5)
    buffer.score([4], name="judge", value=0.5)
    buffer.store_batch({"episode_id": "e2", "obs": np.zeros(4)})
    assert buffer.scores()["episode_id"].to_pylist() == ["e1"]
    assert buffer.clear() == 8
    assert buffer.scores().num_rows == 0


def test_an_open_episode_whose_steps_are_all_evicted_cannot_be_scored(db):
    buffer = db.buffer("full", capacity=2)
    buffer.store(episode_id="open", x=0)
    buffer.store_batch({"task_id": ["other"] * 3, "x": [1, 2, 3]})
    assert buffer.count({"episode_id": "open"}) == 0
    with pytest.raises(errors.UnknownEpisode, match="or its steps were evicted"):
        buffer.score(episode_id="open", name="judge", value=1.0)
    assert buffer.scores().num_rows == 0


def test_scores_of_deleted_and_abandoned_episodes_are_deleted(db):
    buffer = db.buffer("small", capacity=4)
    fill(buffer, 1)
    buffer.score(episode_id="e0", name="judge", value=0.5)
    buffer.delete({"episode_id": "e0"})
    assert buffer.scores().num_rows == 0
    abandoned = buffer.episode("task", episode_id="open")
    abandoned.append(obs=0.0)
    abandoned.flush()
    buffer.score([4], name="judge", value=0.5)
    for number in range(600):  # the open episode is swept
        buffer.store(episode_id=f"f{number}", obs=0.0, terminated=True)
    assert buffer.scores().num_rows == 0
    assert db.check() == []
    abandoned.append(obs=1.0)
    abandoned.end()


def test_copies_and_exports_contain_the_scores(buffer, location, tmp_path):
    buffer.score(episode_id="e0", name="judge", value=0.7, detail={"why": "a \u00e9"})
    buffer.score([9], name="judge", value=None, status="timeout")
    target = tmp_path / "copy.db"
    expdb.copy(location, target)
    with expdb.open(target) as copied:
        other = copied.buffer("train")
        assert other.scores() == buffer.scores()
        assert latest(other) == latest(buffer)
        assert copied.check() == []
        assert other.score([9], name="judge", value=1.0) == 1
    export(buffer, tmp_path / "s.parquet")
    column = pq.read_table(tmp_path / "s.parquet")["scores"].to_pylist()
    assert column == [*['{"judge":0.7}'] * 4, *[None] * 5, '{"judge":null}', None, None]


def test_sql_reads_latest_scores_and_the_history(buffer, db, location):
    buffer.score([1, 2], name="judge", value=[0.25, 0.5], by="v1")
    key = "scores->>'judge'" if "postgresql" in location else "json_extract(scores, '$.judge')"
    rows = db.sql(f"SELECT position, {key} AS judge FROM experience WHERE {key} IS NOT NULL")
    judged = {row["position"]: float(row["judge"]) for row in rows.to_pylist()}
    assert judged == {1: 0.25, 2: 0.5}
    table = db.sql("SELECT position, value, scored_by FROM experience_scores ORDER BY id")
    assert table.to_pylist() == [
        {"position": 1, "value": 0.25, "scored_by": "v1"},
        {"position": 2, "value": 0.5, "scored_by": "v1"},
    ]


def test_acknowledging_a_lease_stores_scores_in_the_same_transaction(buffer):
    judge = buffer.consumer("judge")
    lease = judge.lease(2, QueryBuilder().is_null("scores.judge"), unit=expdb.Episode())
    with pytest.raises(expdb.InvalidValue, match=r"rows\[0\]: .*nan"):
        lease.acknowledge(scores={"episode": lease.batch["episode"], "name": "j", "value": np.nan})
    values = lease.batch["episode"] / 2
    lease.acknowledge(
        7, scores={"episode": lease.batch["episode"], "name": "judge", "value": values, "by": "v1"}
    )
    assert judge.last_trainer_step == 7
    assert buffer.count(QueryBuilder().is_null("scores.judge")) == 4
    rest = judge.lease(1, QueryBuilder().is_null("scores.judge"), unit=expdb.Episode())
    assert set(rest.batch["episode"].tolist()).isdisjoint(lease.batch["episode"].tolist())
    rest.acknowledge(scores={"episode": rest.batch["episode"], "name": "judge", "value": [0.5]})
    with pytest.raises(expdb.LeaseLost):
        lease.acknowledge(scores={"episode": lease.batch["episode"], "name": "j", "value": 1.0})
    assert set(buffer.scores()["name"].to_pylist()) == {"judge"}


def test_a_judge_whose_steps_were_evicted_can_acknowledge(db):
    buffer = db.buffer("small", capacity=8)
    fill(buffer, 2)
    lease = buffer.consumer("judge").lease(1, {"episode_id": "e0"}, unit=expdb.Episode())
    buffer.store_batch({"episode_id": "e2", "obs": np.zeros(4)})
    scores = [{"episode_id": name, "name": "judge", "value": 1.0} for name in ("e0", "e1")]
    with pytest.warns(errors.ExpDBWarning, match="1 of 2 scores .* were not recorded"):
        lease.acknowledge(scores=scores)
    assert buffer.scores()["episode_id"].to_pylist() == ["e1"]


def score_some(location, number):
    with expdb.open(location) as db:
        for k in range(25):
            db.buffer("train").score([k % 12], name=f"judge{number}", value=float(k))


def test_judges_in_several_processes_lose_no_score(buffer, location):
    run_at_once([FORKSERVER.Process(target=score_some, args=(location, k)) for k in range(3)])
    table = buffer.scores()
    assert table["id"].to_pylist() == list(range(75))
    for k in range(3):
        of_judge = buffer.scores(name=f"judge{k}")
        assert of_judge["value"].to_pylist() == [float(n) for n in range(25)]
        assert latest(buffer, f"judge{k}") == {
            position: float(max(n for n in range(25) if n % 12 == position))
            for position in range(12)
        }


@pytest.mark.one_database
def test_a_misspelt_score_warns_after_the_first_score_is_recorded(db, monkeypatch):
    buffer = db.buffer("unscored")
    monkeypatch.setattr(tags, "LOOK_SECONDS", 0.0)
    for name in ("a", "b"):
        buffer.store(episode_id=name, group_id="g", reward=1.0, terminated=True)
    unit = expdb.Group(2, score="jugde")
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(1, unit=unit)
    buffer.score(episode_id="a", name="judge", value=1.0)
    with (
        pytest.warns(errors.ExpDBWarning, match="did you mean 'judge'"),
        pytest.raises(expdb.TooFewRows),
    ):
        buffer.sample(1, unit=unit)


def test_the_error_for_an_unflushed_episode_says_when_to_score(scratch):
    episode = scratch.episode("t", episode_id="e")
    episode.append(n=1)
    with pytest.raises(errors.UnknownEpisode, match="after its writer has flushed"):
        scratch.score(episode_id="e", name="judge", value=1.0)
    episode.end()


@pytest.mark.parametrize("first", ["step", "episode"])
def test_check_accepts_failed_scores_after_values_of_steps_and_episodes(db, buffer, first):
    with buffer.episode("t", episode_id="e") as episode:
        episode.extend({"x": np.arange(3)})
    where = {"step": {"where": [1]}, "episode": {"episode_id": "e"}}
    second = "episode" if first == "step" else "step"
    buffer.score(name="judge", value=0.5, **where[first])
    buffer.score(name="judge", value=None, status="timeout", **where[second])
    assert db.check() == []


def test_check_accepts_steps_that_were_stored_after_the_score_of_their_episode(db, buffer):
    episode = buffer.episode("t", episode_id="e", flush_steps=1)
    episode.append(x=0)
    with pytest.warns(errors.ExpDBWarning, match="while it is open"):
        buffer.score(episode_id="e", name="judge", value=0.5)
    episode.append(x=1)
    buffer.score(episode_id="e", name="judge", value=None, status="timeout")
    episode.end()
    assert db.check() == []
