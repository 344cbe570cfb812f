"""Tests of RLlib's buffers on a database, based on RLlib's documentation, and of training."""

import collections
import pickle
import re
from pathlib import Path

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
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

    from expdb.integrations.rllib import (
        EpisodeReplayBuffer,
        FifoReplayBuffer,
        MultiAgentMixInReplayBuffer,
        MultiAgentPrioritizedReplayBuffer,
        MultiAgentReplayBuffer,
        PrioritizedEpisodeReplayBuffer,
        PrioritizedReplayBuffer,
        ReplayBuffer,
        ReservoirReplayBuffer,
        SACConfig,
        StorageUnit,
    )

pytestmark = pytest.mark.filterwarnings("default")  # Ray itself emits warnings


def steps(*numbers, **columns):
    obs = np.repeat(np.array(numbers, np.float32)[:, None], 3, 1)
    return SampleBatch({"a": np.array(numbers), "obs": obs, **columns})


def test_the_rllib_page_runs_with_the_import_changed(capsys):
    page = (Path(__file__).parents[1] / "data" / "rllib_page.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    theirs = "ray.rllib.utils.replay_buffers.replay_buffer"
    assert block.count(theirs) == 2
    exec(compile(block.replace(theirs, "expdb.integrations.rllib"), "rllib_page.md", "exec"), {})
    assert capsys.readouterr().out == "True\n"


# -- batches ---------------------------------------------------------------------------------------


def test_timesteps_are_kept_up_to_the_capacity_and_drawn_as_one_batch(close):
    buffer = close(ReplayBuffer(capacity=5))
    buffer.add(steps(0, 1, 2))
    buffer.add(SampleBatch({}))
    buffer.add(steps(3, 4, 5, 6))
    assert len(buffer) == 5
    batch = buffer.sample(200)
    assert type(batch) is SampleBatch
    assert set(batch["a"].tolist()) == {2, 3, 4, 5, 6}
    assert (batch["obs"][:, 0] == batch["a"]).all()
    assert (batch["obs"].dtype, batch["obs"].shape) == (np.float32, (200, 3))
    stats = buffer.stats()
    assert (stats["added_count"], stats["num_entries"], stats["sampled_count"]) == (7, 5, 200)
    assert stats["eviction_started"]


def test_a_subclass_can_override_how_items_are_added(close):
    class Odd(ReplayBuffer):
        def _add_single_batch(self, item, **options):
            if item["a"][0] % 2:
                super()._add_single_batch(item, **options)

    buffer = close(Odd(capacity=10))
    buffer.add(steps(0, 1, 2, 3))
    assert set(buffer.sample(50)["a"].tolist()) == {1, 3}


def test_columns_of_objects_are_split_into_steps(close):
    buffer = close(ReplayBuffer(capacity=10))
    buffer.add(steps(0, 1, infos=[{"k": 0}, {"k": 1}]))
    batch = buffer.sample(20)
    assert [info["k"] for info in batch["infos"]] == batch["a"].tolist()


@pytest.mark.parametrize("unit", ["timesteps", "fragments"])
def test_sql_reads_rewards_and_nan_rewards_are_refused(unit, close, tmp_path):
    buffer = close(ReplayBuffer(capacity=10, storage_unit=unit, location=tmp_path / "r.db"))
    buffer.add(steps(0, 1, 2, rewards=np.array([1, 2, 4], np.float32)))
    with pytest.raises(expdb.InvalidValue, match="reward"):
        buffer.add(steps(3, rewards=np.array([np.nan], np.float32)))
    buffer.flush()
    asked = "SELECT sum(reward) AS sum FROM experience WHERE buffer = 'replay_buffer'"
    assert buffer.database.sql(asked).to_pylist() == [{"sum": 7.0}]
    assert set(buffer.sample(50)["rewards"].tolist()) == {1, 2, 4}


def test_a_column_with_a_reserved_name_is_refused(close):
    with pytest.raises(expdb.InvalidValue, match="timesteps"):
        close(ReplayBuffer(capacity=10)).add(steps(0, timesteps=np.array([7])))


def test_a_failed_eviction_is_repeated_later(close, monkeypatch):
    buffer = close(ReplayBuffer(capacity=4, storage_unit="fragments"))
    buffer.add(steps(0, 1))
    buffer.add(steps(2, 3))
    buffer.add(steps(4, 5))
    with monkeypatch.context() as patch:
        patch.setattr(buffer.buffer, "delete", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            buffer.flush()
    buffer.flush()
    assert len(buffer) == 2
    assert set(buffer.sample(50)["a"].tolist()) == {2, 3, 4, 5}


def test_a_state_of_another_location_is_accepted_with_a_warning(close, tmp_path):
    state = close(ReplayBuffer(capacity=4, location=tmp_path / "a.db")).get_state()
    other = close(ReplayBuffer(capacity=4, location=tmp_path / "b.db"))
    with pytest.warns(errors.ExpDBWarning, match=r"\(0 items or episodes\)"):
        other.set_state(state)


def test_wrong_options_are_refused(close):
    with pytest.raises(TypeError):
        close(ReplayBuffer()).sample(None)
    for wrong in ({"capacity": 0}, {"storage_unit": "rows"}, {"lokation": "x"}):
        with pytest.raises(ValueError, match=r"apacity|storage_unit|lokation"):
            ReplayBuffer(**wrong)


def test_sequences_are_split_and_drawn_whole(close):
    buffer = close(ReplayBuffer(storage_unit="sequences"))
    buffer.add(SampleBatch({"a": np.arange(6), "seq_lens": np.array([1, 2, 3])}))
    assert len(buffer) == 3
    seen = {tuple(buffer.sample(1)["a"].tolist()) for _ in range(40)}
    assert seen == {(0,), (1, 2), (3, 4, 5)}


def test_only_whole_episodes_are_stored(close):
    buffer = close(ReplayBuffer(storage_unit=StorageUnit.EPISODES))
    ends = [False, True, False, False, True]
    buffer.add(steps(0, 1, 2, 3, 4, t=[0, 1, 0, 3, 4], terminateds=ends, eps_id=[0, 0, 1, 2, 2]))
    assert len(buffer) == 1
    assert buffer.sample(2)["a"].tolist() == [0, 1, 0, 1]


def test_fragments_are_stored_whole_and_the_capacity_counts_timesteps(close):
    buffer = close(ReplayBuffer(capacity=6, storage_unit="fragments"))
    for k in range(5):
        buffer.add(steps(*range(3 * k, 3 * k + 3)))
        buffer.flush()
    assert len(buffer) == 2
    assert {tuple(buffer.sample(1)["a"].tolist()) for _ in range(30)} == {(9, 10, 11), (12, 13, 14)}


def test_items_are_drawn_by_priority_with_importance_weights(close):
    buffer = close(PrioritizedReplayBuffer(100, alpha=0.5))
    for k, weight in enumerate((0.25, 1.0, 4.0)):
        buffer.add(steps(k), weight=weight)
    drawn = collections.Counter(buffer.sample(7000, beta=0.0)["a"].tolist())
    assert [drawn[k] / 1000 for k in range(3)] == pytest.approx([1, 2, 4], abs=0.01)
    batch = buffer.sample(30, beta=0.7)
    share = np.array([1, 2, 4]) / 7
    expected = (3 * share) ** -0.7 / ((3 * share) ** -0.7).max()
    assert batch["weights"].tolist() == pytest.approx(expected[batch["a"]].tolist())
    buffer.update_priorities(batch["batch_indexes"], np.where(batch["a"] == 0, 1e6, 1e-9))
    assert buffer.sample(20, beta=0.0)["a"].tolist() == [0] * 20
    with pytest.raises(AssertionError):
        buffer.update_priorities([0], [0.0])


def test_late_priorities_of_evicted_items_are_ignored(close):
    buffer = close(PrioritizedReplayBuffer(2))
    buffer.add(steps(0, 1))
    old = buffer.sample(2, beta=0.0)["batch_indexes"]
    buffer.add(steps(2, 3))
    buffer.sample(1, beta=0.0)
    buffer.update_priorities(old, np.full(2, 1e9))
    assert set(buffer.sample(50, beta=0.0)["a"].tolist()) == {2, 3}


def test_a_reservoir_is_a_uniform_sample_of_all_added_items(close):
    numbers = []
    for _ in range(30):
        buffer = close(ReservoirReplayBuffer(capacity=5))
        for k in range(25):
            buffer.add(steps(k))
        assert (len(buffer), buffer.stats()["num_add_calls"]) == (5, 25)
        numbers += set(buffer.sample(200)["a"].tolist())
    assert 8 < np.mean(numbers) < 16  # 12 on average, five standard deviations


def test_a_reservoir_keeps_its_count_after_a_restart(close, tmp_path):
    for calls in (200, 400):
        buffer = close(ReservoirReplayBuffer(capacity=5, location=tmp_path / "r.db"))
        for k in range(200):
            buffer.add(steps(k))
        assert buffer.stats()["num_add_calls"] == calls
        buffer.close()


def test_a_fifo_buffer_returns_each_batch_once(close, tmp_path):
    first = close(FifoReplayBuffer(location=tmp_path / "q.db"))
    second = close(FifoReplayBuffer(location=tmp_path / "q.db"))
    for k in range(4):
        first.add(steps(k, k))
    first.flush()
    order = [handle.sample()["a"].tolist() for handle in (first, second, second, first)]
    assert order == [[k, k] for k in range(4)]
    assert isinstance(first.sample(), MultiAgentBatch)
    assert not first._item_positions
    first.add(steps(9))
    assert first.sample()["weights"].tolist() == [1.0]


def test_each_policy_has_its_own_items(close, tmp_path):
    location = tmp_path / "m.db"
    batch = MultiAgentBatch({"p": steps(1, 2, 3), "q": steps(7)}, 3)
    buffer = close(MultiAgentReplayBuffer(capacity=100, location=location))
    buffer.add(batch)
    drawn = buffer.sample(4)
    assert set(drawn.policy_batches) == {"p", "q"}
    assert set(buffer.sample(9, policy_id="p")["p"]["a"].tolist()) <= {1, 2, 3}
    buffer.close()
    again = close(MultiAgentReplayBuffer(capacity=100, location=location))
    assert len(again) == 4
    assert again.sample(2, policy_id="q")["q"]["a"].tolist() == [7, 7]


def test_items_of_a_policy_are_drawn_by_priority(close, tmp_path):
    options = {"storage_unit": "timesteps", "location": tmp_path / "p.db"}
    buffer = close(MultiAgentPrioritizedReplayBuffer(capacity=100, **options))
    buffer.add(MultiAgentBatch({"p": steps(1, 2, 3)}, 3))
    batch = buffer.sample(6)["p"]
    buffer.update_priorities({"p": (batch["batch_indexes"], np.where(batch["a"] == 2, 1e9, 1e-9))})
    assert buffer.sample(20)["p"]["a"].tolist() == [2] * 20


def test_each_new_batch_is_mixed_once_with_old_batches(close, tmp_path):
    options = {"storage_unit": "timesteps", "location": tmp_path / "x.db"}
    buffer = close(MultiAgentMixInReplayBuffer(capacity=100, replay_ratio=0.5, **options))
    buffer.add(steps(*range(10)))
    batch = buffer.sample(20)["default_policy"]
    assert collections.Counter(batch["a"].tolist()).keys() >= set(range(10))
    state = buffer.get_state()
    buffer.set_state(state)


@pytest.mark.parametrize(
    ("kind", "options"), [(ReplayBuffer, {}), (PrioritizedReplayBuffer, {"beta": 0.4})]
)
def test_sampling_an_empty_or_cleared_buffer_is_an_error(kind, options, close):
    buffer = close(kind(capacity=10))
    for size in (0, 3):
        with pytest.raises(ValueError, match="empty buffer"):
            buffer.sample(size, **options)
    buffer.add(steps(1, 2))
    assert [buffer.sample(size, **options).count for size in (0, 3)] == [0, 3]
    buffer.buffer.clear()
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(3, **options)


# -- episodes --------------------------------------------------------------------------------------

SPACES = {
    "observation_space": gymnasium.spaces.Box(-1, 1e6, (2,), np.float32),
    "action_space": gymnasium.spaces.Discrete(100),
}


def episode(number, length, *, terminated=True, start=0, id_=None, extra=None):
    """Return an episode whose step t has observation (number, t), action t and reward t."""
    times = range(start, start + length + 1)
    return SingleAgentEpisode(
        id_=id_ or f"e{number}", t_started=start, len_lookback_buffer=0, terminated=terminated,
        observations=[np.array([number, t], np.float32) for t in times],
        infos=[{"t": t} for t in times], actions=list(times[:-1]),
        rewards=[float(t) for t in times[:-1]],
        extra_model_outputs={"logp": [np.float32(-t) for t in times[:-1]], **(extra or {})},
        **SPACES,
    )  # fmt: skip


def observed(*observations):
    """Return an episode with these observations and without rewards."""
    count = len(observations) - 1
    return SingleAgentEpisode(
        observations=list(observations), actions=[0] * count, rewards=[0.0] * count,
        infos=[{} for _ in observations], terminated=True, len_lookback_buffer=0,
    )  # fmt: skip


WHOLE = {EpisodeReplayBuffer: {"sample_episodes": True}, PrioritizedEpisodeReplayBuffer: {}}


@pytest.fixture(params=WHOLE)
def kind(request):
    return request.param


def test_the_oldest_episodes_are_evicted_whole(kind, close):
    buffer = close(kind(capacity=25))
    buffer.add([episode(k, 10) for k in range(4)])
    assert (len(buffer), buffer.get_num_episodes(), buffer.get_num_episodes_evicted()) == (20, 2, 2)
    assert buffer.get_added_timesteps() == 40
    metrics = buffer.get_metrics()
    assert "num_env_steps_stored" in metrics
    buffer.add(episode(9, 40))
    assert (len(buffer), buffer.get_num_episodes()) == (40, 1)


def test_parts_of_an_episode_are_joined(kind, close):
    buffer = close(kind(capacity=100))
    buffer.add(episode(0, 4, terminated=False))
    buffer.add(episode(1, 4, terminated=False))
    buffer.add(episode(0, 4, start=4))
    assert (buffer.get_num_episodes(), len(buffer)) == (2, 12)
    samples = buffer.sample(200, n_step=3, gamma=0.5, **WHOLE[kind])
    for sample in samples:
        (number, t), (other, following) = sample.observations[0], sample.observations[1]
        assert (number, following) == (other, t + 3)
        assert sample.rewards[0] == t + (t + 1) / 2 + (t + 2) / 4
        assert sample.is_terminated == (number == 0 and following == 8)
    starts = {(int(sample.observations[0][0]), sample.t_started) for sample in samples}
    assert starts == {(0, t) for t in range(6)} | {(1, 0), (1, 1)}


def test_a_random_n_step_excludes_the_upper_bound(kind, close):
    buffer = close(kind(capacity=100))
    buffer.add(episode(0, 20))
    samples = buffer.sample(300, n_step=(1, 4), **WHOLE[kind])
    taken = {sample.get_extra_model_outputs("n_step", 0) for sample in samples}
    assert taken == {1, 2, 3}
    with pytest.raises(ValueError, match="no transitions over 30 steps"):
        buffer.sample(1, n_step=30, **WHOLE[kind])


def test_sampled_steps_have_their_own_outputs_and_infos(kind, close):
    buffer = close(kind(capacity=100))
    buffer.add(episode(0, 10))
    options = {"include_infos": True, "include_extra_model_outputs": True, **WHOLE[kind]}
    for sample in buffer.sample(20, n_step=2, **options):
        t = sample.t_started
        assert sample.get_extra_model_outputs("logp", 0) == -t
        assert [info["t"] for info in sample.get_infos()] == [t, t + 2]


def test_a_refused_episode_stores_no_steps(kind, close):
    buffer = close(kind(capacity=100))
    bad = episode(0, 5)
    bad.infos[3]["object"] = object()
    with pytest.raises(expdb.InvalidValue, match="object"):
        buffer.add(bad)
    buffer.add(episode(0, 5))
    assert len(buffer) == 5


def test_rows_may_contain_steps_with_different_structures(close):
    buffer = close(EpisodeReplayBuffer(capacity=100, seed=0))
    first = episode(0, 5)
    first.infos[2].clear()
    first.infos[3].clear()  # so that step 2 has no infos
    buffer.add([first, episode(1, 5, extra={"more": [1.0] * 5})])
    batch = buffer.sample(30, batch_length_T=4)
    numbers, times = batch["obs"][..., 0], batch["obs"][..., 1]
    assert set(numbers.ravel().tolist()) == {0, 1}
    assert (batch["actions"] == np.minimum(times, 4)).all()
    assert (batch["rewards"] == np.maximum(times - 1, 0)).all()
    assert (batch["is_terminated"] == (times == 5)).all()
    assert batch["obs"].dtype == np.float32


def test_rows_may_contain_dict_observations(close):
    buffer = close(EpisodeReplayBuffer(capacity=100, seed=0))
    buffer.add(observed(*({"t": t} for t in range(6))))
    batch = buffer.sample(20, batch_length_T=3)
    assert batch["obs"].shape == (20, 3)
    assert {observation["t"] for observation in batch["obs"][batch["is_terminated"]]} == {5}
    assert {observation["t"] for observation in batch["obs"].ravel()} == set(range(6))


def handles(close, path, capacity):
    return [close(EpisodeReplayBuffer(capacity=capacity, location=path)) for _ in range(2)]


def test_a_handle_sees_steps_and_deletions_by_another(close, tmp_path):
    first, other = handles(close, tmp_path / "e.db", 40)
    first.add([episode(k, 10) for k in range(4)])
    first.flush()
    assert len(other.episodes) == 4
    first.buffer.delete({"episode_id": "e1"})
    first.add(episode(7, 10))  # as many steps as were deleted
    first.flush()
    assert sorted(episode.id_ for episode in other.episodes) == ["e0", "e2", "e3", "e7"]
    samples = other.sample(60, n_step=1, sample_episodes=True)
    assert {episode.id_ for episode in samples} == {"e0", "e2", "e3", "e7"}
    assert numbers_of(other) <= {0, 2, 3, 7}
    first.add(episode(8, 10))  # evicts e0
    first.flush()
    for _ in range(5):
        assert numbers_of(other) <= {2, 3, 7, 8}
    other.add(episode(9, 10))
    other.flush()
    assert len(other) == 40
    with pytest.raises(errors.CapacityMismatch):
        EpisodeReplayBuffer(capacity=35, location=tmp_path / "e.db")


def numbers_of(buffer):
    """Return the numbers of the episodes in sampled rows."""
    return set(buffer.sample(4, batch_length_T=6)["obs"][..., 0].ravel().tolist())


def test_a_restored_state_replaces_the_episodes(close):
    first, other = (close(EpisodeReplayBuffer(capacity=100, seed=seed)) for seed in range(2))
    first.add([episode(k, 5) for k in range(4)])
    other.add([episode(k, 5) for k in range(4, 8)])
    first.sample(50, sample_episodes=True, n_step=1)
    first.set_state(other.get_state())
    samples = first.sample(50, sample_episodes=True, n_step=1)
    assert {episode.id_ for episode in samples} == {"e4", "e5", "e6", "e7"}
    assert numbers_of(first) <= {4, 5, 6, 7}


def test_a_handle_sees_an_eviction_during_its_own_eviction(close, tmp_path):
    first, other = handles(close, tmp_path / "e.db", 20)
    first.add([episode(0, 10), episode(1, 10)])
    first.flush()
    delete = first._stored.buffer.delete

    def delete_late(*arguments):
        other.add(episode(3, 10))
        other.flush()
        return delete(*arguments)

    first._stored.buffer.delete = delete_late
    first.add(episode(2, 10))
    first._stored.buffer.delete = delete
    first.flush()
    other.flush()
    assert first._stored.ids == other._stored.ids
    first.sample(8, batch_length_T=4)
    assert [episode.id_ for episode in first.episodes] == first._stored.ids


def test_rows_skip_an_episode_that_is_evicted_meanwhile(close, tmp_path):
    first, other = handles(close, tmp_path / "e.db", 40)
    first.add([episode(k, 10) for k in range(4)])
    first.flush()
    other.sample(4, batch_length_T=4)
    batch_at = first._stored.batch_at

    def evict_first(positions):
        other.add([episode(k, 10) for k in range(4, 8)])
        other.flush()
        first._stored.batch_at = batch_at
        return batch_at(positions)

    first._stored.batch_at = evict_first
    assert numbers_of(first) <= {4, 5, 6, 7}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 3])
def test_rows_have_the_dtype_and_shape_of_all_their_observations(close, dtype, size):
    buffer = close(EpisodeReplayBuffer(capacity=20, seed=0))
    for kind in (np.float32, dtype):
        shape = 2 if kind is np.float32 and dtype is not np.float32 else size
        buffer.add(observed(*(np.full(shape, t, kind) for t in range(16))))
    batch = buffer.sample(6, batch_length_T=3)
    assert (batch["obs"].dtype, batch["obs"].shape) == (dtype, (6, 3, size))


def test_a_private_buffer_is_pickled_with_its_episodes(kind, close):
    buffer = close(kind(capacity=100))
    buffer.add([episode(k, 5) for k in range(4)])
    other = close(pickle.loads(pickle.dumps(buffer)))
    other.add(episode(9, 2))
    assert (len(buffer), len(other)) == (20, 22)
    assert [stored.id_ for stored in other.episodes] == ["e0", "e1", "e2", "e3", "e9"]


def test_stored_episodes_equal_the_added_episodes(kind, close):
    buffer = close(kind(capacity=100))
    buffer.add([episode(k, 5) for k in range(3)])
    for k, stored in enumerate(buffer.episodes):
        added = episode(k, 5)
        np.testing.assert_array_equal(stored.get_observations(), added.get_observations())
        assert list(stored.get_actions()) == list(added.get_actions())
        assert list(stored.get_rewards()) == list(added.get_rewards())
        assert (stored.is_terminated, stored.get_infos()) == (True, added.get_infos())
        assert list(stored.get_extra_model_outputs("logp")) == [0.0, -1.0, -2.0, -3.0, -4.0]


def test_keys_of_extra_model_outputs_may_be_numbers(close):
    buffer = close(PrioritizedEpisodeReplayBuffer(capacity=100))
    buffer.add(episode(0, 3, extra={7: [1.0, 2.0, 3.0]}))
    (stored,) = buffer.episodes
    assert list(stored.get_extra_model_outputs(7)) == [1.0, 2.0, 3.0]
    drawn = buffer.sample(5, n_step=1, include_extra_model_outputs=True)
    assert all(step.get_extra_model_outputs(7, -1) == step.observations[0][1] + 1 for step in drawn)


@pytest.mark.parametrize("unit", ["timesteps", "fragments"])
@pytest.mark.parametrize("made", [ReplayBuffer, PrioritizedReplayBuffer, ReservoirReplayBuffer])
def test_a_state_with_data_restores_an_equal_buffer(made, unit, close, tmp_path):
    buffer = close(made(8, unit, location=tmp_path / "a.db", state_includes_data=True))
    for k in range(7):
        buffer.add(steps(2 * k, 2 * k + 1))
    options = {"beta": 0.5} if made is PrioritizedReplayBuffer else {}
    state = pickle.loads(pickle.dumps(buffer.get_state()))
    assert state["location"].endswith("a.db")
    other = close(made(8, unit, location=tmp_path / "b.db"))
    other.set_state(state)
    private = close(pickle.loads(pickle.dumps(close(made(8, unit)))))
    private.add(steps(99))
    private.set_state(state)  # replaces the items of a private database, as in RLlib's buffers
    varying = {"est_size_bytes": 0, "sampled_count": 0}
    for restored in (other, private):
        assert restored.stats() | varying == buffer.stats() | varying
        expected = set(buffer.sample(99, **options)["a"].tolist())
        assert set(restored.sample(99, **options)["a"].tolist()) == expected
    if made is not ReservoirReplayBuffer:  # a reservoir may skip the next item
        other.add(steps(5))
        with pytest.raises(ValueError, match="restore the state with another location="):
            other.set_state(state)


@pytest.mark.parametrize("made", [ReplayBuffer, EpisodeReplayBuffer])
def test_an_unusable_state_does_not_change_the_buffer(made, close):
    def filled(capacity):
        buffer = close(made(capacity=capacity))
        buffer.add([episode(0, 4)] if made is EpisodeReplayBuffer else steps(1, 2, 3, 4))
        return buffer

    buffer, state = filled(20), filled(50).get_state()
    for wrong in (b"", b"junk", "text", None):
        with pytest.raises(ValueError, match="the data of the state cannot be read"):
            buffer.set_state({**state, "data": wrong})
    if made is ReplayBuffer:
        with pytest.raises(ValueError, match="create the buffer with capacity 50"):
            buffer.set_state(state)
    buffer.add([episode(1, 4)] if made is EpisodeReplayBuffer else steps(5))
    assert len(buffer) == (8 if made is EpisodeReplayBuffer else 5)
    assert buffer.database.check() == []


def test_pickles_keep_counters_and_the_greatest_priority(close):
    buffer = close(PrioritizedReplayBuffer(8, "fragments"))
    for k in range(7):
        buffer.add(steps(2 * k, 2 * k + 1))
    buffer.update_priorities([6], [8.0])
    other = close(pickle.loads(pickle.dumps(buffer)))
    assert other._max_priority == 8.0
    assert other.stats()["added_count"] == buffer.stats()["added_count"] == 14


def test_an_item_replaces_the_oldest_item_of_a_full_buffer(close):
    buffer = close(ReplayBuffer(capacity=10, storage_unit="sequences"))
    lengths = [1, 2, 3, 2, 2]
    buffer.add(SampleBatch({"a": np.repeat(np.arange(5), lengths), "seq_lens": np.array(lengths)}))
    assert (len(buffer), buffer._eviction_started, buffer._next_idx) == (5, True, 0)
    buffer.add(SampleBatch({"a": np.full(5, 5), "seq_lens": np.array([5])}))
    assert (len(buffer), buffer._next_idx, buffer._num_timesteps_added_wrap) == (5, 1, 5)
    assert {int(buffer.sample(1)["a"][0]) for _ in range(99)} == {1, 2, 3, 4, 5}
    assert buffer.stats()["added_count"] == 15


def test_priorities_of_new_items_can_be_set(close):
    buffer = close(PrioritizedReplayBuffer(10))
    buffer.add(steps(0, 1, 2))
    buffer.update_priorities([0, 1, 2], [1e-9, 1e-9, 1.0])
    assert set(buffer.sample(50, beta=0.0)["a"].tolist()) == {2}


def test_policies_without_a_location_share_a_private_database(close):
    config = {"type": PrioritizedReplayBuffer, "alpha": 0.6, "beta": 0.4}
    buffer = close(MultiAgentReplayBuffer(capacity=9, underlying_buffer_config=config))
    buffer.add(MultiAgentBatch({0: steps(1, 2, 3), 1: steps(7)}, 3))
    assert list(buffer.sample(2).policy_batches) == [0, 1]
    other = close(MultiAgentReplayBuffer(capacity=9, underlying_buffer_config=config))
    other.set_state(buffer.get_state())
    assert other.sample(5, policy_id=1)[1]["a"].tolist() == [7] * 5
    assert len(other) == 4


def test_a_sequence_of_a_policy_is_one_item(close):
    buffer = close(MultiAgentPrioritizedReplayBuffer(capacity=15, replay_sequence_length=2))
    for k in range(3):
        buffer.add(SampleBatch({"a": np.array([k, k]), "seq_lens": np.array([2])}), weight=1.0)
    assert len(buffer) == 3
    batch = buffer.sample(2).policy_batches["default_policy"]
    assert (batch.count, batch["batch_indexes"].tolist()) == (4, batch["a"].tolist())


def test_rows_are_filled_with_steps_of_further_episodes(close):
    buffer = close(EpisodeReplayBuffer(capacity=100))
    buffer.add([episode(k, 5) for k in range(4)])
    batch = buffer.sample(6, batch_length_T=9)
    assert {name: array.shape[:2] for name, array in batch.items()} == dict.fromkeys(
        ("obs", "actions", "rewards", "is_first", "is_last", "is_terminated", "is_truncated"),
        (6, 9),
    )
    for row in range(6):
        for t in range(9):
            (number, at), first = batch["obs"][row, t], batch["is_first"][row, t]
            assert batch["rewards"][row, t] == (0.0 if at == 0 else at - 1)
            assert batch["actions"][row, t] == min(at, 4)
            assert batch["is_terminated"][row, t] == (at == 5)
            if not first:
                assert batch["obs"][row, t - 1].tolist() == [number, at - 1]
    assert batch["is_last"][:, -1].all()


def test_slices_have_lookback_steps(close):
    buffer = close(EpisodeReplayBuffer(capacity=100))
    buffer.add([episode(k, 12) for k in range(3)])
    for sample in buffer.sample(30, batch_length_T=4, n_step=1, sample_episodes=True, lookback=1):
        assert len(sample) <= 4
        assert sample.get_observations(0)[1] == sample.t_started
        if sample.t_started:
            assert (
                sample.get_observations(-1, neg_index_as_lookback=True)[1] == sample.t_started - 1
            )
    with pytest.raises(AssertionError, match="n-step must be 1"):
        buffer.sample(1, batch_length_T=4, n_step=2, sample_episodes=True)
    with pytest.raises(AssertionError, match="n_step"):
        buffer.sample(1, sample_episodes=True)


def test_update_priorities_applies_to_the_last_sample(close):
    buffer = close(PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=0))
    buffer.add(episode(0, 10))
    samples = buffer.sample(50, beta=0.5)
    buffer.update_priorities(
        np.array([1e9 if sample.t_started == 3 else 0.0 for sample in samples])
    )
    again = buffer.sample(20, beta=0.5)
    assert {sample.t_started for sample in again} == {3}
    assert again[0].get_extra_model_outputs("weights", 0) <= 1.0
    with pytest.raises(AssertionError, match="priorities for a sample"):
        buffer.update_priorities(np.ones(3))
    buffer.add(episode(1, 2), weight=1e12)
    assert {int(sample.observations[0][0]) for sample in buffer.sample(30)} == {1}


def test_a_reopened_buffer_keeps_its_episodes_and_sql_reads_them(kind, close, tmp_path):
    location = tmp_path / "e.db"
    buffer = close(kind(capacity=100, location=location))
    buffer.add([episode(k, 5) for k in range(3)])
    copy = close(pickle.loads(pickle.dumps(buffer)))
    assert len(copy) == 15
    state = buffer.get_state()
    buffer.close()
    again = close(kind(capacity=100, location=location))
    again.set_state(state)
    assert (len(again), again.get_num_episodes()) == (15, 3)
    again.add(episode(0, 2, start=5, terminated=False, id_="e9"))
    assert again.get_num_episodes() == 4
    again.flush()
    with expdb.open(location) as db:
        query = "SELECT episode_id, sum(reward) AS r FROM experience WHERE buffer = 'episodes' "
        rows = db.sql(query + "GROUP BY 1 ORDER BY 1").to_pylist()
    assert rows[0] == {"episode_id": "e0", "r": 10.0}
    with pytest.raises(ValueError, match="open that"):
        again.set_state({**state, "name": "other"})
    with pytest.raises(ValueError, match="capasity is not an option"):
        kind(capasity=3)


# -- training --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("config", "env"), [(DQNConfig, "CartPole-v1"), (SACConfig, "Pendulum-v1")]
)
def test_algorithms_resume_training_with_their_buffer(cluster, config, env, tmp_path):
    def size(buffer):
        buffer.flush()
        return len(buffer)

    options = {"type": "expdb.integrations.rllib.PrioritizedEpisodeReplayBuffer", "alpha": 0.6}
    train_and_resume(lambda: config().environment(env), tmp_path, size, beta=0.4, **options)
