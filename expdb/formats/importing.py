"""Store rollouts of other formats in a buffer."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import expdb
from expdb import checks
from expdb.archive.exported_table import SIGNATURE
from expdb.errors import InvalidValue
from expdb.formats.atif import is_atif, read_atif
from expdb.formats.chat import read_chats
from expdb.formats.harbor import is_harbor, read_harbor
from expdb.formats.minari import is_minari, read_minari
from expdb.formats.otlp import is_otlp, read_otlp
from expdb.formats.parquet_exports import is_exported, read_exported
from expdb.formats.records import Item, Record, Records, check_names, text_keys
from expdb.formats.rollouts import ImportReport, Rollout, Unreadable
from expdb.formats.source_files import files_of, read_records, records_of_object
from expdb.formats.step_rows import read_steps
from expdb.formats.storing import store_rollouts
from expdb.formats.verifiers import is_trace, read_traces
from expdb.storage.writing.batches import table_of

# Limits of one transaction.
BATCH_ROLLOUTS = 256
BATCH_STEPS = 4096

FORMATS = "chat", "steps", "atif", "otlp", "verifiers", "harbor", "minari", "expdb"


def import_rollouts(
    buffer: expdb.ReplayBuffer,
    rollouts: Iterable[Item],
    *,
    replace: bool = False,
    progress: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """Store rollouts as episodes, each exactly once.

    A record is identified by its own id, or by a hash of its content. A record that was imported
    before is skipped, even if its episode was evicted since. `ReplayBuffer.clear` forgets the
    records. Each transaction stores up to 256 records completely, so an interrupted import
    continues where it stopped when you run it again.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to store the episodes in.
    rollouts : iterable
        Rollouts and unreadable records from `read`, or your own.
    replace : bool, default False
        Replace the episode of a record whose content has changed since its first import. By
        default, such a record is refused.
    progress : callable, optional
        Function that is called with the report so far after each transaction.

    Returns
    -------
    ImportReport
        The numbers of stored and known records, and a message for each refused record.

    Raises
    ------
    InvalidValue
        If an argument has another type.
    ExpDBError
        If the database cannot be written. Earlier transactions remain stored.

    Examples
    --------
    >>> from expdb import formats
    >>> report = formats.import_rollouts(buffer, formats.read("chats.jsonl"))  # doctest: +SKIP
    """
    replace = checks.flag(replace, "replace")
    checks.instance(buffer, expdb.ReplayBuffer, "buffer", "db.buffer('train')")
    if isinstance(rollouts, (str, os.PathLike)):
        raise InvalidValue(
            f"rollouts must be an iterable of rollouts, got {rollouts!r}; pass formats.read(path)"
        )
    total = ImportReport()
    for batch in _batches(rollouts):
        total.add(store_rollouts(buffer._store, buffer._database.run, batch, replace))
        buffer._evict_and_report()
        if progress is not None:
            progress(total)
    return total


def _batches(rollouts: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the rollouts of each transaction, and the unreadable records between them."""
    batch: list[Item] = []
    steps = 0
    for item in rollouts:
        batch.append(item)
        steps += item.length if isinstance(item, Rollout) else 0
        if len(batch) >= BATCH_ROLLOUTS or steps >= BATCH_STEPS:
            yield batch
            batch, steps = [], 0
    if batch:
        yield batch


def read(
    *sources: Any, format: str | None = None, names: Mapping[str, str] | None = None
) -> Iterator[Item]:
    """Yield the rollouts of files, folders, tables or datasets.

    Parameters
    ----------
    *sources : path, table or dataset
        JSONL, JSON, CSV or OTLP protobuf files, which may be compressed with gzip, xz, bzip2 or
        zstd; Arrow or Parquet files; folders of such files, such as an archive; Arrow tables and
        other objects with ``__arrow_c_stream__``, such as DataFrames; or iterables of dicts, such
        as Hugging Face datasets. Parquet files of `expdb export` and of archives become the same
        episodes.
    format : {"chat", "steps", "atif", "otlp", "verifiers", "harbor", "minari", "expdb"}, optional
        ``"chat"`` for one conversation per record, ``"steps"`` for one step per record, ``"atif"``
        for trajectories in the Agent Trajectory Interchange Format, ``"otlp"`` for traces of
        OpenTelemetry in JSON or protobuf, ``"verifiers"`` for records of traces of verifiers,
        ``"harbor"`` for folders of trials of Harbor, ``"minari"`` for datasets of Minari and their
        folders, and ``"expdb"`` for Parquet files of `expdb export` and of archives. By default,
        the files of a folder or the keys of the first record decide: records with `messages` and
        without `action` are conversations, records with an `episode_id` are steps, and records
        that name a version of ATIF are trajectories.
    names : mapping of str to str, optional
        Names of columns and fields, and the keys of the records that contain their values, such as
        ``{"task_id": "question_id"}``.

    Yields
    ------
    Rollout or Unreadable
        A rollout for each record or episode, or the reason why a record cannot be read.

    Raises
    ------
    InvalidValue
        If `format` or `names` is not valid, or if a file does not exist. The error is raised when
        the first item is read.
    DriverMissing
        If a package that the format requires is not installed.
    """
    names = check_names(names)
    if format is not None:
        checks.choice(format, "format", *FORMATS)
    others: list[Any] = []
    for source in sources:
        reader = None
        if format in (None, "minari") and is_minari(source):
            reader = read_minari
        elif format in (None, "harbor") and is_harbor(source):
            reader = read_harbor
        if reader is not None and names:
            raise InvalidValue(
                f"names does not apply to {source}, whose names are defined; omit names (--map)"
            )
        if reader is not None:
            yield from reader(source)
        elif format in ("minari", "harbor"):
            what = "dataset of Minari" if format == "minari" else "trial of Harbor"
            raise InvalidValue(f"{source} contains no {what}; pass its folder, or omit the format")
        else:
            others.append(source)
    files = [source for source in others if isinstance(source, (str, os.PathLike))]
    paths = [path for source in files for path in files_of(source)]
    own = {path: None for path in paths if format in (None, "expdb") and is_exported(path)}
    if own and names:
        raise InvalidValue(
            f"names cannot rename the columns of {next(iter(own))}, which expdb has written; omit "
            "names"
        )
    yield from read_exported(list(own))
    for path in paths:
        if path in own:
            continue
        if format == "expdb":
            raise InvalidValue(f"{path} was not written by expdb; omit the format, or pass another")
        open_records = functools.partial(read_records, path, text_keys(names))
        yield from _convert(open_records, format, names)
    for source in others:
        if not isinstance(source, (str, os.PathLike)):
            yield from _read_object(source, format, names)


def _read_object(source: Any, format: str | None, names: Mapping[str, str]) -> Iterator[Item]:
    if hasattr(source, "__arrow_c_stream__"):
        source = table_of(source)
        if format in (None, "expdb") and set(source.column_names) >= SIGNATURE:
            yield from read_exported([source])
            return
    elif not isinstance(source, (list, tuple)) and not hasattr(source, "__getitem__"):
        source = list(source) if hasattr(source, "__iter__") else source  # it may be an iterator
    if format == "expdb":
        raise InvalidValue(
            f"the {type(source).__name__} was not exported by expdb; omit the format"
        )
    yield from _convert(functools.partial(records_of_object, source), format, names)


def _convert(
    open_records: Callable[[], Records], format: str | None, names: Mapping[str, str]
) -> Iterator[Item]:
    """Convert the records of a file; without `format`, the first record decides.

    `open_records` reads the records from the beginning.
    """
    if format is None:
        first = next((record for record in open_records() if isinstance(record, Record)), None)
        if first is None:
            yield from (item for item in open_records() if isinstance(item, Unreadable))
            return
        try:
            format = format_of(first, names)
        except InvalidValue as error:
            yield Unreadable(first.source, str(error))
            return
    if format == "steps":
        yield from read_steps(open_records, names)
    else:
        yield from _READERS[format](open_records(), names)


_READERS = {
    "chat": read_chats, "atif": read_atif, "otlp": read_otlp, "verifiers": read_traces,
}  # fmt: skip


def format_of(record: Record, names: Mapping[str, str]) -> str:
    """Return the format of a record; raise InvalidValue if it is unknown."""
    if is_atif(record.values):
        return "atif"
    if is_otlp(record.values):
        return "otlp"
    if is_trace(record.values):
        return "verifiers"
    keys = {*record.values, *names}
    if "messages" in keys and "action" not in keys:
        return "chat"
    if "episode_id" in keys:
        return "steps"
    if {"chosen", "rejected"} <= keys:
        raise InvalidValue(
            "the record is a preference pair, which is not a rollout; import the rollouts of the "
            "pair instead"
        )
    raise InvalidValue(
        "the record has neither messages (a conversation) nor an episode_id (a step); its keys are "
        f"{', '.join(record.values) or 'none'}; map one of them, such as "
        "--map messages=conversation"
    )
