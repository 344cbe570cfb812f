"""Policies of eviction: what a buffer keeps, beside the newest steps up to its capacity."""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

import sqlalchemy as sa

from expdb import checks, errors
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.store import Store

B, V = tables.buffers.c, tables.evictions.c

MARKER = "archive_id"  # in the stored policy


@dataclass(frozen=True)
class Eviction:
    """Say what a buffer keeps, beside the newest steps up to its capacity.

    Evicted is, oldest first: what is older than `max_age` seconds; of each task what is over
    `max_steps_per_task`; and what is over `max_bytes` of stored fields, or over the capacity. With
    `whole_episodes` only episodes that have ended go, each at once, by the time of their last step.
    With an `archive`, a folder, what is evicted is written there first, as Parquet files in
    `buffer=<name>/date=<day>/`. Handles that write evict, or with ``by="archiver"`` only calls of
    `evict()` and ``expdb evict --follow``.
    """

    max_bytes: int | None = None
    max_age: float | None = None
    max_steps_per_task: int | None = None
    whole_episodes: bool = False
    archive: str | os.PathLike[str] | None = None
    by: Literal["writers", "archiver"] = "writers"

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_steps_per_task"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checks.whole(getattr(self, name), name, 1))
        if self.max_age is not None:
            object.__setattr__(self, "max_age", checks.number(self.max_age, "max_age", 0))
        checks.flag(self.whole_episodes, "whole_episodes")
        checks.choice(self.by, "by", "writers", "archiver")
        if self.archive is not None:
            given = os.fspath(self.archive) if isinstance(self.archive, (str, os.PathLike)) else ""
            if not isinstance(given, str) or not given or "\0" in given:
                raise errors.InvalidValue(f"archive is {self.archive!r}: name a folder")
            object.__setattr__(self, "archive", os.path.abspath(os.path.expanduser(given)))
        if not self.whole_episodes and all(
            one is None
            for one in (self.max_bytes, self.max_age, self.max_steps_per_task, self.archive)
        ):
            raise errors.InvalidValue(
                "a policy that says nothing: give max_bytes, max_age, max_steps_per_task, "
                "whole_episodes or archive (by= alone evicts nothing), or set None"
            )

    @property
    def is_done_by_trigger(self) -> bool:
        """Whether the capacity is still kept by the database's trigger, step by step."""
        return not self.whole_episodes and self.archive is None


def read_policy(session: Session, store: Store) -> Eviction | None:
    """Return the policy of a buffer, None for none."""
    stored = _read(session, store)
    if stored is None:
        return None
    stored.pop(MARKER, None)
    try:
        return Eviction(**stored)
    except (ValueError, TypeError) as error:
        raise _unreadable(store, error) from error


def read_marker(session: Session, store: Store) -> str | None:
    """Return the id that the policy's folder must hold, None for any folder."""
    stored = _read(session, store)
    return None if stored is None else stored.get(MARKER)


def _read(session: Session, store: Store) -> dict[str, Any] | None:
    found = session.rows(sa.select(B.eviction).where(B.id == store.id))
    if not found:
        raise store.dropped()
    if found[0][0] is None:
        return None
    try:
        return dict(json.loads(found[0][0]))
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(store, error) from error


def _unreadable(store: Store, error: Exception) -> errors.DatabaseDamaged:
    return errors.DatabaseDamaged(
        f"the eviction policy of buffer {store.name!r} cannot be read ({error}); restore a backup"
    )


def set_policy(
    session: Session, store: Store, policy: Eviction | None, marker: str | None = None
) -> None:
    """Store the policy, None for none, in a transaction that holds the buffer.

    `marker` is the id of the archive's folder: see archive_folder.py.
    """
    if session.rows(sa.select(V.id).where(V.buffer_id == store.id)):
        raise errors.DatabaseBusy(
            f"another process archives steps of buffer {store.name!r}; set the policy again when "
            "it has finished"
        )
    values = {
        "eviction": None if policy is None else json.dumps({**asdict(policy), MARKER: marker}),
        "trigger_evicts": policy is None or policy.is_done_by_trigger,
    }
    session.execute(sa.update(tables.buffers).where(B.id == store.id).values(**values))
