"""ExperienceDB: the front door. Open a database, get buffers, ask questions in SQL."""

import functools
import importlib
import os
import shlex
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from traceback import clear_frames
from types import ModuleType, TracebackType
from typing import Any, Literal, NoReturn

import pyarrow as pa

from expdb import checks, errors
from expdb.buffer import ReplayBuffer, checked_capacity
from expdb.checks import KEEP, Keep
from expdb.chunks.fields import Field
from expdb.memory.budget import Budget, process_budget
from expdb.names import DATABASE_HINTS, build_attribute_error
from expdb.process import exits
from expdb.process.living import Living
from expdb.process.locks import locked
from expdb.process.temporary import Folder
from expdb.sql import opening
from expdb.sql.engine import Engine, retry_on_restart
from expdb.storage import catalog
from expdb.storage.reading.adhoc import run_sql
from expdb.storage.store import Store
from expdb.storage.upkeep import copying
from expdb.storage.upkeep.check import check_owners, check_schema
from expdb.storage.writing import change


def open(
    location: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    durability: Literal["normal", "full"] = "normal",
    run: str | None = None,
    timeout: float = 30.0,
    resident_bytes: int | None = None,
    max_lag: float | None = None,
    sqlite_module: ModuleType | None = None,
) -> "ExperienceDB":
    """Open an experience database and return a handle, a context manager.

    `location` is a path or `sqlite:///path`, or `postgresql://user:password@host/database`; a
    missing file, or the schema `expdb` on a server, is created unless `create` is False; ":memory:"
    is a private temporary database that is deleted when closed. `durability="full"` syncs every
    write to the disk, "normal" may lose the last seconds of a file when the power fails, and
    nothing when a process dies; PostgreSQL syncs always. `run` names what this process writes
    (default: the environment's EXPDB_RUN, else a new uuid): processes of one training that share it
    are one curve, one group. `timeout` is how long, in seconds, to wait for other writers.
    `resident_bytes` bounds the memory for fields and chunks that are kept for sampling by this
    handle (default: a quarter of the machine's, at most 4 GiB, for all handles of the process that
    do not say). `sqlite_module` is the library to use for a file in place of Python's own
    `sqlite3`, which may be old: `pysqlite3.dbapi2` (extra `sqlite`), say; all handles of a process
    on one file must use the same. `max_lag` is how many seconds a sample may lag behind what
    other processes have written (default: 0.005 for a file, 0.1 for PostgreSQL); 0 asks the
    database before every sample. What this process wrote to a file, and this handle to PostgreSQL,
    is always seen.

    Raises DatabaseMissing, NotAnExperienceDatabase (nothing that exists is ever overwritten),
    SchemaOutdated, SchemaTooNew or DatabaseDamaged.

    >>> with open(":memory:") as db:
    ...     db.buffer("train", capacity=100).store(reward=0.5, action="left")
    0
    """
    options: dict[str, Any] = {
        "read_only": read_only,
        "durability": durability,
        "timeout": timeout,
        "resident_bytes": resident_bytes,
        "max_lag": max_lag,
    }
    _check_options(**options)
    if sqlite_module is not None and not (
        isinstance(sqlite_module, ModuleType) and hasattr(sqlite_module, "sqlite_version_info")
    ):
        raise errors.InvalidValue(
            f"sqlite_module is {sqlite_module!r}: give a module such as sqlite3 or pysqlite3.dbapi2"
        )
    temporary = None
    named = opening.location_of(location)
    if named is None:
        if read_only:
            raise errors.InvalidValue(
                "a private temporary database cannot be read_only: name a file"
            )
        temporary = Folder()
        named = str(temporary.path / "memory.db")
    try:
        engine = opening.open_engine(
            named, create=create, read_only=read_only, durability=durability,
            timeout=float(timeout), max_lag=None if max_lag is None else float(max_lag),
            module=sqlite_module,
        )  # fmt: skip
    except BaseException:
        if temporary is not None:
            temporary.remove()
        raise
    if sqlite_module is not None:
        options["sqlite_module"] = sqlite_module.__name__  # by which another process imports it
    run = os.environ.get("EXPDB_RUN") or None if run is None else run
    return ExperienceDB(engine, named, run, options, temporary)


def _check_options(
    durability: str,
    timeout: float,
    resident_bytes: int | None,
    max_lag: float | None,
    **_: object,
) -> None:
    """Raise InvalidValue for an option of `open` that cannot be."""
    checks.choice(durability, "durability", "normal", "full")
    if not checks.number(timeout, "timeout", 0, 1_000_000):
        raise errors.InvalidValue(f"timeout is {timeout!r}: give seconds above 0")
    if resident_bytes is not None:
        checks.whole(resident_bytes, "resident_bytes", 0)
    if max_lag is not None:
        checks.number(max_lag, "max_lag", 0, 1_000_000)


OPEN_EPISODES = (
    "SELECT count(*) FROM experience_episodes WHERE buffer = :buffer AND status = 'open' "
    "AND started < :before"
)


class ExperienceDB:
    """A handle of one database; made by `expdb.open`.

    Threads may share it; close it, or use it with `with`.
    """

    def __new__(cls, *args: Any, **options: Any) -> "ExperienceDB":
        """Refuse a handle that is not made by `open`."""
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
        self.run = checks.text(run, "run") if run is not None else uuid.uuid4().hex
        self._budget = (
            process_budget()
            if options["resident_bytes"] is None
            else Budget(options["resident_bytes"])
        )
        self._buffers: dict[str, ReplayBuffer] = {}
        self._lock = threading.RLock()
        self._closed = False
        # Of a handle that is dropped without being closed. At exit `_at_exit` closes what is open.
        # Not `close`: writers that are collected with the handle still have steps to write.
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
                "a private temporary database cannot be handed to another process: open a file "
                "instead"
            )
        named = (
            self._named
            if isinstance(self._named, str)
            else self._named.render_as_string(hide_password=False)
        )
        return _reopened, (named, self._given_run, self._options)

    def __getattr__(self, name: str) -> NoReturn:
        raise build_attribute_error("an ExperienceDB", name, dir(type(self)), DATABASE_HINTS)

    def __enter__(self) -> "ExperienceDB":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- buffers -----------------------------------------------------------------------------------

    @retry_on_restart
    def buffer(
        self,
        name: str,
        *,
        create: bool = True,
        capacity: int | Keep | None = KEEP,
        fields: Mapping[str, Field | str] | None = None,
    ) -> ReplayBuffer:
        """Return the buffer of a name, made where there is none.

        With `create=False` UnknownBuffer names the nearest.

        `capacity` is how many steps it keeps, oldest evicted first: None for all; left out, an
        existing buffer keeps its own and a new one keeps all. A larger one than stored is set; a
        smaller one would delete, so it raises CapacityMismatch. `fields` declares types that a
        first value does not tell, such as `{"tokens": Field("int32", shape=(None,))}`; raises
        FieldMismatch where they are stored otherwise.
        """
        catalog.check_buffer_name(name)
        wanted = KEEP if isinstance(capacity, Keep) else checked_capacity(capacity)
        declared = catalog.check_declared(fields or {})
        return locked(self._lock, self._get_or_create, name, create, wanted, declared)

    def _get_or_create(
        self, name: str, create: bool, capacity: int | Keep | None, declared: dict[str, Field]
    ) -> ReplayBuffer:
        known = self._buffers.get(name)
        with self._engine.reading() as session:
            found = catalog.find_buffer(session, name)
            if found is None and not create:
                raise catalog.unknown_buffer(session, name)
            if found is None and self._options["read_only"]:
                raise errors.UnknownBuffer(
                    f"{catalog.unknown_buffer(session, name)}; a read-only handle cannot create "
                    "it, so open the database for writing"
                )
        if found is None:
            with self._engine.writing() as session:
                if catalog.find_buffer(session, name) is None:
                    catalog.create_buffer(
                        session, name, None if isinstance(capacity, Keep) else capacity, declared
                    )
                found = catalog.find_buffer(session, name)
            known = None
        assert found is not None
        id, stored, stored_fields = found
        if known is None or known._store.id != id:
            known = ReplayBuffer(
                Store(self._engine, id, name, stored_fields), self.run, self, self._budget
            )
            known._retention.prepare()
        if not isinstance(capacity, Keep) and capacity != stored:
            kept = change.raise_capacity(known._store, capacity)
            if kept is not True:
                raise errors.CapacityMismatch(
                    f"buffer {name!r} keeps {'all' if kept is None else kept} steps, not "
                    f"{capacity}: "
                    f"buffer.set_capacity({capacity}) evicts the others, or leave capacity out"
                )
        if declared:
            change.declare(known._store, declared)
        self._buffers[name] = known
        return known

    @retry_on_restart
    def buffers(self) -> list[str]:
        """Return the names of all buffers, oldest first."""
        with self._engine.reading() as session:
            return catalog.list_buffers(session)

    def drop(self, name: str) -> None:
        """Delete a buffer with everything in it; raise UnknownBuffer where there is none."""
        catalog.check_buffer_name(name)
        locked(self._lock, self._drop, name)

    def _drop(self, name: str) -> None:
        try:
            self._get_or_create(name, False, KEEP, {})._retention.publish_evicted()
        except errors.ArchiveFailed as error:
            errors.warn(f"buffer {name!r} is dropped although its archive is incomplete: {error}")
        with self._engine.writing() as session:
            catalog.drop_buffer(session, name)
            self._buffers.pop(name, None)

    # -- questions ---------------------------------------------------------------------------------

    @retry_on_restart
    def sql(
        self, query: str, params: Mapping[str, Any] | None = None, *, timestamps: bool = False
    ) -> pa.Table:
        """Run one reading SQL statement and return its rows as an Arrow table.

        The view `experience` has one row per step and `experience_episodes` one row per episode.
        ``field(payload, 'name')`` is a field of a step, as number, text or JSON.

        Parameters
        ----------
        query : str
            One SELECT statement; `:name` stands for a value of `params`.
        params : mapping, optional
            Values of the names in the query: text, numbers, bytes or None.
        timestamps : bool
            Return the columns `started`, `ended` and `execute_time` as timestamps in UTC instead of
            Unix seconds.

        Raises
        ------
        SqlRefused
            If the statement does anything but read.
        SqlError
            If the query or its parameters are wrong, or it takes longer than the handle's timeout.

        Examples
        --------
        >>> with open(":memory:") as db:
        ...     _ = db.buffer("train").store(task_id="a", reward=1.0)
        ...     db.sql("SELECT task_id, reward FROM experience").to_pylist()
        [{'task_id': 'a', 'reward': 1.0}]
        """
        self._save_priorities()
        return run_sql(self._engine, query, params, checks.flag(timestamps, "timestamps"))

    def _save_priorities(self, wait: bool = False) -> None:
        for buffer in list(self._buffers.values()):
            buffer._sampling.save(wait)

    @property
    def nbytes(self) -> int:
        """The room that the database takes, in bytes: of the file, or of the schema on a server."""
        return self._engine.nbytes()

    @retry_on_restart
    def check(self) -> list[str]:
        """Return what is wrong with the database, one line each; empty if it is sound."""
        with self._engine.reading() as session:
            problems = [*check_schema(self._engine, session), *check_owners(session)]
            names = catalog.list_buffers(session)
        for name in names:
            with suppress(errors.UnknownBuffer):  # another process has dropped it since
                problems += self.buffer(name, create=False).check()
        return problems

    def doctor(self) -> list[dict[str, str]]:
        """Return what the database stands on, one dict per finding.

        Each has `what`, `found`, and `advice`, which is empty where all is well.

        Library or server, settings, log, locks and who holds them, file system, room. Takes no lock
        and changes nothing.
        """
        return [
            {"what": what, "found": found, "advice": advice}
            for what, found, advice in [*self._engine.examine(), *self._held()]
        ]

    def _held(self) -> Iterator[tuple[str, str, str]]:
        for name in self.buffers():
            buffer = self.buffer(name, create=False)
            original = catalog.copied_name(name)
            if original is not None:
                yield (
                    f"unfinished copy of {original!r}", f"{len(buffer)} steps in {name!r}",
                    f"run `expdb copy SOURCE {self.location} --buffer {shlex.quote(original)}` "
                    "again to resume it, or remove it with "
                    f"`expdb drop {self.location} {shlex.quote(name)}`",
                )  # fmt: skip
            for one in buffer.waiting():
                told = f"{one['who']}, for {one['seconds']:.0f} s, for {one['for']}"
                yield f"waiting at {name!r}", told, ""
            figures = buffer.stats()
            if figures["pinned"] is not None:
                told = f"{figures['steps']} steps, those from position {figures['pinned']} on"
                yield f"pinned in {name!r}", f"{told} are kept for leases", ""
            opened = {"buffer": name, "before": time.time() - 86_400}
            if open_long := self.sql(OPEN_EPISODES, opened).column(0)[0].as_py():
                yield (
                    f"episodes of {name!r} open for more than a day", str(open_long),
                    "call buffer.end_episode(episode_id), or pass terminated=True with the last "
                    "step; an open episode is not sampled as a whole episode or in a group",
                )  # fmt: skip

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the database, as it is now, into a new file; others may go on writing.

        The file is never copied from outside: in a process that has it open, reading it drops
        SQLite's locks.
        """
        self._save_priorities()
        self._engine.backup(opening.real_path(os.fspath(path)))

    def close(self) -> None:
        """Complete the episodes that `store` began without a name, and close every connection.

        Twice is once.

        Writers of `episode(...)` that are still open are flushed, their episodes are marked
        aborted, and an ExpDBWarning names each with its number of steps. The exit of the program
        closes every handle that is open.
        """
        locked(self._lock, self._close)

    def _close(self) -> None:
        if self._closed:
            return
        told: list[str] = []
        failed: BaseException | None = None
        try:
            ends: list[Callable[[], None]] = [
                functools.partial(buffer._end_writers, told) for buffer in self._buffers.values()
            ]
            for end in (*ends, self._complete, self._disconnect):
                try:
                    end()
                except Exception as error:
                    failed = failed or error
                # An interrupt: after another one the handle stays open, and nothing is lost.
                except BaseException as error:
                    failed = failed or error
                    # Its frames may hold a transaction that it kept from ending.
                    clear_frames(error.__traceback__)
                    end()
        finally:
            for message in told[:MOST_TOLD]:
                errors.warn(message)
            if len(told) > MOST_TOLD:
                errors.warn(
                    f"{len(told) - MOST_TOLD} more episodes were never ended, and nobody is told "
                    "of each: use `with buffer.episode(...)`, or call end()"
                )
        if failed is not None:
            raise failed

    def _complete(self) -> None:
        with suppress(errors.DatabaseReplaced):
            # Whoever wrote since was told; the file that was there keeps what it has.
            for buffer in self._buffers.values():
                buffer._complete_open_episodes()
            self._save_priorities(wait=True)

    def _disconnect(self) -> None:
        self._engine.close()
        for buffer in self._buffers.values():
            buffer._sampling.start_anew()  # who keeps a closed handle does not keep the rows
        if self._temporary is not None:
            self._temporary.remove()
        self._closed = True

    def _forked(self) -> None:
        """Be another run in a forked child, unless the run was named.

        The parent keeps its open episodes and files.
        """
        self._lock, self._temporary = threading.RLock(), None
        if self._given_run is None:
            self.run = uuid.uuid4().hex
        for buffer in self._buffers.values():
            buffer._forked(self.run)


_handles: Living[ExperienceDB] = Living()


@exits.at_exit
def _at_exit() -> None:
    with ExitStack() as stack:  # which closes the others where one fails
        for handle in _handles.list():
            stack.callback(handle.close)


MOST_TOLD = 10  # episodes left open that are told of one by one

FORK_SECONDS = 1.0  # that a fork waits for samples of other threads


class _Fork:
    """Lets a forked child go on with the rows that its parent has in memory.

    Forks of several threads take turns.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.held: list[ReplayBuffer] = []

    def before(self) -> None:
        self.turn.acquire()
        deadline = time.monotonic() + FORK_SECONDS
        self.held = [
            buffer for handle in _handles.list() for buffer in list(handle._buffers.values())
        ]
        for buffer in self.held:
            buffer._before_fork(deadline)

    def in_parent(self) -> None:
        try:
            for buffer in self.held:
                buffer._after_fork()
        finally:
            self.held = []
            self.turn.release()

    def in_child(self) -> None:
        for handle in _handles.list():
            handle._forked()
        self.held = []
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


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    buffer: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, int]:
    """Copy the buffers of a database, or one of them, into another of any kind.

    Returns the steps of each.

    Positions, episodes and chunks are the same there. A buffer is there when all of it is; a copy
    that was interrupted goes on where it was when it is made again, unless the source has changed.
    `progress` is called with the buffer's name, chunks copied and chunks in all. Raises
    TargetExists, before anything is written, where the target has a buffer of one of the names.
    """
    with ExitStack() as stack:
        theirs = stack.enter_context(open(source, create=False, read_only=True))
        names = theirs.buffers() if buffer is None else [theirs.buffer(buffer, create=False).name]
        ours = stack.enter_context(open(target))  # only now: a mistake leaves no empty target
        if ours.location == theirs.location:
            raise errors.InvalidValue(
                f"source and target are the same database, {ours.location}; name another target"
            )
        taken = [name for name in names if name in ours.buffers()]
        if taken:
            raise errors.TargetExists(
                f"{ours.location} has a buffer {taken[0]!r} already: drop it there first, or copy "
                "to another database"
            )
        copied = {}
        for name in names:
            tell = (
                functools.partial(progress, name)
                if progress is not None
                else lambda done, total: None
            )
            copied[name] = copying.copy_buffer(theirs._engine, ours._engine, name, tell)
        return copied


def upgrade(location: str | os.PathLike[str]) -> tuple[str | None, str]:
    """Bring a database to the newest schema, in one transaction.

    Returns the revisions before and after.
    """
    named = opening.location_of(location)
    if named is None:
        raise errors.InvalidValue("a private temporary database is always new: name a file")
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
    actors : str or sequence of str
        Roles that may write, sample, delete and drop buffers, and change their capacity, eviction
        and rate limiter.
    readers : str or sequence of str
        Roles that may sample and query. They open the database with ``read_only=True``.

    Raises
    ------
    InvalidValue
        If the location is a file, or a role is ``public``, which means every role.
    AccessDenied
        If the user of the URL does not own the schema, or a role does not exist.
    """
    named = opening.location_of(location)
    if named is None or isinstance(named, str):
        raise errors.InvalidValue(
            f"{location} is a file, which has no roles; grant rights on files with chown and chmod"
        )
    lists = [[one] if isinstance(one, str) else list(one) for one in (actors, readers)]
    for role in (*lists[0], *lists[1]):
        checks.name(role, "a role")
        if role.lower() == "public":
            raise errors.InvalidValue(
                f"{role!r} means every role of the server; name the roles that need access"
            )
    opening.grant(named, *lists)
