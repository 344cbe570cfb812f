"""Warn about tags and scores that a query uses but no step or episode has."""

import time
from collections.abc import Iterable

import sqlalchemy as sa

from expdb import errors
from expdb.names import nearest
from expdb.sql import tables
from expdb.sql.engine import Engine
from expdb.sql.session import Session

RECENT = 10_000  # scores whose names are compared with the name in a query
# Seconds between two looks for a score that does not exist yet. Trainers often start before the
# first score is recorded.
LOOK_SECONDS = 2.0
NOT_YET = ""  # no score has this name or a similar one


class Tags:
    """The tags and scores of one buffer that queries have used."""

    def __init__(self, engine: Engine, buffer_id: int, buffer: str):
        self._engine, self._buffer_id, self._buffer = engine, buffer_id, buffer
        self._checked_names: set[str] = set()  # tags that exist, or that a warning has named
        self._next_look: dict[str, float] = {}  # times, for scores that do not exist

    def warn_of_unknown(self, names: Iterable[str]) -> None:
        """Warn once about each tag, such as "tags.difficulty", that no step or episode has.

        The key may be misspelt. The warning about a score, such as "scores.judge", requires that
        another score has a similar name, because a judge may query its own score before the first
        one is recorded.
        """
        now = time.monotonic()
        fresh = [
            name
            for name in names
            if name not in self._checked_names and now >= self._next_look.get(name, now)
        ]
        if not fresh:
            return
        statement = sa.select(sa.literal(1)).where(tables.episodes.c.buffer_id == self._buffer_id)
        with self._engine.reading() as session:
            if not session.query(statement.limit(1)):
                return  # nothing was stored yet
            messages = {name: self._unknown_tag(session, *name.split(".")) for name in fresh}
        for name, message in messages.items():
            if message == NOT_YET:
                self._next_look[name] = now + LOOK_SECONDS
            else:
                self._checked_names.add(name)
        for message in filter(None, messages.values()):
            errors.warn(message)

    def _unknown_score(self, session: Session, name: str) -> str | None:
        rows = session.query(
            "SELECT DISTINCT name FROM (SELECT name FROM scores WHERE buffer_id = ? ORDER BY id "
            "DESC LIMIT ?) AS recent",
            self._buffer_id, RECENT,
        )  # fmt: skip
        names = {str(stored) for (stored,) in rows}
        if name in names:
            return None
        hint = nearest(name, names)
        if not hint:
            return NOT_YET
        return f"no score of buffer {self._buffer!r} has the name {name!r}{hint}"

    def _unknown_tag(self, session: Session, column: str, key: str) -> str | None:
        if column == "scores":
            return self._unknown_score(session, key)
        table, other = (
            (tables.steps, "episode_tags") if column == "tags" else (tables.episodes, "tags")
        )
        has_tag = self._engine.dialect.tag_value(table.c[column], key).is_not(None)
        if session.query(
            sa.select(sa.literal(1)).where(table.c.buffer_id == self._buffer_id, has_tag).limit(1)
        ):
            return None
        keys = {
            name: {str(stored_key) for (stored_key,) in session.query(statement, self._buffer_id)}
            for name, statement in self._engine.dialect.TAG_KEYS.items()
        }
        if key in keys[column]:  # the key exists, but every value is null
            return None
        if key in keys[other]:
            cure = (
                f"use {other}.{key}, which is a tag of "
                f"{'an episode' if other == 'episode_tags' else 'a step'}"
            )
        else:
            cure = (
                f"the stored tags are {', '.join(sorted(keys[column])[:20])}"
                if keys[column]
                else "no tags of this kind are stored"
            )
        return (
            f"no step or episode of buffer {self._buffer!r} has the tag "
            f"{column}.{key}{nearest(key, keys[column]) or ';'} {cure}"
        )
