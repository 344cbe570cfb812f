"""Write the steps of several calls in one transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from expdb import errors
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.store import Store
from expdb.storage.writing import transaction
from expdb.storage.writing.group_commit import EncodedWrite, Submission
from expdb.storage.writing.pending_steps import PendingSteps

if TYPE_CHECKING:
    from expdb.storage.writing.open_episodes import OpenEpisodes

# In a group of writes with fields of varying size, a chunk of this size has the steps of one write
# only. When its episode ends, it is merged with the other chunks of the episode.
OWN_CHUNK_BYTES = 4 << 10
# Errors of a group that may be caused by one write of the group.
_MAY_BE_OF_ONE = (
    errors.EpisodeEnded,
    errors.EpisodeMismatch,
    errors.FieldMismatch,
    errors.InvalidValue,
    errors.OutOfDate,
    errors.RateLimited,
)
# Errors that every other write of the group would raise too, after another timeout.
_OF_THE_DATABASE = (errors.ConnectionLost, errors.DatabaseBusy)

Member = tuple[Submission, int, int | None]  # begin and end of its steps in the positions


def _not_reached(own: Submission, error: errors.ExpDBError) -> errors.ExpDBError:
    """Return the error of a call for a database that another call did not reach."""
    steps = own.work.steps if isinstance(own.work, EncodedWrite) else None
    if steps is not None and steps.is_in_doubt:
        return transaction.unknown(error, steps)
    if isinstance(error, errors.CommitUnknown):
        return errors.ConnectionLost(
            "the connection was lost while another thread wrote, so nothing was stored; repeat "
            "the call"
        )
    return error


def _set_positions(members: list[Member], positions: np.ndarray) -> None:
    for own, begin, end in members:
        own.positions = positions[begin:end]


class WriteGroups:
    """Write groups of submissions to a buffer. Steps without a writer continue `episodes`."""

    def __init__(self, store: Store, episodes: OpenEpisodes):
        self._store, self._episodes = store, episodes

    def write(self, group: list[Submission]) -> None:
        """Write the steps of some submissions in one transaction, and set their results.

        If a submission is refused, only its call fails. The others are written without it. If the
        rate limiter refuses the steps of a coroutine, its submission gets no result before its
        deadline.
        """
        lost = self._write_shared(group) if len(group) > 1 else None
        for own in group:
            if own.has_result:
                continue
            if lost is not None and time.monotonic() >= own.deadline:
                own.fail(_not_reached(own, lost))
            else:
                lost = self._write_alone(own) or lost

    def _write_alone(self, own: Submission) -> errors.ExpDBError | None:
        """Write the steps of a submission; return the error if the database was not reached."""
        try:
            with own.acting():
                own.positions = self._episodes.write_alone(own.work)
        except errors.RateLimited as error:
            # A thread waits by itself; the steps of a coroutine are written again later.
            if own.loop is None or time.monotonic() >= own.deadline:
                own.fail(error)
        except BaseException as error:
            own.fail(error)
            return error if isinstance(error, _OF_THE_DATABASE) else None
        return None

    def _write_shared(self, group: list[Submission]) -> errors.ExpDBError | None:
        """Write the steps that can share a transaction, unless one of them is refused.

        Return the error if the database was not reached.
        """
        episodes, gathering = self._episodes, self._episodes.gathering()
        members: dict[EncodedWrite, list[Member]] = {
            own.work: [(own, 0, None)] for own in group if isinstance(own.work, EncodedWrite)
        }
        if gathered := self._gather(group, gathering):
            commit = partial(episodes.commit, gathering)
            remember = partial(episodes.remember, gathering)
            members[EncodedWrite(gathering.pending, commit, remember)] = gathered
        shared = [write for write in members if transaction.may_share(self._store, write.steps)]
        if len(shared) > 1:
            # After any of these errors, each call finds out whether it is refused or stored.
            with suppress(*_MAY_BE_OF_ONE, errors.ConnectionLost):
                transaction.write_together(self._store, [write.steps for write in shared])
        for write in members:
            if write.steps.is_stored:
                write.remember()
                _set_positions(members[write], write.steps.positions)
        if gathered and not gathering.is_stored:
            try:
                _set_positions(gathered, episodes.commit(gathering))
            except _MAY_BE_OF_ONE:
                return None
            except BaseException as error:
                for own, _, _ in gathered:
                    own.fail(error)
                return error if isinstance(error, _OF_THE_DATABASE) else None
        return None

    def _gather(self, group: list[Submission], gathering: PendingSteps) -> list[Member]:
        """Add the steps of all submissions that are not encoded; return those that fit."""
        own_rows = [own.work for own in group if not isinstance(own.work, (EncodedWrite, Mapping))]
        stored = self._episodes.find_stored(
            [row for rows in own_rows for row in rows], strict=False
        )
        members: list[Member] = []
        for own in group:
            begin = len(gathering)
            if not isinstance(own.work, EncodedWrite) and self._add(own, gathering, stored):
                members.append((own, begin, len(gathering)))
        return members

    def _add(
        self,
        own: Submission,
        gathering: PendingSteps,
        stored: dict[str, tuple[EpisodeRecord, str]],
    ) -> bool:
        """Add the steps of a submission, all or none; return whether they were added."""
        rows = gathering.pending.rows
        if not rows.takes_arrays and rows.nbytes > OWN_CHUNK_BYTES:
            gathering.pending.cut()
        assert not isinstance(own.work, EncodedWrite)
        try:
            with own.acting():
                if isinstance(own.work, Mapping):
                    return self._episodes.gather_columns(own.work, gathering)
                self._episodes.gather_rows(own.work, gathering, stored)
                return True
        except (errors.InvalidValue, errors.ReservedName) as error:
            if not isinstance(own.work, Mapping):  # row by row, the error names the row
                own.fail(error)
        except Exception:
            return False  # the cause may be another submission, which may fail
        return False
