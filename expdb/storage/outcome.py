"""Changes of a transaction that the process adopts after the commit."""

from dataclasses import dataclass, field

from expdb.chunks.chunk import Decoder
from expdb.chunks.fields import Field
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.catalog import Fields


@dataclass
class WriteOutcome:
    """Changes of a transaction; the process must not adopt them before the commit."""

    write_id: str | None = None
    fields: Fields | None = None
    signatures: dict[tuple[tuple[str, Field], ...], int] = field(default_factory=dict)
    decoders: dict[int, Decoder] = field(default_factory=dict)
    # (cached record, record to adopt) of each written episode
    episodes: list[tuple[EpisodeRecord, EpisodeRecord]] = field(default_factory=list)
