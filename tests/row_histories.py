"""Random writes to a buffer, and a comparison of its rows in memory with the database."""

import contextlib
from functools import partial

import numpy as np

import expdb
from expdb import errors
from expdb.memory.columns import AFTER, BEFORE, ORDINAL, PRESENT, WHOLE

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
    """Return the rows in memory by position, with `final_fields` of final observations."""
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
    rows_by_name = {
        name: r.columns[name][rows]
        for name in (
            "episode", "step", "reward", "terminated", "truncated", ORDINAL, WHOLE, PRESENT,
            *r.fields, *(f"has_{name}" for name in r.fields if f"has_{name}" in r.columns),
        )
    }  # fmt: skip
    rows_by_name["position"] = positions
    rows_by_name[AFTER] = [following(row) for row in r.columns[AFTER][rows].tolist()]
    rows_by_name[BEFORE] = r.positions(before) if len(before) else before
    if not r.deleted:  # after a delete, the remaining steps of an open episode are not counted
        rows_by_name["open"] = {
            id: (own.last, own.ordinal, *((own.first, own.count) if own.first >= r.low else (-1,)))
            for id, own in r.open.items()
            if own.last >= r.low
        }
    rows_by_name["counters"] = r.low, r.high, r.size, r.gaps
    return rows_by_name


def assert_matches_new_reader(buffer, reader, seed):
    """Assert that the rows in memory and a sample equal those of a newly loaded handle."""
    reader._sampling.reset()
    for source in (buffer, reader):
        with contextlib.suppress(expdb.TooFewRows):
            source.sample(1, unit=UNIT, seed=np.random.default_rng(seed))
    # A new handle does not have the final fields of evicted episodes.
    names = sorted(reader._sampling.resident.final_fields)
    assert set(names) <= buffer._sampling.resident.final_fields
    np.testing.assert_equal(rows_of(buffer, names), rows_of(reader, names))
    if len(reader):
        ours, theirs = (
            source.sample(64, seed=np.random.default_rng(seed)) for source in (buffer, reader)
        )
        assert list(ours) == list(theirs)
        for key in ours:
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


class History:
    """Random writes to a buffer, mostly by one handle."""

    def __init__(self, rng, buffer, theirs):
        self._rng, self.buffer, self._theirs = rng, buffer, theirs
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
        """Store one step or a batch of steps."""
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
        """Begin an episode or continue an open episode."""
        rng = self._rng
        if not self._open or (len(self._open) < 3 and rng.random() < 0.3):
            self._open.append(self.buffer.episode(f"e{rng.integers(9)}", flush_steps=10**6))
        episode = self._open[rng.integers(len(self._open))]
        for _ in range(rng.integers(1, 6)):
            explicit = {"step": -1 - self.number} if rng.random() < 0.02 else {}
            episode.append(**self.step(), **explicit)
        if rng.random() < 0.3:
            self._open.remove(episode)
            if rng.random() < 0.3:
                episode.append(**self.step(), terminated=True)
            last = {"obs": rng.random(3, np.float32), "flag": True} if rng.random() < 0.5 else {}
            flush = partial(episode.abort if rng.random() < 0.2 else episode.end, **last)
        elif rng.random() < 0.8:
            flush = episode.flush
        else:
            return
        self._write(flush)

    def _write(self, flush):
        """Flush or end an episode; a negative step number may belong to an evicted step."""
        try:
            flush()
        except errors.Evicted as error:
            if not error.discarded_steps:
                raise
            with contextlib.suppress(errors.EpisodeEnded):  # the end was stored without this step
                flush()

    def change(self):
        """Make a random change of the stored steps."""
        buffer, rng = self.buffer, self._rng
        positions = np.unique(rng.integers(0, max(self.number, 1), 3))
        kind = rng.integers(6)
        if kind == 0:
            buffer.update(positions, reward=1.5)
        elif kind == 1:
            buffer.delete(positions)
        elif kind == 2:
            buffer.update_priorities(positions, np.ones(len(positions)))
        elif kind == 3:
            buffer.capacity = int(rng.integers(20, 80))
        elif kind == 4:
            self.close()
            buffer.clear()
        else:
            self._theirs.update(positions, terminated=True)

    def write_or_change(self):
        """Make one random write or change."""
        choice = self._rng.random()
        if choice < 0.3:
            self.store(self.buffer)
        elif choice < 0.85:
            self.write_episode()
        elif choice < 0.93:
            self.store(self._theirs)
        else:
            self.change()

    def close(self):
        """Abort the open episodes."""
        for episode in self._open:
            self._write(episode.abort)
        self._open = []
