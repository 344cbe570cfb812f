"""Storage, sampling, eviction and errors of episodes with parents."""

import asyncio

import numpy as np
import pytest
from pyarrow import parquet

import expdb
import expdb.export
from expdb import errors
from expdb.storage.writing import eviction

COLUMNS = "parent_episode", "parent_step", "parent_position", "relation", "root_episode"


@pytest.fixture
def tree(new_buffer):
    """A buffer with an episode `root` of five steps, numbered from 0."""
    return store_root(new_buffer())


def store_root(buffer):
    """Store an episode `root` of five steps, and return the buffer."""
    with buffer.episode("t", episode_id="root", group_id="g") as root:
        for step in range(5):
            root.append(x=step, reward=1.0)
    return buffer


def branch(buffer, parent, at_step, name, values, **options):
    """Store a fork with one own step for each value of the field `x`."""
    with buffer.fork(parent, at_step, episode_id=name, **options) as fork:
        for x in values:
            fork.append(x=x)


def values(buffer, episode_id, lineage):
    """Return the field `x` of the steps of an episode."""
    return buffer.get(buffer.steps_of(episode_id, lineage=lineage))["x"].tolist()


@pytest.mark.both_databases
def test_forks_store_own_steps_and_read_shared_steps(buffer):
    store_root(buffer)
    branch(buffer, "root", 3, "fork", [30, 31])
    branch(buffer, "fork", 4, "below", [40])
    branch(buffer, "fork", 2, "above", [20], relation="retry")
    assert buffer.added == 9
    assert values(buffer, "fork", lineage=True) == [0, 1, 2, 30, 31]
    assert values(buffer, "below", lineage=True) == [0, 1, 2, 30, 40]
    assert values(buffer, "above", lineage=True) == [0, 1, 20]
    assert values(buffer, "above", lineage=False) == [20]
    (row,) = next(buffer.scan({"episode_id": "below"}, fields=["step", *COLUMNS])).to_list()
    assert [row[name] for name in ("step", *COLUMNS)] == [4, 1, 4, 5, "fork", 0]
    batch = buffer.sample(
        4, unit=expdb.Episode(lineage=True), sampler=expdb.Ordered("position"), fields=["x", "step"]
    )
    rows = [batch["x"][k, :n].tolist() for k, n in enumerate(batch["length"])]
    assert rows == [[0, 1, 2, 3, 4], [0, 1, 2, 30, 31], [0, 1, 2, 30, 40], [0, 1, 20]]
    assert batch["is_first"][:, 0].all()
    assert batch["is_first"].sum() == 4
    assert batch["step"][2, :5].tolist() == [0, 1, 2, 3, 4]
    own = buffer.sample(4, unit=expdb.Episode(), sampler=expdb.Ordered("position"), fields=["x"])
    assert own["length"].tolist() == [5, 2, 1, 1]
    assert own["is_first"][:, 0].tolist() == [True, False, False, False]
    tree = buffer.lineage("above")
    assert tree.select(["depth", "episode_id", "length"]).to_pylist() == [
        {"depth": 0, "episode_id": "root", "length": 5},
        {"depth": 1, "episode_id": "fork", "length": 5},
        {"depth": 2, "episode_id": "below", "length": 5},
        {"depth": 2, "episode_id": "above", "length": 3},
    ]
    assert buffer.count("root_episode = 0") == 9
    assert buffer.count("relation = retry") == 1


@pytest.mark.both_databases
def test_all_writers_accept_a_parent(buffer):
    store_root(buffer)
    relation = {"parent": "root", "parent_step": 2, "relation": "fork"}
    buffer.store(task_id="t", episode_id="a", x=20, **relation)
    buffer.store(task_id="t", episode_id="a", x=21)
    buffer.store(task_id="t", agent_id="b", episode_id="b", x=22, **relation)
    buffer.store_batch({"task_id": "t", "episode_id": "c", "x": [23, 24], **relation})
    rows = [{"task_id": "t", "episode_id": "p", "x": x} for x in (1, 2)]
    rows += [{"task_id": "t", "episode_id": "q", "x": 3, **relation, "parent": "p"}]
    buffer.store_batch(rows)
    with buffer.writer() as writer:
        for x in (5, 6):
            writer.append(task_id="t", episode_id="w", x=x)
        writer.append(task_id="t", episode_id="v", x=7, **relation | {"parent": "w"})
        writer.append(task_id="t", episode_id="d", x=25, **relation)
    assert values(buffer, "a", lineage=True) == [0, 1, 20, 21]
    assert values(buffer, "c", lineage=True) == [0, 1, 23, 24]
    assert values(buffer, "q", lineage=True) == [1, 2, 3]
    assert values(buffer, "v", lineage=True) == [5, 6, 7]
    assert values(buffer, "d", lineage=True) == [0, 1, 25]
    steps = buffer.sample(99, at_least=1, fields=["step", "relation", "x"])
    forked = steps["relation"] == "fork"
    expected = {20: 2, 21: 3, 22: 2, 23: 2, 24: 3, 3: 2, 7: 2, 25: 2}
    pairs = dict(zip(steps["x"][forked].tolist(), steps["step"][forked].tolist(), strict=True))
    assert pairs == expected


def test_unflushed_steps_of_a_parent_are_flushed_first(new_buffer):
    buffer = new_buffer()
    with buffer.episode("t", episode_id="open") as parent:
        parent.append(x=1)
        with buffer.episode(
            "help", parent="open", parent_step=1, relation="subagent", episode_id="help"
        ) as helper:
            helper.append(x=2)
        parent.append(x=3)
        with buffer.fork("open", 1, episode_id="fork") as fork:
            assert fork.length == 1
            fork.append(x=4)
            assert fork.length == 2
    assert values(buffer, "fork", lineage=True) == [1, 4]


@pytest.mark.parametrize(
    ("relation", "error", "message"),
    [
        ({"parent": "none", "relation": "subagent"}, errors.UnknownEpisode, "no episode 'none' in"),
        ({"parent": "root"}, errors.InvalidValue, "requires a relation"),
        ({"relation": "fork"}, errors.InvalidValue, "also pass parent="),
        ({"parent_step": 3}, errors.InvalidValue, "also pass parent="),
        ({"parent": "root", "relation": "fork"}, errors.InvalidValue, "requires parent_step"),
        ({"parent": "root", "relation": "child"}, errors.InvalidValue, "relation must be"),
        ({"parent": 3, "relation": "fork"}, errors.InvalidValue, "parent must be text"),
        (
            {"parent": "root", "relation": "fork", "parent_step": 7},
            errors.InvalidValue, "'root' has no step 6; its stored steps are 0 to 4",
        ),
        (
            {"parent": "root", "relation": "subagent", "parent_step": 6},
            errors.InvalidValue, "'root' has no step 6",
        ),
        (
            {"parent": "root", "relation": "fork", "parent_step": -1},
            errors.InvalidValue, "parent_step must be",
        ),
        ({"parent": "new", "relation": "retry"}, errors.InvalidValue, "cannot be its own parent"),
    ],
)  # fmt: skip
def test_invalid_relations_raise_errors(tree, relation, error, message):
    with pytest.raises(error, match=message):
        tree.episode("t", episode_id="new", **relation)
    with pytest.raises(error, match=message):
        tree.store(task_id="t", episode_id="new", x=1, **relation)
    with pytest.raises(error, match=message), tree.writer() as writer:
        writer.append(task_id="t", episode_id="new", x=1, **relation)
    assert tree.added == 5


def test_a_fork_has_the_task_and_by_default_the_group_of_its_parent(tree):
    relation = {"parent": "root", "parent_step": 2, "relation": "fork"}
    tree.store(episode_id="stored", x=20, **relation)
    tree.store(episode_id="stored", x=21)
    tree.store(episode_id="other group", group_id="h", x=20, **relation)
    with tree.writer() as writer:
        writer.append(episode_id="written", x=20, **relation)
    branch(tree, "root", 2, "forked", [20], agent_id="second")
    forks = tree.episodes("relation = fork").select(["episode_id", "task_id", "group_id"])
    assert [tuple(row.values()) for row in forks.to_pylist()] == [
        ("stored", "t", "g"),
        ("other group", "t", "h"),
        ("written", "t", "g"),
        ("forked", "t", "g"),
    ]
    with pytest.raises(errors.InvalidValue, match="a fork has the task of its parent, 't'"):
        tree.store(task_id="u", episode_id="new", x=1, **relation)
    with pytest.raises(errors.InvalidValue, match="a fork has the task of its parent, 't'"):
        tree.fork("root", 2, task_id="u")


def test_fork_refuses_other_relations_and_a_second_parent(tree):
    with pytest.raises(errors.InvalidValue, match="relation must be 'fork' or 'retry'"):
        tree.fork("root", 2, relation="subagent")
    with pytest.raises(errors.InvalidValue, match="no arguments parent and parent_step"):
        tree.fork("root", 2, parent_step=3)
    with pytest.raises(errors.UnknownEpisode, match="store a step of the parent first"):
        tree.fork("none", 2)


def test_a_parent_requires_the_name_of_the_new_episode(tree):
    relation = {"parent": "root", "parent_step": 2, "relation": "fork"}
    with pytest.raises(errors.InvalidValue, match="parent='root' requires an episode_id"):
        tree.store(x=1, **relation)
    with pytest.raises(errors.InvalidValue, match="requires an episode_id"), tree.writer() as w:
        w.append(task_id="t", x=1, **relation)
    assert tree.added == 5


def test_a_fork_without_steps_of_its_own_is_not_stored(open_db):
    with open_db() as db:
        tree = store_root(db.buffer("train"))
        with tree.fork("root", 2, episode_id="unused"):
            pass
        open_fork = tree.fork("root", 2, episode_id="open")  # closing the handle does not warn
    assert not open_fork.is_open
    assert open_db().buffer("train").episodes()["episode_id"].to_pylist() == ["root"]


def test_a_misspelled_relation_in_a_query_is_refused(tree):
    with pytest.raises(errors.QueryError, match="'forks' is not a relation, did you mean 'fork'"):
        tree.count("relation = forks")


def test_trees_are_read_and_extended_in_a_coroutine(tree):
    async def run():
        fork = await tree.fork_async("root", 2, episode_id="fork")
        await fork.append_async(x=20)
        await fork.end_async()
        positions = await tree.steps_of_async("fork", lineage=True)
        return len(positions), (await tree.lineage_async("fork")).num_rows

    assert asyncio.run(run()) == (3, 2)


def test_a_parent_of_another_buffer_is_unknown(tree, new_buffer):
    with pytest.raises(errors.UnknownEpisode, match="no episode 'root' in buffer 'scratch"):
        new_buffer().fork("root", 1)


def test_the_relation_of_a_stored_episode_cannot_change(tree):
    relation = {"parent": "root", "parent_step": 2, "relation": "fork"}
    tree.store(task_id="t", episode_id="fork", x=20, **relation)
    tree.store(task_id="t", episode_id="fork", x=21, **relation)
    tree.store(task_id="t", episode_id="plain", x=1)
    with pytest.raises(errors.EpisodeMismatch, match="is a fork of 'root' at step 2"):
        tree.store(task_id="t", episode_id="fork", x=22, **relation | {"parent_step": 3})
    with pytest.raises(errors.EpisodeMismatch, match="began without a parent"):
        tree.store(task_id="t", episode_id="plain", x=2, **relation)
    with pytest.raises(errors.InvalidValue, match="relation"):
        tree.update({"episode_id": "fork"}, relation="retry")
    tree.end_episode("fork", status="aborted")
    with pytest.raises(errors.EpisodeMismatch, match="not a retry of"):
        tree.episode("t", episode_id="fork", resume=True, **relation | {"relation": "retry"})
    with tree.episode("t", episode_id="fork", resume=True, **relation) as fork:
        assert fork.length == 4
        fork.append(x=23)
    assert values(tree, "fork", lineage=True) == [0, 1, 20, 21, 23]


def test_forks_reject_steps_with_numbers_of_shared_steps(tree):
    with pytest.raises(errors.InvalidValue, match="it shares step 1 with its parent"):
        tree.store(
            task_id="t", episode_id="f", x=1, step=1, parent="root", parent_step=2, relation="fork"
        )
    branch(tree, "root", 2, "fork", [20])
    relation = {"parent": "root", "parent_step": 2, "relation": "fork"}
    tree.store(task_id="t", episode_id="open", x=20, **relation)
    with pytest.raises(errors.InvalidValue, match="it shares step 0 with its parent"):
        tree.store(task_id="t", episode_id="open", x=20, step=0)
    position = tree.store(task_id="t", episode_id="open", x=20, step=2)  # equals the stored step
    assert position == tree.added - 1


def test_forks_with_evicted_shared_steps_have_no_lineage(new_buffer):
    buffer = store_root(new_buffer(capacity=8))
    branch(buffer, "root", 2, "fork", [20, 21])
    unit = expdb.Episode(lineage=True)
    assert buffer.sample(2, unit=unit)["length"].tolist().count(4) == 1
    for x in range(2):
        buffer.store(task_id="u", x=x, terminated=True)
    assert sorted(buffer.sample(9, unit=unit, at_least=1)["length"].tolist()) == [1, 1]
    assert sorted(buffer.sample(9, unit=expdb.Episode(), at_least=1)["length"]) == [1, 1, 2]
    with pytest.raises(errors.Evicted, match="1 of the 2 steps that episode 'fork' shares"):
        buffer.steps_of("fork", lineage=True)
    assert values(buffer, "fork", lineage=False) == [20, 21]
    with pytest.raises(errors.Evicted, match="step 0 of episode 'root' was evicted or deleted"):
        buffer.fork("fork", 1)
    for x in range(4):
        buffer.store(task_id="u", x=x, terminated=True)
    tree = buffer.lineage("fork").select(["depth", "episode_id", "parent_episode"]).to_pylist()
    assert tree == [{"depth": None, "episode_id": "fork", "parent_episode": 0}]
    with pytest.raises(errors.Evicted, match="belongs to an episode that was evicted or deleted"):
        buffer.fork("fork", 1)
    branch(buffer, "fork", 3, "late", [5])
    assert values(buffer, "late", lineage=False) == [5]


def test_forks_with_deleted_shared_steps_have_no_lineage(tree):
    branch(tree, "root", 3, "fork", [30])
    tree.delete({"episode_id": "root", "step": 1})
    with pytest.raises(errors.Evicted, match="steps that episode 'fork' shares"):
        tree.steps_of("fork", lineage=True)
    with pytest.raises(errors.TooFewRows):
        tree.sample(1, unit=expdb.Episode(lineage=True))


@pytest.mark.both_databases
def test_exports_with_lineage_contain_each_shared_step_once(db, tmp_path, monkeypatch):
    monkeypatch.setattr("expdb.archive.parquet.BATCH_STEPS", 3)
    other, buffer = store_root(db.buffer("other")), store_root(db.buffer("train"))
    branch(other, "root", 5, "fork", [50])
    branch(other, "root", 5, "retry", [60])
    branch(buffer, "root", 3, "fork", [30, 31])
    branch(buffer, "fork", 4, "below", [40])
    branch(buffer, "fork", 2, "above", [20], relation="retry")
    with buffer.episode("t", parent="root", parent_step=1, relation="subagent") as helper:
        helper.append(x=90)
    for names in (["fork"], ["below"], ["fork", "below", "above"], [helper.episode_id], ["root"]):
        path = tmp_path / f"{'-'.join(names)}.parquet"
        query = expdb.QueryBuilder().in_("episode_id", names)
        count = expdb.export.export(buffer, path, query, lineage=True)
        positions = [buffer.steps_of(name, lineage=True) for name in names]
        expected = np.unique(np.concatenate(positions))
        assert parquet.read_table(path)["position"].to_pylist() == expected.tolist()
        assert count == len(expected)


def test_exports_of_incomplete_forks_warn(tree, tmp_path):
    branch(tree, "root", 3, "fork", [30])
    tree.delete([1])
    with pytest.warns(errors.ExpDBWarning, match="lacks shared steps of 1 exported"):
        path, query = tmp_path / "a.parquet", {"episode_id": "fork"}
        count = expdb.export.export(tree, path, query, lineage=True)
    assert count == 3


def test_exports_of_incomplete_forks_contain_all_other_shared_steps(tree, tmp_path):
    branch(tree, "root", 4, "fork", [40])
    branch(tree, "fork", 2, "other", [20])
    for number, position in enumerate((3, 0)):  # the last and the first shared step
        tree.delete([position])
        path, query = tmp_path / f"{number}.parquet", {"episode_id": "fork"}
        with pytest.warns(errors.ExpDBWarning, match="lacks shared steps"):
            expdb.export.export(tree, path, query, lineage=True)
        expected = [value for value in (0, 1, 2, 40) if number == 0 or value != 0]
        assert parquet.read_table(path)["x"].to_pylist() == expected
    with pytest.raises(errors.Evicted, match="1 of the 2 steps"):
        tree.steps_of("other", lineage=True)


def test_export_rejects_a_lineage_that_is_not_a_bool(tree, tmp_path):
    with pytest.raises(errors.InvalidValue, match="lineage must be True or False"):
        expdb.export.export(tree, tmp_path / "a.parquet", lineage="yes")


def test_forks_are_stored_if_the_parent_is_deleted_before_the_flush(tree):
    with tree.fork("root", 2, episode_id="fork") as fork:
        fork.append(x=20)
        tree.delete({"episode_id": "root"})
    assert values(tree, "fork", lineage=False) == [20]
    with pytest.raises(errors.Evicted):
        tree.steps_of("fork", lineage=True)


def test_episodes_out_of_order_or_of_several_agents_can_be_forked(new_buffer):
    buffer = new_buffer()
    for step in (3, 0, 2, 1):
        buffer.store(task_id="t", episode_id="mixed", step=step, x=step)
    branch(buffer, "mixed", 3, "fork", [30])
    assert values(buffer, "fork", lineage=True) == [0, 1, 2, 30]
    for step in range(2):
        for agent in ("a", "b"):
            buffer.store(task_id="t", episode_id="play", agent_id=agent, x=10 * step)
    branch(buffer, "play", 1, "second", [7])
    assert values(buffer, "second", lineage=True) == [0, 0, 7]
    for step in (2, 1):
        buffer.store(
            task_id="t", episode_id="late", step=step, x=step, parent="second", parent_step=1,
            relation="fork",
        )  # fmt: skip
    assert values(buffer, "late", lineage=True) == [0, 0, 1, 2]
    for agent in ("a", "b"):
        for step in range(2):
            buffer.store(task_id="t", episode_id="apart", agent_id=agent, x=10 * step)
    with pytest.raises(errors.InvalidValue, match="cannot be forked at step 1"):
        buffer.fork("apart", 1)


def test_frames_and_sequences_do_not_cross_the_beginning_of_a_fork(tree):
    branch(tree, "root", 3, "fork", [30, 31, 32])
    stacked = tree.sample(
        99, unit=expdb.Stack(2, stack_fields=("x",)), at_least=1, fields=["x", "position"]
    )
    assert 5 not in stacked["position"]  # the first own step has no earlier frame
    assert 6 in stacked["position"]
    window = tree.sample(99, unit=expdb.Sequence(2, burn_in=1), fields=["x", "position"])
    row = window["x"][window["position"][:, 1] == 5]
    assert row[0].tolist() == [0, 30, 31]


@pytest.mark.both_databases
def test_trees_are_evicted_as_a_whole(db):
    buffer = db.buffer("train", capacity=11)
    buffer.eviction = expdb.Eviction(whole_episodes=True)
    for k in range(3):
        with buffer.episode("t", episode_id=f"root {k}") as root:
            for x in range(3):
                root.append(x=x)
        branch(buffer, f"root {k}", 2, f"fork {k}", [20])
    branch(buffer, "root 0", 1, "late", [10, 11])
    plan = buffer.plan_eviction()
    assert plan["episode_id"].to_pylist() == ["root 1", "fork 1"]
    fork = buffer.fork("root 1", 1, episode_id="open")
    fork.append(x=5)
    fork.flush()
    assert buffer.plan_eviction()["episode_id"].to_pylist() == ["root 2", "fork 2"]
    fork.end()
    assert buffer.evict() == 4
    names = buffer.episodes()["episode_id"].to_pylist()
    assert names == ["root 0", "fork 0", "root 1", "fork 1", "late", "open"]


def test_trees_that_changed_since_the_plan_are_not_evicted(new_buffer):
    buffer = new_buffer()
    for name in ("opened", "extended", "resumed", "free"):
        root = buffer.episode("t", episode_id=name)
        root.append(x=0)
        root.abort() if name == "resumed" else root.end()
    planned = list(range(4))
    buffer.store(episode_id="open", x=1, parent="opened", relation="subagent")
    planned.append(4)
    branch(buffer, "extended", 1, "fork", [5])
    with buffer.episode("t", episode_id="resumed", resume=True) as resumed:
        resumed.append(x=6)
    store = buffer._store
    with store.engine.reading() as session:
        chosen = np.array(planned)
        unpinned = eviction.select_whole_trees(store, session, chosen, None).tolist()
        pinned = eviction.select_whole_trees(store, session, chosen, 6).tolist()
    assert unpinned == [2, 3]
    assert pinned == [3]


def test_leases_pin_the_shared_steps_of_forks(new_buffer):
    buffer = store_root(new_buffer(capacity=7))
    branch(buffer, "root", 2, "fork", [20])
    consumer = buffer.consumer("c")
    lease = consumer.lease(
        1, unit=expdb.Episode(lineage=True), where={"episode_id": "fork"}, pin=True
    )
    for x in range(5):
        buffer.store(task_id="u", x=x, terminated=True)
    assert values(buffer, "fork", lineage=True) == [0, 1, 20]
    lease.acknowledge()
    buffer.store(task_id="u", x=9, terminated=True)
    with pytest.raises(errors.Evicted):
        buffer.steps_of("fork", lineage=True)


@pytest.mark.both_databases
def test_sub_agents_do_not_count_as_rollouts_of_a_group(db):
    buffer = db.buffer("train")
    for k in range(2):
        with buffer.episode("t", episode_id=f"root {k}", group_id="g") as root:
            root.append(x=k, reward=float(k))
            root.append(x=k, reward=0.0)
        for relation in ("subagent", "continuation", "compaction"):
            buffer.store(
                task_id="t", episode_id=f"{relation} {k}", group_id="g", parent=f"root {k}",
                relation=relation, x=9, reward=5.0, terminated=True,
            )  # fmt: skip
    branch(buffer, "root 0", 1, "fork", [7])
    buffer.store(task_id="t", episode_id="aborted", group_id="g", parent="fork",
                 relation="subagent", x=1)  # fmt: skip
    buffer.update({"episode_id": "fork"}, reward=3.0)
    (group,) = buffer.unfinished(4).to_pylist()
    assert (group["complete"], group["missing"], group["episode_ids"]) == (3, 1, [])
    drawn = buffer.sample(1, unit=expdb.Group(3), fields=["x"])
    assert sorted(drawn["episode_return"][0].tolist()) == [0.0, 1.0, 3.0]
    sub_agents = buffer.sample(1, unit=expdb.Group(2, of=("subagent",)), fields=["x"])
    assert sub_agents["episode_return"].tolist() == [[5.0, 5.0]]
    all_relations = expdb.Group(9, of=("root", "fork", "subagent", "compaction", "continuation"))
    with pytest.raises(errors.TooFewRows):
        buffer.sample(1, unit=expdb.Group(4), fields=["x"])
    assert buffer.sample(1, unit=all_relations, fields=["x"]).size == 1
    whole = buffer.sample(1, unit=expdb.Group(3, lineage=True), fields=["x"])
    assert sorted(whole["episode_return"][0].tolist()) == [0.0, 1.0, 3.0]
    assert sorted(whole["length"][0].tolist()) == [2, 2, 2]
    buffer.update({"episode_id": "root 0", "step": 0}, reward=10.0)
    whole = buffer.sample(1, unit=expdb.Group(3, lineage=True), fields=["x"])
    assert sorted(whole["episode_return"][0].tolist()) == [
        1.0,
        10.0,
        13.0,
    ]  # include shared rewards
    pairs = buffer.sample(1, unit=expdb.Pairs(lineage=True), fields=["x"])
    assert pairs["episode_return"].tolist() == [[13.0, 1.0]]


def test_a_copy_keeps_relations(tree, tmp_path):
    branch(tree, "root", 3, "fork", [30])
    target = tmp_path / "copy.db"
    expdb.copy(tree._database.location, target, buffer=tree.name)
    with expdb.open(target) as copied:
        assert values(copied.buffer(tree.name), "fork", lineage=True) == [0, 1, 2, 30]
        assert copied.check() == []


def test_check_reports_inconsistent_relations(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = store_root(db.buffer("train"))
        branch(buffer, "root", 3, "fork", [30])
        with buffer._store.writing() as (session, _):
            session.execute("UPDATE episodes SET parent_position = 4 WHERE id = 1")
        assert ["forks of a step" in problem for problem in db.check()] == [True]
        with buffer._store.writing() as (session, _):
            session.execute(
                "UPDATE episodes SET parent_position = 2, root_episode = 1 WHERE id = 1"
            )
        assert ["another root than their parent" in problem for problem in db.check()] == [True]


def test_samples_include_forks_of_another_handle(tmp_path):
    path, unit = tmp_path / "runs.db", expdb.Episode(lineage=True)
    with expdb.open(path) as first, expdb.open(path, max_lag_seconds=0) as second:
        buffer, other = store_root(first.buffer("train")), second.buffer("train")
        assert other.sample(1, unit=unit)["length"].tolist() == [5]
        branch(buffer, "root", 2, "fork", [20, 21])
        with buffer.fork("fork", 3, episode_id="open") as fork:
            fork.append(x=30)
            fork.flush()
            assert sorted(other.sample(2, unit=unit)["length"].tolist()) == [4, 5]
        assert sorted(other.sample(3, unit=unit)["length"].tolist()) == [4, 4, 5]


def test_later_steps_of_a_parent_do_not_change_the_shared_steps(new_buffer):
    buffer = new_buffer()
    parent = buffer.episode("t", episode_id="p", agent_id="a")
    for x in range(3):
        parent.append(x=x)
    parent.abort()
    branch(buffer, "p", 3, "fork", [30])
    with buffer.episode("t", episode_id="p", agent_id="a", resume=True) as parent:
        parent.append(x=3)
        parent.append(x=100, agent_id="b")  # the parent is now out of order
    for step in (0, 1, 5, 9):
        buffer.store(task_id="t", episode_id="q", step=step, x=step)
    branch(buffer, "q", 6, "late", [60])
    buffer.store(task_id="t", episode_id="q", step=3, x=3)
    for name, expected in (("fork", [0, 1, 2, 30]), ("late", [0, 1, 5, 60])):
        assert values(buffer, name, lineage=True) == expected
        batch = buffer.sample(
            1, {"episode_id": name}, unit=expdb.Episode(lineage=True), fields=["x"]
        )
        assert batch["x"].tolist() == [expected]


def test_forks_do_not_need_deleted_steps_that_they_do_not_share(new_buffer):
    buffer = new_buffer()
    for step in (0, 5, 3):
        buffer.store(task_id="t", episode_id="p", step=step, x=step)
    branch(buffer, "p", 4, "fork", [40])
    buffer.delete({"episode_id": "p", "step": 5})
    assert values(buffer, "fork", lineage=True) == [0, 3, 40]
    batch = buffer.sample(1, {"episode_id": "fork"}, unit=expdb.Episode(lineage=True), fields=["x"])
    assert batch["x"].tolist() == [[0, 3, 40]]
    assert batch["shared_steps"].tolist() == [2]
    with pytest.raises(errors.InvalidValue, match="out of order and some were evicted or deleted"):
        buffer.fork("p", 4)


def test_a_writer_stores_other_steps_after_an_invalid_fork(tree):
    with tree.writer() as writer:
        writer.append(task_id="t", episode_id="parent", x=0)
        writer.append(task_id="t", episode_id="parent", x=1, step=7)
        writer.append(
            task_id="t", episode_id="bad", x=2, parent="parent", parent_step=4, relation="fork"
        )
        writer.append(task_id="t", episode_id="good", x=3)
        with pytest.raises(errors.InvalidValue, match="'parent' has no step 3"):
            writer.flush()
        with pytest.raises(errors.InvalidValue, match="it shares step 1 with its parent"):
            writer.append(
                task_id="t", episode_id="f", x=1, step=1, parent="root", parent_step=2,
                relation="fork",
            )  # fmt: skip
    assert tree.count("episode_id = good") == 1
    assert tree.count("episode_id = parent") == 2
    assert tree.count("episode_id in (bad, f)") == 0


@pytest.mark.both_databases
def test_staleness_of_a_fork_includes_its_shared_steps(buffer):
    with buffer.episode("t", episode_id="root", policy_version=3) as root:
        root.append(x=0)
        root.append(x=1, policy_version=5)
        root.append(x=2, policy_version=8)
    for at_step, oldest in ((1, 3), (3, 3), (0, 9)):
        with buffer.fork("root", at_step, episode_id=f"{at_step}", policy_version=9) as fork:
            fork.append(x=9)
        (row,) = buffer.episodes({"episode_id": f"{at_step}"}).to_pylist()
        assert (row["first_policy_version"], row["last_policy_version"]) == (oldest, 9)
    branch(buffer, "1", 2, "below", [5], policy_version=9)
    (row,) = buffer.episodes("episode_id = below").to_pylist()
    assert row["first_policy_version"] == 3
    buffer.policy_version = 9
    consumer = buffer.consumer("c", max_staleness=0)
    with consumer.lease(1, unit=expdb.Episode(lineage=True)) as batch:
        assert batch["episode"].tolist() == [3]
    with pytest.raises(errors.TooFewRows):
        buffer.consumer("d", max_staleness=0).lease(2, unit=expdb.Episode(lineage=True))


def test_counts_of_groups_include_shared_rewards_and_exclude_incomplete_forks(new_buffer):
    buffer = new_buffer()
    with buffer.episode("t", episode_id="root", group_id="g") as root:
        root.append(x=0, reward=5.0)
        root.append(x=1, reward=1.0)
    branch(buffer, "root", 1, "fork", [10])
    buffer.update({"episode_id": "fork"}, reward=1.0)
    branch(buffer, "fork", 2, "below", [20])  # no reward of its own
    consumer = buffer.consumer("c", max_times_sampled=1)
    group = expdb.Group(3, lineage=True, max_spread=0.1)
    assert consumer.stats(unit=group)["groups"]["ready"] == 1
    batch = buffer.sample(1, unit=group, fields=["x"])
    assert batch["episode_return"].tolist() == [[6.0, 6.0, 6.0]]
    assert consumer.stats(unit=expdb.Tokens(of=expdb.Group(3, min_spread=0.1)))["groups"] == {
        "ready": 0, "leased": 0, "incomplete": 0, "no_spread": 1, "too_stale": 0,
    }  # fmt: skip
    buffer.delete({"episode_id": "root", "step": 0})
    assert consumer.stats(unit=group)["groups"]["incomplete"] == 1
    with pytest.raises(errors.TooFewRows):
        buffer.sample(1, unit=group)


@pytest.mark.both_databases
def test_trainable_cannot_change_when_an_episode_is_resumed(db):
    buffer = db.buffer("train")
    for name, trainable in (("no", False), ("yes", None)):
        buffer.store(task_id="t", episode_id=name, trainable=trainable, x=1)
        buffer.end_episode(name, status="aborted")
        with pytest.raises(errors.EpisodeMismatch, match="trainable"):
            buffer.episode("t", episode_id=name, resume=True, trainable=trainable is False)
    buffer.episode("t", episode_id="no", resume=True, trainable=False).abort()
    buffer.episode("t", episode_id="yes", resume=True, trainable=True).abort()
    assert buffer.episodes()["trainable"].to_pylist() == [False, True]


def test_forks_share_steps_with_negative_numbers(new_buffer):
    buffer = new_buffer()
    for step in (-2, -1, 0, 1):
        buffer.store(task_id="t", episode_id="p", step=step, x=step)
    branch(buffer, "p", 0, "fork", [50])
    assert values(buffer, "fork", lineage=True) == [-2, -1, 50]


def test_one_write_can_store_thousands_of_forks_of_one_parent(new_buffer):
    buffer, count = new_buffer(), 3_000
    rows = [{"task_id": "t", "episode_id": "p", "x": x} for x in range(4)]
    relation = {"parent": "p", "parent_step": 2, "relation": "fork", "terminated": True}
    rows += [{"task_id": "t", "episode_id": f"f{k}", "x": k, **relation} for k in range(count)]
    assert len(buffer.store_batch(rows)) == count + 4
    batch = buffer.sample(count, unit=expdb.Episode(lineage=True), fields=["x"])
    assert (batch["length"] == 3).all()
