"""Find episodes in short transactions, within a time limit.

A long read transaction keeps SQLite from truncating its log, and PostgreSQL from removing dead
rows. So a search asks for ranges of episode numbers, newest first, and adapts the width of the next
range to the time that the last one took.
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
GROWTH = 8  # most by which a range is wider than the last one

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """Matching episodes, newest first."""

    rows: Rows
    oldest_searched: int  # every matching episode from this number on is in `rows`
    is_complete: bool  # whether no older episode matches

    @property
    def next_before(self) -> int | None:
        """Number of the episode from which the next page goes on; None on the last page."""
        return None if self.is_complete else self.oldest_searched


def find_episodes(
    buffer: expdb.ReplayBuffer,
    where: Any = None,
    *,
    before: int | None = None,
    limit: int = 50,
    seconds: float = SEARCH_SECONDS,
    keep: Callable[[Rows], Rows] | None = None,
) -> Found:
    """Return the newest matching episodes before an episode number.

    `keep` selects some of the rows that match `where`. If the time runs out, the result is
    incomplete, and `next_before` continues the search.
    """
    newest = buffer.episodes(newest=1)["episode"].to_pylist()
    top = newest[0] + 1 if newest else 0  # exclusive
    top = top if before is None else min(top, before)
    deadline = time.monotonic() + seconds
    rows: Rows = []
    width = FIRST_WIDTH if keep is None else 20
    while top > 0 and len(rows) < limit:
        began = time.monotonic()
        bottom = max(0, top - width)  # inclusive
        wanted = limit - len(rows) if keep is None else width
        part = buffer.episodes(where, newest=wanted, before=top, after=bottom - 1).to_pylist()[::-1]
        kept = part if keep is None else keep(part)
        if keep is not None and len(rows) + len(kept) >= limit:
            kept = kept[: limit - len(rows)]
            bottom = kept[-1]["episode"] if kept else bottom
        elif keep is None and len(part) == wanted:
            bottom = part[-1]["episode"]
        rows, top = rows + kept, bottom
        now = time.monotonic()
        if now >= deadline:
            break
        width = max(20, int(width * min(GROWTH, SLICE_SECONDS / max(now - began, 1e-6))))
    return Found(rows, top, top <= 0)


def contains_text(source: Source, buffer: expdb.ReplayBuffer, text: str) -> Callable[[Rows], Rows]:
    """Return a function that keeps the episodes with a text in a text or JSON field.

    The case of letters is ignored.
    """
    wanted = text.casefold()
    types = source.fields(buffer.name)
    fields = [name for name, type in types.items() if type.dtype in ("json", "text")]

    def keep(rows: Rows) -> Rows:
        if not rows or not fields:
            return []
        positions = source.positions(buffer.name, [row["episode_id"] for row in rows])
        matching: set[str] = set()
        for batch in buffer.scan(positions, fields=["episode_id", *fields], size=512):
            for row in batch.to_list():
                if row["episode_id"] not in matching and any(
                    wanted in part.casefold() for name in fields for part in texts_of(row[name])
                ):
                    matching.add(row["episode_id"])
        return [row for row in rows if row["episode_id"] in matching]

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
