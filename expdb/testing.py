"""Checks for your own samplers, units and databases.

Call these functions in your tests. If a sampler, a unit or a database breaks its contract, they
raise AssertionError, or the exception that sampling raises:

>>> from expdb.testing import check_sampler, check_unit
>>> check_sampler(expdb.Uniform(replace=False))
>>> check_unit(expdb.NStep(3))
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import expdb
from expdb import errors

__all__ = ["check_database", "check_sampler", "check_unit", "fill"]

QUERIES: dict[str, Any] = {
    "every step": None,
    "reward >= 2": expdb.QueryBuilder().gte("reward", 2.0),
    "complete episodes of a task": {"task_id": "t1", "status": "complete"},
    "a tag": {"tags.kind": "odd"},
    "long episodes, or rewards of 0": (
        expdb.QueryBuilder().gt("length", 4).or_().eq("reward", 0.0)
    ),
}
OTHERS = (expdb.Uniform(replace=True), expdb.Uniform(replace=False), expdb.Prioritized())
SEED = 7
_TIMES = ["execute_time", "started", "ended"]


def fill(buffer: expdb.ReplayBuffer, episodes: int = 24) -> None:
    """Write episodes of many kinds to a buffer.

    The episodes belong to three tasks and two agents, with and without a group and a final
    observation. They are complete, except for one aborted episode, which is stored out of order,
    and one open episode. Some steps lack a field or a reward. One reward is changed after it was
    stored, if there are more than eight episodes.

    Parameters
    ----------
    buffer : ReplayBuffer
        An empty buffer.
    episodes : int, default 24
        Number of complete episodes, of 1 to 8 steps.

    Raises
    ------
    EpisodeMismatch
        If the buffer has episodes with the same ids, for example because it was filled before.
    FieldMismatch
        If the buffer has fields with the same names but other types.

    Warns
    -----
    ExpDBWarning
        If `episodes` is 8 or less, because the episode to change does not exist.
    """
    for number in range(episodes):
        length = 1 + number * 5 % 8
        with buffer.episode(
            f"t{number % 3}",
            episode_id=f"e{number}",
            agent_id=f"agent {number % 2}",
            group_id=f"g{number // 4}" if number % 5 else None,
            policy_version=number // 6,
            episode_tags={"level": number % 4},
            flush_steps=3,
        ) as episode:
            for t in range(length):
                last = t == length - 1
                extra: dict[str, Any] = {"note": f"{number}.{t}"} if t % 2 else {}
                episode.append(
                    obs=np.full(3, 100 * number + t, np.float32),
                    action=t % 4,
                    reward=None if (number + t) % 7 == 0 else float((number + t) % 4),
                    terminated=last and number % 3 == 0,
                    truncated=last and number % 3 == 1,
                    tags={"kind": "odd" if t % 2 else "even"},
                    **extra,
                )
            if number % 3 == 2:
                episode.end(obs=np.full(3, 100 * number + length, np.float32))
    for step in (2, 0, 1):
        buffer.store(
            task_id="t1", episode_id="shuffled", step=step, obs=np.zeros(3, np.float32), action=0
        )
    buffer.end_episode("shuffled", "aborted")
    buffer.store(task_id="t2", episode_id="open", obs=np.ones(3, np.float32), action=1, reward=1.0)
    buffer.delete({"episode_id": "e5", "step": 2})
    buffer.update({"episode_id": "e8"}, reward=3.0, which="last")


def check_sampler(
    sampler: expdb.Sampler, buffer: expdb.ReplayBuffer | None = None, *, size: int = 32
) -> None:
    """Check that a sampler keeps its contract.

    The sampler must be hashable and equal to its copies, draw only steps that match the query,
    return each of its keys with one value per row, and draw the same batch for the same seed.
    Without `buffer`, the check also leases and replays batches, which must be equal bit for bit.
    Writing to a batch must not change the next batch.

    Parameters
    ----------
    sampler : Sampler
        The sampler to check.
    buffer : ReplayBuffer, optional
        Buffer to sample from. Pass one if the sampler needs particular fields. By default a
        temporary buffer that `fill` writes.
    size : int, default 32
        Number of rows per batch. If fewer can be drawn, the check draws one row.

    Raises
    ------
    AssertionError
        If the sampler breaks its contract, or if no query allows a sample.
    ExpDBError
        If `ReplayBuffer.sample` raises it, except `TooFewRows`.

    Examples
    --------
    >>> check_sampler(expdb.Uniform(replace=False))
    """
    _check_value(sampler, expdb.Sampler)
    checked, drawn_at_all = _with_checks(sampler), False
    with _filled(buffer) as filled:
        for name, where in QUERIES.items():
            matching = {row for batch in filled.scan(where) for row in batch["position"].tolist()}
            label = f"{sampler}, {name}"
            sampled = _sample(filled, size, where, sampler=sampler, unit=expdb.Step())
            if sampled is None:
                continue
            (batch, wanted), drawn_at_all = sampled, True
            if checked is not sampler:
                expected = filled.sample(wanted, where, sampler=checked, seed=SEED)
                _same_batch(batch, expected, f"{label}: the batch differs without checks")
            drawn = set(batch["position"].tolist())
            assert drawn <= matching, f"{label}: drew {min(drawn - matching)}, which does not match"
            for key in tuple(sampler.keys()):
                assert isinstance(batch[key], np.ndarray), f"{label}: {key} must be a NumPy array"
                assert len(batch[key]) == batch.size, f"{label}: {key} has {len(batch[key])} rows"
            _check_again(filled, batch, wanted, label, where, sampler=sampler, unit=expdb.Step())
            if buffer is None:
                _check_replay(filled, label, where, sampler=sampler, unit=expdb.Step())
    if checked is not sampler and buffer is None:
        _check_in_memory(sampler, checked, size)
    assert drawn_at_all, f"{sampler}: nothing could be drawn, so nothing was checked; pass a buffer"


def check_unit(
    unit: expdb.Unit, buffer: expdb.ReplayBuffer | None = None, *, size: int = 8
) -> None:
    """Check that a unit keeps its contract.

    The unit must be hashable and equal to its copies, return arrays of equal length, return each
    of its keys, and return the same batch for the same seed. Where ``mask`` is False, ``position``
    must be -1, and ``obs`` and ``action`` must be zero. If the unit overrides `assemble`, the
    check verifies ``drawn`` instead: all rows of a drawn item must have the position of one stored
    step. Writing to a batch must not change the next batch. Without `buffer`, the check also
    leases and replays batches, which must be equal bit for bit. The results of the methods are
    checked even if `checks_results` is False.

    Parameters
    ----------
    unit : Unit
        The unit to check.
    buffer : ReplayBuffer, optional
        Buffer to sample from. Pass one if the unit needs particular fields. By default a temporary
        buffer that `fill` writes.
    size : int, default 8
        Number of items per batch. If fewer can be drawn, the check draws one item.

    Raises
    ------
    AssertionError
        If the unit breaks its contract, or if no query allows a sample.
    ExpDBError
        If `ReplayBuffer.sample`, a lease or a replay raises it, except `TooFewRows`.

    Examples
    --------
    >>> check_unit(expdb.NStep(3))
    """
    _check_value(unit, expdb.Unit)
    checked, drawn_at_all = _with_checks(unit), False
    with _filled(buffer) as filled:
        for name, where in QUERIES.items():
            for sampler in OTHERS:
                label = f"{unit}, {type(sampler).__name__}, {name}"
                if checked is not unit:
                    _sample(filled, size, where, sampler=sampler, unit=checked)
                sampled = _sample(filled, size, where, sampler=sampler, unit=unit)
                if sampled is None:
                    continue
                (batch, wanted), drawn_at_all = sampled, True
                for key in batch:
                    assert len(batch[key]) == batch.size, (
                        f"{label}: the length of {key} differs from the batch size"
                    )
                for key in () if unit.assembles else tuple(unit.keys()):
                    assert key in batch, f"{label}: the batch lacks {key}, which keys() lists"
                if unit.assembles:
                    _check_drawn(filled, batch, label)
                else:
                    _check_mask(batch, label)
                _check_again(filled, batch, wanted, label, where, sampler=sampler, unit=unit)
                if buffer is None:
                    _check_replay(filled, label, where, sampler=sampler, unit=unit)
    assert drawn_at_all, f"{unit}: nothing could be drawn, so nothing was checked; pass a buffer"


def check_database(location: str) -> None:
    """Check that a database returns the same results as SQLite.

    The check writes the same history to the buffer ``"b"`` of the database and of a temporary
    SQLite database, and checks the rules for step numbers. Then it compares queries, pages,
    batches, SQL results and statistics. The buffer remains in the database.

    Parameters
    ----------
    location : str
        Location of a database without data, as for `expdb.open`.

    Raises
    ------
    AssertionError
        If a result differs, or if ``check()`` finds a problem.
    ExpDBError
        If the database cannot be opened, written or read.
    """
    with (
        expdb.open(":memory:", run="one run") as reference,
        expdb.open(location, run="one run") as db,
    ):
        ours, theirs = reference.buffer("b", capacity=90), db.buffer("b", capacity=90)
        for buffer in (ours, theirs):
            fill(buffer)
            _check_step_numbers(buffer)
            buffer.update_priorities(np.arange(60, 100), np.arange(40) % 5)
        for name, where in {**QUERIES, **_operators()}.items():
            counts = [b.count(where) for b in (ours, theirs)]
            assert counts[0] == counts[1], (
                f"{name}: {counts[1]} steps match, but {counts[0]} on SQLite"
            )
            rows = [b.to_arrow(where).read_all().drop_columns(_TIMES) for b in (ours, theirs)]
            _same(rows[1].to_pylist(), rows[0].to_pylist(), name)
            _same(theirs.tasks(where), ours.tasks(where), name)
        for unit in (expdb.Step(), expdb.NStep(2), expdb.Sequence(3), expdb.Episode()):
            for sampler in OTHERS:
                pair = [b.sample(16, sampler=sampler, unit=unit, seed=SEED) for b in (ours, theirs)]
                _same_batch(pair[1], pair[0], f"{unit}, {sampler}")
        for statement in _STATEMENTS:
            _same(db.sql(statement).to_pydict(), reference.sql(statement).to_pydict(), statement)
        figures = [{**b.stats(), "revision": None} for b in (ours, theirs)]
        _same(figures[1], figures[0], "stats")
        problems = db.check()
        assert problems == [], f"check() found {problems}"


def _check_step_numbers(buffer: expdb.ReplayBuffer) -> None:
    """Check that the database identifies steps by their episode, agent and number."""
    values: dict[str, Any] = {"obs": np.zeros(3, np.float32), "action": 1}
    step = {"task_id": "t0", "episode_id": "numbers", "step": 2, **values}
    position = buffer.store(**step)
    assert buffer.store(**step) == position, "a repeated step was stored again"
    try:
        buffer.store(**{**step, "action": 2})
    except expdb.InvalidValue:
        earlier = buffer.store(**{**step, "step": 1})
    else:
        raise AssertionError("a step with other values was stored under a taken number")
    others = [buffer.store(**{**step, "step": None, "agent_id": "other"}) for _ in range(2)]
    numbers = buffer.get([position, earlier, *others])["step"].tolist()
    assert numbers == [2, 1, 0, 1], f"the steps have the numbers {numbers}"
    buffer.end_episode("numbers")


_STATEMENTS = (
    "SELECT task_id, count(*) AS steps, sum(reward) AS total FROM experience "
    "GROUP BY task_id ORDER BY task_id",
    "SELECT episode_id, status, length, episode_return FROM experience_episodes "
    "ORDER BY episode_id",
    "SELECT position, field(payload, 'action') AS action, field(payload, 'note') AS note "
    "FROM experience ORDER BY position",
)


def _operators() -> dict[str, Any]:
    """Return queries that use further operators, kinds of columns, and tags."""
    build = expdb.QueryBuilder
    return {
        "ne": build().ne("task_id", "t1"),
        "in": build().in_("step", [0, 3]),
        "not in": build().not_in("agent_id", ["agent 0"]),
        "like": build().like("episode_id", "e1%"),
        "not like": build().not_like("episode_id", "%\\_%"),
        "is null": build().is_null("reward"),
        "is not null": build().is_not_null("group_id"),
        "a flag": build().eq("terminated", True),
        "a tag of an episode": build().gte("episode_tags.level", 2),
        "a priority": build().gt("priority", 2.0),
        "positions": np.array([3, 70, 71, 10_000]),
    }


def _stored_positions(buffer: expdb.ReplayBuffer) -> np.ndarray:
    parts = [part["position"] for part in buffer.scan(fields=["position"])]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _with_checks(extension: Any) -> Any:
    """Return a sampler or unit whose results are checked: itself, or a copy of another class."""
    if extension.checks_results:
        return extension
    base = type(extension)
    kind: Any = type(base.__name__, (base,), {"__module__": __name__, "checks_results": True})
    copied = copy.copy(extension)
    object.__setattr__(copied, "__class__", kind)
    return copied


def _check_in_memory(sampler: expdb.Sampler, checked: expdb.Sampler, size: int) -> None:
    """Check that a sampler draws the same with and without checks from plain rows in memory."""
    with expdb.open(":memory:") as db:
        buffer = db.buffer("plain")
        buffer.store_batch({"obs": np.arange(1500.0), "action": np.zeros(1500, np.int64)})
        for _ in range(2):  # the first sample loads the rows
            sampled, expected = (
                _sample(buffer, size, None, sampler=each) for each in (sampler, checked)
            )
        if sampled is not None and expected is not None:
            label = f"{sampler}: the batch differs without checks"
            _same_batch(sampled[0], expected[0], label)


def _check_value(extension: Any, kind: type) -> None:
    """Check that a sampler or unit is hashable and equal to its copies."""
    assert isinstance(extension, kind), (
        f"expected a {kind.__name__} as the first argument, got {type(extension).__name__}"
    )
    try:
        hash(extension)
    except TypeError as error:
        raise AssertionError(
            f"{type(extension).__name__} must be hashable ({error}); decorate the class with "
            "@dataclass(frozen=True), and use tuples instead of lists"
        ) from None
    again = copy.deepcopy(extension)
    assert again == extension, (
        f"{extension} is not equal to a copy of itself; make it a @dataclass(frozen=True)"
    )


@contextmanager
def _filled(buffer: expdb.ReplayBuffer | None) -> Iterator[expdb.ReplayBuffer]:
    if buffer is not None:
        assert isinstance(buffer, expdb.ReplayBuffer), (
            f"expected a ReplayBuffer as the second argument, got {type(buffer).__name__}"
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*has the tag tags.kind", errors.ExpDBWarning)
            yield buffer
        return
    with warnings.catch_warnings(), expdb.open(":memory:") as db:
        warnings.simplefilter("ignore", errors.ExpDBWarning)
        made = db.buffer("b", capacity=90)  # the first episodes are evicted
        fill(made)
        yield made


def _sample(
    buffer: expdb.ReplayBuffer, size: int, where: Any, **options: Any
) -> tuple[expdb.Batch, int] | None:
    """Return a batch of `size` items, or of one item if there are fewer, and its size.

    Return None if nothing can be drawn.
    """
    for wanted in (size, 1):
        try:
            return buffer.sample(wanted, where, seed=SEED, **options), wanted
        except expdb.TooFewRows:
            continue
    return None


def _check_again(
    buffer: expdb.ReplayBuffer,
    batch: expdb.Batch,
    size: int,
    label: str,
    where: Any,
    **options: Any,
) -> None:
    """Check that a seed gives the same batch, even after the first batch was overwritten."""
    kept = {key: np.array(batch[key]) for key in batch}
    for key in batch:
        if batch[key].flags.writeable:
            batch[key][...] = None if batch[key].dtype == object else 0
    spoilt = {key: np.array(batch[key]) for key in batch}
    buffer.sample(size, where, seed=SEED + 1, **options)  # may write to arrays of the batch
    _same_batch(batch, spoilt, f"{label}: the batch before")
    again = buffer.sample(size, where, seed=SEED, **options)
    _same_batch(again, kept, f"{label}: the same seed")
    _same_batch(batch, spoilt, f"{label}: the batch before")
    if options["unit"].assembles:
        return
    narrow = buffer.sample(size, where, seed=SEED, fields=["position"], **options)
    _same(narrow["position"].tolist(), kept["position"].tolist(), f"{label}: fields=['position']")


def _check_replay(buffer: expdb.ReplayBuffer, label: str, where: Any, **options: Any) -> None:
    """Check that a leased batch is replayed bit for bit."""
    consumer = buffer.consumer(label)
    try:
        with consumer.lease(1, where, **options) as batch:
            kept = {key: np.array(batch[key]) for key in batch}
    except expdb.TooFewRows:
        return
    unit = options["unit"]
    again = next(buffer.replay(label, units=[type(unit)]))
    _same_batch(again, kept, f"{label}: replayed")
    buffer.drop_consumer(label)


def _check_drawn(buffer: expdb.ReplayBuffer, batch: expdb.Batch, label: str) -> None:
    """Check that all rows of a drawn item have the same position, and that its step is stored."""
    drawn, positions = batch["drawn"], batch["position"]
    assert np.isin(positions, _stored_positions(buffer)).all(), (
        f"{label}: position contains steps that are not stored"
    )
    pairs = set(zip(drawn.tolist(), positions.tolist(), strict=True))
    assert len(pairs) == len(set(drawn.tolist())), f"{label}: an item has several positions"


def _check_mask(batch: expdb.Batch, label: str) -> None:
    """Check that masked entries are 0, and that their position is -1."""
    if "mask" not in batch:
        return
    mask = np.asarray(batch["mask"])
    assert mask.dtype == bool, f"{label}: the mask must be bool, got {mask.dtype}"
    assert (batch["position"][~mask] == -1).all(), (
        f"{label}: position must be -1 where the mask is False"
    )
    for key in ("obs", "action"):
        if key in batch and batch[key].shape[: mask.ndim] == mask.shape:
            assert not np.asarray(batch[key])[~mask].any(), (
                f"{label}: {key} must be 0 where the mask is False"
            )


def _same_batch(actual: Any, wanted: Any, label: str) -> None:
    assert set(actual) == set(wanted), (
        f"{label}: the keys differ, {sorted(set(actual) ^ set(wanted))}"
    )
    for key in wanted:
        _same(actual[key], wanted[key], f"{label}: {key}")


def _same(actual: Any, wanted: Any, label: str) -> None:
    """Raise AssertionError if two values differ; NaN equals NaN."""
    if isinstance(actual, np.ndarray) and actual.dtype == object and actual.shape == wanted.shape:
        for cell, other in zip(actual.reshape(-1), wanted.reshape(-1), strict=True):
            _same(cell, other, label)
        return
    try:
        np.testing.assert_equal(actual, wanted)
    except AssertionError as error:
        raise AssertionError(f"{label}: {error}") from None
