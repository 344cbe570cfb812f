"""The exceptions and warnings of expdb.

Each message is one line that names the problem and what to do about it.
"""

import logging
import sys
import threading
import types
import warnings

log = logging.getLogger(__name__)


__all__ = [
    "AccessDenied", "ArchiveFailed", "CapacityMismatch", "ChunkDamaged", "CommitUnknown",
    "ConnectionLost", "ConsumerMismatch", "DatabaseBusy", "DatabaseClosed", "DatabaseDamaged",
    "DatabaseMissing", "DatabaseReadOnly", "DatabaseReplaced", "DatabaseUnreadable",
    "DriverMissing", "EpisodeEnded", "EpisodeMismatch", "EpisodeResumed", "Evicted", "ExpDBError",
    "ExpDBWarning", "FieldMismatch", "ForkedWithOpenConnection", "InvalidValue", "LeaseLost",
    "NotAnExperienceDatabase", "QueryError", "RateLimited", "ReplayMismatch", "ReservedName",
    "SchemaOutdated", "SchemaTooNew", "ServerTooOld", "SqlError", "SqlRefused", "StorageFull",
    "TargetExists", "TooFewRows", "UnknownBuffer", "UnknownConsumer", "UnknownEpisode",
]  # fmt: skip


class ExpDBError(Exception):
    """Base class of all exceptions that expdb defines.

    Catch it to handle every error of expdb. The subclasses also derive from a built-in exception,
    such as `ValueError` or `TimeoutError`. If the SQLite library is older than 3.37, `open` raises
    this class itself; pass a newer library as `sqlite_module`.
    """

    discarded_steps = 0  # number of pending steps that a writer discarded because of this error


class ExpDBWarning(UserWarning):
    """Category of all warnings that expdb emits.

    A warning reports a problem that does not stop the call. Its message says what to do. Use the
    `warnings` module to silence warnings or to turn them into errors.
    """


def calling_frame() -> tuple[types.FrameType, int]:
    """Return the innermost frame outside of expdb, and its distance from the calling function."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "expdb",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return frame, level


def current_line() -> tuple[str, int]:
    """Return the file and the number of the line that called expdb, also in another thread."""
    line = WarningLocation.current()
    return (WarningLocation() if line is None else line).place


class WarningLocation:
    """The innermost line outside of expdb, for warnings that another thread emits."""

    _current = threading.local()

    def __init__(self) -> None:
        frame, _ = calling_frame()
        self.place = frame.f_code.co_filename, frame.f_lineno
        self._globals = frame.f_globals

    def __enter__(self) -> None:
        self._current.line = self

    def __exit__(self, *error: object) -> None:
        self._current.line = None

    @classmethod
    def current(cls) -> "WarningLocation | None":
        """Return the line at which this thread emits warnings, if it was set."""
        return getattr(cls._current, "line", None)

    def warn(self, message: str, category: type[Warning]) -> None:
        """Emit a warning that points at the line."""
        registry = self._globals.setdefault("__warningregistry__", {})
        module = self._globals.get("__name__")
        warnings.warn_explicit(message, category, *self.place, module, registry)


def warn(message: str, category: type[Warning] = ExpDBWarning) -> None:
    """Emit a warning that points at the innermost line outside of expdb."""
    line = WarningLocation.current()
    if line is not None:
        return line.warn(message, category)
    _, level = calling_frame()
    warnings.warn(message, category, stacklevel=level + 1)
    return None


def log_cause(cause: BaseException) -> BaseException | None:
    """Log the error of a driver; return None, so that ``raise ... from`` does not show it."""
    log.debug("%s: %s", type(cause).__name__, cause, exc_info=cause)
    return None


def name_row(error: Exception, index: int) -> None:
    """Begin the message of an error with the row of the batch that caused it."""
    error.args = (f"rows[{index}]: {error}",)


class NotAnExperienceDatabase(ExpDBError, ValueError):
    """The location holds something other than an expdb database.

    Raised when a database is opened, copied or upgraded, if the path is a folder, an empty file,
    not an SQLite file, or a database of another application. On PostgreSQL, raised if the schema
    ``expdb`` belongs to another application, or the database is not encoded in UTF-8. Nothing is
    overwritten. Choose another location, or delete the empty file.
    """


class DatabaseMissing(ExpDBError, FileNotFoundError):
    """The location has no database, and the call does not create one.

    Raised if `open` is called with ``create=False`` or ``read_only=True``, by `upgrade`, and for
    the source of `copy`. Also raised if the folder of a new file, the current folder or the
    PostgreSQL database named in the URL does not exist. Check the path or URL, create the folder,
    or create the database with `createdb` on the server.
    """


class DriverMissing(ExpDBError, ImportError):
    """A package that the call needs is not installed.

    Raised for PostgreSQL without psycopg 3, for pandas and for plots. Install the package that the
    message names.
    """


class AccessDenied(ExpDBError, PermissionError):
    """The user lacks a permission on the server or on the file.

    Raised if the server rejects the user, password or role, if the user lacks a privilege on the
    schema, or if the file cannot be read. Check the URL, run `grant` as the owner of the schema, or
    change the permissions of the file.
    """


class ConnectionLost(ExpDBError, ConnectionError):
    """The PostgreSQL server cannot be reached, or closed the connection.

    For up to the handle's `timeout`, expdb retries calls that are safe to repeat, but not the
    first connection of `open`. The call stored nothing, unless the exception is a `CommitUnknown`.
    Check host and port, and repeat the call when the server runs.
    """


class CommitUnknown(ConnectionLost):
    """The connection was lost during a commit, so the write may or may not be stored.

    Raised if expdb cannot safely repeat the call, or if the server stays unreachable for longer
    than the handle's `timeout`. Check whether the change is stored before you repeat the call. If
    the message names a ``write_id``, look it up in the table ``chunks``.
    """


class OutOfDate(ExpDBError, RuntimeError):
    """A writer used fields or episodes that another process has changed.

    Internal: the writer reads them again and repeats the write.
    """


class ServerTooOld(ExpDBError, RuntimeError):
    """The PostgreSQL server is older than version 15.

    Raised when expdb connects to the server. Upgrade the server.
    """


class SchemaOutdated(ExpDBError, RuntimeError):
    """The database has the schema of an older expdb.

    Raised when the database is opened. Run ``expdb upgrade`` or call `upgrade`.
    """


class SchemaTooNew(ExpDBError, RuntimeError):
    """The database has the schema of a newer expdb.

    Raised when the database is opened or upgraded, or when a newer expdb upgrades it while it is
    open. Install the newer expdb from its checkout, and restart the process.
    """


class DatabaseBusy(ExpDBError, TimeoutError):
    """The call could not get a lock or a connection within the handle's `timeout`.

    Raised if another process locks the database, if another process copies the same buffer or
    archives its steps, or if no connection to the server is left. Repeat the call, or open the
    database with a longer `timeout`.
    """


class TargetExists(ExpDBError, FileExistsError):
    """The file or buffer that the call would create exists already.

    Raised for a backup, a copy or an export, before anything is overwritten. Name a new file, or
    drop the buffer in the target of the copy.
    """


class DatabaseDamaged(ExpDBError, ValueError):
    """The database is corrupted.

    Raised if SQLite or the server reports corruption, if stored values contradict each other, or if
    a table, trigger or view of the schema is missing or altered. Run ``expdb check`` to list all
    problems, then restore a backup.
    """


class DatabaseUnreadable(ExpDBError, OSError):
    """The operating system reported an error while SQLite read or wrote the file.

    Check the disk and the file system, then open the database again.
    """


class DatabaseReplaced(ExpDBError, RuntimeError):
    """The database file was deleted or replaced, or its write-ahead log belongs to another file.

    Raised by an open handle after its file was deleted or replaced. Close the handle and open the
    database again. Raised by `open` if the write-ahead log beside the file belongs to another
    database; move the log away, or put it beside its own database. Make copies with ``expdb
    backup``, which includes the log.
    """


class ChunkDamaged(DatabaseDamaged):
    """A stored chunk does not match its checksum or its schema.

    Raised when steps of the chunk are read. The message names the chunk. Restore a backup.
    """


class StorageFull(ExpDBError, OSError):
    """The disk or the quota is full.

    Acknowledged writes are not lost. Free disk space and repeat the call.
    """


class DatabaseReadOnly(ExpDBError, PermissionError):
    """The handle, the file or the server does not permit writing.

    Raised by a write through a handle that was opened with ``read_only=True``, or to a replica of
    a server. Raised by `open` if this user cannot write the file or its folder, or if the file has
    several names such as hard links. Open the database without `read_only`, change the
    permissions, remove the other names, or connect to the primary server.
    """


class DatabaseClosed(ExpDBError, ValueError):
    """The handle was closed.

    Raised by every call that needs the database after `ExperienceDB.close`. Open it again with
    `open`.
    """


class ForkedWithOpenConnection(ExpDBError, RuntimeError):
    """The database or the writer cannot be used in this forked process.

    Raised if the process was forked while another thread used the database, or if a writer of the
    parent process is used in the child. Create writers in the child, or start processes with the
    method ``spawn`` or ``forkserver``.
    """


class SqlRefused(ExpDBError, PermissionError):
    """The statement passed to `ExperienceDB.sql` does more than read.

    Pass one SELECT statement, or WITH ... SELECT. Change data with the methods of the buffer.
    """


class SqlError(ExpDBError, ValueError):
    """The statement or the parameters passed to `ExperienceDB.sql` are invalid.

    Also raised if the query takes longer than the handle's `timeout`. If a name is unknown, the
    message suggests another one.
    """


class UnknownBuffer(ExpDBError, LookupError):
    """No buffer has this name.

    Raised by `ExperienceDB.buffer` with ``create=False`` or on a read-only handle, by `drop` and
    `copy`, and by every method of a buffer that was dropped. The message suggests a similar name.
    """


class CapacityMismatch(ExpDBError, ValueError):
    """The stored capacity of the buffer is larger than the `capacity` of the call.

    Raised by `ExperienceDB.buffer`, because a smaller capacity would delete steps. Assign to
    `ReplayBuffer.capacity`, or omit `capacity`.
    """


class ReservedName(ExpDBError, ValueError):
    """A field has the name of a column, a batch key or a derived key.

    Derived keys start with ``next_`` or ``has_``. Rename the field.
    """


class FieldMismatch(ExpDBError, ValueError):
    """A value has another dtype, shape or kind than its field.

    Raised before anything is stored, and by `ExperienceDB.buffer` if a declared type differs from
    the stored one. Convert the value, or use another field name.
    """


class InvalidValue(ExpDBError, ValueError):
    """An argument is invalid, or a value cannot be stored exactly.

    Raised before anything is stored. The message names the argument and the values that it accepts.
    """


class EpisodeEnded(ExpDBError, ValueError):
    """The episode is already complete or aborted.

    Raised if a step is added to the episode, or if the episode is ended again. Use another
    `episode_id`, or begin another episode.
    """


class EpisodeMismatch(ExpDBError, ValueError):
    """The episode exists already, or has another task, agent, group or other detail.

    Raised if a new episode has the id of an existing episode, or if a step passes a detail that
    differs from the stored episode. Pass the stored detail, or use another `episode_id`.
    """


class EpisodeResumed(EpisodeEnded):
    """Another writer has resumed the episode, so this writer cannot change it any more.

    Raised when a writer flushes or ends an episode that another call of `ReplayBuffer.episode`
    with ``resume=True`` has opened since, for example because the process of the writer was
    suspended. The buffered steps of this writer are not stored. Stop the rollout.
    """


class UnknownEpisode(ExpDBError, LookupError):
    """No episode of the buffer has this id.

    Raised by `ReplayBuffer.end_episode`. Check the `episode_id` and the buffer.
    """


class QueryError(ExpDBError, ValueError):
    """A query is malformed, names an unknown column, or compares incompatible values.

    Also raised if a query is too large for the database. The message says what to use instead.
    """


class TooFewRows(ExpDBError, ValueError):
    """The buffer has fewer matching steps or tasks than the call needs.

    Raised when steps are sampled or leased, by an update with ``required=True`` that matches no
    step, and if a rate limiter does not permit a lease yet. Store more steps, widen the query,
    request fewer rows, or pass `wait` to wait for steps.
    """


class Evicted(ExpDBError, LookupError):
    """The steps at requested positions were evicted, deleted or not written yet.

    Raised when steps are read by position, when a recorded batch is built again, or when an evicted
    step is stored again. The message names the positions or the step number.
    """


class UnknownConsumer(ExpDBError, LookupError):
    """No consumer of the buffer has this name.

    Raised by `ReplayBuffer.replay`, by `ReplayBuffer.drop_consumer`, and by every method of a
    consumer that was dropped. Also raised by `ReplayBuffer.consumer` on a read-only handle, which
    cannot create a consumer. Check the name.
    """


class ConsumerMismatch(ExpDBError, ValueError):
    """The consumer exists with other settings than the call passed.

    Raised by `ReplayBuffer.consumer`. Omit the setting, or use another name.
    """


class LeaseLost(ExpDBError, RuntimeError):
    """The lease was acknowledged or released, has expired, or belongs to another process.

    Raised when a lease or an admission is used or renewed. Lease another batch; if leases expire,
    lease with more `expiry_seconds`, or renew them.
    """


class ReplayMismatch(ExpDBError, ValueError):
    """A batch that is built again differs from the batch that was leased.

    Possible reasons: rewards or other columns were changed, neighbouring steps were deleted, an
    episode of the batch was continued, or the unit was changed.
    """


class RateLimited(ExpDBError, TimeoutError):
    """A rate limiter or a pace delayed a call for longer than its timeout.

    Raised by a write after the handle's `timeout`, and by `ReplayBuffer.admit` after its `wait`.
    Lease more batches or increase `policy_version`, change the limiter or the pace, or wait
    longer.
    """


class ArchiveFailed(ExpDBError, OSError):
    """The archive of a buffer cannot be written.

    No step is lost: each step is in the buffer, or in the draft file that the message names. Make
    the folder available and writable, then call `ReplayBuffer.evict`, or set another `Eviction`.
    """
