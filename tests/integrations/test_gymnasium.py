"""Tests of `record` for single and vector environments, nested spaces and aborted episodes."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from contents import steps_of
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import expdb
from expdb import Episode, NStep, Uniform, errors
from expdb.integrations.gymnasium import record


class Counter(gym.Env):
    """An environment that ends each episode after `length` steps.

    Each observation is nested and contains the numbers of the episode and the step. With `reuse`,
    every observation overwrites the array of the observation before it.
    """

    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))
    observation_space = spaces.Dict({
        "at": spaces.Box(0, 1000, (2,), np.int64),
        "more": spaces.Tuple((spaces.Discrete(1000), spaces.Dict({"b": spaces.MultiBinary(3)}))),
    })  # fmt: skip

    def __init__(self, length=3, reuse=True):
        self.reuse = reuse
        self.length, self.episode, self.t = length, 0, 0
        self.at = np.zeros(2, np.int64)

    def observe(self):
        if not self.reuse:  # otherwise the final_obs of gymnasium would be overwritten
            self.at = np.zeros(2, np.int64)
        self.at[:] = self.episode, self.t
        return {"at": self.at, "more": (self.t, {"b": np.array([1, 0, self.t % 2], np.int8)})}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observe(), {"about": {"reset": True}}

    def step(self, action):
        self.t += 1
        ends, is_odd = self.t == self.length, self.length % 2 == 1
        ending = ends and is_odd, ends and not is_odd
        return self.observe(), float(self.t), *ending, {"about": {"t": self.t}}


@pytest.fixture
def buffer(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        yield db.buffer("b")
        assert db.check() == []


def assert_recorded(buffer, agent, lengths):
    """Assert that the complete episodes of an agent match those of `Counter`."""
    rows = buffer.episodes({"agent_id": agent}).to_pylist()
    complete = [row for row in rows if row["status"] == "complete"]
    assert [row["length"] for row in complete] == lengths
    for k, row in enumerate(complete):
        where, whole = {"episode_id": row["episode_id"]}, Uniform(replace=False)
        batch = buffer.sample(row["length"], where, unit=NStep(1), sampler=whole)
        batch = {name: array[np.argsort(batch["step"])] for name, array in batch.items()}
        steps = np.arange(row["length"])
        assert batch["obs.at"].tolist() == [[k + 1, t] for t in steps]
        # The last one is the final observation, not that of the next episode.
        assert batch["next_obs.at"].tolist() == [[k + 1, t + 1] for t in steps]
        assert batch["obs.more.0"].tolist() == steps.tolist()
        assert batch["next_obs.more.1.b"].tolist() == [[1, 0, (t + 1) % 2] for t in steps]
        assert batch["reward"].tolist() == [t + 1 for t in steps]
        assert batch["action.0"].dtype == np.int64
        assert batch["action.1"].shape == (row["length"], 2)
        ends = [t == row["length"] - 1 for t in steps]
        assert batch["terminated"].tolist() == [end and row["length"] % 2 == 1 for end in ends]
        assert batch["truncated"].tolist() == [end and row["length"] % 2 == 0 for end in ends]


def test_a_single_environment_is_recorded(buffer):
    options = {"task_id": "count", "agent_id": "a", "policy_version": 4}
    with record(Counter(), buffer, **options, episode_tags={"kind": "test"}) as env:
        env.reset(seed=7)
        for t in range(10):
            env.annotate(logprob=-float(t))
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.policy_version += 1
                env.reset()
    assert_recorded(buffer, "a", [3, 3, 3])
    episodes = buffer.episodes().to_pylist()
    assert [row["status"] for row in episodes] == ["complete"] * 3 + ["aborted"]
    assert [row["policy_version"] for row in episodes] == [4, 5, 6, 7]
    assert episodes[0]["task_id"] == episodes[0]["task_name"] == "count"
    tags = [row["episode_tags"] for row in episodes[:2]]
    assert tags == ['{"kind":"test","seed":7}', '{"kind":"test"}']
    assert [row["logprob"] for row in steps_of(buffer)] == [-float(t) for t in range(10)]
    whole = Uniform(replace=False)
    assert buffer.sample(10, unit=NStep(1), sampler=whole).size == 10  # also the aborted episode
    assert buffer.sample(3, unit=Episode(), sampler=whole).size == 3
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(4, unit=Episode(), sampler=whole)


def test_reset_aborts_an_open_episode_and_stores_no_empty_episode(buffer):
    env = record(Counter(5), buffer, flush_steps=1)
    env.reset()
    env.reset()
    env.step(env.action_space.sample())
    assert len(buffer) == 1, "flush_steps=1 shows each step at once"
    env.reset()
    env.step(env.action_space.sample())
    env.flush()
    assert [row["status"] for row in buffer.episodes().to_pylist()] == ["aborted", "open"]
    env.close()
    rows = buffer.episodes().to_pylist()
    assert [(row["status"], row["length"]) for row in rows] == [("aborted", 1)] * 2
    assert rows[0]["task_id"] == "Counter"


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_environments_are_recorded_in_every_autoreset_mode(buffer, mode, kind):
    lengths = [3, 1, 4]
    makers = [partial(Counter, length, reuse=False) for length in lengths]
    envs = record(kind(makers, autoreset_mode=mode), buffer, task_id="count", agent_id="v")
    envs.reset(seed=5)
    for t in range(12):
        envs.annotate(time=np.full(3, t))
        _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            envs.reset(options={"reset_mask": terminated | truncated})
    envs.close()
    lost = mode is AutoresetMode.NEXT_STEP  # a step that only resets
    for k, length in enumerate(lengths):
        count = (12 + lost) // (length + lost)
        assert_recorded(buffer, f"v/{k}", [length] * count)
    rows = reversed(buffer.episodes().to_pylist())
    first = {row["agent_id"]: row["episode_tags"] for row in rows}
    assert first == {f"v/{k}": f'{{"seed":{5 + k}}}' for k in range(3)}
    assert set(buffer.tasks()) == {"count"}
    times = [row["time"] for row in steps_of(buffer) if row["agent_id"] == "v/1"]
    assert times == (list(range(0, 12, 2)) if lost else list(range(12)))


def test_errors_for_vector_environments_have_a_remedy(buffer):
    envs = record(SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.DISABLED), buffer)
    envs.reset()
    with pytest.raises(expdb.InvalidValue, match="an entry for each of the 2 environments"):
        envs.annotate(logprob=np.zeros(3))
    for _ in range(3):
        envs.step(envs.action_space.sample())
    with pytest.raises((expdb.InvalidValue, AssertionError)):
        envs.step(envs.action_space.sample())
    with pytest.raises(expdb.InvalidValue, match="buffer must be a ReplayBuffer"):
        record(Counter(), "runs.db")


def test_the_id_of_a_registered_environment_is_the_task_id(buffer):
    with record(gym.make("CartPole-v1"), buffer) as env:
        env.reset(seed=0)
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    assert buffer.tasks() == ["CartPole-v1"]
    made = gym.make_vec("CartPole-v1", 2, "vector_entry_point")
    with record(made, buffer, agent_id="vec") as envs:
        envs.reset(seed=0)
        for _ in range(60):
            envs.step(envs.action_space.sample())
    assert buffer.tasks() == ["CartPole-v1"]
    assert buffer.count({"agent_id": "vec/1"}) > 40


class Speaker(gym.Env):
    """An environment whose observations name the environment and the step."""

    observation_space = spaces.Text(20)
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))])

    def __init__(self, name="e"):
        self.name, self.t = name, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return f"{self.name} {self.t}", {}

    def step(self, action):
        self.t += 1
        return f"{self.name} {self.t}", 1.0, self.t == 3, False, {}


def test_text_and_tuple_spaces_are_split_between_environments(buffer):
    makers = [partial(Speaker, name) for name in "ab"]
    made = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = record(made, buffer, agent_id="v")
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(envs.action_space.sample())
    envs.close()
    for k, name in enumerate("ab"):
        rows = next(iter(buffer.scan({"agent_id": f"v/{k}"}))).to_list()
        assert [row["obs"] for row in rows] == [f"{name} 0", f"{name} 1", f"{name} 2"]
        assert np.shape(rows[0]["action.1"]) == (2,)


@pytest.mark.parametrize(
    "space",
    [spaces.Sequence(spaces.Discrete(2)), spaces.Dict(a=spaces.OneOf([spaces.Discrete(2)]))],
)
def test_spaces_without_fixed_fields_are_refused(buffer, space):
    env = Counter()
    env.observation_space = space
    with pytest.raises(expdb.InvalidValue, match="wrap the environment"):
        record(env, buffer)


def test_autoreset_must_wrap_the_recorded_environment(buffer):
    with pytest.raises(expdb.InvalidValue, match="Autoreset\\(record\\(env, buffer\\)\\)"):
        record(gym.wrappers.Autoreset(Speaker()), buffer)
    env = gym.wrappers.Autoreset(record(Speaker(), buffer))
    env.reset()
    for _ in range(8):
        env.step(env.action_space.sample())
    env.close()
    assert [row["length"] for row in buffer.episodes().to_pylist()] == [3, 3]


def test_errors_for_single_environments_have_a_remedy(buffer):
    env = record(Counter(), buffer)
    with pytest.raises(expdb.InvalidValue, match=r"call reset\(\)"):
        env.step(env.action_space.sample())
    env.reset()
    while not any(env.step(env.action_space.sample())[2:4]):
        pass
    with pytest.raises(expdb.InvalidValue, match=r"call reset\(\)"):
        env.step(env.action_space.sample())
    with pytest.raises(errors.ReservedName, match="cannot be the name of an annotation"):
        env.annotate(obs=1)
    with pytest.raises(expdb.InvalidValue, match="no option 'agent'"):
        record(Counter(), buffer, agent="dqn")
    with pytest.raises(expdb.InvalidValue, match="env must be an environment"):
        record("CartPole-v1", buffer)
    envs = record(SyncVectorEnv([Counter] * 2), buffer)
    with pytest.raises(expdb.InvalidValue, match="has not begun"):
        envs.step(envs.action_space.sample())
    with pytest.raises(expdb.InvalidValue, match="an entry for each of the 2"):
        envs.annotate(logprob=3.0)
