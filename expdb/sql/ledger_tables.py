"""Tables of consumers, leases, processes, metrics, admissions and evictions.

tables.py also exports them.
"""

import sqlalchemy as sa

from expdb.sql.column_types import Blob, Flag, Integer, Real, Text, metadata

consumers = sa.Table(
    "consumers",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the consumer"),
    sa.Column("id", Integer, primary_key=True, comment="number of the consumer in its buffer"),
    sa.Column("name", Text, nullable=False, comment="name of the consumer"),
    sa.Column("settings", Text, nullable=False, comment="limits and seed, JSON object"),
    sa.Column(
        "began",
        Integer,
        nullable=False,
        comment="position of the next step when the consumer was created",
    ),
    sa.Column(
        "version", Integer, nullable=False, comment="number of changes to leases of the consumer"
    ),
    sa.Column("handed_out", Integer, nullable=False, comment="number of leases ever created"),
    sa.Column(
        "begun",
        Integer,
        nullable=False,
        comment="number of batches ever leased; a batch that is drawn again counts once",
    ),
    sa.Column(
        "acknowledged", Integer, nullable=False, comment="number of leases ever acknowledged"
    ),
    sa.Column("last_step", Integer, comment="trainer step of the latest acknowledgement"),
    sa.Column("rewinds", Integer, nullable=False, comment="number of times it was rewound"),
    sa.Index("consumers_by_name", "buffer_id", "name", unique=True),
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the request"),
    sa.Column("id", Integer, primary_key=True, comment="number of the request in its buffer"),
    sa.Column("request", Text, nullable=False, comment="arguments of `lease`, JSON object"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the lease"),
    sa.Column("consumer", Integer, primary_key=True, comment="number of the consumer"),
    sa.Column("id", Integer, primary_key=True, comment="number of the lease of its consumer"),
    sa.Column(
        "number",
        Integer,
        nullable=False,
        comment="number of the batch; a released batch is drawn again with the same number",
    ),
    sa.Column(
        "status",
        Text,
        nullable=False,
        comment="leased, acknowledged, returned (released), or repeated (released and drawn again)",
    ),
    sa.Column("request", Integer, nullable=False, comment="number of the request"),
    sa.Column("holder", Text, nullable=False, comment="process that has the lease"),
    sa.Column("leased", Real, nullable=False, comment="start of the lease in Unix seconds"),
    sa.Column(
        "expires",
        Real,
        nullable=False,
        comment="time at which the lease expires in Unix seconds",
    ),
    sa.Column("ended", Real, comment="time of the acknowledgement or release in Unix seconds"),
    sa.Column(
        "acknowledged", Integer, comment="number of leases that were acknowledged before this lease"
    ),
    sa.Column(
        "trainer_step", Integer, comment="trainer step that the learner passed when it acknowledged"
    ),
    sa.Column(
        "policy_version", Integer, comment="policy version of the buffer when the lease was created"
    ),
    sa.Column("rows", Integer, nullable=False, comment="number of leased items"),
    sa.Column("first", Integer, nullable=False, comment="smallest drawn position"),
    sa.Column("last", Integer, nullable=False, comment="greatest drawn position"),
    sa.Column("positions", Blob, nullable=False, comment="drawn positions, encoded"),
    sa.Column("columns", Blob, nullable=False, comment="columns that the sampler added, encoded"),
    sa.Column(
        "checksum",
        Integer,
        nullable=False,
        comment="CRC-32 of the steps in the batch and of their columns that may change",
    ),
    sa.Column(
        "crc",
        Integer,
        nullable=False,
        comment="CRC-32 of `number`, `request`, `positions` and `columns`",
    ),
    sa.Column(
        "pinned", Integer, comment="steps from this position on are not evicted; NULL for none"
    ),
)
# Partial in the database, as are the indexes by revision: leases that are held or may be drawn
# again.
sa.Index("leases_open", leases.c.buffer_id, leases.c.consumer, leases.c.id)
sa.Index("leases_active", leases.c.buffer_id, leases.c.expires)

waiters = sa.Table(
    "waiters",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer that the process waits for"),
    sa.Column("id", Integer, primary_key=True, comment="random number"),
    sa.Column("holder", Text, nullable=False, comment="process that waits"),
    sa.Column("since", Real, nullable=False, comment="start of the wait in Unix seconds"),
    sa.Column("what", Text, nullable=False, comment="reason for the wait"),
    sa.Column("role", Text, comment="actor or learner; NULL if unknown"),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer that the process uses"),
    sa.Column("id", Integer, primary_key=True, comment="random number"),
    sa.Column("holder", Text, nullable=False, comment="process; empty for sums of past processes"),
    sa.Column("run", Text, nullable=False, comment="run of the process"),
    sa.Column("role", Text, nullable=False, comment="actor, learner or judge"),
    sa.Column("since", Real, nullable=False, comment="first report in Unix seconds"),
    sa.Column("active", Real, nullable=False, comment="latest report in Unix seconds"),
    sa.Column("ended", Real, comment="time at which the handle was closed in Unix seconds"),
    sa.Column(
        "counts", Text, nullable=False, comment="what the process has done so far, JSON object"
    ),
    sa.Column(
        "rates",
        Text,
        nullable=False,
        comment="counts per second between the latest two reports, JSON object",
    ),
)

metrics = sa.Table(
    "metrics",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the metrics"),
    sa.Column("id", Integer, primary_key=True, comment="number of the row in its buffer"),
    sa.Column("time", Real, nullable=False, comment="time of the metrics in Unix seconds"),
    sa.Column("measurement", Text, nullable=False, comment="counters and gauges, JSON object"),
)

admissions = sa.Table(
    "admissions",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the admission"),
    sa.Column("id", Integer, primary_key=True, comment="random number"),
    sa.Column("holder", Text, nullable=False, comment="process that generates the group"),
    sa.Column(
        "policy_version",
        Integer,
        nullable=False,
        comment="policy version of the buffer when the group began",
    ),
    sa.Column("since", Real, nullable=False, comment="start of the group in Unix seconds"),
    sa.Column(
        "expires",
        Real,
        nullable=False,
        comment="time at which the admission expires in Unix seconds",
    ),
)

evictions = sa.Table(
    "evictions",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the eviction"),
    sa.Column(
        "id",
        Integer,
        primary_key=True,
        comment="random number; changes if another process takes over",
    ),
    sa.Column("holder", Text, nullable=False, comment="process that archives the steps"),
    sa.Column(
        "renewed",
        Real,
        nullable=False,
        comment="time of the last renewal in Unix seconds, by the clock of the database",
    ),
    sa.Column("file", Text, nullable=False, comment="file that the steps are archived to"),
    sa.Column("positions", Blob, nullable=False, comment="positions to evict, encoded"),
    sa.Column(
        "committed",
        Flag,
        nullable=False,
        comment="true if the steps are deleted and only the archive draft has them",
    ),
)


def active_lease_condition(now: str) -> str:
    """Return the SQL condition for a lease that has not ended and expires after `now`."""
    return f"status = 'leased' AND expires > {now}"


def expired_lease_condition(now: str) -> str:
    """Return the SQL condition for a lease that has not ended but expired before `now`."""
    return f"status = 'leased' AND expires <= {now}"
