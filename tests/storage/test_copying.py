"""Copying buffers between databases.

A copy equals its source, overwrites nothing, and can be resumed after an interruption.
"""

import json

import numpy as np
import pytest
from behind import dialect_of, reading, writing
from click.testing import CliRunner

import expdb
from expdb import errors
from expdb.cli import main
from expdb.sql import tables as t
from expdb.storage.upkeep import copying

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.filterwarnings("ignore:update.. sets the reward:expdb.errors.ExpDBWarning"),
]  # the tests set the reward of every step on purpose


@pytest.fixture
def pair(request, tmp_path, postgresql_url):
    """Return the locations of a source and a target."""
    file = str(tmp_path / "runs.db")
    return {
        "to": (file, postgresql_url),
        "from": (postgresql_url, file),
        "files": (file, str(tmp_path / "other.db")),
    }[request.param]


BOTH_WAYS = pytest.mark.parametrize("pair", ["to", "from", "files"], indirect=True)


def fill(location):
    """Store a buffer that uses every feature of the storage.

    It has evicted steps, late rewards, gaps, final observations, messages, agents of steps, merged
    and shared chunks, and open episodes.
    """
    with expdb.open(location, run="r") as db:
        buffer = db.buffer("b", capacity=400, fields={"messages": "json"})
        rng = np.random.default_rng(3)
        for k in range(12):
            with buffer.episode(
                f"t{k % 5}", task_name="é", episode_tags={"n": k}, flush_steps=11, policy_version=k
            ) as episode:
                for n in range(40):
                    obs, last = rng.random(3, np.float32), n == 39 and k % 2 == 0
                    more = {"text": "x" * n, "agent_id": "ab"[n % 2], "tags": {"t": n}}
                    episode.append(obs=obs, reward=n / 7, terminated=last, **more)
                episode.end(obs=np.zeros(3, np.float32))
        hi = {"role": "user", "content": "hi"}
        rows = [{"task_id": f"s{k}", "messages": [hi] * k, "pre_agent": "p"} for k in range(30)]
        buffer.store_batch(rows)
        buffer.update({"task_id": "t1"}, reward=9.5)
        buffer.delete(expdb.QueryBuilder().gte("position", 200).and_().lt("position", 230))
        buffer.update_priorities([300, 301], [0.5, 2.0])
        for k in range(5):
            buffer.store(task_id="open", episode_id="open", image=np.full((4, 4), k, np.uint8))
        with writing(db) as session:
            session.query("DELETE FROM steps WHERE position IN (350, 351)")
        db.buffer("empty")
        db.buffer("other").store(x=1)


CHECKSUM = ("chunks", "crc")


def read_all_rows(location, name="b"):
    """Return every row of a buffer as Python values."""
    with expdb.open(location, create=False, read_only=True) as db, reading(db) as session:
        (books,) = session.query(t.buffers.select().where(t.buffers.c.name == name))
        contents = {"books": books[1:]}
        for table in (t.signatures, t.episodes, t.rollout_groups, t.steps, t.segments, t.chunks):
            # The checksum of a chunk covers the id of its buffer, and check() verifies it.
            names = [
                column.name for column in table.columns if (table.name, column.name) != CHECKSUM
            ][1:]
            rows = session.query(
                f"SELECT {', '.join(names)} FROM {table.name} WHERE buffer_id = ?", books[0]
            )
            contents[table.name] = sorted(
                tuple(int(value) if isinstance(value, bool) else value for value in row)
                for row in map(tuple, rows)
            )
        contents["priorities"] = {
            block: (version, dialect_of(db).from_block(data).tobytes())
            for block, version, data in session.query(
                "SELECT block, version, data FROM priorities WHERE buffer_id = ?", books[0]
            )
        }
    return contents


@BOTH_WAYS
def test_a_copy_has_the_same_rows_and_accepts_new_steps(pair):
    source, target = pair
    fill(source)
    assert expdb.copy(source, target) == {"b": 373, "empty": 0, "other": 1}
    for name in ("b", "empty", "other"):
        assert read_all_rows(source, name) == read_all_rows(target, name)
    with expdb.open(source) as source_db, expdb.open(target) as target_db:
        assert target_db.check() == []
        assert target_db.buffers() == source_db.buffers()
        first, second = (list(db.buffer("b").scan()) for db in (source_db, target_db))
        for a, b in zip(first, second, strict=True):
            assert list(a) == list(b)
            for key in a:
                np.testing.assert_array_equal(a[key], b[key])
        drawn = []
        for db in (source_db, target_db):
            buffer, image = db.buffer("b"), np.zeros((4, 4), np.uint8)
            assert buffer.store(task_id="open", episode_id="open", image=image) == 515
            assert len(buffer) == 374
            assert buffer.capacity == 400
            assert db.check() == []
            drawn.append(buffer.sample(20, seed=1)["position"].tolist())
        assert drawn[0] == drawn[1]


@BOTH_WAYS
def test_a_copy_does_not_overwrite_existing_buffers(pair):
    source, target = pair
    fill(source)
    with expdb.open(target) as db:
        db.buffer("other").store(mine=1)
    before = read_all_rows(target, "other")
    with pytest.raises(expdb.ExpDBError, match="drop this buffer first"):
        expdb.copy(source, target)
    with pytest.raises(FileExistsError):
        expdb.copy(source, target, buffer="other")
    assert read_all_rows(target, "other") == before
    with expdb.open(target) as db:
        assert db.buffers() == ["other"]
    with pytest.raises(errors.UnknownBuffer, match="the buffers are b, empty, other"):
        expdb.copy(source, target, buffer="nope")
    assert expdb.copy(source, target, buffer="b") == {"b": 373}


class Interrupted(Exception):
    pass


@BOTH_WAYS
def test_an_interrupted_copy_resumes_or_restarts_if_the_source_changed(pair, monkeypatch):
    source, target = pair
    fill(source)
    monkeypatch.setattr(copying, "BATCH_CHUNKS", 3)
    seen = []

    def stop_at(limit):
        def progress(name, done, total):
            seen.append(done)
            if done >= limit:
                raise Interrupted

        return progress

    with pytest.raises(Interrupted):
        expdb.copy(source, target, buffer="b", progress=stop_at(9))
    with expdb.open(target) as db:
        assert "b" not in db.buffers()
        (finding,) = [
            finding for finding in db.doctor() if finding["what"] == "unfinished copy of 'b'"
        ]
        assert "--buffer b` again to resume it" in finding["advice"]
        assert f"expdb drop {db.location} 'b (copying" in finding["advice"]
    seen.clear()
    with pytest.raises(Interrupted):
        expdb.copy(source, target, buffer="b", progress=stop_at(15))
    assert seen[0] == 9
    with expdb.open(source) as db:
        db.buffer("b").update({"task_id": "t2"}, reward=0.25)
    seen.clear()
    expdb.copy(source, target, buffer="b", progress=stop_at(10**9))
    assert seen[0] == 0
    assert read_all_rows(source) == read_all_rows(target)
    with expdb.open(target) as db:
        assert db.buffers() == ["b"]
        assert db.check() == []


def test_check_reports_an_unfinished_copy_and_the_drop_command_deletes_it(tmp_path, monkeypatch):
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    fill(source)
    monkeypatch.setattr(copying, "BATCH_CHUNKS", 3)

    def stop(name, done, total):
        if done >= 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        expdb.copy(source, target, buffer="b", progress=stop)
    with expdb.open(target) as db:
        (name,) = db.buffers()
        (problem,) = db.check()
    assert problem.startswith("the copy of 'b' is not finished; copy it again, or drop 'b (co")
    refused = CliRunner().invoke(main, ["drop", target, name], input="n\n")
    assert refused.exit_code == 1
    done = CliRunner().invoke(main, ["drop", target, name, "--yes"])
    assert "steps deleted" in done.output
    with expdb.open(target) as db:
        assert db.buffers() == []


def test_copy_command_copies_buffers_and_reports_step_counts(tmp_path, postgresql_url):
    source = str(tmp_path / "runs.db")
    fill(source)
    done = CliRunner().invoke(main, ["copy", source, postgresql_url, "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"b": 373, "empty": 0, "other": 1}
    again = CliRunner().invoke(main, ["copy", source, postgresql_url])
    assert again.exit_code == 1
    assert "drop this buffer first" in again.output
    back = CliRunner().invoke(
        main, ["copy", postgresql_url, str(tmp_path / "back.db"), "--buffer", "b"]
    )
    assert back.output.splitlines()[-1] == "b: 373 steps"
    assert read_all_rows(source) == read_all_rows(str(tmp_path / "back.db"))


def store_small_buffer(location, value, name="b"):
    with expdb.open(location) as db:
        db.buffer(name).store_batch([{"task_id": "t", "x": value} for _ in range(64)] * 20)


@BOTH_WAYS
@pytest.mark.parametrize("is_same", [False, True])
def test_two_copies_to_one_buffer_name_leave_one_complete_copy(
    pair, tmp_path, monkeypatch, is_same
):
    source, target = pair
    other = source if is_same else str(tmp_path / "another.db")
    store_small_buffer(source, 1.0)
    if not is_same:
        store_small_buffer(other, 2.0)
    monkeypatch.setattr(copying, "BATCH_CHUNKS", 1)
    once = []

    def meanwhile(name, done, total):
        if not once and done >= is_same:  # the same copy is resumed after its first chunk
            once.append(True)
            expdb.copy(other, target)

    with pytest.raises(errors.DatabaseBusy, match="another process is copying a buffer"):
        expdb.copy(source, target, progress=meanwhile)
    with expdb.open(target) as db:
        assert db.buffers() == ["b"]
        assert len(db.buffer("b")) == 1280
        assert set(db.buffer("b").sample(10)["x"].tolist()) == {1.0 if is_same else 2.0}
        assert db.check() == []


def test_a_copy_keeps_buffers_named_like_its_temporary_buffer(tmp_path):
    source, target = str(tmp_path / "one.db"), str(tmp_path / "two.db")
    store_small_buffer(source, 1.0)
    store_small_buffer(target, 2.0, "b (copying notes)")
    expdb.copy(source, target)
    with expdb.open(target) as db:
        assert sorted(db.buffers()) == ["b", "b (copying notes)"]


def test_check_reports_rows_without_a_buffer(tmp_path):
    with expdb.open(tmp_path / "one.db") as db:
        db.buffer("b").store(x=1.0)
        with writing(db) as session:
            session.execute("UPDATE steps SET buffer_id = 99")
        assert "1 rows of steps belong to no buffer" in db.check()
