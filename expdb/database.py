"""Open a database, get its buffers, query it with SQL, and check it."""

import functools
import importlib
import inspect
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from traceback import clear_frames
from types import ModuleType
from typing import Any, Literal, NoReturn

import pyarrow as pa

from expdb import checks, errors
from expdb.buffer import ReplayBuffer
from expdb.checks import UNCHANGED, Unchanged
from expdb.chunks.fields import Field
from expdb.displays import database_html
from expdb.keywords import checked_keywords
from expdb.memory.budget import Budget, process_budget
from expdb.names import DATABASE_HINTS, build_attribute_error, public_names
from expdb.process import exits
from expdb.process.awaiting import AsyncExit, async_form, obtain
from expdb.process.locks import locked
from expdb.process.temporary import Folder
from expdb.process.weak_registry import WeakRegistry
from expdb.sql import opening
from expdb.sql.engine import Engine, retry_on_restart
from expdb.storage import catalog
from expdb.storage.reading.adhoc import run_sql
from expdb.storage.store import Store
from expdb.storage.upkeep.check import check_owners, check_schema
from expdb.storage.upkeep.examine_buffers import examine_buffers
from expdb.storage.writing import change


@checked_keywords(max_lag="max_lag_seconds")
def open(
    location: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    durability: Literal["normal", "full"] = "normal",
    run: str | None = None,
    timeout: float = 30.0,
    resident_bytes: int | None = None,
    max_lag_seconds: float | None = None,
    text: Literal["strict", "replace"] = "strict",
    sqlite_module: ModuleType | None = None,
) -> "ExperienceDB":
    """Open an experience database, and create it if it does not exist.

    Use the returned handle in a ``with`` statement, which closes it. Opening never overwrites or
    deletes data.

    Parameters
    ----------
    location : str or path-like
        Path of an SQLite file, ``sqlite:///path``, or
        ``postgresql://user:password@host:5432/database``. expdb uses the schema ``expdb`` of the
        PostgreSQL database. ``":memory:"`` is a private temporary database that is deleted when the
        handle is closed.
    create : bool, default True
        Whether to create a missing file, or a missing schema on PostgreSQL.
    read_only : bool, default False
        Whether the handle only reads. A read-only handle creates nothing.
    durability : {"normal", "full"}, default "normal"
        ``"full"`` syncs every write to the disk. ``"normal"`` may lose the last seconds of writes
        to a file if the power fails, but nothing if a process is killed. PostgreSQL always syncs.
    run : str, optional
        Name of the training run that this handle writes for. All processes of one training run
        should pass the same name. By default, the value of the environment variable ``EXPDB_RUN``,
        or else a new UUID.
    timeout : float, default 30.0
        Maximum time in seconds to wait for other writers, and to retry calls while a server
        restarts; more than 0 and at most 1,000,000. It also limits the duration of an SQL query.
    resident_bytes : int, optional
        Limit in bytes of the memory that this handle uses to keep fields and chunks for sampling.
        By default, all handles of the process without this argument share a quarter of the
        machine's memory, at most 4 GiB.
    max_lag_seconds : float, optional
        Maximum time in seconds that a sample may lag behind the writes of other processes; by
        default 0.005 for a file and 0.1 for PostgreSQL. With 0, expdb checks for changes before
        every sample. A sample always includes what this process wrote to a file, and what this
        handle wrote to PostgreSQL.
    text : {"strict", "replace"}, default "strict"
        Treatment of characters that cannot be stored: lone surrogates outside of JSON fields, and
        NUL characters in tags and columns. With ``"strict"``, such a character raises InvalidValue.
        With ``"replace"``, expdb stores U+FFFD in its place, and `ReplayBuffer.stats` returns the
        number of replaced characters. It applies to fields, tags and `pre_agent` of steps; in
        ids and other text, such characters always raise.
    sqlite_module : module, optional
        SQLite library to use in place of `sqlite3`, for example `pysqlite3.dbapi2`, which the
        extra ``sqlite`` installs. All handles of a process on one file must use the same library.

    Returns
    -------
    ExperienceDB
        Handle of the database.

    Raises
    ------
    InvalidValue
        If an argument is invalid, if ``":memory:"`` is opened with ``read_only=True``, or if this
        process has the file open with another SQLite library.
    DatabaseMissing
        If the database does not exist and `create` is False or `read_only` is True, or if the
        folder of a new file does not exist.
    NotAnExperienceDatabase
        If the location is a folder, an empty file, or a database of another application.
    SchemaOutdated, SchemaTooNew
        If an older or a newer version of expdb created the schema.
    DatabaseDamaged
        If the database is corrupted, or its schema was altered.
    DatabaseReadOnly
        If this user cannot write the file and `read_only` is False, if the file has several
        names such as hard links, or if it has a write-ahead log on a read-only file system.
    DatabaseReplaced
        If the write-ahead log beside the file belongs to another database.
    DatabaseBusy
        If another process holds a lock for longer than `timeout`, or no connection is left.
    DatabaseUnreadable, StorageFull
        If the disk reports an error, or has no space left.
    AccessDenied
        If the user is not permitted to read the file or to connect to the server.
    ConnectionLost
        If the server cannot be reached.
    ServerTooOld, DriverMissing
        If the server is older than PostgreSQL 15, or psycopg 3 is not installed.
    ForkedWithOpenConnection
        If the process was forked while another thread used the file.
    ExpDBError
        If the SQLite library is older than 3.37.

    Warns
    -----
    ExpDBWarning
        If the file is on a network file system, or if it is opened with ``read_only=True`` and has
        several names such as hard links.

    Examples
    --------
    >>> with open(":memory:") as db:
    ...     db.buffer("train", capacity=100).store(reward=0.5, action="left")
    0
    """
    options: dict[str, Any] = {
        "read_only": read_only,
        "durability": durability,
        "timeout": timeout,
        "resident_bytes": resident_bytes,
        "max_lag_seconds": max_lag_seconds,
        "text": text,
    }
    _check_options(options)
    run = os.environ.get("EXPDB_RUN") or None if run is None else run
    if run is not None:
        run = checks.text(run, "run")
    if sqlite_module is not None and not (
        isinstance(sqlite_module, ModuleType) and hasattr(sqlite_module, "sqlite_version_info")
    ):
        raise errors.InvalidValue(
            "sqlite_module must be a module such as sqlite3 or pysqlite3.dbapi2, got "
            f"{sqlite_module!r}"
        )
    temporary = None
    named = opening.location_of(location)
    if named is None:
        if read_only:
            raise errors.InvalidValue(
                "a private temporary database cannot be read-only; pass the path of a file"
            )
        temporary = Folder()
        named = str(temporary.path / "memory.db")
    try:
        engine = opening.open_engine(
            named, create=create, read_only=read_only, durability=durability,
            timeout=float(timeout), max_lag=max_lag_seconds,
            module=sqlite_module,
        )  # fmt: skip
    except BaseException:
        if temporary is not None:
            temporary.remove()
        raise
    engine.replaces_text = text == "replace"
    if sqlite_module is not None:
        options["sqlite_module"] = sqlite_module.__name__  # another process imports it by name
    db = ExperienceDB(engine, named, run, options, temporary)
    log.debug("opened %s for run %s", db.location, db.run)
    return db


def _check_options(options: dict[str, Any]) -> None:
    """Raise InvalidValue if an option of `open` is invalid."""
    timeout = options["timeout"]
    checks.choice(options["durability"], "durability", "normal", "full")
    if not checks.number(timeout, "timeout", 0, 1_000_000):
        raise errors.InvalidValue(f"timeout must be a positive number of seconds, got {timeout!r}")
    if options["resident_bytes"] is not None:
        checks.whole(options["resident_bytes"], "resident_bytes", 0)
    checks.choice(options["text"], "text", "strict", "replace")
    if options["max_lag_seconds"] is not None:
        checks.number(options["max_lag_seconds"], "max_lag_seconds", 0, 1_000_000)


log = logging.getLogger(__name__)


async def open_async(location: str | os.PathLike[str], **options: Any) -> "ExperienceDB":
    """Open an experience database as `open` does, without blocking the event loop.

    If the call is cancelled, the database is closed again.

    Parameters
    ----------
    location : str or path-like
        Path of the SQLite file, or URL of the PostgreSQL database.
    **options
        The keyword arguments of `open`.

    Returns
    -------
    ExperienceDB
        The handle; use it with ``async with`` or close it with `close_async`.

    Raises
    ------
    InvalidValue
        If an option is unknown or invalid, or for the other reasons that `open` lists.
    DatabaseMissing
        If the database does not exist and `create` is False or `read_only` is True.
    ExpDBError
        For the other reasons that `open` lists.

    Examples
    --------
    >>> async with await expdb.open_async("runs.db") as db:  # doctest: +SKIP
    ...     await db.buffer("train").store_async(reward=0.5)
    """
    unknown = options.keys() - inspect.signature(open).parameters.keys()
    if unknown:
        raise errors.InvalidValue(
            f"open_async() has no argument {min(unknown)!r}; pass only arguments of open()"
        )
    return await obtain(lambda _: open(location, **options), lambda db: db.close())


class ExperienceDB(AsyncExit["ExperienceDB"]):
    """Access an experience database through a handle that `open` returns.

    Threads can share a handle. Close the handle, or use it in a `with` statement. A handle can be
    pickled to open the same database in another process, unless the database is temporary.

    Every method raises `DatabaseClosed` after `close`. While a PostgreSQL server restarts, expdb
    retries methods that read for up to the handle's `timeout`; then these methods raise
    `ConnectionLost`.

    Attributes
    ----------
    location : str
        Absolute path of the file, or URL of the server without the password.
    run : str
        Name of the training run that the handle writes for.

    See Also
    --------
    open : Open a database and return a handle.
    """

    def __new__(cls, *args: Any, **options: Any) -> "ExperienceDB":
        """Raise InvalidValue unless `open` creates the handle."""
        if not (args and isinstance(args[0], Engine)):
            raise errors.InvalidValue(
                "an ExperienceDB cannot be created directly; call expdb.open(location)"
            )
        return super().__new__(cls)

    def __init__(
        self,
        engine: Engine,
        named: opening.Location,
        run: str | None,
        options: dict[str, Any],
        temporary: Folder | None,
    ):
        self._engine, self._named, self._options, self._temporary = (
            engine,
            named,
            options,
            temporary,
        )
        self.location = engine.location
        self._given_run = run
        self.run = run if run is not None else uuid.uuid4().hex
        self._budget = (
            process_budget()
            if options["resident_bytes"] is None
            else Budget(options["resident_bytes"])
        )
        self._buffers: dict[str, ReplayBuffer] = {}
        self._lock = threading.RLock()
        self._closed = False
        # Release the connections of a handle that is garbage-collected without being closed;
        # `_at_exit` closes open handles. The finalizer does not call `close`, because writers that
        # are collected together with the handle still write their steps.
        weakref.finalize(self, engine.release).atexit = False
        if temporary is not None:
            weakref.finalize(self, temporary.remove).atexit = False
        _handles.add(self)
        exits.watch_worker()

    def __repr__(self) -> str:
        return f"<ExperienceDB {self.location!r}{' (closed)' if self._closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._temporary is not None:
            raise errors.InvalidValue(
                "a private temporary database cannot be passed to another process; open a "
                "database file instead"
            )
        named = (
            self._named
            if isinstance(self._named, str)
            else self._named.render_as_string(hide_password=False)
        )
        return _reopened, (named, self._given_run, self._options)

    def __getattr__(self, name: str) -> NoReturn:
        hint = f"open a buffer with buffer({name!r})"
        hint = f"use buffer(name).{name}" if hasattr(ReplayBuffer, name) else hint
        raise build_attribute_error("an ExperienceDB", name, dir(type(self)), DATABASE_HINTS, hint)

    def __dir__(self) -> list[str]:
        return public_names(super().__dir__())

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(f"an ExperienceDB cannot be indexed; open a buffer with buffer({key!r})")

    _repr_html_ = database_html

    def __enter__(self) -> "ExperienceDB":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()

    # -- buffers -----------------------------------------------------------------------------------

    @retry_on_restart
    def buffer(
        self,
        name: str,
        *,
        create: bool = True,
        capacity: int | Unchanged | None = UNCHANGED,
        fields: Mapping[str, Field | str] | None = None,
    ) -> ReplayBuffer:
        """Return the buffer with a name, and create it if it does not exist.

        Parameters
        ----------
        name : str
            Name of the buffer, of 1 to 255 bytes in UTF-8.
        create : bool, default True
            Whether to create the buffer if it does not exist.
        capacity : int, None or UNCHANGED, default UNCHANGED
            Maximum number of steps; the oldest steps are evicted first. None means unlimited. With
            `UNCHANGED`, an existing buffer keeps its capacity, and a new buffer is unlimited. A
            capacity above the stored capacity replaces it.
        fields : mapping of str to Field or str, optional
            Types of fields that the first value does not determine, such as
            ``{"tokens": Field("int32", shape=(None,))}``. The name of a dtype declares a scalar.

        Returns
        -------
        ReplayBuffer
            The buffer.

        Raises
        ------
        UnknownBuffer
            If the buffer does not exist, and `create` is False or the handle is read-only.
        CapacityMismatch
            If `capacity` is below the stored capacity, because a smaller capacity would delete
            steps. Assign to `ReplayBuffer.capacity` to lower the capacity.
        FieldMismatch
            If a declared field is stored with another type.
        InvalidValue, ReservedName
            If `name`, `capacity`, or the name or type of a field is invalid, or if a field has the
            name of a column or batch key.
        DatabaseReadOnly
            If the handle is read-only, and `capacity` or `fields` would change the buffer.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.

        Examples
        --------
        >>> with open(":memory:") as db:
        ...     tokens = Field("int32", shape=(None,))
        ...     buffer = db.buffer("train", capacity=1000, fields={"tokens": tokens})
        ...     db.buffers()
        ['train']
        """
        catalog.check_buffer_name(name)
        wanted = UNCHANGED if isinstance(capacity, Unchanged) else checks.capacity(capacity)
        declared = catalog.check_declared(fields or {})
        return locked(self._lock, self._get_or_create, name, create, wanted, declared)

    def _get_or_create(
        self, name: str, create: bool, capacity: int | Unchanged | None, declared: dict[str, Field]
    ) -> ReplayBuffer:
        buffer = self._buffers.get(name)
        with self._engine.reading() as session:
            record = catalog.find_buffer(session, name)
            if record is None and not create:
                raise catalog.unknown_buffer(session, name)
            if record is None and self._options["read_only"]:
                raise errors.UnknownBuffer(
                    f"{catalog.unknown_buffer(session, name)}; open the database without "
                    "read_only=True to create the buffer"
                )
        catalog.check_alignments(declared, record[2].types if record else {})
        if record is None:
            catalog.check_new_buffer_name(name)
            with self._engine.writing() as session:
                if catalog.find_buffer(session, name) is None:
                    catalog.create_buffer(
                        session,
                        name,
                        None if isinstance(capacity, Unchanged) else capacity,
                        declared,
                    )
                record = catalog.find_buffer(session, name)
            buffer = None
        assert record is not None
        id, stored, stored_fields = record
        if buffer is None or buffer._store.id != id:
            buffer = ReplayBuffer(
                Store(self._engine, id, name, stored_fields), self.run, self, self._budget
            )
            buffer._retention.prepare()
        if not isinstance(capacity, Unchanged) and capacity != stored:
            kept = change.raise_capacity(buffer._store, capacity)
            if kept is not True:
                raise errors.CapacityMismatch(
                    f"buffer {name!r} has "
                    f"{'no capacity limit' if kept is None else f'a capacity of {kept} steps'}, "
                    f"got capacity={capacity}; set buffer.capacity = {capacity} to evict the "
                    "oldest steps, or omit capacity"
                )
        if declared:
            change.declare(buffer._store, declared)
        self._buffers[name] = buffer
        return buffer

    @retry_on_restart
    def buffers(self) -> list[str]:
        """Return the names of all buffers, oldest first.

        Returns
        -------
        list of str
            Names of the buffers.
        """
        with self._engine.reading() as session:
            return catalog.list_buffers(session)

    def drop(self, name: str) -> None:
        """Delete a buffer with all its steps, episodes and consumers.

        The archive of the buffer is kept.

        Parameters
        ----------
        name : str
            Name of the buffer.

        Raises
        ------
        UnknownBuffer
            If the buffer does not exist.
        InvalidValue
            If the name is empty or longer than 255 bytes.
        DatabaseReadOnly
            If the handle is read-only.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.

        Warns
        -----
        ExpDBWarning
            If the archive lacks evicted steps, because its folder is not available.
        """
        catalog.check_buffer_name(name)
        locked(self._lock, self._drop, name)

    def _drop(self, name: str) -> None:
        try:
            self._get_or_create(name, False, UNCHANGED, {})._retention.publish_evicted()
        except errors.ArchiveFailed as error:
            errors.warn(f"buffer {name!r} is dropped although its archive is incomplete: {error}")
        with self._engine.writing() as session:
            catalog.drop_buffer(session, name)
            self._buffers.pop(name, None)

    # -- queries and checks ------------------------------------------------------------------------

    @retry_on_restart
    def sql(
        self,
        query: str,
        params: Mapping[str, Any] | None = None,
        *,
        timestamps: bool = False,
        max_bytes: int | None = None,
    ) -> pa.Table:
        """Run one SELECT statement and return its rows as an Arrow table.

        The view ``experience`` has one row per step, ``experience_episodes`` one row per episode,
        ``experience_scores`` one row per score and ``experience_draws`` one row per leased item.
        ``field(payload, 'name')`` returns a field of a step as a number, text, bytes or JSON text,
        or NULL if the step does not have the field. In arithmetic, SQLite converts text and JSON to
        the number at the start of the text, or to 0 if there is none.

        Parameters
        ----------
        query : str
            One SELECT statement, or WITH ... SELECT; ``:name`` stands for a value of `params`.
        params : mapping of str to object, optional
            Values of the names in the query: text, numbers, bytes or None.
        timestamps : bool, default False
            Whether to return the columns ``started``, ``ended`` and ``execute_time`` as timestamps
            in UTC instead of Unix seconds.
        max_bytes : int, optional
            Maximum size in bytes of the result, at least 1. It also limits each value that SQLite
            computes. By default, the size is not limited.

        Returns
        -------
        pyarrow.Table
            Table with one row per row of the result. Repeated column names are numbered: ``a``,
            ``a:2``. A column of integers and floats becomes float64; other mixed columns become
            text.

        Raises
        ------
        SqlRefused
            If the statement does more than read, or there are several statements.
        SqlError
            If the query or its parameters are invalid, the query takes longer than the handle's
            `timeout`, or the result is larger than `max_bytes`.
        InvalidValue
            If `timestamps` is not a bool, `max_bytes` is not an integer of at least 1, or a time is
            outside of the years 1 to 9999.
        ChunkDamaged
            If ``field`` reads a corrupted chunk.

        Examples
        --------
        >>> with open(":memory:") as db:
        ...     _ = db.buffer("train").store(task_id="a", reward=1.0)
        ...     db.sql("SELECT task_id, reward FROM experience").to_pylist()
        [{'task_id': 'a', 'reward': 1.0}]
        """
        most = None if max_bytes is None else checks.whole(max_bytes, "max_bytes", 1)
        self._save_priorities()
        times = checks.flag(timestamps, "timestamps")
        return run_sql(self, self._engine, query, params, times, most)

    def _save_priorities(self, wait: bool = False) -> None:
        for buffer in list(self._buffers.values()):
            buffer._sampling.save(wait)

    @property
    def nbytes(self) -> int:
        """The size in bytes of the SQLite file, or of the tables and indexes on PostgreSQL.

        The size of a file does not include its write-ahead log.
        """
        return self._engine.nbytes()

    @retry_on_restart
    def check(self) -> list[str]:
        """Check the schema and all stored data, and return the problems.

        Returns
        -------
        list of str
            One line per problem; empty if there is none.

        Raises
        ------
        DatabaseDamaged
            If the database is too corrupted to be checked.
        """
        with self._engine.reading() as session:
            problems = [*check_schema(self._engine, session), *check_owners(session)]
            names = catalog.list_buffers(session)
        for name in names:
            with suppress(errors.UnknownBuffer):  # another process has just dropped it
                problems += self.buffer(name, create=False).check()
        return problems

    def doctor(self) -> list[dict[str, str]]:
        """Describe the state of the database and its environment, with advice on problems.

        The findings cover the SQLite library or the server and its settings, durability, the
        write-ahead log, connected processes and locks, the file system, and free space. They also
        cover unfinished copies, waiting processes, steps pinned by leases, and episodes that have
        been open for more than a day. `doctor` does not lock the database.

        Returns
        -------
        list of dict
            One dict per finding, with the keys ``what``, ``found`` and ``advice``. The advice is
            empty if there is no problem.
        """
        return [
            {"what": what, "found": finding, "advice": advice}
            for what, finding, advice in [*self._engine.examine(), *examine_buffers(self)]
        ]

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy an SQLite database to a new file while other processes may write.

        The copy is one snapshot and includes the write-ahead log. Do not copy the file by other
        means in a process that has it open: reading the file releases SQLite's locks.

        Parameters
        ----------
        path : str or path-like
            Path of the new file. Its folder must exist.

        Raises
        ------
        TargetExists
            If a file exists at `path`.
        DatabaseMissing
            If the folder of `path` does not exist.
        StorageFull
            If the disk has no space left. The incomplete file is removed.
        InvalidValue
            If the database is on PostgreSQL. Use ``pg_dump --schema=expdb`` or `copy`.
        """
        self._save_priorities()
        self._engine.backup(opening.real_path(os.fspath(path)))

    def vacuum(self) -> None:
        """Return the free space of an SQLite file to the file system.

        Call it while no other process uses the file. SQLite writes the remaining data twice, to its
        temporary folder and to the write-ahead log.

        Raises
        ------
        DatabaseBusy
            If another process writes to the file.
        StorageFull
            If the disk has too little space. The file is unchanged.
        DatabaseReadOnly
            If the database was opened with ``read_only=True``.
        InvalidValue
            If the database is on PostgreSQL, which reuses free space after autovacuum.
        """
        self._save_priorities()
        self._engine.vacuum()

    buffer_async = async_form(buffer)
    buffers_async = async_form(buffers, reads=True)
    drop_async = async_form(drop)
    sql_async = async_form(sql, reads=True)
    check_async = async_form(check, reads=True)
    doctor_async = async_form(doctor, reads=True)
    backup_async = async_form(backup)
    vacuum_async = async_form(vacuum)

    def close(self) -> None:
        """Close the handle: write buffered steps, end open episodes, and close all connections.

        Episodes that `ReplayBuffer.store` began without an `episode_id` are completed. Open
        writers are flushed. Open episodes of `ReplayBuffer.episode` are marked as aborted, or as
        complete if their last step is terminated or truncated. Calling `close` again has no
        effect. When the program exits, expdb closes every open handle.

        Raises
        ------
        ExpDBError
            If the database cannot store the end of an episode; the handle is still closed. If a
            signal handler calls `close` during a write of this thread; the handle stays open.

        Warns
        -----
        ExpDBWarning
            For each episode of `ReplayBuffer.episode` that was not ended, and for each writer of
            `ReplayBuffer.writer` whose steps could not be written. After 10 warnings, one more
            warning gives the number of the others.
        """
        locked(self._lock, self._close)

    close_async = async_form(close)

    def _close(self) -> None:
        if self._closed:
            return
        for buffer in self._buffers.values():
            buffer._write_queue.refuse_nested_call()
            buffer._writers.refuse_nested_call()
        messages: list[str] = []
        failed: BaseException | None = None
        try:
            ends: list[Callable[[], None]] = [
                functools.partial(buffer._end_writers, messages)
                for buffer in self._buffers.values()
            ]
            for end in (*ends, self._complete, self._disconnect):
                try:
                    end()
                except Exception as error:
                    failed = failed or error
                # An interrupt. A second interrupt leaves the handle open, and nothing is lost.
                except BaseException as error:
                    failed = failed or error
                    # The frames of the error may hold a transaction that is still open.
                    clear_frames(error.__traceback__)
                    end()
        finally:
            for message in messages[:MOST_TOLD]:
                errors.warn(message)
            if len(messages) > MOST_TOLD:
                errors.warn(
                    f"{len(messages) - MOST_TOLD} more episodes were never ended and are not "
                    "listed; use `with buffer.episode(...)`, or call end()"
                )
        if failed is not None:
            raise failed

    def _complete(self) -> None:
        with suppress(errors.DatabaseReplaced):
            # Writes after the replacement raised an error; the replaced file has the earlier
            # writes.
            for buffer in self._buffers.values():
                buffer._complete_open_episodes()
                buffer._reporter.end()
            self._save_priorities(wait=True)

    def _disconnect(self) -> None:
        self._engine.close()
        log.debug("closed %s", self.location)
        for buffer in self._buffers.values():
            buffer._sampling.reset()  # a closed handle keeps no rows in memory
        if self._temporary is not None:
            self._temporary.remove()
        self._closed = True

    def _reset_after_fork(self) -> None:
        """Begin another run in a forked child, unless `run` was passed to `open`.

        Open episodes and temporary files stay with the parent.
        """
        self._lock, self._temporary = threading.RLock(), None
        if self._given_run is None:
            self.run = uuid.uuid4().hex
        for buffer in self._buffers.values():
            buffer._reset_after_fork(self.run)


_handles: WeakRegistry[ExperienceDB] = WeakRegistry()


@exits.at_exit
def _at_exit() -> None:
    with ExitStack() as stack:  # closes the other handles if one handle fails
        for handle in _handles.list():
            stack.callback(handle.close)


MOST_TOLD = 10  # maximum number of separate warnings about unclosed writers

FORK_SECONDS = 1.0  # how long a fork waits for other threads that sample


class _Fork:
    """Hooks of `os.fork` that let a forked child use the rows that its parent has in memory.

    A lock serializes forks of several threads.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.buffers: list[ReplayBuffer] = []

    def before(self) -> None:
        self.turn.acquire()
        deadline = time.monotonic() + FORK_SECONDS
        self.buffers = [
            buffer for handle in _handles.list() for buffer in list(handle._buffers.values())
        ]
        for buffer in self.buffers:
            buffer._before_fork(deadline)

    def in_parent(self) -> None:
        try:
            for buffer in self.buffers:
                buffer._after_fork()
        finally:
            self.buffers = []
            self.turn.release()

    def in_child(self) -> None:
        for handle in _handles.list():
            handle._reset_after_fork()
        self.buffers = []
        self.turn = threading.Lock()


_fork = _Fork()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork.before, after_in_parent=_fork.in_parent, after_in_child=_fork.in_child
    )


def _reopened(location: str, run: str | None, options: dict[str, Any]) -> ExperienceDB:
    if "sqlite_module" in options:
        options = {**options, "sqlite_module": importlib.import_module(options["sqlite_module"])}
    return open(location, create=False, run=run, **options)


def upgrade(location: str | os.PathLike[str]) -> tuple[str | None, str]:
    """Upgrade a database to the newest schema in one transaction.

    Stored values, triggers of your own and privileges are kept. If the upgrade fails, the database
    is unchanged.

    Parameters
    ----------
    location : str or path-like
        Path of the file or URL of the server, as for `open`.

    Returns
    -------
    before : str or None
        Revision before the upgrade; None if the PostgreSQL database had no schema ``expdb``, which
        is then created.
    after : str
        Revision after the upgrade. It equals `before` if the schema was the newest already.

    Raises
    ------
    InvalidValue
        If the location is invalid or is a temporary database.
    DatabaseMissing
        If the file, or the PostgreSQL database named in the URL, does not exist.
    NotAnExperienceDatabase
        If the file is not an expdb database.
    SchemaTooNew
        If a newer expdb created the schema.
    DatabaseDamaged
        If the database is corrupted, or the upgraded schema is not valid.
    DatabaseReadOnly, AccessDenied
        If the user cannot write the file, or does not own the schema.
    DatabaseBusy
        If another process locks the database for longer than 30 seconds.
    ConnectionLost, DriverMissing
        If the server cannot be reached, or psycopg 3 is not installed.
    """
    named = opening.location_of(location)
    if named is None:
        raise errors.InvalidValue(
            "a private temporary database cannot be upgraded, as it is always new; pass the path "
            "of a file"
        )
    return opening.upgrade(named)


def grant(
    location: str | os.PathLike[str],
    *,
    actors: str | Sequence[str] = (),
    readers: str | Sequence[str] = (),
) -> None:
    """Grant PostgreSQL roles the privileges that they need, now and after upgrades.

    Parameters
    ----------
    location : str
        URL of the database. Its user must own the schema ``expdb``.
    actors : str or sequence of str, optional
        Roles that may write, sample, delete and drop buffers, and change their capacity, eviction
        and rate limiter.
    readers : str or sequence of str, optional
        Roles that may sample and query. They open the database with ``read_only=True``.

    Raises
    ------
    InvalidValue
        If the location is a file, the name of a role is invalid, or a role is ``public``, which
        means every role.
    AccessDenied
        If the user of the URL does not own the schema, or a role does not exist.
    SchemaOutdated, SchemaTooNew
        If an older or a newer version of expdb created the schema.
    ConnectionLost, DriverMissing
        If the server cannot be reached, or psycopg 3 is not installed.

    Examples
    --------
    >>> expdb.grant(url, actors=["actor"], readers="viewer")  # doctest: +SKIP
    """
    named = opening.location_of(location)
    if named is None or isinstance(named, str):
        raise errors.InvalidValue(
            f"{location} is a file, which has no roles; grant rights on files with chown and chmod"
        )
    lists = [[roles] if isinstance(roles, str) else list(roles) for roles in (actors, readers)]
    for role in (*lists[0], *lists[1]):
        checks.name(role, "a role")
        if role.lower() == "public":
            raise errors.InvalidValue(
                f"{role!r} stands for every role of the server; pass only the roles that need "
                "access"
            )
    opening.grant(named, *lists)
