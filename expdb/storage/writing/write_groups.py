"""Write a group of submissions, in a shared transaction if possible."""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np

from expdb import errors
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.store import Store
from expdb.storage.writing import transaction
from expdb.storage.writing.batches import rows_of, split_step
from expdb.storage.writing.in_doubt import commit_unknown
from expdb.storage.writing.open_episodes import OpenEpisodes
from expdb.storage.writing.pending_steps import PendingSteps, create_steps
from expdb.storage.writing.submissions import EncodedWrite, Payload, Submission

# If fields vary in size, a chunk larger than this gets no steps of later submissions. When its
# episode ends, it is merged with the other chunks of the episode.
OWN_CHUNK_BYTES = 4 << 10
# Errors of a shared transaction that a single write of the group can cause.
_ERRORS_OF_ONE_WRITE = (
    errors.EpisodeEnded,
    errors.EpisodeMismatch,
    errors.Evicted,
    errors.FieldMismatch,
    errors.InvalidValue,
    errors.OutOfDate,
    errors.RateLimited,
)
# After these errors, each further write of the group would probably wait for the whole timeout and
# fail too.
_DATABASE_ERRORS = (errors.ConnectionLost, errors.DatabaseBusy)

# A submission, and the begin and end of its steps in the positions of the write.
Member = tuple[Submission, int, int | None]


def write_alone(store: Store, episodes: OpenEpisodes, payload: Payload) -> np.ndarray:
    """Write the steps of one call in one transaction; return their positions, in order."""
    if isinstance(payload, EncodedWrite):
        if payload.episodes is None:
            return transaction.write(store, payload.steps)
        return payload.episodes.write_gathered(payload.steps)
    pending = create_steps(store.fields, store.replacements)
    if not isinstance(payload, dict):
        return episodes.write_gathered(pending, payload)
    are_gathered = False
    # After these errors, add the steps row by row. This looks up the episodes again, and an
    # error then names its row.
    with suppress(errors.EpisodeEnded, errors.EpisodeMismatch, errors.InvalidValue):
        are_gathered = episodes.gather_columns(payload, pending)
    if are_gathered:
        return episodes.write_gathered(pending)
    return episodes.write_gathered(pending, [split_step(row) for row in rows_of(payload)])


def write_group(store: Store, episodes: OpenEpisodes, group: list[Submission]) -> None:
    """Write a group of submissions, in one transaction if possible, and set their results.

    If a submission is refused, only its call fails. The others are written without it. Until
    its deadline, a submission gets no result and is written again later in two cases: the
    database is locked or unreachable, or the rate limiter refuses the steps of a coroutine.
    Later submissions of the same episodes are then also written later.
    """
    database_error: errors.ExpDBError | None = None
    if len(group) > 1:
        with store.engine.until(min(submission.deadline for submission in group)):
            database_error = _write_shared(store, episodes, group)
    postponed: set[str] = set()  # episodes with steps that are written later
    for submission in group:
        if not submission.has_result and postponed.isdisjoint(submission.episodes):
            if database_error is None:
                database_error = _write_submission(store, episodes, submission)
            elif submission.deadline <= time.monotonic():
                submission.fail(_error_after_deadline(submission, database_error))
        if not submission.has_result:
            postponed |= submission.episodes


def _write_submission(
    store: Store, episodes: OpenEpisodes, submission: Submission
) -> errors.ExpDBError | None:
    """Write one submission; return the error if the database was unreachable or locked."""
    try:
        with submission.as_caller():
            submission.positions = write_alone(store, episodes, submission.payload)
    except errors.RateLimited as error:
        # A thread waits in `WriteQueue.write`; the steps of a coroutine are written later.
        if submission.loop is None or time.monotonic() >= submission.deadline:
            submission.fail(error)
    except BaseException as error:
        submission.fail(error)
        return error if isinstance(error, _DATABASE_ERRORS) else None
    return None


def _write_shared(
    store: Store, episodes: OpenEpisodes, group: list[Submission]
) -> errors.ExpDBError | None:
    """Write the submissions that can share a transaction, and set their results.

    After a refusal, the caller must write the submissions without a result one by one. Return
    the error if the database was unreachable or locked.
    """
    pending = episodes.create_steps()
    members: dict[EncodedWrite, list[Member]] = {
        submission.payload: [(submission, 0, None)]
        for submission in group
        if isinstance(submission.payload, EncodedWrite)
    }
    if gathered := _gather(episodes, group, pending):
        members[EncodedWrite(pending, episodes)] = gathered
    can_share = transaction.can_share_transaction
    shared = [write for write in members if can_share(store, write.steps)]
    try:
        if len(shared) > 1:
            # After any of these errors, the remaining submissions are written one by one.
            with suppress(*_ERRORS_OF_ONE_WRITE, errors.ConnectionLost):
                transaction.write_together(store, [write.steps for write in shared])
    except errors.DatabaseBusy as error:
        return error
    finally:  # an error may also come after the commit
        for write in members:
            is_written = write.steps.is_stored or write.steps.is_in_doubt
            if is_written and write.episodes is not None:
                write.episodes.cache_episodes(write.steps)
            if write.steps.is_stored:
                _set_positions(members[write], write.steps.positions)
    if gathered and not pending.is_stored:
        try:
            _set_positions(gathered, episodes.commit(pending))
        except _ERRORS_OF_ONE_WRITE:
            return None
        except BaseException as error:
            database_error = error if isinstance(error, _DATABASE_ERRORS) else None
            for submission, _, _ in gathered:
                if database_error is None or isinstance(error, errors.CommitUnknown):
                    submission.fail(error)
            return database_error
    return None


def _gather(episodes: OpenEpisodes, group: list[Submission], pending: PendingSteps) -> list[Member]:
    """Gather all rows and columns of the group; return the submissions that were added."""
    payloads = [submission.payload for submission in group]
    rows_by_call = [rows for rows in payloads if not isinstance(rows, (EncodedWrite, dict))]
    rows = [row for rows in rows_by_call for row in rows]
    stored = episodes.find_stored(rows, strict=False)
    members: list[Member] = []
    waiting: set[str] = set()  # episodes with steps that a later, separate write stores
    for submission in group:
        begin = len(pending)
        if isinstance(submission.payload, EncodedWrite):
            continue
        is_next = waiting.isdisjoint(submission.episodes)
        if is_next and _add(episodes, submission, pending, stored):
            members.append((submission, begin, len(pending)))
        elif not submission.has_result:
            waiting |= submission.episodes
    return members


def _add(
    episodes: OpenEpisodes,
    submission: Submission,
    pending: PendingSteps,
    stored: dict[str, tuple[EpisodeRecord, str]],
) -> bool:
    """Add the steps of a submission, all or none; return whether they were added."""
    payload, rows = submission.payload, pending.rows
    if not rows.takes_arrays and rows.nbytes > OWN_CHUNK_BYTES:
        pending.cut()
    assert not isinstance(payload, EncodedWrite)
    try:
        with submission.as_caller():
            if isinstance(payload, dict):
                return episodes.gather_columns(payload, pending)
            episodes.gather_rows(payload, pending, stored)
            return True
    except (errors.InvalidValue, errors.ReservedName) as error:
        if not isinstance(payload, dict):  # columns are written alone later, row by row
            submission.fail(error)
    except Exception:
        return False  # another submission may be the cause, so this one is written alone later
    return False


def _set_positions(members: list[Member], positions: np.ndarray) -> None:
    for submission, begin, end in members:
        submission.positions = positions[begin:end]


def _error_after_deadline(submission: Submission, error: errors.ExpDBError) -> errors.ExpDBError:
    """Return the error of a submission whose deadline passed after another write raised `error`."""
    payload, cause = submission.payload, error.__cause__
    if isinstance(payload, EncodedWrite) and payload.steps.is_in_doubt:
        lost = cause if isinstance(cause, errors.ConnectionLost) else error
        return commit_unknown(lost, payload.steps)
    if isinstance(error, errors.CommitUnknown):
        return errors.ConnectionLost(
            "the connection was lost during another call, so the steps of this call were not "
            "stored; repeat the call"
        )
    return error
