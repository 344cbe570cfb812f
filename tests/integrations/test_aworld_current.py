"""Tests of the storage of AWorld 0.3 on a database: blocks, items, conditions and sizes."""

import asyncio
import os
import tempfile
from functools import partial

import pytest

import expdb

# From its import, AWorld writes logs into the working directory by default.
os.environ.setdefault("AWORLD_LOG_PATH", tempfile.mkdtemp(prefix="expdb-aworld-logs-"))

WHY = "AWorld 0.3 is not installed: run `python3 dev.py test --ecosystems`"
pytest.importorskip("aworld.core.storage.base", reason=WHY)

if True:  # these imports need the package
    from aworld.core.storage.data import Data
    from aworld.core.storage.inmemory_store import (
        InmemoryConditionBuilder,
        InmemoryConfig,
        InmemoryStorage,
    )
    from pydantic import BaseModel

    from expdb.integrations.aworld.current import ExperienceConfig, ExperienceStorage

    class Answer(BaseModel):
        text: str
        score: float | None = None


pytestmark = pytest.mark.filterwarnings("default")  # AWorld itself emits warnings


@pytest.fixture
def make(tmp_path, close):
    location = str(tmp_path / "runs.db")
    return lambda **options: close(
        ExperienceStorage(ExperienceConfig(location=location, **options))
    )


def item(k, block="b", **more):
    return Data(id=f"i{k}", block_id=block, value=Answer(text=f"answer {k}", score=k), **more)


def texts(items):
    return [record.value.text for record in items]


@pytest.fixture(params=["theirs", "ours"])
def storage(request, make):
    """Return AWorld's storage in memory or expdb's storage; both must behave alike."""
    return InmemoryStorage(InmemoryConfig()) if request.param == "theirs" else make()


def test_items_keep_their_order_when_they_are_replaced(storage):
    async def work():
        assert await storage.create_datas([item(k) for k in range(3)])
        assert not await storage.create_data(item(1), overwrite=False)
        changed = item(1)
        changed.value = Answer(text="changed")
        assert await storage.create_data(changed)
        assert texts(await storage.get_data_items("b")) == ["answer 0", "changed", "answer 2"]
        assert await storage.update_data(item(0))
        assert await storage.update_data(item(9))
        assert not await storage.update_data(item(9), exists=True)
        assert await storage.delete_data("i0", block_id="b")
        assert not await storage.delete_data("i0", block_id="b", exists=True)
        assert await storage.size() == 2
        assert await storage.get_data_items("nothing") == []

    asyncio.run(work())


def test_blocks_are_created_and_deleted_with_their_items(storage):
    async def work():
        assert await storage.create_block("b")
        assert not await storage.create_block("b", overwrite=False)
        await storage.create_data(item(0))
        await storage.create_data(item(1, "other"))
        assert (await storage.get_block("b")).id == "b"
        assert await storage.get_block("nothing") is None
        assert await storage.delete_block("b")
        assert not await storage.delete_block("b")
        assert texts(await storage.select_data()) == ["answer 1"]
        await storage.delete_all()
        assert await storage.size() == 0

    asyncio.run(work())


def test_conditions_select_items_by_their_values(storage):
    where = partial(InmemoryConditionBuilder, None)

    async def work():
        await storage.create_datas([item(k, f"b{k % 2}") for k in range(6)])
        for condition, expected in (
            (where().gte("score", 4).build(), [4, 5]),
            (where().eq("text", "answer 3").build(), [3]),
            (where().in_("score", [1, 2]).build(), [1, 2]),
            (where().like("text", "5").or_().lt("score", 1).build(), [0, 5]),
            (where().gt("score", 1).and_().lt("score", 4).build(), [2, 3]),
        ):
            records = await storage.select_data(condition)
            assert sorted(record.value.score for record in records) == expected
            assert await storage.size(condition) == len(expected)

    asyncio.run(work())


def test_raw_data_round_trips(make):
    async def work(storage):
        value = {"list": [1, {"a": None}], "text": "ä"}
        await storage.create_data(Data(id="x", block_id="raw", value=value, meta_info={"k": 1}))
        await storage.create_data(Answer(text="no id"), block_id="models")
        ((raw,), models) = await storage.get_data_items("raw"), await storage.get_data("models")
        assert (raw.value, raw.meta_info) == (value, {"k": 1})
        assert models == [Answer(text="no id")]
        for bad in (object(), {1: 2}, (1,), float("nan")):
            with pytest.raises(expdb.InvalidValue, match=r"value is a|the item"):
                await storage.create_data(Data(id="bad", block_id="raw", value=bad))

    asyncio.run(work(make()))


def test_the_oldest_blocks_and_items_are_evicted(make):
    async def work(storage):
        for block in range(3):
            await storage.create_datas([item(k, f"b{block}") for k in range(4)])
        assert await storage.get_block("b0") is None
        assert texts(await storage.get_data_items("b2")) == ["answer 1", "answer 2", "answer 3"]

    asyncio.run(work(make(max_capacity=2, max_items_per_block=3)))


def test_lru_evicts_the_least_recently_written_item(make):
    async def work(storage):
        await storage.create_datas([item(k) for k in range(2)])
        await storage.update_data(item(0))
        await storage.create_data(item(2))
        assert texts(await storage.get_data_items("b")) == ["answer 0", "answer 2"]

    asyncio.run(work(make(max_items_per_block=2, eviction_policy="lru")))


def test_another_handle_and_sql_read_stored_items(make, tmp_path):
    asyncio.run(make().create_data(item(7)))
    assert texts(asyncio.run(make().get_data_items("b"))) == ["answer 7"]
    with expdb.open(tmp_path / "runs.db") as db:
        query = "SELECT task_id FROM experience WHERE buffer = 'aworld_blocks'"
        assert db.sql(query).to_pylist() == [{"task_id": "b"}]
