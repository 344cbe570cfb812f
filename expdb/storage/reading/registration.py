"""`register` adds the SQL functions of expdb to a connection of another program."""

from typing import Any

from expdb.errors import InvalidValue, NotAnExperienceDatabase
from expdb.sql.dialects.sqlite.connection import (
    is_experience_database,
    plain_rows,
    prepare_for_reading,
)
from expdb.storage.reading.adhoc import FieldFunction


def register(connection: Any) -> None:
    """Add the SQL functions `field` and `priority` to a connection of the module `sqlite3`.

    Without these functions, other programs can read every column of the views `experience` and
    `experience_episodes`, but not the fields, which are stored in chunks.

    - ``field(payload, 'name')`` returns a field of a step as a number, text, bytes or JSON text.
    - ``priority(buffer, position)`` returns the priority of a step, or NULL if the step has none.
      The function is faster than the column `priority` of the view.

    `register` disables automatic checkpoints on the connection. In SQLite before 3.51.3, a
    checkpoint that runs while another connection writes can corrupt the file.

    Parameters
    ----------
    connection : sqlite3.Connection
        An open connection to an expdb file, preferably read-only.

    Raises
    ------
    InvalidValue
        If `connection` is not an SQLite connection.
    NotAnExperienceDatabase
        If the file of `connection` is not an expdb database.

    Examples
    --------
    >>> connection = sqlite3.connect("file:runs.db?mode=ro", uri=True)  # doctest: +SKIP
    >>> expdb.register(connection)  # doctest: +SKIP
    >>> connection.execute("SELECT field(payload, 'action') FROM experience")  # doctest: +SKIP
    """
    if not hasattr(connection, "create_function"):
        raise InvalidValue(
            f"expected a sqlite3.Connection, got {type(connection).__name__}; with SQLAlchemy, "
            "pass connection.connection.driver_connection"
        )
    if not is_experience_database(connection):
        raise NotAnExperienceDatabase(
            "the file of this connection is not an expdb database; connect to a file that "
            "expdb.open created"
        )
    prepare_for_reading(connection)
    connection.create_function("field", 2, _FieldReader(connection).value, deterministic=True)


class _FieldReader:
    """The function `field` for a file that other connections may change between two calls."""

    def __init__(self, connection: Any):
        self._connection = connection
        self._version: Any = None

    def value(self, payload: Any, name: Any) -> Any:
        """Return a field of a step."""
        (version,) = self._query("PRAGMA data_version")
        if version != self._version:  # the cached chunks and fields may be outdated
            self._field, self._version = FieldFunction(self._query), version
        return self._field.value(payload, name)

    def _query(self, sql: str, *params: Any) -> list[Any]:
        return plain_rows(self._connection, sql, params)
