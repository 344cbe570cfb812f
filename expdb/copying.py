"""Copy buffers to another database: completely, or chosen and changed steps."""

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Literal

from expdb import checks, errors
from expdb.buffer import ReplayBuffer
from expdb.checks import UNCHANGED
from expdb.database import ExperienceDB, open
from expdb.keywords import checked_keywords
from expdb.sql.query import Where
from expdb.storage.upkeep.copying import copy_buffer

Transform = Callable[[dict[str, Any]], Mapping[str, Any] | None]


@checked_keywords()
def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    buffer: str | None = None,
    name: str | None = None,
    where: Where = None,
    transform: Transform | None = None,
    on_conflict: Literal["error", "skip_equal", "prefix"] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, int]:
    """Copy the buffers of a database to another database, also between SQLite and PostgreSQL.

    By default, positions, episodes, chunks and the ledgers of consumers are the same in the copy.
    While a buffer is being copied, the copy is named ``<name> (copying <id>)``. An interrupted copy
    continues when you call `copy` again, unless the source has changed.

    With `where`, `transform` or `on_conflict`, expdb copies the selected steps of each episode with
    their scores, annotations, priorities and final observations, in the same order. The copied
    steps get new positions, and ledgers are not copied. If steps of an episode are left out, its
    `length` still counts them. An episode is copied in one transaction, and an interrupted copy
    continues when you call `copy` again.

    Parameters
    ----------
    source : str or path-like
        Location of the database to copy, as for `open`.
    target : str or path-like
        Location of the database to copy to, as for `open`. It is created if it does not exist.
    buffer : str, optional
        Name of the buffer to copy. By default, all buffers are copied.
    name : str, optional
        Name of the copy; it requires `buffer`. By default, the name of the buffer.
    where : str, QueryBuilder, mapping or array_like of int, optional
        Query that selects the steps to copy.
    transform : callable, optional
        Function that is called with the arguments of `ReplayBuffer.store` for each step, and with
        the fields of each final observation. It returns the changed values, or None to leave out
        the step or the observation. Use it to redact messages. Columns of episodes,
        annotations and details of scores are copied unchanged.
    on_conflict : {"error", "skip_equal", "prefix"}, optional
        Add the episodes to a buffer that may already exist. The value applies if the target
        has an episode with the same `episode_id`, or a group with the same `group_id` and episodes
        of another run. ``"error"`` raises before anything is copied. ``"skip_equal"`` skips an
        equal episode, and raises if an episode differs. ``"prefix"`` puts the name of the source,
        such as ``runs`` for runs.db, and a slash before all ids of episodes and groups; episodes
        without a group get a group of their task. By default, the target must not have the buffer,
        except from an interrupted copy.
    progress : callable, optional
        Function that is called with the name of the buffer, the number of copied chunks, and the
        number of all chunks of the buffer. With `where`, `transform` or `on_conflict`, the numbers
        count episodes.

    Returns
    -------
    dict of str to int
        Number of copied steps of each buffer, by the name of the buffer.

    Raises
    ------
    TargetExists
        If the target already has a buffer of the same name and `on_conflict` is None. In this case
        nothing is copied, unless another process created that buffer during the copy.
    EpisodeMismatch
        If an episode or a group is already in the target; see `on_conflict`.
    UnknownBuffer
        If the source has no buffer `buffer`.
    QueryError
        If the query is invalid.
    InvalidValue
        If source and target are the same buffer, an argument is invalid, or a changed step cannot
        be stored.
    DatabaseMissing
        If the source does not exist.
    DatabaseBusy
        If another process copies the same buffer to the target.
    ExpDBError
        If `open` raises an error for one of the locations.
    """
    if on_conflict is not None:
        checks.choice(on_conflict, "on_conflict", "error", "skip_equal", "prefix")
    if transform is not None and not callable(transform):
        raise errors.InvalidValue(
            f"transform must be a function of the values of a step, got {transform!r}"
        )
    if name is not None and buffer is None:
        raise errors.InvalidValue("name= requires buffer=, the buffer to copy under this name")
    with ExitStack() as stack:
        source_db = stack.enter_context(open(source, create=False, read_only=True))
        names = (
            source_db.buffers() if buffer is None else [source_db.buffer(buffer, create=False).name]
        )
        if where is not None:
            for old in names:
                source_db.buffer(old)._compile(where)  # raises before a target is created
        target_db = stack.enter_context(
            open(target)
        )  # last, so that an error creates no empty file
        if target_db.location == source_db.location and name in (None, buffer):
            raise errors.InvalidValue(
                f"source and target are the same database, {target_db.location}; name another "
                "target, or pass name= for a copy in the same database"
            )
        new_names = {old: old if name is None else name for old in names}
        is_whole = where is None and transform is None and on_conflict is None
        taken = [new for new in new_names.values() if new in target_db.buffers()]
        if taken and is_whole:
            raise errors.TargetExists(
                f"{target_db.location} already has a buffer {taken[0]!r}; drop this buffer first, "
                "copy to another database or name, or pass on_conflict= to add episodes to the "
                "buffer"
            )
        copied = {}
        for old, new in new_names.items():
            report_progress = (
                functools.partial(progress, old)
                if progress is not None
                else lambda done, total: None
            )
            if is_whole:
                copied[old] = copy_buffer(
                    source_db._engine, target_db._engine, old, new, report_progress
                )
            else:
                copied[old] = _copy_episodes(
                    source_db, target_db, old, new, where, transform, on_conflict, report_progress
                )
        return copied


def _copy_episodes(
    source_db: ExperienceDB,
    target_db: ExperienceDB,
    old: str,
    new: str,
    where: Where,
    transform: Transform | None,
    on_conflict: str | None,
    report_progress: Callable[[int, int], None],
) -> int:
    from expdb.formats.episode_copies import copy_episodes  # it imports the formats

    source = source_db.buffer(old, create=False)

    def create() -> ReplayBuffer:
        capacity = UNCHANGED if new in target_db.buffers() else source.capacity
        return target_db.buffer(new, capacity=capacity)

    target = create() if new in target_db.buffers() else None
    return copy_episodes(source, target, create, where, transform, on_conflict, report_progress)
