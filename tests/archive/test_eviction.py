"""Eviction policies: limits on bytes, age and steps per task, whole episodes and archives."""

import shutil
import time
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from behind import evict_at_next_write, store_of, writing
from cases import examples
from contents import steps_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import expdb
from expdb import errors
from expdb.archive import retention
from expdb.storage.ledger.evictions import begin

pytestmark = pytest.mark.both_databases

ORDERED = expdb.Ordered("position")


@pytest.fixture(autouse=True)
def writes_evict_only_when_told(monkeypatch):
    """Set a long check interval, so that writes evict only if a test requests it."""
    monkeypatch.setattr(retention, "LOOK_SECONDS", 1000.0)


def fill(buffer, lengths, tasks=3):
    for number, length in enumerate(lengths):
        with buffer.episode(f"t{number % tasks}", episode_id=f"e{number}") as episode:
            for step in range(length):
                episode.append(n=step, obs=np.full(8, number, np.float32), note={"k": [step]})


def archiving(db, folder, steps, capacity=5):
    """Return a buffer that archives evicted steps and holds more steps than its capacity."""
    buffer = db.buffer("b", capacity=capacity)
    buffer.eviction = expdb.Eviction(archive=folder)
    buffer.store_batch({"n": np.arange(steps)})
    return buffer


def call_during_scan(monkeypatch, buffer, act):
    """Call `act` once, after an eviction has read the steps; return a list that has its result."""
    scan, results = buffer._retention._scan, []

    def scan_then_act(positions, names):
        yield from scan(positions, names)
        if not results:
            results.append(act())

    monkeypatch.setattr(buffer._retention, "_scan", scan_then_act)
    return results


def held(buffer):
    return [int(p) for batch in buffer.scan(fields=["position"]) for p in batch["position"]]


def archived(folder):
    """Return the sorted positions of all archived steps, including duplicates."""
    files = sorted(folder.rglob("*.parquet"))
    return sorted(p for file in files for p in pq.read_table(file)["position"].to_pylist())


def test_max_bytes_evicts_the_oldest_steps(buffer):
    fill(buffer, [50] * 20)
    nbytes = buffer.stats()["bytes"]
    buffer.eviction = expdb.Eviction(max_bytes=nbytes // 2)
    assert buffer.eviction == expdb.Eviction(max_bytes=nbytes // 2)
    plan = buffer.plan_eviction().to_pylist()
    assert [row["episode_id"] for row in plan] == [f"e{k}" for k in range(len(plan))]
    assert {row["why"] for row in plan} == {"max_bytes"}
    gone = buffer.evict()
    assert gone == sum(row["last"] - row["first"] + 1 for row in plan)
    assert nbytes * 0.4 < buffer.stats()["bytes"] <= nbytes // 2
    assert held(buffer) == list(range(gone, 1000))
    assert buffer.plan_eviction().num_rows == buffer.evict() == 0


def test_max_steps_per_task_keeps_the_newest_steps_of_each_task(buffer, db):
    for k in range(60):
        buffer.store(task_id="rare" if k % 10 == 0 else "common", n=k, terminated=True)
    buffer.eviction = expdb.Eviction(max_steps_per_task=5)
    buffer.evict()
    tasks = [row["task_id"] for row in steps_of(buffer)]
    assert (tasks.count("rare"), tasks.count("common")) == (5, 5)
    assert held(buffer) == [10, 20, 30, 40, 50, 55, 56, 57, 58, 59]
    assert db.check() == []
    assert set(buffer.sample(300, seed=0)["position"].tolist()) == set(held(buffer))
    buffer.eviction = None
    buffer.capacity = 3
    assert held(buffer) == [57, 58, 59]


def test_whole_episodes_evicts_entire_episodes_and_keeps_open_ones(db):
    buffer = db.buffer("whole", capacity=50)
    buffer.eviction = expdb.Eviction(whole_episodes=True)
    still = buffer.episode("open")
    still.append(n=0, obs=np.zeros(8, np.float32), note={})
    still.flush()
    fill(buffer, [20, 20, 20])
    assert len(buffer) == 61  # the writes have not applied the policy yet
    assert buffer.evict() == 20
    assert buffer.episodes()["episode_id"].to_pylist()[1:] == ["e1", "e2"]
    assert db.check() == []
    drawn = buffer.sample(2, unit=expdb.Episode(), seed=0)
    assert drawn["length"].tolist() == [20, 20]
    still.end()
    assert buffer.evict() == 0


def test_writes_apply_the_eviction_policy_automatically(db, tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "LOOK_SECONDS", 0.2)
    buffer = db.buffer("b", capacity=30)
    buffer.eviction = expdb.Eviction(archive=tmp_path / "archive")
    monkeypatch.setattr(buffer._retention, "next_look", time.monotonic() + 0.2)
    stored = 0
    while not archived(tmp_path):  # the time limit of the test prevents an endless loop
        buffer.store_batch({"n": np.arange(20)})
        stored += 20
        time.sleep(0.05)
    assert stored > 20
    assert sorted([*archived(tmp_path), *held(buffer)]) == list(range(stored))


@pytest.mark.one_database
def test_an_archive_contains_every_value(db, tmp_path):
    buffer = db.buffer("b/1", capacity=10, fields={"tokens": expdb.Field("int32", (None,))})
    buffer.eviction = expdb.Eviction(archive=str(tmp_path))
    with buffer.episode("t", group_id="g", policy_version=3, episode_tags={"a": 1}) as episode:
        for k in range(15):
            more = {"rare": "x" * k} if k % 3 else {}
            episode.append(
                obs=np.full((2, 3), k, np.float32), text=f"step {k}", json={"k": [k]},
                tokens=np.arange(k, dtype=np.int32), reward=k / 2, tags={"k": k}, data=b"\0",
                policy_version=3 + k // 10, **more,
            )  # fmt: skip
    buffer.update_priorities([2], [0.5])
    rows = [row for batch in buffer.scan() for row in batch.to_list()][:5]
    assert buffer.evict() == 5
    (file,) = tmp_path.rglob("*.parquet")
    assert file.parent.parent.name == "buffer=b%2F1"
    archived_rows = pq.read_table(file).to_pylist()
    assert [row["position"] for row in archived_rows] == list(range(5))
    assert [row["text"] for row in archived_rows] == [row["text"] for row in rows]
    assert [list(map(float, row["obs"])) for row in archived_rows] == [
        [k] * 6 for k in map(float, range(5))
    ]
    assert archived_rows[1]["json"] == '{"k":[1]}'
    assert archived_rows[2]["priority"] == 0.5
    assert archived_rows[4]["tokens"] == [0, 1, 2, 3]
    assert [row["rare"] for row in archived_rows] == [None, "x", "xx", None, "xxxx"]
    assert {row["policy_version"] for row in archived_rows} == {3}
    assert {(row["group_id"], row["episode_tags"], row["data"]) for row in archived_rows} == {
        ("g", '{"a":1}', b"\0")
    }


@pytest.mark.one_database
def test_no_steps_are_evicted_if_the_archive_cannot_be_written(db, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    buffer = db.buffer("b", capacity=10)
    with pytest.raises(errors.ArchiveFailed, match="no steps were evicted; free disk space"):
        buffer.eviction = expdb.Eviction(archive=tmp_path / "file")
    assert buffer.eviction is None
    folder = tmp_path / "archive"
    buffer.eviction = expdb.Eviction(archive=folder)
    shutil.rmtree(folder)
    folder.write_text("")  # another program wrote a file with that name
    evict_at_next_write(buffer)
    with pytest.warns(errors.ExpDBWarning, match="cannot be written"):
        buffer.store_batch({"n": np.arange(20)})
    stored = len(buffer)
    with pytest.raises(errors.ArchiveFailed):
        buffer.evict()
    assert len(buffer) == stored
    folder.unlink()
    with pytest.raises(errors.ArchiveFailed, match=r"set buffer\.eviction again"):
        buffer.evict()
    buffer.eviction = expdb.Eviction(archive=folder)
    assert buffer.evict() == stored - 10
    assert archived(tmp_path) == list(range(stored - 10))


@pytest.mark.one_database
def test_due_steps_are_archived_before_the_policy_changes(db, tmp_path):
    buffer = db.buffer("b", capacity=5)
    for policy in (None, expdb.Eviction(max_bytes=1 << 30)):
        buffer.eviction = expdb.Eviction(archive=tmp_path / "archive")
        stored = buffer.store_batch({"n": np.arange(12)})
        buffer.eviction = policy
        assert len(buffer) == 5
        assert sorted([*archived(tmp_path), *held(buffer)]) == list(range(stored[-1] + 1))
    buffer.eviction = expdb.Eviction(archive=tmp_path / "gone")
    buffer.store_batch({"n": np.arange(12)})
    shutil.rmtree(tmp_path / "gone")
    (tmp_path / "gone").write_text("")
    with pytest.raises(errors.ArchiveFailed, match="its current policy must archive"):
        buffer.eviction = None
    with pytest.raises(errors.ArchiveFailed):
        buffer.evict()
    assert len(buffer) == 17
    buffer.eviction = expdb.Eviction(archive=tmp_path / "other")  # replaces the broken archive
    assert buffer.evict() == 12
    assert archived(tmp_path / "other") == list(range(19, 31))
    buffer.eviction = None


def test_a_write_succeeds_with_a_warning_if_its_eviction_fails(db, monkeypatch):
    buffer = db.buffer("b", capacity=5)
    buffer.eviction = expdb.Eviction(whole_episodes=True)

    def full(*_):
        raise errors.StorageFull("the disk is full")

    monkeypatch.setattr("expdb.archive.retention.evict", full)
    evict_at_next_write(buffer)
    with pytest.warns(
        errors.ExpDBWarning, match="cannot evict steps of buffer .*: the disk is full"
    ):
        rows = [{"task_id": f"t{k}", "truncated": True} for k in range(9)]
        assert buffer.store_batch(rows).tolist() == list(range(9))
    with pytest.raises(errors.StorageFull):
        buffer.evict()


@pytest.mark.parametrize(
    ("name", "before"), [("reward", None), ("advantage", None), ("advantage", 1.0)]
)
def test_a_value_stored_during_an_eviction_is_archived(db, tmp_path, monkeypatch, name, before):
    buffer = archiving(db, tmp_path, 10)

    def put(value):
        if name == "reward":
            return buffer.update([2], reward=value)
        return buffer.annotate([2], advantage=[value])

    if before is not None:
        put(before)
    call_during_scan(monkeypatch, buffer, lambda: put(7.0))
    assert buffer.evict() == 5
    (file,) = tmp_path.rglob("*.parquet")
    assert pq.read_table(file)[name].to_pylist() == [None, None, 7.0, None, None]


def abort_two_episodes(buffer):
    for name in ("a", "b"):
        writer = buffer.episode("t", episode_id=name)
        for n in range(4):
            writer.append(n=n)
        writer.abort()


@pytest.mark.parametrize("is_archived", [False, True])
def test_an_episode_resumed_during_an_eviction_is_not_evicted(
    open_db, tmp_path, monkeypatch, is_archived
):
    buffer, other = (open_db().buffer("b", capacity=1) for _ in range(2))
    buffer.eviction = expdb.Eviction(
        whole_episodes=True, archive=tmp_path if is_archived else None, by="archiver"
    )
    abort_two_episodes(buffer)
    resumed, save = [], buffer._retention._save

    def resume():
        if not resumed:
            resumed.append(other.episode("t", episode_id="b", resume=True))

    if is_archived:  # while the draft is written
        call_during_scan(monkeypatch, buffer, resume)
    else:  # after the steps were selected
        monkeypatch.setattr(buffer._retention, "_save", lambda: (resume(), save()))
    assert buffer.evict() == 4
    assert archived(tmp_path) == ([0, 1, 2, 3] if is_archived else [])
    (writer,) = resumed
    assert writer.length == 4
    writer.append(n=4)
    writer.end()
    assert held(buffer) == [4, 5, 6, 7, 8]


def test_pinned_steps_are_not_evicted(buffer):
    fill(buffer, [10] * 4)
    lease = buffer.consumer("c").lease(1, where=[12], pin=True)
    buffer.eviction = expdb.Eviction(max_bytes=1)
    assert buffer.evict() == 12
    lease.acknowledge()
    assert buffer.evict() == 28


@pytest.mark.parametrize(
    "options",
    [{}, {"max_bytes": 0}, {"max_age_seconds": -1}, {"max_steps_per_task": 1.5}, {"archive": 3},
     {"archive": ""}, {"whole_episodes": "yes"}],
)  # fmt: skip
def test_eviction_rejects_invalid_options(options):
    with pytest.raises(expdb.InvalidValue):
        expdb.Eviction(**options)


@pytest.mark.one_database
def test_the_eviction_attribute_rejects_a_dict(buffer):
    with pytest.raises(expdb.InvalidValue, match=r"eviction must be an expdb\.Eviction"):
        buffer.eviction = {"max_bytes": 3}
    assert buffer.plan_eviction().num_rows == buffer.evict() == 0


episodes = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rounds=st.lists(episodes, min_size=1, max_size=3),
    whole=st.booleans(),
    per_task=st.none() | st.integers(1, 12),
    capacity=st.none() | st.integers(1, 25),
)
def test_eviction_keeps_the_same_steps_as_a_reference_model(db, rounds, whole, per_task, capacity):
    if "model" in db.buffers():
        db.drop("model")
    buffer = db.buffer("model", capacity=capacity)
    if not (whole or per_task):
        return
    buffer.eviction = expdb.Eviction(whole_episodes=whole, max_steps_per_task=per_task)
    model = []  # position, task, episode, open
    for number, new_episodes in enumerate(rounds):
        for k, (task, length, is_open) in enumerate(new_episodes):
            rows = [{"task_id": f"t{task}", "episode_id": f"{number}.{k}", "n": s} for s in
                    range(length)]  # fmt: skip
            positions = buffer.store_batch(rows)
            if not is_open:
                buffer.end_episode(f"{number}.{k}")
            model += [(int(p), task, (number, k), is_open) for p in positions]
            if not whole and capacity is not None:
                model = model[-capacity:]
        items = {}
        for p, task, episode, is_open in model:
            items.setdefault(episode if whole else p, []).append((p, task, whole and is_open))
        items = sorted(items.values(), key=lambda item: item[-1][0])
        gone, totals = set(), Counter()
        for item in reversed(items) if per_task is not None else ():
            _, task, is_kept = item[0]
            totals[task] += len(item)
            if totals[task] > per_task and not is_kept:
                gone |= {p for p, _, _ in item}
        for item in items if capacity is not None else ():
            if len(model) - len(gone) > capacity and not item[0][2]:
                gone |= {p for p, _, _ in item}
        buffer.evict()
        model = [step for step in model if step[0] not in gone]
        assert held(buffer) == [step[0] for step in model]
        assert db.check() == []


def test_a_recreated_buffer_does_not_overwrite_existing_archive_files(db, tmp_path):
    for start in (0, 100):
        buffer = db.buffer("b", capacity=5)
        buffer.eviction = expdb.Eviction(archive=tmp_path)
        buffer.store_batch({"n": np.arange(start, start + 12)})
        assert buffer.evict() == 7
        db.drop("b")
    files = [pq.read_table(file)["n"].to_pylist() for file in tmp_path.rglob("*.parquet")]
    assert sorted(files) == [list(range(7)), list(range(100, 107))]


def test_evict_finishes_the_expired_eviction_of_another_process(db, tmp_path, monkeypatch):
    buffer = archiving(db, tmp_path, 12)
    with writing(db) as session:
        file = str(tmp_path / "f.parquet")
        begin(store_of(buffer), session, "elsewhere 7 8 9", file, np.arange(7))
    assert buffer.evict() == 0  # a process on another machine runs this eviction
    with pytest.raises(errors.DatabaseBusy, match="another process archives"):
        buffer.eviction = None
    monkeypatch.setattr("expdb.archive.retention.EXPIRE_SECONDS", -1.0)
    assert buffer.evict() == 7
    assert archived(tmp_path) == list(range(7))


@pytest.mark.one_database
def test_steps_pinned_during_archiving_are_not_evicted(db, tmp_path, monkeypatch):
    buffer = archiving(db, tmp_path, 18, capacity=10)
    consumer = buffer.consumer("c")
    leases = call_during_scan(
        monkeypatch, buffer, lambda: consumer.lease(2, [4, 6], sampler=ORDERED, pin=True)
    )
    assert buffer.evict() == 4
    assert archived(tmp_path) == [0, 1, 2, 3]
    assert consumer.shared(leases[0].id).size == 2
    leases[0].acknowledge()
    assert buffer.evict() == 4
    assert archived(tmp_path) == list(range(8))


def test_max_age_evicts_old_steps_stored_after_many_new_steps(db):
    buffer, now = db.buffer("b"), time.time()
    buffer.store_batch(
        [{"task_id": f"t{k}", "execute_time": now - 1000 * (k >= 1100), "truncated": True}
         for k in range(1150)]
    )  # fmt: skip
    buffer.eviction = expdb.Eviction(max_age_seconds=500)
    assert buffer.evict() == 50
    assert held(buffer) == list(range(1100))


def test_a_policy_of_an_earlier_version_is_read(buffer):
    buffer.eviction = expdb.Eviction(max_age_seconds=500)
    with store_of(buffer).writing() as (session, _):
        session.query(
            "UPDATE buffers SET eviction = replace(eviction, 'max_age_seconds', 'max_age') "
            "RETURNING id"
        )
    assert buffer.eviction == expdb.Eviction(max_age_seconds=500)


def test_deleting_a_pinned_step_keeps_the_other_leased_steps_pinned(db):
    buffer = db.buffer("b", capacity=20)
    fill(buffer, [10, 10])
    buffer.eviction = expdb.Eviction(whole_episodes=True)
    lease = buffer.consumer("c").lease(2, [5, 12], sampler=ORDERED, pin=True)
    buffer.delete([5])
    fill2 = [{"episode_id": f"x{k}", "task_id": "x", "n": 1} for k in range(5)]
    buffer.store_batch(fill2)
    for k in range(5):
        buffer.end_episode(f"x{k}")
    buffer.evict()
    assert 12 in held(buffer)
    assert db.check() == []
    lease.acknowledge()
    buffer.evict()
    assert len(buffer) <= 20


@pytest.mark.one_database
def test_expired_pins_do_not_prevent_eviction(db):
    buffer = db.buffer("b")
    fill(buffer, [10] * 4)
    buffer.consumer("c").lease(1, where=[0], pin=True, expiry_seconds=0.01)
    buffer.eviction = expdb.Eviction(max_steps_per_task=1)
    time.sleep(0.05)
    assert buffer.evict() == 37


@pytest.mark.one_database
def test_long_unicode_names_and_empty_shapes_are_archived(db, tmp_path):
    buffer = db.buffer("\N{SNOWMAN}" * 60, capacity=2)
    buffer.eviction = expdb.Eviction(archive=tmp_path)
    buffer.store_batch({"none": np.zeros((5, 3, 0), np.float32), "n": np.arange(5)})
    assert buffer.evict() == 3
    assert archived(tmp_path) == [0, 1, 2]
