"""Tests of DI-engine's buffers on a database, based on DI-engine's documentation."""

import collections

import numpy as np
import pytest

import expdb
from expdb import errors
from expdb.integrations.di_engine import (
    AdvancedReplayBuffer,
    DequeBuffer,
    DequeBufferWrapper,
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    PriorityExperienceReplay,
    SequenceReplayBuffer,
    clone_object,
    create_buffer,
    get_buffer_cls,
    group_sample,
    padding,
    sample_range_view,
    staleness_check,
    use_time_check,
)

torch = pytest.importorskip(
    "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
)


@pytest.fixture
def make(tmp_path, close):
    def make(kind=NaiveReplayBuffer, size=10, name="buffer", **options):
        cfg = kind.default_config() if kind is not ElasticReplayBuffer else {}
        cfg = {**cfg, "replay_buffer_size": size, **options}
        return close(kind(cfg, None, str(tmp_path / "experiment"), name))

    return make


def item(k, **more):
    return {"obs": torch.full((2,), float(k)), "k": k, **more}


def numbers(items):
    return [transition["k"] for transition in items]


# -- the older generation --------------------------------------------------------------------------


def test_the_newest_items_are_kept_and_drawn_without_replacement(make):
    buffer = make()
    buffer.push([item(k) for k in range(12)], 0)
    buffer.push(item(12), 0)
    assert (buffer.count(), buffer.push_count, buffer.replay_buffer_size) == (10, 13, 10)
    drawn = buffer.sample(10, 0)
    assert sorted(numbers(drawn)) == list(range(3, 13))
    assert all(torch.equal(step["obs"], item(step["k"])["obs"]) for step in drawn)
    assert sorted(numbers(buffer.sample(3, 0, sample_range=slice(-3, None)))) == [10, 11, 12]
    assert sorted(numbers(buffer.sample(2, 0, sample_range=slice(0, 2)))) == [3, 4]


def test_sample_returns_none_for_too_few_items_and_a_list_for_size_zero(make):
    buffer = make()
    assert buffer.sample(1, 0) is None
    buffer.push([item(0), item(1)], 0)
    assert buffer.sample(3, 0) is None
    assert len(buffer.sample(3, 0, replace=True)) == 3
    assert buffer.sample(0, 0) == []


def test_states_and_saved_files_can_be_loaded(make, tmp_path):
    buffer = make()
    buffer.push([item(k) for k in range(3)], 0)
    state = buffer.state_dict()
    buffer.save_data(tmp_path / "saved" / "items.db")
    other = make(name="other")
    other.push([item(9)], 0)
    other.load_state_dict({"data": [item(7)]})
    assert other.count() == 2
    other.load_state_dict(state)
    assert sorted(numbers(other.sample(3, 0))) == [0, 1, 2]
    other.load_data(tmp_path / "saved" / "items.db")
    assert other.count() == 6
    (tmp_path / "foreign.hkl").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 600)
    with pytest.raises(errors.NotAnExperienceDatabase):
        other.load_data(tmp_path / "foreign.hkl")


def test_save_data_refuses_to_overwrite_another_database(make, deque, tmp_path):
    runs = tmp_path / "runs.db"
    with expdb.open(runs) as db:
        db.buffer("items").store(reward=1.0)
    buffer, newer = make(location=runs), deque(1)
    buffer.push([item(0)], 0)
    for source in (buffer, newer):  # the user's database, which also contains the first buffer
        with pytest.raises(errors.TargetExists, match="save the items to another file"):
            source.save_data(runs)
    with expdb.open(runs) as db:
        assert len(db.buffer("items")) == 1


def test_an_interrupted_save_keeps_the_previous_file(deque, tmp_path, monkeypatch):
    buffer, target = deque(3), tmp_path / "saved.db"
    buffer.save_data(target)
    buffer.push(item(3))
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            buffer.save_data(target)
    assert [file.name for file in tmp_path.iterdir()] == [target.name]
    other = deque()
    other.load_data(target)
    assert data(other) == [0, 1, 2]
    buffer.save_data(target)
    other.load_data(target)
    assert data(other) == [0, 1, 2, 3]


def test_an_interrupted_load_keeps_the_stored_items(deque, tmp_path, monkeypatch):
    deque(3).save_data(tmp_path / "saved.db")
    other = deque()
    other.push(item(7))
    push, pushed = other.items.push, []

    def interrupted(*args, **options):
        pushed.append(push(*args, **options))
        if len(pushed) == 2:
            interrupt()

    monkeypatch.setattr(other.items, "push", interrupted)
    with pytest.raises(KeyboardInterrupt):
        other.load_data(tmp_path / "saved.db")
    assert data(other) == [7, 0, 1]
    monkeypatch.undo()
    other.load_data(tmp_path / "saved.db")
    assert data(other) == [0, 1, 2]


def test_save_and_load_accept_only_file_names(deque, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    buffer = deque(2)
    for name in ("postgresql://nobody@/db", ":memory:", "sqlite:///items.db"):
        for call in (buffer.save_data, buffer.load_data):
            with pytest.raises(expdb.InvalidValue, match="not a valid file name"):
                call(name)
    assert list(tmp_path.iterdir()) == []
    buffer.save_data("~/items.db")
    buffer.load_data("~/items.db")
    buffer.save_data(tmp_path / ("x" * 250 + ".db"))
    assert (data(buffer), (tmp_path / "home" / "items.db").exists()) == ([0, 1], True)


def test_priority_sampling_refuses_groups_and_accepts_indices(deque):
    buffer = deque(4)
    buffer.use(PriorityExperienceReplay(buffer))
    with pytest.raises(ValueError, match="groupby cannot be combined with priorities"):
        buffer.sample(2, groupby="group")
    index = buffer[1].index
    assert data(buffer.sample(indices=[index])) == [1]
    with pytest.raises(ValueError, match="meta has no priority"):
        buffer.update(index, meta={"group": 1})


def test_saved_priorities_are_loaded_and_a_small_buffer_loads_the_newest(make, deque, tmp_path):
    newer = deque()
    for k in range(3):
        newer.push(item(k), priority=float(k))
    newer.save_data(tmp_path / "newer.db")
    small = deque(size=2)
    small.load_data(tmp_path / "newer.db")
    assert [entry.meta["priority"] for entry in small] == [1.0, 2.0]
    older = make(AdvancedReplayBuffer)
    older.push([item(k, priority=k + 1.0) for k in range(3)], 0)
    older.save_data(tmp_path / "older.db")
    other = make(AdvancedReplayBuffer, name="other")
    other.load_data(tmp_path / "older.db")
    assert [transition["priority"] for transition in other.state_dict()["data"]] == [1.0, 2.0, 3.0]


def interrupt(*_):
    raise KeyboardInterrupt


def test_files_of_evicted_items_are_removed(make, tmp_path):
    buffer = make(size=2, enable_track_used_data=True)
    buffer.start()
    paths = [tmp_path / f"{k}.data" for k in range(4)]
    for k, path in enumerate(paths):
        path.write_text("x")
        buffer.push(item(k, data_id=str(path)), 0)
        buffer.items.flush()
    buffer._remover.close()
    assert [path.exists() for path in paths] == [False, False, True, True]


def test_an_elastic_buffer_draws_from_its_newest_items(make):
    buffer = make(ElasticReplayBuffer, set_buffer_size=lambda envstep: 2 + envstep)
    buffer.push([item(k) for k in range(9)], 0)
    assert sorted(numbers(buffer.sample(2, 0))) == [7, 8]
    assert buffer.sample(3, 0) is None
    buffer.update(1)
    assert sorted(numbers(buffer.sample(3, 0))) == [6, 7, 8]
    with pytest.raises(ValueError, match="set_buffer_size"):
        ElasticReplayBuffer({})


def test_a_sequence_buffer_draws_every_window_of_consecutive_items(make):
    buffer = make(SequenceReplayBuffer, size=6)
    buffer.push([item(k) for k in range(9)], 0)
    starts = set()
    for _ in range(40):
        for window in buffer.sample(2, 3, 0):
            starts.add(window[0]["k"])
            assert numbers(window) == list(range(window[0]["k"], window[0]["k"] + 3))
    assert starts == {3, 4, 5, 6}
    assert buffer.sample(1, 7, 0) is None


def test_an_episode_buffer_stores_whole_episodes(make):
    buffer = make(EpisodeReplayBuffer, size=3)
    buffer.push([item(0), item(1)], 0)  # one episode
    buffer.push([[item(2)], [item(3), item(4), item(5)]], 0)  # two episodes
    assert (buffer.count(), buffer.episode_len) == (3, [2, 1, 3])
    assert sorted(map(numbers, buffer.sample(3, 0))) == [[0, 1], [2], [3, 4, 5]]


# -- priorities, use, staleness --------------------------------------------------------------------


def test_items_are_drawn_by_priority_with_their_metadata(make):
    buffer = make(AdvancedReplayBuffer, size=100, alpha=1.0)
    pushed = [item(k, priority=float(k == 3)) for k in range(4)]
    buffer.push(pushed, 0)
    assert set(pushed[0]) == {"obs", "k", "priority"}  # push() does not modify its argument
    drawn = buffer.sample(4, 7)
    assert numbers(drawn) == [3] * 4
    assert [transition["use"] for transition in drawn] == [1, 2, 3, 4]
    assert drawn[0]["replay_unique_id"] == "buffer_3"
    assert (drawn[0]["replay_buffer_idx"], drawn[0]["staleness"]) == (3, -1)
    assert drawn[0]["priority"] == 1.0


def test_importance_weights_are_normalised_over_the_whole_buffer(make):
    buffer = make(AdvancedReplayBuffer, alpha=0.5, beta=0.3, anneal_step=2)
    priorities = np.array([0.5, 1.0, 4.0])
    buffer.push([item(k, priority=priority) for k, priority in enumerate(priorities)], 0)
    share = priorities**0.5 / (priorities**0.5).sum()
    for beta in (0.3, 0.65, 1.0, 1.0):
        expected = (3 * share) ** -beta / ((3 * share) ** -beta).max()
        for transition in buffer.sample(3, 0):
            assert transition["IS"] == pytest.approx(expected[transition["k"]])
    assert buffer.beta == 1.0


def test_a_new_item_has_the_greatest_priority_so_far(make):
    buffer = make(AdvancedReplayBuffer)
    buffer.push(item(0), 0)
    (first,) = buffer.sample(1, 0)
    for priority, greatest in ((0.25, 1.0), (5.0, 5.0)):
        buffer.update({key: [first[key]] for key in IDS} | {"priority": [priority]})
        buffer.push(item(1), 0)
        priorities = [transition["priority"] for transition in buffer.state_dict()["data"]]
        assert priorities[0] == pytest.approx(priority + 1e-5)
        assert priorities[-1] == greatest


IDS = ("replay_unique_id", "replay_buffer_idx")


def test_a_late_update_does_not_change_the_item_that_replaced_its_item(make):
    buffer = make(AdvancedReplayBuffer, size=2)
    buffer.push([item(0), item(1)], 0)
    drawn = buffer.sample(2, 0)
    buffer.push([item(2), item(3)], 0)
    ids = {key: [transition[key] for transition in drawn] for key in IDS}
    buffer.update({**ids, "priority": [9.0, 9.0]})
    assert [transition["priority"] for transition in buffer.state_dict()["data"]] == [1.0, 1.0]
    buffer.update({"replay_unique_id": ["other_0"], "replay_buffer_idx": [0]})
    with pytest.raises(AssertionError):
        buffer.update({**ids, "priority": [-1, 1]})


def test_no_item_is_used_more_often_than_max_use(make):
    buffer = make(AdvancedReplayBuffer, max_use=2)
    buffer.push([item(k, priority=100.0 if k == 0 else 1.0) for k in range(6)], 0)
    used = collections.Counter()
    while (drawn := buffer.sample(2, 0)) is not None:
        used.update(numbers(drawn))
    assert sum(used.values()) >= 10
    assert max(used.values()) == 2


def test_max_use_counts_uses_before_a_restart(make):
    buffer = make(AdvancedReplayBuffer, max_use=3)
    buffer.push([item(0)], 0)
    for _ in range(2):
        assert len(buffer.sample(1, 0)) == 1
    buffer.close()
    again = make(AdvancedReplayBuffer, max_use=3)
    assert len(again.sample(1, 0)) == 1
    assert again.sample(1, 0) is None


def test_stale_items_are_removed_before_a_sample(make):
    buffer = make(AdvancedReplayBuffer, max_staleness=3)
    buffer.push([item(k, collect_iter=iteration) for k, iteration in enumerate((5, 0, 2))], 0)
    buffer.push([item(3), item(4, collect_iter=[1, 9])], 0)
    assert sorted(numbers(buffer.sample(2, 2))) != []
    assert buffer.count() == 5
    buffer.sample(1, 4)  # 0 and 1 are 3 or more behind
    assert sorted(numbers(buffer.state_dict()["data"])) == [0, 2, 3]


def test_the_config_limits_the_rates_of_push_and_sample(make):
    limits = {"push_sample_rate_limit": {"max": 2.0, "min": 0.5}, "sample_min_limit_ratio": 2}
    buffer = make(AdvancedReplayBuffer, thruput_controller=limits)
    buffer.push([item(k) for k in range(8)], 0)
    assert buffer.sample(5, 0) is None  # 8 are fewer than 2 x 5
    assert len(buffer.sample(4, 0)) == 4
    assert buffer.sample(4, 0) is not None
    assert buffer.sample(4, 0) is not None
    assert buffer.sample(4, 0) is None  # 8 pushed / (12 + 4) sampled, and decaying
    assert buffer.count() == 8
    buffer.push([item(9)] * 20, 0)
    assert buffer.count() == 8  # (8 + 20) / 12 is more than 2


def test_a_prioritized_buffer_rejects_items_that_are_not_dicts(make, caplog):
    buffer = make(AdvancedReplayBuffer)
    with caplog.at_level("INFO", logger="expdb.di_engine"):
        buffer.push([item(0), 5], 0)
    assert buffer.count() == 1
    assert "rejected a" in caplog.text


def test_create_buffer_selects_the_class_by_its_type(make, tmp_path):
    cfg = AdvancedReplayBuffer.default_config()
    cfg.location = str(tmp_path / "x.db")
    assert cfg.cfg_type == "AdvancedReplayBufferDict"
    assert get_buffer_cls(cfg) is AdvancedReplayBuffer
    buffer = create_buffer(cfg, instance_name="one")
    assert type(buffer) is AdvancedReplayBuffer
    buffer.close()
    with pytest.raises(KeyError, match="advanced"):
        get_buffer_cls({"type": "advancd"})
    with pytest.raises(ValueError, match="replay_bufer_size is not an option"):
        NaiveReplayBuffer({"replay_bufer_size": 3})


# -- the newer generation --------------------------------------------------------------------------


@pytest.fixture
def deque(close):
    def deque(count=0, size=10, **options):
        buffer = close(DequeBuffer(size, **options))
        for k in range(count):
            buffer.push(item(k), meta={"group": k % 3})
        return buffer

    return deque


def data(entries):
    return [entry.data["k"] for entry in entries]


def test_items_have_an_index_and_a_meta_dict(deque):
    buffer = deque()
    pushed = buffer.push(item(0), meta={"label": "a"})
    entry = buffer.get_by_index(pushed.index)
    assert (entry.index, entry.data["k"], entry.meta["label"]) == (pushed.index, 0, "a")
    buffer.push(item(1))
    assert data([buffer.get(0), buffer[1], buffer[-1]]) == [0, 1, 1]
    assert (len(buffer), data(buffer)) == (2, [0, 1])
    with pytest.raises(IndexError):
        buffer.get(2)


def test_items_are_sampled_by_size_range_or_indices(deque):
    buffer = deque(12)
    assert sorted(data(buffer.sample(10))) == list(range(2, 12))
    assert sorted(data(buffer.sample(2, sample_range=slice(-2, None)))) == [10, 11]
    indices = [entry.index for entry in buffer.sample(4, replace=True)]
    assert [entry.index for entry in buffer.sample(indices=indices)] == indices
    with pytest.raises(ValueError, match="less than 11"):
        buffer.sample(11)
    assert buffer.sample(11, ignore_insufficient=True) == []
    with pytest.raises(KeyError):
        buffer.sample(indices=["gone"])
    for wrong in ({}, {"size": 2, "indices": ["a"]}, {"size": 1, "unroll_len": 2},
                  {"indices": ["a"], "groupby": "g"}):  # fmt: skip
        with pytest.raises(AssertionError):
            buffer.sample(**wrong)


def test_groups_and_windows_of_groups_are_sampled(deque):
    buffer = deque(9)
    groups = sorted(map(data, buffer.sample(3, groupby="group")))
    assert groups == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    starts = set()
    for _ in range(30):
        (window,) = map(data, buffer.sample(1, groupby="group", unroll_len=2))
        assert window[1] == window[0] + 3
        starts.add(window[0] // 3)
    assert starts == {0, 1}
    with pytest.raises(ValueError, match="less than 4"):
        buffer.sample(4, groupby="group")
    assert len(buffer.sample(4, groupby="group", replace=True)) == 4
    buffer.delete([entry.index for entry in buffer.sample(1, groupby="group")[0]])
    assert len(buffer.sample(2, groupby="group")) == 2


def test_sliced_buffers_sample_aligned_windows_of_groups(deque):
    buffer = deque(9, sliced=True)
    seen = {tuple(data(buffer.sample(1, groupby="group", unroll_len=2)[0])) for _ in range(60)}
    assert seen == {(k, k + 3) for k in range(3)} | {(k + 3, k + 6) for k in range(3)}


def test_update_merges_the_meta_dict_and_replaces_the_data(deque):
    buffer = deque(3)
    first = buffer[0]
    assert buffer.update(first.index, meta={"label": "x"})
    assert {key: buffer[0].meta[key] for key in ("group", "label")} == {"group": 0, "label": "x"}
    assert buffer.update(first.index, data=item(9))
    assert sorted(data(buffer)) == [1, 2, 9]
    assert buffer.get_by_index(first.index).data["k"] == 9
    assert not buffer.update("gone", meta={"a": 1})


def test_delete_keeps_the_order_of_other_items(deque):
    buffer = deque(5)
    buffer.delete(buffer[1].index)
    buffer.delete(["gone"])
    assert data(buffer) == [0, 2, 3, 4]
    assert buffer.update(buffer[2].index, meta={"x": 1})
    buffer.clear()
    assert buffer.count() == 0


def test_middleware_runs_in_order_of_use_and_not_in_views(deque):
    buffer, calls = deque(3), []

    def tell(name):
        def middleware(action, chain, *args, **kwargs):
            calls.append((name, action))
            return chain(*args, **kwargs)

        return middleware

    assert buffer.use(tell("a")).use(tell("b")).use(clone_object()) is buffer
    buffer.sample(1)
    assert calls == [("a", "sample"), ("b", "sample")]
    view = buffer.view()
    view.push(item(9))
    assert (len(calls), buffer.count()) == (2, 4)


def test_use_time_check_counts_and_limits_uses(deque):
    buffer = deque(4)
    buffer.use(use_time_check(buffer, max_use=2))
    used = collections.Counter()
    while entries := buffer.sample(2, ignore_insufficient=True):
        for entry in entries:
            used[entry.data["k"]] += 1
            assert entry.meta["use_count"] == used[entry.data["k"]]
    assert max(used.values()) == 2
    assert sum(used.values()) >= 6  # one item may have two uses left, too few to sample two


def test_stale_items_are_deleted(deque):
    buffer = deque()
    buffer.use(staleness_check(buffer, max_staleness=2))
    for k in range(5):
        buffer.push(item(k), meta={"train_iter_data_collected": k})
    entries = buffer.sample(2, train_iter_sample_data=5)
    assert {entry.meta["staleness"] for entry in entries} <= {1, 2}
    assert data(buffer) == [3, 4]
    with pytest.raises(AssertionError, match="train_iter_data_collected"):
        buffer.push(item(9))


def test_sample_range_view_sets_the_range_and_keeps_other_arguments(deque):
    buffer = deque(6)
    buffer.use(sample_range_view(buffer, start=-2))
    assert sorted(data(buffer.sample(size=2))) == [4, 5]
    assert set(data(buffer.sample(5, replace=True))) <= {4, 5}


def test_items_are_drawn_by_updated_priorities(deque):
    buffer = deque()
    per = PriorityExperienceReplay(buffer, priority_power_factor=1.0)
    buffer.use(per)
    for k in range(4):
        buffer.push(item(k), meta={"priority": float(k == 2), "group": k})
    entries = buffer.sample(3)
    assert data(entries) == [2, 2, 2]
    assert entries[0].data["priority_IS"].item() == pytest.approx(entries[0].meta["priority_IS"])
    pushed = {**item(5), "priority": 0.0}
    buffer.push(pushed)
    assert "priority" in pushed
    for entry in buffer:
        entry.meta["priority"] = float(entry.data["k"] == 1)
        assert buffer.update(entry.index, data=None, meta=entry.meta)
    assert data(buffer.sample(50))[5:] == [1] * 45
    buffer.delete(entries[0].index)
    assert per.state_dict() == {
        "max_priority": 1.0, "IS_weight_power_factor": pytest.approx(0.4 + 2 * 0.6e-5),
    }  # fmt: skip


def test_items_keep_their_order_when_they_are_updated(deque):
    buffer = deque(size=6)
    pushed = [buffer.push(item(k), {"group": k % 2}) for k in range(6)]
    buffer.update(pushed[1].index, item(10))
    buffer.update(pushed[3].index, item(30), {"group": 0})
    buffer.update(pushed[1].index, item(11))
    assert data(buffer.storage) == [0, 11, 2, 30, 4, 5]
    assert buffer[1].data["k"] == 11
    assert set(data(buffer.sample(50, replace=True, sample_range=slice(1, 2)))) == {11}
    assert sorted(map(data, buffer.sample(2, groupby="group"))) == [[0, 2, 30, 4], [11, 5]]
    assert [buffer.indices.get(entry.index) for entry in pushed] == list(range(6))
    before = buffer.items.pushed
    buffer.update(pushed[2].index, buffer[2].data, {"group": 7})  # the same data: nothing is moved
    assert buffer.items.pushed == before
    assert "_order" not in buffer[1].meta
    buffer.push(item(12))  # evicts the oldest item
    assert data(buffer) == [11, 2, 30, 4, 5, 12]
    assert buffer.items.database.check() == []


def test_public_attributes_equal_those_of_the_original(deque):
    buffer = deque(size=3)
    buffer.meta_index = {"label": []}
    pushed = [buffer.push(k, {"label": k}) for k in range(5)]
    assert buffer.meta_index == {"label": [2, 3, 4]}
    assert (len(buffer.indices), buffer.indices.has(pushed[0].index)) == (3, False)
    assert buffer.indices.get(pushed[4].index) == 2
    per = PriorityExperienceReplay(buffer)
    assert per.buffer_idx == {k: entry.index for k, entry in enumerate(pushed[2:])}


def test_an_interrupt_during_an_update_leaves_a_consistent_buffer(deque, tmp_path, monkeypatch):
    monkeypatch.setattr("expdb.integrations.di_engine.items.UPDATE_SECONDS", 0.1)
    path = tmp_path / "killed.db"
    buffer = deque(8, size=8, location=path)
    index = buffer[3].index
    with monkeypatch.context() as patch:
        patch.setattr(buffer.items, "delete", interrupt)  # the old item and the capacity stay
        patch.setattr(buffer.items.buffer.__class__, "_set_capacity", set_once())
        with pytest.raises(KeyboardInterrupt):
            buffer.update(index, item(30))
    again = deque(size=8, location=path)
    assert again.items.buffer.capacity == 8
    assert data(again) == [0, 1, 2, 30, 4, 5, 6, 7]
    assert again.items.database.check() == []


def set_once():
    """Return a `_set_capacity` that works only once, as in a process that is then killed."""
    original, calls = expdb.ReplayBuffer._set_capacity, []

    def set_capacity(buffer, capacity):
        calls.append(capacity)
        if len(calls) == 1:
            original(buffer, capacity)

    return set_capacity


def test_groups_include_updates_by_other_handles(deque, tmp_path):
    first, other = (deque(size=8, location=tmp_path / "shared.db") for _ in range(2))
    pushed = [first.push(item(k), {"g": "a" if k < 2 else "b"}) for k in range(4)]
    first.items.flush()
    other.sample(2, groupby="g")
    first.update(pushed[0].index, meta={"g": "b"})
    groups = other.sample(2, groupby="g")
    assert sorted(data(group) for group in groups) == [[0, 2, 3], [1]]


def test_priority_updates_of_evicted_items_are_ignored(deque):
    buffer = deque(size=2)
    per = PriorityExperienceReplay(buffer)
    buffer.use(per)
    buffer.push(item(0))
    (old,) = buffer.sample(1)
    for k in range(2):
        buffer.push(item(k))
    assert not buffer.update(old.index, meta={**old.meta, "priority": 50.0})
    assert per.max_priority == 1.0


def test_errors_for_another_size_or_max_use_have_a_remedy(make, deque, tmp_path):
    make(size=10)
    with pytest.raises(errors.CapacityMismatch, match=r"has a capacity of 10 items.*exp_name"):
        make(size=5)
    make(AdvancedReplayBuffer, name="bounded", max_use=2)
    with pytest.raises(errors.ConsumerMismatch, match=r"max_use=3 differs.*to the stored"):
        make(AdvancedReplayBuffer, name="bounded", max_use=3)


def test_use_limits_and_priorities_can_be_combined(deque):
    buffer = deque()
    buffer.use(PriorityExperienceReplay(buffer)).use(use_time_check(buffer, max_use=2))
    for k in range(4):
        buffer.push(item(k))
    used = collections.Counter(data(buffer.sample(4)) + data(buffer.sample(4)))
    assert max(used.values()) == 2


def test_groups_are_truncated_and_padded(deque):
    buffer = deque(7)
    buffer.use(padding("none")).use(group_sample(2))
    for group in buffer.sample(3, groupby="group"):
        assert len(group) == 2
    unequal = deque(7)
    unequal.use(padding())
    assert [len(group) for group in unequal.sample(3, groupby="group")] == [3, 3, 3]
    empty = deque(7)
    empty.use(padding("none"))
    entries = [entry for group in empty.sample(3, groupby="group") for entry in group]
    assert sum(entry.data is None for entry in entries) == 2


def test_a_reopened_or_loaded_deque_buffer_keeps_its_items(deque, tmp_path):
    first = deque(3, location=tmp_path / "d.db")
    first.save_data(str(tmp_path / "saved.db"))
    index = first[0].index
    first.close()
    again = deque(location=tmp_path / "d.db")
    assert again.get_by_index(index).meta["group"] == 0
    other = deque(2)
    other.load_data(str(tmp_path / "saved.db"))
    assert (data(other), other[0].index) == ([0, 1, 2], index)


def test_the_wrapper_applies_every_update(tmp_path):
    cfg = DequeBufferWrapper.default_config()
    cfg.priority, cfg.priority_IS_weight, cfg.priority_power_factor = True, True, 1.0
    cfg.location = str(tmp_path / "w.db")
    wrapper = DequeBufferWrapper(cfg)
    assert wrapper.sample(1) is None
    wrapper.push([item(k) for k in range(4)], 0)
    for _ in range(3):
        drawn = wrapper.sample(4)
        assert all(0 < transition["IS"] <= 1 for transition in drawn)
        wrapper.update({"priority": [float(transition["k"] == 1) for transition in drawn]})
    assert numbers(wrapper.sample(8)).count(1) >= 7
    wrapper.save_data(str(tmp_path / "s.db"))
    wrapper.close()
