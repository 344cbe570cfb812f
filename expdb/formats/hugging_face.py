"""Export conversations as a Hugging Face dataset with structured messages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

import expdb
from expdb.errors import DriverMissing, InvalidValue
from expdb.export import new_file
from expdb.formats.chat import conversations_of

BATCH_RECORDS = 256


def write_dataset(
    buffer: expdb.ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    names: Mapping[str, str] | None = None,
    split: str | None = None,
    split_by: str = "task_id",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the conversations of episodes to a new folder that `datasets.load_from_disk` reads.

    The rows are the records of `write_chat`. A table has every key of every message, so keys that
    a message lacks are null.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read. Each step contains the messages before a turn, and the answer of the
        assistant.
    target : path
        The folder to create.
    where : query, optional
        Query that selects episodes: those with a matching step. By default, all episodes.
    names : mapping of str to str, optional
        Names of the fields that hold `messages`, `action` and `tools`, if they have others.
    split : str, optional
        Share of the episodes to write; see `write_chat`.
    split_by : str, default "task_id"
        Column of episodes for `split`.
    progress : callable, optional
        Function that is called with the number of episodes since the last call.

    Returns
    -------
    int
        Number of rows.

    Raises
    ------
    InvalidValue
        If an argument is not valid, or a key has values of different types, such as text and lists.
    DriverMissing
        If the package `datasets` is not installed.
    TargetExists
        If the folder exists.
    DatabaseMissing, StorageFull, DatabaseReadOnly
        If the folder cannot be written.
    """
    try:
        import datasets
    except ImportError:
        raise DriverMissing(
            "Hugging Face datasets require the package datasets; run `pip install "
            "'expdb[datasets]'`"
        ) from None
    arguments = buffer, where, names, split, split_by
    schema = _schema_of(_batches(conversations_of(*arguments, None)))
    count = 0
    with new_file(Path(target)) as draft, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for records in _batches(conversations_of(*arguments, progress)):
                writer.write_table(pa.Table.from_pylist(records, schema))
                count += len(records)
        dataset = datasets.Dataset.from_file(str(path))
        dataset.save_to_disk(draft)
        del dataset
    return count


def _batches(records: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(records, BATCH_RECORDS)):
        yield batch


def _schema_of(batches: Iterator[list[dict[str, Any]]]) -> pa.Schema:
    """Return the schema that all records have in common."""
    schema = pa.schema([])
    for records in batches:
        try:
            own = pa.Table.from_pylist(
                [dict.fromkeys(key for record in records for key in record) | records[0], *records]
            ).schema
            schema = pa.unify_schemas([schema, own], promote_options="permissive")
        except pa.ArrowException as error:
            raise InvalidValue(
                f"the records between {records[0]['id']!r} and {records[-1]['id']!r} cannot be one "
                f"table ({error}); a key must have values of one type, so convert them, or export "
                "chat JSONL"
            ) from None
    return schema
