"""Compare three handles in two processes, and new handles, with a plain model of a buffer.

After every write or change, all handles must see the same steps as the model.
`EXPDB_MODEL_STEPS=20000 python3 dev.py test tests/test_model.py` makes histories of 20,000 steps.
Hypothesis shrinks a failing history.
"""

import itertools
import os
from collections import defaultdict
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
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
from model_actor import QUERIES, UNITS, Actor, Remote, text_of

import expdb
from expdb import QueryBuilder

GAMMA = 0.5
EXAMPLE_STEPS = 40
STEPS = int(os.environ.get("EXPDB_MODEL_STEPS", "0"))


# -- the model -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Attempt:
    """An episode."""

    name: str
    task: str
    status: str = "open"
    length: int = 0
    gained: float | None = None
    version: int | None = None
    ordered: bool = True
    last_number: int | None = None
    last_position: int = -1
    tail: float | None = None
    last_assigned: int = -1  # the greatest step number, including steps that are not flushed

    def assign_number(self, step):
        """Advance the step number; replace an explicit number by it."""
        self.last_assigned += 1
        if step.number is not None:
            step.number = self.last_assigned


@dataclass(eq=False)
class OneStep:
    """A stored step."""

    position: int
    attempt: Attempt
    ordinal: int
    n: float
    number: int
    reward: float | None
    terminated: bool = False
    truncated: bool = False
    tag: int | None = None
    priority: float = 1.0


@dataclass
class Given:
    """A step as passed to a writer."""

    n: float
    reward: float | None
    number: int | None = None
    terminated: bool = False
    tag: int | None = None

    def arguments(self):
        """Return the arguments of `append` and `store`."""
        tags = None if self.tag is None else {"k": self.tag}
        return {
            "n": self.n,
            "text": text_of(self.n),
            "small": np.full(3, self.n % 100, np.int16),
            "reward": self.reward,
            "step": self.number,
            "terminated": self.terminated,
            "tags": tags,
        }


@dataclass
class Model:
    """A model of a buffer that uses lists and loops."""

    capacity: int | None = None
    added: int = 0
    steps: list[OneStep] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)

    def write(self, attempt, steps):
        """Add steps to an open episode."""
        if steps:
            self.attempts[attempt.name] = attempt
        for step in steps:
            next_number = 0 if attempt.last_number is None else attempt.last_number + 1
            number = next_number if step.number is None else step.number
            if attempt.last_number is not None and number < attempt.last_number:
                attempt.ordered = False
            else:
                attempt.last_number = number
            given = (step.n, number, step.reward, step.terminated)
            self.steps.append(OneStep(self.added, attempt, attempt.length, *given, tag=step.tag))
            attempt.last_position = self.added
            attempt.length, self.added = attempt.length + 1, self.added + 1
            if step.reward is not None:
                attempt.gained = (attempt.gained or 0.0) + step.reward

    def end(self, attempt, status, tail=None):
        """End an open episode."""
        attempt.status = status
        if tail is not None:
            attempt.tail = tail
        self.tidy()

    def tidy(self):
        """Evict steps over the capacity, and delete ended episodes without stored steps."""
        if self.capacity is not None:
            self.steps = self.steps[-self.capacity :]
        with_steps = {step.attempt for step in self.steps}
        self.attempts = {
            name: attempt
            for name, attempt in self.attempts.items()
            if attempt.status == "open" or attempt in with_steps
        }

    def delete(self, gone):
        """Delete steps."""
        lost = {step.position for step in gone}
        for attempt in {step.attempt for step in gone}:
            if attempt.last_position in lost:
                attempt.tail = None
        self.steps = [step for step in self.steps if step.position not in lost]
        for attempt in {step.attempt for step in gone}:
            attempt.last_position = max(
                [step.position for step in self.steps if step.attempt is attempt], default=-1
            )
        self.tidy()

    def matching(self, query):
        """Return the steps that a query of the actors matches."""
        tests = {
            "": lambda s: True, "reward": lambda s: s.reward is not None and s.reward >= 2,
            "task": lambda s: s.attempt.task == "t1" and s.attempt.status == "complete",
            "length": lambda s: s.attempt.length > 2 or s.attempt.version == 1,
            "tag": lambda s: s.tag == 1,
        }  # fmt: skip
        return [step for step in self.steps if tests[query](step)]

    # -- successors --------------------------------------------------------------------------------

    def lines(self):
        """Yield each episode with its steps in order, split into runs of consecutive steps."""
        by_attempt = defaultdict(list)
        for step in self.steps:
            by_attempt[step.attempt].append(step)
        for attempt, steps in by_attempt.items():
            if attempt.ordered:
                runs = [[steps[0]]]
                for step in steps[1:]:
                    runs.append([step]) if step.ordinal != runs[-1][-1].ordinal + 1 else runs[
                        -1
                    ].append(step)
                yield attempt, runs
            elif len(steps) == attempt.length:
                yield attempt, [sorted(steps, key=lambda step: (step.number, step.position))]
            else:
                yield attempt, [[step] for step in steps]  # the steps between them are unknown

    def links(self):
        """Return the successor and the predecessor of each step, and the complete episodes.

        A successor is a step, the number of a final observation, 0 for none, or None if unknown.
        """
        after, before, starts = {}, {}, {}
        for attempt, runs in self.lines():
            for run in runs:
                for step, following in itertools.pairwise(run):
                    after[step], before[following] = following, step
                last = run[-1]
                can_tell_last = sum(map(len, runs)) == attempt.length or attempt.ordered
                is_last = can_tell_last and (
                    last.ordinal == attempt.length - 1 if attempt.ordered else True
                )
                if is_last and attempt.status != "open" and attempt.tail is not None:
                    after[last] = attempt.tail
                else:
                    after[last] = 0.0 if last.terminated else None
            if attempt.status == "complete" and len(runs) == 1 and len(runs[0]) == attempt.length:
                starts[runs[0][0]] = runs[0]
        return after, before, starts

    def expected(self):
        """Return the expected result of `Actor.see`."""
        rows = [
            (step.position, step.n, step.number, step.reward, step.terminated, step.truncated,
                None if step.tag is None else {"k": step.tag},
             step.attempt.task, step.attempt.status, step.attempt.version, step.attempt.name)
            for step in self.steps
        ]  # fmt: skip
        attempts = {step.attempt for step in self.steps}
        seen = {
            "rows": rows, "texts": [text_of(step.n) for step in self.steps],
            "episodes": sorted((a.name, a.status, a.length, a.gained, a.version) for a in attempts),
            "count": {name: len(self.matching(name)) for name in QUERIES},
            "tasks": sorted({a.task for a in attempts}), "size": len(self.steps),
        }  # fmt: skip
        links = self.links()
        for name in QUERIES:
            matching = self.matching(name)
            for unit in ("Step", "NStep(1)", "Group(2)") if name else UNITS:
                drawn = self._drawn(unit, matching, *links)
                seen[f"{unit} of {name}"] = drawn
                at = {step.position: step for step in self.steps}
                masses = {position: at[position].priority + 0.5 for position in drawn}
                seen[f"masses of {unit} of {name}"] = {
                    position: mass / sum(masses.values()) for position, mass in masses.items()
                }
        return seen

    def _drawn(self, unit, matching, *links):
        after, before, starts = links
        if unit == "Step":
            return {step.position: (step.n, reward_of(step), step.terminated) for step in matching}
        if unit.startswith("NStep"):
            linked = [step for step in matching if after[step] is not None]
            drawn = {step.position: self._transition(step, int(unit[6]), after) for step in linked}
            if unit.endswith("redraw)"):
                return {at: value for at, value in drawn.items() if value[4] == 2}
            if unit.endswith("stack)"):
                return self._stacked(linked, drawn, before)
            return drawn
        if unit.startswith("Sequence"):
            length, burn_in = int(unit[9]), {"burn-in": 1, "padded": 2}.get(unit[12:-1], 0)
            drawn = {
                step.position: self._window(step, burn_in, length, *links) for step in matching
            }
            if unit.endswith("padded)"):
                return {at: (*line, *first) for at, (line, first) in drawn.items()}
            return {at: line for at, (line, _) in drawn.items() if all(n == n for n in line)}
        if unit.startswith("Stack"):
            drawn = {step.position: self._frames(step, int(unit[6]), before) for step in matching}
            return {at: frames for at, frames in drawn.items() if frames}
        wanted = {step.attempt for step in matching}
        whole = {start: line for start, line in starts.items() if start.attempt in wanted}
        if unit == "Episode":
            return {start.position: tuple(step.n for step in line) for start, line in whole.items()}
        tasks = defaultdict(list)
        for start in sorted(whole, key=lambda step: step.position):
            if start.attempt.gained is not None:
                tasks[start.attempt.task].append(start)
        groups = [rollouts[-2:] for rollouts in tasks.values() if len(rollouts) >= 2]
        return {
            rollouts[0].position: tuple(step.n for start in rollouts for step in whole[start])
            for rollouts in groups
        }

    def _window(self, step, burn_in, length, after, before, starts):
        """Return the steps around a step, and which are first; NaN for steps that are missing."""
        line = [step]
        for _ in range(burn_in):
            line.insert(0, before.get(line[0]))
        for _ in range(length - 1):
            follows = after.get(line[-1])
            line.append(follows if isinstance(follows, OneStep) else None)
        nan = float("nan")
        first = [nan if step is None else float(self._is_first(step)) for step in line]
        return tuple(nan if step is None else step.n for step in line), tuple(first)

    def _frames(self, step, k, before):
        """Return the last k frames, padded with the first one, or None if a frame is missing."""
        frames = [step]
        while len(frames) < k:
            if frames[0] in before:
                frames.insert(0, before[frames[0]])
            elif self._is_first(frames[0]):
                frames.insert(0, frames[0])
            else:
                return None
        return tuple(step.n for step in frames)

    def _stacked(self, linked, transitions, before):
        """Return transitions with the frames of both observations."""
        stacked = {}
        for step in linked:
            frames = self._frames(step, 3, before)
            if frames is not None:
                _, reward, follows, discount, n = transitions[step.position]
                last = step
                for _ in range(int(n) - 1):
                    last = next(other for other, back in before.items() if back is last)
                following = *self._frames(last, 2, before), follows
                stacked[step.position] = *frames, reward, *following, discount, n
        return stacked

    def _is_first(self, step):
        if step.attempt.ordered:
            return step.ordinal == 0
        line = [other for other in self.steps if other.attempt is step.attempt]
        return len(line) == step.attempt.length and step is min(
            line, key=lambda other: (other.number, other.position)
        )

    def _transition(self, step, n, after):
        total, k, current = 0.0, 0, step
        while True:
            follows = after[current]
            if follows is None:
                return (step.n, total, current.n, GAMMA**k, float(k))
            total += GAMMA**k * reward_of(current)
            k += 1
            value = follows.n if isinstance(follows, OneStep) else follows
            if current.terminated:
                return (step.n, total, value, 0.0, float(k))
            if k == n or not isinstance(follows, OneStep):
                return (step.n, total, value, GAMMA**k, float(k))
            current = follows


def reward_of(step):
    return float("nan") if step.reward is None else step.reward


# -- the machine -----------------------------------------------------------------------------------

TASKS = st.sampled_from(["t0", "t1", "t2"])
ACTORS = st.integers(0, 2)
INDEX = st.integers(0, 30)  # an index into the present steps, episodes or writers
SOME = st.sets(INDEX, min_size=1, max_size=3)
REWARDS = st.sampled_from([None, 0.0, 1.0, 2.0, 3.0])
GIVEN = st.builds(
    Given, n=st.just(0.0), reward=REWARDS,
    # None: no explicit number; 0: replaced by the next number.
    number=st.sampled_from([None, None, 0]),
    terminated=st.sampled_from([False] * 6 + [True]),
    tag=st.sampled_from([None, None, 1, 2]),
)  # fmt: skip


class Handles(RuleBasedStateMachine):
    """A state machine whose rules call handles; the test sets `actors` and `location`."""

    actors: list
    location: str
    names = itertools.count()
    compared = 0  # steps

    @initialize(capacity=st.sampled_from([None, 12, 5]))
    def begin(self, capacity):
        """Create a new buffer for this history."""
        self.name = f"b{next(self.names)}"
        with expdb.open(self.location) as db:
            db.buffer(self.name, capacity=capacity)
        for actor in self.actors:
            actor.use(self.name)
        self.model = Model(capacity)
        self.implicit = {}  # (actor, task) -> the attempt that the handle continues
        self.writers = {}  # key -> actor, attempt, unwritten steps, flush_steps
        self.numbers = itertools.count(1)

    def number_step(self, step):
        step.n = float(next(self.numbers))
        return step

    # -- writing -----------------------------------------------------------------------------------

    def _current_attempt(self, actor, task):
        """Return the attempt that receives a step without an episode id."""
        attempt = self.implicit.get((actor, task))
        if (
            attempt is None
            or attempt.status != "open"
            or (attempt.length and self.model.attempts.get(attempt.name) is not attempt)
        ):
            attempt = self.implicit[actor, task] = Attempt(
                f"? {actor} {task} {next(self.names)}", task
            )
        return attempt

    @rule(actor=ACTORS, task=TASKS, step=GIVEN, named=st.sampled_from([None, None, "x", "y"]))
    def store(self, actor, task, step, named):
        step = self.number_step(step)
        if named is None:
            attempt = self._current_attempt(actor, task)
        else:
            attempt = self.model.attempts.get(named) or Attempt(named, task)
        attempt.assign_number(step)
        name = {} if named is None else {"episode_id": named}
        answer = self.actors[actor].act("store", task_id=task, **name, **step.arguments())
        if attempt.status != "open":
            assert answer == "EpisodeEnded"
        elif attempt.task != task:
            assert answer == "EpisodeMismatch"
        else:
            assert answer == self.model.added
            self._wrote(actor, [(attempt, step)])

    def _wrote(self, actor, pairs):
        for attempt, step in pairs:
            self.model.write(attempt, [step])
        self._learn_names(actor)
        for attempt, step in pairs:
            if step.terminated:
                attempt.status = "complete"
        self.model.tidy()

    def _learn_names(self, actor):
        """Read the ids that unnamed episodes got with their first step."""
        unnamed = {
            step.position: step.attempt
            for step in self.model.steps
            if step.attempt.name.startswith("?")
        }
        if unnamed:
            names = self.actors[actor].names()
            for position, attempt in unnamed.items():
                if attempt.name.startswith("?") and position in names:
                    self.model.attempts.pop(attempt.name, None)
                    attempt.name = names[position]
                    self.model.attempts[attempt.name] = attempt

    @rule(actor=ACTORS, rows=st.lists(st.tuples(TASKS, GIVEN), min_size=1, max_size=4))
    def store_batch(self, actor, rows):
        pairs, ended = [], set()
        for task, step in rows:
            self.number_step(step)
            if task in ended:
                self.implicit.pop((actor, task), None)
                ended.discard(task)
            attempt = self._current_attempt(actor, task)
            attempt.assign_number(step)
            pairs.append((attempt, step))
            if step.terminated:
                ended.add(task)
        answer = self.actors[actor].act(
            "store_batch", [{"task_id": task, **step.arguments()} for task, step in rows]
        )
        assert answer == list(range(self.model.added, self.model.added + len(rows)))
        self._wrote(actor, pairs)

    @rule(actor=ACTORS, task=TASKS, lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def store_whole_episodes(self, actor, task, lengths):
        pairs = []
        for length in lengths:
            attempt = Attempt(f"a{next(self.numbers)}", task)
            steps = [
                self.number_step(Given(0.0, 1.0, terminated=k == length - 1)) for k in range(length)
            ]
            pairs += [(attempt, step) for step in steps]
        answer = self.actors[actor].act(
            "store_batch",
            [{"task_id": task, "episode_id": to.name, **step.arguments()} for to, step in pairs],
        )
        assert answer == list(range(self.model.added, self.model.added + len(pairs)))
        self._wrote(actor, pairs)

    @precondition(lambda self: len(self.writers) < 3)
    @rule(actor=ACTORS, task=TASKS, flush_steps=st.sampled_from([1, 3, 100]))
    def begin_episode(self, actor, task, flush_steps):
        key = f"w{next(self.numbers)}"
        self.actors[actor].begin(
            key, task, episode_id=key, flush_steps=flush_steps, flush_seconds=1e9
        )
        self.writers[key] = actor, Attempt(key, task), [], flush_steps

    @precondition(lambda self: self.writers)
    @rule(which=INDEX, steps=st.lists(GIVEN, min_size=1, max_size=3))
    def append(self, which, steps):
        key = self._writer(which)
        actor, attempt, waiting, flush_steps = self.writers[key]
        for step in steps:
            step.terminated = False
            attempt.assign_number(step)
            waiting.append(self.number_step(step))
            answer = self.actors[actor].write(key, "append", **step.arguments())
            if len(waiting) >= flush_steps:
                if not self._note_flush(key, answer):
                    return
            else:
                assert answer is None

    def _writer(self, which):
        return list(self.writers)[which % len(self.writers)]

    def _is_gone(self, attempt):
        return attempt.length and (
            attempt.status != "open" or self.model.attempts.get(attempt.name) is not attempt
        )

    def _note_flush(self, key, answer):
        actor, attempt, waiting, _ = self.writers[key]
        if waiting and self._is_gone(attempt):
            assert answer == "EpisodeEnded"
            self.actors[actor].leave(key)
            del self.writers[key]
            return False
        assert not isinstance(answer, str)
        self.model.write(attempt, waiting)
        waiting.clear()
        self.model.tidy()
        return True

    @precondition(lambda self: self.writers)
    @rule(which=INDEX)
    def flush(self, which):
        key = self._writer(which)
        actor, _, waiting, _ = self.writers[key]
        wanted = list(range(self.model.added, self.model.added + len(waiting)))
        answer = self.actors[actor].write(key, "flush")
        if self._note_flush(key, answer):
            assert answer == wanted

    @precondition(lambda self: self.writers)
    @rule(which=INDEX, how=st.sampled_from(["end", "abort"]), tail=st.sampled_from([None, 1.0]))
    def end_writer(self, which, how, tail):
        key = self._writer(which)
        actor, attempt, waiting, _ = self.writers[key]
        if not waiting and not attempt.length:
            tail = None
        last = {} if tail is None else {"n": -float(next(self.numbers))}
        answer = self.actors[actor].write(key, how, **last)
        if self._is_gone(attempt):
            assert answer == "EpisodeEnded"
            self.actors[actor].leave(key)
        else:
            assert answer is None
            if waiting or attempt.length:
                self.model.write(attempt, waiting)
                self.model.end(attempt, "complete" if how == "end" else "aborted", last.get("n"))
        del self.writers[key]

    # -- changing ----------------------------------------------------------------------------------

    @rule(actor=ACTORS, which=INDEX, status=st.sampled_from(["complete", "aborted"]))
    def end_episode(self, actor, which, status):
        names = [*self.model.attempts, "nobody"]
        name = names[which % len(names)]
        attempt = self.model.attempts.get(name)
        answer = self.actors[actor].act("end_episode", name, status)
        if attempt is None:
            assert answer == "UnknownEpisode"
        elif attempt.status != "open":
            assert answer == "EpisodeEnded"
        else:
            assert answer is None
            self.model.end(attempt, status)

    def _choose_steps(self, which):
        """Choose steps, and return them and a query that matches them."""
        positions = [step.position for step in self.model.steps] or [0]
        chosen = {positions[index % len(positions)] for index in which}
        return [step for step in self.model.steps if step.position in chosen], QueryBuilder().in_(
            "position", sorted(chosen)
        )

    @rule(
        actor=ACTORS, which=SOME, last=st.booleans(), flag=st.booleans(),
        change=st.sampled_from(["reward", "terminated", "truncated", "policy_version", "tags"]),
    )  # fmt: skip
    def update(self, actor, which, last, flag, change):
        steps, query = self._choose_steps(which)
        if last and change in ("reward", "terminated"):
            by_attempt = defaultdict(list)
            for step in self.model.steps:
                by_attempt[step.attempt].append(step)
            steps = [
                max(by_attempt[a], key=lambda step: (step.number, step.position))
                for a in {step.attempt for step in steps}
            ]
        else:
            last = False
        values = {"reward": 2.0, "terminated": flag, "truncated": True, "policy_version": 1}
        value = {**values, "tags": {"k": 1}}[change]
        answer = self.actors[actor].act(
            "update", query, **{change: value}, **({"which": "last"} if last else {})
        )
        assert answer == len(steps)
        for step in steps:
            if change == "reward":
                step.attempt.gained = (step.attempt.gained or 0.0) + 2.0 - (step.reward or 0.0)
                step.reward = 2.0
            elif change == "policy_version":
                step.attempt.version = 1
            elif change == "tags":
                step.tag = 1
            else:
                setattr(step, change, value)

    @rule(actor=ACTORS, which=SOME, priority=st.sampled_from([0.0, 1.0, 4.0]))
    def update_priorities(self, actor, which, priority):
        steps, _ = self._choose_steps(which)
        positions = [step.position for step in steps]
        assert self.actors[actor].act(
            "update_priorities",
            [*positions, self.model.added + 5],
            [priority] * (len(positions) + 1),
        ) == len(positions)
        self.actors[actor].act("sampling_state")  # writes them
        for step in steps:
            step.priority = priority

    @rule(actor=ACTORS, which=SOME)
    def delete(self, actor, which):
        steps, query = self._choose_steps(which)
        assert self.actors[actor].act("delete", query) == len(steps)
        self.model.delete(steps)

    @rule(which=INDEX)
    def delete_by_hand(self, which):
        """Delete a step with SQL, but not the last stored step of an episode."""
        last = {step.attempt: step for step in self.model.steps}
        others = [step for step in self.model.steps if step is not last[step.attempt]]
        if others:
            gone = others[which % len(others)]
            self.actors[0].delete_by_hand(gone.position)
            self.model.steps.remove(gone)

    @rule(actor=ACTORS, capacity=st.sampled_from([None, 4, 12, 20]))
    def set_capacity(self, actor, capacity):
        self.actors[actor].act("_set_capacity", capacity)
        self.model.capacity = capacity
        self.model.tidy()

    @rule(actor=ACTORS, really=st.sampled_from([False, False, True]))
    def clear(self, actor, really):
        if really:
            assert self.actors[actor].act("clear") == len(self.model.steps)
            self.model.steps, self.model.attempts = [], {}

    # -- comparisons -------------------------------------------------------------------------------

    @invariant()
    def a_handle_matches_the_model(self):
        if hasattr(self, "model"):
            self._compare(self.actors[next(self.numbers) % 2])

    @rule()
    def the_other_process_matches_the_model(self):
        self._compare(self.actors[2])

    @rule()
    def a_new_handle_matches_the_model(self):
        fresh = Actor(self.location)
        try:
            fresh.use(self.name)
            self._compare(fresh)
        finally:
            fresh.close()

    def _compare(self, actor):
        seen, wanted = actor.see(), self.model.expected()
        type(self).compared += len(wanted["rows"])
        for key, value in wanted.items():
            if key.startswith("masses"):
                assert seen[key].keys() <= value.keys(), key
                assert seen[key] == pytest.approx(
                    {position: value[position] for position in seen[key]}
                ), key
            elif isinstance(value, dict) and key != "count":
                assert seen[key].keys() == value.keys(), key
                for position, what in value.items():
                    assert seen[key][position] == pytest.approx(what, nan_ok=True), (key, position)
            else:
                assert seen[key] == value, key

    def teardown(self):
        if hasattr(self, "model"):
            for actor in self.actors:
                self._compare(actor)
            with expdb.open(self.location) as db:
                assert db.buffer(self.name).check() == []
                db.drop(self.name)


@pytest.mark.parametrize(
    ("steps", "example_steps", "lag_seconds"),
    [(60, 12, 0.0), pytest.param(STEPS or 200, EXAMPLE_STEPS, 0.005, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
def test_handles_of_a_file_match_a_plain_model(tmp_path, steps, example_steps, lag_seconds):
    compare(str(tmp_path / "runs.db"), steps, example_steps, lag_seconds)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
def test_handles_of_a_server_match_a_plain_model(postgresql_url):
    compare(postgresql_url, STEPS // 10 or 160)


def compare(location, steps, example_steps=EXAMPLE_STEPS, lag_seconds=0.0):
    """Run histories with `steps` steps in total, and compare after each step."""
    lag = {"lag": lag_seconds}
    actors = [Actor(location, **lag), Actor(location, 0, **lag), Remote(location, **lag)]
    machine = type("Machine", (Handles,), {"actors": actors, "location": location})
    try:
        run_state_machine_as_test(machine, settings=settings(
            max_examples=max(1, steps // example_steps), stateful_step_count=example_steps,
            deadline=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink], derandomize=not STEPS, print_blob=True,
            report_multiple_bugs=False,
        ))  # fmt: skip
    finally:
        for actor in actors:
            actor.close()
    assert machine.compared > steps, "the histories were too short to tell anything"
