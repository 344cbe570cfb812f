"""Annotations are arrays that trainers add to stored steps."""

import asyncio
import sqlite3
from contextlib import closing

import numpy as np
import pyarrow.parquet as pq
import pytest
from behind import writing

import expdb
from expdb import TOKEN_FIELDS, Episode, errors
from expdb.export import export


@pytest.fixture
def buffer(db):
    """A buffer of four turns with one to four output tokens, and a step without tokens."""
    buffer = db.buffer("train", fields=TOKEN_FIELDS)
    fill(buffer)
    return buffer


def fill(buffer, name="e"):
    with buffer.episode("task", episode_id=name) as episode:
        for k in range(4):
            ids = np.arange(k + 1, dtype=np.int32)
            episode.append(
                prompt_ids=ids, output_ids=ids, output_mask=ids >= 0,
                logprobs=-ids.astype(np.float32),
            )  # fmt: skip
        episode.append(reward=1.0)


def floats(*lengths, value=0.5):
    return [np.full(length, value, np.float32) for length in lengths]


@pytest.mark.both_databases
def test_an_annotation_is_read_like_a_field(buffer):
    assert buffer.annotate([1, 0, 3], ref_logprobs=floats(2, 1, 4), value=[0.25, 0.5, 1.0]) == 6
    batch = buffer.get([0, 1, 2, 3], fields=["ref_logprobs", "value", "step"])
    assert batch["has_ref_logprobs"].tolist() == [True, True, False, True]
    assert [None if row is None else row.tolist() for row in batch["ref_logprobs"]] == [
        [0.5], [0.5, 0.5], None, [0.5] * 4,
    ]  # fmt: skip
    assert batch["ref_logprobs"][0].dtype == np.float32
    assert batch["value"].tolist()[:2] == [0.5, 0.25]
    assert np.isnan(batch["value"][2])
    assert "value" not in buffer.get([0])
    drawn = buffer.sample(1, unit=Episode(), fields=["value", "reward"])
    assert drawn["has_value"].tolist() == [[True, True, False, True, False]]
    (scanned,) = buffer.scan({"step": 1}, fields=["ref_logprobs"])
    assert scanned["ref_logprobs"][0].tolist() == [0.5, 0.5]


def test_the_greatest_version_is_read_by_default(buffer):
    buffer.annotate([1], advantages=floats(2, value=1))
    buffer.annotate([1], 7, advantages=floats(2, value=7))
    buffer.annotate([1], version=3, advantages=floats(2, value=3))
    buffer.annotate([2], version=3, advantages=floats(3, value=3))

    def read(key):
        rows = buffer.get([0, 1, 2], fields=[key])[key]
        return [None if row is None else float(row[0]) for row in rows]

    assert read("advantages") == [None, 7.0, 3.0]
    assert read("advantages@3") == [None, 3.0, 3.0]
    assert read("advantages@4") == [None, None, None]
    buffer.annotate([1], 7, advantages=floats(2, value=8))
    assert read("advantages") == [None, 8.0, 3.0]
    with pytest.raises(expdb.QueryError, match="advantages@x"):
        read("advantages@x")


@pytest.mark.parametrize(
    ("positions", "arrays", "error", "message"),
    [
        ([1], {"r": floats(3)}, "InvalidValue",
         r"rows\[0\]: annotation 'r' of position 1 has 3 values, but 'output_ids' has 2"),
        ([0, 1], {"r": floats(1, 1)}, "InvalidValue", r"rows\[1\]: annotation 'r' of position 1"),
        ([4], {"r": floats(1)}, "InvalidValue", r"position 4 has 1 values, but 'output_ids' has 0"),
        ([0, 1], {"r": np.zeros((2, 2), np.float32)}, "InvalidValue", "without padding"),
        ([0, 1], {"r": floats(1)}, "InvalidValue", "'r' has 1 entries for 2 positions"),
        ([0], {}, "InvalidValue", "annotate.. got no array"),
        ([0], {"r": 1.0}, "InvalidValue", "'r' must be a list or an array"),
        ([0], {"r": ["x"]}, "InvalidValue", r"rows\[0\]: r: arrays of text"),
        ([0], {"r": [np.array(["x"])]}, "InvalidValue", r"rows\[0\]: r: arrays of text"),
        ([0], {"logprobs": floats(1)}, "FieldMismatch", "'logprobs' is a field of the buffer"),
        ([0], {"reward": [1.0]}, "ReservedName", "'reward' is the name of a column"),
        ([0], {"next_x": [1.0]}, "ReservedName", "starts with the prefix of a derived key"),
        ([0], {"loss_mask": [1.0]}, "ReservedName", "a key that Tokens computes"),
        ([99], {"r": [1.0]}, "Evicted", r"1 position has no step \(99\)"),
        ([[0]], {"r": [1.0]}, "InvalidValue", r"one dimension, got shape \[1, 1\]; select the"),
        ([0, -1], {"r": [1.0, 1.0]}, "InvalidValue", "got -1, which is padding in a batch"),
        ([0, 1], {"r": [1.0, None]}, "InvalidValue", r"rows\[1\]: .* is None for a step"),
        ([0], {"value": [np.int32(1)]}, "FieldMismatch", r"rows\[0\]: .* has the type float64"),
    ],
)  # fmt: skip
def test_an_invalid_annotation_is_refused_and_nothing_is_stored(
    buffer, positions, arrays, error, message
):
    buffer.annotate([2], value=[1.0])
    with pytest.raises(getattr(errors, error), match=message):
        buffer.annotate(positions, **arrays)
    with pytest.raises(expdb.InvalidValue, match="version must be an integer of at least 0"):
        buffer.annotate([0], version=-1, value=[1.0])
    assert buffer.stats()["annotations"] == {"value": "float64"}
    assert buffer.get([0, 1, 2, 4], fields=["value"])["has_value"].tolist() == [0, 0, 1, 0]


def test_a_field_cannot_take_the_name_of_an_annotation(open_db):
    buffer = open_db().buffer("train")
    other = open_db().buffer("train")
    buffer.store(x=1.0)
    buffer.annotate([0], value=[1.0])
    for writer in (buffer, other):
        with pytest.raises(errors.FieldMismatch, match="'value' is the name of an annotation"):
            writer.store(x=1.0, value=2.0)
    assert len(buffer) == 1


def test_arrays_of_a_buffer_without_tokens_can_have_any_length(db):
    buffer = db.buffer("plain")
    for k in range(3):
        buffer.store(x=float(k))
    buffer.annotate(np.arange(3), routes=[np.zeros((k, 2), np.int8) for k in range(3)])
    buffer.annotate([2], routes=[np.ones((5, 2), np.int8)])
    shapes = [row.shape for row in buffer.get([0, 1, 2], fields=["routes"])["routes"]]
    assert shapes == [(0, 2), (1, 2), (5, 2)]
    assert buffer.stats()["annotations"] == {"routes": "int8[None, 2]"}


@pytest.mark.both_databases
def test_evicted_and_deleted_steps_lose_their_annotations(db):
    buffer = db.buffer("small", capacity=8)
    for k in range(8):
        buffer.store(episode_id=f"e{k}", x=k, terminated=True)
    buffer.annotate(np.arange(8), value=np.arange(8.0))
    buffer.delete([5])
    buffer.store(episode_id="new", x=0)
    buffer.store(episode_id="new", x=0)
    left = np.concatenate([batch["position"] for batch in buffer.scan()])
    batch = buffer.get(left, fields=["value"])
    assert dict(zip(left.tolist(), batch["has_value"].tolist(), strict=True)) == {
        1: True, 2: True, 3: True, 4: True, 6: True, 7: True, 8: False, 9: False,
    }  # fmt: skip
    with writing(db) as session:
        assert session.query("SELECT count(*) FROM annotations") == [(6,)]
    buffer.clear()
    with writing(db) as session:
        assert session.query("SELECT count(*) FROM annotations") == [(0,)]


@pytest.mark.both_databases
def test_copies_exports_and_archives_contain_annotations(buffer, location, tmp_path):
    buffer.annotate([0, 1], 2, ref_logprobs=floats(1, 2))
    buffer.annotate([1], 5, ref_logprobs=floats(2, value=5))
    expdb.copy(location, tmp_path / "copy.db")
    with expdb.open(tmp_path / "copy.db") as copied:
        other = copied.buffer("train")
        for key in ("ref_logprobs", "ref_logprobs@2"):
            theirs, ours = (each.get([0, 1, 2], fields=[key])[key] for each in (other, buffer))
            assert [str(row) for row in theirs] == [str(row) for row in ours]
        assert copied.check() == []
    export(buffer, tmp_path / "steps.parquet")
    exported = pq.read_table(tmp_path / "steps.parquet")["ref_logprobs"].to_pylist()
    assert exported == [[0.5], [5.0, 5.0], None, None, None]
    buffer.eviction = expdb.Eviction(archive=tmp_path / "old")
    buffer.capacity = 1
    buffer.evict()
    (file,) = (tmp_path / "old").rglob("*.parquet")
    assert pq.read_table(file)["ref_logprobs"].to_pylist()[:2] == [[0.5], [5.0, 5.0]]


def test_a_batch_is_replayed_unless_an_annotation_in_it_has_changed(buffer):
    buffer.annotate([0, 1, 2, 3], advantages=floats(1, 2, 3, 4), other=[1.0, 2.0, 3.0, 4.0])
    trainer = buffer.consumer("trainer")
    with trainer.lease(1, {"reward": 1.0}, unit=Episode(), fields=["advantages"]) as batch:
        assert batch["has_advantages"].sum() == 4
    buffer.annotate([0], other=[9.0])
    buffer.annotate([0], later=[9.0])
    (replayed,) = buffer.replay("trainer")
    assert replayed["has_advantages"].tolist() == batch["has_advantages"].tolist()
    buffer.annotate([0], 1, advantages=floats(1, value=9))
    with pytest.raises(errors.ReplayMismatch):
        list(buffer.replay("trainer"))


@pytest.mark.parametrize(
    ("change", "position", "reason"),
    [
        ("data = zeroblob(8)", 0, "its checksum does not match"),
        ("shape = '[7]'", 0, "its shape"),
        ("position = 1", 1, "its checksum does not match"),
    ],
)
def test_the_error_for_a_corrupted_annotation_names_its_position(
    tmp_path, change, position, reason
):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        db.buffer("train").store_batch({"x": [0, 1]})
        db.buffer("train").annotate([0], value=[1.0])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE annotations SET {change}")
    with expdb.open(path) as db:
        with pytest.raises(errors.DatabaseDamaged, match=f"position {position} .*{reason}"):
            db.buffer("train").get([position], fields=["value"])
        assert len(db.check()) == 1


@pytest.mark.both_databases
def test_annotate_async_stores_annotations(buffer):
    async def trainer():
        return await buffer.annotate_async([0], version=1, value=[0.5])

    assert asyncio.run(trainer()) == 1


def test_torch_tensors_can_be_annotations(buffer):
    torch = pytest.importorskip("torch")
    buffer.annotate([0, 1], entropies=[torch.zeros(1), torch.ones(2)], value=torch.tensor([1.0, 2]))
    batch = buffer.get([1], fields=["entropies", "value"])
    assert batch["entropies"][0].tolist() == [1.0, 1.0]
    assert batch["value"].dtype == np.float32


@pytest.mark.parametrize(
    ("first", "second"),
    [([1], [0.5]), ([True], [2]), ([1.0], ["3"]), ([[np.int8(1)]], [[1000]]),
     ([[np.float32(1)]], [[1e300]])],
)  # fmt: skip
def test_values_that_do_not_fit_the_annotation_type_are_rejected(db, first, second):
    buffer = db.buffer("b")
    buffer.store_batch({"x": np.arange(2)})
    buffer.annotate([0], value=first)
    with pytest.raises(expdb.ExpDBError, match=r"rows\[0\]: .*value") as caught:
        buffer.annotate([1], value=second)
    assert "\n" not in str(caught.value)
    assert buffer.get([1], fields=["value"])["has_value"].tolist() == [False]


def test_integers_are_converted_to_the_annotation_type(db):
    buffer = db.buffer("b")
    buffer.store_batch({"x": np.arange(3)})
    buffer.annotate([0, 1], value=[0, 0.5])
    buffer.annotate([2], value=[1])
    assert buffer.get([0, 1, 2], fields=["value"])["value"].tolist() == [0.0, 0.5, 1.0]
    buffer.annotate([0], small=[np.zeros(1, np.uint8)])
    buffer.annotate([1], small=[[7]])
    assert buffer.get([1], fields=["small"])["small"][0].tolist() == [7]
