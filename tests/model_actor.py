"""A handle of the state machine in test_model.py, in this process or in another process."""

import time
import traceback
import warnings

import numpy as np
from behind import store_of, writing
from contents import steps_of
from processes import FORKSERVER

import expdb
from expdb import Episode, Group, NStep, QueryBuilder, Sequence, Stack, Step, Uniform, errors

ALL = Uniform(replace=False)
PRIORITIZED = expdb.Prioritized(alpha=1.0, epsilon=0.5, initial=1.0)
UNITS = {
    "Step": Step(), "NStep(1)": NStep(1, gamma=0.5, next_fields=("n",)),
    "NStep(3)": NStep(3, gamma=0.5, next_fields=("n",)),
    "NStep(2, redraw)": NStep(2, gamma=0.5, next_fields=("n",), end="redraw"),
    "NStep(2, stack)": NStep(2, gamma=0.5, next_fields=("n",), stack=3, stack_fields=("n",)),
    "Sequence(2)": Sequence(2, pad=False), "Sequence(3)": Sequence(3, pad=False),
    "Sequence(2, burn-in)": Sequence(2, burn_in=1, pad=False),
    "Sequence(4, padded)": Sequence(4, burn_in=2),
    "Stack(2)": Stack(2, stack_fields=("n",)), "Stack(3)": Stack(3, stack_fields=("n",)),
    "Episode": Episode(), "Group(2)": Group(2),
}  # fmt: skip
QUERIES = {
    "": None, "reward": QueryBuilder().gte("reward", 2),
    "task": QueryBuilder().eq("task_id", "t1").and_().eq("status", "complete"),
    "length": QueryBuilder().gt("length", 2).or_().eq("policy_version", 1),
    "tag": QueryBuilder().eq("tags.k", 1),
}  # fmt: skip


def text_of(n):
    """Return the text of a step; several steps have equal large texts, which chunks share."""
    return f"{int(n) % 3} " * 600 if int(n) % 4 == 0 else str(n)


class Actor:
    """A handle and its writers."""

    def __init__(self, location, resident_bytes=None, lag=0.0):
        self.db = expdb.open(location, max_lag_seconds=lag, resident_bytes=resident_bytes)
        self.lag = lag
        self.buffer, self.writers = None, {}

    def use(self, name):
        """Switch to another buffer, and end the episodes of the writers of the old buffer."""
        for writer in self.writers.values():
            writer._end_unclosed()
        self.buffer, self.writers = self.db.buffer(name), {}

    def act(self, what, *arguments, **options):
        """Call a method of the buffer, and return its result or the name of its error."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.ExpDBWarning)
            try:
                result = getattr(self.buffer, what)(*arguments, **options)
            except expdb.ExpDBError as error:
                return type(error).__name__
        return result.tolist() if hasattr(result, "tolist") else result

    def delete_by_hand(self, position):
        """Delete a step with SQL only, as in a database shell."""
        statement = "DELETE FROM steps WHERE buffer_id = ? AND position = ?"
        with writing(self.db) as session:
            session.execute(statement, store_of(self.buffer).id, position)

    def begin(self, key, task, **options):
        """Begin an episode, and register its writer under a key."""
        self.writers[key] = self.buffer.episode(task, **options)

    def write(self, key, what, *arguments, **options):
        """Call a method of a writer, and return its result or the name of its error."""
        try:
            result = getattr(self.writers[key], what)(*arguments, **options)
        except expdb.ExpDBError as error:
            return type(error).__name__
        return result.tolist() if hasattr(result, "tolist") else result

    def leave(self, key):
        """Discard a writer whose episode another handle has ended."""
        self.writers.pop(key)._end_unclosed()

    def names(self):
        """Return the id of the episode of each step, by position."""
        return {row["position"]: row["episode_id"] for row in steps_of(self.buffer)}

    def see(self):
        """Return everything that can be read and sampled, as plain values."""
        buffer = self.buffer
        time.sleep(1.2 * self.lag)  # a sample may lag behind other handles by `max_lag_seconds`
        rows = steps_of(buffer)
        columns = ["episode_id", "status", "length", "episode_return", "policy_version"]
        episodes = buffer.episodes().select(columns).to_pylist()
        keys = (
            "position", "n", "step", "reward", "terminated", "truncated", "tags", "task_id",
            "status", "policy_version", "episode_id",
        )  # fmt: skip
        seen = {
            "rows": [tuple(row[key] for key in keys) for row in rows],
            "texts": [row["text"] for row in rows],
            "episodes": sorted(tuple(episode.values()) for episode in episodes),
            "count": {name: buffer.count(where) for name, where in QUERIES.items()},
            "tasks": sorted(buffer.tasks()), "size": len(buffer),
        }  # fmt: skip
        for name, where in QUERIES.items():
            for unit in ("Step", "NStep(1)", "Group(2)") if name else UNITS:
                seen[f"{unit} of {name}"] = self._drawn(UNITS[unit], where)
                seen[f"masses of {unit} of {name}"] = self._masses(UNITS[unit], where)
        return seen

    def _drawn(self, unit, where):
        """Return the sampled value of each anchor, for all anchors."""
        try:
            self.buffer.sample(10_000, where, unit=unit, sampler=ALL)
            raise AssertionError("ten thousand were drawn")
        except expdb.TooFewRows as error:
            message = str(error)
        if "but only" not in message:
            return {}
        size = int(message.split(" but only ")[1].split()[0])
        batch = self.buffer.sample(size, where, unit=unit, sampler=ALL)
        self._agree(batch)
        anchors = anchors_of(unit, batch)
        values = [value_of(unit, batch, k) for k in range(batch.size)]
        by_anchor = dict(zip(anchors.tolist(), values, strict=True))
        assert len(by_anchor) == batch.size
        return by_anchor

    def _agree(self, batch):
        """Assert that the other fields of each step match its number."""
        step = batch["n"] if batch["n"].shape == batch["text"].shape else batch["n"][..., -1]
        there = batch["mask"] if "mask" in batch else np.ones(step.shape, bool)
        assert batch["text"][there].tolist() == [text_of(n) for n in step[there].tolist()]
        assert (batch["small"][there] == step[there][:, None] % 100).all()
        assert all(text is None for text in batch["text"][~there].tolist())
        assert not batch["small"][~there].any()

    def _masses(self, unit, where):
        """Return the probabilities of anchors that were drawn by priority."""
        try:
            batch = self.buffer.sample(24, where, unit=unit, sampler=PRIORITIZED)
        except expdb.TooFewRows:
            return {}
        anchors = anchors_of(unit, batch)
        return dict(zip(anchors.tolist(), batch["probability"].tolist(), strict=True))

    def close(self):
        """Close the handle."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.ExpDBWarning)
            self.db.close()


def anchors_of(unit, batch):
    """Return the position of the drawn step of each item."""
    position = batch["position"].reshape(batch.size, -1)
    return position[:, unit.burn_in if isinstance(unit, Sequence) else 0]


def value_of(unit, batch, k):
    """Return the sampled value of item `k` as plain values."""
    if isinstance(unit, NStep):
        keys = ("n", "reward", "next_n", "discount", "n_steps")
        return tuple(float(n) for key in keys for n in np.ravel(batch[key][k]))
    if isinstance(unit, Stack):
        return tuple(batch["n"][k].tolist())
    if isinstance(unit, Step):
        return (float(batch["n"][k]), float(batch["reward"][k]), bool(batch["terminated"][k]))
    mask = batch["mask"][k]
    if isinstance(unit, Sequence) and unit.pad:
        both = (np.where(mask, batch[key][k], np.nan) for key in ("n", "is_first"))
        return tuple(n for line in both for n in line.tolist())
    return tuple(batch["n"][k][mask].tolist())


def serve(location, lag, pipe):
    """Run an actor for the calls of another process."""
    warnings.simplefilter("ignore", errors.ExpDBWarning)
    actor = Actor(location, lag=lag)
    for name, arguments, options in iter(pipe.recv, None):
        try:
            result = getattr(actor, name)(*arguments, **options)
        except Exception as error:
            result = RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        pipe.send(result)
    actor.close()


class Remote:
    """An actor in a separate process."""

    def __init__(self, location, lag):
        self._pipe, theirs = FORKSERVER.Pipe()
        self._process = FORKSERVER.Process(target=serve, args=(location, lag, theirs), daemon=True)
        self._process.start()

    def __getattr__(self, name):
        def call(*arguments, **options):
            self._pipe.send((name, arguments, options))
            assert self._pipe.poll(60), f"{name} took more than a minute"
            answer = self._pipe.recv()
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def close(self):
        self._pipe.send(None)
        self._process.join(30)
        assert self._process.exitcode == 0
