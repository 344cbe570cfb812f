"""The checks of `expdb.testing` accept built-in classes and report violations."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from test_extending import Halves

import expdb
from expdb.testing import check_database, check_sampler, check_unit

pytestmark = pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")

SAMPLERS = [
    expdb.Uniform(), expdb.Uniform(replace=False), expdb.Uniform(over="task"),
    expdb.Prioritized(), expdb.Newest(20),
]  # fmt: skip


@dataclass(frozen=True)
class Shuffled(expdb.Sequence):
    """Return the observations of all steps of sequences in a random order."""

    own_randomness: bool = False

    def assemble(self, batch, rng):
        rng = np.random.default_rng() if self.own_randomness else rng
        drawn, at = np.nonzero(batch["mask"])
        order = rng.permutation(len(drawn))
        return {"obs": batch["obs"][drawn, at][order], "drawn": drawn[order]}


UNITS = [
    expdb.Step(), expdb.NStep(1), expdb.NStep(3, end="drop"), expdb.NStep(2, stack=2),
    expdb.Sequence(4, burn_in=1), expdb.Sequence(3, pad=False), expdb.Stack(3), expdb.Episode(),
    expdb.Group(2), expdb.Pairs(per="task"), Halves(1), Shuffled(3),
]  # fmt: skip


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_samplers_pass_check_sampler(sampler):
    check_sampler(sampler)


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_units_pass_check_unit(unit):
    check_unit(unit)


@pytest.mark.both_databases
def test_databases_pass_check_database(location):
    check_database(location)


@dataclass(frozen=True)
class OwnRandomness(expdb.Step):
    """Return a random number that does not depend on the seed."""

    def keys(self):
        return ("noise",)

    def layout(self, trajectories, rows, rng):
        return expdb.Layout(rows, {"noise": np.random.default_rng().random(len(rows))})


@dataclass(frozen=True)
class InTurn(expdb.Sampler):
    """Draw the next position of a counter and ignore the seed."""

    calls = itertools.count()

    def draw(self, population, size, rng):
        return np.roll(population.positions, next(self.calls))[:1].repeat(size), {}


@dataclass(frozen=True)
class Nothing(expdb.Unit):
    """A unit that cannot start at any step."""

    def may_start(self, trajectories, rows):
        return np.zeros(len(rows), bool)


def test_check_unit_reports_randomness_that_ignores_the_seed():
    with pytest.raises(AssertionError, match=r"OwnRandomness.*the same seed: noise"):
        check_unit(OwnRandomness())
    with pytest.raises(AssertionError, match=r"Shuffled.*the same seed: "):
        check_unit(Shuffled(3, own_randomness=True))


def test_check_sampler_reports_draws_that_depend_on_earlier_calls():
    with pytest.raises(AssertionError, match=r"InTurn.*the same seed: "):
        check_sampler(InTurn())


def test_check_unit_fails_if_nothing_can_be_drawn():
    with pytest.raises(AssertionError, match="nothing could be drawn"):
        check_unit(Nothing())


def test_check_database_reports_counts_that_differ_from_sqlite(tmp_path, monkeypatch):
    real = expdb.ReplayBuffer.count
    calls = iter(range(10**6))
    monkeypatch.setattr(expdb.ReplayBuffer, "count", lambda *a: real(*a) + next(calls) % 2)
    with pytest.raises(AssertionError, match="every step: 91 steps match, but 90 on SQLite"):
        check_database(str(tmp_path / "new.db"))


def test_checks_leave_an_existing_buffer_unchanged(db):
    tokens = expdb.Field("int32", shape=(None,))
    buffer = db.buffer("b", fields={"obs": expdb.Field("float32", shape=(3,)), "tokens": tokens})
    with buffer.episode("x") as episode:
        for t in range(9):
            episode.append(
                obs=np.full(3, t, np.float32),
                tokens=np.arange(t + 1, dtype=np.int32),
                terminated=t == 8,
            )
    buffer.update_priorities(np.arange(9), np.arange(9) + 1.0)
    before = buffer.sample(9, sampler=expdb.Ordered("position"), fields=["priority"])["priority"]
    for unit in (expdb.Step(), expdb.Episode(), Shuffled(3)):
        check_unit(unit, buffer)
    check_sampler(expdb.Newest(5), buffer)
    after = buffer.sample(9, sampler=expdb.Ordered("position"), fields=["priority"])["priority"]
    assert (after == before).all()
    assert buffer.consumers() == []
