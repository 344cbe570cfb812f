"""The tables as SQLAlchemy sees them, for queries.

`migrations/` creates them; tests compare both.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from expdb.names import EPISODE_COLUMNS, SCORE, STEP_COLUMNS

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Blob = sa.LargeBinary()
Priorities = sa.LargeBinary().with_variant(sa.ARRAY(sa.Double()), "postgresql")

metadata = sa.MetaData()

NamedColumn = Callable[[str], sa.Column[Any]]


def _kind(type_: Any, **options: Any) -> Callable[..., NamedColumn]:
    """Return a function that declares a column of a type with a comment."""

    def declare(comment: str, *items: Any, **others: Any) -> NamedColumn:
        return lambda name: sa.Column(name, type_, *items, comment=comment, **options, **others)

    return declare


def _table(name: str, /, *constraints: Any, **columns: NamedColumn) -> sa.Table:
    named = [declared(column) for column, declared in columns.items()]
    return sa.Table(name, metadata, *named, *constraints)


key, text_key, flag_key = (_kind(kind, primary_key=True) for kind in (Integer, Text, Flag))
integer, real, flag, text, blob, priority_values = (
    _kind(kind, nullable=False) for kind in (Integer, Real, Flag, Text, Blob, Priorities)
)
nullable_integer, nullable_real, nullable_text = map(_kind, (Integer, Real, Text))

buffers = _table(
    "buffers",
    id=key("number of the buffer", sa.Identity()),
    name=text("name of the buffer", unique=True),
    capacity=nullable_integer(
        "maximum number of steps; the oldest steps are evicted first; NULL for no limit"
    ),
    added=integer("number of positions ever assigned"),
    low=integer("every step before this position is evicted"),
    size=integer("number of steps stored"),
    holes=integer("number of deleted steps whose positions a segment still covers"),
    deleted=integer("number of steps ever deleted by a user"),
    bytes=integer("sum of the bytes of all chunks and shared values"),
    episodes_added=integer("number of episode ids ever assigned"),
    revision=integer("number of changes to stored steps and episodes"),
    priorities=integer("number of writes to the table `priorities`"),
    fields=text("name and type of each field, JSON object"),
    fields_version=integer("number of changes to `fields`"),
    policy_version=nullable_integer("current version of the policy"),
    policy_versions=nullable_text(
        "current versions of the policies of single agents, JSON object; NULL for none"
    ),
    version_labels=nullable_text(
        "policy version of each label that engines report, JSON object; NULL for none"
    ),
    rate_limiter=nullable_text("settings of the rate limiter, JSON object; NULL for none"),
    sampled=integer("number of items leased since the rate limiter was set"),
    insert_limit=nullable_integer(
        "largest value of `added` that the rate limiter allows; NULL for no limit"
    ),
    consumers_added=integer("number of consumer ids ever assigned"),
    pace=nullable_text("settings of the pace, JSON object; NULL for none"),
    admitted=integer("number of groups that have begun since the pace was set"),
    pinned=nullable_integer("steps from this position on are not evicted; NULL for none"),
    eviction=nullable_text("eviction policy, JSON object; NULL for none"),
    trigger_evicts=flag(
        "true if a trigger enforces the capacity; false if the eviction policy enforces it"
    ),
)

signatures = _table(
    "signatures",
    buffer_id=key("buffer of the signature"),
    id=key("number of the signature in its buffer"),
    schema=blob("Arrow IPC schema message of the chunks with this signature"),
    fields=text("name and type of each field, JSON object"),
    crc=integer("CRC-32 of `schema` and `fields`"),
)

episodes = _table(
    "episodes",
    sa.UniqueConstraint("buffer_id", "episode_id", name="episodes_by_episode_id"),
    sa.Index("episodes_by_task_id", "buffer_id", "task_id"),
    sa.Index("episodes_by_task_name", "buffer_id", "task_name"),
    buffer_id=key("buffer of the episode"),
    id=key("number of the episode in its buffer"),
    episode_id=text("name of the episode, unique in its buffer"),
    run=text("run that started the episode"),
    task_id=text("task of the episode"),
    task_name=nullable_text("name shared by similar tasks"),
    agent_id=text("agent that acts in the episode"),
    group_id=nullable_text("group of rollouts that the episode belongs to"),
    status=text("open, complete or aborted"),
    length=integer("number of steps written, including evicted steps"),
    episode_return=nullable_real("sum of the rewards written; NULL before the first reward"),
    policy_version=nullable_integer("policy version of all steps without their own version"),
    episode_tags=nullable_text("tags, JSON object"),
    started=real("start of the episode in Unix seconds"),
    ended=nullable_real("end of the episode in Unix seconds"),
    ordered=flag("true if steps were written in the order of `step`"),
    last_step=nullable_integer("greatest `step` written"),
    last_position=integer("newest position written; -1 before the first step"),
    tail_chunk=nullable_integer("chunk with the final observation (after the last step)"),
    tail_row=nullable_integer("row of the final observation in `tail_chunk`"),
    tail_fields=nullable_text("names of the fields of the final observation, JSON array"),
    revision=nullable_integer(
        "revision of the buffer at the last change of this row; NULL if unchanged"
    ),
    first_policy_version=nullable_integer("smallest policy version of the steps"),
    last_policy_version=nullable_integer("greatest policy version of the steps"),
    generation=integer("number of times that a writer has resumed the episode"),
    parent_episode=nullable_integer("number of the parent episode; NULL for none"),
    parent_step=nullable_integer("number of the step of the parent at which the episode begins"),
    parent_position=nullable_integer(
        "position of the last step that the episode shares with its parent; NULL for none"
    ),
    relation=nullable_text("fork, retry, subagent, continuation or compaction; NULL for none"),
    root_episode=nullable_integer(
        "number of the first episode of the tree; NULL for an episode without a parent"
    ),
    shared_steps=nullable_integer("number of steps shared with the parent; NULL for none"),
    trainable=_kind(Flag)("false if Tokens returns no rows of the episode; NULL for true"),
)

steps = _table(
    "steps",
    buffer_id=key("buffer of the step"),
    position=key("position of the step in its buffer; positions are never reused"),
    episode=integer("number of the episode"),
    step=integer("number of the step in its episode"),
    pre_agent=nullable_text("agent that acted before this step"),
    execute_time=real("time of the step in Unix seconds"),
    reward=nullable_real("reward; NULL if unknown"),
    terminated=flag("true if the episode reached a terminal state"),
    truncated=flag("true if the episode was cut off"),
    tags=nullable_text("tags, JSON object"),
    revision=nullable_integer(
        "revision of the buffer at the last change of this row; NULL if unchanged"
    ),
    policy_version=nullable_integer(
        "policy version of the step; if NULL, the version of the episode applies"
    ),
    policy_version_end=nullable_integer(
        "policy version at the end of the step; if NULL, `policy_version` applies"
    ),
    scores=nullable_text("latest score of each name, JSON object"),
    agent_id=nullable_text("agent of the step; if NULL, the agent of the episode applies"),
)
# The columns that a write inserts; only changes set `revision` and `scores`.
WRITTEN_STEP_COLUMNS = tuple(
    column.name for column in steps.columns if column.name not in ("revision", "scores")
)
# These indexes are partial in the database, such as WHERE revision IS NOT NULL. Declaring their
# conditions here would import SQLAlchemy's dialect with expdb.
sa.Index("steps_with_agent", steps.c.buffer_id, steps.c.agent_id)
sa.Index("steps_by_revision", steps.c.buffer_id, steps.c.revision)
sa.Index("episodes_incomplete", episodes.c.buffer_id, episodes.c.id)
sa.Index("episodes_by_revision", episodes.c.buffer_id, episodes.c.revision)
sa.Index("episodes_by_root", episodes.c.buffer_id, episodes.c.root_episode)

segments = _table(
    "segments",
    sa.Index("segments_by_episode", "buffer_id", "episode"),
    buffer_id=key("buffer of the segment"),
    last=key("last position of the segment, a range of adjacent steps of one episode"),
    first=integer("first position of the segment"),
    episode=integer("number of the episode"),
    ordinal=integer("number of steps of the episode written before `first`"),
    chunk=integer("chunk that stores the fields of the steps"),
    chunk_row=integer("row of the first step in the chunk"),
)

chunks = _table(
    "chunks",
    buffer_id=key("buffer of the chunk"),
    id=key("last position in the chunk"),
    first=integer("first position in the chunk"),
    episode=nullable_integer(
        "number of the episode if all steps belong to one episode, otherwise NULL"
    ),
    rows=integer("number of rows, including a final observation"),
    signature=integer("signature that describes the fields"),
    bytes=integer("size of `data`"),
    crc=integer("checksum of `data`, `rows`, `id`, buffer and signature"),
    write_id=nullable_text("id of the write on PostgreSQL; detects a write that is sent twice"),
    data=blob("Arrow IPC record-batch message"),
)

shared_values = _table(
    "shared_values",
    buffer_id=key("buffer of the value"),
    digest=_kind(Blob, primary_key=True)("BLAKE2b hash of the value, 20 bytes"),
    crc=integer("CRC-32 of `digest` and `data`"),
    data=blob("value, compressed like a buffer of a chunk"),
)

value_references = _table(
    "value_references",
    sa.Index("value_references_by_digest", "buffer_id", "digest", "chunk"),
    buffer_id=key("buffer of the chunk"),
    chunk=key("chunk that refers to the value"),
    digest=_kind(Blob, primary_key=True)("digest of the value"),
)

priorities = _table(
    "priorities",
    buffer_id=key("buffer of the priorities"),
    block=key("number of a block of 1,024 positions"),
    version=integer("value of `buffers.priorities` at the last write to this block"),
    data=priority_values("1,024 priorities, float64"),
)

scores = _table(
    "scores",
    sa.Index("scores_by_episode", "buffer_id", "episode"),
    buffer_id=key("buffer of the score"),
    id=key("number of the score in its buffer"),
    episode=integer("number of the episode"),
    position=nullable_integer("position of the step; NULL for the whole episode"),
    name=text("name of the score, such as judge"),
    value=nullable_real("value of the score; NULL if the judge failed"),
    scored_by=nullable_text("who gave the score, such as a version of a judge"),
    status=nullable_text("outcome of the judge, such as timeout"),
    detail=nullable_text("other information about the score, JSON object"),
    scored=real("time of the score in Unix seconds"),
)

annotations = _table(
    "annotations",
    buffer_id=key("buffer of the annotation"),
    position=key("position of the step"),
    name=text_key("name of the annotation"),
    version=key("version; -1 for none"),
    shape=text("shape of the array, JSON array"),
    crc=integer("CRC-32 of `data`"),
    data=blob("values of the array, little-endian"),
)

rollout_groups = _table(
    "rollout_groups",
    buffer_id=key("buffer of the group"),
    name=text_key("`group_id`, or `task_id` if `is_task`"),
    is_task=flag_key("true for episodes without a `group_id`"),
    task_id=text("smallest `task_id` of the episodes"),
    first_episode=integer("number of the first episode"),
    episodes=integer("number of episodes in the buffer"),
    complete=integer("number of complete episodes, even if evicted"),
)

imports = _table(
    "imports", buffer_id=key("buffer of the record"),
    record=text_key("id of the imported record, or a hash of its content"),
    digest=blob("BLAKE2b hash of the content, 16 bytes"),
    episode=integer("number of the episode of the record"),
)  # fmt: skip

consumers = _table(
    "consumers",
    sa.Index("consumers_by_name", "buffer_id", "name", unique=True),
    buffer_id=key("buffer of the consumer"),
    id=key("number of the consumer in its buffer"),
    name=text("name of the consumer"),
    settings=text("limits and seed, JSON object"),
    began=integer("position of the next step when the consumer was created"),
    version=integer("number of changes to leases of the consumer"),
    handed_out=integer("number of leases ever created"),
    begun=integer("number of batches ever leased; a batch that is drawn again counts once"),
    acknowledged=integer("number of leases ever acknowledged"),
    last_step=nullable_integer("trainer step of the latest acknowledgement"),
    rewinds=integer("number of times it was rewound"),
)

requests = _table(
    "requests",
    buffer_id=key("buffer of the request"),
    id=key("number of the request in its buffer"),
    request=text("arguments of `lease`, JSON object"),
)

leases = _table(
    "leases",
    buffer_id=key("buffer of the lease"),
    consumer=key("number of the consumer"),
    id=key("number of the lease of its consumer"),
    number=integer("number of the batch; a released batch is drawn again with the same number"),
    status=text(
        "leased, acknowledged, returned (released), or repeated (released and drawn again)"
    ),
    request=integer("number of the request"),
    holder=text("process that has the lease"),
    leased=real("start of the lease in Unix seconds"),
    expires=real("time at which the lease expires in Unix seconds"),
    ended=nullable_real("time of the acknowledgement or release in Unix seconds"),
    acknowledged=nullable_integer("number of leases that were acknowledged before this lease"),
    trainer_step=nullable_integer("trainer step that the learner passed when it acknowledged"),
    policy_version=nullable_integer("policy version of the buffer when the lease was created"),
    rows=integer("number of leased items"),
    first=integer("smallest drawn position"),
    last=integer("greatest drawn position"),
    positions=blob("drawn positions, encoded"),
    columns=blob("columns that the sampler added, encoded"),
    checksum=integer("CRC-32 of the steps in the batch and of their columns that may change"),
    crc=integer("CRC-32 of `number`, `request`, `positions` and `columns`"),
    pinned=nullable_integer("steps from this position on are not evicted; NULL for none"),
)
# These indexes are partial: they contain only leases that are active or may be drawn again.
sa.Index("leases_open", leases.c.buffer_id, leases.c.consumer, leases.c.id)
sa.Index("leases_active", leases.c.buffer_id, leases.c.expires)

waiters = _table(
    "waiters",
    buffer_id=key("buffer that the process waits for"),
    id=key("random number"),
    holder=text("process that waits"),
    since=real("start of the wait in Unix seconds"),
    what=text("reason for the wait"),
    role=nullable_text("actor or learner; NULL if unknown"),
)

workers = _table(
    "workers",
    buffer_id=key("buffer that the process uses"),
    id=key("random number"),
    holder=text("process; empty for sums of past processes"),
    run=text("run of the process"),
    role=text("actor, learner or judge"),
    since=real("first report in Unix seconds"),
    active=real("latest report in Unix seconds"),
    ended=nullable_real("time at which the handle was closed in Unix seconds"),
    counts=text("what the process has done so far, JSON object"),
    rates=text("counts per second between the latest two reports, JSON object"),
)

metrics = _table(
    "metrics",
    buffer_id=key("buffer of the metrics"),
    id=key("number of the row in its buffer"),
    time=real("time of the metrics in Unix seconds"),
    measurement=text("counters and gauges, JSON object"),
)

admissions = _table(
    "admissions",
    buffer_id=key("buffer of the admission"),
    id=key("random number"),
    holder=text("process that generates the group"),
    policy_version=integer("policy version of the buffer when the group began"),
    since=real("start of the group in Unix seconds"),
    expires=real("time at which the admission expires in Unix seconds"),
)

evictions = _table(
    "evictions",
    buffer_id=key("buffer of the eviction"),
    id=key("random number; changes if another process takes over"),
    holder=text("process that archives the steps"),
    renewed=real("time of the last renewal in Unix seconds, by the clock of the database"),
    file=text("file that the steps are archived to"),
    positions=blob("positions to evict, encoded"),
    committed=flag("true if the steps are deleted and only the archive draft has them"),
)

# The tables with rows of buffers, in the order in which rows can be deleted.
LEDGER = (metrics, workers, evictions, admissions, waiters, leases, requests, consumers)
EXPERIENCE = (
    annotations, scores, priorities, steps, segments, chunks, shared_values, value_references,
    episodes, rollout_groups, imports,
)  # fmt: skip
OF_BUFFERS = (*LEDGER, *EXPERIENCE, signatures)


def bound(value: Any) -> sa.ColumnElement[Any]:
    """Return a bound parameter whose SQL type is that of the value.

    With the type of an integer column, 0.5 would be truncated.
    """
    number: Any = Integer if isinstance(value, int) else Real
    return sa.literal(value, sa.Text() if isinstance(value, str) else number)


# The condition on a row of `episodes` that counts as a rollout of its group.
IS_ROLLOUT = "coalesce(relation, 'fork') IN ('fork', 'retry')"


def active_lease_condition(now: str) -> str:
    """Return the SQL condition for a lease that has not ended and expires after `now`."""
    return f"status = 'leased' AND expires > {now}"


def expired_lease_condition(now: str) -> str:
    """Return the SQL condition for a lease that has not ended but expired before `now`."""
    return f"status = 'leased' AND expires <= {now}"


class _ByDialect(sa.sql.functions.FunctionElement[float]):
    """A function with a template for each dialect."""

    inherit_cache = True
    type = Real
    sqlite: ClassVar[str]
    postgresql: ClassVar[str]


@compiles(_ByDialect)
def _fill_template(element: _ByDialect, compiler: Any, **options: Any) -> str:
    clauses = [compiler.process(clause, **options) for clause in element.clauses]
    template: str = getattr(element, compiler.dialect.name)
    return template.format(*clauses, unquoted=clauses[1][1:-1])


class _PriorityAt(_ByDialect):
    """The priority of a position in its block; NULL for none."""

    inherit_cache = True
    # A function of expdb's connections: see sqlite/connection.py.
    sqlite = "expdb_priority(substr({0}, 1 + 8 * ({1} & 1023), 8))"
    postgresql = "nullif({0}[({1} & 1023) + 1], 'NaN')"


priority = (
    sa.select(_PriorityAt(priorities.c.data, steps.c.position))
    .where(
        priorities.c.buffer_id == steps.c.buffer_id,
        priorities.c.block == steps.c.position.bitwise_rshift(sa.literal_column("10")),
    )
    .correlate(steps)
    .scalar_subquery()
)


class _ScoreAt(_ByDialect):
    """The latest score of a name in a JSON object of scores; NULL for none.

    The name is part of the statement, because an index on an expression is used only for exactly
    the same expression.
    """

    inherit_cache = True
    sqlite = "json_extract({0}, '$.\"{unquoted}\"')"
    postgresql = "((({0})::jsonb ->> {1})::float8)"


class _ScoreOrFailure(_ByDialect):
    """As `_ScoreAt`, but negative infinity if a judge failed and no judge gave a score."""

    inherit_cache = True
    sqlite = (
        "CASE json_type({0}, '$.\"{unquoted}\"') WHEN 'null' THEN -9e999 "
        f"ELSE {_ScoreAt.sqlite} END"
    )
    postgresql = (
        "(CASE jsonb_typeof(({0})::jsonb -> {1}) WHEN 'null' THEN '-Infinity'::float8 "
        f"ELSE {_ScoreAt.postgresql} END)"
    )


def _quoted(name: str) -> sa.ColumnElement[Any]:
    return sa.literal_column(f"'{name}'")  # consists of letters, digits and _


def score_of_episode(name: str) -> sa.ColumnElement[Any]:
    """Return the score of the last step of an episode; negative infinity if a judge failed."""
    return (
        sa.select(_ScoreOrFailure(steps.c.scores, _quoted(name)))
        .where(steps.c.buffer_id == episodes.c.buffer_id)
        .where(steps.c.position == episodes.c.last_position)
        .correlate(episodes)
        .scalar_subquery()
    )


# Join conditions. The segments of an episode are the ranges of positions of its steps.
OF_EPISODE = sa.and_(
    segments.c.buffer_id == episodes.c.buffer_id, segments.c.episode == episodes.c.id
)
IN_RANGE = sa.and_(
    steps.c.buffer_id == segments.c.buffer_id,
    steps.c.position.between(segments.c.first, segments.c.last),
)
# The range implies the episode, but naming it keeps planners that begin with the steps from
# comparing every step with every segment.
IN_SEGMENT = sa.and_(IN_RANGE, steps.c.episode == segments.c.episode)
STEPS_OF_SEGMENTS = segments.join(steps, IN_SEGMENT)
SEGMENTS_OF_EPISODES = episodes.join(segments, OF_EPISODE)
STEPS_OF_EPISODES = SEGMENTS_OF_EPISODES.join(steps, IN_SEGMENT)


# Columns of a step that default to those of its episode.
_OF_BOTH = {
    "agent_id": sa.func.coalesce(steps.c.agent_id, episodes.c.agent_id),
    "policy_version": sa.func.coalesce(steps.c.policy_version, episodes.c.policy_version),
    "policy_version_end": sa.func.coalesce(
        steps.c.policy_version_end, steps.c.policy_version, episodes.c.policy_version
    ),
}


class ViewColumn(NamedTuple):
    """A column of the view `experience`, and the tables that it comes from."""

    sql: sa.ColumnElement[Any]
    of_steps: bool
    of_episodes: bool


# The columns of the view `experience_episodes` that describe an episode.
OF_EPISODES: dict[str, sa.ColumnElement[Any]] = {
    **{name: episodes.c[name] for name in EPISODE_COLUMNS},
    "root_episode": sa.func.coalesce(episodes.c.root_episode, episodes.c.id).label("root_episode"),
    "trainable": sa.func.coalesce(
        episodes.c.trainable, sa.literal_column("true"), type_=Flag
    ).label("trainable"),
}
# SQL of the columns that are computed from those of the table.
COMPUTED_SQL = {
    "root_episode": "coalesce(root_episode, id)", "trainable": "coalesce(trainable, true)",
}  # fmt: skip


def _view() -> Iterator[tuple[str, ViewColumn]]:
    for name, column in OF_EPISODES.items():
        yield name, ViewColumn(column, False, True)
    for name in STEP_COLUMNS:
        own = priority if name == "priority" else steps.c[name]
        yield name, ViewColumn(_OF_BOTH.get(name, own), True, name in _OF_BOTH)


VIEW = dict(_view())  # its columns by name


def view_column(name: str) -> ViewColumn | None:
    """Return a column of the view `experience`, or the score that `scores.<name>` names, if any."""
    score = SCORE.fullmatch(name)
    if score is None:
        return VIEW.get(name)
    return ViewColumn(_ScoreAt(steps.c.scores, _quoted(score[1])), True, False)
