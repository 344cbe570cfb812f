"""Tests of AWorld's replay buffer on expdb: its page, samplers, converters and storages."""

import multiprocessing
import pickle
import re
import time
from pathlib import Path

import numpy as np
import pytest
from aworld_models import ActionModel, Observation

import expdb
from expdb.integrations.aworld import (
    Converter,
    DataRow,
    DefaultConverter,
    Experience,
    ExpMeta,
    InMemoryStorage,
    MultiProcMemoryStorage,
    QueryBuilder,
    QueryFilter,
    RandomTaskSample,
    ReplayBuffer,
    SQLStorage,
    Storage,
    TaskSampler,
)

PAGE = Path(__file__).parents[1] / "data" / "aworld_page.md"
OURS = "expdb.integrations.aworld"
FORK, SPAWN = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
CODE = [
    code.replace("aworld.core.common", "aworld_models").replace("aworld.replay_buffer", OURS)
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
]


def steps_of(rows):
    return [data_row.exp_meta.step for data_row in rows]


def row(task="t", step=0, agent="a", name="n", **data):
    return DataRow(
        ExpMeta(task, name, agent, step, time.time()),
        Experience(**{"state": Observation(), "actions": [ActionModel()], **data}),
    )


@pytest.fixture(params=["memory", "processes", "file", "postgresql"])
def storage(request, tmp_path):
    match request.param:
        case "memory":
            backend = InMemoryStorage(max_capacity=100)
        case "processes":
            backend = MultiProcMemoryStorage({}, [], None, max_capacity=100)
        case "file":
            backend = SQLStorage(tmp_path / "rows.db", max_capacity=100)
        case "postgresql":
            backend = SQLStorage(request.getfixturevalue("postgresql_url"), max_capacity=100)
    yield backend
    assert backend.buffer.check() == []
    backend.close()


def write_processing(replay_buffer, task):
    for step in range(20):
        replay_buffer.store(row(task, step))


@pytest.mark.parametrize("number", range(6))
def test_every_block_of_aworlds_page_runs(number):
    assert len(CODE) == 6
    code = CODE[number].strip()
    if code.startswith("QueryBuilder()"):
        code = f"found = (\n{code}\n)"
    buffer = ReplayBuffer()
    space = {
        "time": time, "ReplayBuffer": ReplayBuffer, "RandomTaskSample": RandomTaskSample,
        "DefaultConverter": DefaultConverter, "QueryBuilder": QueryBuilder,
        "write_processing": write_processing, "replay_buffer": buffer,
    }  # fmt: skip
    for k in range(3):
        buffer.store(row(f"task_{k}", name="test_task", agent="agent_1"))
    exec(compile(code, "page", "exec"), space)
    match number:
        case 0:
            (stored,) = buffer.storage.get_by_task_id("task_1")[1:]
            assert stored.exp_data == Experience(state=Observation(), actions=[ActionModel()])
        case 1:
            assert space["data"] == []  # a new ReplayBuffer() has no rows
        case 2:
            for process in space["processes"]:
                process.start()
            for process in space["processes"]:
                process.join()
                assert process.exitcode == 0
            assert space["replay_buffer"].storage.size() == 80
            assert {len(rows) for rows in space["replay_buffer"].sample_task()} == {20}
            space["manager"].shutdown()
        case 3:
            assert space["found"] == {"field": "exp_meta.task_id", "value": "123", "op": "eq"}
        case 4 | 5:
            assert list(space["found"]) == ["and_"]
            assert buffer.sample_task(query_condition=space["found"]) == []


def test_rows_round_trip_unchanged(storage):
    rows = [
        row("t", k, state=Observation(content=f"saw {k}", numbers=[k]),
            actions=[ActionModel(tool_name="x", params={"k": k}), {"plain": k}], reward_t=k / 2,
            adv_t=0.5, v_t=[1, 2], messages=[{"role": "user", "content": "hi"}] * k)
        for k in range(3)
    ]  # fmt: skip
    rows.append(row("t", 3, state={"just": "json"}, actions=None))
    rows.append(row("t", 4, state="text", reward_t=None, agent="other"))
    storage.add_batch(rows[:2])
    for data_row in rows[2:]:
        storage.add(data_row)
    assert storage.get_all() == rows
    assert storage.get_by_task_id("t") == rows
    assert isinstance(storage.get_all()[0].exp_data.state, Observation)
    assert rows[0].to_dict()["exp_data"]["actions"][0]["params"] == {"k": 0}


def test_action_is_an_alias_of_actions_and_pre_agent_is_optional():
    expected = Experience(state=None, actions=[ActionModel()])
    assert Experience(state=None, action=ActionModel()) == expected
    assert Experience(state=None, action=[1, 2]).actions == [1, 2]
    with pytest.raises(ValueError, match="one of them"):
        Experience(state=None, action=1, actions=[1])
    assert ExpMeta("t", "n", "a", 1, 2.0).pre_agent is None


def test_a_model_is_returned_as_a_dict_if_its_module_is_not_loaded(tmp_path):
    with expdb.open(tmp_path / "rows.db") as db:
        buffer = db.buffer("aworld", capacity=10_000, fields={"state": expdb.Field("json")})
        for k, model in ((1, "os:system"), (2, "no.such.module:Model")):
            buffer.store(state={"model": model, "value": {"a": k}}, tags={"id": str(k)})
    storage = SQLStorage(tmp_path / "rows.db")
    assert [data_row.exp_data.state for data_row in storage.get_all()] == [{"a": 1}, {"a": 2}]
    storage.close()


def test_storages_refuse_invalid_rows_and_pages(storage):
    for wrong in (None, DataRow(None, Experience(state=None))):
        with pytest.raises(ValueError, match="exp_meta"):
            storage.add(wrong)
    buffer = ReplayBuffer(storage)
    with pytest.raises(ValueError, match="DataRow"):
        buffer.store(None)
    buffer.store_batch([])
    assert storage.size() == 0
    for page, size in ((0, 5), (1, 0), (1.0, 5), ("1", 5), (None, 5)):
        with pytest.raises(ValueError, match="page and page_size must be"):
            storage.get_paginated(page, size)


def test_storages_return_pages_sizes_and_rows_of_tasks(storage):
    storage.add_batch([row(f"t{k % 3}", k) for k in range(10)])
    pages = [steps_of(storage.get_paginated(page, 4)) for page in (1, 2, 3, 4)]
    assert pages == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]
    assert steps_of(storage.get_paginated(np.uint8(3), np.uint8(4))) == [8, 9]
    assert storage.get_paginated(2**32, 2**32) == []
    assert storage.size() == 10
    assert storage.get_by_task_id("nope") == []
    expected = {"t1": storage.get_by_task_id("t1"), "nope": []}
    assert storage.get_bacth_by_task_ids(["t1", "nope"]) == expected
    assert storage.get_bacth_by_task_ids([]) == {}
    assert steps_of(storage.get_by_task_id("t1")) == [1, 4, 7]


def test_the_oldest_rows_over_the_capacity_are_evicted(storage):
    for k in range(150):
        storage.add(row(f"t{k % 2}", k))
    assert storage.size() == 100
    assert min(steps_of(storage.get_all())) == 50
    storage.clear()
    assert storage.size() == 0
    storage.add(row())
    assert storage.size() == 1


def test_a_task_may_change_its_name_and_few_episodes_stay_open(storage):
    for k in range(300):
        storage.add(row("t" if k < 3 else f"t{k}", k, name=f"name {k}"))
    assert [data_row.exp_meta.task_name for data_row in storage.get_all()][-1] == "name 299"
    assert storage.buffer.stats()["episodes"]["open"] <= 256


Q = QueryBuilder
CONDITIONS = [
    Q().eq("exp_meta.task_id", "t1"), Q().ne("exp_meta.pre_agent", "p"),
    Q().eq("exp_meta.pre_agent", None), Q().ne("exp_meta.pre_agent", None),
    Q().gt("exp_data.reward_t", 1.5), Q().lte("exp_data.reward_t", 1.5),
    Q().is_null("exp_data.reward_t"), Q().is_not_null("exp_data.reward_t"),
    Q().in_("exp_meta.step", [1, 2, 77]), Q().not_in("exp_meta.task_id", ["t1", "t2"]),
    Q().like("exp_meta.task_name", "a%"), Q().not_like("exp_meta.task_name", "_"),
    Q().like("exp_meta.pre_agent", "p"), Q().eq("exp_data.state.content", "saw 3"),
    Q().eq("exp_meta.nothing", None), Q().eq("id", "id 4"), Q().gte("exp_data.adv_t", 3),
    Q().is_null("exp_data.v_t"), Q().in_("exp_meta.pre_agent", [None, "q"]),
    Q().eq("exp_meta.task_id", "t1").or_().eq("exp_meta.task_id", "t2").and_().nested(
        Q().gt("exp_meta.step", 3).or_().like("exp_meta.task_name", "a")),
    Q().eq("exp_data.state.content", "saw 3").or_().eq("exp_meta.step", 1),
]  # fmt: skip


def test_conditions_find_the_same_rows_in_sql_and_in_python(storage):
    rows = []
    for k in range(12):
        values = {"reward_t": None if k % 5 == 0 else k / 4, "adv_t": k}
        state, name = Observation(content=f"saw {k}"), ["abc", "a%c", "x_y"][k % 3]
        data_row = row(f"t{k % 4}", k, name=name, state=state, **values)
        data_row.exp_meta.pre_agent = [None, "p", "q"][k % 3]
        data_row.id = f"id {k}"
        rows.append(data_row)
    storage.add_batch(rows)
    for builder in CONDITIONS:
        condition = builder.build()
        wanted = QueryFilter(condition).filter(rows)
        assert storage.get_all(condition) == wanted
        assert storage.size(condition) == len(wanted)
        assert storage.get_paginated(1, 3, condition) == wanted[:3]
        tasks = list(dict.fromkeys(data_row.exp_meta.task_id for data_row in wanted))
        assert storage.get_task_ids(condition) == tasks
        tasks_drawn = ReplayBuffer(storage).sample_task(query_condition=condition)
        assert sorted(part[0].exp_meta.task_id for part in tasks_drawn) == sorted(tasks)
        # The condition selects tasks, and all their rows are returned.
        assert all(len(part) == 3 for part in tasks_drawn)
    assert QueryFilter(None).filter(rows) == rows
    with pytest.raises(ValueError, match="unknown comparison"):
        QueryFilter({"field": "id", "op": "near", "value": 1}).check_condition(rows[0])


def test_small_buffers_are_sampled_completely_in_order_of_steps():
    buffer = ReplayBuffer()
    for step in (3, 1, 2):
        buffer.store(row("t", step))
    assert list(map(steps_of, buffer.sample_task(batch_size=1000))) == [[1, 2, 3]]
    assert list(buffer.sample()) == ["t"]
    assert ReplayBuffer().sample_task() == []


class FirstTask(TaskSampler):
    """A sampler that was written for AWorld and reads pages of rows."""

    def sample_task_ids(self, storage, batch_size, query_condition=None):
        (first,) = storage.get_paginated(page=1, page_size=1, query_condition=query_condition)
        return [first.exp_meta.task_id]


class Steps(Converter):
    def to_dataset_row(self, rows):
        return steps_of(rows)


class ListStorage(Storage):
    """A storage that a user wrote."""

    def __init__(self):
        self.rows = []

    def add(self, data):
        self.rows.append(data)

    def add_batch(self, data_batch):
        self.rows += data_batch

    def size(self, query_condition=None):
        return len(self.get_all(query_condition))

    def get_paginated(self, page, page_size, query_condition=None):
        return self.get_all(query_condition)[(page - 1) * page_size : page * page_size]

    def get_all(self, query_condition=None):
        return QueryFilter(query_condition).filter(self.rows)

    def get_by_task_id(self, task_id):
        return [data_row for data_row in self.rows if data_row.exp_meta.task_id == task_id]

    def get_bacth_by_task_ids(self, task_ids):
        return {task: self.get_by_task_id(task) for task in task_ids}


@pytest.mark.parametrize("own", [False, True])
def test_samplers_converters_and_storages_written_for_aworld_work(own):
    buffer = ReplayBuffer(ListStorage() if own else InMemoryStorage())
    buffer.store_batch([row(f"t{k % 2}", 9 - k) for k in range(6)])
    options = {"sampler": FirstTask(), "converter": Steps()}
    assert buffer.sample_task(**options) == [[5, 7, 9]]
    condition = QueryBuilder().eq("exp_meta.task_id", "t1").build()
    assert buffer.sample_task(query_condition=condition, **options) == [[4, 6, 8]]
    assert len(buffer.sample_task()) == 2


def test_replay_buffers_without_a_storage_share_no_rows():
    first, second = ReplayBuffer(), ReplayBuffer()
    first.store(row())
    assert (first.storage.size(), second.storage.size()) == (1, 0)
    with pytest.raises(expdb.InvalidValue, match="SQLStorage"):
        pickle.dumps(first)


@pytest.mark.parametrize("context", [FORK, SPAWN], ids=["fork", "spawn"])
@pytest.mark.parametrize("kind", ["file", "postgresql", "processes"])
@pytest.mark.slow
def test_other_processes_can_write_to_a_buffer(request, tmp_path, context, kind):
    manager = context.Manager()
    shared = manager.dict(), manager.list(), manager.Lock()
    if kind == "processes":
        storage = MultiProcMemoryStorage(*shared, max_capacity=500)
    else:
        path = tmp_path / "rows.db"
        url = path if kind == "file" else request.getfixturevalue("postgresql_url")
        storage = SQLStorage(url, max_capacity=500)
    buffer = ReplayBuffer(storage)
    buffer.store(row("mine"))
    processes = [
        context.Process(target=write_processing, args=(buffer, f"task_{k}")) for k in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert storage.size() == 81
    others = QueryBuilder().ne("exp_meta.task_id", "mine").build()
    assert {len(rows) for rows in buffer.sample_task(query_condition=others)} == {20}
    if kind == "processes":  # as another process would open it
        again = MultiProcMemoryStorage(*shared, max_capacity=500)
        assert again.size() == 81
        again.close()
    assert storage.buffer.check() == []
    storage.close()
    manager.shutdown()
