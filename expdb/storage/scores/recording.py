"""Record scores: append to their history, and set the latest scores of the steps."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.sql import tables
from expdb.sql.conditions import Condition
from expdb.sql.query import Where, plain_where, shown
from expdb.sql.session import Session
from expdb.storage.activity import JUDGE
from expdb.storage.reading import select
from expdb.storage.scores.requested import NewScore, scores_of, scores_of_steps
from expdb.storage.store import Store, evicted
from expdb.storage.stored_json import compact_json, parse_object

E, S, R = tables.episodes.c, tables.steps.c, tables.scores.c


def record_score(
    store: Store,
    where: Where,
    condition: Condition | None,
    episode_id: str | None,
    arguments: Mapping[str, Any],
) -> int:
    """Record a score of the steps that match a query, or of an episode; see `ReplayBuffer.score`.

    `condition` is the compiled query.
    """
    if (where is None) == (episode_id is None):
        raise errors.InvalidValue("score() must get either where or episode_id; pass one")
    if episode_id is not None:
        scores = scores_of([{"episode_id": episode_id, **arguments}], is_batch=False)
        return Recording(store, scores).run()
    plain = plain_where(where)
    scores = scores_of_steps(plain, **arguments)
    if isinstance(plain, np.ndarray):
        return Recording(store, scores).run()
    return Recording(store, scores, condition, shown(where)).run()


class Recording:
    """One call that records scores, which may be repeated while the server restarts.

    The history shows whether an attempt with an unknown outcome was committed.
    """

    def __init__(
        self,
        store: Store,
        scores: Sequence[NewScore],
        where: Condition | None = None,
        query: str = "",
    ):
        self._store, self._scores, self._where, self._query = store, scores, where, query
        self._attempted: list[tuple[object, ...]] = []  # history of the last attempt
        self._is_in_doubt = False

    def run(self) -> int:
        """Record the scores in a transaction, and return the number of new rows of the history."""
        count = self._store.engine.retry(self._attempt)
        self._store.activity.add(JUDGE, scores=count)
        self._store.report_if_due()
        return count

    def _attempt(self) -> int:
        try:
            with self._store.writing() as (session, _):
                if not (self._is_in_doubt and self._is_stored(session)):
                    self.record(session)
        except errors.CommitUnknown:
            self._is_in_doubt = True
            raise
        return len(self._attempted)

    def _is_stored(self, session: Session) -> bool:
        if not self._attempted:
            return False
        first = self._attempted[0]
        rows = session.query(
            "SELECT id, episode, position, name, value, scored_by, status, detail, scored "
            "FROM scores WHERE buffer_id = ? AND id = ?",
            self._store.id, first[1],
        )  # fmt: skip
        return bool(rows) and tuple(rows[0]) == first[1:]

    def record(self, session: Session, skip_missing: bool = False) -> None:
        """Record the scores in a transaction that locks the buffer's row.

        Raise Evicted or UnknownEpisode if a step or an episode is not stored; with `skip_missing`,
        warn and leave out its scores.
        """
        store, scores = self._store, list(self._scores)
        if self._where is not None:
            (score,) = scores
            positions = select.positions(store, session, self._where).tolist()
            if not positions:
                errors.warn(
                    f"score() recorded nothing, because no stored step of buffer {store.name!r} "
                    f"matches {self._query}; check the query, and that the steps are flushed and "
                    "not evicted"
                )
            scores = [score._replace(position=position) for position in positions]
        episodes = _Episodes(store, session, scores)
        steps = _Steps(store, session, scores, episodes)
        stored = [score for score in scores if episodes.has(score) and steps.has(score)]
        if skip_missing and len(stored) < len(scores):
            errors.warn(
                f"{len(scores) - len(stored)} of {len(scores)} scores of buffer {store.name!r} "
                "were not recorded, because their steps were evicted or deleted; raise the "
                "capacity, or lease with pin=True"
            )
        elif len(stored) < len(scores):
            raise _missing(store, scores, episodes, steps)
        episodes.warn_of_open_episodes(store)
        ((last,),) = session.query(
            "SELECT coalesce(max(id), -1) FROM scores WHERE buffer_id = ?", store.id
        )
        now = time.time()
        self._attempted = [
            (
                store.id, last + number, steps.episode_of(score), score.position, score.name,
                score.value, score.scored_by, score.status, score.detail,
                now if score.scored is None else score.scored,
            )
            for number, score in enumerate(stored, 1)
        ]  # fmt: skip
        for score in stored:
            steps.apply(score)
        store.dialect.insert_rows(session, tables.scores, self._attempted)
        steps.save(session)


class _Episodes:
    """The stored episodes that scores name."""

    def __init__(self, store: Store, session: Session, scores: Sequence[NewScore]):
        names = list({score.episode for score in scores if isinstance(score.episode, str)})
        ids = list({score.episode for score in scores if isinstance(score.episode, int)})
        is_own = E.buffer_id == store.id
        rows: list[tuple[str | int, int, str]] = []
        if names:
            statement = sa.select(E.episode_id, E.id, E.status)
            rows += session.fetch(statement.where(is_own, store.dialect.among(E.episode_id, names)))
        if ids:
            statement = sa.select(E.id, E.id, E.status)
            rows += session.fetch(statement.where(is_own, store.dialect.among(E.id, ids)))
        self.id_of: dict[str | int, int] = {name: id for name, id, _ in rows}
        self._open = [name for name, _, status in rows if status == "open"]

    def warn_of_open_episodes(self, store: Store) -> None:
        if self._open and not store.warned_of_open_scores:
            store.warned_of_open_scores = True
            errors.warn(
                f"episode {self._open[0]!r} is scored while it is open, so steps that are written "
                "later have no score; end the episode first, or score it again afterwards"
            )

    def has(self, score: NewScore) -> bool:
        return score.episode is None or score.episode in self.id_of


class _Steps:
    """The steps that scores apply to, with their latest scores."""

    def __init__(
        self, store: Store, session: Session, scores: Sequence[NewScore], episodes: _Episodes
    ):
        self._store, self._episodes = store, episodes
        own = [score.position for score in scores if score.position is not None]
        wanted = np.unique(np.array(own, np.int64))
        ids = np.array(sorted(set(episodes.id_of.values())), np.int64)
        if len(ids):
            added = store.state(session).added
            of_episodes = select.positions_of_episodes(store, session, ids, added)
            wanted = np.union1d(wanted, of_episodes)
        rows = session.query(
            f"SELECT position, episode, scores FROM steps WHERE buffer_id = ? AND position "
            f"{store.dialect.AMONG}",
            store.id, store.dialect.as_list(wanted),
        )  # fmt: skip
        self._episode_at: dict[int, int] = {}
        self._stored: dict[int, str | None] = {}
        self._positions_of: dict[int, list[int]] = {id: [] for id in ids.tolist()}
        for position, episode, text in sorted(rows):
            self._episode_at[position], self._stored[position] = episode, text
            if episode in self._positions_of:
                self._positions_of[episode].append(position)
        self._latest: dict[int, str] = {}  # JSON objects of the scored steps
        # The text after each change of a text. Many steps have the same scores.
        self._changed: dict[tuple[str | None, str, float | None], str] = {}

    def has(self, score: NewScore) -> bool:
        """Return whether the step, or any step of the episode, is stored."""
        if score.position is not None:
            return score.position in self._episode_at
        return bool(self._positions_of[self.episode_of(score)])

    def episode_of(self, score: NewScore) -> int:
        if score.position is not None:
            return self._episode_at[score.position]
        assert score.episode is not None
        return self._episodes.id_of[score.episode]

    def apply(self, score: NewScore) -> None:
        """Set the latest score of the steps; a failure does not replace a value."""
        positions = (
            [score.position]
            if score.position is not None
            else self._positions_of[self.episode_of(score)]
        )
        for position in positions:
            text = self._latest.get(position, self._stored[position])
            change = text, score.name, score.value
            if change not in self._changed:
                latest = {} if text is None else parse_object(text, "scores")
                if score.value is not None or score.name not in latest:
                    latest[score.name] = score.value
                self._changed[change] = compact_json(latest)
            self._latest[position] = self._changed[change]

    def save(self, session: Session) -> None:
        """Write the changed scores of the steps, and mark their episodes as changed."""
        store = self._store
        changed = {
            position: text
            for position, text in self._latest.items()
            if text != self._stored[position]
        }
        if not changed:
            return
        steps = tables.steps.c
        store.dialect.set_texts(session, steps.scores, steps.position, store.id, changed)
        # Cached scores of episodes follow the revisions of episodes.
        ids = np.array(sorted({self._episode_at[position] for position in changed}), np.int64)
        session.execute(
            "UPDATE episodes SET revision = (SELECT revision FROM buffers WHERE id = ?) "
            f"WHERE buffer_id = ? AND id {store.dialect.AMONG}",
            store.id, store.id, store.dialect.as_list(ids),
        )  # fmt: skip


def _missing(
    store: Store, scores: Sequence[NewScore], episodes: _Episodes, steps: _Steps
) -> errors.ExpDBError:
    """Return the error for scores whose steps or episodes are not stored."""
    positions = [s.position for s in scores if s.position is not None and not steps.has(s)]
    if positions:
        return evicted(np.unique(np.array(positions, np.int64)))
    index, score = next(
        (k, s) for k, s in enumerate(scores) if not (episodes.has(s) and steps.has(s))
    )
    error = errors.UnknownEpisode(
        f"no episode {score.episode!r} in buffer {store.name!r}, or its steps were evicted; score "
        "an episode after its writer has flushed or ended, and list episodes with buffer.episodes()"
    )
    if len(scores) > 1:
        errors.name_row(error, index)
    return error
