"""The pace of a buffer, and the admitted groups of episodes that are under way."""

import json
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from expdb import errors
from expdb.process.liveness import ProcessLiveness, named
from expdb.replay.rate_limiters import Pace
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.cached_records import AdmissionLimit
from expdb.storage.store import Store, Writing
from expdb.storage.stored_json import damaged

A, B = tables.admissions.c, tables.buffers.c


@dataclass(frozen=True)
class Admitted:
    """An admitted group; `id` is None if the buffer has no pace."""

    id: int | None
    policy_version: int | None  # of the buffer at the admission


def pace(store: Store, session: Session) -> tuple[Pace | None, int]:
    """Return the pace or None, and the policy version at the time when it was set."""
    return _read(store, store.column(session, "pace"))


def _read(store: Store, text: str | None) -> tuple[Pace | None, int]:
    if text is None:
        return None, 0
    try:
        stored = json.loads(text)
        since = int(stored.pop("since"))
        return Pace(**stored), since
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise damaged(f"the pace of buffer {store.name!r}", error) from error


def set_pace(store: Store, pace: Pace | None) -> None:
    """Set the pace, or remove it with None; a new pace keeps the number of begun groups."""
    with store.writing() as (session, _):
        ((stored, version),) = session.query(
            sa.select(B.pace, B.policy_version).where(B.id == store.id)
        )
        if pace is not None and version is None:
            raise errors.InvalidValue(
                f"buffer {store.name!r} has no policy_version, which a pace requires; set "
                "buffer.policy_version = 0 first, and increase it as you train"
            )
        buffer = sa.update(tables.buffers).where(B.id == store.id)
        if pace is None:
            session.execute(sa.delete(tables.admissions).where(A.buffer_id == store.id))
            session.execute(buffer.values(pace=None, admitted=0))
            return
        since = version if stored is None else _read(store, stored)[1]
        session.execute(buffer.values(pace=json.dumps({**asdict(pace), "since": since})))


@dataclass(frozen=True)
class PaceState:
    """State of the pace and of the admitted groups at one moment."""

    pace: Pace | None
    text: str | None  # the stored JSON of the pace
    since: int  # policy version when the pace was set
    version: int | None  # current policy version
    admitted: int  # number of groups that have begun
    versions: dict[int, int]  # policy version at which each group began, by group id
    ended: set[int]  # ids of groups that have expired or whose process has ended
    now: float

    @property
    def under_way(self) -> list[int]:
        """The policy versions at which the groups under way began."""
        return [version for id, version in self.versions.items() if id not in self.ended]

    @property
    def oldest(self) -> int | None:
        """The policy version of the oldest group under way; without one, the current version."""
        return None if self.version is None else min([self.version, *self.under_way])

    @property
    def limit(self) -> AdmissionLimit | None:
        """The limit on the number of groups, or None if the buffer has no pace."""
        oldest = self.oldest
        if self.pace is None or self.text is None or oldest is None:
            return None
        return AdmissionLimit(self.text, oldest, self.pace.limit(oldest - self.since))

    @property
    def refused(self) -> str | None:
        """The reason why no group may begin, or None if a group may begin."""
        limit = self.limit
        if self.pace is None or limit is None or self.admitted < limit.max_begun:
            return None
        begun = f"{self.admitted} groups have begun"
        if limit.oldest != self.version:
            return (
                f"{begun}, and no other group may begin before the oldest one under way ends, "
                f"which began at policy_version {limit.oldest}"
            )
        return (
            f"{begun} ({len(self.under_way)} of them under way), which is the maximum until "
            f"policy_version exceeds {self.version}"
        )


def _query_pace_state(
    store: Store, session: Session, others: ProcessLiveness, last: bool = False
) -> PaceState:
    """Read the state of the pace; with `last`, end the transaction in the same round trip."""
    (rows,) = session.query_all(
        (
            f"SELECT b.pace, b.admitted, b.policy_version, {store.dialect.NOW}, a.id, a.holder, "
            "a.policy_version, a.expires FROM buffers b LEFT JOIN admissions a "
            "ON a.buffer_id = b.id WHERE b.id = ?",
            store.id,
        ),
        last=last,
    )
    if not rows:
        raise store.dropped()
    text, admitted, version, now = rows[0][:4]
    current_pace, since = _read(store, text)
    groups = [row[4:] for row in rows if row[4] is not None]
    versions = {id: began_at for id, _, began_at, _ in groups}
    ended = {id for id, holder, _, expires in groups if expires <= now or others.has_ended(holder)}
    state = PaceState(
        current_pace, text, since, version, admitted - len(ended), versions, ended, float(now)
    )
    store.admission_limit = state.limit
    return state


def _now(store: Store) -> sa.ColumnElement[float]:
    return sa.literal_column(store.dialect.NOW, sa.Double())


def read_pace_state(store: Store, others: ProcessLiveness) -> PaceState:
    """Read the state of the pace without writing or waiting for a lock."""
    return store.read(_query_pace_state, others, last=True)


def try_to_admit(
    store: Store, seconds: float, serial: int, others: ProcessLiveness, id: int
) -> Admitted | str:
    """Admit a group under an id, or return why it has to wait.

    If a commit with unknown outcome has already admitted the group, return that admission.
    """
    if (group := admit_without_reading(store, seconds, serial, id)) is not None:
        return group
    with store.writing() as (session, _):
        session.is_repeated = True
        look = _query_pace_state(store, session, others)
        if id in look.versions:
            return Admitted(id, look.versions[id])
        if look.pace is None:
            return Admitted(None, look.version)
        refused = look.refused
        if refused is None:
            row = {
                "buffer_id": store.id, "id": id, "holder": named(serial), "since": look.now,
                "policy_version": look.version, "expires": look.now + seconds,
            }  # fmt: skip
            session.execute(sa.insert(tables.admissions).values(**row))
        if look.ended:
            is_ended = sa.and_(A.buffer_id == store.id, store.dialect.among(A.id, list(look.ended)))
            session.execute(sa.delete(tables.admissions).where(is_ended))
        admitted = look.admitted + (refused is None)
        session.execute(sa.update(tables.buffers).where(B.id == store.id).values(admitted=admitted))
    return Admitted(id, look.version) if refused is None else refused


def admit_without_reading(store: Store, seconds: float, serial: int, id: int) -> Admitted | None:
    """Admit a group in one round trip, or return None without admitting one.

    None means that the limit from the last read of the pace is unknown or reached. The caller must
    then read the pace.
    """
    limit = store.admission_limit
    if limit is None or store.dialect.ADMIT is None:
        return None
    limit_parameters = store.id, *limit
    with Writing(store, locked=False) as (session, _):
        session.is_repeated = True
        _, rows = session.query_all(
            (store.dialect.LOCK_TO_ADMIT, *limit_parameters),
            (store.dialect.ADMIT, *limit_parameters, limit.oldest, id, id, named(serial), seconds),
            last=True,
        )
    return Admitted(id, rows[0][0]) if rows else None


def end(store: Store, id: int, *, took_place: bool, again: bool = False) -> bool:
    """End an admission; return whether it was still stored.

    With `again`, return True, because an earlier call may have ended the admission. A group that
    took place counts towards the pace, even if its admission had expired. A group that did not take
    place does not count, so another group may begin.
    """
    with store.writing() as (session, _):
        session.is_repeated = True
        if store.dialect.FINISH is not None:
            took = int(took_place)
            statement = store.dialect.FINISH, store.id, id, took, store.id, took, again
            (((count,),),) = session.query_all(statement, last=True)
            return again or bool(count)
        is_group = sa.and_(A.buffer_id == store.id, A.id == id)
        was_stored = bool(session.query(sa.select(A.id).where(is_group)))
        if again and not was_stored:
            return True
        session.execute(sa.delete(tables.admissions).where(is_group))
        by = int(took_place) - int(was_stored)
        if by:
            buffer = sa.update(tables.buffers).where(B.id == store.id)
            session.execute(buffer.values(admitted=B.admitted + by))
    return was_stored


def renew(store: Store, id: int, seconds: float) -> bool:
    """Set an admission to expire `seconds` from now; return whether it was still stored."""
    with store.writing() as (session, _):
        is_group = sa.and_(A.buffer_id == store.id, A.id == id)
        was_stored = bool(session.query(sa.select(A.id).where(is_group)))
        later = _now(store) + seconds
        session.execute(sa.update(tables.admissions).where(is_group).values(expires=later))
    return was_stored
