"""Tests of batches as Arrow and pandas tables, with nulls and integer types."""

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from contents import steps_of

import expdb
from expdb import Batch, errors


@pytest.fixture
def batch(buffer):
    """Return three steps; the second step has no optional values."""
    first = {"reward": 10.0, "policy_version": 3, "n": 7, "x": 2.5, "flag": True, "text": "one"}
    third = {"reward": 0.0, "policy_version": 0, "n": 0, "x": 0.5, "flag": False, "text": ""}
    buffer.store(task_id="t", episode_id="a", **first, obs=np.ones(2), data={"k": 1})
    buffer.store(task_id="t", episode_id="b")
    buffer.store(task_id="t", episode_id="c", **third, obs=np.zeros(2), data=None)
    names = [*first, "obs", "data", "step", "priority", "episode_return", "length"]
    return buffer.get([0, 1, 2], fields=names)


def test_missing_values_are_null_in_arrow(batch):
    table = batch.to_arrow()
    assert {name: table[name].null_count for name in table.column_names} == {
        "reward": 1, "policy_version": 1, "n": 1, "x": 1, "flag": 1, "text": 1, "obs": 1, "data": 2,
        "step": 0, "priority": 3,
        "episode_return": 1, "length": 0,
    }  # fmt: skip
    assert table["reward"].to_pylist() == [10.0, None, 0.0]
    assert table["n"].to_pylist() == [7, None, 0]
    assert table["flag"].to_pylist() == [True, None, False]
    assert table["obs"].combine_chunks().storage.to_pylist() == [[1, 1], None, [0, 0]]
    assert pa.compute.mean(table["reward"]).as_py() == 5.0
    assert pa.table(batch).equals(table)


def test_integers_are_int64_in_batches_tables_and_sql(batch, buffer, db):
    assert {batch[name].dtype for name in ("policy_version", "n", "step", "length")} == {
        np.dtype(np.int64)
    }
    assert batch["policy_version"].tolist() == [3, 0, 0]
    assert batch["has_policy_version"].tolist() == [True, False, True]
    table = batch.to_arrow()
    assert {
        table.schema.field(name).type for name in ("policy_version", "n", "step", "length")
    } == {pa.int64()}
    assert buffer.episodes().schema.field("policy_version").type == pa.int64()
    assert db.sql("SELECT policy_version FROM experience").schema.field(0).type == pa.int64()
    assert [row["policy_version"] for row in batch.to_list()] == [3, None, 0]
    assert [row["policy_version"] for row in steps_of(buffer)] == [3, None, 0]


@pytest.mark.parametrize("unit", [expdb.Step(), expdb.NStep(1), expdb.Sequence(2), expdb.Episode()])
def test_every_unit_returns_policy_versions(buffer, unit):
    for version in (None, 5):
        with buffer.episode("t", policy_version=version) as episode:
            for t in range(3):
                episode.append(obs=float(t), terminated=t == 2)
    how = {"unit": unit, "sampler": expdb.Uniform(replace=True), "seed": 0}
    drawn = buffer.sample(32, fields=["policy_version", "episode"], **how)
    assert drawn["policy_version"].dtype == np.int64
    first = buffer.episodes()["episode"].to_pylist()[0]
    wanted = drawn["episode"] != first
    if drawn["has_policy_version"].ndim == 2:  # of each step of a sequence
        wanted = wanted[:, None] & buffer.sample(32, fields=["mask"], **how)["mask"]
    assert (drawn["has_policy_version"] == wanted).all()
    assert set(drawn["policy_version"][drawn["has_policy_version"]].tolist()) == {5}


def test_missing_values_are_na_in_pandas(batch):
    frame = batch.to_pandas()
    assert frame["reward"].mean() == 5.0
    assert (frame["n"].mean(), frame["x"].mean(), frame["policy_version"].mean()) == (3.5, 1.5, 1.5)
    names = "n", "flag", "policy_version", "step", "reward"
    assert {name: str(frame[name].dtype) for name in names} == {
        "n": "Int64", "flag": "boolean", "policy_version": "Int64", "step": "int64",
        "reward": "float64",
    }  # fmt: skip
    assert frame.isna().sum().to_dict() == {
        "reward": 1, "policy_version": 1, "n": 1, "x": 1, "flag": 1, "text": 1, "obs": 1, "data": 2,
        "step": 0, "priority": 3,
        "episode_return": 1, "length": 0,
    }  # fmt: skip
    assert frame["obs"][0].tolist() == [1, 1]
    frame.loc[0, "reward"] = 99.0
    assert batch["reward"][0] == 10.0


def test_lists_in_a_table_may_vary_in_length(db):
    for name, table in (
        ("pandas", pd.DataFrame({"tokens": [[1, 2], [3, 4]], "ratings": [[0.5], [1.5]]})),
        ("arrow", pa.table({"tokens": [[1, 2], [3, 4]], "ratings": [[0.5], [1.5]]})),
    ):
        buffer = db.buffer(name)
        buffer.store_batch(table)
        buffer.store(tokens=[5], ratings=[])
        assert buffer.stats()["fields"] == {"tokens": "int64[None]", "ratings": "float64[None]"}
        assert [tokens.tolist() for tokens in buffer.get([0, 2])["tokens"]] == [[1, 2], [5]]


def test_converting_a_batch_to_one_array_is_refused(batch):
    for call in (
        lambda: pd.DataFrame(batch),
        lambda: np.asarray(batch),
        lambda: pd.DataFrame(Batch({})),
    ):
        with pytest.raises(expdb.InvalidValue, match=r"use batch\.to_pandas\(\)"):
            call()


def test_the_error_for_missing_pandas_says_how_to_install_it(batch, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.DriverMissing, match="pip install pandas"):
        batch.to_pandas()


def test_bytes_ragged_arrays_and_empty_tensors_become_tables(db):
    buffer = db.buffer("x", fields={"rows": expdb.Field("float32", shape=(None, 3))})
    for length in (1, 3):
        with buffer.episode("t") as episode:
            for t in range(length):
                episode.append(
                    raw=b"\x01",
                    rows=np.ones((t, 3), np.float32),
                    none=np.zeros((0,)),
                    reward=1.0,
                    terminated=t == length - 1,
                )
    for unit in (expdb.Sequence(2), expdb.Episode(), expdb.Episode(pad=False), expdb.Group(2)):
        assert buffer.sample(1, unit=unit, seed=0).to_arrow().num_rows == 1
    assert buffer.get([0, 1]).to_arrow()["none"].null_count == 0


def test_empty_batches_and_sequences_become_tables(buffer):
    assert Batch({}, 2).to_pandas().shape == (2, 0)
    with buffer.episode("t") as episode:
        for t in range(3):
            episode.append(obs=np.zeros(2), reward=None if t == 1 else 1.0, terminated=t == 2)
    sequences = buffer.sample(4, unit=expdb.Sequence(3), seed=0)
    assert sequences.to_arrow().num_rows == 4
    assert sequences.to_pandas().shape[0] == 4
    empty = buffer.get([])
    assert empty.to_arrow().num_rows == empty.to_pandas().shape[0] == 0
