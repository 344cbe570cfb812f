"""What pending steps are column by column, and how far they are."""

from typing import Any, NamedTuple

from expdb.chunks.codec import Block, Rows
from expdb.chunks.fields import Field
from expdb.storage.catalog import Fields
from expdb.storage.records import EpisodeRecord


class Steps(NamedTuple):
    """What the columns of some steps are, beside their fields."""

    episode: tuple[EpisodeRecord, ...]
    step: tuple[int | None, ...]
    pre_agent: tuple[str | None, ...]
    execute_time: tuple[float, ...]
    reward: tuple[float | None, ...]
    terminated: tuple[bool, ...]
    truncated: tuple[bool, ...]
    tags: tuple[str | None, ...]
    policy_version: tuple[int | None, ...]
    policy_version_end: tuple[int | None, ...]

    @property
    def has_versions(self) -> bool:
        """Whether any step was given a version."""
        columns = self.policy_version, self.policy_version_end
        return any(one is not None for column in columns for one in column)


class Mark(NamedTuple):
    """How far pending steps are."""

    taken: int
    blocks: list[Block]
    rows: Rows
    held: int  # of the rows, and of their columns
    columns: int
    nbytes: int
    types: dict[str, Field]
    fields: Fields
    ended: dict[EpisodeRecord, str]
    details: dict[EpisodeRecord, dict[str, Any]]
