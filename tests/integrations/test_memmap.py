"""Tests that code for memmap-replay-buffer runs on a database after a change of its import."""

import re
from pathlib import Path

import numpy as np
import pytest

from expdb import errors

torch = pytest.importorskip(
    "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
)

if True:  # these imports need the package
    from expdb.integrations import memmap
    from expdb.integrations.memmap import (
        ConcatReplayBuffer,
        ReplayBuffer,
        ReplayDatasetTimeWindow,
        import_folder,
    )

FIELDS = {"obs": ("float", 2), "action": "int", "reward": "float", "done": "bool"}
META = {"task": "int", "goal": ("float", (2,), 0.5)}


@pytest.fixture
def make(tmp_path, close):
    def make(folder="data", episodes=4, steps=10, fields=FIELDS, meta=META, **options):
        return close(ReplayBuffer(tmp_path / folder, episodes, steps, fields, meta, **options))

    return make


def episode(buffer, task, length=3):
    with buffer.one_episode(task=task):
        for t in range(length):
            buffer.store(obs=np.array([task, t]), action=t, reward=t / 2, done=t == length - 1)


def tasks(buffer):
    return buffer.get_all_data(meta_fields=("task",))["task"].tolist()


def test_the_memmap_page_runs_with_the_import_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "data" / "memmap_page.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    program = "\n".join(blocks).replace("from memmap_replay_buffer ", f"from {memmap.__name__} ")
    namespace = {}
    exec(compile(program, "memmap_page.md", "exec"), namespace)
    namespace["buffer"].close()
    namespace["buffer_rehydrated"].close()


def test_steps_round_trip_with_types_and_defaults(make):
    buffer = make()
    with buffer.one_episode(task=7) as last:
        stored = buffer.store(obs=torch.tensor([1.5, 2.0]), action=torch.tensor(3))
        last["goal"] = torch.ones(2)
    assert stored._fields == tuple(FIELDS)
    data = buffer.get_all_data()
    assert {name: tensor.dtype for name, tensor in data.items()} == {
        "obs": torch.float32, "action": torch.int32, "reward": torch.float32, "done": torch.bool,
        "task": torch.int32, "goal": torch.float32, "episode_lens": torch.int32,
    }  # fmt: skip
    assert data["obs"].tolist() == [[[1.5, 2.0]]]
    assert (data["action"].item(), data["reward"].item(), data["done"].item()) == (3, 0.0, False)
    assert (data["task"].item(), data["goal"].tolist()) == (7, [[1.0, 1.0]])


def test_invalid_values_are_refused_and_no_step_is_stored(make):
    buffer = make()
    with buffer.one_episode():
        for wrong, named in (
            ({"obs": np.zeros(3)}, "obs got an invalid shape"),
            ({"action": 2**40}, "action must be int"),
            ({"action": 0.5}, "action must be int"),
            ({"rewrad": 1.0}, "rewrad"),
        ):
            with pytest.raises(ValueError, match=named):
                buffer.store(**wrong)
        assert buffer.timestep_index == 0
        buffer.store(action=1)
    assert buffer.episode_lens.tolist() == [1, 0, 0, 0]


def test_a_circular_buffer_overwrites_the_slots_of_the_oldest_episodes(make):
    buffer = make(circular=True)
    for task in range(6):
        episode(buffer, task)
    assert tasks(buffer) == [4, 5, 2, 3]
    assert (buffer.num_episodes, buffer.episode_index, len(buffer)) == (4, 2, 4)
    with buffer.one_episode(task=9):
        buffer.store(action=1)
        assert tasks(buffer) == [4, 5, 2, 3]
    assert tasks(buffer) == [4, 5, 9, 3]  # an open episode takes its slot only when it ends


def test_a_full_buffer_that_is_not_circular_refuses_episodes(make):
    buffer = make(episodes=1)
    episode(buffer, 0)
    with pytest.raises(ValueError, match="full"), buffer.one_episode():
        pytest.fail("it began")
    steps = (buffer.store_episode, [1]), (buffer.store, 2), (buffer.store_batch, np.array([2]))
    for store, action in steps:
        with pytest.raises(ValueError, match="full"):
            store(action=action)
    assert len(buffer) == 1
    assert buffer.is_new_episode


def test_an_exception_discards_the_episode(make):
    buffer = make()
    with pytest.raises(RuntimeError), buffer.batched_episode(2, task=[1, 2]):  # noqa: PT012
        buffer.store_batch(action=[1, 2])
        raise RuntimeError
    assert (len(buffer), buffer.timestep_index) == (0, 0)
    episode(buffer, 5, 2)
    assert buffer.episode_lens.tolist() == [2, 0, 0, 0]


def test_refused_values_do_not_change_the_buffer(make):
    buffer = make()
    with pytest.raises(ValueError, match="scroe"), buffer.one_episode(scroe=1):
        pytest.fail("it began")
    with pytest.raises(ValueError, match="invalid shape"), buffer.one_episode() as last:  # noqa: PT012
        buffer.store(action=1)
        last["goal"] = np.zeros(5)
    assert len(buffer) == 0
    buffer.store(action=1)
    with pytest.raises(ValueError, match="invalid shape"):
        buffer.store_episode(obs=np.zeros((2, 7)))
    assert (buffer.timestep_index, len(buffer)) == (1, 1)
    buffer.advance_episode()
    episode(buffer, 3)
    assert buffer.num_episodes == 2


def test_batched_episodes_are_stored_side_by_side(make):
    buffer = make(steps=2)
    with buffer.batched_episode(3, task=[1, 2, 3]):
        buffer.store_batch(action=torch.tensor([1, 2, 3]))
        buffer.store_batch(action=[4, 5, 6])
        with pytest.raises(ValueError, match="max_timesteps"):
            buffer.store_batch(action=[7, 8, 9])
    assert buffer.get_all_data(fields=("action",))["action"].tolist() == [[1, 4], [2, 5], [3, 6]]
    with pytest.warns(errors.ExpDBWarning, match="room for 1"):
        buffer.store_batch(action=[1, 2])
    buffer.advance_episode()
    assert buffer.num_episodes == 4


def test_update_sets_fields_and_meta_fields_of_stored_episodes(make):
    buffer = make()
    for task in range(3):
        episode(buffer, task)
    buffer.update(reward=torch.arange(6).reshape(3, 2))
    buffer.update(1, reward=torch.full((3,), 9.0), task=8)
    buffer.update(slice(0, 2), done=True)
    buffer.update([2], goal=np.array([[3.0, 4.0]]))
    data = buffer.get_all_data()
    assert data["reward"].tolist() == [[0.0, 1.0, 1.0], [9.0, 9.0, 9.0], [4.0, 5.0, 1.0]]
    assert data["task"].tolist() == [0, 8, 2]
    assert data["done"].tolist() == [[True, False, True]] * 2 + [[False, False, True]]
    assert data["goal"].tolist() == [[0.5, 0.5], [0.5, 0.5], [3.0, 4.0]]
    buffer.store_datapoint(0, 1, "obs", np.array([7.0, 7.0]))
    assert buffer.data["obs"][0, 1].tolist() == [7.0, 7.0]
    with pytest.raises(ValueError, match="no episode in slot 3"):
        buffer.update(3, reward=np.zeros(3))


def test_a_reopened_buffer_keeps_its_episodes(make):
    buffer = make()
    episode(buffer, 1)
    buffer.store(action=5)  # a step of an episode that is never ended
    buffer.close()
    again = ReplayBuffer.from_folder(buffer.folder)
    assert (again.num_episodes, again.episode_lens.tolist()) == (1, [3, 1, 0, 0])
    episode(again, 2)
    assert again.episode_lens.tolist() == [3, 1, 3, 0]
    again.close()
    make().close()  # without overwrite, the buffer keeps its episodes
    with pytest.raises(ValueError, match="different config"):
        make(episodes=5)
    assert len(make(overwrite=True)) == 0


def test_a_read_only_buffer_refuses_writes(make, tmp_path):
    buffer = make()
    episode(buffer, 1)
    reader = ReplayBuffer.from_folder(buffer.folder, read_only=True)
    assert next(iter(reader.dataloader(1)))["task"].item() == 1
    for write in (reader.clear, lambda: reader.store(action=1), lambda: reader.update(task=1)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    reader.close()
    with pytest.raises(AssertionError):
        make("nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()


# -- loading ---------------------------------------------------------------------------------------


@pytest.fixture
def filled(make):
    buffer = make()
    for task, length in ((1, 4), (2, 1), (3, 3)):
        episode(buffer, task, length)
    return buffer


def test_trajectories_are_padded_and_masked(filled):
    names = ("obs", "task", "_mask", "_lens")
    (batch,) = filled.dataloader(3, return_mask=True, to_named_tuple=names)
    assert batch._fields == ("obs", "task", "mask", "lens")
    assert batch.obs[:, :, 1].tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 0]]
    assert batch.mask.sum(1).tolist() == batch.lens.tolist() == [4, 1, 3]
    item = filled.dataset(return_indices=True)[2]
    assert (item["obs"].shape, item["_index"].item()) == ((3, 2), 2)
    whole = filled.dataset(slice_by_episode_len=False)[2]
    assert whole["obs"].shape == (10, 2)


def test_timesteps_are_filtered_by_fields_and_meta_fields(filled):
    loader = filled.dataloader(
        10, timestep_level=True, filter_meta={"task": 1}, filter_fields={"done": False},
        return_indices=True,
    )  # fmt: skip
    (batch,) = loader
    assert batch["_indices"].tolist() == [[0, 0], [0, 1], [0, 2]]
    assert batch["action"].tolist() == [0, 1, 2]
    assert len(filled.dataset(filter_meta={"task": 99})) == 0
    with pytest.raises(ValueError, match="scalar"):
        filled.dataset(timestep_level=True, filter_fields={"obs": 0})
    with pytest.raises(ValueError, match="nothing"):
        filled.dataset(fields=("nothing",))


def test_the_loader_returns_n_step_transitions(filled):
    (batch,) = filled.dataloader(
        10, n_steps=2, current_fields=("action",), next_fields=("action",),
        sequence_fields=("reward",), fieldname_map={"seq_reward": "rewards"},
    )  # fmt: skip
    assert batch["action"].tolist() == [0, 1, 2, 0, 1]
    assert batch["next_action"].tolist() == [2, 3, 3, 2, 2]
    assert batch["n_step_lens"].tolist() == [2, 2, 1, 2, 1]
    assert batch["rewards"].tolist() == [[0, 0.5], [0.5, 1], [1, 0], [0, 0.5], [0.5, 0]]
    assert batch["task"].tolist() == [1, 1, 1, 3, 3]


def test_windows_do_not_cross_the_ends_of_episodes(filled):
    dataset = ReplayDatasetTimeWindow(filled, 2, return_indices=True)
    seen = set()
    for _ in range(60):
        item = dataset[0]
        start = item["_start"].item()
        seen.add(start)
        assert item["action"].tolist() == [start, start + 1]
        assert item["_reaches_episode_end"].item() == (start == 2)
    assert seen == {0, 1, 2}
    assert (dataset[1]["_lens"].item(), dataset[1]["action"].tolist()) == (1, [0, 0])


def test_a_dataset_contains_only_the_episodes_at_its_creation(make):
    buffer = make(circular=True)
    for task in range(4):
        episode(buffer, task)
    dataset = buffer.dataset(timestep_level=True)
    episode(buffer, 9)
    assert dataset[5]["task"].item() == 1
    with pytest.raises(ValueError, match="evicted"):
        dataset[0]


def test_workers_of_a_loader_open_the_file_themselves(filled):
    loader = filled.dataloader(
        3, timestep_level=True, num_workers=2, multiprocessing_context="spawn"
    )
    actions = torch.cat([batch["action"] for batch in loader])
    assert sorted(actions.tolist()) == [0, 0, 0, 1, 1, 2, 2, 3]


def test_several_folders_are_read_as_one(make):
    first, second = make("one"), make("two", steps=6)
    episode(first, 1, 4)
    episode(second, 2, 2)
    both = ConcatReplayBuffer([first.folder, second.folder])
    data = both.get_all_data()
    assert (data["task"].tolist(), data["obs"].shape) == ([1, 2], (2, 4, 2))
    assert [batch["_lens"].item() for batch in both.dataloader(1)] == [4, 2]
    with pytest.raises(NotImplementedError):
        both.clear()
    both.close()


def test_a_collector_gathers_and_stores_rollouts(make):
    buffer = make()
    collector = buffer.create_collector(2)
    for t in range(3):
        collector.append(obs=torch.full((2, 2), float(t)), action=torch.tensor([t, t + 10]))
    collector.extend(reward=torch.arange(6.0).reshape(3, 2))
    assert collector.env_major("action").tolist() == [[0, 1, 2], [10, 11, 12]]
    (batch,) = collector.dataloader(6, filter_fields={"action": 11})
    assert batch["reward"].tolist() == [3.0]
    with pytest.raises(KeyError, match="unknown field"):
        collector.append(nothing=torch.zeros(2))
    with pytest.raises(AssertionError, match="extend"):
        collector.append(action=torch.zeros(3))
    collector.store(task=torch.tensor([4, 5]))
    data = buffer.get_all_data()
    assert data["action"].tolist() == [[0, 1, 2], [10, 11, 12]]
    assert data["task"].tolist() == [4, 5]
    assert len(collector) == 0


# -- features of the database ----------------------------------------------------------------------


def test_each_step_is_written_when_it_is_stored(make, close):
    buffer = make(steps=30)
    with buffer.one_episode():
        for k in range(30):
            buffer.store(action=k)
        other = close(ReplayBuffer.from_folder(buffer.folder))  # also after a kill -9
        assert other.data["action"][0].tolist() == list(range(30))


def test_a_folder_of_the_original_package_is_imported_without_unpickling(tmp_path):
    original = pytest.importorskip(
        "memmap_replay_buffer",
        reason="memmap-replay-buffer is not installed: run `python3 dev.py test --torch`",
    )
    theirs = original.ReplayBuffer(tmp_path / "old", 4, 10, FIELDS, META, circular=True)
    for task in range(6):
        episode(theirs, task, 1 + task % 3)
    theirs.flush()
    (tmp_path / "old" / "metadata.pkl").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(ValueError, match="import_folder"):
        ReplayBuffer(tmp_path / "old", 4, 10, FIELDS, META)
    with pytest.raises(ValueError, match="import_folder"):
        ReplayBuffer.from_folder(tmp_path / "old")
    imported = import_folder(tmp_path / "old", tmp_path / "new", circular=True)
    assert tasks(imported) == [2, 3, 4, 5]  # by age
    order = [2, 3, 0, 1]
    for name in FIELDS:
        expected = theirs.get_all_data(fields=(name,))[name][order]
        assert torch.equal(imported.get_all_data(fields=(name,))[name], expected)
    with pytest.raises(ValueError, match="already contains a buffer"):
        import_folder(tmp_path / "old", tmp_path / "new", circular=True)
    with pytest.raises(ValueError, match="not a folder of memmap"):
        import_folder(tmp_path, tmp_path / "new")
    imported.close()


@pytest.mark.parametrize("size", [None, 1])
def test_an_episode_without_steps_is_not_stored(make, size):
    buffer = make(fields={"a": "int"}, meta={"task": "int"})
    task = 9 if size is None else np.array([9])
    with buffer.batched_episode(size, task=task) if size else buffer.one_episode(task=task):
        pass
    with buffer.one_episode(task=3):
        buffer.store(a=1)
    buffer.store(a=2)
    buffer.advance_episode()
    assert [stored_episode.meta["task"] for stored_episode in buffer.held()] == [3, 0]
