"""The tables of consumption: who consumes what of a buffer, and who waits for it.

As tables.py, which has them too.
"""

import sqlalchemy as sa

from expdb.sql.column_types import Blob, Flag, Integer, Real, Text, metadata

consumers = sa.Table(
    "consumers",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True),
    sa.Column("id", Integer, primary_key=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("settings", Text, nullable=False, comment="limits and seed, JSON object"),
    sa.Column("began", Integer, nullable=False, comment="position of the next step at its making"),
    sa.Column("version", Integer, nullable=False, comment="counts changes of its leases"),
    sa.Column("handed_out", Integer, nullable=False, comment="leases made, ever"),
    sa.Column("begun", Integer, nullable=False, comment="batches begun, those drawn again once"),
    sa.Column("acknowledged", Integer, nullable=False, comment="leases acknowledged, ever"),
    sa.Column("last_step", Integer, comment="the trainer's, of the latest acknowledgement"),
    sa.Index("consumers_by_name", "buffer_id", "name", unique=True),
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True),
    sa.Column("id", Integer, primary_key=True),
    sa.Column("request", Text, nullable=False, comment="what leases asked for, JSON object"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True),
    sa.Column("consumer", Integer, primary_key=True),
    sa.Column("id", Integer, primary_key=True),
    sa.Column(
        "number",
        Integer,
        nullable=False,
        comment="of the batch; one that is given back is drawn again under the same number",
    ),
    sa.Column(
        "status",
        Text,
        nullable=False,
        comment="leased, acknowledged, returned, or repeated: returned and drawn again since",
    ),
    sa.Column("request", Integer, nullable=False, comment="id of what was asked for"),
    sa.Column("holder", Text, nullable=False, comment="the process that holds it"),
    sa.Column("leased", Real, nullable=False, comment="Unix seconds"),
    sa.Column("expires", Real, nullable=False, comment="Unix seconds"),
    sa.Column("ended", Real, comment="Unix seconds, of its acknowledgement or return"),
    sa.Column("acknowledged", Integer, comment="how many leases were before it"),
    sa.Column("trainer_step", Integer, comment="given with the acknowledgement"),
    sa.Column("policy_version", Integer, comment="of the buffer, when it was leased"),
    sa.Column("rows", Integer, nullable=False, comment="rows handed out"),
    sa.Column("first", Integer, nullable=False, comment="least position in it"),
    sa.Column("last", Integer, nullable=False, comment="greatest position in it"),
    sa.Column("positions", Blob, nullable=False, comment="what was drawn, packed"),
    sa.Column("columns", Blob, nullable=False, comment="what the sampler said of it, packed"),
    sa.Column(
        "checksum",
        Integer,
        nullable=False,
        comment="CRC-32 of which rows make the batch, and of what may change in it",
    ),
    sa.Column("crc", Integer, nullable=False, comment="CRC-32 of positions and columns"),
    sa.Column("pinned", Integer, comment="steps from this position on are kept; NULL for none"),
)
# Partial in the database, as those by revision: the leases that are held or may be drawn again.
sa.Index("leases_open", leases.c.buffer_id, leases.c.consumer, leases.c.id)

waiters = sa.Table(
    "waiters",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True),
    sa.Column("id", Integer, primary_key=True, comment="random"),
    sa.Column("holder", Text, nullable=False, comment="the process that waits"),
    sa.Column("since", Real, nullable=False, comment="Unix seconds"),
    sa.Column("what", Text, nullable=False, comment="it waits for"),
)

admissions = sa.Table(
    "admissions",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True),
    sa.Column("id", Integer, primary_key=True, comment="random"),
    sa.Column("holder", Text, nullable=False, comment="the process that generates the group"),
    sa.Column("policy_version", Integer, nullable=False, comment="of the buffer, when it began"),
    sa.Column("since", Real, nullable=False, comment="Unix seconds"),
    sa.Column("expires", Real, nullable=False, comment="Unix seconds"),
)

evictions = sa.Table(
    "evictions",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True),
    sa.Column("id", Integer, primary_key=True, comment="random; a new one for each owner"),
    sa.Column("holder", Text, nullable=False, comment="the process that archives"),
    sa.Column("renewed", Real, nullable=False, comment="Unix seconds, by the database's clock"),
    sa.Column("file", Text, nullable=False, comment="that the steps are written to"),
    sa.Column("positions", Blob, nullable=False, comment="steps to evict, packed"),
    sa.Column(
        "committed", Flag, nullable=False, comment="the steps are deleted; only the draft has them"
    ),
)
