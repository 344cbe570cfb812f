"""The tables as SQLAlchemy sees them, for queries.

`migrations/` creates them; tests compare both.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from expdb.names import EPISODE_COLUMNS, SCORE, STEP_COLUMNS
from expdb.sql.column_types import Blob, Flag, Integer, Real, Text, metadata
from expdb.sql.ledger_tables import admissions as admissions
from expdb.sql.ledger_tables import consumers as consumers
from expdb.sql.ledger_tables import evictions as evictions
from expdb.sql.ledger_tables import leases as leases
from expdb.sql.ledger_tables import metrics as metrics
from expdb.sql.ledger_tables import requests as requests
from expdb.sql.ledger_tables import waiters as waiters
from expdb.sql.ledger_tables import workers as workers

buffers = sa.Table(
    "buffers",
    metadata,
    sa.Column("id", Integer, sa.Identity(), primary_key=True, comment="number of the buffer"),
    sa.Column("name", Text, nullable=False, unique=True, comment="name of the buffer"),
    sa.Column(
        "capacity",
        Integer,
        comment="maximum number of steps; the oldest steps are evicted first; NULL for no limit",
    ),
    sa.Column("added", Integer, nullable=False, comment="number of positions ever assigned"),
    sa.Column("low", Integer, nullable=False, comment="every step before this position is evicted"),
    sa.Column("size", Integer, nullable=False, comment="number of steps stored"),
    sa.Column(
        "holes",
        Integer,
        nullable=False,
        comment="number of deleted steps whose positions a segment still covers",
    ),
    sa.Column("deleted", Integer, nullable=False, comment="number of steps ever deleted by a user"),
    sa.Column("bytes", Integer, nullable=False, comment="sum of the bytes of all chunks"),
    sa.Column(
        "episodes_added", Integer, nullable=False, comment="number of episode ids ever assigned"
    ),
    sa.Column(
        "revision",
        Integer,
        nullable=False,
        comment="number of changes to stored steps and episodes",
    ),
    sa.Column(
        "priorities", Integer, nullable=False, comment="number of writes to the table `priorities`"
    ),
    sa.Column("fields", Text, nullable=False, comment="name and type of each field, JSON object"),
    sa.Column("fields_version", Integer, nullable=False, comment="number of changes to `fields`"),
    sa.Column("policy_version", Integer, comment="current version of the policy"),
    sa.Column(
        "policy_versions",
        Text,
        comment="current versions of the policies of single agents, JSON object; NULL for none",
    ),
    sa.Column(
        "rate_limiter", Text, comment="settings of the rate limiter, JSON object; NULL for none"
    ),
    sa.Column(
        "sampled",
        Integer,
        nullable=False,
        comment="number of items leased since the rate limiter was set",
    ),
    sa.Column(
        "insert_limit",
        Integer,
        comment="largest value of `added` that the rate limiter allows; NULL for no limit",
    ),
    sa.Column(
        "consumers_added", Integer, nullable=False, comment="number of consumer ids ever assigned"
    ),
    sa.Column("pace", Text, comment="settings of the pace, JSON object; NULL for none"),
    sa.Column(
        "admitted",
        Integer,
        nullable=False,
        comment="number of groups that have begun since the pace was set",
    ),
    sa.Column(
        "pinned", Integer, comment="steps from this position on are not evicted; NULL for none"
    ),
    sa.Column("eviction", Text, comment="eviction policy, JSON object; NULL for none"),
    sa.Column(
        "trigger_evicts",
        Flag,
        nullable=False,
        comment="true if a trigger enforces the capacity; false if the eviction policy enforces it",
    ),
)

signatures = sa.Table(
    "signatures",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the signature"),
    sa.Column("id", Integer, primary_key=True, comment="number of the signature in its buffer"),
    sa.Column(
        "schema",
        Blob,
        nullable=False,
        comment="Arrow IPC schema message of the chunks with this signature",
    ),
    sa.Column("fields", Text, nullable=False, comment="name and type of each field, JSON object"),
    sa.Column("crc", Integer, nullable=False, comment="CRC-32 of `schema` and `fields`"),
)

episodes = sa.Table(
    "episodes",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the episode"),
    sa.Column("id", Integer, primary_key=True, comment="number of the episode in its buffer"),
    sa.Column(
        "episode_id", Text, nullable=False, comment="name of the episode, unique in its buffer"
    ),
    sa.Column("run", Text, nullable=False, comment="run that started the episode"),
    sa.Column("task_id", Text, nullable=False, comment="task of the episode"),
    sa.Column("task_name", Text, comment="name shared by similar tasks"),
    sa.Column("agent_id", Text, nullable=False, comment="agent that acts in the episode"),
    sa.Column("group_id", Text, comment="group of rollouts that the episode belongs to"),
    sa.Column("status", Text, nullable=False, comment="open, complete or aborted"),
    sa.Column(
        "length",
        Integer,
        nullable=False,
        comment="number of steps written, including evicted steps",
    ),
    sa.Column(
        "episode_return", Real, comment="sum of the rewards written; NULL before the first reward"
    ),
    sa.Column(
        "policy_version", Integer, comment="policy version of all steps without their own version"
    ),
    sa.Column("episode_tags", Text, comment="tags, JSON object"),
    sa.Column("started", Real, nullable=False, comment="start of the episode in Unix seconds"),
    sa.Column("ended", Real, comment="end of the episode in Unix seconds"),
    sa.Column(
        "ordered", Flag, nullable=False, comment="true if steps were written in the order of `step`"
    ),
    sa.Column("last_step", Integer, comment="greatest `step` written"),
    sa.Column(
        "last_position",
        Integer,
        nullable=False,
        comment="newest position written; -1 before the first step",
    ),
    sa.Column(
        "tail_chunk", Integer, comment="chunk with the final observation (after the last step)"
    ),
    sa.Column("tail_row", Integer, comment="row of the final observation in `tail_chunk`"),
    sa.Column(
        "tail_fields", Text, comment="names of the fields of the final observation, JSON array"
    ),
    sa.Column(
        "revision",
        Integer,
        comment="revision of the buffer at the last change of this row; NULL if unchanged",
    ),
    sa.Column("first_policy_version", Integer, comment="smallest policy version of the steps"),
    sa.Column("last_policy_version", Integer, comment="greatest policy version of the steps"),
    sa.Column(
        "generation",
        Integer,
        nullable=False,
        comment="number of times that a writer has resumed the episode",
    ),
    sa.UniqueConstraint("buffer_id", "episode_id", name="episodes_by_episode_id"),
    sa.Index("episodes_by_task_id", "buffer_id", "task_id"),
    sa.Index("episodes_by_task_name", "buffer_id", "task_name"),
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the step"),
    sa.Column(
        "position",
        Integer,
        primary_key=True,
        comment="position of the step in its buffer; positions are never reused",
    ),
    sa.Column("episode", Integer, nullable=False, comment="number of the episode"),
    sa.Column("step", Integer, nullable=False, comment="number of the step in its episode"),
    sa.Column("pre_agent", Text, comment="agent that acted before this step"),
    sa.Column("execute_time", Real, nullable=False, comment="time of the step in Unix seconds"),
    sa.Column("reward", Real, comment="reward; NULL if unknown"),
    sa.Column(
        "terminated", Flag, nullable=False, comment="true if the episode reached a terminal state"
    ),
    sa.Column("truncated", Flag, nullable=False, comment="true if the episode was cut off"),
    sa.Column("tags", Text, comment="tags, JSON object"),
    sa.Column(
        "revision",
        Integer,
        comment="revision of the buffer at the last change of this row; NULL if unchanged",
    ),
    sa.Column(
        "policy_version",
        Integer,
        comment="policy version of the step; if NULL, the version of the episode applies",
    ),
    sa.Column(
        "policy_version_end",
        Integer,
        comment="policy version at the end of the step; if NULL, `policy_version` applies",
    ),
    sa.Column("scores", Text, comment="latest score of each name, JSON object"),
    sa.Column(
        "agent_id", Text, comment="agent of the step; if NULL, the agent of the episode applies"
    ),
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

segments = sa.Table(
    "segments",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the segment"),
    sa.Column(
        "last",
        Integer,
        primary_key=True,
        comment="last position of the segment, a range of adjacent steps of one episode",
    ),
    sa.Column("first", Integer, nullable=False, comment="first position of the segment"),
    sa.Column("episode", Integer, nullable=False, comment="number of the episode"),
    sa.Column(
        "ordinal",
        Integer,
        nullable=False,
        comment="number of steps of the episode written before `first`",
    ),
    sa.Column(
        "chunk", Integer, nullable=False, comment="chunk that stores the fields of the steps"
    ),
    sa.Column("chunk_row", Integer, nullable=False, comment="row of the first step in the chunk"),
    sa.Index("segments_by_episode", "buffer_id", "episode"),
)

chunks = sa.Table(
    "chunks",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the chunk"),
    sa.Column("id", Integer, primary_key=True, comment="last position in the chunk"),
    sa.Column("first", Integer, nullable=False, comment="first position in the chunk"),
    sa.Column(
        "episode",
        Integer,
        comment="number of the episode if all steps belong to one episode, otherwise NULL",
    ),
    sa.Column(
        "rows", Integer, nullable=False, comment="number of rows, including a final observation"
    ),
    sa.Column("signature", Integer, nullable=False, comment="signature that describes the fields"),
    sa.Column("bytes", Integer, nullable=False, comment="size of `data`"),
    sa.Column(
        "crc",
        Integer,
        nullable=False,
        comment="checksum of `data`, `rows`, `id`, buffer and signature",
    ),
    sa.Column(
        "write_id",
        Text,
        comment="id of the write on PostgreSQL; detects a write that is sent twice",
    ),
    sa.Column("data", Blob, nullable=False, comment="Arrow IPC record-batch message"),
)

priorities = sa.Table(
    "priorities",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the priorities"),
    sa.Column("block", Integer, primary_key=True, comment="number of a block of 1,024 positions"),
    sa.Column(
        "version",
        Integer,
        nullable=False,
        comment="value of `buffers.priorities` at the last write to this block",
    ),
    sa.Column(
        "data",
        sa.LargeBinary().with_variant(sa.ARRAY(sa.Double()), "postgresql"),
        nullable=False,
        comment="1,024 priorities, float64",
    ),
)

scores = sa.Table(
    "scores",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the score"),
    sa.Column("id", Integer, primary_key=True, comment="number of the score in its buffer"),
    sa.Column("episode", Integer, nullable=False, comment="number of the episode"),
    sa.Column("position", Integer, comment="position of the step; NULL for the whole episode"),
    sa.Column("name", Text, nullable=False, comment="name of the score, such as judge"),
    sa.Column("value", Real, comment="value of the score; NULL if the judge failed"),
    sa.Column("scored_by", Text, comment="who gave the score, such as a version of a judge"),
    sa.Column("status", Text, comment="outcome of the judge, such as timeout"),
    sa.Column("detail", Text, comment="other information about the score, JSON object"),
    sa.Column("scored", Real, nullable=False, comment="time of the score in Unix seconds"),
    sa.Index("scores_by_episode", "buffer_id", "episode"),
)

annotations = sa.Table(
    "annotations",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the annotation"),
    sa.Column("position", Integer, primary_key=True, comment="position of the step"),
    sa.Column("name", Text, primary_key=True, comment="name of the annotation"),
    sa.Column("version", Integer, primary_key=True, comment="version; -1 for none"),
    sa.Column("shape", Text, nullable=False, comment="shape of the array, JSON array"),
    sa.Column("crc", Integer, nullable=False, comment="CRC-32 of `data`"),
    sa.Column("data", Blob, nullable=False, comment="values of the array, little-endian"),
)

rollout_groups = sa.Table(
    "rollout_groups",
    metadata,
    sa.Column("buffer_id", Integer, primary_key=True, comment="buffer of the group"),
    sa.Column("name", Text, primary_key=True, comment="`group_id`, or `task_id` if `is_task`"),
    sa.Column("is_task", Flag, primary_key=True, comment="true for episodes without a `group_id`"),
    sa.Column("task_id", Text, nullable=False, comment="smallest `task_id` of the episodes"),
    sa.Column("first_episode", Integer, nullable=False, comment="number of the first episode"),
    sa.Column("episodes", Integer, nullable=False, comment="number of episodes in the buffer"),
    sa.Column(
        "complete", Integer, nullable=False, comment="number of complete episodes, even if evicted"
    ),
)

# The tables with rows of buffers, in the order in which rows can be deleted.
LEDGER = (metrics, workers, evictions, admissions, waiters, leases, requests, consumers)
EXPERIENCE = (annotations, scores, priorities, steps, segments, chunks, episodes, rollout_groups)
OF_BUFFERS = (*LEDGER, *EXPERIENCE, signatures)


class _PriorityAt(sa.sql.functions.FunctionElement[float]):
    """The priority of a position in its block; NULL for none."""

    inherit_cache = True
    type = Real


@compiles(_PriorityAt, "sqlite")
def _priority_on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    # A function of expdb's connections: see sqlite/connection.py.
    data, position = (compiler.process(clause, **options) for clause in element.clauses)
    return f"expdb_priority(substr({data}, 1 + 8 * ({position} & 1023), 8))"


@compiles(_PriorityAt, "postgresql")
def _priority_on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    data, position = (compiler.process(clause, **options) for clause in element.clauses)
    return f"nullif({data}[({position} & 1023) + 1], 'NaN')"


priority = (
    sa.select(_PriorityAt(priorities.c.data, steps.c.position))
    .where(
        priorities.c.buffer_id == steps.c.buffer_id,
        priorities.c.block == steps.c.position.bitwise_rshift(sa.literal_column("10")),
    )
    .correlate(steps)
    .scalar_subquery()
)


class _ScoreAt(sa.sql.functions.FunctionElement[float]):
    """The latest score of a name in a JSON object of scores; NULL for none.

    The name is part of the statement, because an index on an expression is used only for exactly
    the same expression.
    """

    inherit_cache = True
    type = Real


class _ScoreOrFailure(_ScoreAt):
    """As `_ScoreAt`, but negative infinity if a judge failed and no judge gave a score."""

    inherit_cache = True


@compiles(_ScoreAt, "sqlite")
def _score_on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    scores, name = (compiler.process(clause, **options) for clause in element.clauses)
    return f"json_extract({scores}, '$.\"{name[1:-1]}\"')"


@compiles(_ScoreAt, "postgresql")
def _score_on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    scores, name = (compiler.process(clause, **options) for clause in element.clauses)
    return f"((({scores})::jsonb ->> {name})::float8)"


@compiles(_ScoreOrFailure, "sqlite")
def _score_or_failure_on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    scores, name = (compiler.process(clause, **options) for clause in element.clauses)
    value = _score_on_sqlite(element, compiler, **options)
    kind = f"json_type({scores}, '$.\"{name[1:-1]}\"')"
    return f"CASE {kind} WHEN 'null' THEN -9e999 ELSE {value} END"


@compiles(_ScoreOrFailure, "postgresql")
def _score_or_failure_on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    scores, name = (compiler.process(clause, **options) for clause in element.clauses)
    value = _score_on_postgresql(element, compiler, **options)
    kind = f"jsonb_typeof(({scores})::jsonb -> {name})"
    return f"(CASE {kind} WHEN 'null' THEN '-Infinity'::float8 ELSE {value} END)"


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


# Join conditions. Segments connect episodes and steps, so the steps of an episode are ranges of
# positions.
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


def _view() -> Iterator[tuple[str, ViewColumn]]:
    for name in EPISODE_COLUMNS:
        yield name, ViewColumn(episodes.c[name], False, True)
    for name in STEP_COLUMNS:
        if name in _OF_BOTH:
            yield name, ViewColumn(_OF_BOTH[name], True, True)
        else:
            yield name, ViewColumn(priority if name == "priority" else steps.c[name], True, False)


VIEW = dict(_view())  # its columns by name


def view_column(name: str) -> ViewColumn | None:
    """Return a column of the view `experience`, or the score that `scores.<name>` names, if any."""
    score = SCORE.fullmatch(name)
    if score is None:
        return VIEW.get(name)
    return ViewColumn(_ScoreAt(steps.c.scores, _quoted(score[1])), True, False)
