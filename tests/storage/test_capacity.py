"""A capacity evicts exactly the oldest steps above the limit and all rows that only they use.

Random operations are compared with a reference model.
"""

import numpy as np
import pytest
from behind import reading, writing
from cases import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import expdb
from expdb import errors

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.filterwarnings("ignore:update.. sets the reward:expdb.errors.ExpDBWarning"),
]  # the tests set the reward of every step on purpose


def values(buffer):
    return [int(x) for batch in buffer.scan(size=17) for x in batch["x"]]


@pytest.mark.parametrize("capacity", [1, 2, 7, 50])
def test_the_newest_steps_are_kept(db, capacity):
    buffer = db.buffer("b", capacity=capacity)
    for k in range(60):
        buffer.store(task_id=f"t{k // 9}", x=k)
        assert len(buffer) == min(k + 1, capacity) == buffer.count()
    assert values(buffer) == list(range(60 - capacity, 60))


def test_a_batch_larger_than_the_capacity_keeps_its_last_steps(db):
    buffer = db.buffer("b", capacity=10)
    assert buffer.store_batch({"x": np.arange(35)}).tolist() == list(range(35))
    assert values(buffer) == list(range(25, 35))
    with buffer.episode("t", flush_steps=100) as episode:
        for k in range(100, 125):
            episode.append(x=k)
        episode.end(x=125)
    assert values(buffer) == list(range(115, 125))


def test_deleted_steps_make_room_before_the_next_eviction(db):
    buffer = db.buffer("b", capacity=100)
    buffer.store_batch({"x": np.arange(100)})
    assert buffer.delete({"x": 1} if False else np.arange(20, 50)) == 30
    buffer.store_batch({"x": np.arange(100, 130)})
    assert len(buffer) == 100
    assert values(buffer) == [*range(20), *range(50, 130)]
    buffer.store_batch({"x": np.arange(130, 135)})
    assert values(buffer) == [*range(5, 20), *range(50, 135)]


def test_lowering_the_capacity_evicts_and_raising_it_keeps_steps(db):
    buffer = db.buffer("b", capacity=20)
    buffer.store_batch({"x": np.arange(30)})
    buffer.capacity = 5
    assert values(buffer) == list(range(25, 30))
    buffer.capacity = 8
    buffer.store_batch({"x": np.arange(30, 40)})
    assert values(buffer) == list(range(32, 40))
    buffer.capacity = None
    buffer.store_batch({"x": np.arange(40, 60)})
    assert values(buffer) == list(range(32, 60))


def test_opening_a_buffer_can_raise_but_not_lower_its_capacity(open_db):
    db = open_db()
    assert db.buffer("b", capacity=10).capacity == 10
    again = open_db()
    assert again.buffer("b").capacity == 10
    with pytest.raises(errors.CapacityMismatch, match=r"set buffer\.capacity = 5"):
        again.buffer("b", capacity=5)
    assert again.buffer("b", capacity=20).capacity == 20
    assert again.buffer("b", capacity=None).capacity is None
    with pytest.raises(errors.CapacityMismatch, match="has no capacity limit"):
        again.buffer("b", capacity=1_000)
    assert db.buffer("b").capacity is None


def test_complete_episodes_are_evicted_with_their_last_step(db):
    buffer = db.buffer("b", capacity=10)
    buffer.store(episode_id="open", task_id="open", x=0)
    for k in range(30):
        buffer.store(task_id=f"t{k // 3}", x=k, terminated=k % 3 == 2)
    assert buffer.episodes()["task_id"].to_pylist() == buffer.tasks() == ["t6", "t7", "t8", "t9"]
    assert buffer.stats()["episodes"] == {"open": 1, "complete": 4, "aborted": 0}
    buffer.end_episode("open")
    assert buffer.stats()["episodes"] == {"open": 0, "complete": 4, "aborted": 0}


def test_the_file_does_not_grow_at_capacity(tmp_path):
    with expdb.open(tmp_path / "f.db") as db:
        buffer = db.buffer("b", capacity=2_000)
        sizes = []
        for _ in range(6):
            for _ in range(10):
                with buffer.episode("t") as episode:
                    for k in range(200):
                        episode.append(obs=np.zeros(4, np.float32), x=k)
            with reading(db) as session:
                sizes += session.query("PRAGMA page_count")[0]
    assert sizes[-1] <= 1.2 * sizes[1]


class Model:
    """A reference model of a buffer.

    Its steps are [position, x, reward], oldest first.
    """

    def __init__(self, capacity):
        self.capacity, self.steps, self.added = capacity, [], 0

    def add(self, rows):
        for x, reward in rows:
            self.steps.append([self.added, x, reward])
            self.added += 1
        self.trim()

    def trim(self):
        if self.capacity is not None:
            del self.steps[: max(0, len(self.steps) - self.capacity)]


X, REWARD = st.integers(0, 9), st.none() | st.floats(-5, 5)
ROWS = st.lists(st.tuples(X, REWARD), min_size=1, max_size=25)
ACTIONS = st.one_of(
    st.tuples(st.just("batch"), ROWS),
    st.tuples(st.just("episode"), ROWS, st.booleans(), st.integers(1, 8)),
    st.tuples(st.just("store"), X, REWARD, st.booleans(), st.integers(0, 2)),
    st.tuples(st.just("delete"), X),
    st.tuples(st.just("delete_steps"), st.integers(0, 200), st.integers(1, 30)),
    st.tuples(st.just("reward"), X, st.floats(-5, 5)),
    st.tuples(st.just("capacity"), st.none() | st.integers(1, 60)),
    st.tuples(st.just("hand"), st.integers(0, 200), st.integers(1, 5)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("end")),
)


def fields(x, reward):
    return {"x": x, "y": [{"n": x}], "reward": reward}


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 40), st.lists(ACTIONS, max_size=25))
def test_random_operations_match_a_reference_model(tmp_path_factory, capacity, actions):
    path = tmp_path_factory.mktemp("model") / "m.db"
    model = Model(capacity)
    with expdb.open(path) as db:
        buffer = db.buffer("b", capacity=capacity)
        for number, (action, *arguments) in enumerate(actions):
            if action == "batch":
                (rows,) = arguments
                buffer.store_batch([{"task_id": f"t{x % 3}", **fields(x, r)} for x, r in rows])
                model.add(rows)
            elif action == "episode":
                rows, tail, flush = arguments
                with buffer.episode("e", flush_steps=flush) as episode:
                    for x, reward in rows:
                        episode.append(**fields(x, reward))
                    if tail:
                        episode.end(x=99)
                model.add(rows)
            elif action == "store":
                x, reward, end, task = arguments
                buffer.store(task_id=f"t{task}", terminated=end, **fields(x, reward))
                model.add([(x, reward)])
            elif action == "delete":
                (x,) = arguments
                gone = [p for p, value, _ in model.steps if value == x]
                assert buffer.delete(np.array(gone, np.int64)) == len(gone)
                model.steps = [row for row in model.steps if row[1] != x]
            elif action == "delete_steps":
                low, count = arguments
                matching = (
                    expdb.QueryBuilder().gte("position", low).and_().lt("position", low + count)
                )
                before = len(model.steps)
                model.steps = [row for row in model.steps if not low <= row[0] < low + count]
                assert buffer.delete(matching) == before - len(model.steps)
            elif action == "reward":
                x, reward = arguments
                rewarded = [row for row in model.steps if row[1] == x]
                buffer.update(np.array([row[0] for row in rewarded], np.int64), reward=reward)
                for row in rewarded:
                    row[2] = reward
            elif action == "capacity":
                (model.capacity,) = arguments
                buffer.capacity = model.capacity
                model.trim()
            elif action == "hand":
                low, count = arguments
                with writing(db) as session:
                    session.query(
                        "DELETE FROM steps WHERE position BETWEEN ? AND ?", low, low + count - 1
                    )
                model.steps = [row for row in model.steps if not low <= row[0] < low + count]
            elif action == "clear":
                assert buffer.clear() == len(model.steps)
                model.steps = []
            elif action == "end":
                for row in buffer.episodes().to_pylist():
                    if row["status"] == "open":
                        buffer.end_episode(row["episode_id"])
            assert len(buffer) == len(model.steps) == buffer.count(), (number, action)
            assert db.check() == []
        stored = [row for batch in buffer.scan(size=13) for row in batch.to_list()]
        assert [(row["position"], row["x"], row["y"]) for row in stored] == [
            (p, x, [{"n": x}]) for p, x, _ in model.steps
        ]
        assert [row["reward"] for row in stored] == [reward for _, _, reward in model.steps]
        if model.steps:
            drawn = buffer.sample(40, seed=1)
            pairs = zip(drawn["position"].tolist(), drawn["x"].tolist(), strict=True)
            assert set(pairs) <= {(p, x) for p, x, _ in model.steps}


def test_raising_low_deletes_older_steps(db):
    """Eviction policies, the capacity and `clear` share the trigger that deletes steps."""
    buffer = db.buffer("b")
    with buffer.episode("old", flush_steps=4) as episode:
        episode.extend({"x": np.arange(2048)})
    with buffer.episode("new") as episode:
        episode.extend({"x": np.arange(3)})
    buffer.update_priorities(np.array([0, 2049]), np.array([1.0, 2.0]))
    with writing(db) as session:
        session.query("UPDATE buffers SET low = 2048, size = 3")
    assert values(buffer) == [0, 1, 2]
    with reading(db) as session:
        for table in ("steps", "episodes", "segments", "chunks", "priorities"):
            ((count,),) = session.query(f"SELECT count(*) FROM {table}")
            assert count == {"steps": 3}.get(table, 1), table
