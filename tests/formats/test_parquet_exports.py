"""Exports and archives are imported again with every value."""

import datetime as dt
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


def test_scores_keep_their_order(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    with buffer.episode("t", episode_id="a") as episode:
        episode.append(x=1)
        episode.append(x=2)
    buffer.score(episode_id="a", name="judge", value=1.0)
    buffer.score([0], name="judge", value=2.0)
    buffer.score([1], name="judge", value=3.0)
    buffer.score(episode_id="a", name="format", value=4.0)
    reimport(buffer, copy, tmp_path / "a.parquet")
    assert contents(copy) == contents(buffer)


def test_files_of_different_buffers_keep_their_own_relations(new_buffer, tmp_path):
    first, second, copy = new_buffer(), new_buffer(), new_buffer()
    for name in ("p", "q"):
        first.store(
            episode_id=name, x=1, terminated=True,
            **({} if name == "p" else {"parent": "p", "relation": "subagent"}),
        )  # fmt: skip
    second.store(episode_id="other", x=1, terminated=True)
    export(first, tmp_path / "a.parquet")
    export(second, tmp_path / "b.parquet")
    assert formats.import_rollouts(copy, formats.read(tmp_path)).refused == []
    assert copy.lineage("p")["episode_id"].to_pylist() == ["p", "q"]


def test_different_episodes_of_one_name_are_refused(tmp_path, new_buffer):
    for run in ("one", "two"):
        with expdb.open(tmp_path / f"{run}.db", run=run) as db:
            db.buffer("train").store(episode_id="same", x=1, terminated=True)
            db.buffer("train").store(episode_id=run, x=1, terminated=True)
            export(db.buffer("train"), tmp_path / f"{run}.parquet")
    paths = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    report = formats.import_rollouts(new_buffer(), formats.read(*paths))
    assert report.episodes == 2
    (reason,) = report.refused
    assert "different episodes of this name, from different runs" in reason


def test_two_exports_of_a_growing_buffer_are_imported_once(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    with buffer.episode("t", episode_id="a") as episode:
        episode.append(x=1)
        episode.flush()
        export(buffer, tmp_path / "a.parquet")
        episode.append(x=2)
    buffer.annotate([0], adv=[1.0])
    export(buffer, tmp_path / "b.parquet")
    assert formats.import_rollouts(copy, formats.read(tmp_path)).refused == []
    assert contents(copy) == contents(buffer)


def test_an_unchanged_episode_is_skipped_if_a_file_has_other_rows(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    with buffer.episode("t", episode_id="a") as episode:
        episode.append(x=1, obs=[1.0, 2.0])
        episode.append(x=2, obs=[1.0, 2.0])
    reimport(buffer, copy, tmp_path / "0.parquet")
    buffer.store(episode_id="b", x=1, late=2.5, terminated=True)
    buffer.store(episode_id="c", late=2.5, terminated=True)
    buffer.score(episode_id="b", name="judge", value=1.0)
    buffer.annotate([2], adv=[1.0])
    for number, where in enumerate((None, {"episode_id": "a"}, "episode_id != 'b'"), 1):
        path = tmp_path / f"{number}.parquet"
        export(buffer, path, where)
        report = formats.import_rollouts(copy, formats.read(path))
        assert report.refused == []
        assert report.known >= 1


def test_a_parent_whose_first_steps_were_deleted_comes_first(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    parent = buffer.episode("t", episode_id="p")
    parent.append(x=1)
    parent.flush()
    buffer.store(episode_id="c", x=2, parent="p", relation="subagent", terminated=True)
    parent.append(x=3)
    parent.end()
    buffer.delete([0])
    reimport(buffer, copy, tmp_path / "a.parquet")
    assert copy.episodes()["episode_id"].to_pylist() == ["p", "c"]
    assert copy.episodes()["length"].to_pylist() == [2, 1]


def test_exports_with_timestamps_are_imported(new_buffer, tmp_path):
    buffer, copy, batch = new_buffer(), new_buffer(), new_buffer()
    buffer.store(episode_id="a", x=1, execute_time=1.5, terminated=True)
    reimport(buffer, copy, tmp_path / "a.parquet", timestamps=True)
    batch.store_batch(buffer.to_arrow(timestamps=True))
    for found in (copy, batch):
        assert found.get([found.added - 1], fields=["execute_time"])["execute_time"][0] == 1.5


def test_a_field_with_the_name_of_the_history_is_kept(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    buffer.store(episode_id="a", score_history=7, terminated=True)
    reimport(buffer, copy, tmp_path / "a.parquet")
    assert copy.get([0])["score_history"].tolist() == [7]


BROKEN = {
    "agent_id": lambda table: table.drop_columns(["agent_id"]),
    "policy versions": lambda table: table.drop_columns(["policy_version", "policy_version_end"]),
    "no relation": lambda table: table.drop_columns(["relation", "parent_step"]),
    "tags": lambda table: changed(table, "tags", "{"),
    "episode_tags": lambda table: changed(table, "episode_tags", "[1"),
    "json": lambda table: changed(table, "note", "{"),
    "history": lambda table: changed(table, "score_history", "[{}]"),
    "null position": lambda table: changed(table, "position", None),
    "text position": lambda table: changed(table, "position", "x"),
    "null episode": lambda table: changed(table, "episode", None),
    "null episode_id": lambda table: changed(table, "episode_id", None),
    "text priority": lambda table: changed(table, "priority", "x"),
    "text x": lambda table: changed(table, "x", "text"),
    "return": lambda table: changed(table, "episode_return", 99.0),
    "text return": lambda table: changed(table, "episode_return", "x"),
    "length": lambda table: changed(table, "length", 10**18),
    "date": lambda table: table.append_column("day", pa.array([dt.date(2026, 1, 2)] * 2)),
    "metadata": lambda table: table.replace_schema_metadata({"expdb": "{"}),
    "metadata type": lambda table: table.replace_schema_metadata({"expdb": "null"}),
    "metadata bytes": lambda table: table.replace_schema_metadata({"expdb": b"\xff\xfe"}),
}  # fmt: skip


def changed(table, name, value):
    place = table.column_names.index(name)
    return table.set_column(place, name, pa.array([value] * table.num_rows))


@pytest.mark.parametrize("kind", BROKEN)
def test_an_edited_export_is_refused_or_imported_without_damage(
    new_buffer, module_db, tmp_path, kind
):
    buffer, copy = new_buffer(), new_buffer()
    with buffer.episode("t", episode_id="a") as episode:
        episode.append(x=1, note={"k": 1}, reward=1.0)
        episode.append(x=2, note={"k": 2}, reward=1.0)
    buffer.score(episode_id="a", name="judge", value=1.0)
    buffer.update_priorities([0], [2.0])
    export(buffer, tmp_path / "a.parquet")
    table = BROKEN[kind](parquet.read_table(tmp_path / "a.parquet"))
    parquet.write_table(table, tmp_path / "b.parquet")
    report = formats.import_rollouts(copy, formats.read(tmp_path / "b.parquet"))
    assert report.episodes + bool(report.refused) == 1
    assert all("\n" not in reason and "restore a backup" not in reason for reason in report.refused)
    assert module_db.check() == []


def test_a_file_with_a_damaged_page_is_refused(new_buffer, tmp_path):
    buffer, copy = new_buffer(), new_buffer()
    with buffer.episode("t", episode_id="a") as episode:
        for step in range(500):
            episode.append(x=np.random.default_rng(step).random(8))
    export(buffer, tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[len(data) // 3 : len(data) // 3 + 200] = bytes(200)
    (tmp_path / "b.parquet").write_bytes(data)
    report = formats.import_rollouts(copy, formats.read(tmp_path / "b.parquet"))
    assert (report.episodes, len(copy)) == (0, 0)
    assert report.refused
