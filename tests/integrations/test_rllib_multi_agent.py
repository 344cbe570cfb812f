"""Tests of RLlib's multi-agent episode buffers on a database, compared with the originals."""

import numpy as np
import pytest
from rllib_training import train_and_resume

import expdb
from expdb import errors

WHY = "RLlib is not installed: run `python3 dev.py test --ecosystems`"
pytest.importorskip("ray.rllib", reason=WHY)

if True:  # these imports need the package
    import gymnasium
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.env.multi_agent_env import MultiAgentEnv
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils import replay_buffers as original

    from expdb.integrations.rllib import (
        MultiAgentEpisodeReplayBuffer,
        MultiAgentPrioritizedEpisodeReplayBuffer,
    )

pytestmark = pytest.mark.filterwarnings("default")  # RLlib itself emits warnings

OURS = [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer]
BOTH = [*OURS, original.MultiAgentEpisodeReplayBuffer,
        original.MultiAgentPrioritizedEpisodeReplayBuffer]  # fmt: skip


def game(number, length, *, agents=(0, 1), end=True, begun=None):
    """Return an episode: agent a has observation (number, a, t), action t, reward t + 100 a."""
    episode = begun
    if episode is None:
        episode = MultiAgentEpisode(
            id_=f"e{number}", agent_to_module_mapping_fn=lambda agent, *_, **__: f"m{agent}"
        )
        episode.add_env_reset(
            observations={a: seen(number, a, 0) for a in agents}, infos={a: {} for a in agents}
        )
    for t in range(episode.env_t, episode.env_t + length):
        last = end and t == episode.env_t_started + length - 1
        episode.add_env_step(
            {a: seen(number, a, t + 1) for a in agents}, dict.fromkeys(agents, t),
            {a: t + 100.0 * a if isinstance(a, int) else 0.0 for a in agents},
            {a: {} for a in agents},
            terminateds={"__all__": last}, truncateds={"__all__": False},
        )  # fmt: skip
    return episode


def seen(number, agent, t):
    return np.array([number, agent if isinstance(agent, int) else -1, t], np.float32)


def turns(number, rounds):
    """Return an episode with two agents that act in alternate timesteps."""
    episode = MultiAgentEpisode(
        id_=f"t{number}", agent_to_module_mapping_fn=lambda agent, *_, **__: "both"
    )
    episode.add_env_reset(observations={"x": seen(number, 0, 0)}, infos={"x": {}})
    for t in range(2 * rounds):
        acts, sees = ("x", "y") if t % 2 == 0 else ("y", "x")
        episode.add_env_step(
            {sees: seen(number, 0, t + 1)}, {acts: t}, {acts: 1.0}, {sees: {}},
            terminateds={"__all__": False}, truncateds={"__all__": False},
        )  # fmt: skip
    return episode


@pytest.mark.parametrize("kind", BOTH)
def test_each_module_is_sampled_separately(kind, close):
    buffer = close(kind(capacity=100))
    buffer.add([game(k, 10) for k in range(4)])
    assert (buffer.get_num_episodes(), buffer.get_num_timesteps()) == (4, 40)
    assert (buffer.get_num_timesteps("m0"), buffer.get_num_episodes("m1")) == (40, 4)
    assert (buffer.get_num_agent_timesteps(), sorted(buffer.get_module_ids())) == (80, ["m0", "m1"])
    drawn = buffer.sample(50, n_step=3, gamma=0.5)
    assert [sample.module_id for sample in drawn].count("m0") == 50
    for sample in drawn:
        assert isinstance(sample, SingleAgentEpisode)
        assert (len(sample), sample.module_id) == (1, f"m{sample.agent_id}")
        (number, agent, t), (_, _, later) = sample.get_observations()
        assert (agent, later, sample.get_actions()[0]) == (sample.agent_id, t + 3, t)
        assert sample.multi_agent_episode_id == f"e{int(number)}"
        expected = sum(0.5**k * (t + k + 100 * agent) for k in range(3))
        assert sample.get_rewards()[0] == pytest.approx(expected)
        assert sample.is_terminated == (later == 10)
        assert sample.extra_model_outputs["n_step"][0] == 3
    assert {sample.module_id for sample in buffer.sample(5, modules_to_sample=["m1"])} == {"m1"}
    assert buffer.get_sampled_timesteps("m1") == 55


@pytest.mark.parametrize("kind", BOTH)
def test_episodes_are_evicted_whole_and_their_parts_are_joined(kind, close):
    buffer = close(kind(capacity=25))
    first = game(0, 4, end=False)
    buffer.add(first)
    buffer.add(game(1, 10))
    buffer.add(game(0, 6, begun=first.cut()))
    assert (buffer.get_num_episodes(), buffer.get_num_timesteps()) == (2, 20)
    assert buffer.get_num_episodes("m0") == 2
    buffer.add(game(2, 10))
    assert (buffer.get_num_episodes(), buffer.get_num_timesteps()) == (2, 20)
    assert (buffer.get_num_episodes_evicted(), buffer.get_num_episodes_evicted("m0")) == (1, 1)
    drawn = buffer.sample(60)
    assert {sample.get_observations()[0][0] for sample in drawn} == {1.0, 2.0}


@pytest.mark.parametrize("kind", OURS)
def test_transitions_continue_in_the_next_part_of_an_episode(kind, close):
    buffer = close(kind(capacity=100))
    first = game(0, 4, end=False)
    buffer.add(first)
    buffer.add(game(0, 4, begun=first.cut()))
    starts = {int(sample.get_observations()[0][2]) for sample in buffer.sample(300, n_step=2)}
    assert starts == set(range(7))


@pytest.mark.parametrize("kind", OURS)
def test_synchronized_samples_have_the_same_timesteps_for_all_agents(kind, close):
    buffer = close(kind(capacity=100))
    buffer.add([game(k, 6) for k in range(3)])
    batches = buffer.sample(40, n_step=2, gamma=0.5, replay_mode="synchronized")
    first, other = batches["m0"], batches["m1"]
    assert first["obs"].shape == (40, 3)
    np.testing.assert_array_equal(first["obs"][:, [0, 2]], other["obs"][:, [0, 2]])
    np.testing.assert_array_equal(first["new_obs"][:, 2], first["obs"][:, 2] + 2)
    t = first["obs"][:, 2]
    np.testing.assert_allclose(first["rewards"], t + 0.5 * (t + 1))
    np.testing.assert_array_equal(first["terminateds"], t == 4)
    assert set(t.tolist()) == {0, 1, 2, 3, 4}
    only = buffer.sample(10, replay_mode="synchronized", modules_to_sample=["m1"])
    assert (set(only), len(only["m1"]["n_step"])) == ({"m1"}, 10)
    assert buffer.get_sampled_timesteps() == 50


def test_synchronized_samples_support_agents_in_alternate_timesteps(close):
    buffer = close(MultiAgentEpisodeReplayBuffer(capacity=100))
    buffer.add(turns(0, 5))
    batch = buffer.sample(30, n_step=2, replay_mode="synchronized")["both"]
    np.testing.assert_array_equal(batch["new_obs"][:, 2] - batch["obs"][:, 2], 2)
    with pytest.raises(ValueError, match="too few transitions over 1 timesteps"):
        buffer.sample(5, n_step=1, replay_mode="synchronized")
    assert len(buffer.sample(5)) == 5


@pytest.mark.parametrize("made", [lambda k: game(k, 7), lambda k: turns(k, 3)])
def test_stored_episodes_equal_the_added_episodes(made, close):
    buffer = close(MultiAgentEpisodeReplayBuffer(capacity=1000))
    added = [made(k) for k in range(3)]
    buffer.add(added)
    for expected, other in zip(added, buffer.episodes, strict=True):
        assert (expected.id_, len(expected)) == (other.id_, len(other))
        assert expected.is_done == other.is_done
        assert expected.agent_episodes.keys() == other.agent_episodes.keys()
        for agent, single in expected.agent_episodes.items():
            stored = other.agent_episodes[agent]
            assert (len(single), single.module_id) == (len(stored), stored.module_id)
            np.testing.assert_array_equal(single.get_observations(), stored.get_observations())
            assert list(single.get_actions()) == list(stored.get_actions())
            assert list(single.get_rewards()) == list(stored.get_rewards())


@pytest.mark.parametrize("kind", OURS)
def test_a_state_with_data_restores_an_equal_buffer(kind, close, tmp_path):
    buffer = close(kind(capacity=30, location=tmp_path / "a.db", state_includes_data=True))
    buffer.add([game(k, 10) for k in range(5)])
    buffer.sample(4)
    state = buffer.get_state()
    for location in (":memory:", tmp_path / "b.db", tmp_path / "a.db"):
        other = close(kind(capacity=30, location=location))
        other.set_state(state)
        for figure in (
            "get_num_episodes", "get_num_episodes_evicted", "get_num_timesteps",
            "get_added_timesteps", "get_num_agent_timesteps", "get_sampled_timesteps",
        ):  # fmt: skip
            assert getattr(other, figure)() == getattr(buffer, figure)(), figure
        ids, expected = ([held.id_ for held in made.episodes] for made in (other, buffer))
        assert ids == expected
    filled = close(kind(capacity=30, location=tmp_path / "c.db"))
    filled.add(game(9, 3))
    with pytest.raises(ValueError, match="restore the state with another location="):
        filled.set_state(state)


def test_each_module_has_its_own_priorities(close):
    buffer = close(MultiAgentPrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0))
    buffer.add(game(0, 10), weight={"m0": 1000.0, "m1": 1.0})
    drawn = buffer.sample(200, beta=1.0)
    assert all(sample.extra_model_outputs["weights"][0] == pytest.approx(1.0) for sample in drawn)
    of_m1 = [sample for sample in drawn if sample.module_id == "m1"]
    wanted = [float(sample.get_observations()[0][2] == 3) for sample in of_m1]
    buffer.update_priorities(wanted, "m1")
    again = buffer.sample(100)
    drawn = {(sample.module_id, sample.get_observations()[0][2]) for sample in again}
    assert {t for module, t in drawn if module == "m1"} == {3.0}
    assert len(drawn) > 6
    with pytest.raises(AssertionError, match="of module 'm0'"):
        buffer.update_priorities([1.0], "m0")


@pytest.mark.parametrize("kind", OURS)
def test_a_reopened_buffer_keeps_its_episodes_and_sql_reads_them(kind, close, tmp_path):
    first = kind(capacity=100, location=tmp_path / "games.db")
    first.add([game(k, 5) for k in range(3)])
    first.sample(4)
    state = first.get_state()
    first.close()
    again = close(kind(capacity=100, location=tmp_path / "games.db"))
    again.set_state(state)
    assert (again.get_num_timesteps(), again.get_num_episodes("m1")) == (15, 3)
    assert (again.get_sampled_timesteps("m0"), again.get_added_timesteps("m0")) == (4, 15)
    assert {sample.agent_id for sample in again.sample(20)} == {0, 1}
    with expdb.open(tmp_path / "games.db") as db:
        rows = db.sql(
            "SELECT task_id, count(*) AS n, sum(reward) AS r FROM experience "
            "WHERE buffer = 'episodes' GROUP BY task_id ORDER BY task_id"
        ).to_pylist()
    assert rows == [
        {"task_id": "m0", "n": 15, "r": 30.0}, {"task_id": "m1", "n": 15, "r": 1530.0}
    ]  # fmt: skip
    with pytest.raises(errors.CapacityMismatch):
        kind(capacity=10, location=tmp_path / "games.db")


@pytest.mark.parametrize("kind", OURS)
def test_two_handles_see_each_others_episodes(kind, close, tmp_path):
    first, other = (close(kind(capacity=12, location=tmp_path / "games.db")) for _ in range(2))
    first.add([game(k, 5) for k in range(2)])
    first.flush()
    assert (len(other), other.get_num_episodes(), len(other.sample(3))) == (10, 2, 6)
    other.add(game(2, 5))
    other.flush()
    first.add(game(3, 1))  # not flushed when the figures are read
    assert (first.get_num_timesteps(), first.get_num_episodes()) == (11, 3)
    first.flush()
    assert (other.get_num_timesteps(), other.get_num_timesteps("m0")) == (11, 11)


def test_unknown_modules_and_replay_modes_are_refused(close):
    buffer = close(MultiAgentEpisodeReplayBuffer(capacity=100))
    buffer.add(game(0, 5))
    with pytest.raises(ValueError, match="no steps of the module 'nope'; expected one of m0, m1"):
        buffer.sample(3, modules_to_sample=["nope"])
    with pytest.raises(ValueError, match="must be 'independent' or 'synchronized'"):
        buffer.sample(3, replay_mode="together")


def test_single_agent_episodes_and_invalid_agent_ids_are_refused(close):
    buffer = close(MultiAgentEpisodeReplayBuffer(capacity=100))
    with pytest.raises(expdb.InvalidValue, match="expected instances of MultiAgentEpisode"):
        buffer.add(SingleAgentEpisode())
    with pytest.raises(expdb.InvalidValue, match="must be text or a number"):
        buffer.add(game(0, 3, agents=((0, 1),)))
    assert len(buffer) == 0
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(3)


class Walk(MultiAgentEnv):
    """Two agents on a line; each earns 1 for a step to the right."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = ["left", "right"]
        space = gymnasium.spaces.Box(-50, 50, (1,), np.float32)
        self.observation_spaces = dict.fromkeys(self.agents, space)
        self.action_spaces = dict.fromkeys(self.agents, gymnasium.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self.at, self.steps = dict.fromkeys(self.agents, 0.0), 0
        return self._seen(), {}

    def step(self, actions):
        self.steps += 1
        for agent, action in actions.items():
            self.at[agent] += 2 * action - 1
        done = self.steps == 20
        rewards = {agent: float(action) for agent, action in actions.items()}
        return self._seen(), rewards, {"__all__": done}, {"__all__": False}, {}

    def _seen(self):
        return {agent: np.array([position], np.float32) for agent, position in self.at.items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", OURS)
def test_dqn_with_two_policies_resumes_training_with_its_buffer(cluster, kind, tmp_path):
    def config():
        agents = {"left", "right"}
        made = DQNConfig().environment(Walk)
        return made.multi_agent(policies=agents, policy_mapping_fn=lambda agent, *_, **__: agent)

    def size(buffer):
        sampled.append(buffer.get_sampled_timesteps("left"))
        return buffer.get_num_timesteps()

    sampled = []
    train_and_resume(config, tmp_path, size, type=f"expdb.integrations.rllib.{kind.__name__}")
    assert sampled[0] > 0
