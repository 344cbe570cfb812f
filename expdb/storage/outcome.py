"""What a transaction has made, until it is committed."""

from dataclasses import dataclass, field

from expdb.chunks.chunk import Decoder
from expdb.chunks.fields import Field
from expdb.storage.catalog import Fields
from expdb.storage.records import EpisodeRecord


@dataclass
class WriteOutcome:
    """What a transaction has made; the process may know it only once it is committed."""

    write_id: str | None = None
    fields: Fields | None = None
    signatures: dict[tuple[tuple[str, Field], ...], int] = field(default_factory=dict)
    decoders: dict[int, Decoder] = field(default_factory=dict)
    # As it was, as it is now.
    episodes: list[tuple[EpisodeRecord, EpisodeRecord]] = field(default_factory=list)
