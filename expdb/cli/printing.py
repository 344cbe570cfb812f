"""Print and write rows as tables, JSON, CSV, TSV or Parquet."""

import csv
import errno
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click


def print_table(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as a table or as JSON."""
    if as_json:
        click.echo(as_json_text(rows))
    else:
        print_rows(rows)


def as_json_text(value: Any, ensure_ascii: bool = True) -> str:
    """Return a value as JSON, with null for NaN and infinity, which JSON cannot represent."""
    return json.dumps(_finite(value), default=plain, ensure_ascii=ensure_ascii, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 step", "2,000 steps"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def plain(value: Any) -> Any:
    """Convert a value of a type that JSON lacks to a list, a number or text."""
    if isinstance(value, (bytes, datetime)):
        return value.hex() if isinstance(value, bytes) else value.isoformat()
    return value.tolist() if hasattr(value, "tolist") else str(value)


_WIDE = 8


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table: with rich in a terminal if rich is installed, else as plain columns.

    In a terminal, rows with more than eight columns are printed as one block per row.
    """
    if not rows:
        click.echo("no rows")
        return
    names = list(rows[0])
    is_terminal = sys.stdout.isatty()
    if len(names) > _WIDE and is_terminal:
        for k, row in enumerate(rows):
            pairs = [(name, cell(value)) for name, value in row.items() if value is not None]
            text = "\n".join(f"{name:>14}  {value}" for name, value in pairs)
            click.echo(text if k == 0 else f"\n{text}")
        return
    cells = [[cell(row[name]) for name in names] for row in rows]
    if not (is_terminal and _print_rich(names, cells)):
        widths = [max(len(name), *(len(row[k]) for row in cells)) for k, name in enumerate(names)]
        for line in (names, *cells):
            padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
            click.echo("  ".join(padded).rstrip())


def _print_rich(names: list[str], cells: list[list[str]]) -> bool:
    try:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=SIMPLE)
    for name in names:
        table.add_column(Text(name))
    for line in cells:
        # Text prevents rich from reading square brackets in messages of agents as markup.
        table.add_row(*map(Text, line))
    Console(file=sys.stdout).print(table)
    return True


FORMATS = ("csv", "tsv", "jsonl")
ENDINGS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".parquet": "parquet", ".pq": "parquet"}


def write_rows(table: Any, target: str, form: str) -> None:
    """Write an Arrow table into a new file, or to stdout if the target is "-"."""
    if form == "parquet":
        from expdb import export

        with create_file(target) as path:
            export.write_table(table, path)
    elif target == "-":
        _write_text(table, sys.stdout, form)
    else:
        with create_file(target) as path, open(path, "w", newline="", encoding="utf-8") as file:
            _write_text(table, file, form)


def _write_text(table: Any, file: Any, form: str) -> None:
    if form == "jsonl":
        for row in table.to_pylist():
            file.write(as_json_text(row, ensure_ascii=False) + "\n")
        return
    writer = csv.writer(file, delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
    writer.writerow(table.column_names)
    for batch in table.to_batches():
        columns = [column.to_pylist() for column in batch.columns]
        writer.writerows([[_field(value) for value in row] for row in zip(*columns, strict=True)])


def _field(value: Any) -> Any:
    return plain(value) if isinstance(value, (bytes, datetime)) else value


@contextmanager
def create_file(target: str) -> Iterator[str]:
    """Yield a temporary path, then link the file to `target`, or copy it to stdout for "-".

    Raises FileExistsError if `target` exists.
    """
    if target != "-" and os.path.exists(target):
        raise FileExistsError(f"{target} exists; name a new file")
    folder = None if target == "-" else os.path.dirname(os.path.abspath(target))
    if folder is not None and not os.path.isdir(folder):
        raise click.ClickException(f"the folder {folder} does not exist; create it first")
    ending = os.path.splitext(target)[1] or ".parquet"
    try:
        with tempfile.TemporaryDirectory(prefix=".expdb-", dir=folder) as drafts:
            draft = os.path.join(drafts, f"draft{ending}")
            yield draft
            if target == "-":
                with open(draft, "rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                os.link(draft, target)
    except FileExistsError:
        raise FileExistsError(f"{target} exists; name a new file") from None
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise click.ClickException(
            f"{target} cannot be written ({error.strerror or error}); choose another path"
        ) from None


def cell(value: Any) -> str:
    """Return a value as one line of text for a table."""
    text = (
        ""
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=plain, ensure_ascii=False)
    )
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= 80 else f"{text[:79]}…"
