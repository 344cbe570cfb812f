"""Streams of steps as Arrow record batches."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

import expdb

pytestmark = pytest.mark.both_databases


@pytest.fixture
def train(db):
    buffer = db.buffer("train", fields={"ids": expdb.Field("int64", (None,))})
    for k in range(5):
        tags = {"k": k} if k % 2 else None
        buffer.store(
            task_id=f"t{k % 2}", episode_id=f"e{k}", obs=np.full(2, k, np.float32), number=k,
            action={"tool": k}, ids=np.arange(k), reward=float(k), terminated=True, tags=tags,
        )  # fmt: skip
    buffer.store(task_id="t9", number=9)
    return buffer


def test_a_stream_has_the_values_of_all_steps(train):
    reader = train.to_arrow()
    assert isinstance(reader, pa.RecordBatchReader)
    rows = reader.read_all().to_pylist()
    assert [row["position"] for row in rows] == list(range(6))
    assert [row["task_id"] for row in rows] == ["t0", "t1", "t0", "t1", "t0", "t9"]
    assert [row["reward"] for row in rows] == [0.0, 1.0, 2.0, 3.0, 4.0, None]
    assert [row["number"] for row in rows] == [0, 1, 2, 3, 4, 9]
    assert [row["ids"] for row in rows[:3]] == [[], [0], [0, 1]]
    assert rows[3]["action"] == '{"tool":3}'
    assert (rows[3]["tags"], rows[2]["tags"]) == ('{"k":3}', None)
    assert rows[3]["obs"] == [3.0, 3.0]
    assert rows[5]["obs"] is rows[5]["action"] is rows[5]["ids"] is None


def test_fields_select_columns_and_a_query_selects_rows(train):
    train.score(episode_id="e3", name="judge", value=0.5)
    train.annotate(np.array([3]), 7, value=np.array([1.5]))
    names = ["scores.judge", "number", "value", "value@7", "buffer", "episode_tags"]
    table = train.to_arrow({"task_id": "t1"}, names).read_all()
    assert table.column_names == names
    assert table.to_pylist() == [
        {"scores.judge": None, "number": 1, "value": None, "value@7": None, "buffer": "train",
         "episode_tags": None},
        {"scores.judge": 0.5, "number": 3, "value": 1.5, "value@7": 1.5, "buffer": "train",
         "episode_tags": None},
    ]  # fmt: skip


def test_the_schema_does_not_depend_on_the_rows(train):
    reader = train.to_arrow()
    nothing = train.to_arrow({"task_id": "none"})
    assert nothing.schema == reader.schema
    assert nothing.read_all().num_rows == 0
    assert reader.schema.field("reward").type == pa.float64()


def test_times_can_be_returned_as_timestamps(train):
    table = train.to_arrow(fields=["started", "number"], timestamps=True).read_all()
    assert isinstance(table["started"][0].as_py(), datetime.datetime)
    assert train.to_arrow(fields=["started"]).schema.field("started").type == pa.float64()


def test_large_results_are_split_into_several_batches(db):
    buffer = db.buffer("large")
    buffer.store_batch({"number": np.arange(10_000), "episode_id": ["e"] * 10_000})
    sizes, seen = [], []
    for batch in buffer.to_arrow(fields=["number"]):
        sizes.append(batch.num_rows)
        seen += batch["number"].to_pylist()
    assert max(sizes) <= 4096
    assert len(sizes) == 3
    assert seen == list(range(10_000))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fields": ["numbr"]}, expdb.QueryError, "did you mean 'number'"),
        ({"where": {"numbr": 1}}, expdb.QueryError, "numbr"),
        ({"fields": [3]}, expdb.InvalidValue, "fields must be a list of names"),
        ({"fields": []}, expdb.InvalidValue, "at least one name"),
        ({"timestamps": 1}, expdb.InvalidValue, "timestamps must be"),
    ],
)
def test_invalid_arguments_raise_before_rows_are_read(train, arguments, error, message):
    with pytest.raises(error, match=message):
        train.to_arrow(**arguments)
