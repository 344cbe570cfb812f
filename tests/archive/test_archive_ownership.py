"""Several archivers archive each step exactly once, even if one is suspended or killed."""

import os
import shutil
import threading

import numpy as np
import pytest
from behind import evict_at_next_write, writing
from test_eviction import archived, archiving, held

import expdb
from expdb import errors
from expdb.archive import archive_folder, retention
from expdb.sql.dialects.sqlite import statements as sqlite
from expdb.storage.ledger import evictions

pytestmark = pytest.mark.both_databases


@pytest.fixture(autouse=True)
def writes_evict_only_when_told(monkeypatch):
    """Set a long check interval, so that writes evict only if a test requests it."""
    monkeypatch.setattr(retention, "LOOK_SECONDS", 1000.0)


@pytest.fixture
def filled(open_db, tmp_path):
    """Return two handles of a buffer with 30 steps to archive."""
    first, second = (open_db().buffer("b", capacity=10) for _ in range(2))
    first.eviction = expdb.Eviction(archive=tmp_path / "archive")
    first.store_batch({"n": np.arange(40)})
    return first, second


def drafts(folder):
    return list(folder.rglob(".*"))


@pytest.mark.parametrize("during", ["_scan", "_write_draft", "_publish"])
def test_each_step_is_archived_once_if_a_suspended_archiver_is_replaced(
    filled, tmp_path, monkeypatch, during
):
    first, second = filled
    own, replaced = first._retention, []
    scan, write_draft, publish = own._scan, own._write_draft, own._publish

    def replace():
        if not replaced:
            replaced.append(True)
            with monkeypatch.context() as patch:
                patch.setattr(retention, "EXPIRE_SECONDS", -1.0)  # the first archiver has expired
                second.evict()

    def scan_late(positions, names):
        yield from scan(positions, names)
        replace()

    def written_late(*arguments):
        result = write_draft(*arguments)
        replace()
        return result

    def publish_late(archiving):
        replace()
        publish(archiving)

    late = {"_scan": scan_late, "_write_draft": written_late, "_publish": publish_late}
    monkeypatch.setattr(own, during, late[during])
    first.evict()
    assert archived(tmp_path) == list(range(30))
    assert held(second) == list(range(30, 40))
    assert drafts(tmp_path) == []


def test_an_archiver_does_not_remove_the_draft_of_a_running_archiver(filled, tmp_path, monkeypatch):
    first, second = filled
    scan, seen = first._retention._scan, []

    def find_changed_matches(positions, names):
        for batch in scan(positions, names):
            yield batch
            assert second.evict() == 0
            seen.append(len(drafts(tmp_path)))

    monkeypatch.setattr(first._retention, "_scan", find_changed_matches)
    assert first.evict() == 30
    assert seen == [1]
    assert archived(tmp_path) == list(range(30))


def test_an_archiver_renews_its_eviction_while_it_writes(filled, tmp_path, monkeypatch):
    first, _ = filled
    store = first._retention._store
    monkeypatch.setattr(retention, "RENEW_SECONDS", 0.0)
    scan, idle = first._retention._scan, []

    def in_small_batches(positions, names):
        for start in range(0, len(positions), 10):
            with writing(first._database) as session:
                now = store.dialect.NOW
                session.query(f"UPDATE evictions SET renewed = {now} - 500 RETURNING id")
            yield from scan(positions[start : start + 10], names)
            with store.engine.reading() as session:
                idle.append(evictions.find_eviction(store, session).idle)

    monkeypatch.setattr(first._retention, "_scan", in_small_batches)
    assert first.evict() == 30
    assert len(idle) == 3
    assert max(idle) < 100


def test_each_step_is_archived_once_if_clocks_differ_and_jump(open_db, tmp_path, monkeypatch):
    plain = sqlite.NOW
    handles = [open_db().buffer("b", capacity=10) for _ in range(2)]
    handles[0].eviction = expdb.Eviction(archive=tmp_path / "archive")
    stored, scans = 0, [handle._retention._scan for handle in handles]

    def interrupted(number):
        def scan(positions, names):
            for batch in scans[number](positions, names):
                yield batch
                if number == 0 and len(archived(tmp_path)) < 200:
                    at(1).evict()  # the clock of the other archiver is 11 minutes ahead
                    at(0)

        return scan

    def at(number):
        monkeypatch.setattr(sqlite, "NOW", f"({plain} + {660 * (number == 1)})")
        return handles[number]

    for number, handle in enumerate(handles):
        monkeypatch.setattr(handle._retention, "_scan", interrupted(number))
    for _ in range(10):
        stored += len(at(0).store_batch({"n": np.arange(20)}))
        at(0).evict()
    at(1).evict()
    assert sorted([*archived(tmp_path), *held(handles[0])]) == list(range(stored))
    assert drafts(tmp_path) == []


@pytest.mark.parametrize("forget_missing", [False, True])
def test_the_next_process_publishes_the_draft_of_a_killed_archiver(
    filled, tmp_path, monkeypatch, forget_missing
):
    first, second = filled
    left_between(monkeypatch, first, "_publish")
    assert archived(tmp_path) == []
    assert len(drafts(tmp_path)) == 1
    assert second.evict(forget_missing=forget_missing) == 0
    assert archived(tmp_path) == list(range(30))
    assert drafts(tmp_path) == []


@pytest.mark.one_database
def test_evict_rejects_an_archive_folder_without_its_marker_file(filled, tmp_path):
    _, second = filled
    (tmp_path / "archive" / archive_folder.MARKER_FILE).unlink()
    with pytest.raises(errors.ArchiveFailed, match="is not the archive folder of buffer 'b'"):
        second.evict()
    assert len(second) == 40
    second.eviction = expdb.Eviction(archive=tmp_path / "archive")
    assert second.evict() == 30
    assert archived(tmp_path) == list(range(30))


def test_two_buffers_can_share_an_archive(db, tmp_path):
    for name in ("a", "b"):
        buffer = db.buffer(name, capacity=1)
        buffer.eviction = expdb.Eviction(archive=tmp_path)
        buffer.store_batch({"n": np.arange(3)})
    assert [db.buffer(name).evict() for name in ("a", "b")] == [2, 2]


def test_the_policy_of_another_users_database_archives_only_if_confirmed(
    tmp_path, monkeypatch, empty_file
):
    path = tmp_path / "theirs.db"
    with expdb.open(path) as db:
        buffer = archiving(db, tmp_path / "archive", 40, capacity=10)
        monkeypatch.setattr(archive_folder, "_trusted", set())
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
        evict_at_next_write(buffer)
        with pytest.warns(
            errors.ExpDBWarning, match="its policy archives to .* belongs to another user"
        ):
            buffer.store(n=40)
        with pytest.raises(errors.ArchiveFailed, match=r"set buffer\.eviction in this"):
            buffer.evict()
        assert archived(tmp_path) == []
        policy = buffer.eviction
        with pytest.raises(errors.ArchiveFailed, match="belongs to another user"):
            buffer.evict()
        buffer.eviction = policy  # confirms the policy
        assert archived(tmp_path) == list(range(31))
        assert db.check() == []


@pytest.mark.one_database
@pytest.mark.parametrize(
    "name", ["/elsewhere/f.parquet", "archive/../f.parquet", "archive/f.txt", "archive.parquet"]
)
@pytest.mark.parametrize("committed", [False, True])
def test_evict_rejects_a_stored_path_outside_the_archive(filled, tmp_path, name, committed):
    _, second = filled
    store = second._retention._store
    with writing(second._database) as session:
        file = name if name.startswith("/") else str(tmp_path / name)
        row = evictions.begin(store, session, evictions.NOBODY, file, np.arange(5))
        if committed:
            evictions.commit(store, session, row)
    with pytest.raises(errors.DatabaseDamaged, match="not in the archive of the policy"):
        second.evict()
    with writing(second._database) as session:
        session.query("DELETE FROM evictions RETURNING id")


def test_writers_warn_if_no_archiver_enforces_the_capacity(db, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "LATE_SECONDS", 0.0)
    buffer = db.buffer("b", capacity=10)
    buffer.eviction = expdb.Eviction(archive=tmp_path, by="archiver")
    for count in (5, 30):  # first below the capacity, then above it
        evict_at_next_write(buffer)
        buffer.store_batch({"n": np.arange(count)})
    evict_at_next_write(buffer)
    with pytest.warns(errors.ExpDBWarning, match=r"has 36 steps, .* b --follow"):
        buffer.store(n=1)
    buffer.evict()
    monkeypatch.setattr(buffer._retention, "_next_warning", 0.0)
    evict_at_next_write(buffer)
    buffer.update([35], tags={"a": 1})  # no warning
    assert len(buffer) == 10


def test_one_write_archives_a_bounded_number_of_steps(db, tmp_path):
    buffer = archiving(db, tmp_path, 1500, capacity=10)
    evict_at_next_write(buffer)
    at_once = buffer._retention._at_once
    buffer.store(n=1)
    assert len(buffer) == 1501 - at_once
    sizes = [len(buffer)]
    assert sizes[0] > 1000
    while len(buffer) > 500:  # every write evicts while steps are due
        buffer.store(n=1)
        sizes.append(len(buffer))
    assert len(sizes) > 3
    assert sorted([*archived(tmp_path), *held(buffer)]) == list(range(1500 + len(sizes)))


def test_archiving_whole_episodes_never_splits_an_episode(db, tmp_path, monkeypatch):
    buffer = db.buffer("b", capacity=10)
    buffer.eviction = expdb.Eviction(archive=tmp_path, whole_episodes=True)
    for number in range(40):
        with buffer.episode("t", episode_id=f"e{number}") as episode:
            for k in range(1 + number % 7):
                episode.append(n=k)
        evict_at_next_write(buffer)
        monkeypatch.setattr(buffer._retention, "_at_once", 2)
    lengths = {row["episode_id"]: row["length"] for row in buffer.episodes().to_pylist()}
    counts = dict.fromkeys(lengths, 0)
    for batch in buffer.scan(fields=["episode_id"]):
        for name in batch["episode_id"]:
            counts[name] += 1
    assert counts == lengths
    buffer.evict()
    assert len(archived(tmp_path)) == len(set(archived(tmp_path)))


def test_evict_removes_the_draft_of_an_already_published_file(filled, tmp_path):
    first, second = filled
    first.evict()
    (published,) = (tmp_path / "archive").rglob("*.parquet")
    left = published.with_name(f".{published.name}.0123456789abcdef")
    others = published.with_name(".7-9-0123456789ab.parquet.0123456789abcdef")
    for path in (left, others):
        path.write_bytes(b"PAR1")
    second.store_batch({"n": np.arange(40)})
    second.evict()
    assert drafts(tmp_path / "archive") == [others]


def left_between(monkeypatch, buffer, place):
    """Start an eviction and stop it when it calls the method `place`."""

    class Killed(BaseException):
        pass

    def end(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(buffer._retention, place, end)
        if place == "_delete":  # a killed process also leaves its draft
            patch.setattr(archive_folder, "remove", lambda draft: None)
        with pytest.raises(Killed):
            buffer.evict()


@pytest.mark.parametrize("place", ["_delete", "_publish"])
def test_a_backup_and_its_original_write_different_archive_files(tmp_path, monkeypatch, place):
    folder, copy = tmp_path / "archive", tmp_path / "copy.db"
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("b", capacity=10)
        buffer.eviction = expdb.Eviction(archive=folder, by="archiver")
        buffer.store_batch({"n": np.arange(40)})
        left_between(monkeypatch, buffer, place)
        db.backup(copy)
        assert buffer.evict() == (30 if place == "_delete" else 0)
        buffer.store_batch({"n": np.arange(40, 50)})
        assert buffer.evict() == 10
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    with expdb.open(copy) as db:
        buffer = db.buffer("b")
        assert buffer.evict() == (30 if place == "_delete" else 0)
        buffer.store_batch({"n": np.arange(40, 50)})
        assert buffer.evict() == 10
        assert db.check() == []
    for path, content in before.items():
        assert path.read_bytes() == content


def test_an_eviction_committed_by_its_owner_during_a_takeover_is_not_repeated(
    filled, tmp_path, monkeypatch
):
    first, second = filled
    written, may_delete, deleted, may_publish = (threading.Event() for _ in range(4))
    write, publish = first._retention._write_draft, first._retention._publish
    check = archive_folder.check

    def writing_then_waiting(*arguments):
        before = write(*arguments)
        written.set()
        assert may_delete.wait(60)
        return before

    def waiting_then_publishing(archiving):
        deleted.set()
        assert may_publish.wait(60)
        publish(archiving)

    def committed_meanwhile(*arguments):
        may_delete.set()
        assert deleted.wait(60)
        check(*arguments)

    monkeypatch.setattr(first._retention, "_write_draft", writing_then_waiting)
    monkeypatch.setattr(first._retention, "_publish", waiting_then_publishing)
    owner = threading.Thread(target=first.evict)
    owner.start()
    assert written.wait(60)
    monkeypatch.setattr(retention, "EXPIRE_SECONDS", -1.0)  # the clock jumped
    monkeypatch.setattr(archive_folder, "check", committed_meanwhile)
    assert second.evict() == 0
    second.evict()  # publishes, as the owner may have been killed
    assert archived(tmp_path / "archive") == list(range(30))
    may_publish.set()
    owner.join()
    assert archived(tmp_path / "archive") == list(range(30))
    assert drafts(tmp_path / "archive" / "buffer=b") == []


def test_forget_missing_warns_and_discards_the_steps_of_a_lost_archive(
    filled, tmp_path, monkeypatch
):
    buffer, _ = filled
    left_between(monkeypatch, buffer, "_publish")
    shutil.rmtree(tmp_path / "archive")
    with pytest.raises(errors.ArchiveFailed, match="forget_missing"):
        buffer.eviction = expdb.Eviction(archive=tmp_path / "another")
    with pytest.raises(errors.ArchiveFailed):
        buffer.evict()
    buffer.store_batch({"n": np.arange(40, 60)})
    with (
        pytest.warns(
            errors.ExpDBWarning,
            match=r"steps of buffer 'b' are lost, because neither .*/0-29-",
        ),
        pytest.raises(errors.ArchiveFailed, match="archive"),  # its folder is still missing
    ):
        buffer.evict(forget_missing=True)
    buffer.eviction = expdb.Eviction(archive=tmp_path / "another")
    buffer.evict()
    assert archived(tmp_path / "another") == list(range(30, 50))


def test_drop_publishes_the_evicted_steps_of_the_buffer(filled, tmp_path, monkeypatch):
    first, _ = filled
    left_between(monkeypatch, first, "_publish")
    first._database.drop("b")
    assert archived(tmp_path / "archive") == list(range(30))
    assert drafts(tmp_path / "archive") == []


def test_the_draft_is_removed_if_the_buffer_is_dropped_during_evict(filled, tmp_path, monkeypatch):
    first, _ = filled

    def drop(session, archiving):
        raise first._store.dropped()

    with monkeypatch.context() as patch:
        patch.setattr(first._retention, "_without_pinned", drop)
        with pytest.raises(errors.UnknownBuffer):
            first.evict()
    assert drafts(tmp_path / "archive") == []
