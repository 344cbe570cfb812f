"""Tests of Stable-Baselines3 buffers on a database, compared with the originals."""

import copy
import functools
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from cases import combinations

import expdb
from expdb import errors

WHY = "stable-baselines3 is not installed: run `python3 dev.py test --torch`"
sb3 = pytest.importorskip("stable_baselines3", reason=WHY)

if True:  # these imports need the package
    import torch
    from gymnasium import spaces
    from stable_baselines3.common import buffers
    from stable_baselines3.common.envs import BitFlippingEnv
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    from stable_baselines3.her import her_replay_buffer

    from expdb.integrations import stable_baselines3 as ours

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
ACTIONS = spaces.Box(-1, 1, (1,))
DICT = spaces.Dict(
    {"camera": spaces.Box(0, 255, (3, 2), np.uint8), "speed": spaces.Box(-1, 1, (1,), np.float64)}
)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def pair(close):
    """Create a buffer of Stable-Baselines3 and one of ours."""

    def pair(kind="ReplayBuffer", space=BOX, envs=1, ours_only=(), **options):
        kind = "DictReplayBuffer" if space is DICT else kind
        arguments = 20 * envs, space, DISCRETE, "cpu", envs
        theirs = getattr(buffers, kind)(*arguments, **options)
        return theirs, close(getattr(ours, kind)(*arguments, **options, **dict(ours_only)))

    return pair


def add(buffer, *numbers):
    """Add transitions whose observations and reward are a number."""
    for number in numbers:
        seen = np.full((1, 4), number, np.float32)
        buffer.add(seen, seen, np.zeros((1, 1)), np.full(1, number), np.zeros(1, bool), [{}])


def fill(made, rows, envs, space=BOX, seed=0):
    """Add the same random rows to several buffers."""
    rng = np.random.default_rng(seed)
    space.seed(seed)

    def seen():
        drawn = [space.sample() for _ in range(envs)]
        if isinstance(space, spaces.Dict):
            return {key: np.stack([observation[key] for observation in drawn]) for key in space}
        return np.stack(drawn)

    for _ in range(rows):
        obs, following, action = seen(), seen(), rng.integers(0, 2, envs)
        reward, done = rng.normal(size=envs), rng.random(envs) < 0.2
        infos = [{"TimeLimit.truncated": bool(ended and rng.random() < 0.5)} for ended in done]
        for buffer in made:
            buffer.add(obs, following, action, reward, done, infos)


def assert_same_batches(theirs, buffer, **options):
    for seed in range(3):
        np.random.seed(seed)
        expected = theirs.sample(32, **options)
        np.random.seed(seed)
        batch = buffer.sample(32, **options)
        for name in expected._fields:
            first, other = getattr(expected, name), getattr(batch, name)
            is_dict = type(first) is dict
            pairs = [(first[key], other[key]) for key in first] if is_dict else [(first, other)]
            for first, other in pairs:
                if first is None:
                    assert other is None
                    continue
                assert first.dtype == other.dtype
                assert torch.equal(first, other) or (
                    name == "rewards" and torch.allclose(first, other, atol=1e-6)
                )


MADE = [
    ("ReplayBuffer", {}), ("ReplayBuffer", {"handle_timeout_termination": False}),
    ("NStepReplayBuffer", {"n_steps": 3, "gamma": 0.9}),
    ("NStepReplayBuffer", {"n_steps": 1, "gamma": 0.9}),
]  # fmt: skip


@pytest.mark.parametrize(("envs", "rows", "made"), combinations([1, 3], [1, 13, 20, 47], MADE))
def test_the_same_seed_draws_the_same_batches(pair, envs, rows, made):
    kind, options = made
    theirs, buffer = pair(kind, envs=envs, **options)
    fill((theirs, buffer), rows, envs)
    assert_same_batches(theirs, buffer)
    assert (theirs.size(), theirs.pos, theirs.full) == (buffer.size(), buffer.pos, buffer.full)


def test_vec_normalize_normalises_samples(pair, close):
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    env.obs_rms.mean, env.ret_rms.var = np.full(4, 0.5), np.array(4.0)
    theirs, buffer = pair()
    fill((theirs, buffer), 15, 1)
    assert_same_batches(theirs, buffer, env=env)
    several = close(ours.ReplayBuffer(50, BOX, DISCRETE, "cpu", n_steps=3))
    fill((several,), 5, 1)
    with pytest.raises(ValueError, match="norm_reward=False"):
        several.sample(4, env=env)


def test_extend_adds_rows_and_reset_deletes_them(close):
    buffer = close(ours.ReplayBuffer(50, BOX, DISCRETE, "cpu", location=":memory:"))
    obs = np.zeros((3, 1, 4), np.float32)
    buffer.extend(obs, obs, np.zeros((3, 1)), np.ones((3, 1)), np.zeros((3, 1)), [[{}]] * 3)
    assert buffer.size() == 3
    buffer.reset()
    assert buffer.size() == 0
    fill((buffer,), 2, 1)
    assert buffer.size() == 2
    buffer.sample(4)


def train_model(kind, env, steps=300, policy="MlpPolicy", buffer_size=200, **options):
    model = kind(
        policy, env, seed=3, learning_starts=50, batch_size=16, buffer_size=buffer_size,
        policy_kwargs={"net_arch": [8]}, device="cpu", **options,
    )  # fmt: skip
    return model.learn(steps)


@pytest.mark.parametrize(
    ("kind", "env"), [("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1"),
                      pytest.param("TD3", "Pendulum-v1", marks=pytest.mark.slow),
                      pytest.param("DDPG", "Pendulum-v1", marks=pytest.mark.slow)],
)  # fmt: skip
def test_training_gives_the_same_parameters_bit_for_bit(kind, env, tmp_path):
    kind = getattr(sb3, kind)
    theirs = train_model(kind, env)
    model = train_model(
        kind, env, replay_buffer_class=ours.ReplayBuffer,
        replay_buffer_kwargs={"location": str(tmp_path / "runs.db")},
    )  # fmt: skip
    for parameter, other in zip(theirs.policy.parameters(), model.policy.parameters(), strict=True):
        assert torch.equal(parameter, other)
    model.replay_buffer.close()


def test_a_loaded_model_continues_training_with_its_buffer(tmp_path):
    options = {
        "replay_buffer_class": ours.ReplayBuffer,
        "replay_buffer_kwargs": {"location": str(tmp_path / "runs.db"), "task_id": "CartPole-v1"},
    }
    model = train_model(sb3.DQN, "CartPole-v1", 150, **options)
    model.save(tmp_path / "model")
    model.replay_buffer.close()
    again = sb3.DQN.load(tmp_path / "model", env=model.get_env())
    assert again.replay_buffer.size() == 152
    again.learn(100, reset_num_timesteps=False)
    assert again.replay_buffer.size() == 200  # of 250 transitions, limited by the capacity
    again.replay_buffer.close()
    with expdb.open(tmp_path / "runs.db") as db:
        query = (
            "SELECT count(*) AS steps, sum(reward) AS reward FROM experience WHERE task_id = :env"
        )
        assert db.sql(query, {"env": "CartPole-v1"}).to_pylist() == [
            {"steps": 200, "reward": 200.0}
        ]


PROGRAM = """
import sys
import torch, stable_baselines3 as sb3
from stable_baselines3.common.callbacks import BaseCallback
from expdb.integrations.stable_baselines3 import ReplayBuffer
torch.set_num_threads(1)

class Tell(BaseCallback):
    def _on_step(self):
        if self.num_timesteps % 50 == 0:
            self.model.replay_buffer.flush()
            print(self.model.replay_buffer.size(), flush=True)
        return True

sb3.DQN("MlpPolicy", "CartPole-v1", learning_starts=50, batch_size=16, device="cpu",
        replay_buffer_class=ReplayBuffer, replay_buffer_kwargs={"location": sys.argv[1]},
        ).learn(1_000_000, callback=Tell())
"""


@pytest.mark.slow
def test_acknowledged_steps_survive_a_kill_of_the_training(tmp_path):
    path, acknowledged = tmp_path / "runs.db", 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(path)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            for _ in range(6):
                before, acknowledged = acknowledged, int(process.stdout.readline())
                assert acknowledged > before
            process.kill()
            acknowledged = int(([acknowledged, *process.stdout.read().split()])[-1])
        with expdb.open(path) as db:
            assert len(db.buffer("replay_buffer")) >= acknowledged
            assert db.check() == []


# -- hindsight -------------------------------------------------------------------------------------


def bits(n_bits=4):
    make = functools.partial(BitFlippingEnv, n_bits=n_bits, continuous=True, max_steps=6)
    return DummyVecEnv([make] * 2)


def goal_transitions(buffer, episodes, length, infos=False):
    """Add episodes; step t of episode e achieves the goal (e, t)."""
    for e in range(episodes):
        for t in range(length):

            def seen(e=e, t=t):
                return {key: np.array([[e, t]], np.float32) for key in GOALS}

            info = {"step": t, "where": np.array([e, t]), "note": f"{e}/{t}"} if infos else {}
            done = np.array([t == length - 1])
            buffer.add(seen(), seen(), np.zeros((1, 1)), np.zeros(1), done, [info])


GOALS = spaces.Dict(
    dict.fromkeys(("observation", "achieved_goal", "desired_goal"), spaces.Box(0, 99, (2,)))
)


class Rewards:
    """An environment that can only compute rewards."""

    def __init__(self):
        self.infos = []

    def env_method(self, name, achieved, goals, infos, indices):
        assert (name, indices) == ("compute_reward", [0])
        self.infos = infos
        return [(achieved - 2 * goals).sum(1)]


@pytest.mark.parametrize(
    ("strategy", "allowed"),
    [("future", lambda own, goal: goal >= own), ("final", lambda own, goal: goal == 6),
     ("episode", lambda own, goal: goal <= 6)],
)  # fmt: skip
def test_goals_come_from_steps_of_the_episode_that_the_strategy_allows(close, strategy, allowed):
    env = Rewards()
    buffer = close(ours.HerReplayBuffer(
        100, GOALS, ACTIONS, env, "cpu", goal_selection_strategy=strategy, location=":memory:",
        n_sampled_goal=9, copy_info_dict=True,
    ))  # fmt: skip
    with pytest.raises(RuntimeError, match="end of the first episode"):
        buffer.sample(4)
    goal_transitions(buffer, 20, 7, infos=True)  # 140 steps: the oldest are evicted
    samples = buffer.sample(1000)
    own = samples.observations["achieved_goal"][100:].numpy()
    goals = samples.observations["desired_goal"][100:].numpy()
    assert (own[:, 0] == goals[:, 0]).all()
    assert allowed(own[:, 1], goals[:, 1]).all()
    if strategy != "final":
        counts = np.bincount(goals[own[:, 1] == 2][:, 1].astype(int), minlength=7)
        assert (counts > 0).tolist() == [strategy == "episode"] * 2 + [True] * 5
    for info, (e, t) in zip(env.infos, own, strict=True):
        assert (info["step"], info["note"]) == (int(t), f"{int(e)}/{int(t)}")
        assert info["where"].tolist() == [e, t]


@pytest.mark.parametrize("is_private", [False, True])
def test_hindsight_training_continues_with_a_loaded_buffer(tmp_path, is_private):
    options = {"copy_info_dict": True} if is_private else {"location": str(tmp_path / "her.db")}
    model = train_model(  # 50 steps per environment: the last episode of 6 steps is open
        sb3.SAC, bits(n_bits=32), 100, "MultiInputPolicy", 1000,
        replay_buffer_class=ours.HerReplayBuffer, replay_buffer_kwargs=options,
    )  # fmt: skip
    assert isinstance(model.replay_buffer, her_replay_buffer.HerReplayBuffer)
    model.save_replay_buffer(tmp_path / "buffer")
    model.replay_buffer.close()
    if is_private:
        model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    else:
        with pytest.warns(UserWarning, match="last trajectory .* will be truncated"):
            model.load_replay_buffer(tmp_path / "buffer")
        assert model.replay_buffer.timeouts[49].tolist() == [1.0, 1.0]
    assert model.replay_buffer.size() == 50
    model.learn(40, reset_num_timesteps=False)
    assert model.replay_buffer.size() == 70
    model.replay_buffer.close()


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("steps", [60, 140, 333], ids=["some", "whole rounds", "wrapped"])
def test_hindsight_draws_the_same_batches_as_the_original(close, strategy, steps):
    rng = np.random.default_rng(0)
    made = [
        close(kind(70, GOALS, ACTIONS, Rewards(), "cpu", goal_selection_strategy=strategy))
        for kind in (her_replay_buffer.HerReplayBuffer, ours.HerReplayBuffer)
    ]
    for t in range(steps):  # episodes of 7 steps divide the capacity: none is partly overwritten
        seen, action = {key: rng.normal(size=(1, 2)) for key in GOALS}, rng.normal(size=(1, 1))
        for buffer in made:
            buffer.add(seen, seen, action, np.ones(1), np.array([t % 7 == 6]), [{}])
        if t % 7 == 6 and t > steps - 20:
            assert_same_batches(*made)


@pytest.mark.parametrize("space", [BOX, DICT], ids=["box", "dict"])
@pytest.mark.parametrize("envs", [1, 3])
def test_samples_include_unwritten_transitions(pair, space, envs):
    theirs, buffer = pair(space=space, envs=envs, ours_only={"flush_steps": 7 * envs})
    written = set()
    for row in range(60):
        fill((theirs, buffer), 1, envs, space, seed=row)
        assert_same_batches(theirs, buffer)
        written.add(buffer.unwritten)
    assert written == {envs * k for k in range(7)}


def test_a_sample_after_a_failed_write_includes_every_transition(close, tmp_path):
    options = {"location": tmp_path / "b.db", "flush_steps": 8}
    buffer = close(ours.ReplayBuffer(100, BOX, DISCRETE, "cpu", **options))
    buffer.database.close()
    buffer.database = expdb.open(tmp_path / "b.db", timeout=0.05)
    buffer._open_buffer()
    add(buffer, 1, 2, 3)
    buffer.flush()
    add(buffer, *range(4, 11))
    with closing(sqlite3.connect(tmp_path / "b.db", isolation_level=None)) as other, other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.DatabaseBusy):
            add(buffer, 11)
        with pytest.raises(errors.DatabaseBusy):
            buffer.sample(4)
        other.execute("ROLLBACK")
    assert set(buffer.sample(500).rewards[:, 0].tolist()) == set(range(1, 12))


def test_truncation_ends_the_last_episode_of_each_environment(close):
    buffer = close(ours.HerReplayBuffer(100, GOALS, ACTIONS, Rewards(), "cpu", n_envs=2))
    seen = {key: np.zeros((2, 2), np.float32) for key in GOALS}
    buffer.truncate_last_trajectory()  # nothing was added
    for t in range(3):
        buffer.add(seen, seen, np.zeros((2, 1)), np.ones(2), np.array([t == 2, False]), [{}] * 2)
    with pytest.warns(UserWarning, match="will be truncated"):
        buffer.truncate_last_trajectory()
    assert buffer.dones[2].tolist() == [1.0, 1.0]
    assert buffer.timeouts[2].tolist() == [0.0, 1.0]
    buffer.truncate_last_trajectory()  # every episode has ended: no warning
    buffer.add(seen, seen, np.zeros((2, 1)), np.ones(2), np.array([True, True]), [{}] * 2)
    buffer.flush()
    assert buffer.buffer.stats()["episodes"]["complete"] == 4
    assert buffer.database.check() == []


@pytest.mark.parametrize("kind", ["ReplayBuffer", "NStepReplayBuffer", "PrioritizedReplayBuffer"])
def test_a_private_buffer_is_pickled_with_its_transitions(close, kind):
    buffer = close(getattr(ours, kind)(20, BOX, DISCRETE, "cpu"))
    fill((buffer,), 33, 1)
    if kind == "PrioritizedReplayBuffer":
        buffer.update_priorities(np.arange(13, 33), np.arange(20) == 4)
    copies = close(pickle.loads(pickle.dumps(buffer))), close(copy.deepcopy(buffer))
    fill((buffer,), 1, 1, seed=1)
    for restored in copies:
        assert (restored.pos, restored.full, restored.buffer.stats()["added"]) == (13, True, 33)
        np.testing.assert_array_equal(restored.observations[:13], buffer.observations[:13])
        assert not np.array_equal(restored.observations[13], buffer.observations[13])
        if kind == "PrioritizedReplayBuffer":
            assert set(restored.sample(50).positions.tolist()) == {17}
        fill((restored,), 2, 1)
        assert restored.database.check() == []


def test_open_episodes_end_in_a_pickle_and_can_be_sampled(close):
    env = Rewards()
    buffer = close(ours.HerReplayBuffer(100, GOALS, ACTIONS, env, "cpu"))
    goal_transitions(buffer, 1, 3)
    seen = {key: np.full((1, 2), 9, np.float32) for key in GOALS}
    buffer.add(seen, seen, np.zeros((1, 1)), np.zeros(1), np.array([False]), [{}])
    other = close(copy.deepcopy(buffer))
    other.set_env(env) if other.env is None else None
    drawn = {tuple(goal) for goal in other.sample(200).observations["achieved_goal"].tolist()}
    assert drawn == {(0, 0), (0, 1), (0, 2), (9, 9)}


@pytest.mark.parametrize("kind", [ours.DictReplayBuffer, ours.HerReplayBuffer])
def test_dict_buffers_refuse_other_observation_spaces(kind):
    with pytest.raises(AssertionError, match="must be used with Dict obs space only"):
        kind(10, BOX, DISCRETE)


def test_missing_rows_are_sampled_as_zeros_if_full_is_set(close):
    buffer = close(ours.ReplayBuffer(50, BOX, DISCRETE, "cpu"))
    with pytest.raises(expdb.TooFewRows, match="has no transitions; add transitions"):
        buffer.sample(4)
    with pytest.warns(errors.ExpDBWarning, match="0 of 50 rows were added"):
        buffer.full = True
    assert not buffer.sample(4).observations.any()
    fill((buffer,), 30, 1)
    drawn = buffer.sample(200).observations.any(1).float().mean()
    assert 0.4 < drawn < 0.8
    buffer.full = False
    assert buffer.sample(200).observations.any(1).all()


def test_a_truncation_ends_n_step_returns_even_if_done_is_false(pair):
    theirs, buffer = pair("NStepReplayBuffer", n_steps=3)
    for k in range(10):
        seen, info = np.full((1, 4), k), {"TimeLimit.truncated": k == 4}
        for made in (theirs, buffer):
            made.add(seen, seen + 1, np.zeros(1), np.ones(1), np.zeros(1), [info])
    assert_same_batches(theirs, buffer)


# -- priorities and errors -------------------------------------------------------------------------


def test_unsupported_and_mismatched_options_are_refused(tmp_path):
    options = {"location": tmp_path / "runs.db", "device": "cpu"}
    with pytest.raises(ValueError, match="optimize_memory_usage"):
        ours.ReplayBuffer(10, BOX, DISCRETE, optimize_memory_usage=True, **options)
    ours.ReplayBuffer(10, BOX, DISCRETE, **options).close()
    with pytest.raises(errors.FieldMismatch):
        ours.ReplayBuffer(10, spaces.Box(0, 1, (5,)), DISCRETE, **options)
    with pytest.raises(errors.CapacityMismatch):
        ours.ReplayBuffer(5, BOX, DISCRETE, **options)
    with pytest.raises(ValueError, match="n_steps"):
        ours.HerReplayBuffer(10, GOALS, BOX, location=":memory:", n_steps=3)
    private = ours.ReplayBuffer(10, BOX, DISCRETE, location=":memory:")
    fill((private,), 1, 1)
    zero = np.zeros((1, 4))
    with pytest.raises(expdb.InvalidValue, match="reward"):
        private.add(zero, zero, np.zeros(1), np.array([np.nan]), np.zeros(1), [{}])
    assert private.size() == 1
    private.close()
    with pytest.raises(TypeError, match="ReplayBuffer has no option 'lokation'"):
        ours.ReplayBuffer(10, BOX, DISCRETE, lokation="x", location=":memory:")


def test_a_row_is_added_whole_or_not_at_all(close, tmp_path):
    buffer = close(ours.ReplayBuffer(30, BOX, DISCRETE, "cpu", 3, location=tmp_path / "runs.db"))
    fill((buffer,), 1, 3)
    zero = np.zeros((3, 4))
    for rewards, infos in (([1, np.nan, 2], [{}] * 3), ([1, 1, 1], [{}] * 2)):
        with pytest.raises((expdb.InvalidValue, IndexError)):
            buffer.add(zero, zero, np.zeros(3), np.array(rewards), np.zeros(3), infos)
    fill((buffer,), 1, 3)
    buffer.flush()
    assert buffer.buffer.get(range(6), fields=["agent_id"])["agent_id"].tolist() == [
        "env_0", "env_1", "env_2"] * 2  # fmt: skip


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("rows", [0, 13, 20, 47], ids=["none", "some", "full", "wrapped"])
@pytest.mark.parametrize("space", [BOX, DICT], ids=["array", "dict"])
def test_arrays_equal_those_of_the_original(pair, envs, rows, space):
    theirs, buffer = pair(space=space, envs=envs)
    fill((theirs, buffer), rows, envs, space)
    assert (buffer.pos, buffer.full, buffer.size()) == (theirs.pos, theirs.full, theirs.size())
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        expected, actual = getattr(theirs, name), getattr(buffer, name)
        if space is BOX or not isinstance(expected, dict):
            expected, actual = {None: expected}, {None: actual}
        assert expected.keys() == actual.keys()
        for key, array in expected.items():
            assert array.dtype == actual[key].dtype
            np.testing.assert_array_equal(array, actual[key])
            assert not actual[key].flags.writeable


def test_a_large_capacity_allocates_no_memory(tmp_path):
    ours.ReplayBuffer(10**9, BOX, DISCRETE, location=tmp_path / "runs.db").close()


def test_a_buffer_can_be_reopened_with_another_number_of_environments(tmp_path):
    for envs in (1, 3, 4, 1):
        buffer = ours.ReplayBuffer(100, BOX, DISCRETE, "cpu", envs, location=tmp_path / "runs.db")
        fill((buffer,), 40, envs)
        buffer.sample(8)
        assert buffer.rewards.shape == (100 // envs, envs)
        assert np.count_nonzero(buffer.rewards) == min(buffer.size(), 100 // envs) * envs
        buffer.close()


def test_a_pickle_opens_its_file_from_another_folder_and_never_creates_it(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    buffer = ours.ReplayBuffer(100, BOX, DISCRETE, "cpu", location="runs.db")
    fill((buffer,), 5, 1)
    stored = pickle.dumps(buffer)
    monkeypatch.chdir(tmp_path / "b")
    again = pickle.loads(stored)
    assert again.size() == 5
    again.close()
    buffer.close()
    for path in list((tmp_path / "a").iterdir()):
        path.unlink()
    missing = r"runs\.db, the database of this buffer, does not exist"
    with pytest.raises(errors.DatabaseMissing, match=missing):
        pickle.loads(stored)
    assert list((tmp_path / "a").iterdir()) == []
