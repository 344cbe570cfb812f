"""`store_batch` accepts the tables that expdb writes, and refuses others in one message."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import expdb
from expdb import errors
from expdb.export import export


@pytest.fixture
def source(new_buffer):
    buffer = new_buffer(fields={"ids": expdb.Field("int32", (None,)), "grid": expdb.Field(
        "float32", (None, 2))})  # fmt: skip
    for number, status in enumerate(("complete", "aborted", "open")):
        episode = buffer.episode(
            "t", episode_id=status, agent_id="m", group_id="g", policy_version=number,
            episode_tags={"n": number},
        )  # fmt: skip
        for step in range(3):
            episode.append(
                obs=np.full((2, 2), step, np.float32), ids=np.arange(step, dtype=np.int32),
                grid=np.ones((step, 2), np.float32), note={"k": [step]}, text="x", raw=b"\0",
                flag=step == 1, reward=step / 3, tags={"s": step}, policy_version=number + step,
            )  # fmt: skip
        {"complete": episode.end, "aborted": episode.abort, "open": episode.flush}[status]()
    yield buffer
    episode.end()


def read(buffer):
    names = [
        "episode_id", "task_id", "agent_id", "group_id", "status", "step", "reward", "tags",
        "episode_tags", "policy_version", "execute_time", *buffer.stats()["fields"],
    ]  # fmt: skip
    rows = [row for batch in buffer.scan(fields=names) for row in batch.to_list()]
    return [
        {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()} for row in rows
    ]


@pytest.mark.parametrize("kind", ["stream", "table", "export", "archive"])
def test_an_exported_table_is_stored_without_preparation(source, new_buffer, tmp_path, kind):
    buffer, expected = new_buffer(), read(source)
    if kind == "stream":
        table = source.to_arrow()
    elif kind == "table":
        table = source.to_arrow().read_all()
    elif kind == "export":
        export(source, tmp_path / "a.parquet")
        table = parquet.read_table(tmp_path / "a.parquet")
    else:
        source.eviction = expdb.Eviction(max_bytes=1, archive=tmp_path / "archive")
        source.evict()
        (path,) = (tmp_path / "archive").rglob("*.parquet")
        table = parquet.read_table(path, partitioning=None)
        expected = expected[: table.num_rows]
        assert table.num_rows >= 6
    positions = buffer.store_batch(table)
    assert positions.tolist() == list(range(len(expected)))
    assert read(buffer) == expected
    if kind != "archive":
        assert buffer.stats()["fields"] == source.stats()["fields"]


def test_relations_within_a_table_are_kept(new_buffer):
    source, buffer = new_buffer(), new_buffer()
    source.store(episode_id="root", x=1, terminated=True)
    source.store(
        episode_id="child", x=2, parent="root", relation="subagent", parent_step=0, terminated=True
    )
    buffer.store_batch(source.to_arrow())
    assert buffer.lineage("root")["episode_id"].to_pylist() == ["root", "child"]
    other = buffer._database.buffer("only the child")
    other.store_batch(source.to_arrow({"episode_id": "child"}))
    assert other.episodes()["relation"].to_pylist() == [None]


def test_values_without_an_argument_are_left_out_with_a_warning(new_buffer):
    source, buffer = new_buffer(), new_buffer()
    with source.episode("t", episode_id="a") as episode:
        episode.append(obs=np.zeros(2))
        episode.end(obs=np.ones(2))
    source.score(episode_id="a", name="judge", value=1.0)
    source.annotate([0], advantage=[1.5])
    with pytest.warns(expdb.ExpDBWarning, match="store_batch.. leaves out") as caught:
        buffer.store_batch(source.to_arrow())
    message = str(caught[0].message)
    for name in ("scores", "next_obs", "advantage", "expdb.formats.import_rollouts"):
        assert name in message
    assert buffer.stats()["fields"] == {"obs": "float64[2]"}


def test_all_refused_columns_of_a_table_are_named_at_once(scratch):
    table = pa.table({"episode": [1], "mask": [True], "next_act": [0.5], "x": [1], "has_x": [True]})
    with pytest.raises(errors.ReservedName) as caught:
        scratch.store_batch(table)
    assert str(caught.value) == (
        "the columns episode, mask, next_act cannot be stored, because they have the names of "
        "columns or batch keys; drop them with table.drop_columns(['episode', 'mask', "
        "'next_act']), or rename them"
    )
    scratch.store_batch(table.drop_columns(["episode", "mask", "next_act"]))
    assert scratch.get([0])["x"].tolist() == [1]
