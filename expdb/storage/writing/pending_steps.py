"""Steps to write: every value is checked and encoded before the database is accessed."""

import json
import time
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from expdb import checks, errors
from expdb.checks import LARGEST_REWARD
from expdb.chunks.codec import Block, Rows, decoded
from expdb.chunks.fields import Field
from expdb.chunks.values import encode_tags
from expdb.names import BEGINNING_KEYS, EPISODE_DETAILS, RELATION_KEYS, STEP_KEYS
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.catalog import Fields
from expdb.storage.recent_values import RecentValues, WriteSelector
from expdb.storage.replacements import Replacements
from expdb.storage.store import Store
from expdb.storage.writing.batches import EPISODE_NAMES
from expdb.storage.writing.columnar import Columnar
from expdb.storage.writing.final_observation import check_final
from expdb.storage.writing.mappings import flatten_step, new_types

Key = tuple[str, str]  # task and agent
Row = tuple[Mapping[str, Any], Mapping[str, Any]]  # columns and fields of a step

_NONE = [None, None]
_NO_DETAILS = (None,) * len(BEGINNING_KEYS)
# The default values of the columns in `STEP_KEYS`.
_DEFAULTS = [False if name in ("terminated", "truncated") else None for name in STEP_KEYS]


def step_columns(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the columns of `STEP_KEYS` of a row."""
    return tuple(map(row.get, STEP_KEYS, _DEFAULTS))


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the task and the agent of a row."""
    agent_id = row.get("agent_id")
    return row.get("task_id", "default"), "agent" if agent_id is None else agent_id


class StepColumns(NamedTuple):
    """The columns of some steps, without their fields."""

    episode: tuple[EpisodeRecord, ...]
    step: tuple[int | None, ...]
    pre_agent: tuple[str | None, ...]
    execute_time: tuple[float, ...]
    reward: tuple[float | None, ...]
    terminated: tuple[bool, ...]
    truncated: tuple[bool, ...]
    tags: tuple[str | None, ...]
    policy_version: tuple[int | None, ...]
    policy_version_end: tuple[int | None, ...]
    agent_id: tuple[str | None, ...]  # None for the agent of the episode

    @property
    def has_versions(self) -> bool:
        """Whether any step has its own policy version."""
        count, first, last = len(self.episode), self.policy_version, self.policy_version_end
        return first.count(None) < count or last.count(None) < count


class Progress(NamedTuple):
    """The number of steps of an episode and its greatest step number (None without steps)."""

    length: int
    greatest: int | None

    @classmethod
    def of(cls, episode: EpisodeRecord) -> "Progress":
        """Return the progress of an episode without its pending steps."""
        return cls(episode.length, episode.last_step)

    def add(self, number: int | None) -> "Progress":
        """Return the progress after another step; if `number` is None, use the next number."""
        if number is None:
            number = 0 if self.greatest is None else self.greatest + 1
        greatest = number if self.greatest is None else max(self.greatest, number)
        return Progress(self.length + 1, greatest)

    def is_above(self, number: int) -> bool:
        """Return whether a step number is greater than all step numbers of the episode."""
        return self.greatest is None or number > self.greatest


class PendingState(NamedTuple):
    """A state of pending steps that `restore_state` can restore."""

    taken: int
    blocks: list[Block]
    rows: Rows
    row_count: int  # number of rows; `columns` is the number of their columns
    columns: int
    nbytes: int
    types: dict[str, Field]
    fields: Fields
    ended: dict[EpisodeRecord, str]
    details: dict[EpisodeRecord, dict[str, Any]]


class PendingSteps:
    """Steps that are accepted but not yet written, with their fields encoded chunk by chunk.

    An interrupt may come between any two instructions, so each change of state is one assignment or
    one call.
    """

    def __init__(self, fields: Fields, recent_values: RecentValues | None = None):
        self.fields = fields
        self._recent_values = recent_values or RecentValues()
        self._types: dict[str, Field] = fields.types
        self.taken: list[tuple[Any, ...]] = []  # an entry for each step, ordered as `StepColumns`
        self._columns: StepColumns | None = None
        self.blocks: list[Block] = []
        self.rows = Rows()
        self.ended: dict[EpisodeRecord, str] = {}  # status
        # The episode that this write ends, even if it has no pending steps.
        self.ending: EpisodeRecord | None = None
        self.final: dict[str, Any] | None = None
        # The progress of the episodes with the first `_examined` pending steps.
        self._progress: dict[EpisodeRecord, Progress] = {}
        self._examined = 0
        # Details that steps add to their episodes.
        self.details: dict[EpisodeRecord, dict[str, Any]] = {}
        self.nbytes = 0  # approximate size of the closed chunks before compression
        # Id of the write; set while it may have been committed although its outcome is unknown.
        self.write_id = ""
        self.stored: np.ndarray | None = None  # the positions, once committed
        # Episodes that the handle caches after the commit; None for a completed episode.
        self.opened: dict[Key, EpisodeRecord | None] = {}
        self.named: dict[str, EpisodeRecord] = {}
        # Stored episodes with their status.
        self.stored_by_name: dict[str, tuple[EpisodeRecord, str]] = {}
        # Stored episodes without pending steps that are completed after the write, because their
        # task and agent have begun another episode.
        self.replaced: list[EpisodeRecord] = []

    def __len__(self) -> int:
        return len(self.taken)

    def progress(self, episode: EpisodeRecord) -> "Progress":
        """Return the length and the greatest step number of an episode with its pending steps.

        Each call examines only the steps that were added since the previous call.
        """
        progress = self._progress
        try:
            for owner, number, *_ in self.taken[self._examined :]:
                progress[owner] = (progress.get(owner) or Progress.of(owner)).add(number)
            self._examined = len(self.taken)
        except BaseException:  # else the next call would count steps twice after an interrupt
            self._progress, self._examined = {}, 0
            raise
        return progress.get(episode) or Progress.of(episode)

    @property
    def steps(self) -> StepColumns:
        """The steps, column by column."""
        if self._columns is None or len(self._columns.episode) != len(self.taken):
            self._columns = StepColumns(*zip(*self.taken, strict=True))
        return self._columns

    @property
    def ends_episode(self) -> bool:
        """Whether the last step is terminated or truncated."""
        return bool(self.taken) and (self.taken[-1][5] or self.taken[-1][6])

    @property
    def is_stored(self) -> bool:
        """Whether the steps are committed."""
        return self.stored is not None

    @property
    def positions(self) -> np.ndarray:
        """The positions of the steps, once they are committed."""
        assert self.stored is not None
        return self.stored

    @property
    def is_in_doubt(self) -> bool:
        """Whether the outcome of the write is unknown.

        If so, the same steps must be written again, and no steps can be added.
        """
        return bool(self.write_id) and self.stored is None

    def add(
        self, episode: EpisodeRecord, values: Mapping[str, Any], columns: tuple[Any, ...]
    ) -> bool:
        """Accept one step, or raise and change nothing; return whether it ends its episode.

        `columns` holds the values of `STEP_KEYS`.
        """
        (
            step, pre_agent, execute_time, reward, terminated, truncated, tags, *versions, agent,
        ) = columns  # fmt: skip
        if reward is not None and type(reward) is not float:
            reward = checks.reward(reward)
        elif reward is not None:
            if not -LARGEST_REWARD <= reward <= LARGEST_REWARD:
                checks.reward(reward)  # raises
            reward += 0.0  # SQL has no negative zero
        if type(terminated) is not bool:
            terminated = checks.flag(terminated, "terminated")
        if type(truncated) is not bool:
            truncated = checks.flag(truncated, "truncated")
        if step is not None and type(step) is not int:
            step = checks.whole(step, "step")
        elif step is not None and not -(2**63) <= step < 2**63:
            raise errors.InvalidValue(
                f"step {step} does not fit 64 bits; number the steps of an episode 0, 1, 2 and "
                "so on"
            )
        if step is not None and episode.parent is not None:
            episode.parent.check_number(episode.episode_id, step)
        execute_time = (
            time.time() if execute_time is None else checks.number(execute_time, "execute_time")
        )
        if pre_agent is not None:
            pre_agent = checks.text(pre_agent, "pre_agent")
        if tags is not None:
            tags = encode_tags(tags, "tags")
        if "versions" in values:
            versions = self._derive_versions(values["versions"], *versions)
        if versions != _NONE:
            versions = self._check_versions(episode, *versions)
        if agent is not None:
            agent = None if agent == episode.agent_id else checks.text(agent, "agent_id")
        entry = (
            episode, step, pre_agent, execute_time, reward, terminated, truncated, tags, *versions,
            agent,
        )  # fmt: skip
        rows = self.rows
        count = rows.count
        try:
            self.taken.append(entry)
            if values.keys() <= self._types.keys():
                rows.append(values, self._types)
            else:
                self._append_new(values)
        except BaseException:
            # Remove the entry unless an interrupt came before it was added, or after the row was.
            if rows.count == count and self.taken and self.taken[-1] is entry:
                self.taken.pop()
            raise
        if rows.full:
            self.cut()
        return terminated or truncated

    @property
    def types(self) -> dict[str, Field]:
        """The known fields, including those of the pending steps, and their types."""
        return self._types

    def extend(self, episodes: list[EpisodeRecord], many: Columnar) -> None:
        """Add checked steps; after an exception, the caller must restore the previous state."""
        stop = 0
        while stop < many.size:
            stop = self.rows.extend(many.fields, self._types, stop)
            if self.rows.full:
                self.cut()
        is_first = not self.taken
        self.taken.extend(zip(episodes, *many.taken, strict=False))
        if is_first:  # keep the columns, so that `steps` need not rebuild them from the rows
            columns = [tuple(islice(column, many.size)) for column in many.taken]
            self._columns = StepColumns(tuple(episodes), *columns)

    def become(self, other: "PendingSteps") -> None:
        """Replace the contents with those of another object."""
        vars(self).update(vars(other))  # in one call, so that an interrupt cannot split it

    def capture_state(self) -> PendingState:
        """Return the current state, so that it can be restored if the next steps are refused."""
        rows = self.rows
        return PendingState(
            len(self.taken), self.blocks, rows, rows.count, len(rows.columns), self.nbytes,
            self._types, self.fields, dict(self.ended), dict(self.details),
        )  # fmt: skip

    def restore_state(self, state: PendingState) -> None:
        """Discard all steps that were added after `state` was captured."""
        del self.taken[state.taken :]
        self._progress, self._examined = {}, 0
        self._columns = None  # `steps` would use them if their length matched later
        self.blocks, self.rows, self.nbytes = state.blocks, state.rows, state.nbytes
        self._types, self.fields = state.types, state.fields
        self.ended, self.details = state.ended, state.details
        self.rows.cut_back(state.row_count, state.columns)

    def _derive_versions(self, tokens: Any, first: Any, last: Any) -> list[Any]:
        """Return the policy versions of a step; if known, those of its first and last token."""
        field = self._types.get("versions")
        if field is None or not field.ascending:
            return [first, last]
        if isinstance(tokens, np.ndarray) and tokens.dtype != field.numpy:
            return [first, last]  # encoding raises the error
        try:
            begin, end = np.asarray(tokens).reshape(-1)[[0, -1]].tolist()
        except (TypeError, ValueError, IndexError, RuntimeError):
            return [first, last]  # no tokens, or encoding raises the error
        if type(begin) is not int or type(end) is not int or end < begin:
            return [first, last]
        for name, version, of_tokens in (
            ("policy_version", first, begin), ("policy_version_end", last, end),
        ):  # fmt: skip
            if version is not None and checks.whole(version, name) != of_tokens:
                raise errors.InvalidValue(
                    f"{name} is {version}, but the versions of the tokens are {begin} to {end}; "
                    f"omit {name}, or pass {of_tokens}"
                )
        return [begin, end if last is not None or end != begin else None]

    def _check_versions(self, episode: EpisodeRecord, first: Any, last: Any) -> list[int | None]:
        """Return a step's checked versions; the plan omits versions that equal the episode's."""
        if first is not None:
            first = checks.whole(first, "policy_version")
        if last is not None:
            last = checks.whole(last, "policy_version_end")
            usual = episode.policy_version if episode.step_version is None else episode.step_version
            began = usual if first is None else first
            if began is None:
                raise errors.InvalidValue(
                    f"policy_version_end is {last}, but the step and its episode have no "
                    "policy_version; also pass policy_version"
                )
            if last < began:
                raise errors.InvalidValue(
                    f"policy_version_end must not be lower than policy_version {began}, got "
                    f"{last}; pass the version at the start of the step as policy_version, and "
                    "the version at its end as policy_version_end"
                )
        return [first, last]

    def cut(self) -> None:
        """Close the current chunk."""
        rows = self.rows
        if rows.count:
            first = max(0, len(self.taken) - rows.count + rows.has_final)
            selector = WriteSelector(self._recent_values, self.taken, first)
            block, nbytes = rows.block(selector), self.nbytes + rows.nbytes
            self.blocks, self.rows, self.nbytes = [*self.blocks, block], Rows(), nbytes  # at once

    def _append_new(self, values: Mapping[str, Any]) -> None:
        """Append a row with new fields; keep their types only if the whole row is accepted."""
        for name in values.keys() & EPISODE_NAMES:
            raise errors.InvalidValue(
                f"{name} belongs to the whole episode, not to a step; pass it to buffer.episode()"
            )
        before, count = (self._types, self.fields), self.rows.count
        try:
            self.rows.append(self._flatten_values(values), self._types)
        except BaseException:
            if self.rows.count == count:
                self._types, self.fields = before
            raise

    def retype(
        self, fields: Fields, final: dict[str, Any] | None, discarded: Collection[int] = ()
    ) -> None:
        """Encode the steps again, with other field types or another final observation.

        The steps with the indices `discarded` are left out. If a value is refused, raise and change
        nothing.
        """
        before = self.fields, self._types, self.blocks, self.rows, self.nbytes, self.final
        decoded_rows = [row for block in self.blocks for row in decoded(block)]
        if self.final_is_in_block:
            decoded_rows.pop()
        try:
            self.fields, self._types = fields, fields.types
            self.blocks, self.rows, self.nbytes = [], Rows(), 0
            for index, values in enumerate(decoded_rows):
                if index not in discarded:
                    self._append_new(values)
                if self.rows.full:
                    self.cut()
            self.final = None
            if final is not None:
                self.add_final(final)
            self.close()
        except BaseException:  # otherwise, a later write would store the steps without their fields
            self.fields, self._types, self.blocks, self.rows, self.nbytes, self.final = before
            raise

    def add_final(self, values: Mapping[str, Any]) -> None:
        """Accept the final observation of the only episode."""
        check_final(values.keys(), self._types)
        if not values.keys() <= self._types.keys():
            values = self._flatten_values(values)
        final = {name: value for name, value in values.items() if value is not None}
        trial = Rows()
        trial.append(final, self._types)
        self.final = final

    def end(self, episode: EpisodeRecord, status: str) -> None:
        """Make the write end its only episode, even if there are no steps to write."""
        self.ended, self.ending = {episode: status}, episode

    def take_back_end(self) -> None:
        """Undo a refused end of the episode, so that more steps can follow."""
        self.cut()  # the current chunk may hold the final observation
        if self.final_is_in_block:
            self.retype(self.fields, final=None)
        self.ended, self.ending, self.final = {}, None, None

    def close(self) -> None:
        """Close the last chunk; if it has steps, add the final observation to it."""
        if self.final and self.rows.count and not self.rows.has_final:
            self.rows.append_final(self.final, self._types)
        self.cut()
        encoded = 0
        for block in self.blocks:
            encoded += block.steps
        if len(self.taken) != encoded:
            raise RuntimeError(
                f"cannot store {len(self.taken)} steps, because the encoded fields belong to "
                f"{encoded} steps; please report this error"
            )

    @property
    def final_is_in_block(self) -> bool:
        """Whether the last chunk holds the final observation after its steps."""
        return bool(self.blocks) and self.blocks[-1].has_final

    @property
    def final_types(self) -> dict[str, Field]:
        """The fields of the final observation."""
        return {name: self._types[name] for name in self.final or ()}

    def collect_fields(self, stored: Fields) -> tuple[dict[str, Field], set[str]]:
        """Return the fields of the steps, and the names of fields that some of the steps lack."""
        fields: dict[str, Field] = {}
        lacking: set[str] = set()
        for block in self.blocks:
            if block.fields.keys() != stored.types.keys() or block.nullable:
                lacking |= block.nullable | (stored.types.keys() - block.fields.keys())
            fields.update(block.fields)
        if self.final:
            fields.update(self.final_types)
        for block in self.blocks:
            if len(block.fields) < len(fields):
                lacking |= fields.keys() - block.fields.keys()
        return fields, lacking

    def episodes(self) -> list[EpisodeRecord]:
        """Return each episode once, ordered by its first step."""
        return list(dict.fromkeys(self.steps.episode)) if self.taken else []

    def indices_by_episode(self) -> dict[EpisodeRecord, list[int]]:
        """Map each episode to the indices of its steps, in the order of `episodes()`."""
        if not self.taken:
            return {}
        records = self.steps.episode
        if records.count(records[0]) == len(records):
            return {records[0]: list(range(len(records)))}
        indices: dict[EpisodeRecord, list[int]] = {}
        for index, record in enumerate(records):
            indices.setdefault(record, []).append(index)
        return indices

    def discard(self, indices: Collection[int]) -> None:
        """Remove steps; the write no longer ends an episode if no pending step of it remains."""
        self.close()
        kept = [entry for index, entry in enumerate(self.taken) if index not in indices]
        taken = self.taken
        try:
            self.taken, self._columns = kept, None
            self.retype(self.fields, self.final, indices)
        except BaseException:
            self.taken, self._columns = taken, None
            raise
        self._progress, self._examined = {}, 0
        ends = {entry[0] for entry in kept if entry[5] or entry[6]} | {self.ending}
        self.ended = {record: how for record, how in self.ended.items() if record in ends}

    def open_episode(
        self, key: Key, name: str | None, details: tuple[Any, ...] = _NO_DETAILS
    ) -> EpisodeRecord | None:
        """Return the open episode of a step, or None if it is unknown or the step adds details."""
        if details != _NO_DETAILS:
            return None
        try:
            episode = self.opened.get(key) if name is None else self.named.get(name)
        except TypeError:  # an id is not text
            return None
        if episode is None or episode in self.ended:
            return None
        # Steps of several agents may name one episode.
        is_own = episode.task_id == key[0] and (name is not None or episode.agent_id == key[1])
        return episode if is_own else None

    def is_above(self, step: Any, episode: EpisodeRecord) -> bool:
        """Return whether a step number is greater than all step numbers of an episode."""
        return type(step) is int and self.progress(episode).is_above(step)

    def replace(self, episode: EpisodeRecord, progress: Progress) -> None:
        """Complete an open episode because its task and agent begin another one."""
        if progress.length > episode.length:  # it has steps in this write
            self.ended[episode] = "complete"
        else:
            self.replaced.append(episode)

    def complete(self, episode: EpisodeRecord, key: Key, name: str | None) -> None:
        """Record that a step completes its episode."""
        self.ended[episode] = "complete"
        if name is None:
            self.opened[key] = None

    def as_rows(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the columns and the fields of each step as they were given."""
        self.close()
        values = (row for block in self.blocks for row in decoded(block))
        named = set(self.named.values())
        for (episode, *columns), fields in zip(self.taken, values, strict=True):
            row = dict(zip(STEP_KEYS, columns, strict=True))
            own_version = row["policy_version"]
            details = self.details.get(episode, {})
            row |= {name: details.get(name, getattr(episode, name)) for name in EPISODE_DETAILS}
            if episode.parent is not None:
                row |= zip(RELATION_KEYS, episode.parent[:3], strict=True)
            if own_version is not None:
                row["policy_version"] = own_version
            for name in ("tags", "episode_tags"):
                row[name] = row[name] and json.loads(row[name])
            row["task_id"] = episode.task_id
            if row["agent_id"] is None:
                row["agent_id"] = episode.agent_id
            if episode in named:
                row["episode_id"] = episode.episode_id
            yield row, fields

    def _flatten_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with nested mappings flattened; add the types of new fields."""
        flat = flatten_step(values, self._types, self.fields.nested)
        new = new_types(flat, self._types)
        if new:
            # Append to trial rows first: if the value is refused, the type that was inferred from
            # it must not be kept.
            Rows().append({name: flat[name] for name in new}, new)
            self._types = {**self._types, **new}
            before = self.fields
            self.fields = Fields(self._types, before.optional, before.version, before.annotations)
        return flat


class ReplacingSteps(PendingSteps):
    """Pending steps in which characters that cannot be stored are replaced."""

    def __init__(self, fields: Fields, recent_values: RecentValues, replacements: Replacements):
        super().__init__(fields, recent_values)
        self._replacements = replacements

    def add(
        self, episode: EpisodeRecord, values: Mapping[str, Any], columns: tuple[Any, ...]
    ) -> bool:
        """Accept one step as `PendingSteps` does; replace characters if it is refused."""
        before = self._replacements.count
        try:
            return super().add(episode, values, columns)
        except errors.InvalidValue:
            values = self._replacements.in_fields(values)
            columns = self._replacements.in_columns(columns)
            if self._replacements.count == before:
                raise
        return super().add(episode, values, columns)

    def add_final(self, values: Mapping[str, Any]) -> None:
        """Accept the observation after the last step as `PendingSteps` does."""
        before = self._replacements.count
        try:
            return super().add_final(values)
        except errors.InvalidValue:
            values = self._replacements.in_fields(values)
            if self._replacements.count == before:
                raise
        return super().add_final(values)


def create_steps(store: Store, fields: Fields | None = None) -> PendingSteps:
    """Return an empty collection of steps; `fields` may have fields that are not stored yet."""
    fields = store.fields if fields is None else fields
    recent_values, replacements = store.recent_values, store.replacements
    if replacements is None:
        return PendingSteps(fields, recent_values)
    return ReplacingSteps(fields, recent_values, replacements)
