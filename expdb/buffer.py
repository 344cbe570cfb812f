"""ReplayBuffer: where storage and replay meet. Storage finds and reads, replay chooses; this file joins the two."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from expdb import errors
from expdb.batch import Batch
from expdb.replay import units
from expdb.replay.population import Listed, Population, Window, check_size, distinct_draws
from expdb.replay.samplers import Sampler, Uniform
from expdb.replay.units import NStep, Step, Unit
from expdb.storage import change, read, select, write
from expdb.storage.check import check_buffer
from expdb.storage.engine import Session
from expdb.storage.ingest import columns_of, rows_of
from expdb.storage.pending import Episode, Pending, as_flag, as_int, as_real, as_tags, as_text
from expdb.storage.query import Condition, Where, compile_where
from expdb.storage.stats import buffer_stats
from expdb.storage.store import State, Store, evicted
from expdb.writer import EpisodeWriter

Seed: TypeAlias = "int | np.random.Generator | None"

UPDATABLE = ("reward", "terminated", "truncated", "tags", "policy_version")
EPISODE_KEYS = ("task_id", "agent_id", "task_name", "episode_id", "group_id", "policy_version", "episode_tags")
STEP_KEYS = ("step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "tags")


class ReplayBuffer:
    """Hold experience under a name: bounded, durable, shared by every process that opens the database.

    Made by `db.buffer(name)`. Threads may share it. Writing methods return when what they wrote is durable and visible
    to everybody; positions are int64, count up from 0 and are never used twice.
    """

    def __init__(self, store: Store, run: str, database: Any):
        self._store, self._database = store, database
        self._run = run
        self._open: dict[tuple[str, str], Episode] = {}
        self._named: dict[str, Episode] = {}
        self._lock = threading.RLock()
        self._rng: np.random.Generator | None = None

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.name!r}: {len(self)} steps, capacity {self.capacity}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._database, self.name)

    @property
    def name(self) -> str:
        """The name in the database."""
        return self._store.name

    # -- writing ------------------------------------------------------------------------------------------------------

    def store(
        self,
        *,
        task_id: str = "default",
        agent_id: str = "agent",
        task_name: str | None = None,
        step: int | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        pre_agent: str | None = None,
        execute_time: float | None = None,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
        policy_version: int | None = None,
        tags: Mapping[str, Any] | None = None,
        episode_tags: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> int:
        """Store one step and return its position, once it is durable.

        Without `episode_id` it goes to the open episode of this run, task and agent; a terminated or truncated step
        completes that, and the next step starts another. `step` defaults to the number of steps the episode has,
        `execute_time` to now (Unix seconds). `fields` are what the agent saw and did, any names and values: arrays,
        numbers, text, bytes, dicts, lists of messages, dataclasses, pydantic models.

        Raises ReservedName, InvalidValue or FieldMismatch before anything is stored, EpisodeEnded if the episode has
        ended, EpisodeMismatch if it is another task's, agent's or group's.

        >>> buffer.store(task_id="task_1", action={"tool": "search"}, reward=0.5)  # doctest: +SKIP
        0
        """
        row = {
            "task_id": task_id, "agent_id": agent_id, "task_name": task_name, "step": step, "episode_id": episode_id,
            "group_id": group_id, "pre_agent": pre_agent, "execute_time": execute_time, "reward": reward,
            "terminated": terminated, "truncated": truncated, "policy_version": policy_version, "tags": tags,
            "episode_tags": episode_tags,
        }  # fmt: skip
        return int(self._store_rows([(row, fields)])[0])

    def store_batch(self, rows: Any) -> np.ndarray:
        """Store many steps in one transaction and return their positions, int64 in the order given.

        `rows` is a list of mappings with the arguments of `store`, a mapping of columns (scalars, text and mappings are
        broadcast; arrays are [rows, ...]), or an Arrow table or anything with `__arrow_c_stream__`. All or nothing.
        """
        columns = columns_of(rows)
        pending: list[tuple[dict[str, Any], Mapping[str, Any]]] = []
        for row in rows_of(rows if columns is None else columns):
            known = {key: row[key] for key in (*EPISODE_KEYS, *STEP_KEYS) if key in row}
            pending.append((known, {key: value for key, value in row.items() if key not in known}))
        return self._store_rows(pending)

    def _store_rows(self, rows: Sequence[tuple[dict[str, Any], Mapping[str, Any]]]) -> np.ndarray:
        if not rows:
            return np.empty(0, np.int64)
        with self._lock:
            for attempt in (0, 1):
                pending = Pending(self._store.fields)
                opened: dict[tuple[str, str], Episode | None] = {}
                named: dict[str, Episode] = {}
                for row, fields in rows:
                    episode, implicit = self._episode_of(row, opened, named, pending)
                    identity = id(episode)
                    if identity in pending.ended:
                        raise errors.EpisodeEnded(f"episode {episode.episode_id!r} has ended: give the next step another episode_id")
                    pending.add(episode, fields, **{key: row[key] for key in STEP_KEYS if key in row})
                    if pending.terminated[-1] or pending.truncated[-1]:
                        pending.ended[identity] = "complete"
                        if implicit is not None:
                            opened[implicit] = None
                try:
                    positions = write.write(self._store, pending)
                except errors.EpisodeEnded:
                    # Somebody else has ended, deleted or evicted an episode that this handle knew as open: look again.
                    for key, known in opened.items():
                        if known is not None and known.id is not None:
                            self._open.pop(key, None)
                    for name in named:
                        self._named.pop(name, None)
                    if attempt:
                        raise
                    continue
                self._remember(opened, named, pending)
                return positions
        raise AssertionError("unreachable")

    def _remember(
        self, opened: dict[tuple[str, str], Episode | None], named: dict[str, Episode], pending: Pending
    ) -> None:
        for key, episode in opened.items():
            if episode is None:
                self._open.pop(key, None)
            else:
                self._open[key] = episode
        for name, episode in named.items():
            if id(episode) in pending.ended:
                self._named.pop(name, None)
            else:
                self._named[name] = episode

    def _episode_of(
        self,
        row: Mapping[str, Any],
        opened: dict[tuple[str, str], Episode | None],
        named: dict[str, Episode],
        pending: Pending,
    ) -> tuple[Episode, tuple[str, str] | None]:
        """Return the episode of a step to be stored, and its key among the open ones where it was not named."""
        task_id, agent_id = row.get("task_id", "default"), row.get("agent_id", "agent")
        given = {name: row[name] for name in ("task_name", "group_id", "policy_version", "episode_tags") if row.get(name) is not None}
        episode_id = row.get("episode_id")
        key = None
        if episode_id is None:
            key = (task_id, agent_id)
            try:
                episode = opened[key] if key in opened else self._open.get(key)
            except TypeError:
                episode = None  # not text: said below
            if episode is None:
                episode = self._new_episode(task_id, agent_id, None, given)
            opened[key] = episode
        else:
            as_text(episode_id, "episode_id")
            episode = named.get(episode_id) or self._named.get(episode_id) or self._find_named(episode_id)
            if episode is None:
                episode = self._new_episode(task_id, agent_id, episode_id, given)
            named[episode_id] = episode
            if (row.get("task_id", episode.task_id), row.get("agent_id", episode.agent_id)) != (episode.task_id, episode.agent_id):
                raise errors.EpisodeMismatch(
                    f"episode {episode_id!r} is of task {episode.task_id!r} and agent {episode.agent_id!r}: "
                    "give that task_id and agent_id, or another episode_id"
                )
        if given:
            self._add_details(episode, given, pending)
        return episode, key

    def _find_named(self, episode_id: Any) -> Episode | None:
        found = write.find_episode(self._store, as_text(episode_id, "episode_id"))
        if found is None:
            return None
        episode, status = found
        if status != "open":
            raise errors.EpisodeEnded(f"episode {episode_id!r} is {status}: give the step another episode_id")
        return episode

    def _new_episode(self, task_id: Any, agent_id: Any, episode_id: Any, given: Mapping[str, Any]) -> Episode:
        episode = Episode(
            episode_id=uuid.uuid4().hex if episode_id is None else as_text(episode_id, "episode_id"),
            run=self._run,
            task_id=as_text(task_id, "task_id"),
            agent_id=as_text(agent_id, "agent_id"),
            started=time.time(),
        )
        for name, value in _episode_details(given).items():
            setattr(episode, name, value)
        return episode

    def _add_details(self, episode: Episode, given: Mapping[str, Any], pending: Pending) -> None:
        """Note what a step tells of its episode and was not known; raise EpisodeMismatch where it differs."""
        news = pending.details.setdefault(id(episode), {})
        for name, value in _episode_details(given).items():
            known = news.get(name, getattr(episode, name))
            if known is None or (name == "episode_tags" and known != value):
                news[name] = value
            elif name in ("task_name", "group_id") and known != value:
                raise errors.EpisodeMismatch(
                    f"episode {episode.episode_id!r} has the {name} {known!r}, not {value!r}: start another one"
                )

    def episode(
        self,
        task_id: str,
        *,
        task_name: str | None = None,
        agent_id: str = "agent",
        episode_id: str | None = None,
        group_id: str | None = None,
        policy_version: int | None = None,
        tags: Mapping[str, Any] | None = None,
        flush_steps: int = 256,
        flush_bytes: int = 1 << 20,
        flush_seconds: float = 5.0,
    ) -> EpisodeWriter:
        """Return a writer of one new episode, which buffers steps and writes them in chunks; use it with `with`.

        A flush happens at the append that reaches a limit: `flush_steps`, `flush_bytes` or `flush_seconds` since the
        last one. `tags` are the episode's. Raises EpisodeMismatch if the `episode_id` is taken.
        """
        flush_steps, flush_bytes = whole(flush_steps, "flush_steps", 1), whole(flush_bytes, "flush_bytes", 1)
        flush_seconds = as_real(flush_seconds, "flush_seconds")
        given = {"task_name": task_name, "group_id": group_id, "policy_version": policy_version, "episode_tags": tags}
        if episode_id is not None and write.find_episode(self._store, as_text(episode_id, "episode_id")) is not None:
            raise errors.EpisodeMismatch(f"episode {episode_id!r} exists already: choose another episode_id")
        episode = self._new_episode(task_id, agent_id, episode_id, given)
        return EpisodeWriter(_Sink(self._store), episode, flush_steps, flush_bytes, flush_seconds)

    def end_episode(self, episode_id: str, status: Literal["complete", "aborted"] = "complete") -> None:
        """End an open episode that `store` has written; its chunks are merged.

        Raises UnknownEpisode, or EpisodeEnded if it has ended.
        """
        if status not in ("complete", "aborted"):
            raise errors.InvalidValue(f"status is {status!r}: an episode ends 'complete' or 'aborted'")
        with self._lock:
            found = write.find_episode(self._store, as_text(episode_id, "episode_id"))
            if found is None:
                raise errors.UnknownEpisode(f"no episode {episode_id!r} in buffer {self.name!r}: see buffer.episodes()")
            episode, current = found
            if current != "open" or episode.id is None:
                raise errors.EpisodeEnded(f"episode {episode_id!r} is {current} already")
            write.end_episode(self._store, episode.id, status)
            self._named.pop(episode_id, None)
            for key in [key for key, one in self._open.items() if one.episode_id == episode_id]:
                del self._open[key]

    def _complete_open_episodes(self) -> None:
        """Complete the episodes that `store` began without a name: nobody else can go on with them."""
        with self._lock:
            for episode in self._open.values():
                if episode.id is not None:
                    # Ended, evicted, cleared or dropped by somebody else meanwhile.
                    with suppress(errors.EpisodeEnded, errors.UnknownBuffer):
                        write.end_episode(self._store, episode.id, "complete")
            self._open.clear()

    def _forget_open_episodes(self, run: str) -> None:
        """Start anew in a forked child, as another run: the open episodes are the parent's."""
        self._open, self._named, self._lock, self._run = {}, {}, threading.RLock(), run
        self._rng = None

    # -- reading ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        with self._store.engine.reading() as session:
            return self._store.state(session).size

    def __bool__(self) -> bool:
        return True

    @property
    def capacity(self) -> int | None:
        """Steps kept at most; None for all."""
        with self._store.engine.reading() as session:
            return self._store.state(session).capacity

    def count(self, where: Where = None) -> int:
        """Return how many steps match."""
        condition = compile_where(where)
        with self._store.engine.reading() as session:
            return select.count(self._store, session, condition)

    def tasks(self, where: Where = None) -> list[str]:
        """Return the ids of the tasks that have a matching step, in order of their first one."""
        condition = compile_where(where)
        with self._store.engine.reading() as session:
            return select.tasks(self._store, session, condition)

    def episodes(self, where: Where = None) -> pa.Table:
        """Return the episodes that have a matching step as an Arrow table, oldest first; tags are JSON text."""
        condition = compile_where(where)
        with self._store.engine.reading() as session:
            names, rows = select.episodes(self._store, session, condition)
        return pa.Table.from_arrays(
            [pa.array([row[k] for row in rows], _EPISODE_TYPES.get(name, pa.utf8())) for k, name in enumerate(names)], names
        )

    def page(self, number: int, size: int, where: Where = None) -> list[dict[str, Any]]:
        """Return page `number` (from 1) of `size` matching steps, by position, as dicts; `[]` past the end."""
        number, size = whole(number, "the page's number", 1), whole(size, "the page's size", 1)
        condition = compile_where(where)
        with self._store.engine.reading() as session:
            state = self._store.state(session)
            found = select.positions(self._store, session, condition, limit=size, offset=(number - 1) * size)
            return Batch(read.fetch(self._store, session, state, found, (*_PAGE, *self._store.fields.types))).to_list()

    def get(self, positions: Sequence[int] | np.ndarray, *, fields: Sequence[str] | None = None) -> Batch:
        """Return steps by position, in the order asked; raise Evicted naming those that are not held."""
        wanted = _positions(positions)
        with self._store.engine.reading() as session:
            state = self._store.state(session)
            held = read.alive(self._store, session, wanted)
            if not held.all():
                raise evicted(wanted[~held])
            return Batch(read.fetch(self._store, session, state, wanted, fields), len(wanted))

    def scan(
        self, where: Where = None, *, after: int = -1, size: int = 4096, fields: Sequence[str] | None = None
    ) -> Iterator[Batch]:
        """Yield all matching steps in order of position, in batches of up to `size`, each one snapshot.

        `after` leaves out positions up to it: with the last one seen it reads what has come since.
        """
        size, after = whole(size, "size", 1), whole(after, "after", -1)
        return self._scan(compile_where(where), after, size, fields)

    def _scan(self, condition: Condition | None, after: int, size: int, fields: Sequence[str] | None) -> Iterator[Batch]:
        while True:
            with self._store.engine.reading() as session:
                state = self._store.state(session)
                found = select.positions(self._store, session, condition, after=after, limit=size)
                columns = read.fetch(self._store, session, state, found, fields)
            if not len(found):
                return
            yield Batch(columns, len(found))
            after = int(found[-1])

    # -- changing -----------------------------------------------------------------------------------------------------

    def update(self, where: Where, **columns: Any) -> int:
        """Set columns of the matching steps and return how many match: a late reward, flags, tags, a policy version.

        `tags` replaces; `policy_version` is set for the whole episodes; `episode_return` follows rewards. Raises
        InvalidValue for any other column and for `where=None`.
        """
        if not columns or not columns.keys() <= set(UPDATABLE):
            wrong = ", ".join(sorted(columns.keys() - set(UPDATABLE))) or "nothing"
            raise errors.InvalidValue(f"update of {wrong}: only {', '.join(UPDATABLE)} can be changed, fields are as they were seen")
        condition = self._required(where, "update")
        changes: dict[str, Any] = {}
        for name, value in columns.items():
            changes[name] = _checked_column(name, value)
        return change.update(self._store, condition, changes)

    def update_priorities(self, positions: Sequence[int] | np.ndarray, priorities: Any) -> int:
        """Set the priority of steps and return how many were set; positions that are gone are left out.

        Raises InvalidValue for a priority that is negative, NaN or infinite. Of duplicates the last counts.
        """
        wanted, given = _positions(positions), np.asarray(priorities, np.float64).reshape(-1)
        if wanted.shape != given.shape:
            raise errors.InvalidValue(f"{len(wanted)} positions and {len(given)} priorities: give one for each")
        if not (np.isfinite(given) & (given >= 0)).all():
            raise errors.InvalidValue("a priority is negative, NaN or infinite: give finite numbers from 0")
        return change.update_priorities(self._store, wanted, given)

    def delete(self, where: Where) -> int:
        """Delete the matching steps and return how many there were; `clear` deletes all."""
        return change.delete(self._store, self._required(where, "delete"))

    def clear(self) -> int:
        """Delete every step and episode and return how many steps there were; positions go on where they were."""
        with self._lock:
            self._open.clear()
            self._named.clear()
            return change.clear(self._store)

    def set_capacity(self, capacity: int | None) -> None:
        """Keep `capacity` steps from now on, None for all; what is over is evicted at once, oldest first."""
        change.set_capacity(self._store, checked_capacity(capacity))

    def index(self, name: str) -> None:
        """Index a column or a tag, such as "tags.difficulty", so that queries by it read only what matches."""
        change.index(self._store, name)

    def _required(self, where: Where, verb: str) -> Condition:
        condition = compile_where(where)
        if condition is None:
            raise errors.InvalidValue(f"{verb} without a query would change everything: give one, or use clear()")
        return condition

    # -- looking after ------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and fields as plain JSON values."""
        with self._store.engine.reading() as session:
            return buffer_stats(self._store, session)

    def check(self) -> list[str]:
        """Return what is wrong with the buffer's books or chunks, one line each; empty if it is sound."""
        with self._store.engine.reading() as session:
            return check_buffer(self._store, session)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def sample(
        self,
        size: int,
        where: Where = None,
        *,
        sampler: Sampler = Uniform(),  # noqa: B008 (frozen)
        unit: Unit = Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        rng: Seed = None,
    ) -> Batch:
        """Draw `size` steps that match, as one snapshot.

        `sampler` says which are drawn, `unit` what each becomes, `fields` selects keys and may name columns of the view
        (`task_id`, `tags`), `rng` is a seed or a generator. Raises TooFewRows where nothing matches, or less than asked
        for without replacement.
        """
        size = whole(size, "the size of a sample", 1)
        if not isinstance(unit, (Step, NStep)):
            raise errors.InvalidValue(f"unit is {unit!r}: give one such as expdb.Step() or expdb.NStep(1)")
        if isinstance(sampler, type) or not hasattr(sampler, "draw"):
            raise errors.InvalidValue(f"sampler is {sampler!r}: give one such as expdb.Uniform()")
        condition = compile_where(where)
        generator = self._generator(rng)
        with self._store.engine.reading() as session:
            state = self._store.state(session)
            population = self._population(session, state, condition)
            if isinstance(unit, NStep):
                return self._sample_successors(session, state, population, sampler, unit, size, fields, generator)
            positions = sampler.draw(population, size, generator)
            return Batch(read.fetch(self._store, session, state, positions, fields), size)

    def _population(self, session: Session, state: State, condition: Condition | None) -> Population:
        if condition is not None:
            return Listed(select.positions(self._store, session, condition))
        return Window(state.low, state.added, state.size, lambda drawn: read.alive(self._store, session, drawn))

    def _sample_successors(
        self,
        session: Session,
        state: State,
        population: Population,
        sampler: Sampler,
        unit: NStep,
        size: int,
        fields: Sequence[str] | None,
        rng: np.random.Generator,
    ) -> Batch:
        """Draw steps whose successor is known, by drawing again those whose is not, and derive what NStep promises."""
        drawn: list[np.ndarray] = []
        following: list[np.ndarray] = []
        wanted, tries = size, 0
        while wanted > 0:
            tries += 1
            if tries > _TRIES or not sampler.replace:
                population, everyone_valid = self._with_successor(session, state, population), True
                check_size(population.size, size, "steps with a known successor", sampler.replace)
                if not sampler.replace:
                    drawn, following, wanted = [], [], size
            else:
                everyone_valid = False
            candidates = sampler.draw(population, wanted if everyone_valid else wanted + wanted // 8 + 8, rng)
            ok, after = self._successors(session, state, candidates)
            picked = np.flatnonzero(ok)[:wanted]
            drawn.append(candidates[picked])
            following.append(after[picked])
            wanted -= len(picked)
        positions, after = np.concatenate(drawn), np.concatenate(following)
        return self._with_next(session, state, positions, after, unit, fields)

    def _with_successor(self, session: Session, state: State, population: Population) -> Population:
        if isinstance(population, Listed):
            everyone = population.positions
        else:
            everyone = select.positions(self._store, session, None)
        if not len(everyone):
            return Listed(everyone)
        return Listed(everyone[self._successors(session, state, everyone)[0]])

    def _successors(self, session: Session, state: State, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each step's successor is known, and its position, LAST where that is the tail or the end."""
        store = self._store
        segments = read.locate(store, session, positions)
        after = read.successors(store, session, state, positions, segments)
        ok = after >= 0
        at_end = np.flatnonzero(after == read.LAST)
        if len(at_end):
            ends = read.fetch(store, session, state, positions[at_end], ("terminated", "episode"), segments)
            tails = read.tails(store, session, ends["episode"])
            has_tail = np.array([episode in tails for episode in ends["episode"].tolist()], np.bool_)
            ok[at_end] = ends["terminated"] | has_tail
        return ok, after

    def _with_next(
        self,
        session: Session,
        state: State,
        positions: np.ndarray,
        after: np.ndarray,
        unit: NStep,
        fields: Sequence[str] | None,
    ) -> Batch:
        store = self._store
        own = [] if fields is None else [name for name in fields if name in store.fields.types or not _derived(name)]
        needed = None if fields is None else list(dict.fromkeys([*own, "episode", "terminated"]))
        columns = read.fetch(store, session, state, positions, needed)
        at_end = np.flatnonzero(after == read.LAST)
        tails = read.tails(store, session, columns["episode"][at_end])
        ended_with = {name for tail in tails.values() for name in tail.fields}
        derived = units.derived_fields(unit, list(store.fields.types), ended_with)
        inside = np.flatnonzero(after >= 0)
        following = read.fetch(store, session, state, after[inside], derived)
        for name in derived:
            field = store.fields.types[name]
            source = following[name]
            column = np.zeros((len(positions), *source.shape[1:]), source.dtype)
            if field.varies:
                column[:] = None
            column[inside] = source
            for k in at_end.tolist():
                tail = tails.get(int(columns["episode"][k]))
                if tail is not None and name in tail.fields:
                    found = read.gather({0: tail.chunk}, [(0, tail.row, tail.row + 1)], name, field)
                    column[k] = found[0]
            columns[f"next_{name}"] = column
            if name in store.fields.optional:
                there = np.zeros(len(positions), np.bool_)
                there[inside] = following[f"has_{name}"]
                there[[k for k in at_end.tolist() if name in getattr(tails.get(int(columns["episode"][k])), "fields", ())]] = True
                columns[f"has_next_{name}"] = there
        columns["discount"] = units.discounts(unit, columns["terminated"])
        columns["n_steps"] = np.full(len(positions), unit.n, np.int64)
        if fields is not None:
            unknown = [name for name in fields if name not in columns]
            if unknown:
                raise errors.QueryError(f"no key {', '.join(unknown)} in this batch: there are {', '.join(columns)}")
            wanted = {name for one in fields for name in (one, f"has_{one}")}
            columns = {name: array for name, array in columns.items() if name in wanted}
        return Batch(columns, len(positions))

    def sample_tasks(
        self,
        n: int,
        where: Where = None,
        *,
        rows: Literal["all", "matching"] = "all",
        fields: Sequence[str] | None = None,
        rng: Seed = None,
    ) -> dict[str, Batch]:
        """Draw `n` distinct tasks, uniformly among those that have a matching step, and return their steps by task id.

        Each with all its steps over all agents and attempts, or only the matching ones, in order of step and position.
        Raises TooFewRows if fewer than `n` tasks match.
        """
        n = whole(n, "the number of tasks", 1)
        if rows not in ("all", "matching"):
            raise errors.InvalidValue(f"rows is {rows!r}: give 'all' or 'matching'")
        condition = compile_where(where)
        generator = self._generator(rng)
        store = self._store
        with store.engine.reading() as session:
            state = store.state(session)
            chosen = self._draw_tasks(session, n, condition, generator)
            if rows == "all" and not state.holes:
                owners, segments = select.segments_of_tasks(store, session, chosen)
                positions, index = segments.positions(state.low)
                owner = np.array(owners)[index]
            else:
                owners, positions = select.steps_of_tasks(store, session, chosen, condition if rows == "matching" else None)
                owner, segments = np.array(owners), None
            keys = None if fields is None else list(dict.fromkeys((*fields, "step")))
            columns = read.fetch(store, session, state, positions, keys, segments)
        parts = {}
        for task in chosen:
            mine = np.flatnonzero(owner == task)
            mine = mine[np.lexsort((positions[mine], columns["step"][mine]))]
            wanted = columns if fields is None else {key: columns[key] for key in columns if key != "step" or "step" in fields}
            parts[task] = Batch({key: array[mine] for key, array in wanted.items()}, len(mine))
        return parts

    def _draw_tasks(self, session: Session, n: int, condition: Condition | None, rng: np.random.Generator) -> list[str]:
        """Return `n` tasks, uniformly among those with a matching step; what is read follows `n`, not all that is held.

        Tasks are tried in a uniformly random order, and the first `n` that match are taken. The order comes from random
        episodes, where only the first episode of a task stands for it; where the query leaves few tasks by its
        conditions on episodes, or few match at all, they are listed instead.
        """
        store = self._store
        low, high = select.episode_ids(store, session)
        listed = select.tasks_required(store, session, condition, max(256, int((n * (high - low)) ** 0.5)))
        chosen: list[str] = []
        if listed is None:
            draws = distinct_draws(low, high, 2 * n, rng)
            for ids in draws:
                first = select.first_of_tasks(store, session, ids)
                tried = [first[id] for id in ids.tolist() if id in first]
                chosen += self._matching(session, tried, condition, n - len(chosen))
                if len(chosen) == n:
                    return chosen
            listed = [task for task in select.tasks(store, session, condition) if task not in set(chosen)]
        order = rng.permutation(len(listed)).tolist()
        for start in range(0, len(order), 4 * n):
            tried = [listed[k] for k in order[start : start + 4 * n]]
            chosen += self._matching(session, tried, condition, n - len(chosen))
            if len(chosen) == n:
                break
        check_size(len(chosen), n, "tasks", replace=False)
        return chosen

    def _matching(self, session: Session, tried: list[str], condition: Condition | None, most: int) -> list[str]:
        found = select.tasks_among(self._store, session, tried, condition)
        return [task for task in tried if task in found][:most]

    def _generator(self, rng: Seed) -> np.random.Generator:
        if rng is not None:
            try:
                return np.random.default_rng(rng)
            except (TypeError, ValueError):
                raise errors.InvalidValue(f"rng is {rng!r}: give a seed from 0, or a numpy.random.Generator") from None
        if self._rng is None:
            self._rng = np.random.default_rng()
        return self._rng


class _Sink:
    """What an EpisodeWriter writes into."""

    def __init__(self, store: Store):
        self._store = store

    def pending(self) -> Pending:
        return Pending(self._store.fields)

    def rows(self, columns: Any) -> list[Mapping[str, Any]]:
        found = columns_of(columns)
        return list(rows_of(columns if found is None else found))

    def write(self, pending: Pending) -> np.ndarray:
        return write.write(self._store, pending)

    def end(self, episode: Episode, status: str, tail: Pending | None) -> None:
        if episode.id is not None:
            write.end_episode(self._store, episode.id, status, tail)


_TRIES = 3
_PAGE = (
    "position", "episode", "episode_id", "run", "task_id", "task_name", "agent_id", "group_id", "status", "policy_version",
    "step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "tags",
)  # fmt: skip
_EPISODE_TYPES = {
    **dict.fromkeys(("episode", "length", "policy_version"), pa.int64()),
    **dict.fromkeys(("episode_return", "started", "ended"), pa.float64()),
}


def _derived(name: str) -> bool:
    return name in ("discount", "n_steps") or name.startswith("next_")


def whole(value: Any, what: str, least: int) -> int:
    """Return an integer of at least `least`; raise InvalidValue for anything else."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or not least <= int(value) < 2**31 << 31:
        raise errors.InvalidValue(f"{what} is {value!r}: give a whole number from {least}")
    return int(value)


def _episode_details(given: Mapping[str, Any]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            check: Any = {"policy_version": as_int, "episode_tags": as_tags}.get(name, as_text)
            checked[name] = check(value, name)
    return checked


def _checked_column(name: str, value: Any) -> Any:
    if value is None and name not in ("terminated", "truncated"):
        return None
    checks: Any = {"reward": as_real, "terminated": as_flag, "truncated": as_flag, "tags": as_tags, "policy_version": as_int}
    return checks[name](value, name)


def _positions(positions: Any) -> np.ndarray:
    try:
        found = np.asarray(positions)
    except ValueError:
        raise errors.InvalidValue("positions are a 1-D sequence of integers, not one of sequences") from None
    if found.size == 0:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise errors.InvalidValue(f"positions are 1-D integers, not {found.dtype}{list(found.shape)}")
    return found.astype(np.int64)


def checked_capacity(capacity: Any) -> int | None:
    """Return a capacity, None for unlimited; raise InvalidValue for anything but an integer from 1."""
    if capacity is None:
        return None
    if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)) or not 0 < int(capacity) < 2**63:
        raise errors.InvalidValue(f"capacity is {capacity!r}: give a number of steps from 1, or None to keep all")
    return int(capacity)


def _reopened(database: Any, name: str) -> ReplayBuffer:
    buffer: ReplayBuffer = database.buffer(name)
    return buffer
