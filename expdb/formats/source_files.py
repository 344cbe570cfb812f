"""Read the records of JSON, JSONL, CSV, Arrow and Parquet files, also compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from expdb.errors import InvalidValue
from expdb.formats.otlp import parse_request
from expdb.formats.records import Record, Records
from expdb.formats.rollouts import Unreadable

LINE_BYTES = 256 << 20  # a longer line is refused
BATCH_ROWS = 1024
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
_READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error, pa.ArrowException)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def ending_of(path: Path) -> str:
    """Return the suffix of a file without that of its compression, such as ".jsonl"."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return name.suffix.lower()


def open_file(path: Path) -> Any:
    """Return an open file, decompressed, for reading bytes."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path)
    if suffix == ".xz":
        return lzma.open(path)
    if suffix == ".bz2":
        return bz2.open(path)
    if suffix == ".zst":
        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    return open(path, "rb")


def read_records(path: Path, text: Collection[str]) -> Records:
    """Yield the records of a file; a part that cannot be read becomes an Unreadable.

    `text` names the columns of CSV files that contain text, also if all their cells are numbers.
    """
    ending = ending_of(path)
    reader = _READERS.get(ending)
    if reader is None:
        yield Unreadable(
            str(path),
            f"the file name must end in {', '.join(_READERS)}, optionally followed by "
            f"{', '.join(COMPRESSED)}; "
            "rename the file, or convert it to JSONL",
        )
        return
    try:
        yield from reader(path, text) if reader is _read_csv else reader(path)
    except _READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        yield Unreadable(str(path), f"the file cannot be read to its end ({reason}); correct it")


def _read_lines(path: Path) -> Records:
    with open_file(path) as file:
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            source = f"{path}:{number}"
            if number == 1 and line.startswith(_UTF16):
                yield Unreadable(str(path), "the file is in UTF-16; convert it to UTF-8")
                return
            if len(line) > LINE_BYTES:
                yield Unreadable(
                    source,
                    f"the line is longer than {LINE_BYTES >> 20} MiB; write one record per line",
                )
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES)
                continue
            if number == 1 and line.lstrip().startswith(b"["):
                yield Unreadable(
                    str(path),
                    "the file is a JSON list, not JSONL; rename it so that it ends in .json",
                )
                return
            if line.strip():
                yield _record(source, line.removeprefix(b"\xef\xbb\xbf"))


def _record(source: str, data: bytes) -> Record | Unreadable:
    """Return the JSON object in a line."""
    try:
        value = json.loads(data)
    except UnicodeDecodeError as error:
        return Unreadable(source, f"the record is not valid UTF-8 ({error.reason}); convert it")
    except RecursionError:
        return Unreadable(source, "the record is nested too deeply; flatten it")
    except ValueError as error:
        return Unreadable(source, f"the record is not valid JSON ({error}); correct or remove it")
    return as_record(source, value)


def as_record(source: str, value: Any) -> Record | Unreadable:
    """Return a JSON value as a record, which must be an object."""
    if not isinstance(value, dict):
        return Unreadable(
            source, f"a record must be a JSON object, got {type(value).__name__}; write one object "
            "per record",
        )  # fmt: skip
    return Record(source, value)


def _read_json(path: Path) -> Records:
    with open_file(path) as file:
        data = file.read()
    whole = _record(str(path), data)
    if isinstance(whole, Record):
        yield whole
        return
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        if "Extra data" in str(error):
            yield Unreadable(
                str(path),
                "the file has more than one JSON value; if it has one record per line, rename it "
                "so that it ends in .jsonl",
            )
            return
        yield whole
        return
    if not isinstance(values, list):
        yield whole
        return
    del data
    for number, value in enumerate(values):
        yield as_record(f"{path}[{number}]", value)


def _read_csv(path: Path, text: Collection[str]) -> Records:
    """Yield the rows of a CSV file; `text` names the columns whose cells are always text.

    The whole file is read at once, because the last cell of a column decides its type, too.
    """
    with open_file(path) as file:
        table = csv.read_csv(
            pa.PythonFile(file, mode="r"),
            csv.ReadOptions(use_threads=False),  # with threads, errors do not name the row
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                column_types=dict.fromkeys(text, pa.string()),
            ),
        )
    yield from _rows(str(path), table.to_batches(), first=2)  # the first line has the names


def _read_parquet(path: Path) -> Records:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from _rows(str(path), file.iter_batches(BATCH_ROWS))


def _read_arrow(path: Path) -> Records:
    with pa.memory_map(str(path)) as file:
        try:
            with pa.ipc.open_file(file) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches))
                yield from _rows(str(path), batches)
        except pa.ArrowInvalid:
            file.seek(0)
            with pa.ipc.open_stream(file) as reader:
                yield from _rows(str(path), reader)


def _read_protobuf(path: Path) -> Records:
    with open_file(path) as file:
        try:
            yield Record(str(path), parse_request(file.read()))
        except InvalidValue as error:
            yield Unreadable(str(path), str(error))


def _rows(path: str, batches: Any, first: int = 0) -> Records:
    number = first
    for batch in batches:
        names = batch.schema.names
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            yield Unreadable(path, f"several columns are named {', '.join(twice)}; rename them")
            return
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for row in batch.slice(start, BATCH_ROWS).to_pylist():
                values = {name: without_null_keys(value) for name, value in row.items()}
                yield Record(f"{path}:{number}", values)
                number += 1


def records_of_object(source: Any) -> Records:
    """Yield the records of an Arrow table, a DataFrame, or an iterable of dicts."""
    name = type(source).__name__
    if hasattr(source, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(source)
        yield from _rows(name, reader)
        return
    if isinstance(source, (dict, bytes)) or not hasattr(source, "__iter__"):
        raise InvalidValue(
            f"a source must be a path, a table or an iterable of dicts, got {name}; pass a list of "
            "records"
        )
    has_schema = hasattr(source, "features")  # a Hugging Face dataset
    for number, value in enumerate(source):
        record = as_record(f"{name}[{number}]", value)
        if isinstance(record, Record) and has_schema:
            values = {name: without_null_keys(value) for name, value in record.values.items()}
            record = record._replace(values=values)
        yield record


def without_null_keys(value: Any) -> Any:
    """Return a value of a table without the keys of nested objects that are null.

    A column of objects has every key of every object, so a missing key is null there. A null
    `content` is kept, because messages with tool calls have one.
    """
    if isinstance(value, dict):
        return {
            key: without_null_keys(inner)
            for key, inner in value.items()
            if inner is not None or key == "content"
        }
    if isinstance(value, list):
        return [without_null_keys(inner) for inner in value]
    return value


_READERS: dict[str, Callable[..., Records]] = {
    ".jsonl": _read_lines,
    ".ndjson": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
    ".arrow": _read_arrow,
    ".pb": _read_protobuf,
}


# Files of Hugging Face datasets that describe the other files.
_NO_RECORDS = ("dataset_info.json", "state.json", "dataset_dict.json")


def files_of(source: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a source: a file, or the files of a folder in the order of their names.

    Raise InvalidValue if there are none.
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if ending_of(file) in _READERS
            and file.name not in _NO_RECORDS
            and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        )
        if not files:
            raise InvalidValue(
                f"the folder {path} has no file that ends in {', '.join(_READERS)}; name the files"
            )
        return files
    if not path.exists():
        raise InvalidValue(f"{path} does not exist; pass the path of a file or a folder")
    return [path]
