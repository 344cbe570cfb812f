"""Steps that a process has committed join its rows in memory as if they had been read."""

import contextlib

import numpy as np
import pytest

import expdb
from expdb.memory.columns import AFTER, BEFORE, ORDINAL, PRESENT, WHOLE
from expdb.sampling import sampling
from expdb.sql.dialects.sqlite.session import SqliteSession

UNIT = expdb.NStep(1)
FIELDS = {
    "obs": expdb.Field("float32", (3,)),
    "action": expdb.Field("int64"),
    "flag": expdb.Field("bool"),
    "marks": expdb.Field("bool", (2,)),
    "frame": expdb.Field("uint8", (40, 40)),  # compressed in its chunks
    "half": expdb.Field("float16"),
    "text": expdb.Field("text"),
}


def rows_of(buffer, final_fields):
    """Return the rows in memory, by position; of final observations some fields."""
    r = buffer._sampling.resident
    positions = r.all_positions()
    rows = r.rows(positions)

    def following(row):
        if row < 0 or row == r.zero:
            return int(min(row, 0)) if row < 0 else "zero"
        if row < r.slots:
            return int(r.positions(np.array([row]))[0])
        return {name: r.columns[name][row].tolist() for name in final_fields if name in r.fields}

    before = r.previous_steps(rows)
    found = {
        name: r.columns[name][rows]
        for name in (
            "episode", "step", "reward", "terminated", "truncated", ORDINAL, WHOLE, PRESENT,
            *r.fields, *(f"has_{name}" for name in r.fields if f"has_{name}" in r.columns),
        )
    }  # fmt: skip
    found["position"] = positions
    found[AFTER] = [following(row) for row in r.columns[AFTER][rows].tolist()]
    found[BEFORE] = r.positions(before) if len(before) else before
    if not r.deleted:  # after a delete, the remaining steps of an open episode are not counted
        found["open"] = {
            id: (one.last, one.ordinal, *((one.first, one.count) if one.first >= r.low else (-1,)))
            for id, one in r.open.items()
            if one.last >= r.low
        }
    found["counters"] = r.low, r.high, r.size, r.gaps
    return found


def assert_matches_new_reader(buffer, reader, seed):
    """Compare the rows in memory, and a sample, with those of a handle that reads everything."""
    reader._sampling.start_anew()
    for one in (buffer, reader):
        with contextlib.suppress(expdb.TooFewRows):
            one.sample(1, unit=UNIT, rng=np.random.default_rng(seed))
    # Those of episodes that are evicted are not known to a new handle.
    names = sorted(reader._sampling.resident.final_fields)
    assert set(names) <= buffer._sampling.resident.final_fields
    np.testing.assert_equal(rows_of(buffer, names), rows_of(reader, names))
    if len(reader):
        mine, theirs = (one.sample(64, rng=np.random.default_rng(seed)) for one in (buffer, reader))
        assert list(mine) == list(theirs)
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key], err_msg=key)


class History:
    """Random writes to a buffer, mostly by one handle."""

    def __init__(self, rng, mine, theirs):
        self._rng, self.mine, self._theirs = rng, mine, theirs
        self._open = []
        self.number = 0

    def step(self):
        """Return the fields of a step; some may be missing."""
        rng, self.number = self._rng, self.number + 1
        values = {
            "obs": rng.random(3, np.float32),
            "action": self.number,
            "flag": bool(rng.random() < 0.5),
            "marks": rng.random(2) < 0.5,
            "half": np.float16(self.number),
            "text": f"step {self.number}",
            "frame": np.full((40, 40), self.number % 251, np.uint8),
            "reward": float(self.number) if rng.random() < 0.9 else None,
        }
        if rng.random() < 0.15:
            del values[str(rng.choice(["obs", "flag", "half", "frame", "text"]))]
        return values

    def store(self, buffer):
        """Store some steps, one by one or together."""
        if self._rng.random() < 0.5:
            buffer.store(task_id="alone", **self.step())
            return
        count = int(self._rng.integers(1, 9))
        columns = {
            "action": np.arange(count),
            "task_id": [f"t{self._rng.integers(3)}" for _ in range(count)],
            "reward": self._rng.random(count),
        }
        if self._rng.random() < 0.5:
            columns["obs"] = self._rng.random((count, 3), np.float32)
        buffer.store_batch(columns)

    def write_episode(self):
        """Begin an episode, or go on with one that is open."""
        rng = self._rng
        if not self._open or (len(self._open) < 3 and rng.random() < 0.3):
            self._open.append(self.mine.episode(f"e{rng.integers(9)}", flush_steps=10**6))
        episode = self._open[rng.integers(len(self._open))]
        for _ in range(rng.integers(1, 6)):
            explicit = {"step": int(rng.integers(5))} if rng.random() < 0.02 else {}
            episode.append(**self.step(), **explicit)
        if rng.random() < 0.3:
            self._open.remove(episode)
            if rng.random() < 0.3:
                episode.append(**self.step(), terminated=True)
            last = {"obs": rng.random(3, np.float32), "flag": True} if rng.random() < 0.5 else {}
            (episode.abort if rng.random() < 0.2 else episode.end)(**last)
        elif rng.random() < 0.8:
            episode.flush()

    def change(self):
        """Change what is stored."""
        mine, rng = self.mine, self._rng
        positions = np.unique(rng.integers(0, max(self.number, 1), 3))
        kind = rng.integers(6)
        if kind == 0:
            mine.update(positions, reward=1.5)
        elif kind == 1:
            mine.delete(positions)
        elif kind == 2:
            mine.update_priorities(positions, np.ones(len(positions)))
        elif kind == 3:
            mine.set_capacity(int(rng.integers(20, 80)))
        elif kind == 4:
            self.close()
            mine.clear()
        else:
            self._theirs.update(positions, terminated=True)

    def write_or_change(self):
        """Do one thing."""
        choice = self._rng.random()
        if choice < 0.3:
            self.store(self.mine)
        elif choice < 0.85:
            self.write_episode()
        elif choice < 0.93:
            self.store(self._theirs)
        else:
            self.change()

    def close(self):
        """End what is open."""
        for episode in self._open:
            episode.abort()
        self._open = []


@pytest.mark.filterwarnings("ignore::expdb.ExpDBWarning")
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 40))]
)
def test_rows_in_memory_match_the_database_after_random_writes(open_db, seed):
    rng = np.random.default_rng(seed)
    capacity = None if seed % 2 else int(rng.integers(20, 60))
    buffer = open_db(max_lag=0.0).buffer("b", capacity=capacity, fields=FIELDS)
    history, reader = History(rng, buffer, open_db().buffer("b")), open_db().buffer("b")
    for k in range(60):
        history.write_or_change()
        if rng.random() < 0.7:
            assert_matches_new_reader(buffer, reader, k)
    history.close()
    assert_matches_new_reader(buffer, reader, seed)


def fail_if_read(*arguments):
    raise AssertionError("the database was read")


def write_steps(buffer, episode, first):
    """Write some steps in every way there is."""
    steps = np.arange(first, first + 20)
    for k in steps[:4]:
        episode.append(action=int(k), reward=0.5)
    episode.flush()
    buffer.store(action=int(steps[4]), reward=1.0)
    buffer.store_batch({"action": steps[5:9], "task_id": ["a", "b", "a", "b"]})
    with buffer.episode("whole") as whole:
        whole.extend({"action": steps[9:19]})
        whole.append(action=int(steps[19]), terminated=True)


def test_sample_does_not_read_own_writes(open_db, location, monkeypatch):
    lag = {"max_lag": 60.0} if "://" in location else {}
    buffer = open_db(**lag).buffer("b", capacity=60, fields={"action": expdb.Field("int64")})
    with buffer.episode("long") as episode:
        write_steps(buffer, episode, 0)
        buffer.sample(1, unit=UNIT)
        write_steps(buffer, episode, 20)  # the next sample allocates rows for later writes
        buffer.sample(1, unit=UNIT)
        with monkeypatch.context() as patched:
            patched.setattr(sampling, "refresh", fail_if_read)
            patched.setattr(type(buffer._store.engine), "reading", fail_if_read)
            for first in (40, 60, 80, 100):
                write_steps(buffer, episode, first)
                buffer.sample(1, unit=UNIT)
        held = buffer._sampling.resident
        actions = held.columns["action"][held.rows(held.all_positions())]
        assert actions.tolist() == list(range(60, 120))


def test_sample_after_clear_does_not_read_own_writes(open_db, location, monkeypatch):
    lag = {"max_lag": 60.0} if "://" in location else {}
    buffer = open_db(**lag).buffer("b", fields={"action": expdb.Field("int64")})
    with buffer.writer() as writer:
        for first in (0, 60, 120, 180):
            writer.extend({"action": first + np.arange(60)})
            writer.flush()
            with monkeypatch.context() as patched:
                if first:
                    patched.setattr(sampling, "refresh", fail_if_read)
                    patched.setattr(type(buffer._store.engine), "reading", fail_if_read)
                assert sorted(np.unique(buffer.sample(999)["action"])) == [
                    *range(first, first + 60)
                ]
            if not first:
                buffer.sample(1)
            buffer.clear()


def test_commits_of_another_handle_are_read(open_db):
    mine, theirs = open_db(max_lag=0.0).buffer("b"), open_db().buffer("b")
    mine.store(x=0)
    mine.sample(1)
    mine.sample(1)
    for k in range(1, 10):
        mine.store(x=2 * k - 1)
        theirs.store(x=2 * k)
        assert set(mine.sample(500)["x"].tolist()) == set(range(2 * k + 1))
        theirs.update(np.arange(1), reward=float(k))
        mine.store(x=-1)
        mine.delete(np.array([3 * k]))
        assert set(mine.sample(500, fields=["reward"])["reward"].tolist()) >= {float(k)}


def test_commit_queue_is_emptied_without_samples(db, monkeypatch):
    buffer = db.buffer("b")
    buffer.store(x=0)
    buffer.sample(1)
    buffer.sample(1)
    queue = buffer._store.commit_queue
    monkeypatch.setattr("expdb.storage.commits.MAX_COMMITS", 8)
    for k in range(1, 8):
        buffer.store(x=k)
        assert len(queue.queued) == k
    for k in range(8, 20):
        buffer.store(x=k)
    assert not queue.queued
    assert set(buffer.sample(500)["x"].tolist()) == set(range(20))
    buffer.store(x=20)
    assert len(queue.queued) == 1


@pytest.mark.parametrize("told", [{"tags": {"t": "x" * 1000}}, {"pre_agent": "x" * 1000}])
def test_commit_queue_counts_texts_of_steps(db, monkeypatch, told):
    buffer = db.buffer("b")
    buffer.store(x=0)
    buffer.sample(1)
    buffer.sample(1)
    monkeypatch.setattr("expdb.storage.commits.MAX_BYTES", 10_000)
    for k in range(1, 20):
        buffer.store(x=k, **told)
    assert not buffer._store.commit_queue.queued


def test_new_steps_of_another_handle_have_their_late_values(open_db):
    mine, theirs = open_db(max_lag=0.0).buffer("b"), open_db().buffer("b")
    mine.store_batch({"x": np.arange(50)})
    for _ in range(3):
        mine.sample(1)
    (position,) = theirs.store_batch({"x": [50], "reward": [1.0]})
    theirs.update(np.array([position]), reward=7.0)
    mine.sample(1)
    r = mine._sampling.resident
    assert r.columns["reward"][position % r.slots] == 7.0


def test_an_episode_whose_chunks_were_merged_goes_on_where_it_was(open_db):
    mine, theirs = open_db(max_lag=0.0).buffer("b"), open_db().buffer("b")
    mine.store_batch({"x": np.arange(50)})
    with theirs.episode("e", flush_steps=1000) as episode:
        for k in range(6):
            episode.append(x=100 + k)
            if k % 2:
                episode.flush()
                mine.sample(1, unit=expdb.Step(), fields=["x"])
                mine.sample(1)
        episode.append(x=106)
    reader = open_db().buffer("b")
    assert_matches_new_reader(mine, reader, 0)
    assert mine.get(np.arange(50, 57))["x"].tolist() == list(range(100, 107))


def test_a_final_observation_in_a_chunk_of_its_own_is_read(open_db):
    buffer, reader = open_db().buffer("b"), open_db().buffer("b")
    frame = np.zeros((40, 40), np.uint8)
    for count in range(1, 14):  # one of these fills a chunk, so that the next one has the last row
        with buffer.episode("e", flush_steps=1000) as episode:
            for k in range(count):
                episode.append(obs=frame, action=k)
            episode.end(obs=frame + count)
        assert_matches_new_reader(buffer, reader, count)


def test_a_commit_between_ours_and_the_look_at_it_is_seen(tmp_path, monkeypatch):
    with expdb.open(tmp_path / "a.db", max_lag=0.0) as one, expdb.open(tmp_path / "a.db") as two:
        mine, theirs = one.buffer("b"), two.buffer("b")
        mine.store_batch({"x": np.arange(3)})
        for _ in range(3):
            mine.sample(1)
        calls, original = [], SqliteSession.wal_index_header

        def after_another_commit(self):
            calls.append(self)
            if len(calls) == 2:  # after our commit
                theirs.store(x=4)
            return original(self)

        monkeypatch.setattr(SqliteSession, "wal_index_header", after_another_commit)
        mine.store(x=3)
        assert len(calls) == 2
        assert set(mine.sample(500)["x"].tolist()) == set(range(5))


@pytest.mark.filterwarnings("ignore:.*k:expdb.ExpDBWarning")
def test_a_step_that_changes_its_episode_is_read(open_db):
    buffer = open_db().buffer("b")
    where = expdb.QueryBuilder().eq("episode_tags.k", 2)
    with buffer.writer() as writer:
        for k in range(4):
            writer.append(x=k, episode_tags={"k": 2} if k == 3 else None)
            writer.flush()
            buffer.sample(1)
            if k < 3:
                with pytest.raises(expdb.TooFewRows):
                    buffer.sample(50, where)
        assert set(buffer.sample(50, where)["x"].tolist()) == {0, 1, 2, 3}
