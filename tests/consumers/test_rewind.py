"""After a rewind to an older checkpoint, a trainer leases the later items again."""

import collections
import itertools

import numpy as np
import pytest

import expdb
from expdb import Episode, Group, Uniform, errors

pytestmark = pytest.mark.both_databases

ALL = Uniform(replace=False)


def fill(buffer, episodes=10, length=4):
    for number in range(episodes):
        with buffer.episode("task", episode_id=f"e{number}", group_id=f"g{number // 2}") as episode:
            for step in range(length):
                episode.append(x=step, reward=float(number))


def train(consumer, steps, size=2, **options):
    """Lease and acknowledge one batch for each trainer step; return the positions by step."""
    positions = {}
    for step in steps:
        with consumer.lease(size, sampler=ALL, trainer_step=step, **options) as batch:
            positions[step] = batch["position"].tolist()
    return positions


def test_everything_leased_after_a_step_can_be_leased_again(buffer):
    fill(buffer)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    first = train(trainer, range(6), 4)
    assert trainer.rewind(2) == {"leases": 3, "items": 12, "evicted": 0, "archived": 0}
    assert trainer.last_trainer_step == 2
    assert trainer.stats()["acknowledged"] == 3
    again = train(trainer, range(3, 10), 4)
    kept = [first[step] for step in range(3)]
    counts = collections.Counter(itertools.chain(*kept, *again.values()))
    assert counts == dict.fromkeys(range(40), 1)
    replayed = [batch["position"].tolist() for batch in buffer.replay("trainer")]
    assert replayed == [*kept, *again.values()]
    assert [again[k] for k in range(3, 6)] == [first[k] for k in range(3, 6)]  # the same batches


def test_rewind_releases_active_leases(buffer):
    fill(buffer)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    train(trainer, [0])
    active = trainer.lease(4, sampler=ALL, trainer_step=1, pin=True)
    assert trainer.rewind(0)["leases"] == 1
    with pytest.raises(expdb.LeaseLost, match="was released; lease another batch"):
        active.acknowledge()
    assert len(train(trainer, [1], 38)[1]) == 38


def test_handles_of_other_processes_follow_a_rewind(open_db):
    fill(open_db().buffer("train"))
    handles = [open_db().buffer("train").consumer("trainer", max_times_sampled=1) for _ in "abc"]
    for step in range(10):
        train(handles[step % 2], [step], 4)
    for handle in handles[:2]:
        with pytest.raises(expdb.TooFewRows):
            handle.lease(1)
    assert handles[2].rewind(4) == {"leases": 5, "items": 20, "evicted": 0, "archived": 0}
    batches = [train(handles[k % 2], [5 + k], 4)[5 + k] for k in range(5)]
    seen = list(itertools.chain(*batches))
    assert len(seen) == len(set(seen)) == 20
    for handle in handles:
        with pytest.raises(expdb.TooFewRows):
            handle.lease(1)


def test_batches_without_a_step_belong_to_the_previous_trainer_step(buffer):
    fill(buffer)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    for step in (0, None, 1, None, None, 2, None):
        lease = trainer.lease(2, sampler=ALL)
        lease.acknowledge(step)
    assert trainer.rewind(1)["leases"] == 4
    assert trainer.stats()["acknowledged"] == 3


def test_learners_may_acknowledge_their_steps_in_any_order(buffer):
    fill(buffer)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    leases = [trainer.lease(2, sampler=ALL, trainer_step=step) for step in range(6)]
    for step in (1, 0, 5, 2, 4, 3):
        leases[step].acknowledge()
    assert trainer.rewind(2)["leases"] == 3
    assert trainer.last_trainer_step == 2
    kept = [batch["position"].tolist() for batch in buffer.replay("trainer")]
    assert kept == [leases[step].batch["position"].tolist() for step in (1, 0, 2)]
    later = train(trainer, [3, 4, 5])
    replayed = [batch["position"].tolist() for batch in buffer.replay("trainer")]
    assert replayed == [*kept, *later.values()]


def test_rewind_reports_the_number_of_evicted_items(db):
    buffer = db.buffer("small", capacity=40)
    fill(buffer)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    train(trainer, range(5), 8)
    assert trainer.rewind(-1)["evicted"] == 0
    train(trainer, range(5), 8)
    for number in range(3):
        with buffer.episode("task", episode_id=f"new {number}") as episode:
            for _ in range(4):
                episode.append(x=0)
    with pytest.warns(errors.ExpDBWarning, match="12 of 40 items that consumer 'trainer' leased"):
        figures = trainer.rewind(-1)
    assert figures == {"leases": 5, "items": 40, "evicted": 12, "archived": 0}
    assert trainer.last_trainer_step is None
    assert len(train(trainer, [0], 40)[0]) == 40


def test_rewind_reports_the_number_of_archived_items(db, tmp_path):
    buffer = db.buffer("small", capacity=8)
    buffer.eviction = expdb.Eviction(archive=tmp_path / "old")
    fill(buffer, 2)
    trainer = buffer.consumer("trainer")
    train(trainer, [0, 1], 2, unit=Episode())
    fill_more = buffer.episode("task", episode_id="new")
    for _ in range(4):
        fill_more.append(x=0)
    fill_more.end()
    buffer.evict()
    with pytest.warns(errors.ExpDBWarning, match=r"\(1 are in the archive\)"):
        assert trainer.rewind(0) == {"leases": 1, "items": 2, "evicted": 1, "archived": 1}
    trainer.lease(1, unit=Episode(), sampler=ALL, trainer_step=1).acknowledge()
    buffer.delete({"episode_id": "new"})
    buffer.delete({"task_id": "task"})
    with pytest.warns(errors.ExpDBWarning, match=r"\(0 are in the archive\)"):
        assert trainer.rewind(0) == {"leases": 1, "items": 1, "evicted": 1, "archived": 0}


def test_rewind_warns_of_an_archive_file_that_cannot_be_read(buffer, tmp_path):
    buffer.eviction = expdb.Eviction(archive=tmp_path / "old")
    fill(buffer, 2)
    trainer = buffer.consumer("trainer")
    train(trainer, [0], 2, unit=Episode())
    buffer.delete({"task_id": "task"})
    folder = tmp_path / "old" / "buffer=train"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "0-3-damaged.parquet").write_bytes(b"PAR1")
    with pytest.warns(errors.ExpDBWarning) as caught:
        assert trainer.rewind(-1) == {"leases": 1, "items": 2, "evicted": 2, "archived": 0}
    assert any("damaged.parquet cannot be read" in str(item.message) for item in caught)


def test_rewind_releases_whole_groups(buffer):
    fill(buffer)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    first = [trainer.lease(1, unit=Group(2), sampler=ALL, trainer_step=step) for step in range(3)]
    for lease in first:
        lease.acknowledge()
    trainer.rewind(0)
    groups = [trainer.lease(1, unit=Group(2), sampler=ALL).batch["episode"] for _ in range(4)]
    assert len(np.unique(np.concatenate(groups))) == 8


@pytest.mark.one_database
def test_rewind_requires_acknowledged_trainer_steps(buffer):
    fill(buffer)
    trainer = buffer.consumer("trainer")
    assert trainer.rewind(3) == {"leases": 0, "items": 0, "evicted": 0, "archived": 0}
    trainer.lease(2).acknowledge()
    with pytest.raises(expdb.InvalidValue, match="no lease of consumer 'trainer' was acknowledged"):
        trainer.rewind(3)
    with pytest.raises(expdb.InvalidValue, match="step must be a 64-bit integer"):
        trainer.rewind("3")
    buffer.drop_consumer("trainer")
    with pytest.raises(errors.UnknownConsumer):
        trainer.rewind(3)


def test_discard_uses_up_and_counts_groups_below_min_spread(buffer):
    for group in range(6):
        for rollout in range(2):
            with buffer.episode("task", group_id=f"g{group}") as episode:
                episode.append(x=group, reward=float(rollout * (group % 3 == 0)))
    unit = Group(2, min_spread=1e-6)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    assert trainer.stats(unit=unit)["groups"]["no_spread"] == 4
    assert trainer.discard(unit, trainer_step=0) == 4
    assert trainer.discard(unit) == 0
    with trainer.lease(2, unit=unit, sampler=ALL, trainer_step=1) as batch:
        assert sorted(batch["x"][:, 0, 0].tolist()) == [0, 3]
    figures = trainer.stats(unit=unit)
    assert figures["discarded"] == 4
    assert buffer.consumer("other").stats(unit=unit)["discarded"] == 0
    (replayed,) = buffer.replay("trainer")
    assert replayed["position"].tolist() == batch["position"].tolist()
    with pytest.raises(expdb.TooFewRows):
        trainer.lease(1, unit=Group(2))
    trainer.rewind(-1)
    assert trainer.stats(unit=unit)["discarded"] == 0
    assert trainer.discard(unit) == 4


def test_discard_counts_a_group_once_if_max_times_sampled_is_above_1(buffer):
    for _ in range(2):
        with buffer.episode("task", group_id="g") as episode:
            episode.append(x=0, reward=1.0)
    trainer, unit = buffer.consumer("trainer", max_times_sampled=3), Group(2, min_spread=0.1)
    assert trainer.discard(unit) == 1
    assert trainer.stats(unit=unit)["discarded"] == 1
    with pytest.raises(expdb.TooFewRows):
        trainer.lease(1, unit=Group(2))


@pytest.mark.one_database
def test_discard_requires_min_spread_and_max_times_sampled(buffer):
    fill(buffer)
    trainer = buffer.consumer("trainer", max_times_sampled=1)
    with pytest.raises(expdb.InvalidValue, match="unit must be a Group with min_spread above 0"):
        trainer.discard(Group(2))
    with pytest.raises(expdb.InvalidValue, match="has no max_times_sampled"):
        buffer.consumer("other").discard(Group(2, min_spread=0.1))
    with pytest.raises(expdb.InvalidValue, match="max_spread must be at least min_spread, got 0"):
        Group(2, min_spread=0.5, max_spread=0.1)
