"""Rows for people and for machines."""

import json
import sys
from typing import Any

import click


def print_table(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows, for people or as JSON."""
    if as_json:
        click.echo(json.dumps(rows, default=plain))
    else:
        print_rows(rows)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 step", "2,000 steps"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def plain(value: Any) -> Any:
    """Return a value that JSON has no word for."""
    if isinstance(value, bytes):
        return value.hex()
    return value.tolist() if hasattr(value, "tolist") else str(value)


_WIDE = 8


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table: rich's where it is installed, plain columns elsewhere."""
    if not rows:
        click.echo("no rows")
        return
    names = list(rows[0])
    if len(names) > _WIDE:  # too wide for a table: one block a row, without what is not known
        for row in rows:
            click.echo(
                "\n".join(
                    f"{name:>14}  {cell(value)}" for name, value in row.items() if value is not None
                )
                + "\n"
            )
        return
    cells = [[cell(row[name]) for name in names] for row in rows]
    try:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        widths = [max(len(name), *(len(row[k]) for row in cells)) for k, name in enumerate(names)]
        for line in (names, *cells):
            click.echo(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(line, widths, strict=True)
                ).rstrip()
            )
        return
    table = Table(box=SIMPLE)
    for name in names:
        table.add_column(Text(name))
    for line in cells:
        # Text, not markup: what agents said may hold square brackets.
        table.add_row(*map(Text, line))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)


def cell(value: Any) -> str:
    """Return a value as one line of a table."""
    text = (
        ""
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=plain, ensure_ascii=False)
    )
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= 80 else f"{text[:79]}…"
