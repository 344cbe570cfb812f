"""Find episodes in short transactions, within a time limit.

A long read transaction prevents SQLite from resetting its WAL, and PostgreSQL from removing dead
rows. A search therefore reads ranges of episode numbers, newest first, each in its own transaction.
It adapts the width of each range to the duration of the previous one.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import expdb
from expdb.serve.source import Source

SEARCH_SECONDS = 1.5  # time limit of a search
SLICE_SECONDS = 0.03  # time that one transaction should take
FIRST_WIDTH = 1_000  # episode numbers in the first range
FIRST_TRANSCRIPTS = 5  # transcripts that are read at once, at first
MAX_TRANSCRIPTS = 200  # transcripts that are read at once, at most
MAX_GROWTH = 8  # maximum ratio of the widths of successive ranges

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class SearchResult:
    """Matching episodes, newest first."""

    rows: Rows
    oldest_searched: int  # `rows` has every match from this number up to `before`
    is_complete: bool  # whether no older episode matches

    @property
    def next_before(self) -> int | None:
        """The argument `before` of the next page, or None on the last page."""
        return None if self.is_complete else self.oldest_searched


def find_episodes(
    buffer: expdb.ReplayBuffer,
    where: Any = None,
    *,
    before: int | None = None,
    limit: int = 50,
    seconds: float = SEARCH_SECONDS,
    keep: Callable[[Rows], Rows] | None = None,
) -> SearchResult:
    """Return the newest matching episodes before an episode number.

    `keep` filters the rows that match `where`. If the search reaches its time limit, the result is
    incomplete; pass its `next_before` as `before` to continue the search.
    """
    newest = buffer.episodes(limit=1)["episode"].to_pylist()
    top = newest[0] + 1 if newest else 0  # exclusive
    top = top if before is None else min(top, before)
    deadline = time.monotonic() + seconds
    rows: Rows = []
    width, at_once = FIRST_WIDTH, FIRST_TRANSCRIPTS
    while top > 0 and len(rows) < limit:
        began = time.monotonic()
        bottom = max(0, top - width)  # inclusive
        wanted = limit - len(rows) if keep is None else at_once
        part = buffer.episodes(where, limit=wanted, before=top, after=bottom - 1).to_pylist()[::-1]
        if len(part) == wanted:
            bottom = part[-1]["episode"]
        if keep is not None:
            part = keep(part)
            if len(rows) + len(part) > limit:
                part = part[: limit - len(rows)]
                bottom = part[-1]["episode"]
        rows, top = rows + part, bottom
        now = time.monotonic()
        if now >= deadline:
            break
        factor = min(MAX_GROWTH, SLICE_SECONDS / max(now - began, 1e-6))
        width = max(20, int(width * factor))
        at_once = min(MAX_TRANSCRIPTS, max(1, int(at_once * factor)))
    return SearchResult(rows, top, top <= 0)


def contains_text(source: Source, buffer: expdb.ReplayBuffer, text: str) -> Callable[[Rows], Rows]:
    """Return a filter for episodes that contain a text in a text or JSON field, ignoring case.

    The rows that it keeps get the key `match`, the number of the first step with the text.
    """
    wanted = text.casefold()
    types = source.fields(buffer.name)
    fields = [name for name, type in types.items() if type.dtype in ("json", "text")]

    def keep(rows: Rows) -> Rows:
        if not rows or not fields:
            return []
        positions = source.positions(buffer.name, [row["episode_id"] for row in rows])
        matching: dict[str, int] = {}
        for batch in buffer.scan(positions, fields=["episode_id", "step", *fields], size=512):
            for row in batch.to_list():
                if row["episode_id"] not in matching and any(
                    wanted in part.casefold() for name in fields for part in texts_of(row[name])
                ):
                    matching[row["episode_id"]] = row["step"]
        return [
            {**row, "match": matching[row["episode_id"]]}
            for row in rows if row["episode_id"] in matching
        ]  # fmt: skip

    return keep


def texts_of(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
