"""The interface of a dialect: everything that expdb needs from a database.

A dialect is a module with these names (`statements.py` in its folder), an engine in the same
folder, and a folder in `migrations/sql/`. mypy checks the modules against this protocol, and
`check_database` in testing.py checks their behaviour. Statements are plain SQL with `?` for each
parameter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import sqlalchemy as sa

from expdb.errors import SqlError
from expdb.sql.session import Session

# The value of a tag, and the condition that it has the type of the value to compare it with.
Tag = tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]]

# Subject, value, and a text with the problem and its solution, or "" without a problem.
Finding = tuple[str, str, str]


Grant = tuple[str, str, str]  # table or view, role, privilege


class QueryFailed(SqlError):
    """An error that the database reports for a query; `run_sql` adds a hint."""


def finding(what: str, detail: str, wrong: bool = False, cure: str = "") -> Finding:
    """Return one line of `examine`, with the solution if something is wrong."""
    return what, detail, cure if wrong else ""


def fetch_limited(
    fetch: Callable[[int], list[tuple[Any, ...]]], max_bytes: int | None
) -> list[tuple[Any, ...]]:
    """Return all rows of a query; raise SqlError if their size exceeds `max_bytes`.

    `fetch(count)` returns at most `count` of the remaining rows.
    """
    rows: list[tuple[Any, ...]] = []
    count, nbytes = 1, 0
    while part := fetch(1 << 30 if max_bytes is None else count):
        rows += part
        if max_bytes is None:
            continue
        values = [value for row in part for value in row]
        nbytes += sum(len(v) if isinstance(v, (str, bytes)) else 8 for v in values)
        if nbytes > max_bytes:
            raise SqlError(
                f"the result is larger than {max_bytes:,} bytes; select fewer rows or shorter "
                "values, or raise max_bytes"
            )
        count = min(2 * count, 1024)
    return rows


class Dialect(Protocol):
    """The differences between databases."""

    # -- schema ----------------------------------------------------------------------------------

    HAS_TABLE: str  # returns a row if a table exists; parameter: its name
    HAS_INDEX: str  # returns a row if an index exists; parameter: its name
    HAS_ANY: str  # returns a row if the file or schema for the tables is not empty
    VERSION: str  # returns the revision of the schema

    NAME: str  # name of the folder of the dialect in migrations/sql

    def columns(self, session: Session) -> set[tuple[str, str]]:
        """Return the table and the name of every column."""

    def remake(self, session: Session, name: str, sql: str) -> None:
        """Recreate a view, a trigger or a function."""

    def grants(self, session: Session) -> list[Grant]:
        """Return the privileges of roles other than the owner; empty for a file."""

    def restore_grants(self, session: Session, grants: list[Grant]) -> None:
        """Restore the grants from before an upgrade, and grant the same on new tables."""

    def schema_problems(self, session: Session) -> list[str]:
        """Return which of the views, triggers and functions are missing or altered."""

    def file_problems(self, session: Session) -> list[str]:
        """Return the problems that the database itself finds in its file."""

    def lock_migrations(self, session: Session) -> None:
        """Lock the schema, so that only one process migrates at a time."""

    def database_gauges(self, session: Session) -> dict[str, float]:
        """Return figures of the whole database for the history of metrics."""

    # Whether the index of a score must also contain all scores of the step.
    INDEXES_ALL_SCORES: bool

    def estimate(self, session: Session, table: str, index: str) -> None:
        """Update the planner's statistics for a new index."""

    # -- parameters ------------------------------------------------------------------------------

    SCHEMA: str  # qualifies the name of a table
    MATERIALIZED: str  # keyword of the view `experience_draws`, so that joins on it are fast
    DRAWS: str  # what `experience_draws` selects from: the rows of the parameter `expdb_draws`
    AMONG: str  # `id {AMONG}`: whether id is in a list of integers, one parameter

    def as_list(self, values: np.ndarray) -> Any:
        """Return integers as one parameter."""

    def as_draws(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """Return the rows of `experience_draws` as one parameter."""

    def as_block(self, priorities: np.ndarray) -> Any:
        """Return a block of priorities as the database stores it."""

    def from_block(self, data: Any) -> np.ndarray:
        """Return the priorities of a block, float64; NaN where a step has none."""

    # -- queries ---------------------------------------------------------------------------------

    TAG_KEYS: dict[str, str]  # by column, a statement that returns the tag keys of a buffer

    def among(
        self, column: sa.ColumnElement[Any], values: Sequence[int] | Sequence[str]
    ) -> sa.ColumnElement[bool]:
        """Return `column IN (values)` for any number of values, as one bound parameter."""

    def among_selected(
        self, column: sa.ColumnElement[Any], selected: sa.Select[Any]
    ) -> sa.ColumnElement[bool]:
        """Return `column IN (SELECT ...)`; the SELECT does not depend on the outer rows."""

    def like(self, column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
        r"""Return a case-sensitive LIKE with `%`, `_` and `\\`."""

    def bound_number(self, value: int | float) -> sa.ColumnElement[Any]:
        """Return a parameter that compares exactly with a number in JSON."""

    def tag_value(self, column: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
        """Return the value of a key of a JSON object, NULL if it is null or missing."""

    def tag_text(self, column: sa.ColumnElement[Any], key: str) -> Tag:
        """Return the value of a key to compare with texts, and the condition that it is a text."""

    def tag_number(self, column: sa.ColumnElement[Any], key: str) -> Tag:
        """Return the value of a key to compare with numbers, and a condition for numbers."""

    def tag_is_bool(
        self, column: sa.ColumnElement[Any], key: str, value: bool
    ) -> sa.ColumnElement[bool]:
        """Return whether the value of a key is JSON's true, or false."""

    # -- writing ---------------------------------------------------------------------------------

    LOCK: str  # locks the row of a buffer, and returns its id; parameter: the id
    # Returns the id of a buffer if it exists, and prevents other transactions from dropping it
    # until this one ends; does not wait for writers; parameter: the id
    LOCK_EXISTENCE: str
    FOR_UPDATE: str  # suffix of a SELECT; locks its rows until the transaction ends
    # Whether a writing transaction blocks all other writers, and sees one snapshot.
    WRITES_ALONE: bool
    NOW: str  # Unix seconds, by a clock that all processes share
    # Largest number of steps that APPEND writes in one round trip; None if there is no APPEND.
    ROUND_TRIP_STEPS: int | None
    APPEND: str
    # Acknowledges a lease without pins in one statement; None if it takes several.
    ACKNOWLEDGE: str | None
    # Locks the buffer's row if a group may begin; sent before ADMIT in the same round trip.
    LOCK_TO_ADMIT: str
    # Admits a group; None if the dialect cannot do it in one round trip.
    ADMIT: str | None
    # Ends an admission in one statement; None if it takes several.
    FINISH: str | None

    def insert_steps(
        self, session: Session, buffer_id: int, columns: tuple[Sequence[Any], ...], count: int
    ) -> None:
        """Insert `count` steps from `columns`, which hold all written columns but `buffer_id`."""

    def insert_rows(
        self,
        session: Session,
        table: sa.Table,
        rows: Sequence[tuple[Any, ...]],
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Insert rows of a table; by default, `names` are all columns of the table in order."""

    def set_texts(
        self,
        session: Session,
        column: sa.Column[Any],
        key: sa.Column[Any],
        buffer_id: int,
        texts: Mapping[int, str | None],
    ) -> None:
        """Set a text column in rows of a buffer; `texts` maps the key of each row to its text."""

    # -- reading ---------------------------------------------------------------------------------

    LOCATE: str  # the segments of positions; parameters: buffer, list
    READ_CHUNKS: str  # id, rows, signature, crc, data of chunks; parameters: list, buffer
    FIRST_OF_TASKS: str  # id, task of episodes that are the first of their task: list, buffer
    # Segments of positions and their chunks in one statement; None if it saves no round trip.
    READ_AT: str | None
    # Waits until a consumer has changed; None if the database cannot wait. Parameters: buffer,
    # consumer, the values seen before, seconds.
    WAIT_FOR_CHANGE: str | None

    def run_sql(
        self,
        session: Session,
        query: str,
        params: dict[str, Any],
        field: Any,
        timeout: float,
        max_bytes: int | None = None,
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run one reading statement of a user; return the names of its columns and its rows.

        Raise SqlError if it takes longer than `timeout` seconds or has more than `max_bytes`.
        """
