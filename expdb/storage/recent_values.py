"""Select large repeated values to share."""

from collections.abc import Iterable, Sequence
from typing import Any

from expdb.chunks.column import Buffer
from expdb.chunks.fields import Field
from expdb.chunks.shared_values import ValueSelector, fingerprint_of

MAX_RECENT_VALUES = 20_000  # per generation; up to two generations are kept
_NOT_RECORDED = ""  # not a valid episode_id


class RecentValues:
    """Fingerprints of the large values that a handle wrote most recently."""

    def __init__(self) -> None:
        # The episode that wrote the value first, or None if the value repeats.
        self._recent: dict[int, str | None] = {}
        self._older: dict[int, str | None] = {}

    def add(self, fingerprints: Iterable[int], episode: str, count_same_episode: bool) -> list[int]:
        """Record fingerprints; return those recorded before.

        Without `count_same_episode`, return only fingerprints that another episode recorded.
        """
        recent, older, repeated = self._recent, self._older, list[int]()
        for fingerprint in fingerprints:
            if fingerprint not in recent and fingerprint not in older:
                recent[fingerprint] = episode
            elif count_same_episode or self._find(fingerprint) != episode:
                recent[fingerprint] = None
                repeated.append(fingerprint)
        if len(recent) >= MAX_RECENT_VALUES:
            self._recent, self._older = {}, recent
        return repeated

    def is_repeated(self, fingerprint: int) -> bool:
        """Return whether `add` has returned the fingerprint as repeated."""
        return self._find(fingerprint) is None

    def _find(self, fingerprint: int) -> str | None:
        older = self._older.get(fingerprint, _NOT_RECORDED)
        return self._recent.get(fingerprint, older)


class WriteSelector(ValueSelector):
    """Selects the values to share in a new chunk.

    The steps of the chunk are `taken[first:]`; the first item of each entry is the episode.
    """

    def __init__(self, values: RecentValues, taken: Sequence[tuple[Any, ...]], first: int):
        self._values, self._taken, self._first = values, taken, first

    def find_repeated(self, fingerprints: Iterable[int], field: Field) -> list[int]:
        """Return those of the fingerprints of a field whose values also occur elsewhere."""
        taken, first = self._taken, self._first
        episode = taken[first][0].episode_id if first < len(taken) else "unknown"
        # The messages and prompts of an episode are stored once when its chunks are merged.
        count_same_episode = field.dtype != "json" and not field.has_prefixes
        return self._values.add(fingerprints, episode, count_same_episode)

    def find_prompt_rows(self) -> list[int]:
        """Return the first row of each new rollout of a group."""
        rows, previous = list[int](), None
        for row, entry in enumerate(self._taken[self._first :]):
            episode = entry[0]
            if episode is not previous and episode.group_id is not None and not episode.length:
                rows.append(row)
            previous = episode
        return rows


class MergeSelector(ValueSelector):
    """Selects the values to share in a chunk that replaces other chunks."""

    def __init__(self, values: RecentValues, shared: Iterable[Buffer]):
        self._values, self._shared = values, set(map(fingerprint_of, shared))

    def find_repeated(self, fingerprints: Iterable[int], field: Field) -> list[int]:
        """Return those of the fingerprints of a field whose values also occur elsewhere."""
        is_repeated = self._values.is_repeated
        return [value for value in fingerprints if value in self._shared or is_repeated(value)]

    def find_prompt_rows(self) -> list[int]:
        """Return no rows; values shared in the old chunks stay shared."""
        return []
