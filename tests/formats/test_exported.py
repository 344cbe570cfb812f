"""Exports and archives are imported again with every value."""

import json

import kept_files
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import expdb
from expdb import formats
from expdb.export import export

# Positions and numbers of episodes are those of the new buffer.
NUMBERS = {
    "buffer", "id", "position", "episode", "parent_episode", "parent_position", "root_episode",
    "payload",
}  # fmt: skip


def contents(buffer):
    """Return the views of a buffer, its fields and its annotations, without numbers."""
    stats = buffer.stats()
    values = ["episode_id", "step", "agent_id", *stats["fields"], *stats["annotations"]]
    finals = [f"next_{name}" for name in stats["fields"]]
    scanned = [row for batch in buffer.scan(fields=[*values, *finals]) for row in batch.to_list()]
    views = {
        view: buffer._database.sql(
            f"SELECT * FROM {view} WHERE buffer = :name", {"name": buffer.name}
        ).to_pylist()
        for view in ("experience", "experience_episodes", "experience_scores")
    }
    found = {"fields": [stats["fields"]], "values": scanned, **views}
    return {name: sorted(map(plain, rows), key=json.dumps) for name, rows in found.items()}


JSON = {"tags", "episode_tags", "scores", "detail"}  # PostgreSQL orders the keys


def plain(row):
    return {name: plain_value(name, row[name]) for name in row if name not in NUMBERS}


def plain_value(name, value):
    if isinstance(value, str) and name in JSON:
        value = json.loads(value, parse_int=float)  # PostgreSQL returns 1e300 as an integer
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return kept_files._json(int(value) if isinstance(value, bool) else value)


def reimport(buffer, target, path, **options):
    export(buffer, path, **options)
    report = formats.import_rollouts(target, formats.read(path))
    assert report.refused == []


@pytest.mark.both_databases
@pytest.mark.filterwarnings("ignore:.*:expdb.ExpDBWarning")
def test_an_exported_buffer_is_imported_with_every_value(open_db, tmp_path):
    db = open_db()
    kept_files.write(db.location if "://" not in db.location else _url(db))
    with expdb.open(tmp_path / "copy.db") as copy:
        for name in db.buffers():
            if len(buffer := db.buffer(name)):
                reimport(buffer, copy.buffer(name), tmp_path / f"{name}.parquet")
                expected, found = contents(buffer), contents(copy.buffer(name))
                if name == "scored":  # the version of an episode whose steps all have their own
                    expected, found = _without_episode_version(expected, found)
                for part in expected:
                    for row, other in zip(expected[part], found[part], strict=True):
                        assert row == other, (name, part)
        assert copy.check() == []


def _url(db):
    return db._named.render_as_string(hide_password=False)


def _without_episode_version(*found):
    for views in found:
        for row in views["experience_episodes"]:
            row.pop("policy_version")
    return found


def test_an_archive_is_imported_with_every_value(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    for number in range(6):
        with buffer.episode("t", episode_id=str(number), agent_id="m") as episode:
            for step in range(10):
                episode.append(obs=np.full(3, step, np.float32), note={"k": step}, reward=1.0)
            episode.end(obs=np.zeros(3, np.float32))
        buffer.score(episode_id=str(number), name="judge", value=number / 3, detail={"n": number})
    expected = contents(buffer)
    buffer.eviction = expdb.Eviction(max_bytes=1, archive=tmp_path / "archive")
    while buffer.evict():
        pass
    left = {row["episode_id"] for row in buffer.episodes().to_pylist()}
    report = formats.import_rollouts(copy, formats.read(tmp_path / "archive"))
    assert report.refused == []
    found = contents(copy)
    for views in (expected, found):
        for rows in views.values():
            rows[:] = [row for row in rows if row.get("episode_id") not in left]
    assert found == expected
    assert len(found["values"]) >= 40


def test_a_file_without_metadata_is_imported_with_the_types_of_its_columns(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer(fields={"note": "json"})
    with buffer.episode("t", episode_id="a") as episode:
        for step in range(3):
            episode.append(
                obs=np.full((2, 3), step, np.float32), ids=list(range(3 - step)), note={"k": step},
                text="x", raw=b"\0", flag=True, reward=1.0, tags={"n": step},
            )  # fmt: skip
    buffer.score([1], name="judge", value=0.5)
    export(buffer, tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet").drop_columns(["score_history"])
    parquet.write_table(table.replace_schema_metadata(None), tmp_path / "b.parquet")
    assert formats.import_rollouts(copy, formats.read(tmp_path / "b.parquet")).refused == []
    expected, found = contents(buffer), contents(copy)
    assert found["values"] == expected["values"]
    (score,) = found["experience_scores"]
    assert (score["name"], score["value"]) == ("judge", (0.5).hex())


def test_a_partly_exported_episode_shows_that_steps_are_missing(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    with buffer.episode("t", episode_id="a") as episode:
        for step in range(5):
            episode.append(x=step, reward=1.0)
    reimport(buffer, copy, tmp_path / "a.parquet", where="step >= 3")
    (row,) = copy.episodes().to_pylist()
    assert (row["length"], row["episode_return"], len(copy)) == (5, 5.0, 2)
    assert next(copy.scan(fields=["step"]))["step"].tolist() == [3, 4]


def test_episodes_without_their_parents_lose_their_relation_with_a_warning(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    buffer.store(episode_id="root", x=1, terminated=True)
    buffer.store(
        episode_id="child", x=2, parent="root", relation="subagent", parent_step=0, terminated=True
    )
    with pytest.warns(expdb.ExpDBWarning, match="1 episodes are imported without their relation"):
        reimport(buffer, copy, tmp_path / "a.parquet", where={"episode_id": "child"})
    assert copy.episodes()["relation"].to_pylist() == [None]


def test_interleaved_episodes_are_imported_in_the_order_of_their_first_steps(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    for name, x in (("late", 0), ("early", 0), ("only", 2), ("early", 1), ("late", 1)):
        buffer.store(episode_id=name, x=x, terminated=x > 0)
    reimport(buffer, copy, tmp_path / "a.parquet")
    assert copy.episodes()["episode_id"].to_pylist() == ["late", "early", "only"]
    assert contents(copy) == contents(buffer)


def test_a_cut_file_is_refused_and_the_others_are_imported(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    buffer.store(episode_id="a", x=1, terminated=True)
    export(buffer, tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(data[:-20])
    report = formats.import_rollouts(copy, formats.read(tmp_path))
    assert report.episodes == 1
    (reason,) = report.refused
    assert reason.startswith(f"{tmp_path / 'b.parquet'}: ")


def test_names_do_not_apply_to_files_of_expdb(new_buffer, tmp_path):
    buffer = new_buffer()
    buffer.store(episode_id="a", x=1)
    export(buffer, tmp_path / "a.parquet")
    with pytest.raises(expdb.InvalidValue, match="names cannot rename the columns"):
        list(formats.read(tmp_path / "a.parquet", names={"task_id": "x"}))


def test_the_history_of_scores_is_a_column_only_if_there_are_scores(new_buffer, tmp_path):
    buffer = new_buffer()
    buffer.store(episode_id="a", x=1, terminated=True)
    export(buffer, tmp_path / "a.parquet")
    buffer.score(episode_id="a", name="judge", value=1.0, by="v1")
    export(buffer, tmp_path / "b.parquet")
    assert "score_history" not in parquet.read_schema(tmp_path / "a.parquet").names
    (text,) = parquet.read_table(tmp_path / "b.parquet")["score_history"].to_pylist()
    (entry,) = json.loads(text)
    assert (entry["name"], entry["value"], entry["by"], entry["of_episode"]) == (
        "judge", 1.0, "v1", True,
    )  # fmt: skip
    assert isinstance(parquet.read_schema(tmp_path / "b.parquet"), pa.Schema)
