"""Tests of PyTorch datasets, of loaders with workers, and of copies of arrays."""

import itertools
import operator
import pickle

import numpy as np
import pytest

import expdb
from expdb import Episode, NStep, Prioritized, QueryBuilder, Uniform, errors

torch = pytest.importorskip(
    "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
)

from torch.utils.data import DataLoader  # noqa: E402

from expdb.integrations.torch import Episodes, Loader, Minibatches, Samples, pad, pinned  # noqa: E402

FORK = {"multiprocessing_context": "fork"}


@pytest.fixture
def buffer(db):
    filled = db.buffer("b")
    for k in range(12):
        with filled.episode(f"t{k % 3}", task_name=f"name {k % 2}") as episode:
            for t in range(k % 5 + 2):
                values = {"obs": np.array([k, t], np.float32), "action": t, "text": f"{k}/{t}"}
                episode.append(**values, reward=1.0, terminated=t == k % 5 + 1)
    return filled


def seen(batches):
    return [tuple(batch["position"].reshape(-1).tolist()) for batch in batches]


def test_samples_are_tensors_and_depend_on_the_torch_seed(buffer):
    where = QueryBuilder().eq("task_name", "name 1")
    options = {"sampler": Prioritized(), "unit": NStep(2), "batches": 5}
    samples = Samples(buffer, 8, where, **options)
    torch.manual_seed(1)
    first, second = list(DataLoader(samples, batch_size=None)), list(samples)
    assert len(first) == len(samples) == 5
    assert first[0]["obs"].shape == (8, 2)
    assert first[0]["reward"].dtype == torch.float32
    assert first[0]["next_obs"].dtype == torch.float32
    assert (first[0]["obs"][:, 0] % 2 == 1).all()
    assert seen(first) != seen(second)
    torch.manual_seed(1)
    again = Samples(buffer, 8, where, **options)
    assert seen(DataLoader(again, batch_size=None)) == seen(first)
    with pytest.raises(TypeError, match="no end"):
        len(Samples(buffer, 8))
    endless = iter(DataLoader(Samples(buffer, 8), batch_size=None))
    assert len([next(endless) for _ in range(20)]) == 20
    with pytest.raises(expdb.InvalidValue, match=r"batches must be .*, got 0"):
        Samples(buffer, 8, batches=0)


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [(DataLoader, Prioritized()), pytest.param(DataLoader, Uniform(), marks=pytest.mark.slow),
     pytest.param(Loader, Uniform(), marks=pytest.mark.slow),
     pytest.param(Loader, Prioritized(), marks=pytest.mark.slow)],
    ids=str,
)  # fmt: skip
def test_workers_have_their_own_random_numbers_and_episodes(buffer, kind, sampler):
    options = {"batch_size": None} if kind is DataLoader else {}

    def drawn(persistent=False, **sample_options):
        torch.manual_seed(3)
        samples = Samples(buffer, 16, sampler=sampler, batches=21, **sample_options)
        loader = kind(samples, **FORK, num_workers=2, persistent_workers=persistent, **options)
        return [list(loader) for _ in range(2)]

    first, second = drawn()
    assert len(first) == len(second) == 21
    assert len(set(seen(first + second))) == 42, "neither workers nor passes repeat each other"
    assert seen(drawn()[0]) == seen(first)
    persistent = drawn(persistent=True)
    assert len(set(seen(persistent[0] + persistent[1]))) == 42
    for batch in first:
        assert batch["obs"].shape == (16, 2)
        assert batch["text"] == [f"{int(k)}/{int(t)}" for k, t in batch["obs"]]
    parts = [frozenset((batch["episode"] % 2).tolist()) for batch in drawn(disjoint=True)[0]]
    assert set(parts) == {frozenset({0}), frozenset({1})}
    ranked = torch.cat([batch["episode"] for batch in drawn(disjoint=True, shard=(1, 2))[0]])
    assert set((ranked % 4).tolist()) == {1, 3}, "two workers of the second of two learners"


@pytest.mark.slow
def test_spawned_workers_open_the_database_and_see_new_steps(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b")
    samples = Samples(buffer, 4, unit=Episode(), wait=60)
    loader = Loader(samples, num_workers=1, multiprocessing_context="spawn", prefetch_factor=1)
    batches = iter(loader)

    def store(length):
        with buffer.episode("t") as episode:
            for t in range(length):
                episode.append(obs=float(t), reward=1.0, terminated=t == length - 1)

    store(3)
    assert next(batches)["mask"].shape == (4, 3)
    store(7)
    shapes = {tuple(next(batches)["mask"].shape) for _ in range(200)}
    assert shapes <= {(4, 3), (4, 7)}
    assert (4, 7) in shapes
    del batches, loader


def test_a_loader_returns_the_same_batches_as_a_data_loader(buffer):
    options = {"sampler": Prioritized(), "unit": Episode(), "batches": 30}
    torch.manual_seed(5)
    plain = list(DataLoader(Samples(buffer, 3, **options), batch_size=None, num_workers=1, **FORK))
    torch.manual_seed(5)
    packed = list(Loader(Samples(buffer, 3, **options), num_workers=1, **FORK))
    assert len(plain) == len(packed) == 30
    for first, second in zip(plain, packed, strict=True):
        assert first.keys() == second.keys()
        for name, value in first.items():
            is_equal = operator.eq if isinstance(value, list) else torch.equal
            assert is_equal(value, second[name]), name
    assert len(Loader(Samples(buffer, 3, **options))) == 30
    assert seen(Loader(Samples(buffer, 3, **options)))


def test_large_batches_are_passed_in_shared_memory(db):
    buffer = db.buffer("b")
    for k in range(40):
        buffer.store(obs=np.full((100, 100), k, np.uint8), action=k)
    for batch in Loader(Samples(buffer, 300, batches=3), num_workers=1, **FORK):
        assert batch["obs"].is_shared()
        assert (batch["obs"][:, 99, 99] == batch["action"]).all()


def test_a_loader_shuffles_and_pads_a_dataset_of_episodes(buffer):
    for t in range(3):
        buffer.store(task_id="open", obs=np.array([99, t], np.float32), action=t, text="")
    episodes = Episodes(buffer)
    assert len(episodes) == 12
    for k in range(12):
        assert episodes[k]["obs"].tolist() == [[k, t] for t in range(k % 5 + 2)]
        assert episodes[k]["text"] == [f"{k}/{t}" for t in range(k % 5 + 2)]
    few = Episodes(buffer, {"task_id": "t1"}, fields=["obs", "reward"])
    assert [int(few[k]["obs"][0, 0]) for k in range(len(few))] == [1, 4, 7, 10]
    assert list(few[0]) == ["obs", "reward"]
    options = {"batch_size": 5, "shuffle": True, "num_workers": 2, **FORK}
    batches = list(DataLoader(Episodes(buffer, fields=["obs"]), collate_fn=pad, **options))
    assert [len(batch["mask"]) for batch in batches] == [5, 5, 2]
    assert sorted(int(k) for batch in batches for k in batch["obs"][:, 0, 0]) == list(range(12))
    for batch in batches:
        lengths = batch["obs"][:, 0, 0] % 5 + 2
        assert (batch["mask"].sum(1) == lengths).all()
        assert batch["obs"].shape[1] == lengths.max()
    buffer.delete({"task_id": "t1"})
    with pytest.raises(errors.Evicted):
        few[0]
    assert len(Episodes(buffer)) == 8
    assert len(Episodes(buffer, {"task_id": "t1"})) == 0


def test_arrays_become_tensors_without_a_copy(buffer):
    for unit in (NStep(1), expdb.Stack(2), expdb.Sequence(3)):
        made = []

        def empty(shape, dtype, made=made):
            made.append(pinned(shape, dtype))
            return made[-1]

        plain = buffer.sample(6, unit=unit, seed=2)
        batch = buffer.sample(6, unit=unit, seed=2, empty=empty)
        tensors = batch.to_torch(non_blocking=True)
        addresses = {array.__array_interface__["data"][0] for array in made}
        for name in ("obs", "action", "terminated"):
            assert tensors[name].data_ptr() in addresses
            assert tensors[name].data_ptr() == batch[name].__array_interface__["data"][0]
        for name, array in plain.items():
            assert np.array_equal(array, batch[name]), name
    assert pinned((2,), np.dtype(object)).dtype == object


def test_errors_for_loaders_have_a_remedy(buffer, db):
    for call in (
        lambda: Samples(db, 4), lambda: Episodes(None), lambda: Loader(buffer),
        lambda: Loader(Samples(buffer, 4), collate_fn=pad), lambda: pad([]),
    ):  # fmt: skip
        with pytest.raises(expdb.InvalidValue, match=r"must be|Samples are|must not be empty"):
            call()
    with pytest.raises(expdb.InvalidValue, match="must be a function"):
        buffer.sample(2, empty=5)
    assert set(Episodes(buffer, fields="step")[0]) == {"step"}
    with pytest.raises(expdb.InvalidValue, match=r"does not fit torch\.int64"):
        expdb.Batch({"x": np.array([2**63 + 5], np.uint64)}).to_torch()


@pytest.mark.parametrize(
    ("options", "workers", "disjoint", "consumed"),
    [({}, 0, False, 5), ({"sampler": Prioritized()}, 0, False, 0),
     ({"unit": Episode()}, 0, False, 9),
     ({}, 2, False, 1), ({}, 2, True, 100), ({"unit": Episode()}, 2, False, 7),
     ({"sampler": Prioritized()}, 2, True, 13)],
)  # fmt: skip
def test_an_interrupted_pass_continues_with_its_remaining_batches(
    buffer, options, workers, disjoint, consumed
):
    def loader():
        samples = Samples(buffer, 4, batches=200 if workers else 12, disjoint=disjoint, **options)
        return Loader(samples, num_workers=workers)

    torch.manual_seed(3)
    first = loader()
    passing = iter(first)
    for _ in range(consumed):
        next(passing)
    state = first.state_dict()
    rest = seen(passing)
    assert consumed + len(rest) == len(first)

    torch.manual_seed(4)  # another program
    second = loader()
    second.load_state_dict(state)
    kept = second.state_dict()  # before its first batch
    second = loader()
    second.load_state_dict(kept)
    passing = iter(second)
    again = seen(itertools.islice(passing, 2))
    later = second.state_dict()  # a pass may be interrupted again
    again += seen(passing)
    third = loader()
    third.load_state_dict(later)
    if consumed or workers:  # no worker has a state before the first batch
        assert again == rest
    assert seen(third) == again[2:]
    assert len(seen(loader())) == len(first)  # the next pass is complete


def test_a_state_of_other_samples_is_refused(buffer):
    state = Loader(Samples(buffer, 4, batches=3)).state_dict()
    for samples in (Samples(buffer, 5, batches=3), Samples(buffer, 4, batches=2)):
        with pytest.raises(expdb.InvalidValue, match="the state was saved with"):
            Loader(samples).load_state_dict(state)
    for wrong in (None, {}, {"progress": None}):
        with pytest.raises(expdb.InvalidValue, match=r"the state (is a|has no key)"):
            Loader(Samples(buffer, 4, batches=3)).load_state_dict(wrong)
    with pytest.raises(expdb.InvalidValue, match="size must be an integer of at least 1"):
        Samples(buffer, {"task_id": "t"}, 4)


def test_a_state_of_other_workers_is_refused(buffer):
    state = Loader(Samples(buffer, 4, batches=3)).state_dict()
    with pytest.raises(expdb.InvalidValue, match=r"num_workers=0, but this loader has"):
        Loader(Samples(buffer, 4, batches=3), num_workers=2).load_state_dict(state)
    kept = Loader(Samples(buffer, 4, batches=3), num_workers=2, persistent_workers=True)
    with pytest.raises(expdb.InvalidValue, match="persistent_workers=True cannot be resumed"):
        kept.state_dict()


def test_minibatches_yield_every_item_once_per_pass(buffer):
    dataset = Minibatches(buffer, 7, unit=expdb.NStep(1), fields=["position", "obs"])
    drawable = set(buffer.sample(5000, unit=expdb.NStep(1))["position"].tolist())
    passes = []
    for workers in (0, 2, 2):
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        passes.append(torch.cat([batch["position"] for batch in loader]).tolist())
        assert sorted(passes[-1]) == sorted(drawable)
    assert passes[1] != passes[2]
    torch.manual_seed(3)
    first = [batch["position"].tolist() for batch in dataset]
    torch.manual_seed(3)
    assert [batch["position"].tolist() for batch in dataset] == first


def test_a_pass_of_minibatches_continues_where_it_was_interrupted(buffer):
    dataset = Minibatches(buffer, 7)
    batches = iter(dataset)
    next(batches)
    state = pickle.loads(pickle.dumps(dataset.state_dict()))
    rest = [batch["position"].tolist() for batch in batches]
    resumed = Minibatches(buffer, 7)
    resumed.load_state_dict(state)
    assert [batch["position"].tolist() for batch in resumed] == rest
    assert resumed.state_dict() == {"epochs": None}
    with pytest.raises(expdb.InvalidValue, match="state_dict"):
        resumed.load_state_dict({})
    with pytest.raises(expdb.InvalidValue, match="size must be an integer"):
        Minibatches(buffer, 0)
