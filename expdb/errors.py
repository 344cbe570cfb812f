"""Every error that expdb raises on purpose, and its warnings.

One line each, with the cure in it.
"""

import sys
import types
import warnings


class ExpDBError(Exception):
    """Anything that expdb refuses or finds wrong."""


class ExpDBWarning(UserWarning):
    """Something that a person should know of, and that does not keep expdb from going on."""


def calling_frame() -> tuple[types.FrameType, int]:
    """Return the innermost frame of the program that called expdb.

    Returns as well how many frames lie between it and the caller of this.
    """
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "expdb",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return frame, level


def warn(message: str) -> None:
    """Give an ExpDBWarning that points at the line of the program that called expdb.

    That is so through whichever method it came.
    """
    _, level = calling_frame()
    warnings.warn(message, ExpDBWarning, stacklevel=level + 1)


class NotAnExperienceDatabase(ExpDBError, ValueError):
    """The file or database belongs to something else, is empty, or is no database at all."""


class DatabaseMissing(ExpDBError, FileNotFoundError):
    """There is no database at the location, and none was to be created."""


class DriverMissing(ExpDBError, ImportError):
    """A package that this needs is not installed."""


class AccessDenied(ExpDBError, PermissionError):
    """The server does not let this user in, or lets it do too little."""


class ConnectionLost(ExpDBError, ConnectionError):
    """The server cannot be reached, or went away; what was under way has not happened."""


class CommitUnknown(ConnectionLost):
    """The connection was lost while a write was being committed: it may have happened or not."""


class OutOfDate(ExpDBError, RuntimeError):
    """What a writer knew of fields or episodes is out of date.

    It looks again, and nobody else gets to see this.
    """


class ServerTooOld(ExpDBError, RuntimeError):
    """The server is older than expdb works with."""


class SchemaOutdated(ExpDBError, RuntimeError):
    """The database was written by an older expdb and wants `expdb upgrade`."""


class SchemaTooNew(ExpDBError, RuntimeError):
    """The database was written by a newer expdb than this one."""


class DatabaseBusy(ExpDBError, TimeoutError):
    """Another writer held the database for longer than `timeout`."""


class TargetExists(ExpDBError, FileExistsError):
    """The file to be written exists."""


class DatabaseDamaged(ExpDBError, ValueError):
    """The database file itself is damaged."""


class DatabaseUnreadable(ExpDBError, OSError):
    """The disk under the database file reported an error."""


class DatabaseReplaced(ExpDBError, RuntimeError):
    """The file under an open handle was deleted or replaced by another."""


class ChunkDamaged(DatabaseDamaged):
    """A stored chunk does not match its checksum or its signature."""


class StorageFull(ExpDBError, OSError):
    """The disk or the quota is full; nothing acknowledged is lost."""


class DatabaseReadOnly(ExpDBError, PermissionError):
    """The handle or the file does not permit writing."""


class DatabaseClosed(ExpDBError, ValueError):
    """The handle was closed."""


class ForkedWithOpenConnection(ExpDBError, RuntimeError):
    """The process forked while another thread was using the database.

    The object belongs to the parent.
    """


class SqlRefused(ExpDBError, PermissionError):
    """The statement given to `db.sql` does something else than read."""


class SqlError(ExpDBError, ValueError):
    """The statement given to `db.sql` is wrong, or its parameters are."""


class UnknownBuffer(ExpDBError, LookupError):
    """No buffer has this name."""


class CapacityMismatch(ExpDBError, ValueError):
    """The buffer exists with a larger capacity than the one asked for."""


class ReservedName(ExpDBError, ValueError):
    """A field has the name of a column, of a batch key, or of something derived."""


class FieldMismatch(ExpDBError, ValueError):
    """A value has another dtype, shape or kind than its field."""


class InvalidValue(ExpDBError, ValueError):
    """A value cannot be stored as it is."""


class EpisodeEnded(ExpDBError, ValueError):
    """The episode is already complete or aborted."""


class EpisodeMismatch(ExpDBError, ValueError):
    """The episode exists with another task, agent or group."""


class UnknownEpisode(ExpDBError, LookupError):
    """No episode of the buffer has this id."""


class QueryError(ExpDBError, ValueError):
    """A query names something unknown, or compares what cannot be compared."""


class TooFewRows(ExpDBError, ValueError):
    """There are fewer rows, or tasks, than the sample needs."""


class Evicted(ExpDBError, LookupError):
    """Rows asked for by position have been evicted or deleted, or were never written."""


class UnknownConsumer(ExpDBError, LookupError):
    """No consumer of the buffer has this name."""


class ConsumerMismatch(ExpDBError, ValueError):
    """The consumer exists with other settings than those asked for."""


class LeaseLost(ExpDBError, RuntimeError):
    """The lease is not held: it was acknowledged, given back, or has expired."""


class ReplayMismatch(ExpDBError, ValueError):
    """A batch that is replayed differs from what was handed out."""


class RateLimited(ExpDBError, TimeoutError):
    """A rate limiter held a write back for longer than `timeout`."""


class ArchiveFailed(ExpDBError, OSError):
    """The archive of a buffer cannot be written; nothing is evicted then."""
