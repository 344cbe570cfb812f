"""Several agents in one episode, as in self-play: their steps, their policies, and staleness."""

import random

import numpy as np
import pytest

import expdb
from expdb import Episode, QueryBuilder, Uniform, errors

ALL = Uniform(replace=False)
AGENTS = "white", "black"


def play(buffer, episode_id="game", length=4, **options):
    """Write an episode with alternating steps of two agents."""
    with buffer.episode("chess", agent_id="white", episode_id=episode_id, **options) as episode:
        for k in range(length):
            episode.append(x=k, agent_id=AGENTS[k % 2], reward=float(k))


def agents(buffer, where=None):
    batches = list(buffer.scan(where, fields=["agent_id"]))
    return np.concatenate([batch["agent_id"] for batch in batches]).tolist()


@pytest.mark.both_databases
def test_each_step_of_an_episode_stores_its_own_agent(buffer):
    play(buffer)
    assert agents(buffer) == ["white", "black", "white", "black"]
    assert buffer.count({"agent_id": "black"}) == 2
    assert buffer.count(QueryBuilder().ne("agent_id", "black")) == 2
    assert buffer.count(QueryBuilder().in_("agent_id", ["black", "red"])) == 2
    assert buffer.sample(20, {"agent_id": "black"}, seed=0)["x"].max() == 3
    assert buffer.episodes({"agent_id": "black"})["agent_id"].to_pylist() == ["white"]
    assert buffer.tasks({"agent_id": "black"}) == ["chess"]
    assert buffer.tasks({"agent_id": "red"}) == []
    batch = buffer.sample(1, unit=Episode(), fields=["agent_id"])
    assert batch["agent_id"].tolist() == [["white", "black", "white", "black"]]


def test_a_step_has_the_agent_of_its_episode_by_default(buffer):
    buffer.store(episode_id="a", task_id="t", x=0)
    with buffer.episode("t", agent_id="bob") as episode:
        episode.append(x=1)
    buffer.store(episode_id="c", task_id="t", agent_id="eve", x=2)
    buffer.store(episode_id="c", task_id="t", x=3)
    assert agents(buffer) == ["agent", "bob", "eve", "eve"]
    assert buffer.tasks({"agent_id": "eve"}) == ["t"]
    assert buffer.count({"agent_id": "bob"}) == 1


@pytest.mark.both_databases
@pytest.mark.parametrize("way", ["store", "rows", "columns", "writer", "extend", "mixed"])
def test_every_way_to_write_stores_the_agents(buffer, way):
    names = [AGENTS[k % 2] for k in range(6)]
    step = {"task_id": "chess", "episode_id": "game"}
    rows = [{**step, "agent_id": name, "x": k} for k, name in enumerate(names)]
    columns = {**step, "agent_id": names, "x": np.arange(6)}
    buffer.store(task_id="other", x=0)  # sets the type of the field
    if way == "store":
        for row in rows:
            buffer.store(**row)
    elif way == "rows":
        buffer.store_batch(rows)
    elif way == "columns":
        buffer.store_batch(columns)
    else:
        with buffer.writer(flush_steps=4) as writer:
            if way == "writer":
                for row in rows:
                    writer.append(**row)
            elif way == "extend":
                writer.extend(columns)
            else:
                writer.append(**rows[0])
                writer.extend({name: column[1:] if name in ("agent_id", "x") else column
                               for name, column in columns.items()})  # fmt: skip
    assert agents(buffer, {"episode_id": "game"}) == names
    assert buffer.episodes({"episode_id": "game"})["length"].to_pylist() == [6]


@pytest.mark.both_databases
def test_queries_by_agent_match_agents_of_episodes_and_steps(buffer):
    for number in range(3):
        with buffer.episode("t", agent_id=f"agent {number}") as episode:
            for k in range(3):
                episode.append(x=k, reward=float(number))
    query = QueryBuilder().eq("agent_id", "agent 1").and_().gte("reward", 0.0)
    either = QueryBuilder().eq("agent_id", "agent 1").or_().eq("task_id", "none")
    for own in (0, 2):
        if own:
            play(buffer)
            buffer.store(episode_id="more", task_id="t", agent_id="agent 1", x=0, reward=0.0)
            buffer.store(episode_id="more", task_id="t", agent_id="agent 2", x=0, reward=0.0)
            buffer.store(episode_id="more", task_id="t", agent_id="agent 1", x=0, reward=0.0)
        for where in ({"agent_id": "agent 1"}, query, either):
            assert buffer.count(where) == 3 + own
            assert len(buffer.sample(200, where, seed=1)["x"]) == 200
            assert buffer.episodes(where).num_rows == 1 + bool(own)
            assert buffer.tasks(where) == ["t"]
    buffer.index("agent_id")
    assert buffer.count({"agent_id": "agent 1"}) == 5


@pytest.mark.both_databases
def test_sql_has_the_agent_of_each_step(buffer, db):
    play(buffer)
    table = db.sql("SELECT agent_id, count(*) AS n FROM experience GROUP BY 1 ORDER BY 1")
    assert table.to_pylist() == [{"agent_id": "black", "n": 2}, {"agent_id": "white", "n": 2}]
    table = db.sql("SELECT agent_id FROM experience_episodes")
    assert table["agent_id"].to_pylist() == ["white"]


@pytest.mark.both_databases
def test_policy_versions_are_shared_and_never_decrease(open_db):
    buffer, other = open_db().buffer("train"), open_db().buffer("train")
    assert dict(buffer.policy_versions) == {}
    buffer.policy_versions["white"] = 3
    other.policy_versions["b\u00e9"] = 0
    other.policy_versions["white"] = np.int64(4)
    assert dict(buffer.policy_versions) == {"white": 4, "b\u00e9": 0}
    assert buffer.policy_versions["white"] == 4
    assert "red" not in buffer.policy_versions
    with pytest.raises(KeyError):
        buffer.policy_versions["red"]
    with pytest.raises(expdb.InvalidValue, match="of agent 'white' must not decrease, got 2"):
        buffer.policy_versions["white"] = 2
    with pytest.raises(expdb.InvalidValue, match="cannot be removed"):
        del buffer.policy_versions["white"]
    with pytest.raises(expdb.InvalidValue, match="must be a 64-bit integer, got 1"):
        buffer.policy_versions["white"] = 1.5
    with pytest.raises(expdb.InvalidValue, match="the name of an agent"):
        buffer.policy_versions[3] = 1
    assert buffer.policy_version is None
    buffer.policy_versions = {"white": 5, "red": 1}
    assert dict(other.policy_versions) == {"white": 5, "b\u00e9": 0, "red": 1}


@pytest.mark.both_databases
def test_setting_the_policy_version_of_a_misspelt_agent_warns(buffer):
    buffer.policy_versions["blak"] = 0  # no warning before the first step
    play(buffer)
    buffer.policy_versions["white"] = 1
    with pytest.warns(errors.ExpDBWarning, match="has the agent 'blakc', did you mean 'black'"):
        buffer.policy_versions["blakc"] = 1


def test_agents_without_a_version_use_the_version_of_the_buffer(buffer):
    for k, agent in enumerate(("white", "black", "red")):
        buffer.store(episode_id="e", task_id="t", agent_id=agent, policy_version=5, x=k)
    buffer.policy_versions["white"] = 7
    trainer = buffer.consumer("trainer", max_staleness=1)

    def drawn():
        with trainer.lease(3, sampler=ALL, at_least=1) as batch:
            return sorted(batch["x"].tolist())

    assert drawn() == [1, 2]
    buffer.policy_version = 6
    assert drawn() == [1, 2]
    buffer.policy_versions["red"] = 9
    assert drawn() == [1]
    buffer.policy_version = 7
    with pytest.raises(expdb.TooFewRows, match="6 or newer for agent 'white'"):
        trainer.lease(1)


def test_one_stale_agent_makes_a_group_too_stale(buffer):
    for game in range(4):
        with buffer.episode("chess", group_id=f"g{game // 2}") as episode:
            for agent, version in (("white", 5), ("black", 9 - 4 * (game == 3))):
                episode.append(x=game, agent_id=agent, policy_version=version, reward=1.0)
    buffer.policy_versions["white"], buffer.policy_versions["black"] = 6, 10
    trainer = buffer.consumer("trainer", max_staleness=1)
    groups = trainer.stats(unit=expdb.Group(2))["groups"]
    assert (groups["ready"], groups["too_stale"]) == (1, 1)
    batch = trainer.lease(1, unit=expdb.Group(2)).batch
    assert set(batch["x"].reshape(-1).tolist()) == {0, 1}


def expected(steps, current, default, most, by_episode):
    """Return the steps or episodes that a reference model allows to be leased."""

    def is_new(agent, version):
        now = current.get(agent, default)
        return now is None or (version is not None and version >= now - most)

    allowed = [is_new(agent, version) for _, agent, version in steps]
    if not by_episode:
        return {k for k, is_allowed in enumerate(allowed) if is_allowed}
    stale = {steps[k][0] for k, is_allowed in enumerate(allowed) if not is_allowed}
    return {episode for episode, _, _ in steps} - stale


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 8))]
)
def test_staleness_of_each_agent_matches_a_reference_model(open_db, seed):
    rng, db = random.Random(seed), open_db()
    for number in range(25):
        buffer = db.buffer(f"game {number}")
        steps, current, default = [], {}, None
        trainer = buffer.consumer("trainer", max_staleness=rng.randrange(3))
        most = trainer.stats()["max_staleness"]
        for _ in range(rng.randrange(1, 5)):
            for _ in range(rng.randrange(1, 4)):
                name, usual = f"e{len(steps)}", rng.choice([None, *range(6)])
                with buffer.episode("t", agent_id="a", episode_id=name,
                                    policy_version=usual) as episode:  # fmt: skip
                    for _ in range(rng.randrange(1, 5)):
                        agent = rng.choice("abc")
                        own = rng.choice([None, None, *range(6)])
                        episode.append(x=len(steps), agent_id=agent, policy_version=own)
                        steps.append((name, agent, usual if own is None else own))
            agent = rng.choice("ab")
            version = current.get(agent, 0) + rng.randrange(3)
            current[agent] = buffer.policy_versions[agent] = version
            if rng.random() < 0.3:
                default = buffer.policy_version = (default or 0) + rng.randrange(2)
            for by_episode in (False, True):
                wanted = expected(steps, current, default, most, by_episode)
                unit, key = (Episode(), "episode_id") if by_episode else (expdb.Step(), "x")
                try:
                    lease = trainer.lease(
                        len(steps), sampler=ALL, unit=unit, at_least=1, fields=[key]
                    )
                except expdb.TooFewRows:
                    assert not wanted
                    continue
                drawn = lease.batch[key].reshape(len(lease.batch[key]), -1)[:, 0].tolist()
                lease.release()
                assert len(drawn) == len(set(drawn))
                assert set(drawn) <= wanted
                if len(drawn) < len(wanted):
                    assert len(drawn) == len(steps)
                else:
                    assert set(drawn) == wanted
        db.drop(f"game {number}")
