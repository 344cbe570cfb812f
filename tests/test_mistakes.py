"""Tests that common mistakes cause an error or a warning with a remedy, on both databases."""

import asyncio
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from contents import steps_of

import expdb
from expdb import NStep, QueryBuilder, Stack

WARNING = expdb.errors.ExpDBWarning


def play(buffer, lengths, **columns):
    for k, length in enumerate(lengths):
        with buffer.episode("t", episode_id=f"e{k}", **columns) as episode:
            for t in range(length):
                episode.append(obs=float(t), terminated=t == length - 1)


# -- late rewards ----------------------------------------------------------------------------------


def test_update_with_which_last_changes_the_last_step_of_each_episode(buffer):
    play(buffer, [3, 4])
    assert buffer.update({"episode_id": "e0"}, reward=1.0, which="last") == 1
    assert (
        buffer.update(QueryBuilder().in_("episode_id", ["e0", "e1"]), reward=2.0, which="last") == 2
    )
    assert buffer.episodes()["episode_return"].to_pylist() == [2.0, 2.0]
    assert [row["step"] for row in steps_of(buffer) if row["reward"] is not None] == [2, 3]


def test_the_last_step_is_the_step_with_the_greatest_number(buffer):
    for step in (2, 0, 1):
        buffer.store(episode_id="shuffled", step=step, obs=float(step))
    buffer.end_episode("shuffled")
    assert buffer.update({"episode_id": "shuffled", "step": 0}, reward=1.0, which="last") == 1
    assert [row["step"] for row in steps_of(buffer) if row["reward"] is not None] == [2]


def test_a_reward_for_several_steps_of_an_episode_warns_once(scratch):
    play(scratch, [3, 4])
    with pytest.warns(WARNING, match=r'3 steps of 1 episode, .*which="last"') as caught:
        scratch.update({"episode_id": "e0"}, reward=1.0)
        scratch.update({"episode_id": "e1"}, reward=1.0)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.raises(expdb.InvalidValue, match="'all' or 'last'"):
        scratch.update({"episode_id": "e0"}, reward=1.0, which="first")


def test_rewards_of_single_steps_and_other_columns_do_not_warn(buffer):
    play(buffer, [3, 4])
    buffer.update({"step": 2}, reward=1.0)
    buffer.update({"episode_id": "e0"}, tags={"a": 1})
    buffer.update({"episode_id": "e0"}, reward=None)
    buffer.update({"episode_id": "e0"}, reward=0.0)


def test_updating_the_last_step_of_an_open_episode_warns(buffer):
    with buffer.episode("t", episode_id="e") as episode:
        episode.append(obs=0.0)
        with pytest.warns(
            WARNING, match="found no step of .*, but 1 appended steps are not written yet"
        ):
            assert buffer.update({"episode_id": "e"}, reward=1.0, which="last") == 0
        episode.flush()
        with pytest.warns(
            WARNING, match="1 of the 1 episodes whose last step is updated is still open"
        ) as caught:
            for _ in range(2):
                buffer.update({"episode_id": "e"}, reward=1.0, which="last")
        assert len(caught) == 1


# -- concurrent attempts ---------------------------------------------------------------------------


def test_two_threads_that_store_into_one_episode_cause_one_warning(buffer):
    def attempt():
        for n in range(3):
            buffer.store(task_id="prompt", n=n)

    with pytest.warns(WARNING, match="pass an episode_id for each attempt") as caught:
        for _ in range(3):
            thread = threading.Thread(target=attempt)
            thread.start()
            thread.join()
    assert len(caught) == 1


def test_two_coroutines_that_store_into_one_episode_cause_a_warning(buffer):
    async def attempt():
        for n in range(2):
            buffer.store(task_id="prompt", n=n)
            await asyncio.sleep(0)

    async def both():
        await asyncio.gather(attempt(), attempt())

    with pytest.warns(WARNING, match="two threads or asyncio tasks"):
        asyncio.run(both())


def test_attempts_with_their_own_episode_ids_or_tasks_do_not_warn(buffer):
    def attempt(k):
        buffer.store(task_id="prompt", episode_id=f"attempt {k}", n=k)
        buffer.store(task_id=f"prompt {k}", n=k)
        buffer.store(task_id="ended", n=k, terminated=True)

    for k in range(3):
        thread = threading.Thread(target=attempt, args=(k,))
        thread.start()
        thread.join()
    assert buffer.episodes().num_rows == 9


def test_handles_of_the_same_run_do_not_share_unnamed_episodes(open_db):
    for _ in range(2):
        with open_db(run="shared") as db:
            db.buffer("x").store(task_id="prompt", n=1)
    with open_db() as db:
        assert db.buffer("x").episodes()["run"].to_pylist() == ["shared", "shared"]


# -- misspelt columns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "column"),
    [("done", "terminated"), ("rewrad", "reward"), ("taskId", "task_id"), ("timeout", "truncated")],
)
def test_a_field_with_a_name_similar_to_a_column_warns_once(scratch, name, column):
    with pytest.warns(
        WARNING, match=f"'{name}' becomes a new field; did you mean the column '{column}'"
    ) as caught:
        scratch.store(**{name: 1})
        scratch.store(**{name: 2})
    assert len(caught) == 1
    with pytest.raises(WARNING):  # the tests turn warnings into errors
        scratch.store(**{"dones" if name == "done" else "done": 1})
    assert len(scratch) == 2, "before anything is stored"


@pytest.mark.parametrize(
    ("name", "field"), [("observation", "obs"), ("state", "obs"), ("acton", "action")]
)
def test_a_new_field_in_place_of_a_known_field_warns_once(buffer, name, field):
    step = {"obs": 1.0, "action": 2}
    buffer.store(**step)
    step[name] = step.pop(field)
    with pytest.warns(
        WARNING, match=f"'{name}' becomes a new field; did you mean the field '{field}'"
    ):
        buffer.store(**step)
    buffer.store(**step)
    assert len(buffer) == 3


def test_new_fields_beside_similar_fields_do_not_warn(buffer):
    buffer.store(obs=1.0, action=2, layer_10=3)
    buffer.store(obs=1.0, observation=1.0, action=2, acton=2, layer_11=3)


def test_declared_fields_and_common_names_do_not_warn(db):
    buffer = db.buffer("declared", fields={"done": "bool"})
    buffer.store(done=True)
    fields = (
        "episodes", "tags_x", "obs", "action", "observation", "state", "info", "logprob", "value",
        "messages", "tokens", "text", "mean", "score", "token", "tool_calls",
    )  # fmt: skip
    buffer.store(**dict.fromkeys(fields, 1.0))


# -- tags ------------------------------------------------------------------------------------------


def test_tags_of_an_episode_must_be_passed_as_episode_tags(buffer):
    with buffer.episode("t", episode_tags={"difficulty": "hard"}) as episode:
        episode.append(obs=1.0, tags={"kind": "a"})
    assert buffer.count({"episode_tags.difficulty": "hard", "tags.kind": "a"}) == 1
    with pytest.raises(expdb.InvalidValue, match="episode_tags="):
        buffer.episode("t", tags={"difficulty": "hard"})


def test_a_query_for_an_unknown_tag_warns_once_with_a_suggestion(scratch):
    scratch.store(
        task_id="t", obs=1.0, tags={"kind": "a", "level": 2}, episode_tags={"difficulty": "hard"}
    )
    for query, message in (
        ({"tags.difficulty": "hard"}, r"episode_tags\.difficulty, which is a tag"),
        ({"episode_tags.kind": "a"}, r"tags\.kind, which is a tag"),
        ({"tags.kinds": "a"}, r"did you mean 'kind'\? the stored tags are kind, level"),
        ({"tags.unheard": "a"}, "; the stored tags are kind, level"),
    ):
        with pytest.warns(WARNING, match=message) as caught:
            assert scratch.count(query) == 0
            with pytest.raises(expdb.TooFewRows):
                scratch.sample(1, query)
        assert len(caught) == 1
    with pytest.warns(WARNING, match=r"tags\.indexed"):
        scratch.index("tags.indexed")


def test_queries_for_stored_tags_and_of_empty_buffers_do_not_warn(db):
    buffer = db.buffer("x")
    buffer.index("tags.kind")
    assert buffer.count({"tags.kind": "a"}) == 0
    buffer.store(task_id="t", tags={"kind": "a", "none": None}, episode_tags={"kind": "b"})
    assert buffer.count({"tags.kind": "b"}) == 0
    assert buffer.count({"episode_tags.kind": "b"}) == 1
    assert buffer.count(QueryBuilder().is_null("tags.none")) == 1


# -- stacks without fields -------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [Stack(4), NStep(1, stack=4)])
def test_a_stack_without_stacked_fields_is_refused(scratch, unit):
    with scratch.episode("t") as episode:
        for t in range(6):
            episode.append(frame=np.zeros(2), action=1, terminated=t == 5)
    with pytest.raises(expdb.InvalidValue, match=r"stack_fields=.*the fields are frame, action"):
        scratch.sample(2, unit=unit)
    assert scratch.sample(2, unit=Stack(4, stack_fields=("frame",)))["frame"].shape == (2, 4, 2)


# -- buffers ---------------------------------------------------------------------------------------


def test_an_unknown_buffer_is_an_error_with_a_suggestion(db):
    with pytest.raises(expdb.errors.UnknownBuffer, match="the database has no buffers"):
        db.buffer("train", create=False)
    db.buffer("train")
    with pytest.raises(expdb.errors.UnknownBuffer, match="no buffer 'trian'; did you mean 'train'"):
        db.buffer("trian", create=False)
    assert db.buffers() == ["train"]
    assert db.buffer("train", create=False).name == "train"
    with pytest.raises(expdb.errors.UnknownBuffer, match="did you mean 'train'"):
        db.drop("trian")
    with pytest.raises(
        expdb.TooFewRows,
        match=r"'trian' of .* is empty, and no step was ever stored; .*\(did you mean 'train'\?\)",
    ):
        db.buffer("trian").sample(1)


def test_too_few_rows_reports_the_stored_and_the_missing_steps(db):
    buffer = db.buffer("train")
    buffer.store(task_id="t", obs=1.0)
    for size, where, message in (
        (1, {"task_id": "other"}, "holds 1 step, 0 of which match the query; no steps"),
        (2, {"task_id": "t"}, "1 of which match the query, and 1 .* open; 2 steps .* but only 1"),
    ):
        with pytest.raises(expdb.TooFewRows, match=message):
            buffer.sample(size, where, sampler=expdb.Uniform(replace=False))
    buffer.clear()
    with pytest.raises(expdb.TooFewRows, match="because all steps were evicted or deleted; "):
        buffer.sample(1, wait=0.01)


def test_a_final_observation_under_a_misspelt_name_is_refused(db):
    buffer = db.buffer("train")
    with buffer.episode("t") as episode:
        episode.append(obs=np.zeros(2), image={"left": 1.0})
        with pytest.raises(
            expdb.InvalidValue, match=r"end\(ob\) lacks the field 'obs' of the steps"
        ):
            episode.end(ob=np.ones(2))
        with pytest.raises(expdb.InvalidValue, match="did you mean 'image'"):
            episode.end(obs=np.ones(2), imag={"left": 2.0})
        episode.append(obs=np.ones(2), image={"left": 1.0})
        episode.end(obs=np.ones(2), obs_2=np.ones(2), image={"left": 2.0})
    assert buffer.sample(9, unit=expdb.NStep(1))["next_obs"].all()


@pytest.mark.parametrize(("positions", "values"), [((4, 2), (2, 4)), ((4,), (2, 2)), ((4,), (3,))])
def test_priorities_must_have_the_shape_of_their_positions(db, positions, values):
    buffer = db.buffer("train")
    buffer.store_batch({"n": np.arange(8)})
    indices = np.arange(np.prod(positions)).reshape(positions)
    with pytest.raises(
        expdb.InvalidValue, match="one priority for each position, in the same order"
    ):
        buffer.update_priorities(indices, np.ones(values))
    assert buffer.update_priorities(indices, np.ones((*positions, 1))) == indices.size


def test_queries_with_similar_long_arrays_are_distinguished(db):
    """The text form of an array omits its middle and some digits of its numbers."""
    buffer = db.buffer("train")
    buffer.store_batch({"n": np.arange(5000), "reward": 1 + np.arange(5000) * 1e-10})
    for wanted in (np.arange(2000), np.r_[0:3, 2500:4494, 1997:2000]):
        query = {"field": "position", "op": "in", "value": wanted}
        assert np.isin(buffer.sample(1000, query)["position"], wanted).all()
    for n in (1, 3):
        query = {"field": "reward", "op": "in", "value": np.array([1 + n * 1e-10])}
        for _ in range(3):
            assert set(buffer.sample(4, query)["n"].tolist()) == {n}
    with pytest.raises(expdb.ExpDBError):
        buffer.sample(3, {"reward": np.longdouble(1)}, fields=["n"])


def test_a_sampling_state_may_be_newer_than_the_buffer(tmp_path):
    """After the restore of a backup, steps that are stored later must also be sampled."""
    sampler = expdb.Prioritized()
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("b")
        buffer.store_batch({"n": np.arange(50)})
        buffer.sample(4, sampler=sampler)
        db.backup(tmp_path / "copy.db")
        buffer.store_batch({"n": np.arange(50)})
        batch = buffer.sample(4, sampler=sampler)
        buffer.update_priorities(batch["position"], [1, 2, 3, 4])
        state = buffer.sampling_state()
    with expdb.open(tmp_path / "copy.db") as db:
        buffer = db.buffer("b")
        buffer.restore_sampling(state)
        for count in (50, 80, 130):
            drawn = buffer.sample(4000, sampler=sampler, fields=["position", "probability"])
            assert len(np.unique(drawn["position"])) > 0.7 * count
            assert np.isfinite(drawn["probability"]).all()
            buffer.store_batch({"n": np.arange({50: 30, 80: 50}.get(count, 1))})


@pytest.mark.parametrize("name", ["truncated", "terminated", "reward"])
def test_the_end_of_an_episode_refuses_columns_of_a_step(scratch, name):
    with scratch.episode("t") as episode:
        episode.append(obs=1.0)
        with pytest.raises(expdb.InvalidValue, match=f"'{name}', which belongs to a step"):
            episode.end(obs=2.0, **{name: True})


HUGE = 10**12


@pytest.mark.parametrize(
    "act",
    [
        lambda buffer, consumer: consumer.lease(HUGE),
        lambda buffer, consumer: consumer.lease(2**63 - 1),
        lambda buffer, consumer: consumer.lease(2**63 - 1, unit=expdb.Episode()),
        lambda buffer, consumer: consumer.lease(2 * HUGE, at_least=HUGE),
        lambda buffer, consumer: buffer.sample(HUGE),
        lambda buffer, consumer: buffer.sample(2**62),
        lambda buffer, consumer: buffer.sample(HUGE, sampler=expdb.Prioritized()),
        lambda buffer, consumer: buffer.sample(2, unit=expdb.Sequence(HUGE)),
        lambda buffer, consumer: buffer.sample(2, unit=expdb.Sequence(2**62)),
        lambda buffer, consumer: buffer.sample(1, unit=expdb.Group(HUGE, complete=False)),
    ],
)
def test_a_batch_that_does_not_fit_in_memory_is_refused(buffer, act):
    buffer.store_batch([{"task_id": "t", "x": k, "truncated": True} for k in range(5)])
    buffer.update_priorities([0], [1.0])
    consumer = buffer.consumer("c")
    with pytest.raises(
        expdb.InvalidValue, match=r"at least 1 and at most 1000000000|does not fit in memory"
    ):
        act(buffer, consumer)
    assert consumer.lease(5).batch.size == 5


CALLS_FROM_OTHER_LIBRARIES = [
    (lambda db, buffer, batch: list(buffer), TypeError, r"not iterable; scan\(\) yields"),
    (lambda db, buffer, batch: buffer[0], TypeError, r"cannot be indexed; use get\(\[position\]\)"),
    (lambda db, buffer, batch: batch.obs, AttributeError, r"'obs'; use batch\['obs'\]"),
    (lambda db, buffer, batch: batch.rewards, AttributeError, r"use batch\['reward'\]"),
    (lambda db, buffer, batch: buffer.writer().append([1.0]), expdb.InvalidValue,
     r"append\(\) accepts only keyword arguments, got \[1.0\]; call append\(obs="),
    (lambda db, buffer, batch: buffer.add(obs=1), AttributeError, r"'add'; use store\(task_id="),
    (lambda db, buffer, batch: buffer.size(), AttributeError, r"'size'; use len\(buffer\)"),
    (lambda db, buffer, batch: buffer.update_priority([0], [1.0]), AttributeError,
     r"did you mean 'update_priorities'\?"),
    (lambda db, buffer, batch: db.execute("SELECT 1"), AttributeError, r"use sql\(query\)"),
    (lambda db, buffer, batch: db.tables, AttributeError, r"use buffers\(\)"),
    (lambda db, buffer, batch: expdb.ReplayBuffer(100), expdb.InvalidValue,
     r"call expdb.open\(path\).buffer\(name\)"),
    (lambda db, buffer, batch: expdb.ExperienceDB("runs.db"), expdb.InvalidValue,
     r"call expdb.open\(location\)"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "error", "remedy"), CALLS_FROM_OTHER_LIBRARIES)
def test_calls_known_from_other_libraries_are_errors_with_a_remedy(
    db, buffer, mistake, error, remedy
):
    buffer.store(obs=np.zeros(2), reward=1.0)
    batch = buffer.sample(1)
    with pytest.raises(error, match=remedy) as raised:
        mistake(db, buffer, batch)
    assert "\n" not in str(raised.value)


def test_dir_lists_the_public_names():
    assert set(expdb.__all__) <= set(dir(expdb))
    assert not [name for name in dir(expdb) if name.startswith("_") and not name.startswith("__")]
    assert not hasattr(expdb, "no_such_name")
    assert not hasattr(expdb, "no.such.name")
    code = "import expdb; print(expdb.errors.TooFewRows.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "TooFewRows\n"


def test_many_episodes_without_a_task_id_warn_once(buffer, monkeypatch):
    monkeypatch.setattr("expdb.names.MANY_EPISODES", 3)
    for _ in range(2):
        buffer.store(x=1, terminated=True)
        buffer.store(task_id="default", x=1, terminated=True)
    with pytest.warns(expdb.errors.ExpDBWarning, match=r"3 episodes were stored without task_id"):
        buffer.store(x=1, terminated=True)
    buffer.store(x=1, terminated=True)
    with buffer.writer() as writer:
        for _ in range(2):
            writer.append(x=1, truncated=True)
        with pytest.warns(expdb.errors.ExpDBWarning, match="without task_id"):
            writer.append(x=1, truncated=True)
        writer.append(x=1, truncated=True)
    assert buffer.tasks() == ["default"]


def test_doctor_reports_episodes_that_stay_open_for_more_than_a_day(db, buffer, monkeypatch):
    buffer.store(task_id="t", episode_id="forgotten", x=1)
    assert not [finding for finding in db.doctor() if "open for more" in finding["what"]]
    now = time.time()
    monkeypatch.setattr("expdb.database.time.time", lambda: now + 2 * 86_400)
    (finding,) = [
        finding for finding in db.doctor() if "open for more than a day" in finding["what"]
    ]
    assert (finding["found"], "end_episode" in finding["advice"]) == ("1", True)
    buffer.end_episode("forgotten")
    assert not [finding for finding in db.doctor() if "open for more" in finding["what"]]


def test_too_few_rows_names_the_capacity_if_an_episode_is_longer(new_buffer):
    buffer = new_buffer(capacity=5)
    with buffer.episode("t") as episode:
        episode.extend({"x": np.arange(12)})
    with pytest.raises(expdb.TooFewRows, match=r"raise its capacity of 5 to sample whole episodes"):
        buffer.sample(1, unit=expdb.Episode())


def test_keep_is_a_deprecated_alias_of_unchanged():
    with pytest.warns(DeprecationWarning, match="use expdb.UNCHANGED"):
        assert expdb.KEEP is expdb.UNCHANGED


def test_using_a_database_as_a_collection_raises_with_the_right_call(db):
    with pytest.raises(TypeError, match=r"open a buffer with buffer\('train'\)"):
        db["train"]
    with pytest.raises(AttributeError, match=r"open a buffer with buffer\('train'\)"):
        db.train  # noqa: B018
    with pytest.raises(TypeError, match="cannot be indexed"):
        list(db)


def test_reading_a_lease_like_a_batch_names_the_batch(buffer):
    buffer.store(obs=1.0)
    lease = buffer.consumer("c").lease(1)
    with pytest.raises(TypeError, match=r"use lease\.batch\['obs'\]"):
        lease["obs"]
    lease.release()


def test_unknown_arguments_raise_with_the_most_similar_name(db, buffer):
    with pytest.raises(
        expdb.InvalidValue, match=r"^sample\(\) has no argument 'wher', did you mean 'where'\?$"
    ):
        buffer.sample(1, wher={"reward": 1.0})
    with pytest.raises(expdb.InvalidValue, match=r"^draws\(\) .* 'x'; its arguments are positions"):
        buffer.draws(x=1)
    for call, name, meant in (
        (lambda: buffer.episode(task="t"), "task", "task_id"),
        (lambda: buffer.consumer("c", max_stale=1), "max_stale", "max_staleness"),
        (lambda: buffer.score(episode="e", name="j", value=1.0), "episode", "episode_id"),
        (lambda: db.buffer("b", capacty=1), "capacty", "capacity"),
        (lambda: expdb.open("runs.db", readonly=True), "readonly", "read_only"),
    ):
        with pytest.raises(expdb.InvalidValue, match=f"'{name}', did you mean '{meant}'"):
            call()
    with pytest.raises(expdb.InvalidValue, match="both 'rng' and 'seed'; pass only 'seed'"):
        buffer.sample(1, rng=0, seed=0)
    with pytest.raises(expdb.InvalidValue, match="both 'batch_size' and 'size'"):
        buffer.epochs(5, batch_size=4)
    with pytest.raises(expdb.InvalidValue, match="'newst', did you mean 'limit'"):
        buffer.episodes(newst=2)


def test_an_old_name_of_an_argument_works_and_warns(buffer):
    buffer.store_batch([{"x": 0}] * 4)
    with pytest.warns(DeprecationWarning, match=r"'rng' of sample\(\) .* use 'seed'") as warned:
        old = buffer.sample(8, rng=0)
    assert warned[0].filename == __file__
    assert np.array_equal(old["position"], buffer.sample(8, seed=0)["position"])
    with pytest.warns(DeprecationWarning, match="'seconds' of lease.* use 'expiry_seconds'"):
        lease = buffer.consumer("trainer").lease(1, seconds=60.0)
    with pytest.warns(DeprecationWarning, match=r"'max_age' of Eviction\(\).* 'max_age_seconds'"):
        assert expdb.Eviction(max_age=9) == expdb.Eviction(max_age_seconds=9)
    with pytest.warns(DeprecationWarning, match=r"'max_lag' of open\(\).* use 'max_lag_seconds'"):
        expdb.open(":memory:", max_lag=1.0).close()
    with pytest.warns(DeprecationWarning, match="'seconds' of renew.* use 'expiry_seconds'"):
        lease.renew(seconds=60.0)
    with pytest.warns(DeprecationWarning, match="'seconds' of admit.* use 'expiry_seconds'"):
        buffer.admit(seconds=60.0).cancel()
    with pytest.warns(DeprecationWarning, match=r"Lease.give_back is deprecated; use `release`"):
        lease.give_back()


def test_a_method_of_a_buffer_is_suggested_for_a_database(db):
    with pytest.raises(AttributeError, match=r"use buffer\(name\).workers$"):
        db.workers()


def test_one_name_of_a_field_is_a_list_of_one(buffer):
    buffer.store(x=1, task_id="t")
    (batch,) = buffer.scan(fields="task_id")
    assert list(batch) == ["task_id"]


def test_a_deprecated_method_works_and_warns(buffer):
    buffer.store_batch([{"x": k, "task_id": "u" if k == 0 else "t"} for k in range(5)])
    with pytest.warns(DeprecationWarning, match=r"page is deprecated; use `scan\(size=n\)`"):
        assert [row["x"] for row in buffer.page(2, 2, {"task_id": "t"})] == [3, 4]
    deprecated = "page is deprecated"
    for number, size in ((0, 1), (1, 0), (-1, 5), (1.5, 2)):
        with (
            pytest.warns(DeprecationWarning, match=deprecated),
            pytest.raises(expdb.InvalidValue, match="integer of at least 1"),
        ):
            buffer.page(number, size)
    with pytest.warns(DeprecationWarning, match=deprecated):
        assert buffer.page(2**40, 2**40) == buffer.page(4, 2) == []


def test_asynchronous_leases_accept_old_names_and_refuse_unknown_ones(buffer):
    buffer.store_batch([{"x": 0}] * 4)
    consumer = buffer.consumer("trainer")

    async def run():
        with pytest.warns(DeprecationWarning, match="use 'trainer_step'"):
            lease = await consumer.lease_async(1, step=3)
        await lease.acknowledge_async()
        with pytest.raises(expdb.InvalidValue, match="did you mean 'trainer_step'"):
            await consumer.lease_async(1, trainer_stp=3)
        with pytest.raises(expdb.InvalidValue, match="both 'first_step' and"):
            await anext(consumer.batches_async(1, first_step=9, first_trainer_step=3))
        batches = consumer.batches_async(1, first_step=9)
        with pytest.warns(DeprecationWarning, match="use 'first_trainer_step'"):
            await anext(batches)
        await anext(batches)
        await batches.aclose()

    asyncio.run(run())
    assert consumer.last_trainer_step == 9


def test_error_classes_in_expdb_are_deprecated_names():
    for name in set(expdb.errors.__all__) - set(expdb.__all__):
        with pytest.warns(DeprecationWarning, match=f"use expdb.errors.{name}") as warned:
            assert getattr(expdb, name) is getattr(expdb.errors, name)
        assert warned[0].filename == __file__


# -- the first batch -------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["never", "mostly", "by an observation"])
def test_episodes_without_an_end_cause_one_warning_at_the_first_transitions(new_buffer, ends):
    buffer = new_buffer()
    for k in range(12):
        with buffer.episode("t") as episode:
            has_end = ends != "never" and k % 3 > 0
            episode.extend({"obs": np.arange(3.0), "terminated": [False, False, has_end]})
            if ends == "by an observation" and not has_end:
                episode.end(obs=9.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            buffer.sample(4, unit=NStep(1))
    found = [str(item.message) for item in caught if "end without terminated" in str(item.message)]
    assert len(found) == (ends == "never")
    if ends == "never":
        assert "12 of the newest 12 complete episodes" in found[0]


def test_a_last_step_without_a_reward_causes_a_warning_at_the_first_transitions(scratch):
    with scratch.episode("t") as episode:
        episode.append(obs=0.0, action=1, reward=1.0)
        episode.append(obs=1.0, action=None, terminated=True)
    scratch.sample(1)  # batches of other units do not warn
    with pytest.warns(
        expdb.errors.ExpDBWarning, match=r"1 of the newest 1 .* pass it to end\(obs=...\)"
    ):
        scratch.sample(4, unit=NStep(1))


def test_lists_of_one_length_cause_one_warning_at_the_first_batch(new_buffer):
    for lengths, expected in (((2, 2, 2), 1), ((2, 3, 2), 0)):
        buffer = new_buffer()
        for length in lengths:
            buffer.store(task_id="t", obs=[0.5] * length, move=(1, 2, 3)[:length], terminated=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batch = buffer.sample(20, seed=0)
            buffer.sample(20, seed=0)
        found = [item for item in caught if "was stored as lists" in str(item.message)]
        assert len(found) == 2 * expected  # one for each field
        assert batch["move"][0].dtype == np.int64  # a tuple of numbers is stored like a list
    nested = new_buffer(fields={"messages": "json"})
    for k in range(3):
        nested.store(
            task_id="t", grid=[[k, 1], [2, 3]], ragged=[[k]] * (k + 1), messages=[{"a": k}]
        )
    with pytest.warns(expdb.errors.ExpDBWarning, match=r"'grid' .* nested lists of shape \[2, 2\]"):
        nested.sample(20, seed=0)
    declared = new_buffer(fields={"obs": expdb.Field("float32", (None,))})
    declared.store_batch([{"obs": np.zeros(2, np.float32)} for _ in range(3)])
    declared.sample(8)


def test_a_final_observation_of_a_field_that_no_step_has_is_refused(scratch):
    with scratch.episode("t", episode_id="e") as episode:
        episode.append(messages=[{"role": "user", "content": "hi"}], reward=1.0)
        with pytest.raises(expdb.InvalidValue, match=r"no step has a field 'obs'; .* messages"):
            episode.end(obs=[1.0, 2.0])
        episode.end(messages=[{"role": "user", "content": "bye"}])
    assert "obs" not in scratch.stats()["fields"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda db, b: db.sql("SELECT CAST(x'fffe' AS TEXT) AS t"), r"CAST\(\.\.\. AS BLOB\)"),
        (
            lambda db, b: (b.store(v=[0, 1]), b.store(v=[0.5, 1])),
            r"Field\('float64', shape=\(None,",
        ),
        (
            lambda db, b: (b.store(v=[0]), b.store(v=np.zeros(1))),
            r"Field\('float64', shape=\(None,",
        ),
        (lambda db, b: (b.store(v=[0]), b.store(v=[[1], [2, 3]])), "a list at index 0 of the list"),
        (lambda db, b: b.get([[0], [0, 1]]), "integers, got sequences of different lengths"),
        (lambda db, b: expdb.open("host=h dbname=d"), "is a libpq connection string"),
    ],
)
def test_errors_of_ordinary_mistakes_name_the_remedy(module_db, scratch, make, message):
    scratch.store(task_id="t", x=1)
    with pytest.raises(expdb.ExpDBError, match=message):
        make(module_db, scratch)
