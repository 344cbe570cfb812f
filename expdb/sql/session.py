"""Sessions and transactions, which the dialects implement."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.util import LRUCache

from expdb import errors

COMPILED_STATEMENTS = 512  # maximum number of cached statements per dialect

Kind = Literal["read", "write", "unsynced", "sql", "watch"]


class Session:
    """One connection, in a transaction.

    A session runs SQLAlchemy statements, and for speed also plain SQL with `?` for parameters.
    """

    # Whether the caller repeats the transaction if the outcome of its commit is unknown. On
    # PostgreSQL, the last statements are then sent together with the commit.
    is_repeated = False

    def __init__(self, connection: sa.Connection):
        self._connection = connection
        self._driver: Any = connection.connection.driver_connection

    @property
    def connection(self) -> sa.Connection:
        """The connection as SQLAlchemy sees it."""
        return self._connection

    @property
    def driver(self) -> Any:
        """The connection of the driver."""
        return self._driver

    def fetch(self, statement: sa.Select[Any]) -> list[Any]:
        """Run a SELECT and return the driver's rows, without SQLAlchemy's cost per row."""
        return self._run(*self._compile(statement))

    def _compile(self, statement: Any) -> tuple[str, Any]:
        """Return the SQL text and parameters of a SQLAlchemy statement for the driver."""
        compiled = statement.compile(
            dialect=self._connection.dialect, compile_kwargs={"render_postcompile": True}
        )
        names, params = getattr(compiled, "positiontup", None), compiled.params
        return str(compiled), params if names is None else [params[name] for name in names]

    def query(self, statement: str | sa.Executable, *params: Any) -> list[Any]:
        """Run a statement and return all of its rows at once.

        An open cursor would block other connections.
        """
        if not isinstance(statement, str):
            return list(self.connection.execute(statement).fetchall())
        return self._driver.execute(statement, params).fetchall()  # type: ignore[no-any-return]

    def iterate(self, statement: str, *params: Any) -> Iterator[Any]:
        """Run a plain statement and yield its rows; the caller must read all of them."""
        return iter(self.query(statement, *params))

    def query_all(self, *questions: tuple[Any, ...], last: bool = False) -> list[list[Any]]:
        """Run several plain statements, each given with its parameters.

        On a server, all statements take one round trip. `last` also ends the transaction in this
        trip.
        """
        return [self.query(*question) for question in questions]

    def execute(self, statement: str | sa.Executable, *params: Any) -> None:
        """Run a statement without a result.

        On PostgreSQL, the statement is sent with the next one or at the end of the transaction.
        """
        if isinstance(statement, str):
            self._driver.execute(statement, params).fetchall()
        else:
            self.connection.execute(statement)

    def require(self, missing: Callable[[], Exception], statement: str, *params: Any) -> None:
        """Run a plain statement; if it returns no row, raise the error from `missing()`.

        On PostgreSQL, the statement is sent and checked with the next one.
        """
        if not self.query(statement, *params):
            raise missing()

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a plain statement once per row of parameters; return the number of affected rows."""
        return int(self._driver.executemany(statement, rows).rowcount)

    def _run(self, statement: str, params: Any) -> list[Any]:
        return self._driver.execute(statement, params).fetchall()  # type: ignore[no-any-return]


_dialects: dict[object, tuple[sa.Dialect, LRUCache[Any, Any]]] = {}


def share_compiled_statements(engine: sa.Engine, key: object) -> sa.Engine:
    """Share compiled SQLAlchemy statements between all engines of the process with this key.

    Without sharing, each engine compiles its statements, which takes a third of the time of `open`
    and the first read.
    """

    def share(*_: Any) -> None:
        cache: LRUCache[Any, Any] = LRUCache(COMPILED_STATEMENTS)
        engine.dialect, cache = _dialects.setdefault(key, (engine.dialect, cache))
        engine.update_execution_options(compiled_cache=cache)

    if key in _dialects:
        share()
    else:  # SQLAlchemy initializes a dialect when its engine connects for the first time
        sa.event.listen(engine, "first_connect", share)
    return engine


class Transaction(AbstractContextManager[Session]):
    """A session for one transaction; use it as a context manager, once.

    An interrupt may come between any two instructions, also inside this class. So the state is in
    attributes, the methods that roll back may be called again, and a dropped transaction rolls
    itself back. (A generator with `contextmanager` cannot do this: if an interrupt comes between
    its `yield` and the block, the transaction stays open.)
    """

    committed = False  # whether the database confirmed the commit, even if an exception followed
    # Versions before and after the commit, for `Engine.version_after_commit`. None if another
    # process may have committed in between.
    commit_versions: Any = None

    def __enter__(self) -> Session:
        try:
            return self._begin()
        except BaseException as error:
            self._undo(error)
            self._raise_translated(error)
            raise

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                self._end()
            self._undo(error)
        except BaseException as failure:
            self._undo(failure)
            self._raise_translated(failure)
            raise
        if error is not None:
            self._raise_translated(error)

    def __del__(self) -> None:
        self._undo(None)

    @abstractmethod
    def _begin(self) -> Session:
        """Begin the transaction."""

    @abstractmethod
    def _end(self) -> None:
        """Commit a write, or end a read."""

    @abstractmethod
    def _undo(self, error: BaseException | None) -> None:
        """Roll back an unfinished transaction and release its resources.

        A second call has no effect.
        """

    @abstractmethod
    def _translate_errors(self, error: BaseException) -> BaseException:
        """Return the expdb error for a driver's error, or the error itself if there is none."""

    def _raise_translated(self, error: BaseException) -> None:
        """Raise the expdb error for a driver's error, if there is one."""
        if isinstance(error, Exception) and not isinstance(error, errors.ExpDBError):
            translated = self._translate_errors(error)
            if isinstance(translated, errors.ExpDBError):
                raise translated from errors.log_cause(error)
