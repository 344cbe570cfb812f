"""Custom samplers and units use only public names, as in docs/how-to/write-a-unit.md."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

import expdb
from expdb import errors
from expdb.testing import check_sampler, check_unit

REPEATED = expdb.Uniform(replace=True)  # also for episodes


@dataclass(frozen=True)
class Curriculum(expdb.Sampler):
    """Prefer steps of tasks that agents seldom solve."""

    least: float = 0.05  # weight of a task that is always solved

    reads = ("task_id", "episode_return")

    def keys(self):
        return ("success_rate",)

    def draw(self, population, size, rng):
        tasks, returns = (population.column(name) for name in self.reads)
        _, first = np.unique(population.column("episode"), return_index=True)  # of each episode
        solved = np.bincount(tasks[first], np.nan_to_num(returns[first]) > 0)
        rate = (solved / np.bincount(tasks[first]))[tasks]
        weights = 1.0 - rate + self.least
        drawn = rng.choice(len(tasks), size, p=weights / weights.sum())
        return population.positions[drawn], {"success_rate": rate[drawn]}


def play(buffer, task, returns, length=3):
    for gained in returns:
        with buffer.episode(task) as episode:
            for n in range(length):
                last = n == length - 1
                episode.append(obs=np.full(2, n), reward=gained if last else 0.0, terminated=last)


@pytest.fixture
def buffer(new_buffer):
    buffer = new_buffer()
    play(buffer, "easy", [1, 1, 1, 1])
    play(buffer, "hard", [0, 0, 0, 1])
    play(buffer, "never", [0, 0, 0, 0], length=2)
    return buffer


@pytest.mark.parametrize("where", [None, np.arange(12, 24)])
@pytest.mark.parametrize("unit", [expdb.Sequence(3), expdb.Pairs(per="task")])
def test_custom_samplers_work_with_every_query_and_unit(buffer, where, unit):
    try:
        wanted = buffer.sample(500, where, unit=unit, sampler=REPEATED, seed=1)
    except expdb.TooFewRows:
        with pytest.raises(expdb.TooFewRows):
            buffer.sample(500, where, unit=unit, sampler=Curriculum(), seed=1)
        return
    batch = buffer.sample(500, where, unit=unit, sampler=Curriculum(), seed=1)
    assert batch.keys() == wanted.keys() | {"success_rate"}
    assert set(np.unique(batch["position"])) <= set(np.unique(wanted["position"]))


@dataclass(frozen=True)
class Wrong(expdb.Sampler):
    result: str

    def draw(self, population, size, rng):
        positions = population.positions[:1].repeat(size)
        match self.result:
            case "one too many":
                return positions.repeat(2), {}
            case "floats":
                return positions.astype(float), {}
            case "no columns":
                return positions
            case "nothing":
                return None
            case "unknown key":
                return positions, {"weight": np.ones(size)}
        return positions, {"task": population.column("task_id")}


@dataclass(frozen=True)
class LostSteps(expdb.Unit):
    pass


@dataclass(frozen=True)
class Twice(expdb.Unit):
    by_episode = True

    def anchors(self, trajectories, rows):
        return rows.repeat(2)

    def layout(self, trajectories, rows, rng):
        return expdb.Layout.of_episodes(trajectories, rows)


@dataclass(frozen=True)
class Unknown(expdb.Sampler):
    reads = ("reward",)

    def draw(self, population, size, rng):
        return population.uniform(size, rng), {}


def sample_positions(buffer, where=None):
    return sorted(buffer.sample(400, where, seed=0)["position"].tolist())


@dataclass(frozen=True)
class Shuffling(expdb.Sampler):
    def draw(self, population, size, rng):
        positions = population.positions
        rng.shuffle(positions)
        return positions[:size], {}


@dataclass(frozen=True)
class Overwriting(expdb.Unit):
    def anchors(self, trajectories, rows):
        rows[:] = rows[0]
        return rows[:1]

    def layout(self, trajectories, rows, rng):
        return expdb.Layout(rows)


def test_cached_positions_and_rows_are_read_only(buffer):
    where = {"task_id": "hard"}
    before = sample_positions(buffer, where)
    with pytest.raises(ValueError, match="read-only"):
        buffer.sample(4, where, sampler=Shuffling())
    with pytest.raises(ValueError, match="read-only"):
        buffer.sample(4, where, unit=Overwriting())
    assert sample_positions(buffer, where) == before


@dataclass(frozen=True)
class Makes(expdb.Unit):
    """A unit with one defect, which `what_goes_wrong` selects."""

    what_goes_wrong: str

    def keys(self):
        return ("age",) if self.what_goes_wrong == "key" else ()

    def may_start(self, trajectories, rows):
        has_previous = trajectories.ordinals(rows) > 0
        wrong = {
            "ints": has_previous.astype(int),
            "few": has_previous[:1],
            "list": has_previous.tolist(),
        }
        return wrong.get(self.what_goes_wrong, has_previous)

    def layout(self, trajectories, rows, rng):
        pairs = np.column_stack((rows, rows))
        return {
            "array": rows,
            "no mask": expdb.Layout(pairs),
            "few rows": expdb.Layout(rows[:2]),
            "other rows": expdb.Layout(rows[::-1]),
            "next rows": expdb.Layout(trajectories.next_steps(rows)),
            "a list": expdb.Layout(rows.tolist()),
            "unknown next": expdb.Layout(rows, next_rows=np.full(len(rows), -1)),
            "far next": expdb.Layout(rows, next_rows=np.full(len(rows), 10**9)),
            "few next": expdb.Layout(rows, next_rows=rows[:2]),
            "mask": expdb.Layout(pairs, mask=np.ones(2, bool)),
            "unknown": expdb.Layout(pairs - 1000, mask=np.ones(pairs.shape, bool)),
            "length": expdb.Layout(rows, {"age": np.ones(len(rows) + 1)}),
            "unnamed": expdb.Layout(rows, {"age": np.ones(len(rows))}),
        }.get(self.what_goes_wrong, expdb.Layout(rows))


@pytest.mark.parametrize("where", [None, {"reward": 0.0}])
def test_invalid_results_of_may_start_and_layout_are_rejected(buffer, where):
    for wrong in ("ints", "few", "list"):
        with pytest.raises(expdb.InvalidValue, match=r"Makes.may_start must return an array"):
            buffer.sample(6, where, unit=Makes(wrong))
    for wrong in (
        "array", "no mask", "few rows", "other rows", "next rows", "mask", "unknown", "length",
        "unnamed", "key", "a list", "unknown next", "far next", "few next",
    ):  # fmt: skip
        with pytest.raises(expdb.InvalidValue, match=r"Makes.layout must return"):
            buffer.sample(6, where, unit=Makes(wrong), seed=0)
    assert buffer.sample(6, where, unit=Makes("nothing")).size == 6


@dataclass(frozen=True)
class Says(expdb.Sampler):
    declarations: tuple

    reads = property(lambda self: self.declarations[0])

    def keys(self):
        return self.declarations[1]

    def draw(self, population, size, rng):
        positions = population.uniform(size, rng)
        return positions, {key: np.zeros(size) for key in self.keys()}


@pytest.mark.parametrize(
    ("declarations", "match"),
    [
        (("task_id", ()), "reads must be a tuple"),
        ((("taskid",), ()), "did you mean 'task_id'"),
        (((), "age"), "must return a tuple of names, got 'age'"),
        (((), ("position",)), "which is reserved"),
        (((), ("reward",)), "Says has the key 'reward', which is reserved"),
        (((), ("discount",)), "both have the key 'discount'"),
    ],
)
def test_invalid_reads_and_keys_of_a_sampler_are_rejected(buffer, declarations, match):
    with pytest.raises(expdb.InvalidValue, match=match):
        buffer.sample(2, sampler=Says(declarations), unit=expdb.NStep(1))


@dataclass
class Changing(expdb.Unit):
    k: int = 0

    def layout(self, trajectories, rows, rng):
        return expdb.Layout(rows)


@dataclass(frozen=True)
class Listing(LostSteps):
    names: list


@dataclass(frozen=True)
class Rewarded(expdb.NStep):
    def may_start(self, trajectories, rows):
        return trajectories.rewards(rows) > 0


@dataclass(frozen=True)
class RewardedStep(expdb.Step):
    def may_start(self, trajectories, rows):
        return trajectories.rewards(rows) > 0


@pytest.mark.parametrize("where", [None, {"task_id": "hard"}])
@pytest.mark.parametrize("unit", [Rewarded(1), RewardedStep()])
@pytest.mark.parametrize("sampler", [expdb.Uniform(), expdb.Prioritized()])
def test_subclasses_of_built_in_units_do_not_share_cached_anchors(buffer, where, unit, sampler):
    for _ in range(2):
        buffer.sample(2, where, unit=expdb.NStep(1), sampler=sampler)
        batch = buffer.sample(100, where, unit=unit, sampler=sampler, seed=0)
        assert set(batch["reward"]) == {1.0}
        buffer.store(task_id="hard", obs=np.zeros(2, int), reward=0.0)


@dataclass(frozen=True)
class Beside(expdb.Uniform):
    def draw(self, population, size, rng):
        positions, columns = super().draw(population, size, rng)
        return positions + 1000, columns


def test_invalid_samplers_and_units_are_rejected(buffer):
    results = ("one too many", "floats", "no columns", "nothing", "unknown key")
    for options, message in (
        *(({"sampler": Wrong(result)}, "Wrong.draw must return positions") for result in results),
        ({"sampler": Wrong("undeclared")}, "is not in `reads`"),
        ({"sampler": Beside()}, "must return positions of the population"),
        ({"sampler": Unknown()}, "'reward' is not a column of episodes; remove this column of"),
        ({"unit": Twice()}, "Twice.anchors must return an integer array"),
        ({"unit": Changing()}, "Changing must be frozen"),
        ({"unit": Listing([1])}, "use a tuple"),
    ):
        with pytest.raises(expdb.InvalidValue, match=message):
            buffer.sample(4, **options)
    for options in ({"sampler": expdb.Sampler()}, {"unit": LostSteps()}):
        with pytest.raises(NotImplementedError, match=r"implement (draw|layout)\(\)"):
            buffer.sample(4, **options)


def test_a_key_with_the_name_of_a_field_warns(buffer):
    for key in ("obs", "next_obs"):
        with pytest.warns(errors.ExpDBWarning, match=f"lack the field '{key}', because Says"):
            buffer.sample(2, sampler=Says(((), (key,))), unit=expdb.NStep(1))
    buffer.sample(2, sampler=Says(((), ("next_obs",))))  # Step has no next_obs


@dataclass(frozen=True)
class Labelled(expdb.Sampler):
    """Add an array `label` of the given dtype."""

    dtype: str

    def keys(self):
        return ("label",)

    def draw(self, population, size, rng):
        return population.uniform(size, rng), {"label": np.ones(size).astype(self.dtype)}


def test_lease_rejects_sampler_arrays_that_are_not_booleans_or_numbers(buffer):
    consumer = buffer.consumer("trainer")
    for dtype in ("U8", "O", "M8[s]"):
        with pytest.raises(expdb.InvalidValue, match="cannot store the array 'label'"):
            consumer.lease(2, sampler=Labelled(dtype))
    consumer.lease(2, sampler=Labelled("f4")).acknowledge()
    assert next(buffer.replay("trainer"))["label"].tolist() == [1.0, 1.0]


@dataclass(frozen=True)
class Trusted(expdb.Sampler):
    """A sampler without checks, whose `draw` returns `function(population, size)`."""

    function: Callable

    checks_results = False

    def keys(self):
        return ("age",)

    def draw(self, population, size, rng):
        return self.function(population, size)


def test_unchecked_samplers_fail_as_checked_ones_if_too_few_steps_match(buffer):
    def draw(population, size):  # each of the two fails if there are no steps
        chosen = np.random.default_rng(0).integers(0, population.size, size)
        return population.at(chosen), {"age": np.ones(size)}

    def draw_some(population, size):
        return population.positions[:size], {"age": np.ones(min(size, population.size))}

    for function in (draw, draw_some, lambda population, size: (population.at([0] * size), {})):
        with pytest.raises(expdb.TooFewRows, match="no steps"):
            buffer.sample(4, {"task_id": "unknown"}, sampler=Trusted(function))
    with pytest.raises(expdb.InvalidValue, match="must return 100 positions, got 32"):
        buffer.consumer("learner").lease(100, sampler=Trusted(draw_some))
    consumer = buffer.consumer("once", max_times_sampled=1)
    assert [batch.size for batch in consumer.batches(20, at_least=1, sampler=Trusted(draw))] == [
        20, 12,
    ]  # fmt: skip


def test_a_lease_rejects_arrays_of_another_length(buffer):
    for age in (np.ones(1), [1.0, 1.0]):
        sampler = Trusted(
            lambda population, size, age=age: (population.at([0] * size), {"age": age})
        )
        with pytest.raises(expdb.InvalidValue, match="one value for each drawn position"):
            buffer.consumer("learner").lease(2, sampler=sampler)


def test_check_sampler_leases_batches_and_does_not_warn_of_its_own_tags(buffer):
    with pytest.raises(expdb.InvalidValue, match="cannot store the array 'label'"):
        check_sampler(Labelled("U8"))
    check_sampler(Labelled("U8"), buffer)  # warnings are errors


@dataclass
class Unhashable(expdb.Sampler):
    """A sampler that is not frozen."""


def test_check_functions_name_arguments_of_a_wrong_type(buffer):
    for check, extension in ((check_sampler, expdb.Uniform()), (check_unit, expdb.Step())):
        with pytest.raises(AssertionError, match="as the first argument, got ReplayBuffer"):
            check(buffer, extension)
        with pytest.raises(AssertionError, match="as the second argument, got int"):
            check(extension, 32)


def test_check_functions_explain_how_to_make_a_class_hashable():
    for check, extension in ((check_sampler, Unhashable()), (check_unit, Listing([1]))):
        with pytest.raises(AssertionError, match=r"must be hashable .*, and use tuples"):
            check(extension)


@dataclass(frozen=True)
class Budgeted(expdb.Step):
    """A unit with a budget that selects items with `function`."""

    function: Callable

    has_budget = True

    def keys(self):
        return ("mask",)

    def layout(self, trajectories, rows, rng):
        return expdb.Layout(rows[:, None], mask=np.ones((len(rows), 1), bool))

    def select_within_budget(self, *arguments):
        return self.function()


def test_invalid_results_of_select_within_budget_are_rejected(buffer):
    for result in (None, [True, True], np.ones(2), np.ones(3, bool), np.zeros(2, bool)):
        with pytest.raises(expdb.InvalidValue, match=r"Budgeted.select_within_budget must return"):
            buffer.sample(2, unit=Budgeted(lambda result=result: result))
    assert buffer.sample(2, unit=Budgeted(lambda: np.array([True, False]))).size == 1


@dataclass(frozen=True)
class Unchecked(expdb.Unit):
    """Return the number of each step, without checks of expdb."""

    copies: bool

    checks_results = False
    window = range(1)

    def keys(self):
        return ("number",)

    def layout(self, trajectories, rows, rng):
        numbers = trajectories.numbers(rows)
        return expdb.Layout(rows, {"number": numbers.copy() if self.copies else numbers})


def test_a_class_can_turn_off_the_checks_of_its_results():
    check_unit(Unchecked(True))
    with pytest.raises(AssertionError, match="the batch before"):
        check_unit(Unchecked(False))  # later draws overwrite the array


def test_subclasses_do_not_inherit_that_results_are_not_checked(buffer):
    assert not expdb.NStep.checks_results
    assert RewardedStep.checks_results
    assert Beside.checks_results
    with pytest.raises(expdb.InvalidValue, match=r"Trusted.layout must return"):
        check_unit(dataclass(frozen=True)(type("Trusted", (Makes,), TRUSTED))("next rows"))


TRUSTED = {"checks_results": False}


@dataclass(frozen=True)
class UniformOrNewest(expdb.Sampler):
    """Draw from all steps or only the newest step, each with probability 0.5."""

    checks_results = False

    def draw(self, population, size, rng):
        if rng.random() < 0.5:
            return population.newest(1).draw(size, True, rng), {}
        return population.uniform(size, rng), {}


def test_an_unchecked_sampler_can_change_how_it_draws(scratch):
    scratch.store_batch({"x": np.arange(50)})
    for unit in (expdb.Step(), Unchecked(True)):
        batches = [
            scratch.sample(8, sampler=UniformOrNewest(), unit=unit)["position"] for _ in range(40)
        ]
        is_newest = [(positions == 49).all() for positions in batches]
        assert 5 < sum(is_newest) < 35  # fails with a probability of about 1e-6
        drawn = np.concatenate(batches)
        assert len(set(drawn.tolist())) > 30
    check_sampler(UniformOrNewest())


@dataclass(frozen=True)
class InPlace(expdb.Sampler):
    """Draw uniformly, then change the drawn positions in place."""

    checks_results = False

    def draw(self, population, size, rng):
        positions = population.uniform(size, rng)
        positions[:] = population.newest(1).draw(1, True, rng)
        return positions, {}


def test_a_sampler_that_changes_drawn_positions_in_place_is_detected():
    with pytest.raises(AssertionError, match="the batch differs without checks"):
        check_sampler(InPlace())


@dataclass(frozen=True, slots=True)
class Slotted(expdb.Unit):
    scale: float = field(default=1.0, compare=False)

    def keys(self):
        return ("scaled",)

    def layout(self, trajectories, rows, rng):
        return expdb.Layout(rows, {"scaled": np.full(len(rows), self.scale)})


class Latest(expdb.Uniform):
    """A subclass whose constructor has other parameters."""

    def __init__(self, k):
        super().__init__()
        object.__setattr__(self, "k", k)

    def draw(self, population, size, rng):
        return population.newest(self.k).draw(size, True, rng), {}


@dataclass
class Mutable(expdb.Sampler):
    column: str

    @property
    def reads(self):
        return (self.column,)

    def draw(self, population, size, rng):
        population.column(self.column)
        return population.uniform(size, rng), {}


@dataclass(unsafe_hash=True)
class Renamed(expdb.Sampler):
    name: str

    def keys(self):
        return (self.name,)

    def draw(self, population, size, rng):
        return population.uniform(size, rng), {self.name: np.ones(size)}


def test_a_sampler_can_change_between_samples_if_its_hash_changes(buffer):
    sampler = Renamed("first")
    for options in ({}, {"at_least": 1}, {"shard": (0, 1)}):
        sampler.name = "first"
        assert "first" in buffer.sample(2, sampler=sampler, **options)
        sampler.name = "second"
        assert "second" in buffer.sample(2, sampler=sampler, **options)


def test_settings_that_equality_does_not_compare_take_effect(buffer):
    scaled = [buffer.sample(2, unit=Slotted(scale))["scaled"][0] for scale in (1.0, 2.0)]
    assert scaled == [1.0, 2.0]
    newest = int(buffer.sample(1, sampler=expdb.Newest(1))["position"][0])
    assert set(buffer.sample(4, sampler=Latest(1))["position"].tolist()) == {newest}
    sampler = Mutable("task_id")
    buffer.sample(2, sampler=sampler)
    sampler.column = "agent_id"
    assert buffer.sample(2, sampler=sampler).size == 2


@dataclass(frozen=True)
class Asks(expdb.Unit):
    """Build the layout with a function of the test."""

    function: Callable

    def keys(self):
        return ("mask", "one")

    def layout(self, trajectories, rows, rng):
        return self.function(trajectories, rows)


def build_window_layout(trajectories, rows, rows_around, mask=None):
    mask = rows_around >= 0 if mask is None else mask
    return expdb.Layout(rows_around, {"mask": mask, "one": np.ones(len(rows))}, mask)


def test_trajectory_methods_return_missing_values_for_row_minus_one(buffer):
    def build_layout(trajectories, rows):
        none = np.full(3, -1)
        for method in ("next_steps", "previous_steps", "successors", "ordinals", "episodes"):
            assert getattr(trajectories, method)(none).tolist() == [-1, -1, -1], method
        assert trajectories.positions(none).tolist() == [-1, -1, -1]
        assert np.isnan(trajectories.rewards(none)).all()
        assert not (trajectories.terminated(none) | trajectories.truncated(none)).any()
        assert not trajectories.episode_lengths(none).any()
        path = [rows]
        for _ in range(9):
            path.append(trajectories.next_steps(path[-1]))
        return build_window_layout(trajectories, rows, np.stack(path, 1))

    batch = buffer.sample(50, unit=Asks(build_layout), seed=0)
    for position, mask in zip(batch["position"], batch["mask"], strict=True):
        count = mask.sum()
        assert mask[:count].all()
        assert (np.diff(position[:count]) == 1).all()
        assert (position[count:] == -1).all()
    buffer.capacity = 7  # the stored rows wrap around the end of the ring
    play(buffer, "hard", [1.0, 0.0])
    assert buffer.sample(5, unit=Asks(build_layout), seed=0).size == 5


def test_layout_rows_without_a_stored_step_are_rejected(buffer):
    buffer.delete({"step": 1})

    def build_layout(trajectories, rows):
        every = np.arange(trajectories.slots)
        return build_window_layout(trajectories, rows, np.tile(every, (len(rows), 1)))

    buffer.sample(1)  # the second sample loads all rows
    with pytest.raises(expdb.InvalidValue, match="rows of stored steps wherever its mask is True"):
        buffer.sample(4, unit=Asks(build_layout))


def test_the_mask_key_must_equal_the_mask_of_the_layout(buffer):
    def other(trajectories, rows):
        pairs = np.column_stack((rows, trajectories.next_steps(rows)))
        return expdb.Layout(pairs, {"mask": pairs < 10**9, "one": np.ones(len(rows))}, pairs >= 0)

    with pytest.raises(expdb.InvalidValue, match="layout returned a mask"):
        buffer.sample(20, unit=Asks(other), seed=0)


def test_reusing_an_array_in_layout_does_not_change_earlier_batches(buffer):
    kept = np.zeros(4)

    def build_layout(trajectories, rows):
        kept[:] = rows
        mask = np.ones((4, 1), bool)
        return expdb.Layout(rows[:, None], {"mask": mask, "one": kept}, mask)

    first = buffer.sample(4, unit=Asks(build_layout), seed=0)
    before = first["one"].tolist()
    buffer.sample(4, unit=Asks(build_layout), seed=1)
    assert first["one"].tolist() == before


@dataclass(frozen=True)
class Around(expdb.Unit):
    """Return the steps around a step: arrays are [B, 2 * steps + 1]."""

    steps: int = 2

    @property
    def window(self):
        return range(-self.steps, self.steps + 1)

    def keys(self):
        return ("mask", "rewarded")

    def layout(self, trajectories, rows, rng):
        around = trajectories.around(rows, self.window)
        rewarded = (trajectories.rewards(around) > 0).sum(1)
        return expdb.Layout(around, {"rewarded": rewarded}, mask=around >= 0)


@dataclass(frozen=True)
class AroundOneByOne(Around):
    """Return the same steps without declaring a window."""

    window = None

    def layout(self, trajectories, rows, rng):
        columns = [rows]
        for _ in range(self.steps):
            columns.insert(0, trajectories.previous_steps(columns[0]))
        for _ in range(self.steps):
            columns.append(trajectories.next_steps(columns[-1]))
        around = np.column_stack(columns)
        rewarded = (trajectories.rewards(around) > 0).sum(1)
        return expdb.Layout(around, {"rewarded": rewarded}, mask=around >= 0)


@pytest.mark.parametrize("sampler", [expdb.Uniform(), expdb.Prioritized(), Curriculum()])
@pytest.mark.parametrize("where", [None, {"task_id": "hard"}])
def test_a_custom_window_contains_the_steps_around_each_drawn_step(buffer, where, sampler):
    buffer.delete([13])
    for steps in (1, 4):
        batch, other = (
            buffer.sample(40, where, unit=unit, sampler=sampler, seed=0)
            for unit in (Around(steps), AroundOneByOne(steps))
        )
        np.testing.assert_equal(dict(batch), dict(other))
        assert not batch["mask"].all()


@dataclass(frozen=True)
class Answers(expdb.Unit):
    """Return the best and the worst answer to a prompt, each as a row of tokens with a mask."""

    group = expdb.Group(2, complete=True, min_spread=1e-6)
    by_episode = True
    reads = group.reads

    def keys(self):
        return self.group.keys()

    def anchors(self, trajectories, rows):
        return self.group.anchors(trajectories, rows)

    def layout(self, trajectories, rows, rng):
        return self.group.layout(trajectories, rows, rng)

    def assemble(self, batch, rng):
        order = batch["episode_return"].argsort(1)[:, ::-1]  # the better one first
        drawn = np.arange(len(order)).repeat(2)
        turns = batch["tokens"][drawn, order.reshape(-1)]
        there = batch["mask"][drawn, order.reshape(-1)]
        rows = [np.concatenate(row[mask]) for row, mask in zip(turns, there, strict=True)]
        longest = max(map(len, rows))
        tokens, mask = np.zeros((len(rows), longest), np.int32), np.zeros((len(rows), longest), "?")
        for k, row in enumerate(rows):
            tokens[k, : len(row)], mask[k, : len(row)] = row, True
        return {"input_ids": tokens, "mask": mask, "drawn": drawn}


def answer(buffer, task, gained, lengths):
    with buffer.episode(task) as episode:
        for t, length in enumerate(lengths):
            last = t == len(lengths) - 1
            tokens = np.full(length, 10 * gained + t, np.int32)
            episode.append(tokens=tokens, reward=gained if last else 0.0, terminated=last)


@pytest.fixture
def answers(new_buffer):
    tokens = expdb.Field("int32", shape=(None,))
    buffer = new_buffer(fields={"tokens": tokens})
    for k in range(6):
        answer(buffer, f"prompt {k}", 0, [3, 2])
        answer(buffer, f"prompt {k}", k + 1, [1 + k])
    return buffer


def test_assembled_rows_refer_to_their_drawn_items(answers):
    batch = answers.sample(5, unit=Answers(), sampler=expdb.Prioritized(), seed=0)
    assert set(batch) == {"input_ids", "mask", "drawn", "position", "weight", "probability"}
    assert batch.size == 10
    assert batch["drawn"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for k in range(5):
        better, worse = (batch["input_ids"][row][batch["mask"][row]] for row in (2 * k, 2 * k + 1))
        assert worse.tolist() == [0, 0, 0, 1, 1]
        gained = int(better[0]) // 10
        assert better.tolist() == [10 * gained] * gained
        assert set(batch["position"][[2 * k, 2 * k + 1]]) == {3 * (gained - 1)}
    assert answers.update_priorities(batch["position"], np.arange(10.0)) == 10
    fields = answers.sample(2, unit=Answers(), fields=["tokens"], seed=0)
    assert set(fields) == {"input_ids", "mask", "drawn", "position"}


def test_replay_finds_units_by_name_or_in_the_units_argument(answers, monkeypatch):
    name = f"Elsewhere{next(NUMBERS)}"  # earlier runs leave their classes behind

    def define(**settings):
        kind = type(
            name, (Answers,), {"__annotations__": dict.fromkeys(settings, tuple), **settings}
        )
        return dataclass(frozen=True)(kind)

    elsewhere = define(newest=(1, 2))
    with answers.consumer("trainer").lease(2, unit=elsewhere()) as lease:
        batch = {key: np.array(lease[key]) for key in lease}
    for replayed in (answers.replay("trainer"), answers.replay("trainer", units=[elsewhere])):
        assert all((array == batch[key]).all() for key, array in next(replayed).items())
    monkeypatch.setattr(elsewhere, "__module__", "some_module_of_another_program")
    with pytest.raises(
        expdb.InvalidValue, match=rf"import the module of the unit, pass units=\[{name}\]"
    ):
        next(answers.replay("trainer"))
    assert next(answers.replay("trainer", units=[elsewhere])).size == 4
    for wrong in (elsewhere(), [elsewhere()], "Elsewhere"):
        with pytest.raises(expdb.InvalidValue, match="units must be classes"):
            answers.replay("trainer", units=wrong)
    monkeypatch.undo()
    newest = define()  # its author has removed a setting
    with pytest.raises(expdb.InvalidValue, match="another version of the unit"):
        next(answers.replay("trainer"))
    with pytest.raises(expdb.InvalidValue, match="another version of the unit"):
        next(answers.replay("trainer", units=[newest]))
    assert next(answers.replay("trainer", units=[elsewhere])).size == 4


NUMBERS = itertools.count()


def test_replay_does_not_import_modules_named_in_the_database(answers):
    @dataclass(frozen=True)
    class Mark(Answers):
        pass

    Mark.__module__ = "antigravity"
    with answers.consumer("trainer").lease(2, unit=Mark()):
        pass
    Mark.__module__ = "elsewhere"
    with pytest.raises(expdb.InvalidValue, match=r"the unit antigravity\..*Mark"):
        next(answers.replay("trainer"))
    assert "antigravity" not in sys.modules


@dataclass(frozen=True)
class Assembles(Answers):
    wrong: str = ""

    def assemble(self, batch, rng):
        good = super().assemble(batch, rng)
        return {
            "a list": list(good),
            "no array": good | {"mask": 3},
            "nothing": {"drawn": good["drawn"]},
            "no rows": {name: array[:0] for name, array in good.items()},
            "lengths": good | {"mask": good["mask"][:1]},
            "no drawn": {"mask": good["mask"]},
            "far": good | {"drawn": good["drawn"] + 100},
            "floats": good | {"drawn": good["drawn"] / 2},
        }[self.wrong]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ("a list", "a mapping of names to arrays, got list"),
        ("no array", "got int for 'mask'"),
        ("nothing", "at least one array besides 'drawn'"),
        ("no rows", "at least one row, got none for 4 items"),
        ("lengths", "arrays of one length, but 'input_ids' has 8 rows and 'mask' has 1"),
        ("no drawn", "'drawn' if the number of rows differs from the number of items, got 8 rows"),
        ("far", "'drawn' as an integer array"),
        ("floats", "'drawn' as an integer array"),
    ],
)
def test_invalid_assembled_arrays_are_rejected(answers, wrong, match):
    with pytest.raises(expdb.InvalidValue, match=match):
        answers.sample(4, unit=Assembles(wrong), seed=0)


@dataclass(frozen=True)
class Halves(expdb.Unit):
    """Return every second step, with an anchor key."""

    half: int = 0
    anchor_key = property(lambda self: ("half", self.half))
    reach = 1

    def may_start(self, trajectories, rows):
        return trajectories.ordinals(rows) % 2 == self.half

    def layout(self, trajectories, rows, rng):
        return expdb.Layout(rows)


@dataclass(frozen=True)
class Offsets(expdb.Unit):
    """Return the steps at some offsets, independently of the window."""

    window: range | None = None
    offsets: tuple[int, int, int] = (0, 1, 1)

    def keys(self):
        return ("mask",)

    def layout(self, trajectories, rows, rng):
        around = trajectories.around(rows, range(*self.offsets))
        return expdb.Layout(around, mask=around >= 0)


@pytest.mark.parametrize("offsets", [(0, 3, 2), (2, -2, -1), (0, 0, 1)])
@pytest.mark.parametrize("window", [None, range(1, 3), range(-2, 3)])
def test_around_returns_the_requested_offsets_for_every_window(buffer, window, offsets):
    batch = buffer.sample(40, unit=Offsets(window, offsets), fields=["position", "mask"], seed=0)
    drawn = buffer.sample(40, fields=["position", "episode", "step"], seed=0)
    length = {row["episode"]: row["length"] for row in buffer.episodes().to_pylist()}
    assert batch["position"].shape == (40, len(range(*offsets)))
    for k, offset in enumerate(range(*offsets)):
        steps = drawn["step"] + offset
        there = (steps >= 0) & (steps < [length[episode] for episode in drawn["episode"].tolist()])
        assert (batch["mask"][:, k] == there).all()
        assert (batch["position"][:, k] == np.where(there, drawn["position"] + offset, -1)).all()


@pytest.mark.parametrize("window", [range(0, 6, 2), (0, 1), 3, range(2, -2, -1)])
def test_a_window_must_be_a_range_of_consecutive_offsets(buffer, window):
    with pytest.raises(expdb.InvalidValue, match=r"Offsets.window must be None or a range"):
        buffer.sample(2, unit=Offsets(window, (0, 1, 1)))


def test_sharding_keeps_the_rows_of_an_item_on_one_rank(answers):
    lease = answers.consumer("trainer").lease(4, unit=Answers(), pin=True)
    parts = [answers.consumer("trainer").shared(lease.id, shard=(k, 2)) for k in range(2)]
    assert [part["drawn"].tolist() for part in parts] == [[0, 0, 2, 2], [1, 1, 3, 3]]
    for part in parts:
        for key in part:
            rows = np.isin(lease.batch["drawn"], part["drawn"])
            np.testing.assert_array_equal(part[key], lease.batch[key][rows])


def test_the_error_for_a_key_missing_in_assemble_mentions_fields(answers):
    with pytest.raises(
        expdb.InvalidValue, match=r"Answers.assemble requires a key that is not in fields="
    ):
        answers.sample(2, unit=Answers(), fields=["reward"])


@dataclass(frozen=True)
class Chosen(Answers):
    names: frozenset = frozenset("a")


def test_replay_requires_units_whose_settings_json_cannot_represent(answers):
    with answers.consumer("trainer").lease(2, unit=Chosen()):
        pass
    with pytest.raises(
        expdb.InvalidValue, match=r"frozenset\(\{'a'\}\), which JSON cannot represent"
    ):
        next(answers.replay("trainer"))
    assert next(answers.replay("trainer", unit=Chosen())).size == 4


@dataclass(frozen=True)
class AfterNext(expdb.Unit):
    """Return the steps around the next step, if there is one."""

    def keys(self):
        return ("mask",)

    def layout(self, trajectories, rows, rng):
        around = trajectories.around(trajectories.next_steps(rows), range(-1, 2))
        back = trajectories.previous_steps(around)
        assert back.shape == around.shape
        assert (back[:, 1:][around[:, 1:] >= 0] >= 0).all()
        return expdb.Layout(around, mask=around >= 0)


def test_around_masks_all_offsets_of_a_missing_row(open_db):
    buffer = open_db().buffer("train", capacity=20)
    for _ in range(9):  # wraps around the end of the ring
        play(buffer, "t", [1.0])
        buffer.sample(2, unit=expdb.NStep(1))
    batch = buffer.sample(90, unit=AfterNext(), fields=["step", "mask"], seed=0)
    assert set(map(tuple, batch["mask"].tolist())) == {
        (True, True, True),
        (True, True, False),
        (False,) * 3,
    }
    with pytest.raises(expdb.InvalidValue, match=r"pass rows \[B\] to around"):
        buffer.sample(2, unit=Flat())


@dataclass(frozen=True)
class Flat(expdb.Unit):
    def layout(self, trajectories, rows, rng):
        return trajectories.around(rows[:, None], range(2))


@dataclass(frozen=True)
class Scaled(expdb.Unit):
    """A unit with a setting that is not compared, such as a tokenizer or a model."""

    k: object = 1
    scale: float = field(default=1.0, compare=False)

    def keys(self):
        return ("scaled", "kind")

    def layout(self, trajectories, rows, rng):
        kinds = np.full(len(rows), repr(self.k))
        return expdb.Layout(rows, {"scaled": np.full(len(rows), self.scale), "kind": kinds})


@dataclass(frozen=True)
class Pick(expdb.Sampler):
    place: int = field(default=0, compare=False)

    def draw(self, population, size, rng):
        return population.at(np.full(size, self.place)), {}


def test_equal_units_and_samplers_with_different_settings_are_distinct(buffer):
    for _ in range(2):
        for scale in (1.0, 2.0):
            assert set(buffer.sample(3, unit=Scaled(scale=scale))["scaled"]) == {scale}
        for k in (1, True, 1.0):
            assert set(buffer.sample(3, unit=Scaled(k))["kind"]) == {repr(k)}
        for place in (0, 7):
            assert set(buffer.sample(3, sampler=Pick(place))["position"]) == {place}
    consumer = buffer.consumer("trainer")
    for scale in (1.0, 2.0):
        with consumer.lease(2, unit=Scaled(scale=scale)) as batch:
            assert set(batch["scaled"]) == {scale}
    assert [set(batch["scaled"]) for batch in buffer.replay("trainer")] == [{1.0}, {2.0}]
