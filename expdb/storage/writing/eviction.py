"""Eviction: policies, the steps that a policy evicts now, and their deletion.

If no policy is set, or the database can apply the policy itself, the trigger `buffers_capacity`
chooses the steps to evict. In every case the trigger `buffers_evicted` deletes them.
"""

from __future__ import annotations  # so that annotations do not import numpy.random

import json
import logging
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa

from expdb import checks, errors
from expdb.keywords import checked_keywords
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.outcome import WriteOutcome
from expdb.storage.store import State, Store
from expdb.storage.stored_json import damaged
from expdb.storage.writing.change import delete_positions

B, C, E, G, S, V = (
    table.c
    for table in (
        tables.buffers, tables.chunks, tables.episodes, tables.segments,
        tables.steps, tables.evictions,
    )
)  # fmt: skip

# Bytes of the shared values to which no newer chunk refers: evicting the chunk deletes them.
_SHARED_BYTES = (
    "(SELECT cast(coalesce(sum(length(v.data)), 0) AS bigint) FROM value_references r "
    "JOIN shared_values v ON v.buffer_id = r.buffer_id AND v.digest = r.digest "
    "WHERE r.buffer_id = chunks.buffer_id AND r.chunk = chunks.id AND NOT EXISTS (SELECT 1 "
    "FROM value_references o WHERE o.buffer_id = r.buffer_id AND o.digest = r.digest "
    "AND o.chunk > r.chunk))"
)
ROOT_EPISODE = sa.func.coalesce(E.root_episode, E.id)  # the first episode of the tree

log = logging.getLogger(__name__)

MARKER = "archive_id"  # in the stored policy


@dataclass(frozen=True)
class Eviction:
    """Define limits for a buffer in addition to its capacity.

    Assign the policy to ``buffer.eviction``. The database stores it, and every process applies it.
    Steps are evicted oldest first: steps that exceed `max_age_seconds`, then steps of a task that
    exceed `max_steps_per_task`, then steps that exceed `max_bytes` or the capacity. Steps that a
    lease pins are not evicted, unless the buffer would keep more than twice its capacity for them.

    A writing handle evicts at most about once per second. With `whole_episodes` or `archive` this
    also applies to the capacity, so the buffer may exceed its capacity between two evictions.

    At least one of `max_bytes`, `max_age_seconds`, `max_steps_per_task`, `whole_episodes` and
    `archive` is required. Assign None to ``buffer.eviction`` to remove the policy.

    Parameters
    ----------
    max_bytes : int, optional
        Maximum size of the stored fields in bytes, ``buffer.stats()["bytes"]``; at least 1.
    max_age_seconds : float, optional
        Maximum age of a step in seconds since its ``execute_time``. With `whole_episodes`, the age
        is the time since the episode ended.
    max_steps_per_task : int, optional
        Number of newest steps to keep per task; at least 1.
    whole_episodes : bool, default False
        Whether to evict only whole trees of episodes that have ended; see `ReplayBuffer.lineage`.
        An episode without relations is a tree of its own. Trees with an open episode are kept, but
        count towards the limits.
    archive : str or path-like, optional
        Folder for evicted steps. expdb writes the steps to Parquet files in
        ``buffer=<name>/date=<day>/`` before it deletes the steps. ``~`` is expanded, and a relative
        path becomes absolute.
    by : {"writers", "archiver"}, default "writers"
        Callers that evict. With ``"writers"``, every handle that writes also evicts. With
        ``"archiver"``, only `ReplayBuffer.evict` and ``expdb evict --follow`` evict.

    Raises
    ------
    InvalidValue
        If a limit is out of range, `archive` is not a path, or no limit is set.

    Examples
    --------
    >>> buffer.eviction = expdb.Eviction(max_bytes=10 * 2**30)  # doctest: +SKIP
    >>> buffer.eviction = expdb.Eviction(whole_episodes=True, archive="old")  # doctest: +SKIP
    """

    max_bytes: int | None = None
    max_age_seconds: float | None = None
    max_steps_per_task: int | None = None
    whole_episodes: bool = False
    archive: str | os.PathLike[str] | None = None
    by: Literal["writers", "archiver"] = "writers"

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_steps_per_task"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checks.whole(getattr(self, name), name, 1))
        if (age := self.max_age_seconds) is not None:
            object.__setattr__(self, "max_age_seconds", checks.number(age, "max_age_seconds", 0))
        checks.flag(self.whole_episodes, "whole_episodes")
        checks.choice(self.by, "by", "writers", "archiver")
        if self.archive is not None:
            path = os.fspath(self.archive) if isinstance(self.archive, (str, os.PathLike)) else ""
            if not isinstance(path, str) or not path or "\0" in path:
                raise errors.InvalidValue(
                    f"archive must be the path of a folder, got {self.archive!r}"
                )
            object.__setattr__(self, "archive", os.path.abspath(os.path.expanduser(path)))
        if not self.whole_episodes and all(
            limit is None
            for limit in (
                self.max_bytes,
                self.max_age_seconds,
                self.max_steps_per_task,
                self.archive,
            )
        ):
            raise errors.InvalidValue(
                "an Eviction must have a limit, got none; set max_bytes, max_age_seconds, "
                "max_steps_per_task, whole_episodes or archive, or set buffer.eviction = None"
            )

    @property
    def is_done_by_trigger(self) -> bool:
        """Whether a trigger of the database evicts single steps by the capacity."""
        return not self.whole_episodes and self.archive is None


Eviction.__init__ = checked_keywords(max_age="max_age_seconds")(  # type: ignore[method-assign]
    Eviction.__init__
)


def read_policy(store: Store, session: Session) -> Eviction | None:
    """Return the policy of a buffer, or None if it has none."""
    return read_policy_and_marker(store, session)[0]


def read_policy_and_marker(store: Store, session: Session) -> tuple[Eviction | None, str | None]:
    """Return the policy, and the id that its archive folder must contain; None if not set."""
    text = store.column(session, "eviction")
    if text is None:
        return None, None
    try:
        stored = json.loads(text)
        marker = stored.pop(MARKER, None)
        if "max_age" in stored:  # the name in expdb 0.2
            stored["max_age_seconds"] = stored.pop("max_age")
        return Eviction(**stored), marker
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"the eviction policy of buffer {store.name!r}", error) from error


def set_policy(
    store: Store, session: Session, policy: Eviction | None, marker: str | None = None
) -> None:
    """Store a policy and the id of its archive folder, in a transaction that locked the buffer."""
    if session.query(sa.select(V.id).where(V.buffer_id == store.id)):
        raise errors.DatabaseBusy(
            f"cannot set the eviction policy of buffer {store.name!r}, because another process "
            "archives its steps; set the policy again when the other process has finished"
        )
    values = {
        "eviction": None if policy is None else json.dumps({**asdict(policy), MARKER: marker}),
        "trigger_evicts": policy is None or policy.is_done_by_trigger,
    }
    session.execute(sa.update(tables.buffers).where(B.id == store.id).values(**values))


# -- selection -------------------------------------------------------------------------------------

FIRST_LOOK = 1024  # runs of steps to read first; each further attempt reads four times as many


@dataclass(frozen=True)
class EvictionPlan:
    """The steps to evict in order of position, each with its episode and the limit it exceeds."""

    positions: np.ndarray
    episodes: np.ndarray
    trees: np.ndarray  # number of the root episode of each step
    why: np.ndarray  # names of limits, such as "max_age_seconds"

    def select(self, is_selected: np.ndarray) -> EvictionPlan:
        """Return a plan with only the selected steps."""
        return EvictionPlan(*[column[is_selected] for column in vars(self).values()])

    def runs(self) -> list[tuple[int, int, int, str]]:
        """Group neighbouring steps; return episode, first and last position, and limit of each."""
        positions = self.positions
        if not len(positions):
            return []
        breaks = (np.diff(positions) != 1) | (np.diff(self.episodes) != 0)
        breaks |= self.why[1:] != self.why[:-1]
        starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        ends = np.append(starts[1:], len(positions)) - 1
        columns = self.episodes[starts], positions[starts], positions[ends], self.why[starts]
        return list(zip(*[column.tolist() for column in columns], strict=True))


_NO_STEPS = np.empty(0, np.int64)
NOTHING = EvictionPlan(_NO_STEPS, _NO_STEPS, _NO_STEPS, np.empty(0, object))


def plan_eviction(store: Store, session: Session, policy: Eviction, now: float) -> EvictionPlan:
    """Return the steps that the policy evicts from the buffer as the session sees it."""
    state = store.state(session)
    over_steps = 0 if state.capacity is None else state.size - state.capacity
    over_bytes = 0 if policy.max_bytes is None else state.nbytes - policy.max_bytes
    pinned = pinned_from(store, session, state)
    # Single steps are evicted in the order of positions, so reading the oldest runs is enough.
    limit: int | None = FIRST_LOOK
    if policy.max_age_seconds is not None or policy.max_steps_per_task is not None:
        limit = None
    elif over_steps <= 0 and over_bytes <= 0:
        return NOTHING
    elif policy.whole_episodes:
        limit = None
    while True:
        frees_values = policy.max_bytes is not None and state.has_shared_values
        rows = _read_runs(store, session, limit, frees_values)
        if not rows:
            return NOTHING
        items = _Items(rows, state, pinned, policy.whole_episodes)
        if (age := policy.max_age_seconds) is not None:
            items.evict(_older(store, session, items, policy, now - age), "max_age_seconds")
        if policy.max_steps_per_task is not None:
            items.evict(items.over_by_task(policy.max_steps_per_task), "max_steps_per_task")
        items.evict_oldest(items.nbytes, over_bytes, "max_bytes")
        items.evict_oldest(items.steps, over_steps, "capacity")
        if limit is None or len(rows) < limit or not items.last_goes:
            return items.plan()
        limit *= 4


def pinned_from(store: Store, session: Session, state: State) -> int | None:
    """Return the first position that is kept for leases, or None.

    Return None if no lease pins steps, or if more than twice the capacity would be kept.
    """
    if state.pinned is None or state.capacity is None:
        return state.pinned
    is_pinned = S.buffer_id == store.id, S.position >= state.pinned
    kept = session.query(sa.select(sa.func.count()).select_from(tables.steps).where(*is_pinned))[0][
        0
    ]
    return state.pinned if kept <= 2 * state.capacity else None


def select_whole_trees(
    store: Store, session: Session, positions: np.ndarray, pinned: int | None
) -> np.ndarray:
    """Return the ascending positions of the trees that may be evicted as a whole.

    A tree is a root with all of its descendants. It is kept if one of its episodes is open, if it
    has a step at `pinned` or later, or if `positions` contain no step of one of its episodes.
    """
    if not len(positions):
        return positions
    low, high = int(positions[0]), int(positions[-1])
    rows = session.query(
        sa.select(G.first, G.last, G.episode, ROOT_EPISODE, E.last_position)
        .select_from(tables.SEGMENTS_OF_EPISODES)
        .where(G.buffer_id == store.id, G.last >= low, G.first <= high)
        .order_by(G.last)
    )
    first, last, episodes, trees, newest = np.array(rows, np.int64).reshape(-1, 5).T
    is_touched = positions.searchsorted(first) < positions.searchsorted(last, "right")
    end = np.inf if pinned is None else pinned
    is_kept = np.isin(trees, trees[(newest >= end) & is_touched])
    # Few episodes have parents or are incomplete. Partial indexes contain these episodes.
    candidates = session.query(
        sa.select(E.id, ROOT_EPISODE, E.status).where(
            E.buffer_id == store.id, sa.or_(E.root_episode.is_not(None), E.status != "complete")
        )
    )
    touched = set(episodes[is_touched].tolist())
    kept_trees = [tree for id, tree, status in candidates if status == "open" or id not in touched]
    is_kept |= np.isin(trees, kept_trees)
    kept = np.ones(len(positions), np.bool_)
    for start, stop in zip(first[is_kept].tolist(), last[is_kept].tolist(), strict=True):
        kept[slice(*np.searchsorted(positions, (start, stop + 1)))] = False
    return positions[kept]


def _read_runs(store: Store, session: Session, limit: int | None, frees_values: bool) -> list[Any]:
    """Return the oldest runs of neighbouring steps with columns of their episode and chunk.

    With `frees_values`, the size of a chunk includes the shared values that its eviction frees.
    """
    nbytes = C.bytes + sa.literal_column(_SHARED_BYTES) if frees_values else C.bytes
    chunks = sa.and_(C.buffer_id == G.buffer_id, C.id == G.chunk)
    return list(
        session.query(
            sa.select(
                G.first, G.last, G.episode, ROOT_EPISODE, E.task_id, E.status,
                sa.func.coalesce(E.ended, E.started), nbytes, C.rows,
            )
            .select_from(tables.SEGMENTS_OF_EPISODES.join(tables.chunks, chunks))
            .where(G.buffer_id == store.id)
            .order_by(G.last)
            .limit(limit)
        )
    )  # fmt: skip


def _older(
    store: Store, session: Session, items: _Items, policy: Eviction, before: float
) -> np.ndarray:
    if policy.whole_episodes:
        return np.asarray(items.ended < before)
    rows = session.query(
        sa.select(S.position)
        .where(S.buffer_id == store.id, S.position <= int(items.newest.max()))
        .where(S.execute_time < before)
    )
    return np.isin(items.newest, np.fromiter((row[0] for row in rows), np.int64, len(rows)))


class _Items:
    """The items of eviction, oldest first: single steps or whole trees of episodes.

    Trees are in the order of their newest steps.
    """

    def __init__(self, rows: list[Any], state: State, pinned: int | None, whole_episodes: bool):
        first, last, episode, trees, tasks, status, ended, nbytes, count = zip(*rows, strict=True)
        starts = np.maximum(np.array(first, np.int64), state.oldest)
        lengths = np.array(last, np.int64) - starts + 1
        run = np.repeat(np.arange(len(rows)), lengths)  # the run of each step
        offsets = np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._positions, self._episodes = starts[run] + offsets, np.array(episode)[run]
        self._trees = np.array(trees)[run]
        if whole_episodes:
            codes = np.unique(self._trees, return_inverse=True)[1]
            newest = np.zeros(codes.max() + 1, np.int64)
            np.maximum.at(newest, codes, self._positions)
            _, of, self._item = np.unique(newest[codes], return_index=True, return_inverse=True)
            is_open = np.array([run_status == "open" for run_status in status])[run]
            allowed = np.bincount(self._item, is_open) == 0
        else:
            of = self._item = np.arange(len(run))
            allowed = np.ones(len(run), np.bool_)
        each = (np.array(nbytes) / np.array(count))[run]
        self.steps, self.nbytes = np.bincount(self._item), np.bincount(self._item, each)
        self.newest = np.zeros(len(of), np.int64)
        np.maximum.at(self.newest, self._item, self._positions)
        self.ended = np.full(len(of), -np.inf)
        np.maximum.at(self.ended, self._item, np.array(ended, np.float64)[run])
        self._tasks = np.unique(np.array(tasks, object), return_inverse=True)[1][run][of]
        if pinned is not None:
            allowed &= self.newest < pinned
        self._allowed, self._why = allowed, np.full(len(of), "", object)

    def evict(self, due: np.ndarray, why: str) -> None:
        """Mark the items in `due` as evicted, except pinned items and open episodes."""
        self._why[due & self._allowed & (self._why == "")] = why

    def evict_oldest(self, sizes: np.ndarray, over: float, why: str) -> None:
        """Mark the oldest items as evicted until the sizes of all marked items sum to `over`."""
        over -= float(sizes[self._why != ""].sum())
        free = np.flatnonzero(self._allowed & (self._why == ""))
        if over > 0 and len(free):
            before = np.cumsum(sizes[free]) - sizes[free]
            self._why[free[before < over]] = why

    def over_by_task(self, most: int) -> np.ndarray:
        """Return which items are not within the newest `most` steps of their task."""
        order = np.lexsort((-np.arange(len(self.steps)), self._tasks))  # newest first
        steps, tasks = self.steps[order], self._tasks[order]
        total = np.cumsum(steps)
        starts = np.flatnonzero(np.diff(tasks, prepend=-1))
        base = np.repeat(total[starts] - steps[starts], np.diff(np.append(starts, len(tasks))))
        over = np.empty(len(order), np.bool_)
        over[order] = total - base > most
        return over

    @property
    def last_goes(self) -> bool:
        """Whether the newest item is marked; if so, items that were not read may be due, too."""
        return bool(self._why[-1] != "")

    def plan(self) -> EvictionPlan:
        """Return the steps of all items that are marked."""
        why = self._why[self._item]
        gone = why != ""
        return EvictionPlan(self._positions, self._episodes, self._trees, why).select(gone)


# -- deletion --------------------------------------------------------------------------------------


def evict(store: Store, session: Session, outcome: WriteOutcome, positions: np.ndarray) -> int:
    """Evict steps in a transaction that has locked the buffer's row; return their number."""
    if not len(positions):
        return 0
    log.info("buffer %r: evicting %d steps", store.name, len(positions))
    oldest = sa.select(sa.func.min(S.position)).where(
        S.buffer_id == store.id, sa.not_(store.dialect.among(S.position, positions.tolist()))
    )
    ((bound,),) = session.query(oldest)
    bound = int(store.state(session).added if bound is None else bound)
    gone = _evict_before(store, session, bound)
    rest = positions[positions > bound]
    return gone + delete_positions(store, session, outcome, rest, is_eviction=True)


def _evict_before(store: Store, session: Session, bound: int) -> int:
    """Evict the steps before `bound`; return their number. The trigger deletes the rows."""
    ((count,),) = session.query(
        sa.select(sa.func.count())
        .select_from(tables.steps)
        .where(S.buffer_id == store.id, S.position < bound)
    )
    # A user may have deleted the oldest step that a lease pins; the other steps stay pinned.
    L = tables.leases.c
    is_leased = sa.and_(L.buffer_id == store.id, L.status == "leased", L.pinned < bound)
    session.execute(sa.update(tables.leases).where(is_leased).values(pinned=bound))
    size = B.size - count
    values = {
        "low": bound,
        "size": size,
        "holes": sa.case((B.added - bound == size, 0), else_=B.holes),
        "pinned": sa.case((B.pinned < bound, bound), else_=B.pinned),
    }
    here = B.id == store.id, B.low < bound
    session.execute(sa.update(tables.buffers).where(*here).values(**values))
    return int(count)
