"""Run fault tests in their short form, and test that the fault tests detect problems."""

import json
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from torture import FAULTS, verify
from torture.disk import Disk, Images, library
from torture.oracle import BUFFER, step
from torture.power import history

import expdb
from expdb import errors
from expdb.sql.dialects.sqlite import connection as sqlite

# Faults of this kind have revealed defects before. `dev.py torture` runs the whole table.
REVEALING_FAULTS = [
    "kill_4_writers_postgresql", "kill_changes_sqlite", "kill_learners_of_rollouts_postgresql",
    "kill_learners_of_transitions_sqlite", "kill_archivers_of_steps_sqlite",
    "suspend_archivers_of_whole_episodes_postgresql", "forge_messages", "be_hostile_sqlite",
    "be_hostile_postgresql", "poison_file", "fail_disk", "fork_and_share_sqlite",
    "fork_and_share_postgresql", "crash_server", "kill_migrations_sqlite",
    "migrate_at_once_postgresql", "power_loss_full", "soak_sqlite", "fill_file_system",
    "kill_trees_trees_sqlite",
]  # fmt: skip


@pytest.mark.timeout(400)
@pytest.mark.parametrize("key", REVEALING_FAULTS)
def test_a_fault_loses_and_corrupts_nothing(key, tmp_path):
    """Run the fault in a small process of its own, because many faults fork."""
    out, program = tmp_path / "outcome.json", Path(__file__).parent / "torture"
    options = ["--only", key, "--seed", "1", "--json", out]
    done = subprocess.run([sys.executable, program, *options], capture_output=True, text=True)
    assert out.exists(), done.stdout + done.stderr
    outcome = json.loads(out.read_text())[key]
    assert outcome["violations"] == []
    if "NOT RUN" in outcome["note"]:
        pytest.skip(outcome["note"])
    assert outcome["count"] >= FAULTS[key].short


# -- the oracle ------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def written(path):
    """Write a file and return its acknowledged steps."""
    with expdb.open(path) as db:
        buffer = db.buffer(BUFFER, capacity=40)
        acknowledged = {}
        for number in range(0, 60, 3):
            positions = buffer.store_batch([step(0, number + k, number, 3) for k in range(3)])
            acknowledged |= {int(at): (0, number + k) for k, at in enumerate(positions)}
        assert verify(db, acknowledged) == []
    return acknowledged


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM steps WHERE position = 30", "40 fit"),
        ("DELETE FROM steps WHERE position >= 55", "is not at 5"),
        ("UPDATE segments SET chunk_row = 2 - chunk_row", "has 40 rows"),
        ("UPDATE chunks SET data = zeroblob(length(data))", "chunk"),
        ("UPDATE buffers SET capacity = 41", "41 fit"),
        ("UPDATE buffers SET bytes = bytes + 1", "bytes"),
    ],
)
def test_verify_detects_changed_tables(path, written, damage, problem):
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    try:
        with expdb.open(path) as db:
            problems = verify(db, written)
    except errors.DatabaseDamaged as error:
        problems = [str(error)]
    assert problems
    assert problem in " ".join(problems) or "is corrupted" in " ".join(problems)


def test_verify_detects_lost_and_repeated_steps_and_partial_batches(path, written):
    with expdb.open(path) as db:
        buffer = db.buffer(BUFFER)

        def problems(*more, **options):
            return " ".join(verify(db, {**written, **dict(more)}, **options))

        assert "is not at 59" in problems((59, (0, 1000)))
        position = buffer.store(**step(0, 30))
        assert "stored 2 times" in problems((position, (0, 30)))
        buffer.store(**step(0, 61, 61, 3))
        assert "1 of the 3 steps of batch 61" in problems()
        assert "is not at 1000" in problems((1000, (0, 99)))
        assert "is not at 1000" not in problems((1000, (0, 99)), tail_may_be_lost=True)


@pytest.mark.filterwarnings("ignore:update.. sets the reward:expdb.errors.ExpDBWarning")
def test_images_of_a_power_loss_without_syncs_lack_steps(path, tmp_path):
    """With `synchronous=OFF`, images must lose steps or be corrupted.

    Otherwise the fault test for power loss could not detect lost steps.
    """
    if library() is None:
        pytest.skip("sqlite3 is a part of this Python: there is nothing to put a layer under")
    with expdb.open(path) as db:
        db.buffer(BUFFER, capacity=300)
    base, real = path.read_bytes(), sqlite.connect

    def unsafe(*arguments, **options):
        connection = real(*arguments, **options)
        connection.execute("PRAGMA synchronous=OFF").fetchall()
        return connection

    rng = random.Random(0)
    with mock.patch.object(sqlite, "connect", unsafe):
        disk, marks = history(path, "full", rng)
    images, bad = Images(disk.events, {str(path): base}), 0
    for number in range(20):
        upto = rng.randrange(len(disk.events) // 2, len(disk.events))
        folder = tmp_path / f"image {number}"
        folder.mkdir()
        images.write(upto, folder, rng)
        acknowledged = next((acks for events, acks in reversed(marks) if events <= upto), {})
        try:
            with expdb.open(folder / path.name) as db:
                bad += bool(verify(db, acknowledged))
        except expdb.ExpDBError:
            bad += 1
    assert bad >= 10


def test_the_disk_layer_fails_on_demand(path):
    if library() is None:
        pytest.skip("sqlite3 is a part of this Python: there is nothing to put a layer under")
    with Disk(str(path)) as disk, expdb.open(path) as db:
        buffer = db.buffer(BUFFER)
        disk.fault = lambda kind, file: sqlite3.SQLITE_FULL
        with pytest.raises(errors.StorageFull):
            buffer.store(x=1)
        disk.fault = lambda kind, file: sqlite3.SQLITE_IOERR_WRITE
        with pytest.raises(errors.DatabaseUnreadable, match="check the disk"):
            buffer.store(x=1)
        disk.fault = None
        buffer.store(x=1)
        assert any(event.kind == "write" for event in disk.events)
