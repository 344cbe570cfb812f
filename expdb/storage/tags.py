"""Warn about tags that a query uses but no step or episode has."""

from collections.abc import Iterable

import sqlalchemy as sa

from expdb import errors
from expdb.names import nearest
from expdb.sql import tables
from expdb.sql.engine import Engine
from expdb.sql.session import Session


class Tags:
    """The tags of one buffer that queries have used."""

    def __init__(self, engine: Engine, buffer_id: int, buffer: str):
        self._engine, self._buffer_id, self._buffer = engine, buffer_id, buffer
        self._looked_at: set[str] = set()  # tags that exist, or that a warning has named

    def warn_of_unknown(self, names: Iterable[str]) -> None:
        """Warn once about each tag, such as "tags.difficulty", that no step or episode has.

        The key may be misspelt.
        """
        fresh = [name for name in names if name not in self._looked_at]
        if not fresh:
            return
        statement = sa.select(sa.literal(1)).where(tables.episodes.c.buffer_id == self._buffer_id)
        with self._engine.reading() as session:
            if not session.rows(statement.limit(1)):
                return  # nothing was stored yet
            messages = {name: self._unknown_tag(session, *name.split(".")) for name in fresh}
        self._looked_at.update(messages)
        for message in filter(None, messages.values()):
            errors.warn(message)

    def _unknown_tag(self, session: Session, column: str, key: str) -> str | None:
        table, other = (
            (tables.steps, "episode_tags") if column == "tags" else (tables.episodes, "tags")
        )
        has_tag = self._engine.dialect.tag_value(table.c[column], key).is_not(None)
        if session.rows(
            sa.select(sa.literal(1)).where(table.c.buffer_id == self._buffer_id, has_tag).limit(1)
        ):
            return None
        keys = {
            name: {str(stored_key) for (stored_key,) in session.ask(statement, self._buffer_id)}
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
