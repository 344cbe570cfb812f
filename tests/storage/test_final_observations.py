"""Tests of reading final observations, which `end(...)` stores, as `next_<field>`."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import expdb
import expdb.export
from expdb.cli import main

pytestmark = pytest.mark.both_databases
BYE = [{"role": "user", "content": "bye"}]


@pytest.fixture
def buffer(db):
    """Return a buffer with final observations after the steps at positions 2 and 4."""
    buffer = db.buffer("train")
    with buffer.episode("t", episode_id="first") as episode:
        for t in range(3):
            messages = [{"role": "user", "content": str(t)}]
            episode.append(obs=np.full(2, t, np.float32), messages=messages, reward=1.0)
        episode.end(obs=np.full(2, 9, np.float32), messages=BYE)
    with buffer.episode("t", episode_id="out of order") as episode:
        for step in (0, 2, 1):
            episode.append(step=step, obs=np.full(2, step, np.float32), messages=[])
        episode.end(obs=np.full(2, 7, np.float32))
    buffer.store(episode_id="third", obs=np.zeros(2, np.float32), messages=[], terminated=True)
    return buffer


OBSERVED = {2: [9.0, 9.0], 4: [7.0, 7.0]}


def observed(rows):
    """Return the final observations of rows, by position."""
    return {
        row["position"]: list(map(float, row["next_obs"]))
        for row in rows
        if row.get("next_obs") is not None
    }


@pytest.mark.parametrize("in_memory", [False, True])
def test_get_and_scan_return_final_observations(buffer, in_memory):
    if in_memory:
        buffer.sample(3)
    batch = buffer.get(range(7))
    assert observed(batch.to_list()) == OBSERVED
    assert batch["has_next_messages"].tolist() == [False, False, True, *[False] * 4]
    assert batch["next_messages"][2] == BYE
    assert np.isnan(batch["next_obs"][~batch["has_next_obs"]]).all()
    assert not any(key.startswith(("next_", "has_next_")) for key in buffer.get([0, 1, 6]))
    repeated = buffer.get([4, 2, 4], fields=["next_obs"])
    assert repeated["next_obs"][:, 0].tolist() == [7.0, 9.0, 7.0]
    assert buffer.get([0], fields=["next_obs"])["has_next_obs"].tolist() == [False]
    for size in (2, 100):
        rows = [row for part in buffer.scan(size=size) for row in part.to_list()]
        assert observed(rows) == OBSERVED
    batches = list(buffer.scan({"episode_id": "first"}, fields=["position", "next_messages"]))
    assert batches[0]["next_messages"].tolist() == [None, None, BYE]
    assert "next_obs" not in buffer.sample(4)


def test_tables_files_and_sql_contain_final_observations(buffer, db, tmp_path):
    assert observed(buffer.to_arrow().read_all().to_pylist()) == OBSERVED
    chosen = buffer.to_arrow({"episode_id": "first"}, fields=["next_messages"]).read_all()
    assert chosen["next_messages"].to_pylist()[:2] == [None, None]
    expdb.export.export(buffer, tmp_path / "all.parquet")
    assert observed(pq.read_table(tmp_path / "all.parquet").to_pylist()) == OBSERVED
    rows = db.sql("SELECT position, field(payload, 'next_obs') AS o FROM experience").to_pylist()
    assert {row["position"]: row["o"] for row in rows if row["o"]} == {
        2: "[9.0, 9.0]", 4: "[7.0, 7.0]",
    }  # fmt: skip
    buffer.eviction = expdb.Eviction(archive=tmp_path / "archive")
    buffer.capacity = 1
    assert buffer.evict() == 6
    files = sorted((tmp_path / "archive").rglob("*.parquet"))
    archived = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert observed(archived) == OBSERVED


def test_a_field_named_like_a_final_observation_is_returned_as_stored(db):
    buffer = db.buffer("own")
    with buffer.episode("t") as episode:
        episode.append(obs=1.0, next_obs=2.0)
        episode.append(obs=3.0, next_obs=4.0)
        episode.end(obs=9.0, next_obs=10.0)
    assert buffer.get([0, 1])["next_obs"].tolist() == [2.0, 4.0]
    assert db.sql("SELECT field(payload, 'next_obs') AS o FROM experience").to_pylist()[1] == {
        "o": 4.0
    }


def test_show_prints_final_messages_and_empty_results(buffer, location):
    with buffer.episode("t", episode_id="tool") as episode:
        messages = [{"role": "tool", "content": ""}]
        episode.append(obs=np.zeros(2, np.float32), messages=messages)
        episode.end(obs=np.zeros(2, np.float32), messages=[*messages, *BYE])
    shown = CliRunner().invoke(main, ["show", location, "first"]).output
    assert shown.rstrip().endswith("user: bye")
    shown = CliRunner().invoke(main, ["show", location, "tool"]).output
    assert "tool: (empty)" in shown
    assert shown.rstrip().endswith("user: bye")


@pytest.mark.one_database
@pytest.mark.parametrize("read", ["get", "to_arrow"])
def test_final_observations_stored_as_a_field_cause_a_warning(db, buffer, read):
    names = ["obs", "step", "next_obs"]
    batch = (
        dict(buffer.get([0, 1, 2], fields=names))
        if read == "get"
        else buffer.to_arrow({"episode_id": "first"}, fields=names).read_all()
    )
    copied = db.buffer("copied")
    copied.store_batch(batch)
    with pytest.warns(UserWarning, match="next_obs was stored with only some steps"):
        copied.sample(2, unit=expdb.NStep(1))
