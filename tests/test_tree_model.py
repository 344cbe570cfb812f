"""Compare handles of a buffer with forks to a simple model after every change.

`EXPDB_MODEL_STEPS=20000 python3 dev.py test tests/test_tree_model.py` runs longer histories.
"""

import itertools
import os
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model_actor import text_of

import expdb
from expdb import errors

STEPS = int(os.environ.get("EXPDB_MODEL_STEPS", "0"))
EXAMPLE_STEPS = 40


@dataclass(eq=False)
class Rollout:
    """An episode of the model."""

    name: str
    parent: "Rollout | None" = None
    at_step: int = 0
    relation: str | None = None
    shared: list = field(default_factory=list)  # positions
    own: list = field(default_factory=list)  # position and number of each step
    status: str = "open"

    @property
    def is_fork(self):
        return self.relation in ("fork", "retry")

    @property
    def root(self):
        return self if self.parent is None else self.parent.root


class Trees(RuleBasedStateMachine):
    """A state machine whose rules call two handles; the test sets `databases` and `location`."""

    databases: list
    location: str
    names = itertools.count()
    compared = 0

    @initialize(capacity=st.sampled_from([None, 14, 8]))
    def begin(self, capacity):
        """Create a new buffer for this history."""
        self.name, self.capacity = f"b{next(self.names)}", capacity
        with expdb.open(self.location) as db:
            db.buffer(self.name, capacity=capacity)
        self.buffers = [db.buffer(self.name) for db in self.databases]
        self.rollouts, self.values, self.added = [], {}, 0  # `values` has only stored steps
        self.numbers = itertools.count()

    def _write(self, handle, rollout, ends, **arguments):
        value = next(self.numbers)
        position = self.buffers[handle].store(
            task_id="t", episode_id=rollout.name, x=value, text=text_of(value), terminated=ends,
            **arguments,
        )  # fmt: skip
        assert position == self.added
        number = rollout.own[-1][1] + 1 if rollout.own else rollout.at_step * rollout.is_fork
        rollout.own.append((position, number))
        self.values[position] = value
        self.added += 1
        rollout.status = "complete" if ends else "open"
        self._tidy()

    def _tidy(self):
        """Evict steps over the capacity, and remove ended rollouts without stored steps."""
        if self.capacity is not None:
            self.values = dict(list(self.values.items())[-self.capacity :])
        self.rollouts = [
            rollout
            for rollout in self.rollouts
            if rollout.status == "open" or any(at in self.values for at, _ in rollout.own)
        ]

    @rule(handle=st.integers(0, 1), ends=st.booleans())
    def begin_root(self, handle, ends):
        rollout = Rollout(f"r{next(self.numbers)}")
        self.rollouts.append(rollout)
        self._write(handle, rollout, ends)

    @precondition(lambda self: self.rollouts)
    @rule(
        handle=st.integers(0, 1), which=st.integers(0, 30), at_step=st.integers(0, 6),
        relation=st.sampled_from(["fork", "fork", "retry", "subagent"]), ends=st.booleans(),
        with_writer=st.booleans(),
    )  # fmt: skip
    def branch(self, handle, which, at_step, relation, ends, with_writer):
        parent = self.rollouts[which % len(self.rollouts)]
        child = Rollout(f"c{next(self.numbers)}", parent, at_step, relation)
        arguments = {"parent": parent.name, "parent_step": at_step, "relation": relation}
        try:
            self._find_shared(child)
        except LookupError:
            with pytest.raises((errors.InvalidValue, errors.Evicted)):
                self.buffers[handle].store(
                    task_id="t", episode_id=child.name, x=0, terminated=ends, **arguments
                )
            return
        self.rollouts.append(child)
        if with_writer and child.is_fork:
            options = {"relation": relation, "episode_id": child.name, "task_id": "t"}
            writer = self.buffers[handle].fork(parent.name, at_step, **options)
            assert writer.length == len(child.shared)
            value = next(self.numbers)
            writer.append(x=value, text=text_of(value))
            assert writer.flush().tolist() == [self.added]
            child.own.append((self.added, at_step))
            self.values[self.added] = value
            self.added += 1
            writer.end()
            child.status = "complete"
            self._tidy()
        else:
            self._write(handle, child, ends, **arguments)

    def _find_shared(self, child):
        """Set the shared steps of a branch; raise LookupError if the parent lacks the step."""
        needed = child.at_step - 1 if child.is_fork else child.at_step
        if needed < 0:
            return
        owner = child.parent
        while owner.is_fork and needed < owner.at_step:
            owner = owner.parent
            if owner not in self.rollouts:
                raise LookupError
        stored = {number: at for at, number in owner.own if at in self.values}
        if not child.is_fork:
            if stored and needed not in stored and needed != max(stored) + 1:
                raise LookupError
            return
        if needed not in stored:
            raise LookupError
        own = [at for at, number in owner.own if number <= needed]
        child.shared = owner.shared + own

    @precondition(lambda self: any(rollout.status == "open" for rollout in self.rollouts))
    @rule(handle=st.integers(0, 1), which=st.integers(0, 30), ends=st.booleans())
    def append(self, handle, which, ends):
        rollouts = [rollout for rollout in self.rollouts if rollout.status == "open"]
        self._write(handle, rollouts[which % len(rollouts)], ends)

    @precondition(lambda self: self.values)
    @rule(handle=st.integers(0, 1), indices=st.sets(st.integers(0, 30), min_size=1, max_size=2))
    def delete(self, handle, indices):
        positions = {list(self.values)[index % len(self.values)] for index in indices}
        assert self.buffers[handle].delete(sorted(positions)) == len(positions)
        for position in positions:
            del self.values[position]
        self._tidy()

    def _expected(self):
        """Return the positions of each episode that can be drawn, without and with lineage."""
        own, whole = {}, {}
        for rollout in self.rollouts:
            steps = [at for at, _ in rollout.own]
            if rollout.status == "complete" and all(at in self.values for at in steps):
                own[rollout.name] = steps
                if all(at in self.values for at in rollout.shared):
                    whole[rollout.name] = rollout.shared + steps
        return own, whole

    @invariant()
    def all_handles_match_the_model(self):
        if not hasattr(self, "rollouts"):
            return
        with expdb.open(self.location) as fresh:
            for buffer in (*self.buffers, fresh.buffer(self.name)):
                self._compare(buffer)
            assert fresh.buffer(self.name).check() == []

    def _compare(self, buffer):
        type(self).compared += 1
        for lineage, expected in zip((False, True), self._expected(), strict=True):
            drawn = {}
            if expected:
                batch = buffer.sample(
                    len(expected), unit=expdb.Episode(lineage=lineage),
                    sampler=expdb.Uniform(replace=False),
                    fields=["x", "text", "position", "episode_id"],
                )  # fmt: skip
                for k, count in enumerate(batch["length"].tolist()):
                    drawn[batch["episode_id"][k]] = batch["position"][k, :count].tolist()
                    xs = [self.values[at] for at in expected[batch["episode_id"][k]]]
                    assert batch["x"][k, :count].tolist() == xs
                    assert batch["text"][k, :count].tolist() == [text_of(x) for x in xs]
            else:
                with pytest.raises(errors.TooFewRows):
                    buffer.sample(1, unit=expdb.Episode(lineage=lineage))
            assert drawn == expected
        for rollout in self.rollouts[-4:]:
            own = [at for at, _ in rollout.own if at in self.values]
            assert buffer.steps_of(rollout.name).tolist() == own
            if all(at in self.values for at in rollout.shared):
                steps = buffer.steps_of(rollout.name, lineage=True).tolist()
                assert steps == rollout.shared + own
            else:
                with pytest.raises(errors.Evicted):
                    buffer.steps_of(rollout.name, lineage=True)
            tree = {other.name for other in self.rollouts if other.root is rollout.root}
            assert set(buffer.lineage(rollout.name)["episode_id"].to_pylist()) == tree


@pytest.mark.parametrize(
    ("steps", "example_steps"),
    [(200, 20), pytest.param(STEPS or 1000, EXAMPLE_STEPS, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
def test_trees_in_a_file_match_a_plain_model(tmp_path, steps, example_steps):
    compare(str(tmp_path / "runs.db"), steps, example_steps)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
def test_trees_on_a_server_match_a_plain_model(postgresql_url):
    compare(postgresql_url, STEPS // 10 or 200, EXAMPLE_STEPS)


def compare(location, steps, example_steps):
    """Run histories with `steps` steps in total, and compare after each step."""
    databases = [expdb.open(location, max_lag_seconds=0.0) for _ in range(2)]
    machine = type("Machine", (Trees,), {"databases": databases, "location": location})
    try:
        run_state_machine_as_test(machine, settings=settings(
            max_examples=max(1, steps // example_steps), stateful_step_count=example_steps,
            deadline=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink], derandomize=not STEPS, print_blob=True,
            report_multiple_bugs=False,
        ))  # fmt: skip
    finally:
        for db in databases:
            db.close()
    assert machine.compared > steps, "the histories have too few steps"
