"""Buffers, episodes, steps, segments and chunks; the view `experience`; the triggers that keep capacity and books.

Rows say what happened, chunks hold what was seen. `expdb/sql/tables.py` says what every column means.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# STRICT tables of SQLite know five type names only.
Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.REAL(), "sqlite")
Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")  # text compares by code point, as on SQLite
Blob = sa.LargeBinary()
Priorities = sa.LargeBinary().with_variant(sa.ARRAY(sa.Double()), "postgresql")

CLUSTERED = {"sqlite_strict": True, "sqlite_with_rowid": False}

VIEW = """
CREATE VIEW experience AS
SELECT b.name AS buffer, s.position, s.episode, e.episode_id, e.run, e.task_id, e.task_name, e.agent_id, e.group_id,
       e.status, e.length, e.episode_return, e.policy_version, {episode_tags} AS episode_tags, e.started, e.ended,
       s.step, s.pre_agent, s.execute_time, s.reward, s.terminated, s.truncated,
       (SELECT p.priority FROM step_priorities p WHERE p.buffer_id = s.buffer_id AND p.position = s.position) AS priority,
       {step_tags} AS tags,
       g.buffer_id || ':' || g.chunk || ':' || (g.chunk_row + s.position - g.first) AS payload
FROM buffers b
JOIN episodes e ON e.buffer_id = b.id
JOIN segments g ON g.buffer_id = e.buffer_id AND g.episode = e.id
JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last AND s.episode = e.id
"""

# The priority of each step that has one, out of its block of 1,024. SQLite has no way to read a float64 from a blob, so
# its bits are taken from the hexadecimal digits, and the number is made of them as IEEE 754 says; exactly, as it scales
# by powers of two only. PostgreSQL keeps the block as an array. NaN stands for none.
_BITS = " | ".join(
    f"((instr('0123456789ABCDEF', substr(digits, {k + 1}, 1)) - 1) << {4 * (15 - k)})" for k in range(16)
)
_POWERS = [f"{2.0 ** (1 << k)}" if k < 5 else " * ".join(["4294967296.0"] * (1 << k - 5)) for k in range(10)]
_SCALE = " * ".join(f"(CASE WHEN abs(power) & {1 << k} THEN {power} ELSE 1.0 END)" for k, power in enumerate(_POWERS))
SQLITE_PRIORITIES = f"""
CREATE VIEW step_priorities AS
SELECT buffer_id, position, CASE WHEN power < 0 THEN whole / ({_SCALE}) ELSE whole * ({_SCALE}) END AS priority
FROM (SELECT buffer_id, position,
             CASE WHEN bits >> 52 THEN (bits & 4503599627370495 | 4503599627370496) / 4503599627370496.0
                  ELSE (bits & 4503599627370495) / 4503599627370496.0 * 2.0 END AS whole,
             (bits >> 52) - 1023 AS power
      FROM (SELECT buffer_id, position, {_BITS} AS bits
            FROM (SELECT s.buffer_id, s.position, hex(substr(p.data, 1 + 8 * (s.position & 1023), 8)) AS digits
                  FROM steps s JOIN priorities p ON p.buffer_id = s.buffer_id AND p.block = s.position >> 10)
            WHERE digits <> '7FF8000000000000'))
"""
POSTGRESQL_PRIORITIES = """
CREATE VIEW step_priorities AS
SELECT s.buffer_id, s.position, p.data[(s.position & 1023) + 1] AS priority
FROM steps s JOIN priorities p ON p.buffer_id = s.buffer_id AND p.block = s.position >> 10
WHERE p.data[(s.position & 1023) + 1] <> 'NaN'
"""

SQLITE_TRIGGERS = {
    # Capacity. Evicts the oldest steps, exactly as many as are over, whatever gaps `delete` left; then what only they
    # needed. `low` moves first, so that `steps_deleted` does not count the evicted rows once more. The OFFSET walks
    # over no more rows than are evicted.
    "buffers_capacity": """
        CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity ON buffers
        WHEN NEW.size > NEW.capacity
        BEGIN
            UPDATE buffers SET low = (SELECT position FROM steps WHERE buffer_id = NEW.id
                                      ORDER BY position LIMIT 1 OFFSET NEW.size - NEW.capacity)
             WHERE id = NEW.id;
            DELETE FROM steps
             WHERE buffer_id = NEW.id AND position < (SELECT low FROM buffers WHERE id = NEW.id);
            DELETE FROM episodes
             WHERE buffer_id = NEW.id AND status <> 'open'
               AND last_position < (SELECT low FROM buffers WHERE id = NEW.id)
               AND id IN (SELECT episode FROM segments WHERE buffer_id = NEW.id
                          AND last < (SELECT low FROM buffers WHERE id = NEW.id));
            DELETE FROM segments
             WHERE buffer_id = NEW.id AND last < (SELECT low FROM buffers WHERE id = NEW.id);
            DELETE FROM chunks
             WHERE buffer_id = NEW.id AND id < (SELECT low FROM buffers WHERE id = NEW.id);
            DELETE FROM priorities
             WHERE buffer_id = NEW.id AND block < (SELECT low FROM buffers WHERE id = NEW.id) >> 10;
            UPDATE buffers SET size = NEW.capacity, holes = CASE WHEN added - low = NEW.capacity THEN 0 ELSE holes END
             WHERE id = NEW.id;
        END
    """,
    # Steps deleted on purpose, by expdb or by hand, leave the count.
    "steps_deleted": """
        CREATE TRIGGER steps_deleted AFTER DELETE ON steps
        WHEN OLD.position >= (SELECT low FROM buffers WHERE id = OLD.buffer_id)
        BEGIN
            UPDATE buffers SET size = size - 1, holes = holes + 1, deleted = deleted + 1, revision = revision + 1
             WHERE id = OLD.buffer_id;
        END
    """,
    "chunks_deleted": """
        CREATE TRIGGER chunks_deleted AFTER DELETE ON chunks
        BEGIN
            UPDATE buffers SET bytes = bytes - OLD.bytes WHERE id = OLD.buffer_id;
        END
    """,
    # What a query can filter by has changed; `revision` of the row says which rows to read again.
    "steps_revised": """
        CREATE TRIGGER steps_revised
        AFTER UPDATE OF step, pre_agent, execute_time, reward, terminated, truncated, tags ON steps
        BEGIN
            UPDATE buffers SET revision = revision + 1 WHERE id = NEW.buffer_id;
            UPDATE steps SET revision = (SELECT revision FROM buffers WHERE id = NEW.buffer_id)
             WHERE buffer_id = NEW.buffer_id AND position = NEW.position;
        END
    """,
    "steps_rewarded": """
        CREATE TRIGGER steps_rewarded AFTER UPDATE OF reward ON steps
        WHEN NEW.reward IS NOT OLD.reward
        BEGIN
            UPDATE episodes
               SET episode_return = coalesce(episode_return, 0) + coalesce(NEW.reward, 0) - coalesce(OLD.reward, 0)
             WHERE buffer_id = NEW.buffer_id AND id = NEW.episode;
        END
    """,
    # Appending changes `length` and `episode_return` as well; new steps tell of that by themselves.
    "episodes_revised": """
        CREATE TRIGGER episodes_revised
        AFTER UPDATE OF episode_id, run, task_id, task_name, agent_id, group_id, policy_version, episode_tags, started,
                        status, length, episode_return, ended ON episodes
        WHEN NEW.last_position = OLD.last_position
             AND (NEW.status <> OLD.status OR NEW.length <> OLD.length OR NEW.episode_return IS NOT OLD.episode_return
                  OR NEW.ended IS NOT OLD.ended)
             OR NEW.episode_id <> OLD.episode_id OR NEW.run <> OLD.run OR NEW.task_id <> OLD.task_id
             OR NEW.task_name IS NOT OLD.task_name OR NEW.agent_id <> OLD.agent_id OR NEW.group_id IS NOT OLD.group_id
             OR NEW.policy_version IS NOT OLD.policy_version OR NEW.episode_tags IS NOT OLD.episode_tags
             OR NEW.started <> OLD.started
        BEGIN
            UPDATE buffers SET revision = revision + 1 WHERE id = NEW.buffer_id;
            UPDATE episodes SET revision = (SELECT revision FROM buffers WHERE id = NEW.buffer_id)
             WHERE buffer_id = NEW.buffer_id AND id = NEW.id;
        END
    """,
}



def changed(*columns: str) -> str:
    """Return the condition that one of the columns of the row `n` differs from that of `o`."""
    return f"({', '.join(f'n.{one}' for one in columns)}) IS DISTINCT FROM ({', '.join(f'o.{one}' for one in columns)})"


STEP_CHANGED = changed("step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "tags")
EPISODE_CHANGED = f"""(
    {changed("episode_id", "run", "task_id", "task_name", "agent_id", "group_id", "policy_version", "episode_tags", "started")}
    OR n.last_position = o.last_position AND {changed("status", "length", "episode_return", "ended")}
)"""

# The same for PostgreSQL. Capacity fires once a write, on the one row of `buffers` that the write counts in; nothing
# fires a step. The writer holds that row from its first statement on, so evictions take turns and cannot deadlock, and
# each statement here sees what the writers before it committed (READ COMMITTED). Scans begin at the old `low`: before
# it lie rows that are dead and not yet vacuumed. Deletions made by eviction are at trigger depth 1 and counted there.
POSTGRESQL_TRIGGERS = {
    "buffers_capacity": (
        """
            AFTER UPDATE OF size, capacity ON buffers
            FOR EACH ROW WHEN (NEW.size > NEW.capacity)
        """,
        """
        DECLARE
            bound bigint;
            freed bigint;
        BEGIN
            SELECT position INTO bound FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low
             ORDER BY position LIMIT 1 OFFSET NEW.size - NEW.capacity;
            bound := coalesce(bound, NEW.added);
            DELETE FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low AND position < bound;
            DELETE FROM episodes
             WHERE buffer_id = NEW.id AND status <> 'open' AND last_position < bound
               AND id IN (SELECT episode FROM segments
                           WHERE buffer_id = NEW.id AND last >= NEW.low AND last < bound);
            DELETE FROM segments WHERE buffer_id = NEW.id AND last >= NEW.low AND last < bound;
            WITH gone AS (
                DELETE FROM chunks c WHERE buffer_id = NEW.id AND id >= NEW.low AND id < bound RETURNING c.bytes
            ) SELECT coalesce(sum(gone.bytes), 0) INTO freed FROM gone;
            DELETE FROM priorities WHERE buffer_id = NEW.id AND block >= NEW.low >> 10 AND block < bound >> 10;
            UPDATE buffers SET low = bound, size = NEW.capacity, bytes = bytes - freed,
                               holes = CASE WHEN added - bound = NEW.capacity THEN 0 ELSE holes END
             WHERE id = NEW.id;
            RETURN NULL;
        END
        """,
    ),
    "steps_deleted": (
        """
            AFTER DELETE ON steps
            REFERENCING OLD TABLE AS old_rows
            FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
        """,
        """
        BEGIN
            UPDATE buffers b SET size = size - d.count, holes = holes + d.count, deleted = deleted + d.count,
                                 revision = revision + 1
              FROM (SELECT o.buffer_id, count(*) AS count FROM old_rows o
                      JOIN buffers h ON h.id = o.buffer_id AND o.position >= h.low GROUP BY 1) d
             WHERE b.id = d.buffer_id;
            RETURN NULL;
        END
        """,
    ),
    "chunks_deleted": (
        """
            AFTER DELETE ON chunks
            REFERENCING OLD TABLE AS old_rows
            FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
        """,
        """
        BEGIN
            UPDATE buffers b SET bytes = b.bytes - d.bytes
              FROM (SELECT buffer_id, sum(bytes) AS bytes FROM old_rows GROUP BY 1) d WHERE b.id = d.buffer_id;
            RETURN NULL;
        END
        """,
    ),
    # One statement trigger for what are two row triggers on SQLite: revision and returns follow from the same join.
    "steps_revised": (
        """
            AFTER UPDATE ON steps
            REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
            FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
        """,
        f"""
        DECLARE
            revised bigint[];
        BEGIN
            SELECT array_agg(DISTINCT n.buffer_id) INTO revised FROM new_rows n JOIN old_rows o USING (buffer_id, position)
             WHERE {STEP_CHANGED};
            IF revised IS NULL THEN
                RETURN NULL;
            END IF;
            UPDATE buffers SET revision = revision + 1 WHERE id = ANY (revised);
            UPDATE steps s SET revision = b.revision
              FROM new_rows n JOIN old_rows o USING (buffer_id, position) JOIN buffers b ON b.id = n.buffer_id
             WHERE s.buffer_id = n.buffer_id AND s.position = n.position
               AND {STEP_CHANGED};
            UPDATE episodes e SET episode_return = coalesce(e.episode_return, 0) + d.gained, revision = b.revision
              FROM buffers b, (SELECT n.buffer_id, n.episode, sum(coalesce(n.reward, 0) - coalesce(o.reward, 0)) AS gained
                      FROM new_rows n JOIN old_rows o USING (buffer_id, position)
                     WHERE n.reward IS DISTINCT FROM o.reward GROUP BY 1, 2) d
             WHERE e.buffer_id = d.buffer_id AND e.id = d.episode AND b.id = e.buffer_id;
            RETURN NULL;
        END
        """,
    ),
    "episodes_revised": (
        """
            AFTER UPDATE ON episodes
            REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
            FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
        """,
        f"""
        DECLARE
            revised bigint[];
        BEGIN
            SELECT array_agg(DISTINCT n.buffer_id) INTO revised FROM new_rows n JOIN old_rows o USING (buffer_id, id)
             WHERE {EPISODE_CHANGED};
            IF revised IS NULL THEN
                RETURN NULL;
            END IF;
            UPDATE buffers SET revision = revision + 1 WHERE id = ANY (revised);
            UPDATE episodes e SET revision = b.revision
              FROM new_rows n JOIN old_rows o USING (buffer_id, id) JOIN buffers b ON b.id = n.buffer_id
             WHERE e.buffer_id = n.buffer_id AND e.id = n.id
               AND {EPISODE_CHANGED};
            RETURN NULL;
        END
        """,
    ),
}

# A field of a payload, which the server cannot decode: what it does not find it asks for, in a temporary table, and the
# client that runs the query fills in the values and runs it again.
POSTGRESQL_FIELD = """
CREATE FUNCTION field(payload text, name text) RETURNS text LANGUAGE plpgsql STRICT SET search_path = pg_temp AS $$
DECLARE
    found_value text;
BEGIN
    IF to_regclass('expdb_fields') IS NULL THEN
        RAISE EXCEPTION 'field() works in db.sql of expdb only, where payload can be decoded';
    END IF;
    SELECT f.value INTO found_value FROM expdb_fields f WHERE f.payload = field.payload AND f.name = field.name;
    IF NOT FOUND THEN
        INSERT INTO expdb_fields (payload, name, known) VALUES (field.payload, field.name, false);
    END IF;
    RETURN found_value;
END $$
"""

# A whole write in one round trip. Rows, segments and chunks come with positions counted from 0, episodes as JSON, named by
# their place there (from 1, an id of null is a new one); the function takes the positions, which is the writers' lock,
# and adds them. It refuses, and changes nothing, where the caller's view of fields or episodes is out of date. It gives
# back the first position and the ids of the episodes. `again` says that an earlier call of this write may have been
# committed, which only the chunks can tell, and only to one who holds the lock. `segments` has six numbers each (last,
# first, episode, ordinal, chunk, chunk_row), `chunk_numbers` too (last, first, episode or 0, rows, signature, crc).
POSTGRESQL_APPEND = """
CREATE FUNCTION append(
    buffer bigint, known_fields bigint, wait_ms bigint, write_id text, again boolean, now_ float8, episodes_ json,
    step bigint[], episode bigint[], pre_agent text[], execute_time float8[], reward float8[],
    terminated boolean[], truncated boolean[], tags text[],
    segments_ bigint[], chunk_numbers bigint[], chunk_data bytea[], tail_chunk_ bigint, tail_row_ bigint, tail_fields_ text
) RETURNS bigint[] LANGUAGE plpgsql SET search_path = expdb, pg_temp AS $$
#variable_conflict use_column
DECLARE
    ids bigint[];
    lengths bigint[];
    fresh bigint;
    origin bigint;
    next_id bigint;
    steps_added bigint := cardinality(step);
    touched bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'append wants READ COMMITTED' USING ERRCODE = 'XD001';
    END IF;
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF again THEN
        PERFORM 1 FROM buffers WHERE id = buffer FOR NO KEY UPDATE;
        SELECT max(c.id) - steps_added + 1 INTO origin FROM chunks c WHERE c.buffer_id = buffer AND c.write_id = append.write_id;
        IF origin IS NOT NULL THEN
            RETURN origin || ARRAY(
                SELECT coalesce(e.id, -1) FROM json_array_elements(episodes_) WITH ORDINALITY AS g(value, place)
                  LEFT JOIN episodes e ON e.buffer_id = buffer AND e.episode_id = g.value ->> 'episode_id' ORDER BY g.place);
        END IF;
    END IF;
    ids := ARRAY(SELECT (value ->> 'id')::bigint FROM json_array_elements(episodes_));
    fresh := cardinality(array_positions(ids, NULL));
    UPDATE buffers SET added = added + steps_added, episodes_added = episodes_added + fresh
     WHERE id = buffer AND fields_version = known_fields
    RETURNING added - steps_added, episodes_added - fresh INTO origin, next_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the fields have changed' USING ERRCODE = 'XD001';
    END IF;
    IF fresh < cardinality(ids) THEN
        UPDATE episodes e SET
            length = e.length + g.rows, status = g.status, ordered = g.ordered, last_step = g.last_step,
            ended = CASE WHEN g.status = 'open' THEN e.ended ELSE now_ END, last_position = origin + g.last,
            episode_return = coalesce(e.episode_return + g.gained, e.episode_return, g.gained)
          FROM json_to_recordset(episodes_) AS g(
               id bigint, length bigint, rows bigint, last bigint, status text, gained float8, ordered boolean, last_step bigint)
         WHERE e.buffer_id = buffer AND e.id = g.id AND e.status = 'open' AND e.length = g.length;
        GET DIAGNOSTICS touched = ROW_COUNT;
        IF touched <> cardinality(ids) - fresh THEN
            RAISE EXCEPTION 'an episode has changed' USING ERRCODE = 'XD001';
        END IF;
    END IF;
    IF fresh > 0 THEN
        FOR k IN 1 .. cardinality(ids) LOOP
            IF ids[k] IS NULL THEN
                ids[k] := next_id;
                next_id := next_id + 1;
            END IF;
        END LOOP;
        INSERT INTO episodes (buffer_id, id, episode_id, run, task_id, task_name, agent_id, group_id, policy_version,
                              episode_tags, started, status, length, episode_return, ended, ordered, last_step,
                              last_position)
        SELECT buffer, ids[g.place], g.episode_id, g.run, g.task_id, g.task_name, g.agent_id, g.group_id, g.policy_version,
               g.episode_tags, g.started, g.status, g.rows, g.gained, CASE WHEN g.status <> 'open' THEN now_ END, g.ordered,
               g.last_step, origin + g.last
          FROM ROWS FROM (json_to_recordset(episodes_) AS (
               id bigint, rows bigint, last bigint, status text, gained float8, ordered boolean, last_step bigint,
               episode_id text, run text, task_id text, task_name text, agent_id text, group_id text,
               policy_version bigint, episode_tags text, started float8)) WITH ORDINALITY
               AS g(id, rows, last, status, gained, ordered, last_step, episode_id, run, task_id, task_name, agent_id,
                    group_id, policy_version, episode_tags, started, place)
         WHERE g.id IS NULL;
    END IF;
    INSERT INTO steps (buffer_id, position, episode, step, pre_agent, execute_time, reward, terminated, truncated, tags)
    SELECT buffer, origin + g.place - 1, ids[coalesce(g.episode, 1)], g.step, g.pre_agent, g.execute_time,
           nullif(g.reward, 'NaN'), coalesce(g.terminated, false), coalesce(g.truncated, false), g.tags
      FROM unnest(append.step, append.episode, append.pre_agent, append.execute_time, append.reward, append.terminated,
                  append.truncated, append.tags)
           WITH ORDINALITY AS g(step, episode, pre_agent, execute_time, reward, terminated, truncated, tags, place);
    INSERT INTO segments (buffer_id, last, first, episode, ordinal, chunk, chunk_row)
    SELECT buffer, origin + segments_[6 * k - 5], origin + segments_[6 * k - 4], ids[segments_[6 * k - 3]],
           segments_[6 * k - 2], origin + segments_[6 * k - 1], segments_[6 * k]
      FROM generate_series(1, cardinality(segments_) / 6) AS k;
    INSERT INTO chunks (buffer_id, id, first, episode, rows, signature, bytes, crc, write_id, data)
    SELECT buffer, origin + chunk_numbers[6 * k - 5], origin + chunk_numbers[6 * k - 4],
           ids[nullif(chunk_numbers[6 * k - 3], 0)], chunk_numbers[6 * k - 2], chunk_numbers[6 * k - 1], length(g.data),
           chunk_numbers[6 * k] # ((origin + chunk_numbers[6 * k - 5]) & 4294967295), append.write_id, g.data
      FROM unnest(chunk_data) WITH ORDINALITY AS g(data, k);
    IF tail_chunk_ IS NOT NULL THEN
        UPDATE episodes SET tail_chunk = origin + tail_chunk_, tail_row = tail_row_, tail_fields = tail_fields_
         WHERE buffer_id = buffer AND id = ids[1];
    END IF;
    UPDATE buffers SET size = size + steps_added,
                       bytes = bytes + (SELECT coalesce(sum(length(data)), 0) FROM unnest(chunk_data) AS g(data))
     WHERE id = buffer;
    RETURN origin || ids;
END $$
"""

# What ANALYZE would find in a database of the size that matters: a million steps in ten thousand episodes. Without it
# SQLite joins the view from the wrong end (a thousand times slower), and a new database has nothing to analyze.
# (sqlite.org/fileformat2.html#the_sqlite_stat1_table: rows, then rows for each value of the first column, first two...)
SQLITE_STATISTICS = {
    "episodes": {
        "episodes": "10000 10000 1",
        "episodes_by_task_id": "10000 10000 4",
        "episodes_by_task_name": "10000 10000 200",
        "sqlite_autoindex_episodes_2": "10000 10000 1",
        "episodes_by_revision": "1000 1000 1",
    },
    "steps": {"steps": "1000000 1000000 1", "steps_by_revision": "1000 1000 1"},
    "segments": {"segments": "20000 20000 1", "segments_by_episode": "20000 20000 2"},
    "chunks": {"sqlite_autoindex_chunks_1": "20000 20000 1"},
    "priorities": {"sqlite_autoindex_priorities_1": "1000 1000 1"},
}


def upgrade() -> None:
    connection = op.get_bind()
    dialect = connection.dialect.name
    op.create_table(
        "buffers",
        sa.Column("id", Integer, sa.Identity(), primary_key=True),
        sa.Column("name", Text, nullable=False, unique=True),
        sa.Column("capacity", Integer, sa.CheckConstraint("capacity > 0", name="buffers_capacity_positive")),
        sa.Column("added", Integer, nullable=False, server_default="0"),
        sa.Column("low", Integer, nullable=False, server_default="0"),
        sa.Column("size", Integer, nullable=False, server_default="0"),
        sa.Column("holes", Integer, nullable=False, server_default="0"),
        sa.Column("deleted", Integer, nullable=False, server_default="0"),
        sa.Column("bytes", Integer, nullable=False, server_default="0"),
        sa.Column("episodes_added", Integer, nullable=False, server_default="0"),
        sa.Column("revision", Integer, nullable=False, server_default="0"),
        sa.Column("priorities", Integer, nullable=False, server_default="0"),
        sa.Column("fields", Text, nullable=False, server_default="{}"),
        sa.Column("fields_version", Integer, nullable=False, server_default="0"),
        sqlite_strict=True,
        sqlite_autoincrement=True,  # a dropped buffer's id must not serve another under old handles
    )
    op.create_table(
        "signatures",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("schema", Blob, nullable=False),
        **CLUSTERED,
    )
    op.create_table(
        "episodes",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("episode_id", Text, nullable=False),
        sa.Column("run", Text, nullable=False),
        sa.Column("task_id", Text, nullable=False),
        sa.Column("task_name", Text),
        sa.Column("agent_id", Text, nullable=False),
        sa.Column("group_id", Text),
        sa.Column(
            "status",
            Text,
            sa.CheckConstraint("status IN ('open', 'complete', 'aborted')", name="episodes_status_known"),
            nullable=False,
        ),
        sa.Column("length", Integer, nullable=False, server_default="0"),
        sa.Column("episode_return", Real),
        sa.Column("policy_version", Integer),
        sa.Column("episode_tags", Text),
        sa.Column("started", Real, nullable=False),
        sa.Column("ended", Real),
        sa.Column("ordered", Flag, nullable=False, server_default=sa.true()),
        sa.Column("last_step", Integer),
        sa.Column("last_position", Integer, nullable=False, server_default="-1"),
        sa.Column("tail_chunk", Integer),
        sa.Column("tail_row", Integer),
        sa.Column("tail_fields", Text),
        sa.Column("revision", Integer),
        sa.UniqueConstraint("buffer_id", "episode_id", name="episodes_by_episode_id"),
        **CLUSTERED,
    )
    op.create_index("episodes_by_task_id", "episodes", ["buffer_id", "task_id"])
    op.create_index("episodes_by_task_name", "episodes", ["buffer_id", "task_name"])
    op.create_table(
        "steps",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("position", Integer, primary_key=True),
        sa.Column("episode", Integer, nullable=False),
        sa.Column("step", Integer, nullable=False),
        sa.Column("pre_agent", Text),
        sa.Column("execute_time", Real, nullable=False),
        sa.Column("reward", Real),
        sa.Column("terminated", Flag, nullable=False),
        sa.Column("truncated", Flag, nullable=False),
        sa.Column("tags", Text),
        sa.Column("revision", Integer),
        **CLUSTERED,
    )
    revised = sa.text("revision IS NOT NULL")
    for table in ("steps", "episodes"):
        op.create_index(
            f"{table}_by_revision", table, ["buffer_id", "revision"], sqlite_where=revised, postgresql_where=revised
        )
    op.create_table(
        "segments",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("last", Integer, primary_key=True),
        sa.Column("first", Integer, nullable=False),
        sa.Column("episode", Integer, nullable=False),
        sa.Column("ordinal", Integer, nullable=False),
        sa.Column("chunk", Integer, nullable=False),
        sa.Column("chunk_row", Integer, nullable=False),
        **CLUSTERED,
    )
    op.create_index("segments_by_episode", "segments", ["buffer_id", "episode"])
    op.create_table(
        "chunks",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("first", Integer, nullable=False),
        sa.Column("episode", Integer),
        sa.Column("rows", Integer, nullable=False),
        sa.Column("signature", Integer, nullable=False),
        sa.Column("bytes", Integer, nullable=False),
        sa.Column("crc", Integer, nullable=False),
        sa.Column("write_id", Text),
        sa.Column("data", Blob, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "priorities",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("block", Integer, primary_key=True),
        sa.Column("version", Integer, nullable=False),
        sa.Column("data", Priorities, nullable=False),
        sqlite_strict=True,
    )
    tags = "s.tags", "e.episode_tags"
    step_tags, episode_tags = tags if dialect == "sqlite" else [f"{column}::jsonb" for column in tags]
    connection.exec_driver_sql(POSTGRESQL_PRIORITIES if dialect == "postgresql" else SQLITE_PRIORITIES)
    connection.exec_driver_sql(VIEW.format(step_tags=step_tags, episode_tags=episode_tags))
    if dialect == "postgresql":
        for name, (when, body) in POSTGRESQL_TRIGGERS.items():
            connection.exec_driver_sql(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path = expdb, pg_temp AS $${body}$$"
            )
            connection.exec_driver_sql(f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION {name}()")
        # Chunks are compressed already: PostgreSQL would try again, and cut them up for it.
        connection.exec_driver_sql("ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL")
        connection.exec_driver_sql("ALTER TABLE priorities ALTER COLUMN data SET STORAGE EXTERNAL")
        connection.exec_driver_sql(POSTGRESQL_FIELD)
        connection.exec_driver_sql(POSTGRESQL_APPEND)
    else:
        for statement in SQLITE_TRIGGERS.values():
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("ANALYZE sqlite_schema")
        for table, indexes in SQLITE_STATISTICS.items():
            for index, figures in indexes.items():
                connection.exec_driver_sql("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)", (table, index, figures))


def downgrade() -> None:
    op.execute("DROP VIEW experience")
    op.execute("DROP VIEW step_priorities")
    postgresql = op.get_bind().dialect.name == "postgresql"
    if postgresql:
        op.execute("DROP FUNCTION append")
        op.execute("DROP FUNCTION field")
    for table in ("priorities", "chunks", "segments", "steps", "episodes", "signatures", "buffers"):
        op.drop_table(table)
    if postgresql:
        for name in POSTGRESQL_TRIGGERS:
            op.execute(f"DROP FUNCTION {name}")
