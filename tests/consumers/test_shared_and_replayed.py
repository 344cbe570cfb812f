"""`shared` and `replay` in another process equal the lease, for every unit and column."""

import pickle
import sqlite3
import zlib

import numpy as np
import pytest
from processes import FORKSERVER

import expdb
from expdb import errors
from expdb.names import EPISODE_COLUMNS, STEP_COLUMNS
from expdb.sampling import checksums

pytestmark = pytest.mark.both_databases

COLUMNS = [*dict.fromkeys((*STEP_COLUMNS, *EPISODE_COLUMNS))]
FIELDS = ["obs", "text", "data", "tokens"]
UNITS = {
    "step": expdb.Step(), "stack": expdb.Stack(3), "n-step": expdb.NStep(2, stack=2),
    "sequence": expdb.Sequence(4, burn_in=2), "episode": expdb.Episode(), "group": expdb.Group(3),
}  # fmt: skip


def fill(buffer):
    """Store twelve rollouts with every column set on some steps."""
    buffer._database.buffer(buffer.name, fields={"tokens": expdb.Field("int32", (None,))})
    for number in range(12):
        with buffer.episode(
            f"task {number % 3}", task_name=f"name {number}", agent_id=f"agent {number % 2}",
            group_id=f"group {number // 3}", policy_version=number // 4,
            episode_tags={"n": number},
        ) as episode:  # fmt: skip
            for step in range(2 + number % 4):
                episode.append(
                    obs=np.full(3, number, np.float32), text=f"{number}/{step}",
                    data={"step": [step]}, tokens=np.arange(step, dtype=np.int32),
                    reward=float(number + step), pre_agent=f"pre {step}", tags={"k": step},
                    policy_version=number // 4 + step // 2,
                )  # fmt: skip
    buffer.update_priorities(np.arange(10), np.arange(10) + 0.5)


def plain(batch):
    return {
        name: (array.dtype.str, array.shape, array.tolist() if array.dtype == object
               else array.tobytes())
        for name, array in batch.items()
    }  # fmt: skip


def read_again(location, leases, replies):
    """Read the leases with `shared`, and with `replay` after they are acknowledged."""
    with expdb.open(location) as db:
        buffer = db.buffer("train")
        for name, id in leases.items():
            replies.put((name, pickle.dumps(plain(buffer.consumer(name).shared(id)))))
        assert replies.get() == "acknowledged"
        for name in leases:
            (batch,) = buffer.replay(name)
            replies.put((name, pickle.dumps(plain(batch))))


class Both:
    """A connection between two processes, with one queue for each direction."""

    def __init__(self, sent, received):
        self.put, self.get = sent.put, received.get


@pytest.mark.parametrize("fields", [None, "columns", "both"])
def test_shared_and_replay_in_another_process_equal_the_lease(db, location, fields):
    buffer = db.buffer("train")
    fill(buffer)
    names = {None: None, "columns": COLUMNS, "both": [*FIELDS, *COLUMNS]}[fields]
    leases = {
        name: buffer.consumer(name).lease(3, unit=unit, fields=names, pin=True)
        for name, unit in UNITS.items()
    }
    there, back = FORKSERVER.Queue(), FORKSERVER.Queue()
    ids = {name: lease.id for name, lease in leases.items()}
    other = FORKSERVER.Process(target=read_again, args=(location, ids, Both(back, there)))
    other.start()
    expected = {name: plain(lease.batch) for name, lease in leases.items()}
    for _ in ids:
        name, pickled = back.get(timeout=60)
        assert repr(pickle.loads(pickled)) == repr(expected[name]), name
    for name, lease in leases.items():
        for k in range(2):
            part = buffer.consumer(name).shared(lease.id, shard=(k, 2))
            of_rank = {key: array[k::2] for key, array in lease.batch.items()}
            assert repr(plain(part)) == repr(plain(of_rank)), name
        with pytest.raises(expdb.InvalidValue, match="shard must be"):
            buffer.consumer(name).shared(lease.id, shard=(2, 2))
        lease.acknowledge()
    there.put("acknowledged")
    for _ in ids:
        name, pickled = back.get(timeout=60)
        assert repr(pickle.loads(pickled)) == repr(expected[name]), name
    other.join(60)
    assert other.exitcode == 0


def test_new_and_missing_fields_of_later_steps_do_not_change_a_replayed_batch(new_buffer):
    buffer = new_buffer()
    fill(buffer)
    consumer, leased = buffer.consumer("c"), []
    for unit in (expdb.Step(), expdb.NStep(1), expdb.Episode()):
        lease = consumer.lease(2, unit=unit)
        leased.append(lease.batch)
        lease.acknowledge()
    buffer.store(task_id="another", new=1)
    for old, again in zip(leased, buffer.replay("c"), strict=True):
        assert {name: again[name].tobytes() for name in ("position", "obs")} == {
            name: old[name].tobytes() for name in ("position", "obs")
        }
    buffer.update([int(leased[0]["position"][0])], reward=-7.0)
    with pytest.raises(errors.ReplayMismatch):
        list(buffer.replay("c"))


@pytest.mark.parametrize("name", ["episode_id", "task_id", "pre_agent", "tags"])
def test_shared_raises_if_tags_have_changed(buffer, db, name):
    fill(buffer)
    lease = buffer.consumer("c").lease(2, unit=expdb.Group(3), fields=["position", name])
    positions = lease.batch["position"]
    chosen = int(positions[positions >= 0][0])
    if name == "tags":
        buffer.update([chosen], tags={"k": 99})
        with pytest.raises(errors.ReplayMismatch):
            buffer.consumer("c").shared(lease)
    else:
        assert buffer.consumer("c").shared(lease).size == 2


def test_replay_verifies_checksums_of_an_older_ledger_where_possible(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        fill(buffer)
        flat = buffer.consumer("flat").lease(3, fields=["task_id", "reward"])
        wide = buffer.consumer("wide").lease(2, unit=expdb.Episode(), fields=["pre_agent"])
        flat.acknowledge()
        wide.acknowledge()
        other = sqlite3.connect(path)
        other.execute("UPDATE leases SET checksum = checksum & 4294967295")
        other.execute("UPDATE leases SET checksum = 7 WHERE consumer = 2")
        other.commit()
        other.close()
        assert next(buffer.replay("flat"))["reward"].shape == (3,)
        assert next(buffer.replay("wide"))["pre_agent"].shape[0] == 2
        buffer.update({"step": 0}, reward=-5.0)
        buffer.update({"step": 1}, reward=-5.0)
        with pytest.raises(errors.ReplayMismatch):
            list(buffer.replay("flat"))
    assert checksums.OF_VALUES > zlib.crc32(b"") >= 0
