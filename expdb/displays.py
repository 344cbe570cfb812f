"""Build the HTML that notebooks show for batches, buffers and databases."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from expdb.errors import DatabaseClosed

ROWS = 5  # rows of a batch, and newest episodes of a buffer
LONGEST = 60  # characters of a value
EPISODE = ("episode_id", "task_id", "status", "length", "episode_return")


def _table(title: str, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a title and a table; all text is escaped."""
    head = "".join(f"<th>{_escaped(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f"<p>{_escaped(title)}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _escaped(text: str) -> str:
    from html import escape  # not at the top, because it would take 1 ms of `import expdb`

    return escape(text)


def _cell(value: Any) -> str:
    text = "" if value is None else " ".join(str(value)[: 2 * LONGEST].split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return f'<td style="text-align: left">{_escaped(text)}</td>'


def batch_html(batch: Mapping[str, Any]) -> str:
    """Return an HTML table of the keys of a batch with types, shapes and first values."""
    shown = [(name, array.dtype, list(array.shape), *array[:ROWS]) for name, array in batch.items()]
    row_count = max((len(row) - 3 for row in shown), default=0)
    headers = ("key", "dtype", "shape", *[f"row {row}" for row in range(row_count)])
    return _table(f"Batch of {batch.size:,} rows", headers, shown)  # type: ignore[attr-defined]


def buffer_html(buffer: Any) -> str | None:
    """Return HTML with the size, the fields and the newest episodes of a buffer."""
    with suppress(DatabaseClosed):
        return _buffer_html(buffer)
    return None


def _buffer_html(buffer: Any) -> str:
    stats = buffer.stats()
    capacity = "unlimited" if stats["capacity"] is None else f"{stats['capacity']:,}"
    title = f"ReplayBuffer {buffer.name!r}: {stats['steps']:,} steps, capacity {capacity}"
    episodes = buffer.episodes(limit=ROWS).to_pylist()[::-1]
    rows = [[episode[name] for name in EPISODE] for episode in episodes]
    return _table(title, ("field", "type"), stats["fields"].items()) + _table(
        "Newest episodes", EPISODE, rows
    )


def database_html(database: Any) -> str | None:
    """Return an HTML table of the buffers of a database with their sizes."""
    rows = []
    try:
        for name in database.buffers():
            stats = database.buffer(name, create=False).stats()
            episodes = sum(stats["episodes"].values())
            rows.append((name, stats["steps"], stats["capacity"], episodes, stats["tasks"]))
    except DatabaseClosed:
        return None
    headers = ("buffer", "steps", "capacity", "episodes", "tasks")
    return _table(f"ExperienceDB {database.location}", headers, rows)
