"""Writing steps, batches and episodes.

These tests cover acknowledged writes, rejected writes, and the start and end of episodes.
"""

import numpy as np
import pyarrow as pa
import pytest
from behind import store_of
from contents import steps_of

import expdb
from expdb import errors

pytestmark = pytest.mark.both_databases


def test_positions_count_up_and_are_never_reused(buffer):
    assert [buffer.store(x=k) for k in range(3)] == [0, 1, 2]
    assert buffer.clear() == 3
    assert len(buffer) == 0
    assert buffer.store(x=1) == 3
    assert buffer.get([3])["episode"].tolist() == [1]


def test_a_step_keeps_every_column(buffer):
    buffer.store(
        task_id="t", task_name="n", agent_id="a", step=7, episode_id="e", group_id="g",
        pre_agent="p", execute_time=12.5,
        reward=0.5, truncated=True, policy_version=3, tags={"k": [1, {"a": None}]},
        episode_tags={"e": 1}, action=1,
    )  # fmt: skip
    row = steps_of(buffer)[0]
    assert row.pop("run") == buffer._database.run
    assert row == {
        "position": 0, "episode": 0, "episode_id": "e", "task_id": "t", "task_name": "n",
        "agent_id": "a", "group_id": "g",
        "status": "complete", "policy_version": 3, "policy_version_end": 3,
        "first_policy_version": 3, "last_policy_version": 3, "step": 7, "pre_agent": "p",
        "execute_time": 12.5, "reward": 0.5,
        "terminated": False, "truncated": True, "tags": {"k": [1, {"a": None}]}, "scores": None,
        "action": 1,
    }  # fmt: skip
    assert buffer.episodes().to_pylist()[0]["episode_tags"] == '{"e":1}'


def test_steps_without_an_episode_id_join_the_open_episode_of_task_and_agent(buffer):
    for k, (task, agent) in enumerate(["ax", "bx", "ay", "ax", "ax"]):
        buffer.store(task_id=task, agent_id=agent, terminated=k == 3, reward=1.0)
    assert buffer.get(range(5))["episode"].tolist() == [0, 1, 2, 0, 3]
    assert buffer.get(range(5))["step"].tolist() == [0, 0, 0, 1, 0]
    table = buffer.episodes()
    assert table["status"].to_pylist() == ["complete", "open", "open", "open"]
    assert table["episode_return"].to_pylist() == [2.0, 1.0, 1.0, 1.0]


def test_closing_completes_open_episodes_and_a_new_run_starts_new_ones(open_db):
    with open_db() as db:
        db.buffer("b").store(task_id="t")
        first = db.run
    with open_db(run="mine") as db:
        buffer = db.buffer("b")
        buffer.store(task_id="t")
        assert buffer.episodes()["status"].to_pylist() == ["complete", "open"]
        assert buffer.episodes()["run"].to_pylist() == [first, "mine"]


def test_a_named_episode_continues_until_it_is_ended(db, buffer):
    buffer.store(episode_id="e", task_id="t")
    buffer.store(task_id="t")
    buffer.store(episode_id="e", task_id="t")
    assert buffer.get(range(3))["episode"].tolist() == [0, 1, 0]
    buffer.end_episode("e")
    with pytest.raises(errors.EpisodeEnded, match="another episode_id"):
        buffer.store(episode_id="e", task_id="t")
    with pytest.raises(errors.EpisodeEnded):
        buffer.end_episode("e")
    with pytest.raises(errors.UnknownEpisode):
        buffer.end_episode("nope")
    with pytest.raises(expdb.InvalidValue):
        buffer.end_episode("e", status="done")


def test_later_steps_add_missing_episode_columns(buffer):
    buffer.store(task_id="t")
    buffer.store(task_id="t", task_name="name", policy_version=4, episode_tags={"a": 1})
    buffer.store(task_id="t", policy_version=5)
    row = buffer.episodes().to_pylist()[0]
    assert (row["task_name"], row["episode_tags"]) == ("name", '{"a":1}')
    assert row["policy_version"] is None  # the first step has no version
    assert (row["first_policy_version"], row["last_policy_version"]) == (4, 5)


def test_a_rejected_step_does_not_change_its_episode(scratch):
    scratch.store(episode_id="e", x=1)
    before = scratch.episodes().to_pylist()
    more = {"task_name": "new", "group_id": "g", "policy_version": 3, "episode_tags": {"a": 1}}
    with pytest.raises(errors.FieldMismatch):
        scratch.store(episode_id="e", x="bad", **more)
    with pytest.raises(errors.FieldMismatch):
        scratch.store_batch(
            [{"episode_id": "e", "group_id": "g", "x": 1}, {"episode_id": "e", "x": "bad"}]
        )
    with pytest.raises(expdb.ExpDBError), scratch.episode("t") as episode:
        episode.append(new=1, x="bad")
    assert scratch.episodes().to_pylist() == before
    assert list(scratch.stats()["fields"]) == ["x"]
    with scratch.episode("t") as episode:
        episode.append(x=1)
        with pytest.raises(errors.FieldMismatch):
            episode.append(new=1, x="bad")
        episode.append(new="text", x=2)
    assert scratch.stats()["fields"] == {"x": "int64", "new": "text"}
    assert [row["x"] for row in steps_of(scratch)] == [1, 1, 2]


@pytest.mark.filterwarnings("ignore:episode .* was never ended:expdb.errors.ExpDBWarning")
def test_handles_adopt_field_types_stored_by_other_handles(open_db):
    first, second = open_db().buffer("b"), open_db().buffer("b")
    first.store(x=1.0, tokens=[0.5])
    second.store(x=1, tokens=[1])  # the field has the type float64 by now
    assert second.get([1])["x"].tolist() == [1.0]
    with second.episode("t") as episode:
        episode.append(y=1, z=1)
        first.store(y=0.5)
    assert second.get([3])["y"].tolist() == [1.0]
    writer = second.episode("t")
    writer.append(w=1)
    first.store(w="text")
    for _ in range(2):
        with pytest.raises(errors.FieldMismatch, match="'w' has type text"):
            writer.end()
    first.store(obs={"a": np.zeros(2)})
    with pytest.raises(errors.FieldMismatch, match="obs"):
        second.store(obs=5)
    second.store(obs={"k": 1})
    assert set(first.stats()["fields"]) == {"x", "tokens", "y", "z", "w", "obs.a", "obs.k"}


def test_open_handles_see_newly_declared_fields(open_db):
    first, second = open_db().buffer("b"), open_db()
    second.buffer("b", fields={"tokens": expdb.Field("int32", (None,))})
    first.store(tokens=np.array([1, 2], np.int32))
    first.store(tokens=[3])
    assert [array.tolist() for array in first.get([0, 1])["tokens"]] == [[1, 2], [3]]
    with pytest.raises(errors.FieldMismatch):
        second.buffer("b", fields={"tokens": "int32"})


def test_final_observations_can_omit_declared_fields(db):
    buffer = db.buffer("v", fields={"v": expdb.Field("int16", (None, 2)), "t": "text", "j": "json"})
    with buffer.episode("t") as episode:
        for _ in range(2):
            episode.append(obs=np.zeros(2), v=np.ones((1, 2), np.int16), t="a", j={"a": 1})
            episode.flush()
        episode.end(obs=np.ones(2))
    buffer.delete(np.array([0]))
    assert buffer.get([1])["v"][0].tolist() == [[1, 1]]
    assert (buffer.sample(2, unit=expdb.NStep(1))["next_obs"] == 1).all()


def test_a_nested_and_a_dotted_field_of_the_same_name_are_rejected(buffer):
    with pytest.raises(expdb.InvalidValue, match="twice"):
        buffer.store_batch([{"obs": {"a": np.ones(1)}, "obs.a": np.zeros(1)}])
    assert buffer.stats()["fields"] == {}


def test_closing_completes_episodes_even_if_one_buffer_was_dropped(open_db):
    db, other = open_db(), open_db()
    db.buffer("one").store(x=1)
    db.buffer("two").store(x=1)
    other.drop("one")
    db.close()
    assert other.buffer("two").episodes()["status"].to_pylist() == ["complete"]


# -- batches


def test_a_batch_of_rows_is_stored_in_order(buffer):
    rows = [{"task_id": f"t{k % 2}", "x": k, "reward": k / 2} for k in range(6)]
    assert buffer.store_batch(rows).tolist() == [0, 1, 2, 3, 4, 5]
    batch = buffer.get(range(6))
    assert batch["x"].tolist() == list(range(6))
    assert batch["episode"].tolist() == [0, 1, 0, 1, 0, 1]
    assert batch["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert buffer.store_batch([]).tolist() == []


def test_scalar_columns_of_a_batch_are_broadcast(buffer):
    obs = np.arange(12, dtype=np.float32).reshape(4, 3)
    columns = {"obs": obs, "action": [1, 2, 3, 4], "reward": np.ones(4)}
    buffer.store_batch({"task_id": "t", **columns, "state": {"a": 1}, "note": "n"})
    batch = buffer.get(range(4))
    assert (batch["obs"] == obs).all()
    assert batch["action"].tolist() == [1, 2, 3, 4]
    assert batch["note"].tolist() == ["n"] * 4
    assert batch["state"][3] == {"a": 1}


def test_store_batch_accepts_arrow_tables_and_batches_convert_to_arrow(db, buffer):
    columns = {"task_id": ["a", "b"], "reward": [1.0, None], "t": ["u", None]}
    buffer.store_batch(pa.table({**columns, "x": pa.array([1, 2], pa.int32())}))
    batch = buffer.get([0, 1])
    assert batch["x"].dtype == np.int32
    assert np.isnan(batch["reward"][1])
    assert batch["t"].tolist() == ["u", None]
    buffer.store_batch(
        {"task_id": "c", "obs": np.ones((2, 3), np.float32), "x": np.array([7, 8], np.int32)}
    )
    again = pa.table(buffer.get([2, 3], fields=["obs", "x"]))
    other = db.buffer("other")
    other.store_batch(again)
    assert (other.get([0, 1])["obs"] == 1).all()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": [1, 2], "y": [1]}, "must have the same length"),
        ({"x": 1}, "no column"),
        ([1, 2], "a step of a batch must be a mapping"),
        ("abc", "a batch must be"),
        ([{"x": 1}, {"x": "a"}], "'x' has type"),
        ([{"x": 1, "reward": "a"}], "reward"),
        (
            [{"x": 1, "episode_id": "e", "terminated": True}, {"x": 1, "episode_id": "e"}],
            "has ended",
        ),
    ],
)
def test_an_invalid_batch_stores_nothing(scratch, batch, message):
    with pytest.raises(expdb.ExpDBError, match=message):
        scratch.store_batch(batch)
    assert len(scratch) == 0
    assert scratch.episodes().num_rows == 0


# -- episodes


def test_an_episode_is_flushed_at_its_limits_and_ends_complete(buffer):
    with buffer.episode("t", group_id="g", flush_steps=4) as episode:
        for k in range(10):
            episode.append(x=k, reward=0.5)
            assert len(buffer) == (k + 1) // 4 * 4
        assert episode.flush().tolist() == [8, 9]
        assert buffer.episodes()["status"].to_pylist() == ["open"]
    (row,) = buffer.episodes().to_pylist()
    names = "status", "length", "episode_return", "group_id"
    assert [row[name] for name in names] == ["complete", 10, 5.0, "g"]
    assert buffer.get(range(10))["step"].tolist() == list(range(10))


def test_flush_bytes_and_flush_seconds_trigger_a_flush(buffer):
    with buffer.episode("t", flush_bytes=20_000) as episode:
        for flushed in (0, 2, 2, 4):
            episode.append(x=np.zeros(2_000))
            assert len(buffer) == flushed
    with buffer.episode("t", flush_seconds=0.0) as episode:
        episode.append(x=np.zeros(2_000))
        assert len(buffer) == 5


def test_an_exception_stores_appended_steps_and_aborts_the_episode(buffer):
    def crash():
        with buffer.episode("t") as episode:
            episode.append(x=1)
            raise RuntimeError("the environment crashed")

    with pytest.raises(RuntimeError, match="the environment"):
        crash()
    assert len(buffer) == 1
    assert buffer.episodes()["status"].to_pylist() == ["aborted"]


def test_an_ended_episode_rejects_further_calls(buffer):
    with buffer.episode("t") as episode:
        episode.append(x=1, terminated=True)
        with pytest.raises(errors.EpisodeEnded):
            episode.append(x=2)
        episode.end()
        with pytest.raises(errors.EpisodeEnded):
            episode.end()
        with pytest.raises(errors.EpisodeEnded):
            episode.flush()


def test_an_episode_without_a_step_stores_nothing(buffer):
    with buffer.episode("t"):
        pass
    assert buffer.episodes().num_rows == 0
    with (
        pytest.raises(expdb.InvalidValue, match="append a step first"),
        buffer.episode("t") as episode,
    ):
        episode.end(obs=np.zeros(2))


@pytest.mark.filterwarnings("ignore:episode 'f' .* was never ended:expdb.errors.ExpDBWarning")
def test_an_episode_id_cannot_be_reused(buffer):
    with buffer.episode("t", episode_id="e") as episode:
        episode.append(x=1)
        assert episode.episode_id == "e"
    with pytest.raises(errors.EpisodeMismatch, match="already exists"):
        buffer.episode("t", episode_id="e")
    first, second = buffer.episode("t", episode_id="f"), buffer.episode("t", episode_id="f")
    first.append(x=1)
    first.end()
    second.append(x=1)
    with pytest.raises(errors.EpisodeMismatch, match="already exists"):
        second.end()


@pytest.mark.parametrize(("steps", "flushed"), [(3, False), (3, True), (256, False), (256, True)])
def test_the_final_observation_is_stored_but_not_counted_as_a_step(buffer, steps, flushed):
    with buffer.episode("t") as episode:
        for k in range(steps):
            episode.append(obs=np.full(3, k, np.float32), action=k, truncated=k == steps - 1)
        if flushed:
            episode.flush()
        episode.end(obs=np.full(3, steps, np.float32))
    assert len(buffer) == steps
    assert buffer.count() == steps
    batch = buffer.sample(64, {"step": steps - 1}, unit=expdb.NStep(1))
    assert (batch["next_obs"] == steps).all()
    assert buffer.stats()["fields"] == {"obs": "float32[3]", "action": "int64"}


def test_closing_merges_the_chunks_of_open_episodes_and_deletes_evicted_ones(open_db):
    db = open_db()
    buffer = db.buffer("train", capacity=6)
    buffer.store(task_id="evicted", x=0)
    for k in range(6):
        buffer.store(task_id="t", x=k)
    db.close()
    buffer = open_db().buffer("train")
    assert buffer.stats()["chunks"] == 1
    assert buffer.episodes()["task_id"].to_pylist() == ["t"]
    assert buffer.get(np.arange(1, 7))["x"].tolist() == list(range(6))


def test_interleaved_episodes_are_merged_by_episode_and_keep_late_rewards(buffer):
    for k in range(60):
        buffer.store(episode_id=f"e{k % 3}", task_id="t", x=k, reward=0.0)
    buffer.update([7], reward=5.0)
    for k in range(3):
        buffer.end_episode(f"e{k}")
    assert buffer.stats()["chunks"] == 3
    batch = buffer.get(range(60))
    assert batch["x"].tolist() == list(range(60))
    assert batch["reward"].tolist() == [5.0 * (k == 7) for k in range(60)]
    assert buffer.episodes()["episode_return"].to_pylist() == [0.0, 5.0, 0.0]
    assert next(buffer.scan(size=7))["x"].tolist() == list(range(7))


@pytest.mark.parametrize("reward", [1e301, -1.7e308])
def test_rewards_whose_sums_could_overflow_are_rejected(buffer, reward):
    buffer.store(episode_id="e", reward=1e300)
    buffer.store(episode_id="e", reward=-1e300)
    for call in (
        lambda: buffer.store(reward=reward),
        lambda: buffer.update({"episode_id": "e"}, reward=reward),
    ):
        with pytest.raises(expdb.InvalidValue, match="1e300"):
            call()


def test_episodes_that_share_a_chunk_keep_their_final_observations(buffer):
    writers = [buffer.episode("t", episode_id=f"e{k}", flush_steps=1) for k in range(3)]
    for k, writer in enumerate(writers):
        writer.append(obs=np.full(2, 10.0 * k))
    buffer.store_batch(
        [
            {"episode_id": f"e{k}", "obs": np.full(2, 10.0 * k + step)}
            for step in range(1, 4)
            for k in range(3)
        ]
    )
    for k, writer in enumerate(writers):
        writer.end(obs=np.full(2, 100.0 + k))
    drawn = buffer.sample(64, unit=expdb.NStep(1), seed=0)
    last = drawn["step"] == 3
    np.testing.assert_array_equal(drawn["next_obs"][last, 0], 100.0 + drawn["obs"][last, 0] // 10)
    np.testing.assert_array_equal(drawn["next_obs"][~last], drawn["obs"][~last] + 1)
    assert len(np.unique(drawn["obs"][last])) == 3


def test_changing_a_dropped_buffer_raises_unknown_buffer(open_db):
    db = open_db()
    buffer = db.buffer("gone")
    buffer.store(x=0)
    buffer.policy_version = 0
    open_db().drop("gone")
    for change in (
        lambda: buffer.store(x=1),
        lambda: buffer.store_batch({"x": np.arange(3)}),
        lambda: buffer.update(np.array([0]), reward=1.0),
        lambda: buffer.delete(np.array([0])),
        lambda: setattr(buffer, "capacity", 9),
        buffer.clear,
        lambda: buffer.consumer("c"),
        lambda: setattr(buffer, "policy_version", 1),
        lambda: setattr(buffer, "pace", expdb.Pace(1, 1)),
        lambda: setattr(buffer, "eviction", expdb.Eviction(max_age_seconds=9.0)),
        lambda: buffer.admit(wait=0),
    ):
        with pytest.raises(errors.UnknownBuffer, match="'gone'"):
            change()
    db.buffer("other").store(x=1)
    assert db.buffers() == ["other"]


def test_a_signature_is_found_while_another_thread_looks_up_another_one(scratch):
    scratch.store(a=1)
    scratch.store(b=1)
    types, signatures = store_of(scratch).fields.types, store_of(scratch).signatures
    decoders = [signatures.of_fields({name: types[name]}) for name in "ab"]

    class Last(tuple):
        """Change the last result when it is read, as another thread may do."""

        def __getitem__(self, index):
            signatures._last = None, decoders[0]
            return super().__getitem__(index)

    signatures._last = Last(signatures._last)
    assert signatures.of_fields({"b": types["b"]}) is decoders[1]
