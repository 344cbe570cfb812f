--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: expdb; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA expdb;


--
-- Name: append(bigint, bigint, bigint, text, boolean, double precision, json, bigint[], bigint[], text[], double precision[], double precision[], boolean[], boolean[], text[], bigint[], bigint[], text[], bigint[], bigint[], bytea[], bigint, bigint, text); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.append(buffer bigint, known_fields bigint, wait_ms bigint, write_id text, again boolean, now_ double precision, episodes_ json, step bigint[], episode bigint[], pre_agent text[], execute_time double precision[], reward double precision[], terminated boolean[], truncated boolean[], tags text[], policy_version bigint[], policy_version_end bigint[], agent_id text[], segments_ bigint[], chunk_numbers bigint[], chunk_data bytea[], tail_chunk_ bigint, tail_row_ bigint, tail_fields_ text) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
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
        RAISE EXCEPTION 'append() requires transaction isolation READ COMMITTED' USING ERRCODE = 'XD001';
    END IF;
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF again THEN
        PERFORM 1 FROM buffers WHERE id = buffer FOR NO KEY UPDATE;
        SELECT max(c.id) - steps_added + 1 INTO origin FROM chunks c WHERE c.buffer_id = buffer AND c.write_id = append.write_id;
        IF origin IS NOT NULL THEN
            RETURN ARRAY[origin, 0, 0, 0, 0] || ARRAY(
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
               id bigint, length bigint, rows bigint, last bigint, status text, gained float8, ordered boolean, last_step bigint,
               policy_version bigint, generation bigint)
         WHERE e.buffer_id = buffer AND e.id = g.id AND e.status = 'open' AND e.length = g.length
           AND e.generation = g.generation
           AND e.policy_version IS NOT DISTINCT FROM g.policy_version;
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
                              last_position, first_policy_version, last_policy_version)
        SELECT buffer, ids[g.place], g.episode_id, g.run, g.task_id, g.task_name, g.agent_id, g.group_id, g.policy_version,
               g.episode_tags, g.started, g.status, g.rows, g.gained, CASE WHEN g.status <> 'open' THEN now_ END, g.ordered,
               g.last_step, origin + g.last, g.policy_version, g.policy_version
          FROM ROWS FROM (json_to_recordset(episodes_) AS (
               id bigint, rows bigint, last bigint, status text, gained float8, ordered boolean, last_step bigint,
               episode_id text, run text, task_id text, task_name text, agent_id text, group_id text,
               policy_version bigint, episode_tags text, started float8)) WITH ORDINALITY
               AS g(id, rows, last, status, gained, ordered, last_step, episode_id, run, task_id, task_name, agent_id,
                    group_id, policy_version, episode_tags, started, place)
         WHERE g.id IS NULL;
    END IF;
    INSERT INTO steps (buffer_id, position, episode, step, pre_agent, execute_time, reward, terminated, truncated, tags,
                       policy_version, policy_version_end, agent_id)
    SELECT buffer, origin + g.place - 1, ids[coalesce(g.episode, 1)], g.step, g.pre_agent, g.execute_time,
           nullif(g.reward, 'NaN'), coalesce(g.terminated, false), coalesce(g.truncated, false), g.tags,
           g.policy_version, g.policy_version_end, g.agent_id
      FROM unnest(append.step, append.episode, append.pre_agent, append.execute_time, append.reward, append.terminated,
                  append.truncated, append.tags, append.policy_version, append.policy_version_end, append.agent_id)
           WITH ORDINALITY AS g(step, episode, pre_agent, execute_time, reward, terminated, truncated, tags, policy_version,
                policy_version_end, agent_id, place);
    IF policy_version IS NOT NULL OR policy_version_end IS NOT NULL THEN
        UPDATE episodes e SET first_policy_version = least(e.first_policy_version, g.least),
                              last_policy_version = greatest(e.last_policy_version, g.greatest)
          FROM (SELECT ids[coalesce(s.episode, 1)] AS id, min(s.policy_version) AS least,
                       greatest(max(s.policy_version), max(s.policy_version_end)) AS greatest
                  FROM unnest(append.episode, append.policy_version, append.policy_version_end)
                       AS s(episode, policy_version, policy_version_end) GROUP BY 1) g
         WHERE e.buffer_id = buffer AND e.id = g.id AND g.greatest IS NOT NULL;
    END IF;
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
    RETURN origin || (SELECT ARRAY[low, size, revision, deleted] FROM buffers WHERE id = buffer) || ids;
END $$;


--
-- Name: buffers_capacity(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.buffers_capacity() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        DECLARE
            bound bigint;
            gone bigint := NEW.size - NEW.capacity;
        BEGIN
            SELECT position INTO bound FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low
             ORDER BY position LIMIT 1 OFFSET gone;
            bound := coalesce(bound, NEW.added);
            IF NEW.size <= 2 * NEW.capacity AND NEW.pinned < bound THEN
                bound := NEW.pinned;
                SELECT count(*) INTO gone FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low AND position < bound;
            END IF;
            UPDATE buffers SET low = bound, size = size - gone,
                               holes = CASE WHEN added - bound = size - gone THEN 0 ELSE holes END,
                               pinned = CASE WHEN pinned < bound THEN NULL ELSE pinned END
             WHERE id = NEW.id;
            RETURN NULL;
        END
        $$;


--
-- Name: buffers_evicted(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.buffers_evicted() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        DECLARE
            freed bigint;
            dead bigint[];
        BEGIN
            DELETE FROM steps WHERE buffer_id = NEW.id AND position >= OLD.low AND position < NEW.low;
            dead := ARRAY(SELECT DISTINCT episode FROM segments
                           WHERE buffer_id = NEW.id AND last >= OLD.low AND last < NEW.low);
            DELETE FROM episodes
             WHERE buffer_id = NEW.id AND status <> 'open' AND last_position < NEW.low AND id = ANY(dead);
            DELETE FROM segments WHERE buffer_id = NEW.id AND last >= OLD.low AND last < NEW.low;
            WITH gone AS (
                DELETE FROM chunks c WHERE buffer_id = NEW.id AND id >= OLD.low AND id < NEW.low RETURNING c.bytes
            ) SELECT sum(gone.bytes) INTO freed FROM gone;
            DELETE FROM priorities WHERE buffer_id = NEW.id AND block >= OLD.low >> 10 AND block < NEW.low >> 10;
            DELETE FROM annotations WHERE buffer_id = NEW.id AND position >= OLD.low AND position < NEW.low;
            IF freed > 0 THEN
                UPDATE buffers SET bytes = bytes - freed WHERE id = NEW.id;
            END IF;
            RETURN NULL;
        END
        $$;


--
-- Name: buffers_limited(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.buffers_limited() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            RAISE EXCEPTION 'the rate limiter holds back new steps' USING ERRCODE = 'XD002';
        END
        $$;


--
-- Name: chunks_deleted(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.chunks_deleted() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            UPDATE buffers b SET bytes = b.bytes - d.bytes
              FROM (SELECT buffer_id, sum(bytes) AS bytes FROM old_rows GROUP BY 1) d WHERE b.id = d.buffer_id;
            RETURN NULL;
        END
        $$;


--
-- Name: chunks_released(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.chunks_released() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        DECLARE
            released bytea[];
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM old_rows WHERE (crc & 8589934592) <> 0) THEN
                RETURN NULL;
            END IF;
            WITH gone AS (
                DELETE FROM value_references r USING old_rows o
                 WHERE r.buffer_id = o.buffer_id AND r.chunk = o.id RETURNING r.digest
            ) SELECT array_agg(DISTINCT digest) INTO released FROM gone;
            DELETE FROM shared_values v
             WHERE buffer_id IN (SELECT buffer_id FROM old_rows) AND digest = ANY(released)
               AND NOT EXISTS (SELECT 1 FROM value_references r
                                WHERE r.buffer_id = v.buffer_id AND r.digest = v.digest);
            RETURN NULL;
        END
        $$;


--
-- Name: episodes_completed(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.episodes_completed() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            UPDATE rollout_groups SET complete = complete + CASE NEW.status WHEN 'complete' THEN 1 ELSE -1 END
             WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
               AND is_task = (OLD.group_id IS NULL);
            RETURN NULL;
        END
        $$;


--
-- Name: episodes_deleted(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.episodes_deleted() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            DELETE FROM scores s USING old_rows o WHERE s.buffer_id = o.buffer_id AND s.episode = o.id;
            RETURN NULL;
        END
        $$;


--
-- Name: episodes_grouped(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.episodes_grouped() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            INSERT INTO rollout_groups AS g (buffer_id, name, is_task, task_id, first_episode, episodes, complete)
            SELECT buffer_id, coalesce(group_id, task_id), group_id IS NULL, min(task_id), min(id), count(*),
                   count(*) FILTER (WHERE status = 'complete')
              FROM new_rows WHERE coalesce(relation, 'fork') IN ('fork', 'retry') GROUP BY 1, 2, 3
            ON CONFLICT (buffer_id, name, is_task)
            DO UPDATE SET episodes = g.episodes + excluded.episodes, complete = g.complete + excluded.complete,
                          task_id = least(g.task_id, excluded.task_id), first_episode = least(g.first_episode, excluded.first_episode);
            RETURN NULL;
        END
        $$;


--
-- Name: episodes_regrouped(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.episodes_regrouped() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            UPDATE rollout_groups SET episodes = episodes - 1, complete = complete - (NEW.status = 'complete')::int
             WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
               AND is_task = (OLD.group_id IS NULL);
            INSERT INTO rollout_groups AS g (buffer_id, name, is_task, task_id, first_episode, episodes, complete)
            VALUES (NEW.buffer_id, coalesce(NEW.group_id, NEW.task_id), NEW.group_id IS NULL, NEW.task_id, NEW.id, 1,
                    (NEW.status = 'complete')::int)
            ON CONFLICT (buffer_id, name, is_task)
            DO UPDATE SET episodes = g.episodes + 1, complete = g.complete + excluded.complete,
                          task_id = least(g.task_id, excluded.task_id), first_episode = least(g.first_episode, excluded.first_episode);
            DELETE FROM rollout_groups
             WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
               AND is_task = (OLD.group_id IS NULL) AND episodes = 0;
            RETURN NULL;
        END
        $$;


--
-- Name: episodes_revised(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.episodes_revised() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $_$
        DECLARE
            revised bigint[];
            is_small boolean := (SELECT count(*) FROM (SELECT 1 FROM new_rows LIMIT 101) few) <= 100;
        BEGIN
            IF is_small THEN
                SELECT array_agg(DISTINCT n.buffer_id) INTO revised FROM new_rows n JOIN old_rows o USING (buffer_id, id)
                 WHERE (
        (n.episode_id, n.run, n.task_id, n.task_name, n.agent_id, n.group_id, n.policy_version, n.episode_tags, n.started) IS DISTINCT FROM (o.episode_id, o.run, o.task_id, o.task_name, o.agent_id, o.group_id, o.policy_version, o.episode_tags, o.started)
        OR n.last_position = o.last_position AND (n.status, n.length, n.episode_return, n.ended) IS DISTINCT FROM (o.status, o.length, o.episode_return, o.ended)
    );
            ELSE
                EXECUTE $sql$SELECT array_agg(DISTINCT n.buffer_id) FROM new_rows n JOIN old_rows o USING (buffer_id, id)
                 WHERE (
        (n.episode_id, n.run, n.task_id, n.task_name, n.agent_id, n.group_id, n.policy_version, n.episode_tags, n.started) IS DISTINCT FROM (o.episode_id, o.run, o.task_id, o.task_name, o.agent_id, o.group_id, o.policy_version, o.episode_tags, o.started)
        OR n.last_position = o.last_position AND (n.status, n.length, n.episode_return, n.ended) IS DISTINCT FROM (o.status, o.length, o.episode_return, o.ended)
    )$sql$ INTO revised;
            END IF;
            IF revised IS NULL THEN
                RETURN NULL;
            END IF;
            UPDATE buffers SET revision = revision + 1 WHERE id = ANY (revised);
            IF is_small THEN
                UPDATE episodes e SET revision = b.revision
                  FROM new_rows n JOIN old_rows o USING (buffer_id, id) JOIN buffers b ON b.id = n.buffer_id
                 WHERE e.buffer_id = n.buffer_id AND e.id = n.id
                   AND (
        (n.episode_id, n.run, n.task_id, n.task_name, n.agent_id, n.group_id, n.policy_version, n.episode_tags, n.started) IS DISTINCT FROM (o.episode_id, o.run, o.task_id, o.task_name, o.agent_id, o.group_id, o.policy_version, o.episode_tags, o.started)
        OR n.last_position = o.last_position AND (n.status, n.length, n.episode_return, n.ended) IS DISTINCT FROM (o.status, o.length, o.episode_return, o.ended)
    );
            ELSE
                EXECUTE $sql$UPDATE episodes e SET revision = b.revision
                  FROM new_rows n JOIN old_rows o USING (buffer_id, id) JOIN buffers b ON b.id = n.buffer_id
                 WHERE e.buffer_id = n.buffer_id AND e.id = n.id
                   AND (
        (n.episode_id, n.run, n.task_id, n.task_name, n.agent_id, n.group_id, n.policy_version, n.episode_tags, n.started) IS DISTINCT FROM (o.episode_id, o.run, o.task_id, o.task_name, o.agent_id, o.group_id, o.policy_version, o.episode_tags, o.started)
        OR n.last_position = o.last_position AND (n.status, n.length, n.episode_return, n.ended) IS DISTINCT FROM (o.status, o.length, o.episode_return, o.ended)
    )$sql$;
            END IF;
            RETURN NULL;
        END
        $_$;


--
-- Name: episodes_ungrouped(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.episodes_ungrouped() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
        BEGIN
            UPDATE rollout_groups g SET episodes = g.episodes - d.episodes
              FROM (SELECT buffer_id, coalesce(group_id, task_id) AS name, group_id IS NULL AS is_task,
                           count(*) AS episodes
                      FROM old_rows WHERE coalesce(relation, 'fork') IN ('fork', 'retry') GROUP BY 1, 2, 3) d
             WHERE g.buffer_id = d.buffer_id AND g.name = d.name AND g.is_task = d.is_task;
            DELETE FROM rollout_groups g USING old_rows o
             WHERE g.buffer_id = o.buffer_id AND g.name = coalesce(o.group_id, o.task_id)
               AND g.is_task = (o.group_id IS NULL) AND g.episodes = 0;
            RETURN NULL;
        END
        $$;


--
-- Name: episodes_versioned(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.episodes_versioned() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            NEW.first_policy_version := NEW.policy_version;
            NEW.last_policy_version := NEW.policy_version;
            RETURN NEW;
        END
        $$;


--
-- Name: field(text, text); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.field(payload text, name text) RETURNS text
    LANGUAGE plpgsql STRICT
    SET search_path TO 'pg_temp'
    AS $$
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
END $$;


--
-- Name: shared_values_deleted(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.shared_values_deleted() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            UPDATE buffers SET bytes = bytes - length(OLD.data) WHERE id = OLD.buffer_id;
            RETURN NULL;
        END
        $$;


--
-- Name: shared_values_inserted(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.shared_values_inserted() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        BEGIN
            UPDATE buffers SET bytes = bytes + length(NEW.data) WHERE id = NEW.buffer_id;
            RETURN NULL;
        END
        $$;


--
-- Name: steps_deleted(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.steps_deleted() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $_$
        BEGIN
            UPDATE buffers b SET size = size - d.count, holes = holes + d.count, deleted = deleted + d.count,
                                 revision = revision + 1
              FROM (SELECT o.buffer_id, count(*) AS count FROM old_rows o
                      JOIN buffers h ON h.id = o.buffer_id AND o.position >= h.low GROUP BY 1) d
             WHERE b.id = d.buffer_id;
            EXECUTE $sql$DELETE FROM annotations a USING old_rows o WHERE a.buffer_id = o.buffer_id AND a.position = o.position$sql$;
            RETURN NULL;
        END
        $_$;


--
-- Name: steps_revised(); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.steps_revised() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $_$
        DECLARE
            revised bigint[];
            is_small boolean := (SELECT count(*) FROM (SELECT 1 FROM new_rows LIMIT 101) few) <= 100;
        BEGIN
            IF is_small THEN
                SELECT array_agg(DISTINCT n.buffer_id) INTO revised FROM new_rows n JOIN old_rows o USING (buffer_id, position)
                 WHERE (n.step, n.pre_agent, n.execute_time, n.reward, n.terminated, n.truncated, n.tags, n.policy_version, n.policy_version_end, n.scores, n.agent_id) IS DISTINCT FROM (o.step, o.pre_agent, o.execute_time, o.reward, o.terminated, o.truncated, o.tags, o.policy_version, o.policy_version_end, o.scores, o.agent_id);
            ELSE
                EXECUTE $sql$SELECT array_agg(DISTINCT n.buffer_id) FROM new_rows n JOIN old_rows o USING (buffer_id, position)
                 WHERE (n.step, n.pre_agent, n.execute_time, n.reward, n.terminated, n.truncated, n.tags, n.policy_version, n.policy_version_end, n.scores, n.agent_id) IS DISTINCT FROM (o.step, o.pre_agent, o.execute_time, o.reward, o.terminated, o.truncated, o.tags, o.policy_version, o.policy_version_end, o.scores, o.agent_id)$sql$ INTO revised;
            END IF;
            IF revised IS NULL THEN
                RETURN NULL;
            END IF;
            UPDATE buffers SET revision = revision + 1 WHERE id = ANY (revised);
            IF is_small THEN
                UPDATE steps s SET revision = b.revision
                  FROM new_rows n JOIN old_rows o USING (buffer_id, position) JOIN buffers b ON b.id = n.buffer_id
                 WHERE s.buffer_id = n.buffer_id AND s.position = n.position
                   AND (n.step, n.pre_agent, n.execute_time, n.reward, n.terminated, n.truncated, n.tags, n.policy_version, n.policy_version_end, n.scores, n.agent_id) IS DISTINCT FROM (o.step, o.pre_agent, o.execute_time, o.reward, o.terminated, o.truncated, o.tags, o.policy_version, o.policy_version_end, o.scores, o.agent_id);
                UPDATE episodes e SET episode_return = coalesce(e.episode_return, 0) + d.gained, revision = b.revision
                  FROM buffers b, (SELECT n.buffer_id, n.episode, sum(coalesce(n.reward, 0) - coalesce(o.reward, 0)) AS gained
                          FROM new_rows n JOIN old_rows o USING (buffer_id, position)
                         WHERE n.reward IS DISTINCT FROM o.reward GROUP BY 1, 2) d
                 WHERE e.buffer_id = d.buffer_id AND e.id = d.episode AND b.id = e.buffer_id;
            ELSE
                EXECUTE $sql$UPDATE steps s SET revision = b.revision
                  FROM new_rows n JOIN old_rows o USING (buffer_id, position) JOIN buffers b ON b.id = n.buffer_id
                 WHERE s.buffer_id = n.buffer_id AND s.position = n.position
                   AND (n.step, n.pre_agent, n.execute_time, n.reward, n.terminated, n.truncated, n.tags, n.policy_version, n.policy_version_end, n.scores, n.agent_id) IS DISTINCT FROM (o.step, o.pre_agent, o.execute_time, o.reward, o.terminated, o.truncated, o.tags, o.policy_version, o.policy_version_end, o.scores, o.agent_id)$sql$;
                EXECUTE $sql$UPDATE episodes e SET episode_return = coalesce(e.episode_return, 0) + d.gained, revision = b.revision
                  FROM buffers b, (SELECT n.buffer_id, n.episode, sum(coalesce(n.reward, 0) - coalesce(o.reward, 0)) AS gained
                          FROM new_rows n JOIN old_rows o USING (buffer_id, position)
                         WHERE n.reward IS DISTINCT FROM o.reward GROUP BY 1, 2) d
                 WHERE e.buffer_id = d.buffer_id AND e.id = d.episode AND b.id = e.buffer_id$sql$;
            END IF;
            RETURN NULL;
        END
        $_$;


--
-- Name: wait_for_change(bigint, bigint, bigint[], double precision); Type: FUNCTION; Schema: expdb; Owner: -
--

CREATE FUNCTION expdb.wait_for_change(of_buffer bigint, of_consumer bigint, seen bigint[], seconds double precision) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'expdb', 'pg_temp'
    AS $$
        DECLARE
            found bigint[];
            until timestamptz := clock_timestamp() + make_interval(secs => seconds);
        BEGIN
            LOOP
                found := NULL;
                SELECT ARRAY[c.version, b.added, b.low, b.deleted, b.revision, b.priorities, coalesce(b.policy_version, -1)]
                  INTO found FROM consumers c JOIN buffers b ON b.id = c.buffer_id
                 WHERE c.buffer_id = of_buffer AND c.id = of_consumer;
                IF found IS NULL OR found IS DISTINCT FROM seen OR clock_timestamp() >= until THEN
                    RETURN found;
                END IF;
                PERFORM pg_sleep(0.01);
            END LOOP;
        END
        $$;


SET default_tablespace = '';


--
-- Name: admissions; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.admissions (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    holder text NOT NULL COLLATE pg_catalog."C",
    policy_version bigint NOT NULL,
    since double precision NOT NULL,
    expires double precision NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: annotations; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.annotations (
    buffer_id bigint NOT NULL,
    "position" bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    shape text NOT NULL COLLATE pg_catalog."C",
    crc bigint NOT NULL,
    data bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: buffers; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.buffers (
    id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    capacity bigint,
    added bigint DEFAULT '0'::bigint NOT NULL,
    low bigint DEFAULT '0'::bigint NOT NULL,
    size bigint DEFAULT '0'::bigint NOT NULL,
    holes bigint DEFAULT '0'::bigint NOT NULL,
    deleted bigint DEFAULT '0'::bigint NOT NULL,
    bytes bigint DEFAULT '0'::bigint NOT NULL,
    episodes_added bigint DEFAULT '0'::bigint NOT NULL,
    revision bigint DEFAULT '0'::bigint NOT NULL,
    priorities bigint DEFAULT '0'::bigint NOT NULL,
    fields text DEFAULT '{}'::text NOT NULL COLLATE pg_catalog."C",
    fields_version bigint DEFAULT '0'::bigint NOT NULL,
    policy_version bigint,
    rate_limiter text COLLATE pg_catalog."C",
    sampled bigint DEFAULT 0 NOT NULL,
    insert_limit bigint,
    consumers_added bigint DEFAULT 0 NOT NULL,
    pace text COLLATE pg_catalog."C",
    admitted bigint DEFAULT 0 NOT NULL,
    pinned bigint,
    eviction text COLLATE pg_catalog."C",
    trigger_evicts boolean DEFAULT true NOT NULL,
    policy_versions text COLLATE pg_catalog."C",
    version_labels text COLLATE pg_catalog."C",
    CONSTRAINT buffers_capacity_positive CHECK ((capacity > 0))
)
WITH (fillfactor='10', autovacuum_vacuum_threshold='50', autovacuum_vacuum_scale_factor='0');


--
-- Name: buffers_id_seq; Type: SEQUENCE; Schema: expdb; Owner: -
--

ALTER TABLE expdb.buffers ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME expdb.buffers_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: chunks; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.chunks (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    first bigint NOT NULL,
    episode bigint,
    rows bigint NOT NULL,
    signature bigint NOT NULL,
    bytes bigint NOT NULL,
    crc bigint NOT NULL,
    write_id text COLLATE pg_catalog."C",
    data bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE ONLY expdb.chunks ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: consumers; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.consumers (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    settings text NOT NULL COLLATE pg_catalog."C",
    began bigint NOT NULL,
    version bigint NOT NULL,
    handed_out bigint NOT NULL,
    begun bigint NOT NULL,
    acknowledged bigint NOT NULL,
    last_step bigint,
    rewinds bigint DEFAULT '0'::bigint NOT NULL
);


--
-- Name: episodes; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.episodes (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    episode_id text NOT NULL COLLATE pg_catalog."C",
    run text NOT NULL COLLATE pg_catalog."C",
    task_id text NOT NULL COLLATE pg_catalog."C",
    task_name text COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    group_id text COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    length bigint DEFAULT '0'::bigint NOT NULL,
    episode_return double precision,
    policy_version bigint,
    episode_tags text COLLATE pg_catalog."C",
    started double precision NOT NULL,
    ended double precision,
    ordered boolean DEFAULT true NOT NULL,
    last_step bigint,
    last_position bigint DEFAULT '-1'::bigint NOT NULL,
    tail_chunk bigint,
    tail_row bigint,
    tail_fields text COLLATE pg_catalog."C",
    revision bigint,
    first_policy_version bigint,
    last_policy_version bigint,
    generation bigint DEFAULT '0'::bigint NOT NULL,
    parent_episode bigint,
    parent_step bigint,
    parent_position bigint,
    relation text COLLATE pg_catalog."C",
    root_episode bigint,
    shared_steps bigint,
    trainable boolean,
    CONSTRAINT episodes_status_known CHECK ((status = ANY (ARRAY['open'::text, 'complete'::text, 'aborted'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: evictions; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.evictions (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    holder text NOT NULL COLLATE pg_catalog."C",
    renewed double precision NOT NULL,
    file text NOT NULL COLLATE pg_catalog."C",
    positions bytea NOT NULL,
    committed boolean DEFAULT false NOT NULL
);


--
-- Name: expdb_version; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.expdb_version (
    version_num character varying(32) NOT NULL
);


--
-- Name: priorities; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.priorities (
    buffer_id bigint NOT NULL,
    block bigint NOT NULL,
    version bigint NOT NULL,
    data double precision[] NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE ONLY expdb.priorities ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: segments; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.segments (
    buffer_id bigint NOT NULL,
    last bigint NOT NULL,
    first bigint NOT NULL,
    episode bigint NOT NULL,
    ordinal bigint NOT NULL,
    chunk bigint NOT NULL,
    chunk_row bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: steps; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.steps (
    buffer_id bigint NOT NULL,
    "position" bigint NOT NULL,
    episode bigint NOT NULL,
    step bigint NOT NULL,
    pre_agent text COLLATE pg_catalog."C",
    execute_time double precision NOT NULL,
    reward double precision,
    terminated boolean NOT NULL,
    truncated boolean NOT NULL,
    tags text COLLATE pg_catalog."C",
    revision bigint,
    policy_version bigint,
    policy_version_end bigint,
    scores text COLLATE pg_catalog."C",
    agent_id text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: experience; Type: VIEW; Schema: expdb; Owner: -
--

CREATE VIEW expdb.experience AS
 SELECT b.name AS buffer,
    s."position",
    s.episode,
    e.episode_id,
    e.run,
    e.task_id,
    e.task_name,
    COALESCE(s.agent_id, e.agent_id) AS agent_id,
    e.group_id,
    e.status,
    e.length,
    e.episode_return,
    (e.episode_tags)::jsonb AS episode_tags,
    e.started,
    e.ended,
    e.first_policy_version,
    e.last_policy_version,
    e.parent_episode,
    e.parent_step,
    e.parent_position,
    e.relation,
    COALESCE(e.root_episode, e.id) AS root_episode,
    COALESCE(e.trainable, true) AS trainable,
    s.step,
    s.pre_agent,
    s.execute_time,
    s.reward,
    s.terminated,
    s.truncated,
    COALESCE(s.policy_version, e.policy_version) AS policy_version,
    COALESCE(s.policy_version_end, s.policy_version, e.policy_version) AS policy_version_end,
    ( SELECT NULLIF(p.data[((s."position" & (1023)::bigint) + 1)], 'NaN'::double precision) AS "nullif"
           FROM expdb.priorities p
          WHERE ((p.buffer_id = s.buffer_id) AND (p.block = (s."position" >> 10)))) AS priority,
    (s.tags)::jsonb AS tags,
    (s.scores)::jsonb AS scores,
    ((((g.buffer_id || ':'::text) || g.chunk) || ':'::text) || ((g.chunk_row + s."position") - g.first)) AS payload
   FROM (((expdb.buffers b
     JOIN expdb.episodes e ON ((e.buffer_id = b.id)))
     JOIN expdb.segments g ON (((g.buffer_id = e.buffer_id) AND (g.episode = e.id))))
     JOIN expdb.steps s ON (((s.buffer_id = g.buffer_id) AND ((s."position" >= g.first) AND (s."position" <= g.last)) AND (s.episode = e.id))));


--
-- Name: experience_episodes; Type: VIEW; Schema: expdb; Owner: -
--

CREATE VIEW expdb.experience_episodes AS
 SELECT b.name AS buffer,
    e.id AS episode,
    e.episode_id,
    e.run,
    e.task_id,
    e.task_name,
    e.agent_id,
    e.group_id,
    e.status,
    e.length,
    e.episode_return,
    e.policy_version,
    e.first_policy_version,
    e.last_policy_version,
    (e.episode_tags)::jsonb AS episode_tags,
    e.started,
    e.ended,
    e.parent_episode,
    e.parent_step,
    e.parent_position,
    e.relation,
    COALESCE(e.root_episode, e.id) AS root_episode,
    COALESCE(e.trainable, true) AS trainable,
    ( SELECT count(*) AS count
           FROM (expdb.segments g
             JOIN expdb.steps s ON (((s.buffer_id = g.buffer_id) AND ((s."position" >= g.first) AND (s."position" <= g.last)))))
          WHERE ((g.buffer_id = e.buffer_id) AND (g.episode = e.id))) AS steps_held
   FROM (expdb.buffers b
     JOIN expdb.episodes e ON ((e.buffer_id = b.id)));


--
-- Name: scores; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.scores (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    episode bigint NOT NULL,
    "position" bigint,
    name text NOT NULL COLLATE pg_catalog."C",
    value double precision,
    scored_by text COLLATE pg_catalog."C",
    status text COLLATE pg_catalog."C",
    detail text COLLATE pg_catalog."C",
    scored double precision NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: experience_scores; Type: VIEW; Schema: expdb; Owner: -
--

CREATE VIEW expdb.experience_scores AS
 SELECT b.name AS buffer,
    r.id,
    e.episode_id,
    e.task_id,
    e.group_id,
    r."position",
    r.name,
    r.value,
    r.scored_by,
    r.status,
    (r.detail)::jsonb AS detail,
    r.scored
   FROM ((expdb.buffers b
     JOIN expdb.scores r ON ((r.buffer_id = b.id)))
     JOIN expdb.episodes e ON (((e.buffer_id = r.buffer_id) AND (e.id = r.episode))));


--
-- Name: imports; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.imports (
    buffer_id bigint NOT NULL,
    record text NOT NULL COLLATE pg_catalog."C",
    digest bytea NOT NULL,
    episode bigint NOT NULL
);


--
-- Name: leases; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.leases (
    buffer_id bigint NOT NULL,
    consumer bigint NOT NULL,
    id bigint NOT NULL,
    number bigint NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    request bigint NOT NULL,
    holder text NOT NULL COLLATE pg_catalog."C",
    leased double precision NOT NULL,
    expires double precision NOT NULL,
    ended double precision,
    acknowledged bigint,
    trainer_step bigint,
    policy_version bigint,
    rows bigint NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    positions bytea NOT NULL,
    columns bytea NOT NULL,
    checksum bigint NOT NULL,
    crc bigint NOT NULL,
    pinned bigint,
    CONSTRAINT leases_status_known CHECK ((status = ANY (ARRAY['leased'::text, 'acknowledged'::text, 'returned'::text, 'repeated'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: metrics; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.metrics (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    "time" double precision NOT NULL,
    measurement text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: requests; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.requests (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    request text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: rollout_groups; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.rollout_groups (
    buffer_id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    is_task boolean NOT NULL,
    task_id text NOT NULL COLLATE pg_catalog."C",
    first_episode bigint NOT NULL,
    episodes bigint NOT NULL,
    complete bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: shared_values; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.shared_values (
    buffer_id bigint NOT NULL,
    digest bytea NOT NULL,
    crc bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY expdb.shared_values ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: signatures; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.signatures (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    schema bytea NOT NULL,
    fields text NOT NULL COLLATE pg_catalog."C",
    crc bigint NOT NULL
);


--
-- Name: step_priorities; Type: VIEW; Schema: expdb; Owner: -
--

CREATE VIEW expdb.step_priorities AS
 SELECT p.buffer_id,
    (((p.block * 1024) + d.place) - 1) AS "position",
    d.priority
   FROM (expdb.priorities p
     CROSS JOIN LATERAL unnest(p.data) WITH ORDINALITY d(priority, place))
  WHERE (d.priority <> 'NaN'::double precision);


--
-- Name: value_references; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.value_references (
    buffer_id bigint NOT NULL,
    chunk bigint NOT NULL,
    digest bytea NOT NULL
);


--
-- Name: waiters; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.waiters (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    holder text NOT NULL COLLATE pg_catalog."C",
    since double precision NOT NULL,
    what text NOT NULL COLLATE pg_catalog."C",
    role text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.05');


--
-- Name: workers; Type: TABLE; Schema: expdb; Owner: -
--

CREATE TABLE expdb.workers (
    buffer_id bigint NOT NULL,
    id bigint NOT NULL,
    holder text NOT NULL COLLATE pg_catalog."C",
    run text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL COLLATE pg_catalog."C",
    since double precision NOT NULL,
    active double precision NOT NULL,
    ended double precision,
    counts text NOT NULL COLLATE pg_catalog."C",
    rates text NOT NULL COLLATE pg_catalog."C"
);


--
-- Data for Name: admissions; Type: TABLE DATA; Schema: expdb; Owner: -
--



--
-- Data for Name: annotations; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.annotations VALUES (8, 0, 'advantages', -1, '[0]', 2954675614, '\x');
INSERT INTO expdb.annotations VALUES (8, 1, 'advantages', -1, '[1]', 3168208075, '\x00000000');
INSERT INTO expdb.annotations VALUES (8, 2, 'advantages', -1, '[2]', 4190938330, '\x00000000abaaaa3e');
INSERT INTO expdb.annotations VALUES (8, 3, 'advantages', -1, '[3]', 2333702463, '\x00000000abaaaa3eabaa2a3f');
INSERT INTO expdb.annotations VALUES (8, 4, 'advantages', -1, '[4]', 1529443492, '\x00000000abaaaa3eabaa2a3f0000803f');
INSERT INTO expdb.annotations VALUES (8, 3, 'advantages', 4, '[1]', 1357683284, '\x00000000');
INSERT INTO expdb.annotations VALUES (8, 9, 'advantages', 4, '[2]', 2287861972, '\x00000000abaaaa3e');
INSERT INTO expdb.annotations VALUES (8, 3, 'weights', 4, '[]', 509000136, '\x000000000000e03f');
INSERT INTO expdb.annotations VALUES (8, 9, 'weights', 4, '[]', 1882687304, '\x555555555555d53f');


--
-- Data for Name: buffers; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.buffers VALUES (1, 'types', NULL, 12, 0, 12, 0, 0, 11744, 1, 0, 0, '{"types": {"tokens": ["int32", [null]], "grid": ["float32", [null, 3]], "scalar_bool": ["bool", []], "scalar_int8": ["int8", []], "scalar_int16": ["int16", []], "scalar_int32": ["int32", []], "scalar_int64": ["int64", []], "scalar_uint8": ["uint8", []], "scalar_uint16": ["uint16", []], "scalar_uint32": ["uint32", []], "scalar_uint64": ["uint64", []], "scalar_float16": ["float16", []], "scalar_float32": ["float32", []], "scalar_float64": ["float64", []], "tensor_bool": ["bool", [2, 3]], "tensor_int8": ["int8", [2, 3]], "tensor_int16": ["int16", [2, 3]], "tensor_int32": ["int32", [2, 3]], "tensor_int64": ["int64", [2, 3]], "tensor_uint8": ["uint8", [2, 3]], "tensor_uint16": ["uint16", [2, 3]], "tensor_uint32": ["uint32", [2, 3]], "tensor_uint64": ["uint64", [2, 3]], "tensor_float16": ["float16", [2, 3]], "tensor_float32": ["float32", [2, 3]], "tensor_float64": ["float64", [2, 3]], "floats": ["float64", [null]], "text": ["text", []], "raw": ["bytes", []], "empty_text": ["text", []], "flag": ["bool", []], "number": ["int64", []], "real": ["float64", []], "obs.image": ["uint8", [16, 16, 3]], "obs.speed": ["float32", []], "nested": ["json", []], "ints": ["int64", [null]]}, "optional": ["ints"]}', 1, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (2, 'evicted', 56, 120, 60, 56, 0, 4, 5896, 12, 3, 1, '{"types": {"obs": ["float64", [4]], "action": ["int64", []]}, "optional": []}', 1, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (4, 'empty', 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, '{"types": {}, "optional": []}', 0, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (5, 'consumed', NULL, 30, 0, 30, 0, 0, 3264, 6, 0, 0, '{"types": {"obs": ["float64", [2]]}, "optional": []}', 1, NULL, NULL, 0, NULL, 2, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (3, 'agents', NULL, 29, 0, 29, 0, 0, 10384, 10, 9, 0, '{"types": {"messages": ["json", []], "action": ["json", []], "score": ["int64", []], "late_field": ["float64", []]}, "optional": ["action", "late_field", "messages", "score"]}', 3, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (6, 'versioned', NULL, 9, 0, 9, 0, 0, 1472, 2, 0, 0, '{"types": {"text": ["text", []]}, "optional": ["text"]}', 2, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (7, 'tokens', NULL, 11, 0, 11, 0, 0, 3656, 1, 0, 0, '{"types": {"prompt_ids": ["int32", [null]], "output_ids": ["int32", [null]], "output_mask": ["bool", [null], {"aligned_with": "output_ids"}], "logprobs": ["float32", [null], {"aligned_with": "output_ids"}], "versions": ["int32", [null], {"aligned_with": "output_ids", "ascending": true}]}, "optional": ["logprobs", "output_ids", "output_mask", "prompt_ids", "versions"]}', 1, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (8, 'scored', NULL, 16, 0, 16, 0, 0, 2144, 5, 4, 0, '{"types": {"x": ["int64", []]}, "optional": [], "annotations": {"advantages": ["float32", [null]], "weights": ["float64", []]}}', 3, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, '{"black": 3}', NULL);
INSERT INTO expdb.buffers VALUES (9, 'measured', NULL, 1, 0, 1, 0, 0, 376, 1, 0, 0, '{"types": {"number": ["int64", []]}, "optional": []}', 1, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (10, 'imported', NULL, 3, 0, 3, 0, 0, 1128, 3, 0, 0, '{"types": {"messages": ["json", []], "action": ["json", []]}, "optional": []}', 1, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);
INSERT INTO expdb.buffers VALUES (11, 'related', NULL, 12, 0, 12, 0, 0, 2400, 6, 0, 0, '{"types": {"x": ["int64", []]}, "optional": []}', 1, NULL, NULL, 0, NULL, 1, NULL, 0, NULL, NULL, true, NULL, '{"step-2": 2}');
INSERT INTO expdb.buffers VALUES (12, 'shared', NULL, 6, 0, 6, 0, 0, 8854, 3, 0, 0, '{"types": {"ids": ["int32", [null]], "messages": ["json", []], "picture": ["bytes", []], "text": ["text", []]}, "optional": ["text"]}', 1, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, true, NULL, NULL);


--
-- Data for Name: chunks; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.chunks VALUES (1, 11, 0, 0, 13, 0, 11744, 5918935583, '71c9d3b2010d4cc8bf856b46c2f2a72f', '\xffffffffe00c000014000000000000000c0018000600050008000c000c000000000304001c000000f820000000000000000000000c001e001000040008000c000c0000003008000024000000180000000d0000000000000000000000000006000800070006000000000000018000000000000000000000000000000000000000000000000000000070000000000000007000000000000000000000000000000070000000000000007000000000000000e0000000000000000000000000000000e0000000000000000a00000000000000f0000000000000000000000000000000f0000000000000000a000000000000000001000000000000000000000000000000010000000000000a00000000000000100100000000000000000000000000001001000000000000150000000000000028010000000000000000000000000000280100000000000022000000000000005001000000000000000000000000000050010000000000003c000000000000009001000000000000000000000000000090010000000000007000000000000000000200000000000000000000000000000002000000000000150000000000000018020000000000000000000000000000180200000000000022000000000000004002000000000000000000000000000040020000000000003c000000000000008002000000000000000000000000000080020000000000007000000000000000f0020000000000000000000000000000f00200000000000022000000000000001803000000000000000000000000000018030000000000003c000000000000005803000000000000000000000000000058030000000000007000000000000000c8030000000000000000000000000000c8030000000000000000000000000000c8030000000000005600000000000000200400000000000000000000000000002004000000000000000000000000000020040000000000005600000000000000780400000000000000000000000000007804000000000000000000000000000078040000000000005000000000000000c8040000000000000000000000000000c8040000000000000000000000000000c804000000000000750000000000000040050000000000000000000000000000400500000000000000000000000000004005000000000000ba00000000000000000600000000000000000000000000000006000000000000000000000000000000060000000000005600000000000000580600000000000000000000000000005806000000000000000000000000000058060000000000005000000000000000a8060000000000000000000000000000a8060000000000000000000000000000a806000000000000750000000000000020070000000000000000000000000000200700000000000000000000000000002007000000000000bb00000000000000e0070000000000000000000000000000e0070000000000000000000000000000e0070000000000004f00000000000000300800000000000000000000000000003008000000000000000000000000000030080000000000007500000000000000a8080000000000000000000000000000a8080000000000000000000000000000a808000000000000bb00000000000000680900000000000000000000000000006809000000000000000000000000000068090000000000003c00000000000000a8090000000000000000000000000000a8090000000000004000000000000000e8090000000000000000000000000000e8090000000000003f00000000000000280a0000000000000000000000000000280a0000000000000000000000000000280a0000000000003c00000000000000680a0000000000000000000000000000680a0000000000004000000000000000a80a0000000000000000000000000000a80a0000000000003100000000000000e00a0000000000000000000000000000e00a0000000000000000000000000000e00a0000000000003c00000000000000200b0000000000000000000000000000200b0000000000004000000000000000600b0000000000000000000000000000600b0000000000006600000000000000c80b0000000000000000000000000000c80b0000000000004000000000000000080c0000000000006100000000000000700c0000000000000000000000000000700c0000000000004000000000000000b00c0000000000004a00000000000000000d0000000000000000000000000000000d0000000000004000000000000000400d0000000000000000000000000000400d0000000000000000000000000000400d0000000000000a00000000000000500d0000000000000000000000000000500d0000000000007000000000000000c00d0000000000000000000000000000c00d0000000000007000000000000000300e0000000000000000000000000000300e0000000000000000000000000000300e0000000000001710000000000000481e0000000000000000000000000000481e0000000000003c00000000000000881e0000000000000000000000000000881e0000000000000000000000000000881e0000000000004000000000000000c81e0000000000000000000000000000c81e0000000000003c00000000000000081f0000000000006900000000000000781f0000000000000000000000000000781f0000000000004000000000000000b81f0000000000000000000000000000b81f0000000000003800000000000000f01f0000000000000000000000000000f01f0000000000000a0000000000000000200000000000000a000000000000001020000000000000000000000000000010200000000000003c000000000000005020000000000000000000000000000050200000000000004000000000000000902000000000000000000000000000009020000000000000610000000000000000000000470000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000004e0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000004d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000002a0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d000000000000000000000000000000220000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d000000000000000000000000000000002700000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000d0000000000000000000000000000000c0000000000000000000000000000000d0000000000000000000000000000000c0000000000000000000000000000000d0000000000000000000000000000000d0000000000000001000000000000000d0000000000000000000000000000000d0000000000000000000000000000004d000000000000000000000000000000ffffffffffffffff00000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000000009000000000000000a000000000000000b000000000000000000000000000000ffffffffffffffff000000000000f87f000000000000f03f0000000000000040000000000000f87f00000000000010400000000000001440000000000000f87f0000000000001c400000000000002040000000000000f87f00000000000024400000000000002640000000000000f87fffffffffffffffff0000000000000000ffffffffffffffff0000000000000000ffffffffffffffff3d09000000000000ffffffffffffffffd74fc78f2562b8701097a55b00000000ffffffffffffffffb7e22d1bad8ded2dd7fb1065837b97585cae654f2c42b8f20000000000000000ffffffffffffffffa6c9753ee0f9fa09b3c14c4ec8a82397f692ea1bf9b47f2ad872651da12189ad21138f16c631650543e4ab744787814f0000000000000000ffffffffffffffffc2a23c98eb3edf14cd423158a40db3c0ac2fd9c5abeb3c94de2354e0d6bcb84ca8b8192a9817da137a3c1433abd35fc332dc6be77f648e211f6178809cd4192222da3cd8d18574215480fba3589bcd14d1c0f9bc7e5409e86c7e4cbbc531ed440000000000000000ffffffffffffffff965b00ed7ae531fe5a43ef2000000000ffffffffffffffff253b89831d948e3c8d77eae905660e774e93e9da9ad87fe10000000000000000ffffffffffffffffd853d01b4a7daf8daebebb6cd18c9ace167f6c2792ba3f7783a25cd36c94d19e6e35bb095e85a4d12972e75dd86997ad0000000000000000fffffffffffffffffd85a082a26c840e4555332e717e9abbea605f98981643d1758c9d7dbd34f8711e11ac3ec9fafc0faf37be243267d3aeb81d5e94e394043fefabe35cdf10b3a4df8fe4612f556a6024532e4502261da3727befe3a320154269e18e4a8f54fe790000000000000000ffffffffffffffff134ed5067596cea9b0cd99fbbd62b099f9f29c5b5349afc50000000000000000ffffffffffffffff076dfbeb041cfe4a1c01b3b7ffa1fac1dbeaf3ef9a8abba2748e833393bb8cbd49e7ad2bccc0d560aa70377d846c94b90000000000000000ffffffffffffffff0bbbe9f781a5eb8c4e609a70a291b932e18982753c8c2d9543056cc6bff8ad7d481f762e45c07a2aee64c58839a7819ea31af2e17b5324d1691f4594691b9522bb0a66d36d92818bde10d6d780ebd2bb390d075143292c67d80b83691ec021450000000000000000ffffffffffffffff0100010101010001010101000101010100000101010000010101000001000100000100000000010000010001000001000100000100010000010001010001000101010100010101000000000000000000ffffffffffffffffd74fc78f25624fc78f2562b8c78f2562b8708f2562b870102562b870109762b8701097a5b8701097a55b701097a55b551097a55b551097a55b551054a55b5510543d5b5510543d2700000000000000009c0000000000000028b52ffd209cfd01003402b7e22d1bad8ded2dd7fb1065837b97585cae654f2c42b8f27265d7ddd7eec5923eb4000c003833c0c66063b031d8186c0c36061b838dc1c660e36e2509380100000000000028b52ffd6038001d03005404a6c9753ee0f9fa09b3c14c4ec8a82397f692ea1bf9b47f2ad872651da12189ad21138f16c631650543e4ab744787814f8136f091732237f0f0f488db5b58d489ae7893a4000c00b85a039a009a009a009a009a009a009a009a009a009a70f41c03000000700200000000000028b52ffd6070014505008408c2a23c98eb3edf14cd423158a40db3c0ac2fd9c5abeb3c94de2354e0d6bcb84ca8b8192a9817da137a3c1433abd35fc332dc6be77f648e211f6178809cd4192222da3cd8d18574215480fba3589bcd14d1c0f9bc7e5409e86c7e4cbbc531ed44da9985d778ec704e1bd4f6c0050232d5169b407cc94db39e24e6da04a1e82fee3b05058aee4f6f000c00e0a2139406807850f2a0e441c9839207250f4a1e943c28395ca58202000000000000ffffffffffffffff965b00ed7ae55b00ed7ae53100ed7ae531feed7ae531fe5a7ae531fe5a43e531fe5a43ef31fe5a43ef20fe5a43ef20235a43ef20238d43ef20238de2ef20238de22520238de2255100000000000000009c0000000000000028b52ffd209cfd01003402253b89831d948e3c8d77eae905660e774e93e9da9ad87fe1bfc19919433ecec2a8dd000c003833c0c66063b031d8186c0c36061b838dc1c660e36e2509380100000000000028b52ffd6038001d03005404d853d01b4a7daf8daebebb6cd18c9ace167f6c2792ba3f7783a25cd36c94d19e6e35bb095e85a4d12972e75dd86997ad96b13da724dd4ea4f935c96a520df867570ec219000c00b85a039a009a009a009a009a009a009a009a009a009a70f41c03000000700200000000000028b52ffd6070014d05009408fd85a082a26c840e4555332e717e9abbea605f98981643d1758c9d7dbd34f8711e11ac3ec9fafc0faf37be243267d3aeb81d5e94e394043fefabe35cdf10b3a4df8fe4612f556a6024532e4502261da3727befe3a320154269e18e4a8f54fe7903f7c1306d1551861ed198e275148aa1c422172ac3ce0234efac8a13b1fa48f606299958f3f3044a000c00e0a213943c287950f2a0e441c9839207250f4a1e943c28395ca5820200000000009c0000000000000028b52ffd209cf501002402134ed5067596cea9b0cd99fbbd62b099f9f29c5b5349afc5903009a4aabd368b52000c003833c0c66023300cec067603bb81ddc06e6037b05bb7420700380100000000000028b52ffd6038001d03005404076dfbeb041cfe4a1c01b3b7ffa1fac1dbeaf3ef9a8abba2748e833393bb8cbd49e7ad2bccc0d560aa70377d846c94b9908ffa2a7c0dccb2ad57ef24d77832632c25211f000c00b85a039a009a009a009a009a009a009a009a009a009a70f41c03000000700200000000000028b52ffd6070014d050094080bbbe9f781a5eb8c4e609a70a291b932e18982753c8c2d9543056cc6bff8ad7d481f762e45c07a2aee64c58839a7819ea31af2e17b5324d1691f4594691b9522bb0a66d36d92818bde10d6d780ebd2bb390d075143292c67d80b83691ec0214554c002c5dcc44d5f784670b20ec1ac8a66e69e6866f9c8af3d67b02c7a1b268fd560922521fe651b000c00e0a213943c287950f2a0e441c9839207250f4a1e943c28395ca582020000000000ffffffffffffffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffff00000000000000000100000003000000060000000a0000000f000000150000001c000000240000002d00000037000000420000004d000000340100000000000028b52ffd6034006d0100680000010002030405060708090a0c003c15094b99e7a892198a949fcded0cd9cd5a6626f7d2bc622d1878005800ffffffffffffffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffff00000000000000000300000009000000090000000c0000001200000012000000150000001b0000001b0000001e000000240000002a000000a80000000000000028b52ffd20a8050100680000803f004080a0e0004120300800022320be40213018a802e20b147e734400000000000000ffffffffffffffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffff000000000100000003000000060000000a0000000b0000000d000000100000001400000015000000170000001a0000001e00000022000000100100000000000028b52ffd601000a50200f8000055d53f55e500f0f53fabaafa000040024055550508080a0a0a4055550d18005eb911d542e0187002dc01c7b6ba476135e00318b8d4086000dc48d560452fced25403585984ea0a306fe5052003ee1d00160000ffffffffffffffff000000001b00000051000000a20000000e0100009501000037020000f4020000cc030000bf040000cd050000010700005108000051080000510800000000000028b52ffd6051077d020064027374657020303a20c3a9e4b896f09f8c8d202771756f746564270a31323334353637383931310d004640958a9f2a44979953002a7b034aa880ba1ca09807503200d42190b206a8089cbb0b730c00000000000000ffffffffffffffff00000000000000000100000003000000060000000a0000000f000000150000001c000000240000002d000000370000004200000042000000ffffffffffffffff00000100010200010203000102030400010203040500010203040506000102030405060700010203040506070800010203040506070809000102030405060708090a000000000000ffffffffffffffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffff5505000000000000ffffffffffffffff00000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000000009000000000000000a000000000000000b000000000000000000000000000000ffffffffffffffff0000000000000080000000000000008000000000000000800000000000000080000000000000008000000000000000800000000000000080000000000000008000000000000000800000000000000080000000000000008000000000000000800000000000000000002700000000000028b52ffd6000262d8000da8a380d8611111110d100d100d10037c82fcb793f196396f5a515cf45749897543d9fd16b09d2dc18b29ed48c873e6b339a97cc78a961d8e9bfa1a931def76aa55233ded03c1e8434629e1df3983e3ca700778a0491dea8c22a86cb00ac13ad2a8cbb46ea32dcc7aeff1ae93ac0eb94b4dd89c59f06ceab2e6ed3cbacd6867ee1c17ae95cdc3eeedc0aabc1899e700664b2c8ee4f92aa78347389c9e77e60806b2b288fedff7b53f19cdf415ffc9174207a9a5646bda2f6506d83145965747e1ecc143232dcaf92ba932d4bf3de2198afd93371b0547e308132a8e668411b1dcb72481e98f77376251e58b0af9eb74778055c6ba9c300b34b47bb2151a618417b89a91bfe62bc7ff6fcba036ee49d7b5929560400a692c20b83378ea1c11339b98c9869f5ed14c579c1e16fc2fc95d0c3c4816b15547c579c7ec8bf555f6ae85858bae3a20a90c491f284e41d5f3a2b7cfe1ac5cce4cbcfae98788bdf77d130c602206af429d1bd4354c40b451c4a4213c3144f80768ac4c72b99c362d9924008daf79719a165c3cd8d1f503a513f860ac9e4cdf91760b78b2934df9480bae180fdc0bac92a0a55a73ccca9f0e2054f11abb8af5ee2bb3bc0819c68c9f14112f1dcf470f1ecfd789744183732f9fb2a29bd316b797a71238d0ef0b98b48c9f1bf6eaf53c27ed96c72f2de46191ac7d20a8b1f82ad360dfe8b39e85d585f54a11208bd4cfe33097f8cf7281f9db6534e1083c9b43231a988e59b0656d4e1f65c86a5e92021184a6d81b8493f972986f8dcec40d141e4824ce88877df4b4b3a6c1e8c513894cd92aebd1b5d9222a137275d79b6c89d899b6cc4d5fc4d031a35f0b50d68fdd781661afe8f0f594f9f72ab6c179550fb52306e472d8e7e511c7cf4d418ff1f10a6e547fbfa7ea796599f43b907df7355d62b4ca205b75b1b4903aa4bdb96b8be342b21c768a7aff0e0a1e1a80048413358ffe262f4dad336055fb0a6107c3f4a4a22b5053c6a2ad3ae69917385d6735f7a87af2cf933e64adf1cb30be80f70980936c979cfff324d483b8b341759602eb032b5ba507a801d5e1ea8976d0a44f119ba766f650abff3fb7f84d40860ae3e95f1d72d4e3bf3644b23f648daddc3fd726850a774a58ea34d63b9e682650551b61187c2b68464a6e52ecdd2af73ba7c47fe49b03ca883b6a9d7b8a00f8699a8f3489b5a2a332322224992a43923108080c00001420306f5cbfa031340f8aefdffffcffa1a354d3b74422f2b8fe844a3e7040cc731814f43c6b81c700528a0401ebcca57f41449a791ce43dabf3beefef66a463c05418710670246fcbf16f15cf9e657511fbeeee240d749ce36c7f30bafa26f148aee92aa1a76ff45994cc910d326079b0072f64d79b6e57c874ba9c9cf3e3d2b78308cedfd2c9d33633e2fed1ea4cab8e6cb3dfc1fc914836c17a2bf90a2305c11ed9c7f42ec4b1d495d5653d04ef1080cda109413cd4a42ee710a5946122e6366bcea7342c5e0c6ef10de2885e0016295de0608f6628154e5b6ecd586c1a09342135e138218d11a660cc5c6873bcde3ba2d1c7043569e08970ad7300a740509914121a0a201de0ad9aa6219876ae9cb707deefed6c936ca35af1b45e9700cd4a0e97226cd977ab9ad1de0037e231782c4ea0ba9b576a1cc258653d3768e8c7a652b7197ea57281863ae9280229dfcc148d71bcfd3e1ee3bafa362c260dee6cb34deee374f4ecd834c090f93085df4afc57905ea74825a5463d10707f28d8e2aa390c97bc133799282dcae8ff4e48dc7586ad6108c104e882829ee17779f77db12a368683eb4c7eb4a49c0e86702a7b2f32a08af6338612b1a28c792b2292358f9afb2632001d87e4c2afa38a48a2e8d8734d598428a41b7cc7d616b7387f88ad128d7db08ea40bdcecdf24030111586fce91bde2e768cd92997effc33974389458925bd81b7c564ce876616151236b5f5bae0b90aecfa3cb1e6fc3e831baad9f02a3194b53736f2356363dbac00537dfde67b0286ed9211029adf304786f55c6a64e533915278a0962a80db85c98eaa092bd4bd8501916e0d3373d4703e22e03e82b2638354b93f35882a038a8783232e96ce3c68150325d522ac5a54120fce8218f4abef6646e414234735f163768bde9c861d124705c354499b89f03032f5cb05676c22fc3a034b81fab29677e11797afbaf4af33e7f8c3cdeb6c05757eef31c86047cc78b3b837d0e79e57163eb8f56d554ff045cd459a48be297ee1a3c4633b1c0d0b0367ac35c3230a8fd0b3e09f52ac1001d97685fe2dc033f0996204b5189422f033cd7e4f3c6a9fcc0d116bc9369f56abb75bab0b1644e5ab4087c6226d7400ee83e497ff0e174e2be7aa071a6b350502262f9ee6324497b6bbaa748c19939706d773c2688c1278eae22ddc3025e431de505876f683286031706fc580802894f38dd39e176a0981b14b14579b54c65308d9bcbaeab48af1642fe88a058b87262db0407a7e0f1f7e9adeb95d60255da50f83731e1e383d859c2b6a700a5f6f371b746568c9dc9d1faef9167291e91f875610eb3e7b7df178964a46b8c99246a2ee2816485a81b50a83948d63566a9dc62299e00ffb829c771a9a362516769ca26a857f97a2b427c57d4152a1b9049e107f53013da44e1659c667513f182babb7dde96e9ad1cdb4cf3d01400a37885956bd0e664c72763be7f4166e5a9c2db59f6da6622597bf6420407991706461dd0b571f21c8f49e8690b98d61a4156133746219550003477cb09a15c396615558270ca166e05cc18c163fa13625669da15b0dba93bda4644ae969fad9250799c11930877e1420a274a93df86798136b7014513eca63a515524869c03d1e312ebe9d4fdb9328ef00bb0113dc9f4bdf2a643c3dc3b65e97789c904a0b190bd675c0399bbc61877fd344e183d7ab67104b279af7868ea356653601ec700a2fcb50039eeadaf8534a344e263950414a682dc73c683037dc35ab70c4f52f8274b1f300b35226696555841580beadd7273db4c5ed0b4be2cb96546601ddc0c1f34e4d8b3b5b14924a8d72b9f51c6d21d613189899b9a155149ef51a8199ff2a5d8a534915cc769978f73defa90f48c2060892214cd3058dde3191c0e0ad14636d38e9097f831af3b13e53072d108a3eec9d649b6e2e37b9b06a60a9897435ad89659abf5d2034804e5d30589697d3d412106b07d61631e2980477afe5b6f9b86889afd09d641101c65d511e8330026564ffadb2263ce9d795013ea68a9140a74a04d805d6e7f3ab76c25afa22548f3367754330660b58b194e0944f6012ac683ba557adb024281bc546213f93627ceeb1cef660cdac3384bd10847d7ef4d8c9c82845001c08ff8140856816915c42410b7a745de818bd512791343b00a128275d533a68000474ee56060de90ed4434179e93284a7855d170881cd3bd2a717612a0a0334a07ed24bab16c7c10fc3090198c3da61abbd54c03f729540e175052b16100afc8cf6ffcc0185664b0fe476ba3e8538a5a1de41173c362fb47e10bedaaabbba8c4590dcb8c8d11e8957caf59f32af8173710dc2b3e9442fc5232d4dc5d8b2985dc40406038f110075bc4f9044ef27bc2756d0ebbf7ab2f2e5b2c21cb881dfdce2a57813cbb06253e096969f4058120d356514041fcc726c30b56aba29e0c6cb610a42797e9a4cdc7b391112acb46553b4affa3010094dbb70fb017dc5eafa6459ae3b4dd16151c0c19457b5a19183fcb2398a8b909c731440352c681bae9e9a77b383ce4e069c487e8b808f2cf5474512a691df3b0e83b9af6899bd0bc40f036876643e2362c9418f8417c89642417a9f601bdb0f6c72f408db84450e67eb8f301628c3a58cf622ce946dd1336e2644a58730a81146229a618a8b308cdcf1c7364631183a180b20eb33ce5f801bfc7bf565850de9095b361568c07865b0ac7f1675edae89fd68d8317b3a2d31168b5d1544c477626fa72508f2ee1b8ec641601701e159ee90a17bf3480238edc704ab96760faa38161637bfc51f2eeeb7bd14f010541712063bcb53e9077eb905aa292afe4896d1d5e700e8e23e95022ef3e7ea623ae08287b56058b96fbd760f264a07d4448029079c18fb6efa910db400c170a6338fa7b515f7a35f417950488b40f61ca87a648623038407baf00af7da71ef7a457eea25651919b47de886d59679d792083b2e397bcfd19d98c82c1cb9ef4cee4cd9b62133a0b92106c2073723723d3c30d214cff5bb6d7253b85e74d4fbebb0a11162190c73a3f82dfd77eac81d33728c8b9980fc4ab634dd988d6acdd48db17d4d68bf61c282eaf4b7ac92c6cb0e32ff508a90765fb8f0353c2038f77d1a5dd644aec1441ac6f7a76f739c60dd27c9c33809a1acda18a7dc2ac28eff7cf70f341cfd00b02ed2190a529bfd1387e1f4a107999f00abcf4deab61a1a91342711f72c2a3cade23e6a6e786ddf951d7cbe3c49ed18f2367c734d0f6e4c4af4d7327ee23425e56038745f668b9ce115642fc8bd62701ba23c36998c37e502f3d135609b7d283513de54855ace0a63c1e09c363701f8a5856f27bcb07040b623b5a83aacc128227f2155272e2fcb9c62b34d09ee7aa110a2a572df17080620e4f1aea928b853c41f5aad2914f86d5962da96139c6cf910009777f3b99aa44b90da6a008382ee795e8b44eff638a1acb0bfae8f99d7644f9b0f008409a1e08d4fccbe7be460e12d353051f70fd4597208a44ddb549ee28f67f309de139fa6a3847cabc1a92472b1f09e330379fee745792b6eecc1cee903823c0e6efc6eb05059645599a6f098a30b17b2c71019a14cccd17fa0668aec79a41d873ac41d15eea913a041e8a968341e60301c7006fe5005be1a342f2bcccd7796647f8009be9c6e1cb530f469566c4a4265e99d7426b32c70b563ef0b7834e53f2c58330253a6fbbfa53fa50b0f24b165d67a71a7c670bcfc248c291503e5208931f862e007335a28870e23e310c983525bb418cfaa45bf7c2153c610f13bca5ee02711ff52f0cfb47b3a69ab8030ec57460db90824b2c1589be72b1187a538c40cd9f3f316b5135817122e193d366837c3b2afa4229876e1deb4abb5642c58cce86bdc35730dceeaea1ac6127ee7b0c819ae30652e5d5ad3f01eebaaa5134a5820e93350096e43d5b0e11496b7ce1ca12529ee146e9839aec8007c6c168f66d944e73acb34c9768f3c0c1b2a784f8c88ac682b1c0821f3dd6627811b199ff69d8e362bd62c7436dae7da47b01fe49b89d523f370c2c47119b1a18f348001d9264e711416b91198ff236910b27d85ecbed222cc0461080e8253e902bcfb06c39130275f7f73724cb8bac02cbace45c5727f1266f3d511360a0681cdc3f510954ed3f54d1ac6856cd132e65a783c5687d454e522f68c4045b20ef4927d21e43676070fa30c40f5330d25e3fb9442f74b01a9c0e26716fb763a11f633fe8c36877324d93bdf21ce7d095880620abad063d1497de561cb333e086744c707e02840c5c9cebe0eba79f995d8d445d860a6eb2b6913f47cdb3042ad760110577e76ff43c7219481a1dfd69dfc9fd3e74d93246edcaa21aaa070937a159abdfb318ee0aa25738330c9c10fba87e0c8c1a3fafccbcf7e0fbcb40946779505fc5262e218e1424ef7e18b571a7a46e4deba5542d459d0fafc97fcfc4aa065cb04e6a748636bd1cde3fd943776da8231dc409971df5aa222b5a04096bb5b3821ac1f31b2e8bf6c51582fce6baee5a0d33074885cc5e80a00ffffffffffffffff000000000000803f0000004000004040000080400000a0400000c0400000e040000000410000104100002041000030410000c64200000000ffffffffffffffff000000000100000002000000030000000400000005000000060000000700000008000000090000000a0000000b0000000c0000000c000000ffffffffffffffff000000002c0000005800000084000000b0000000dc0000000801000034010000600100008c010000b8010000e50100001202000000000000120200000000000028b52ffd601201bd020084037b2261223a5b312c6e756c6c2c7b2262223a747275652c2263223a312e35652d3330307d5d2c226b223a307d31323334353637383931317d0b00f22e5300e6014c063005601ec064005300e6014c0630053f48950100000000000000ffffffffffffffff000000000100000002000000030000000400000005000000060000000700000008000000090000000a0000000b0000000c0000000c000000ffffffffffffffff000000000100000002000000030000000400000005000000060000000700000008000000090000000a0000000b000000ffffffffffffffff0000000000000000fffffffffffffffffe1f000000000000ffffffffffffffff0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000ffffffffffffffff00000000000000000100000003000000060000000a0000000f000000150000001c000000240000002d00000037000000420000004d000000680200000000000028b52ffd6068017d0200680000010002030405060708090a1e00bd0504e001b8575340011e807b5d820c4000b2eb104e8007c0bdb68a010880ec4e55023c00ee2d85033c00ee0d05023c00eeed440108807c338900642c032c00000000000000');
INSERT INTO expdb.chunks VALUES (3, 14, 10, 2, 5, 0, 1960, 7995159842, 'd9c4779ddac746f8806c0f244e68d392', '\xffffffff5803000014000000000000000c0016000600050008000c000c0000000003040018000000480400000000000000000a0018000c00040008000a0000001c020000100000000500000000000000000000002000000000000000000000000000000000000000000000000000000028000000000000002800000000000000000000000000000028000000000000002800000000000000500000000000000000000000000000005000000000000000010000000000000058000000000000000000000000000000580000000000000001000000000000006000000000000000000000000000000060000000000000000000000000000000600000000000000018000000000000007800000000000000000000000000000078000000000000002800000000000000a000000000000000eb010000000000009002000000000000000000000000000090020000000000001800000000000000a8020000000000000000000000000000a8020000000000006400000000000000100300000000000000000000000000001003000000000000010000000000000018030000000000000000000000000000180300000000000000000000000000001803000000000000180000000000000030030000000000000000000000000000300300000000000018000000000000004803000000000000c80000000000000010040000000000000000000000000000100400000000000018000000000000002804000000000000000000000000000028040000000000001400000000000000400400000000000000000000000000004004000000000000010000000000000000000000100000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000900000000000000000000000000000005000000000000000000000000000000190000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000000000000000f87f000000000000f87f000000000000f87f000000000000f87f000000000000f87f00000000000000000000000000000000000000000100000003000000050000000700000009000000000000002f0000006f0000009e000000de0000000d0100004d0100007c010000bc010000eb0100007b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2030206f6620617474656d70742032227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a307d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2031206f6620617474656d70742032227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a317d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2032206f6620617474656d70742032227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a327d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2033206f6620617474656d70742032227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a337d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2034206f6620617474656d70742032227d000000000000000000010000000400000009000000100000001900000000000000000000000100000002000000000000000100000002000000030000000400000000000000010000000200000003000000040000000500000006000000000000000100000002000000030000000400000005000000060000000700000008000000000000001f0000000000000000000000010000000200000003000000040000000500000000000000280000005000000078000000a0000000c80000007b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a307d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a317d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a327d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a337d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a347d7d0000000001000000020000000300000004000000050000000000000001000000020000000300000004000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (3, 19, 15, 3, 5, 0, 1960, 6561573345, '3c6329296b024175bed9d2ac416bb47a', '\xffffffff5803000014000000000000000c0016000600050008000c000c0000000003040018000000480400000000000000000a0018000c00040008000a0000001c020000100000000500000000000000000000002000000000000000000000000000000000000000000000000000000028000000000000002800000000000000000000000000000028000000000000002800000000000000500000000000000000000000000000005000000000000000010000000000000058000000000000000000000000000000580000000000000001000000000000006000000000000000000000000000000060000000000000000000000000000000600000000000000018000000000000007800000000000000000000000000000078000000000000002800000000000000a000000000000000eb010000000000009002000000000000000000000000000090020000000000001800000000000000a8020000000000000000000000000000a8020000000000006400000000000000100300000000000000000000000000001003000000000000010000000000000018030000000000000000000000000000180300000000000000000000000000001803000000000000180000000000000030030000000000000000000000000000300300000000000018000000000000004803000000000000c80000000000000010040000000000000000000000000000100400000000000018000000000000002804000000000000000000000000000028040000000000001400000000000000400400000000000000000000000000004004000000000000010000000000000000000000100000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000900000000000000000000000000000005000000000000000000000000000000190000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000000000000000f87f000000000000f87f000000000000f87f000000000000f87f000000000000f87f00000000000000000000000000000000000000000100000003000000050000000700000009000000000000002f0000006f0000009e000000de0000000d0100004d0100007c010000bc010000eb0100007b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2030206f6620617474656d70742033227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a307d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2031206f6620617474656d70742033227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a317d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2032206f6620617474656d70742033227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a327d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2033206f6620617474656d70742033227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a337d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2034206f6620617474656d70742033227d000000000000000000010000000400000009000000100000001900000000000000000000000100000002000000000000000100000002000000030000000400000000000000010000000200000003000000040000000500000006000000000000000100000002000000030000000400000005000000060000000700000008000000000000001f0000000000000000000000010000000200000003000000040000000500000000000000280000005000000078000000a0000000c80000007b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a307d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a317d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a327d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a337d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a347d7d0000000001000000020000000300000004000000050000000000000001000000020000000300000004000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (5, 29, 25, 5, 5, 0, 544, 7127559344, '852f66970471426fae45772c411e602f', '\xffffffff6801000014000000000000000c0016000600050008000c000c0000000003040018000000b00000000000000000000a0018000c00040008000a000000cc000000100000000500000000000000000000000b0000000000000000000000000000000000000000000000000000002800000000000000280000000000000000000000000000002800000000000000280000000000000050000000000000000000000000000000500000000000000001000000000000005800000000000000000000000000000058000000000000000100000000000000600000000000000000000000000000006000000000000000000000000000000060000000000000005000000000000000000000000600000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000a00000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000000000000000144000000000000018400000000000001c400000000000002040000000000000224000000000000000000000000000000000cae25731f2ee07c0b34a6cca0904f03f892fc343bc30ea3f22895f499191e93fd060f9e1194fef3f09b19e3a560efb3f9a9166ea8d8da7bfc47b7a50f400ee3ff1fd3a2689cde7bfeaee47b8ada4d6bf');
INSERT INTO expdb.chunks VALUES (6, 5, 0, 0, 6, 0, 512, 7560458883, '9cbd71c792254dcbbc33305eb6c890b4', '\xffffffff5801000014000000000000000c0016000600050008000c000c0000000003040018000000a00000000000000000000a0018000c00040008000a000000cc000000100000000600000000000000000000000b00000000000000000000000000000000000000000000000000000030000000000000003000000000000000000000000000000030000000000000003000000000000000600000000000000000000000000000006000000000000000010000000000000068000000000000000000000000000000680000000000000001000000000000007000000000000000000000000000000070000000000000001c0000000000000090000000000000000f0000000000000000000000050000000600000000000000000000000000000006000000000000000000000000000000060000000000000000000000000000000600000000000000000000000000000006000000000000000000000000000000000000000000000001000000000000000200000000000000030000000000000004000000000000000500000000000000000000000000f87f000000000000f87f000000000000f87f000000000000f87f000000000000f87f000000000000f87f0000000000000000000000000000000000000000000000000100000003000000060000000a0000000f0000000000000078787878787878787878787878787800');
INSERT INTO expdb.chunks VALUES (6, 6, 6, 1, 1, 1, 320, 7166343076, 'fbed7f17d7594e36a4e3d1a5263a9da7', '\xffffffff1801000014000000000000000c0016000600050008000c000c0000000003040018000000200000000000000000000a0018000c00040008000a0000009c000000100000000100000000000000000000000800000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000000000000004000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000f87f00000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (6, 7, 7, 1, 1, 1, 320, 5821673999, 'd3f2846485c54e1db3e76f35cbbe87d2', '\xffffffff1801000014000000000000000c0016000600050008000c000c0000000003040018000000200000000000000000000a0018000c00040008000a0000009c000000100000000100000000000000000000000800000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000000000000004000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000f87f00000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (6, 8, 8, 1, 1, 1, 320, 6775945919, '7df998e0b5294a49924937afe9b47cee', '\xffffffff1801000014000000000000000c0016000600050008000c000c0000000003040018000000200000000000000000000a0018000c00040008000a0000009c000000100000000100000000000000000000000800000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000000000000004000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000200000000000000000000000000f87f00000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (7, 10, 0, 0, 11, 0, 3656, 5325425844, NULL, '\xffffffffb804000014000000000000000c0016000600050008000c000c0000000003040018000000880900000000000000000a0018000c00040008000a000000ec020000100000000b00000000000000000000002d00000000000000000000000000000000000000000000000000000058000000000000005800000000000000000000000000000058000000000000005800000000000000b0000000000000000000000000000000b0000000000000000200000000000000b8000000000000000000000000000000b8000000000000000200000000000000c0000000000000000200000000000000c8000000000000000000000000000000c8000000000000002c00000000000000f8000000000000000000000000000000f80000000000000030000000000000002801000000000000000000000000000028010000000000005c02000000000000880300000000000002000000000000009003000000000000000000000000000090030000000000002c00000000000000c0030000000000000000000000000000c0030000000000003000000000000000f0030000000000000000000000000000f003000000000000b001000000000000a0050000000000000200000000000000a8050000000000000000000000000000a8050000000000002c00000000000000d8050000000000000000000000000000d80500000000000030000000000000000806000000000000000000000000000008060000000000006c00000000000000780600000000000002000000000000008006000000000000000000000000000080060000000000002c00000000000000b0060000000000000000000000000000b0060000000000003000000000000000e0060000000000000000000000000000e0060000000000007c010000000000006008000000000000020000000000000068080000000000000000000000000000680800000000000030000000000000009808000000000000000000000000000098080000000000006000000000000000f8080000000000000000000000000000f8080000000000003000000000000000280900000000000000000000000000002809000000000000600000000000000000000000190000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000003000000000000000b0000000000000000000000000000000b000000000000000000000000000000970000000000000000000000000000000b0000000000000003000000000000000b0000000000000000000000000000000b0000000000000000000000000000006c0000000000000000000000000000000b0000000000000003000000000000000b0000000000000000000000000000000b0000000000000000000000000000006c0000000000000000000000000000000b0000000000000004000000000000000b0000000000000000000000000000000b0000000000000000000000000000005f0000000000000000000000000000000b0000000000000003000000000000000b000000000000000000000000000000180000000000000000000000000000000b0000000000000000000000000000001800000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000000009000000000000000a00000000000000000000000000f87f000000000000f03f000000000000f87f000000000000f87f000000000000f87f000000000000f03f000000000000f87f000000000000f87f000000000000f87f000000000000f03f000000000000f87f00000000000000000000000000000000dd05000000000000000000003c0000003c00000046000000510000005d0000005d0000006a00000078000000870000008700000000000000000000003c0000003c00000046000000510000005d0000005d0000006a00000078000000870000008700000097000000d48f010003060100ef9a01004b41010016b80100d21501006e5f010041130000d96500006d9c000035510100ae330200194b000010100000c27901001cae01008e0402001f170100c8c50100369e01008a100000d3c20000d9a10100e0d8000008580100cc2e0100a87c01000015020045fa01006ac00000360801004f32000031d601006a160000620601008b040200ff1f0200d4b70000f03002000846000002a50100775d010017d801000eef0100c0ff00004c5f01002fb10100e4580000e9660100bbed000096d60000259c00006f110100b5090000b2650100d435020080170100120d0100620e0100f04e00008e3c01007f0602000f02020039410200f961000020de0100472601009e9400000cbe0100a56f0000adfc00003641000020bc0100734700001e3b02009eb00000f700010073b5000087c500001c9d0100c5d6000071b20100aa870000d2700000a0ca0000fc3601006ea201008598000042980100b3fc00007d2d0000c6e8010077bf000004a00100664900009ced0100a03702000035000048b90100dd15010096440200d8620100662c0200db210000576201006fce0100e0e80100d2810000ebf60000711a0000e7c500009512020074a2000019290000187d00006d670000cafc0000a95a0000ad5e0000c9960000b24c0100fe6d00000a8a00008f610000127a00009a630100a17f0100e7bb0000bf700100c1e3000065ba0000455f0000b6c3000001bb00008c0f010099420000f252010061a40100af3b0000d9a6000083bb0100ff650100278601001c87010062aa000084100000a6f9010041470000d81a0100d6ff01006621000000000000dd05000000000000000000000a0000000000000000000000000000000d000000000000000000000000000000100000000000000000000000000000000a0000000a00000015000000210000002e0000002e0000003c0000004b0000005b0000005b0000006c0000008e3c01007f0602000f02020039410200f961000020de0100472601009e9400000cbe0100a56f0000adfc00003641000020bc0100734700001e3b02009eb00000f700010073b5000087c500001c9d0100c5d6000071b20100aa870000d2700000a0ca0000fc3601006ea201008598000042980100b3fc00007d2d0000c6e8010077bf000004a00100664900009ced0100a03702000035000048b90100dd15010096440200d8620100662c0200db210000576201006fce0100e0e80100d2810000ebf60000711a0000e7c500009512020074a2000019290000187d00006d670000cafc0000a95a0000ad5e0000c9960000b24c0100fe6d00000a8a00008f610000127a00009a630100a17f0100e7bb0000bf700100c1e3000065ba0000455f0000b6c3000001bb00008c0f010099420000f252010061a40100af3b0000d9a6000083bb0100ff650100278601001c87010062aa000084100000a6f9010041470000d81a0100d6ff01006621000077600000bc2f020030c10000b82f0000f7480100b82d01003b4300004fe80000f373010060ee000051d500005b9d0000e8e70000a59e000095700000aa8b00009d450000dd05000000000000000000000a0000000000000000000000000000000d000000000000000000000000000000100000000000000000000000000000000a0000000a00000015000000210000002e0000002e0000003c0000004b0000005b0000005b0000006c00000001000000000100010100000101000101000000010000010101010100010000010001010101010100010101000000010100000000010001000100000001010100010100000000000001000100010000000000000101010100010101000101010001000000010000010000010000000000cd05000000000000000000000a00000000000000000000000c0000000c000000000000000000000000000000100000000000000000000000000000000a0000000a000000150000002100000021000000210000002f0000003e0000004e0000004e0000005f0000003c7becbec26d06bf11150ebf0f6015bf18d3c2bdeade60bfe0d443be3b9d77bf448875bf1f0f69bf90b79bbdb0021abe809fe3bdc2327cbfa00428bf68a970bfe53b2cbf50fd30bf31df35bffedc62bf0b5b38bfb41f29bfeca790bec2efe3be6eb026bf180c8cbec0d29dbdaf154ebfc05babbda03228bfd63619bff840e1be7cb82bbed9f653bf16a38fbe447479bfc9a03fbf608ec7bd8493c0be208a60bdd8a039be00f374bba44ab9beb29b6ebf66c779bfb82697bd0efaa3be120c57bfb21469bfaca173be8ace09bf7866f5bdd50e57bf58dfabbedb0e24bf657266bfa2e60fbf94d268bfb4b4fabe2f1272bfad3d2ebf5ca020bf251737bf18378bbd7809efbd28d069bebea9b8be001e1cbf8ea4b7be9aaf50bf8054a0bd10d6cabd6c2671be20bfb6bc92b284be585c1fbf5d852cbf4ca5d1be1846d3bd6e6293be8ad70dbf5899a2bd3e53e4beb95229bfeb8236bf42c2f0bedbd223bf192a0fbf93ea73bf414c59bf98e2adbe700756bdefea61bf00003eb96600c5be00000000dd0500000000000000000000030000000300000006000000090000000c0000000c0000000f0000001200000015000000150000001800000000000000010000000200000000000000010000000200000000000000010000000200000000000000010000000200000000000000010000000200000000000000010000000200000000000000010000000200000000000000010000000200000000000000030000000300000006000000090000000c0000000c0000000f00000012000000150000001500000018000000030000000400000003000000050000000400000002000000020000000300000007000000030000000400000006000000060000000400000004000000040000000400000007000000060000000600000004000000070000000900000001000000');
INSERT INTO expdb.chunks VALUES (8, 2, 0, 0, 3, 0, 424, 6604622917, '11c0a2bfbf044110a057ac7be4838577', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000580000000000000000000a0018000c00040008000a000000bc000000100000000300000000000000000000000a0000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000001000000000000003800000000000000000000000000000038000000000000000100000000000000400000000000000000000000000000004000000000000000180000000000000000000000050000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000000000000000000001000000000000000200000000000000000000000000f03f000000000000f03f000000000000f03f00000000000000000000000000000000000000000000000001000000000000000200000000000000');
INSERT INTO expdb.chunks VALUES (8, 5, 3, 1, 3, 0, 424, 6604622914, '0523c5c6df0947149dafc5a50599e1c5', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000580000000000000000000a0018000c00040008000a000000bc000000100000000300000000000000000000000a0000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000001000000000000003800000000000000000000000000000038000000000000000100000000000000400000000000000000000000000000004000000000000000180000000000000000000000050000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000000000000000000001000000000000000200000000000000000000000000f03f000000000000f03f000000000000f03f00000000000000000000000000000000000000000000000001000000000000000200000000000000');
INSERT INTO expdb.chunks VALUES (8, 8, 6, 2, 3, 0, 424, 6604622927, '9566797087ce4030b3f122a42a009357', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000580000000000000000000a0018000c00040008000a000000bc000000100000000300000000000000000000000a0000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000001000000000000003800000000000000000000000000000038000000000000000100000000000000400000000000000000000000000000004000000000000000180000000000000000000000050000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000000000000000000001000000000000000200000000000000000000000000f03f000000000000f03f000000000000f03f00000000000000000000000000000000000000000000000001000000000000000200000000000000');
INSERT INTO expdb.chunks VALUES (8, 11, 9, 3, 3, 0, 424, 6604622924, 'a326db25ad2b49898ba47e14ecb117a5', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000580000000000000000000a0018000c00040008000a000000bc000000100000000300000000000000000000000a0000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000001000000000000003800000000000000000000000000000038000000000000000100000000000000400000000000000000000000000000004000000000000000180000000000000000000000050000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000000000000000000001000000000000000200000000000000000000000000f03f000000000000f03f000000000000f03f00000000000000000000000000000000000000000000000001000000000000000200000000000000');
INSERT INTO expdb.chunks VALUES (2, 69, 60, 6, 11, 0, 1048, 4696726818, 'f48795a7d55d433ea588985b4c0556a6', '\xffffffff9801000014000000000000000c0016000600050008000c000c0000000003040018000000780200000000000000000a0018000c00040008000a000000ec000000100000000b00000000000000000000000d00000000000000000000000000000000000000000000000000000058000000000000005800000000000000000000000000000058000000000000005800000000000000b0000000000000000000000000000000b0000000000000000200000000000000b8000000000000000000000000000000b8000000000000000200000000000000c0000000000000000000000000000000c0000000000000000000000000000000c0000000000000006001000000000000200200000000000000000000000000002002000000000000580000000000000000000000070000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000002c0000000000000000000000000000000b00000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000000009000000000000000000000000000000fe1aeaf4b5a2f6bf675e75498ae7e3bfc8bf0fbf91cde9bf33ab0b861b89f6bf11cdf1442312d03f8d738008c4e3fe3fff07b9eee822c33ff6d63392a64100c0754184fb2d88f6bfafd76db98db9e9bf000000000000f87f00000000000000000000000000000000fad366349dd5fd3f892dcf972f00e43f2fde3d36280ad4bf674c9e7f85fff9bf61180599d1fcfabfb17c0737223be73f1e8db3b7727be8bf94e6a8119206b03fece1da14a858b73f868acbff446df63fa31d3fbb13ebe5bf9d69d85736d2d5bf8f92108284fceb3fd9069a6d5669f0bfc64fe109b320f2bf0d02f014de33f6bf2ac41d022223de3f8836276b918d044079c9c56e1fdaefbfecdef7391073ee3f9119186ae2a1f1bfddc38b0772b5d1bf157b59b036d0cdbfcde279da3a1ae6bfda904e48787ffebf0d0ae3b2e662d83ff74a8974b237d53f6f19f244378ce2bf6864eb035715ec3faceed42dd38cc33f3ab6064575b5da3f9b2e8da5552ce63f1a5c40d26fa7f73f52ad8f6ef7390240a248f94eac62ef3f6bf3ea67f837f03fa51caf515251bebf18c0464e43fce9bf2ce8119e4bcae2bfea284163f7f1ee3f000000000000184000000000000018400000000000001840000000000000184000000000000000000100000000000000020000000000000000000000000000000100000000000000020000000000000000000000000000000100000000000000020000000000000000000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (2, 99, 90, 9, 10, 0, 992, 5040419917, 'b637d99fc86e48b6ac440a2052ff6e69', '\xffffffff9801000014000000000000000c0016000600050008000c000c0000000003040018000000400200000000000000000a0018000c00040008000a000000ec000000100000000a00000000000000000000000d00000000000000000000000000000000000000000000000000000050000000000000005000000000000000000000000000000050000000000000005000000000000000a0000000000000000000000000000000a0000000000000000200000000000000a8000000000000000000000000000000a8000000000000000200000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000004001000000000000f0010000000000000000000000000000f001000000000000500000000000000000000000070000000a0000000000000000000000000000000a0000000000000000000000000000000a0000000000000000000000000000000a0000000000000000000000000000000a000000000000000000000000000000280000000000000000000000000000000a00000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000000009000000000000005f7ec9e96aa1d2bfe078554259d30240dc7e93772f5bf5bf1a7abbd50711f7bf1c05cea9dca10640b08f53f25409e3bfe7b4aa382658cb3f0a76c5df6c37f6bf266b83290e23c63f1af419710e45d9bf0002000000000000000000000000000026a12febe68fe5bf487264ba61f5e8bf5154ec67f68bfa3f0cf5872423ecd1bfd911959bab70f73fe0161a19e167f13facc1984c3315e13fdf6a6f7cb68fd9bf47157e877b26d93f8468c4b0e780e13f6607d343cee6c5bf162268d700a1f6bfb465ec41ee0bda3f42d3febebb13d93fe5c246dc43b8cebf6678348137bff2bfd3bb4f5a81fbd4bf4c836acd4c4cf7bfff9a3818eac3ec3fc55051a05071f23fb38756332d1bec3ffdd00abc9ff8e2bf77fbf0f7ade4ebbfb7fbc49d239d0bc05501917b14a7c6bfcc7fb9ec46f8ee3f7656057c3a92e33f8151b1d5c2d3e23fd4cac9ca2c26e53f0ba37f9e5e29f73f93c13d59bc09f1bf430a37d56844ddbf7fba655a08e6f93f654e77d6f9bff43f8f5bee3cb612e83f63dcd640442df3bfdf1c419ca908cebf501451da14b1b43ffeef3b3f4114c8bf71043c1b74a3e03f0000000000000000010000000000000002000000000000000000000000000000010000000000000002000000000000000000000000000000010000000000000002000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (2, 109, 100, 10, 11, 0, 1048, 7960669915, '94638e026a314d86b54a97efbeaae38d', '\xffffffff9801000014000000000000000c0016000600050008000c000c0000000003040018000000780200000000000000000a0018000c00040008000a000000ec000000100000000b00000000000000000000000d00000000000000000000000000000000000000000000000000000058000000000000005800000000000000000000000000000058000000000000005800000000000000b0000000000000000000000000000000b0000000000000000200000000000000b8000000000000000000000000000000b8000000000000000200000000000000c0000000000000000000000000000000c0000000000000000000000000000000c0000000000000006001000000000000200200000000000000000000000000002002000000000000580000000000000000000000070000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000000000000000000002c0000000000000000000000000000000b00000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000000009000000000000000000000000000000cb6b3d8a9532dcbfa21e222ffac2f7bf61d2e3eb1c7ffabfed6da222ddaee73f9d118f9c6d09e8bf4a36da68fc62f1bf92b41718d75ce13f1f6efdba1e8804c027da51c592e1e8bf1186e07fa3aaf5bf000000000000f87f00000000000000000000000000000000ea21f93ea458eb3f4c5dcfd606e6ce3fcb83bb8fc2c1d2bfa129e3186ca2bcbfe07eb78e560bea3fe9ef3d93ac5fd1bf002ee1f87bdfd23fb6239322281dd9bfc4367baacefeec3f2524f91016eef0bf0bc381c8afbbe53fa27df177c8e3da3f859493d5d43aeebfbc42982f8373e0bf742dd57b5243eabfd7100301c3e9f2bf25d788ed1ca8cebf16d2da8a27afd83fe9d3a954738ddbbf4cb3a7de808ad33f481c7fa036279bbff956ea117b9ee23faa6ad3b3c813a73fc732254a4b41ddbf4b2fbf34ff74c53f86a3f04f9613d63fd4b9ed12f688d0bfb08aaeab459ee8bf5bda747d95da034028e44b7d895bd3bf1c6ba199238dd53f7501c0e53427d83f269d9e5271b5bf3fc8d70f1ccd9be6bf4dd05c96ae27f63f5d39cfbe4d41d0bf99735347c9f7cbbf73a8a46cdf51c53f86264d16bfeae1bf96b0fca59df6aabf000000000000244000000000000024400000000000002440000000000000244000000000000000000100000000000000020000000000000000000000000000000100000000000000020000000000000000000000000000000100000000000000020000000000000000000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (2, 119, 110, 11, 10, 0, 992, 4316512773, '387ffd51854e4abd9d175cb2237c6f1f', '\xffffffff9801000014000000000000000c0016000600050008000c000c0000000003040018000000400200000000000000000a0018000c00040008000a000000ec000000100000000a00000000000000000000000d00000000000000000000000000000000000000000000000000000050000000000000005000000000000000000000000000000050000000000000005000000000000000a0000000000000000000000000000000a0000000000000000200000000000000a8000000000000000000000000000000a8000000000000000200000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000004001000000000000f0010000000000000000000000000000f001000000000000500000000000000000000000070000000a0000000000000000000000000000000a0000000000000000000000000000000a0000000000000000000000000000000a0000000000000000000000000000000a000000000000000000000000000000280000000000000000000000000000000a0000000000000000000000000000000000000000000000010000000000000002000000000000000300000000000000040000000000000005000000000000000600000000000000070000000000000008000000000000000900000000000000d54bba465d67d13fef4b4bc34e2cbebf19a4401ea809e9bf196d296cbf94723f672731dcc2aefa3ff771e24fc0c5da3f4f72a8052928e8bfdcbef9cc9c2ab2bf13eeb93a67a8a03f96cb00d2e6b98b3f00020000000000000000000000000000f793e4dd1ad5ccbf58ef65ec4fd2e83f6df3c2c9ba81ff3f50715e11c59be63f5132df77b4f0f23f2995d9e1444ef03fe16f5186199ffa3f21a9d1f18e52f13ff692ffda678ad03f3a5d7689c1eec63f9e3979ab3f56d33fa53010171fa4c93ffd4a820d3fd400c0d8e3ec24647ee5bf6cdbe091513500c0593cac9fc465b13f110bed3527cffabff3ce7e3f7905e63f9a00842a4dbdeb3f372c6b2bbe89b83f95c2b99157f2fd3f47ec545cc04bf3bf4c8703225896f03f498c6505da36dc3f58d7037bfee6ed3f084a7f2e6c03e7bff61b7808b7f4e2bfe6debe121974eabfaa5c92a41038b9bfd01aa1faab3af7bf3a3e4ba14cbbf0bf2800419b1c7be23fd03db0cf5482d83f9e7a5033693afebf43a8e0715315e9bfc8301fba05c6e1bfd057ed05d7c2e2bf7ece9febe4dced3f7a9cb8fa5dd6adbf5b8e57fd286c913f0000000000000000010000000000000002000000000000000000000000000000010000000000000002000000000000000000000000000000010000000000000002000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (2, 79, 70, 7, 7, 0, 824, 5512225704, NULL, '\xffffffff9801000014000000000000000c0016000600050008000c000c0000000003040018000000980100000000000000000a0018000c00040008000a000000ec000000100000000700000000000000000000000d000000000000000000000000000000000000000000000000000000380000000000000038000000000000000000000000000000380000000000000038000000000000007000000000000000000000000000000070000000000000000100000000000000780000000000000000000000000000007800000000000000010000000000000080000000000000000000000000000000800000000000000000000000000000008000000000000000e0000000000000006001000000000000000000000000000060010000000000003800000000000000000000000700000007000000000000000000000000000000070000000000000000000000000000000700000000000000000000000000000007000000000000000000000000000000070000000000000000000000000000001c0000000000000000000000000000000700000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000000009000000000000006ee6cf31a48de6bf1f56b1ef69e3e9bf0d6ba28df75fdbbfe7d9f10827f9b13f6297fdd836e6f23f7b55e5df8a99efbf11ee634c9857c03f40000000000000000000000000000000ad8ba5be28a7c0bf8ec441f08b89febf958069f57f47c4bfc2facc9f560bb73f7e088d0a5009e7bf1d9b9bc3c92efe3fd4c007d31c5bf3bfca09fed053cff0bf3c42ffda5c2ef33f4bf61a7cf5cf00409449f1805e42d53f897969e944f4e6bf5688ffa37809f13f2cbc0bd37727edbf050d6cf6443ff73fdbf5d6e24daaf63f3ac4e4c118ade43f24d4c736ebfde73f8948406d0bdef83fb1bf9d11bfd2f0bf8936e54ebc03d8bf4441737b7f91e8bf38d20b91bd48ba3f25b97c32a26fcbbfed9c506c91d9d0bf9150893d7757f03fb715d66dc73875bfec8e2c953838d3bf0000000000000000010000000000000002000000000000000000000000000000010000000000000002000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (2, 89, 80, 8, 10, 0, 992, 5141861722, NULL, '\xffffffff9801000014000000000000000c0016000600050008000c000c0000000003040018000000400200000000000000000a0018000c00040008000a000000ec000000100000000a00000000000000000000000d00000000000000000000000000000000000000000000000000000050000000000000005000000000000000000000000000000050000000000000005000000000000000a0000000000000000000000000000000a0000000000000000200000000000000a8000000000000000000000000000000a8000000000000000200000000000000b0000000000000000000000000000000b0000000000000000000000000000000b0000000000000004001000000000000f0010000000000000000000000000000f001000000000000500000000000000000000000070000000a0000000000000000000000000000000a0000000000000000000000000000000a0000000000000000000000000000000a0000000000000000000000000000000a000000000000000000000000000000280000000000000000000000000000000a00000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000500000000000000060000000000000007000000000000000800000000000000090000000000000000000000000000000f015fd343b0e43f4f5b5b45a4fcc53ffb7e3c526da9f2bf6c3b1a0f7586e7bf998c9642e5490dc09d3024a15787d13fb2b2d24d67aee2bf48e98316d600d0bfe4af951aa4aece3f000000000000f87f00000000000000000000000000000000a96e30c78d03c6bf15d0e11aa260e5bf1302ae04a6b9d9bf03bf8aa43dfbe73fbdca869c6394f43fd0652bd18016fbbfc8a295ce6528d9bf66b72d076788dabf1c0ed5fe24f0dcbf3baf58c5fe6be0bfc6b83a6d210ee93f1de3185b92cbc63ff0a9da4c235af53f707c498e64e5ef3fe1360c9fe05de2bfec00c162d999ea3f866eb14f0898c83fc09c212ad969c63f8871f029c454a23f5217f231cbcfe1bf3016b72b13c4b73fcca3ecdbf956febf8fc9065c9041cf3fa20e2a2dbb17f23f2d81cb7787ecd8bfd7acecb43a06c7bf45ef74373208c1bf9dbaa52c6393e1bf28dd1b458e90edbf0a347c6ab602f33fe98582fd64da8fbfe15b5378c699ee3fbf425aee9579b23f7aef393b19cfc5bfea19f01d1b9fdd3f1248d29ccc73ea3f00000000000020400000000000002040000000000000204000000000000020400000000000000000010000000000000002000000000000000000000000000000020000000000000000000000000000000100000000000000020000000000000000000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (3, 4, 0, 0, 5, 0, 1960, 6101126292, '10b599f1120b40019a0776b22402a10e', '\xffffffff5803000014000000000000000c0016000600050008000c000c0000000003040018000000480400000000000000000a0018000c00040008000a0000001c020000100000000500000000000000000000002000000000000000000000000000000000000000000000000000000028000000000000002800000000000000000000000000000028000000000000002800000000000000500000000000000000000000000000005000000000000000010000000000000058000000000000000000000000000000580000000000000001000000000000006000000000000000000000000000000060000000000000000000000000000000600000000000000018000000000000007800000000000000000000000000000078000000000000002800000000000000a000000000000000eb010000000000009002000000000000000000000000000090020000000000001800000000000000a8020000000000000000000000000000a8020000000000006400000000000000100300000000000000000000000000001003000000000000010000000000000018030000000000000000000000000000180300000000000000000000000000001803000000000000180000000000000030030000000000000000000000000000300300000000000018000000000000004803000000000000c80000000000000010040000000000000000000000000000100400000000000018000000000000002804000000000000000000000000000028040000000000001400000000000000400400000000000000000000000000004004000000000000010000000000000000000000100000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000900000000000000000000000000000005000000000000000000000000000000190000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000000000000000f87f000000000000f87f000000000000f87f000000000000f87f000000000000f87f00000000000000000000000000000000000000000100000003000000050000000700000009000000000000002f0000006f0000009e000000de0000000d0100004d0100007c010000bc010000eb0100007b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2030206f6620617474656d70742030227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a307d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2031206f6620617474656d70742030227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a317d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2032206f6620617474656d70742030227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a327d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2033206f6620617474656d70742030227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a337d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2034206f6620617474656d70742030227d000000000000000000010000000400000009000000100000001900000000000000000000000100000002000000000000000100000002000000030000000400000000000000010000000200000003000000040000000500000006000000000000000100000002000000030000000400000005000000060000000700000008000000000000001f0000000000000000000000010000000200000003000000040000000500000000000000280000005000000078000000a0000000c80000007b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a307d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a317d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a327d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a337d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a347d7d0000000001000000020000000300000004000000050000000000000001000000020000000300000004000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (3, 9, 5, 1, 5, 0, 1960, 5103554631, '60c1919800ea4f888445cdeb24b5e2f5', '\xffffffff5803000014000000000000000c0016000600050008000c000c0000000003040018000000480400000000000000000a0018000c00040008000a0000001c020000100000000500000000000000000000002000000000000000000000000000000000000000000000000000000028000000000000002800000000000000000000000000000028000000000000002800000000000000500000000000000000000000000000005000000000000000010000000000000058000000000000000000000000000000580000000000000001000000000000006000000000000000000000000000000060000000000000000000000000000000600000000000000018000000000000007800000000000000000000000000000078000000000000002800000000000000a000000000000000eb010000000000009002000000000000000000000000000090020000000000001800000000000000a8020000000000000000000000000000a8020000000000006400000000000000100300000000000000000000000000001003000000000000010000000000000018030000000000000000000000000000180300000000000000000000000000001803000000000000180000000000000030030000000000000000000000000000300300000000000018000000000000004803000000000000c80000000000000010040000000000000000000000000000100400000000000018000000000000002804000000000000000000000000000028040000000000001400000000000000400400000000000000000000000000004004000000000000010000000000000000000000100000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000900000000000000000000000000000005000000000000000000000000000000190000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000000000000000f87f000000000000f87f000000000000f87f000000000000f87f000000000000f87f00000000000000000000000000000000000000000100000003000000050000000700000009000000000000002f0000006f0000009e000000de0000000d0100004d0100007c010000bc010000eb0100007b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2030206f6620617474656d70742031227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a307d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2031206f6620617474656d70742031227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a317d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2032206f6620617474656d70742031227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a327d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2033206f6620617474656d70742031227d7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a226c6f6f6b696e67222c22746f6f6c5f63616c6c73223a5b7b226964223a337d5d7d7b22726f6c65223a2275736572222c22636f6e74656e74223a227475726e2034206f6620617474656d70742031227d000000000000000000010000000400000009000000100000001900000000000000000000000100000002000000000000000100000002000000030000000400000000000000010000000200000003000000040000000500000006000000000000000100000002000000030000000400000005000000060000000700000008000000000000001f0000000000000000000000010000000200000003000000040000000500000000000000280000005000000078000000a0000000c80000007b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a307d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a317d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a327d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a337d7d7b22746f6f6c223a22736561726368222c22617267756d656e7473223a7b227475726e223a347d7d0000000001000000020000000300000004000000050000000000000001000000020000000300000004000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (3, 20, 20, 4, 1, 0, 1016, 8408855689, '7e46e6a13dfb4029953809f87f8488f6', '\xffffffff5803000014000000000000000c0016000600050008000c000c0000000003040018000000980000000000000000000a0018000c00040008000a0000001c02000010000000010000000000000000000000200000000000000000000000000000000000000000000000000000000800000000000000080000000000000000000000000000000800000000000000080000000000000010000000000000000000000000000000100000000000000001000000000000001800000000000000000000000000000018000000000000000100000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000800000000000000280000000000000000000000000000002800000000000000080000000000000030000000000000001d000000000000005000000000000000000000000000000050000000000000000800000000000000580000000000000000000000000000005800000000000000040000000000000060000000000000000000000000000000600000000000000001000000000000006800000000000000000000000000000068000000000000000000000000000000680000000000000008000000000000007000000000000000000000000000000070000000000000000800000000000000780000000000000002000000000000008000000000000000000000000000000080000000000000000800000000000000880000000000000000000000000000008800000000000000040000000000000090000000000000000000000000000000900000000000000001000000000000000000000010000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000f87f000000000000000000000000000000000000000001000000000000001d0000007b22726f6c65223a2275736572222c22636f6e74656e74223a223f227d000000000000000100000000000000000000000100000000000000000000000100000000000000020000007b7d000000000000000000000100000000000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (3, 23, 21, 5, 3, 1, 424, 7284457895, NULL, '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000580000000000000000000a0018000c00040008000a000000bc000000100000000300000000000000000000000a0000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000001000000000000003800000000000000000000000000000038000000000000000100000000000000400000000000000000000000000000004000000000000000180000000000000000000000050000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000030000000000000001000000000000000200000000000000000000000000f87f000000000000f87f000000000000f87f00000000000000000000000000000000030000000000000001000000000000000200000000000000');
INSERT INTO expdb.chunks VALUES (3, 24, 24, 6, 1, 2, 376, 6750690647, 'eab3dc605e044ee0a48464e3ed75a4a2', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c00040008000a000000bc000000100000000100000000000000000000000a00000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000002000000000000000000000000000000020000000000000000800000000000000000000000500000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000f87f00000000000000000000000000000000000000000000f83f');
INSERT INTO expdb.chunks VALUES (3, 27, 25, NULL, 3, 3, 352, 5946726142, 'a3764b0fc73a4afdaf35954612a1d99f', '\xffffffff1801000014000000000000000c0016000600050008000c000c0000000003040018000000400000000000000000000a0018000c00040008000a0000009c000000100000000300000000000000000000000800000000000000000000000000000000000000000000000000000018000000000000001800000000000000000000000000000018000000000000001800000000000000300000000000000000000000000000003000000000000000010000000000000038000000000000000000000000000000380000000000000001000000000000000000000004000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000f03f000000000000004000000000000000000700000000000000');
INSERT INTO expdb.chunks VALUES (5, 4, 0, 0, 5, 0, 544, 7016272967, '101395232bbb4511b067e9c5f5bb8133', '\xffffffff6801000014000000000000000c0016000600050008000c000c0000000003040018000000b00000000000000000000a0018000c00040008000a000000cc000000100000000500000000000000000000000b0000000000000000000000000000000000000000000000000000002800000000000000280000000000000000000000000000002800000000000000280000000000000050000000000000000000000000000000500000000000000001000000000000005800000000000000000000000000000058000000000000000100000000000000600000000000000000000000000000006000000000000000000000000000000060000000000000005000000000000000000000000600000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000a000000000000000000000000000000000000000000000001000000000000000200000000000000030000000000000004000000000000000000000000000000000000000000f03f00000000000000400000000000000840000000000000104000000000000000000000000000000000bdbd028fa59dfcbfc3736668b34000401ce63acc915fd6bf258ef5ed0a7de3bfe7413e4e9fadd53fa080f48840f4f8bf8440a91542a8f5bff260162736fadfbf083445a08fa1e0bf43dc42da5567b23f');
INSERT INTO expdb.chunks VALUES (5, 9, 5, 1, 5, 0, 544, 6191135141, '46ce633e992c41939e4f7026fdd8887f', '\xffffffff6801000014000000000000000c0016000600050008000c000c0000000003040018000000b00000000000000000000a0018000c00040008000a000000cc000000100000000500000000000000000000000b0000000000000000000000000000000000000000000000000000002800000000000000280000000000000000000000000000002800000000000000280000000000000050000000000000000000000000000000500000000000000001000000000000005800000000000000000000000000000058000000000000000100000000000000600000000000000000000000000000006000000000000000000000000000000060000000000000005000000000000000000000000600000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000a00000000000000000000000000000000000000000000000100000000000000020000000000000003000000000000000400000000000000000000000000f03f00000000000000400000000000000840000000000000104000000000000014400000000000000000000000000000000045fb9b13fff5f13fc55bc23a7556debfccaefe9a028adf3f1c7e3e4ddb3fe33f28c9656d5f58f1bf674c3f81093ecd3f3f57a6c7542aeebf3969a1b0ba05f13f6ef7c34b3120dd3f7f57b95d74e6903f');
INSERT INTO expdb.chunks VALUES (5, 14, 10, 2, 5, 0, 544, 7220559240, 'c54905c03f85471ea89e20ec8ac394d5', '\xffffffff6801000014000000000000000c0016000600050008000c000c0000000003040018000000b00000000000000000000a0018000c00040008000a000000cc000000100000000500000000000000000000000b0000000000000000000000000000000000000000000000000000002800000000000000280000000000000000000000000000002800000000000000280000000000000050000000000000000000000000000000500000000000000001000000000000005800000000000000000000000000000058000000000000000100000000000000600000000000000000000000000000006000000000000000000000000000000060000000000000005000000000000000000000000600000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000a000000000000000000000000000000000000000000000001000000000000000200000000000000030000000000000004000000000000000000000000000040000000000000084000000000000010400000000000001440000000000000184000000000000000000000000000000000532d75e7686ff5bf5f90d67485b1bd3fc335be487d8be8bfa9169ef63e97e63f7db534812e8cbebfd3eb5506bafee9bf358ab5b5d79ded3fd0e1d7b5d016e73f6d70dc274afce2bf4755267faa97f23f');
INSERT INTO expdb.chunks VALUES (5, 19, 15, 3, 5, 0, 544, 7324401946, '7277e6dca4db4b1eb056d7a53fbb0697', '\xffffffff6801000014000000000000000c0016000600050008000c000c0000000003040018000000b00000000000000000000a0018000c00040008000a000000cc000000100000000500000000000000000000000b0000000000000000000000000000000000000000000000000000002800000000000000280000000000000000000000000000002800000000000000280000000000000050000000000000000000000000000000500000000000000001000000000000005800000000000000000000000000000058000000000000000100000000000000600000000000000000000000000000006000000000000000000000000000000060000000000000005000000000000000000000000600000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000a0000000000000000000000000000000000000000000000010000000000000002000000000000000300000000000000040000000000000000000000000008400000000000001040000000000000144000000000000018400000000000001c4000000000000000000000000000000000f7e7cdfae518d3bf429455da23c9d3bf01cf85ed6cb1bf3f5cdfc7609315e8bf53af9d01d443dcbf329bd1c2958ac4bfd7ad81090a7cf83f3ed352ba90fef73fad7c5c515491d0bf350a3d5d5ac4f93f');
INSERT INTO expdb.chunks VALUES (5, 24, 20, 4, 5, 0, 544, 5939594400, 'd1a69b11dbcb4d27a54489ff28240cfd', '\xffffffff6801000014000000000000000c0016000600050008000c000c0000000003040018000000b00000000000000000000a0018000c00040008000a000000cc000000100000000500000000000000000000000b0000000000000000000000000000000000000000000000000000002800000000000000280000000000000000000000000000002800000000000000280000000000000050000000000000000000000000000000500000000000000001000000000000005800000000000000000000000000000058000000000000000100000000000000600000000000000000000000000000006000000000000000000000000000000060000000000000005000000000000000000000000600000005000000000000000000000000000000050000000000000000000000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000000000000000000000a000000000000000000000000000000000000000000000001000000000000000200000000000000030000000000000004000000000000000000000000001040000000000000144000000000000018400000000000001c40000000000000204000000000000000000000000000000000bd6a6b4eae29a6bf9a272c0f6f5bd83f1af270054546ec3f7b75995de9b0d23f65bd260c4b520340fd1aa0d6f825cf3f352a38575329f3bf89a6568835e3f43f5b9f208f3f5fdabf2777ecc37579d3bf');
INSERT INTO expdb.chunks VALUES (8, 15, 12, 4, 4, 0, 448, 4866681322, 'c16ed7eed7994af7b6b8b6baf8cb7bd5', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000700000000000000000000a0018000c00040008000a000000bc000000100000000400000000000000000000000a00000000000000000000000000000000000000000000000000000020000000000000002000000000000000000000000000000020000000000000002000000000000000400000000000000000000000000000004000000000000000010000000000000048000000000000000000000000000000480000000000000001000000000000005000000000000000000000000000000050000000000000002000000000000000000000000500000004000000000000000000000000000000040000000000000000000000000000000400000000000000000000000000000004000000000000000000000000000000040000000000000000000000000000000000000000000000000000000000000001000000000000000100000000000000000000000000f87f000000000000f87f000000000000f87f000000000000f87f000000000000000000000000000000000000000000000000010000000000000002000000000000000300000000000000');
INSERT INTO expdb.chunks VALUES (9, 0, 0, 0, 1, 0, 376, 6693159268, '33569704dc28444f9ae0d58c8098ab88', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c00040008000a000000bc000000100000000100000000000000000000000a00000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000002000000000000000000000000000000020000000000000000800000000000000000000000500000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000f87f000000000000000000000000000000000100000000000000');
INSERT INTO expdb.chunks VALUES (10, 2, 0, NULL, 3, 0, 1128, 7505776355, NULL, '\xffffffff5803000014000000000000000c0016000600050008000c000c0000000003040018000000080100000000000000000a0018000c00040008000a0000001c02000010000000030000000000000000000000200000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000001000000000000003800000000000000000000000000000038000000000000000100000000000000400000000000000000000000000000004000000000000000000000000000000040000000000000001000000000000000500000000000000000000000000000005000000000000000080000000000000058000000000000001d0000000000000078000000000000000000000000000000780000000000000010000000000000008800000000000000000000000000000088000000000000000c000000000000009800000000000000000000000000000098000000000000000100000000000000a0000000000000000000000000000000a0000000000000000000000000000000a0000000000000001000000000000000b0000000000000000000000000000000b0000000000000000800000000000000b8000000000000002200000000000000e0000000000000000000000000000000e0000000000000001000000000000000f0000000000000000000000000000000f0000000000000000c0000000000000000010000000000000000000000000000000100000000000001000000000000000000000010000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000010000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000010000000000000000000000000000000300000000000000000000000000000003000000000000000000000000000000030000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000f03f00000000000000400000000000000000000000000000000000000000010000000100000001000000000000001d0000007b22726f6c65223a2275736572222c22636f6e74656e74223a223f227d000000000000000100000002000000030000000000000000000000000000000000000007000000000000000000000001000000010000000100000000000000220000007b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a2221227d00000000000000000000010000000200000003000000000000000000000000000000000000000000000000000000');
INSERT INTO expdb.chunks VALUES (11, 5, 0, 0, 6, 0, 496, 5298154001, '7ea428ccf1f04c8188aa36acf0d68501', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000a00000000000000000000a0018000c00040008000a000000bc000000100000000600000000000000000000000a0000000000000000000000000000000000000000000000000000003000000000000000300000000000000000000000000000003000000000000000300000000000000060000000000000000000000000000000600000000000000001000000000000006800000000000000000000000000000068000000000000000100000000000000700000000000000000000000000000007000000000000000300000000000000000000000050000000600000000000000000000000000000006000000000000000000000000000000060000000000000000000000000000000600000000000000000000000000000006000000000000000000000000000000000000000000000001000000000000000200000000000000030000000000000004000000000000000500000000000000000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f000000000000f03f00000000000000000000000000000000000000000000000001000000000000000200000000000000030000000000000004000000000000000500000000000000');
INSERT INTO expdb.chunks VALUES (11, 7, 6, 1, 2, 0, 400, 8504386695, 'f4b3e4300e1540949fef38955b0acb5b', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000400000000000000000000a0018000c00040008000a000000bc000000100000000200000000000000000000000a0000000000000000000000000000000000000000000000000000001000000000000000100000000000000000000000000000001000000000000000100000000000000020000000000000000000000000000000200000000000000001000000000000002800000000000000000000000000000028000000000000000100000000000000300000000000000000000000000000003000000000000000100000000000000000000000050000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000040000000000000005000000000000000000000000000040000000000000f87f0000000000000000000000000000000028000000000000002900000000000000');
INSERT INTO expdb.chunks VALUES (11, 8, 8, 2, 1, 0, 376, 7184269167, '67eca117278745f2868a919c0142b8d8', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c00040008000a000000bc000000100000000100000000000000000000000a00000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000002000000000000000000000000000000020000000000000000800000000000000000000000500000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000200000000000000000000000000f87f000000000000000000000000000000001400000000000000');
INSERT INTO expdb.chunks VALUES (11, 9, 9, 3, 1, 0, 376, 6923831241, 'acbaef54afcb4041ad601cf7afe21b72', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c00040008000a000000bc000000100000000100000000000000000000000a00000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000002000000000000000000000000000000020000000000000000800000000000000000000000500000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000f87f010000000000000000000000000000000100000000000000');
INSERT INTO expdb.chunks VALUES (11, 10, 10, 4, 1, 0, 376, 6923831242, '9921cced07b942eeb3c0c428db3a8971', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c00040008000a000000bc000000100000000100000000000000000000000a00000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000002000000000000000000000000000000020000000000000000800000000000000000000000500000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000f87f010000000000000000000000000000000100000000000000');
INSERT INTO expdb.chunks VALUES (11, 11, 11, 5, 1, 0, 376, 6923831243, '26f63d1136e3442091fabe0647b33c85', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c00040008000a000000bc000000100000000100000000000000000000000a00000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000002000000000000000000000000000000020000000000000000800000000000000000000000500000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000f87f010000000000000000000000000000000100000000000000');
INSERT INTO expdb.chunks VALUES (12, 1, 0, 0, 2, 0, 1504, 16229242702, 'd17af156babd4dddb38c9e680123af12', '\xffffffff8003000014000000000000000c0018000600050008000c000c000000000304001c0000005802000000000000000000000c001e001000040008000c000c00000040020000240000001800000002000000000000000000000000000600080007000600000000000001210000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000009000000000000004000000000000000000000000000000040000000000000000900000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000001400000000000000680000000000000000000000000000006800000000000000140000000000000080000000000000005900000000000000e0000000000000000000000000000000e0000000000000001400000000000000f8000000000000000000000000000000f80000000000000018000000000000001001000000000000000000000000000010010000000000000900000000000000200100000000000000000000000000002001000000000000140000000000000038010000000000005800000000000000900100000000000000000000000000009001000000000000000000000000000090010000000000001000000000000000a0010000000000000000000000000000a0010000000000001400000000000000b8010000000000000000000000000000b8010000000000004000000000000000f80100000000000009000000000000000802000000000000140000000000000020020000000000003400000000000000000000001000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000400000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000005902000000000000000000000000000002000000000000000100000000000000ffffffffffffffff00000000000000000100000000000000ffffffffffffffff000000000000f87f000000000000f87fffffffffffffffff0000000000000000ffffffffffffffff0000000000000000ffffffffffffffff00000000020000000200000000000000ffffffffffffffff00000000fc0700001908000000000000feffffffffffffff01000000000000000000000000000000fc070000000000005a4005748489c03263be315d99c7bd3ca33a426dffffffffffffffff7b22726f6c65223a2275736572222c22636f6e74656e74223a2261227d00000000000000ffffffffffffffff00000000020000000400000000000000ffffffffffffffff00000000010000000000000001000000ffffffffffffffff0300000000000000ffffffffffffffff00000000b80b00007017000000000000feffffffffffffff02000000000000000000000000000000b80b000000000000467542a55faeded09fda684dd51996a8fceb3a50b80b000000000000b80b000000000000467542a55faeded09fda684dd51996a8fceb3a50ffffffffffffffff0000000058020000ffffffffffffffff00000000580200005902000000000000feffffffffffffff0100000000000000000000000000000060090000000000008eaf24dd5d89819e815e43b920bf0c84ad8bb111ffffffffffffffff00000000ffffffffffffffff0100000000000000ffffffffffffffff00000000dc050000dc05000000000000feffffffffffffff01000000000000000000000000000000dc050000000000001ac4e8f1db1deb422344e0f81e26dcfcb00ff09c00000000');
INSERT INTO expdb.chunks VALUES (12, 3, 2, 1, 2, 0, 1504, 15884440017, 'b9acd2fc600e41948754a6c8122337cf', '\xffffffff8003000014000000000000000c0018000600050008000c000c000000000304001c0000005802000000000000000000000c001e001000040008000c000c00000040020000240000001800000002000000000000000000000000000600080007000600000000000001210000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000009000000000000004000000000000000000000000000000040000000000000000900000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000001400000000000000680000000000000000000000000000006800000000000000140000000000000080000000000000005900000000000000e0000000000000000000000000000000e0000000000000001400000000000000f8000000000000000000000000000000f80000000000000018000000000000001001000000000000000000000000000010010000000000000900000000000000200100000000000000000000000000002001000000000000140000000000000038010000000000005800000000000000900100000000000000000000000000009001000000000000000000000000000090010000000000001000000000000000a0010000000000000000000000000000a0010000000000001400000000000000b8010000000000000000000000000000b8010000000000004000000000000000f80100000000000009000000000000000802000000000000140000000000000020020000000000003400000000000000000000001000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000400000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000005902000000000000000000000000000002000000000000000100000000000000ffffffffffffffff00000000000000000100000000000000ffffffffffffffff000000000000f87f000000000000f87fffffffffffffffff0000000000000000ffffffffffffffff0000000000000000ffffffffffffffff00000000020000000200000000000000ffffffffffffffff00000000fc0700001908000000000000feffffffffffffff01000000000000000000000000000000fc070000000000005a4005748489c03263be315d99c7bd3ca33a426dffffffffffffffff7b22726f6c65223a2275736572222c22636f6e74656e74223a2261227d00000000000000ffffffffffffffff00000000020000000400000000000000ffffffffffffffff00000000010000000000000001000000ffffffffffffffff0300000000000000ffffffffffffffff00000000b80b00007017000000000000feffffffffffffff02000000000000000000000000000000b80b000000000000467542a55faeded09fda684dd51996a8fceb3a50b80b000000000000b80b000000000000467542a55faeded09fda684dd51996a8fceb3a50ffffffffffffffff0000000058020000ffffffffffffffff00000000580200005902000000000000feffffffffffffff0100000000000000000000000000000060090000000000008eaf24dd5d89819e815e43b920bf0c84ad8bb111ffffffffffffffff01000000ffffffffffffffff0100000000000000ffffffffffffffff00000000dc050000dc05000000000000feffffffffffffff01000000000000000000000000000000dc050000000000001ac4e8f1db1deb422344e0f81e26dcfcb00ff09c00000000');
INSERT INTO expdb.chunks VALUES (12, 5, 4, 2, 2, 0, 1504, 13629987440, 'c7b1674031c745ef801ab337e3f27a02', '\xffffffff8003000014000000000000000c0018000600050008000c000c000000000304001c0000005802000000000000000000000c001e001000040008000c000c00000040020000240000001800000002000000000000000000000000000600080007000600000000000001210000000000000000000000000000000000000000000000000000001800000000000000180000000000000000000000000000001800000000000000180000000000000030000000000000000000000000000000300000000000000009000000000000004000000000000000000000000000000040000000000000000900000000000000500000000000000000000000000000005000000000000000000000000000000050000000000000001400000000000000680000000000000000000000000000006800000000000000140000000000000080000000000000005900000000000000e0000000000000000000000000000000e0000000000000001400000000000000f8000000000000000000000000000000f80000000000000018000000000000001001000000000000000000000000000010010000000000000900000000000000200100000000000000000000000000002001000000000000140000000000000038010000000000005800000000000000900100000000000000000000000000009001000000000000000000000000000090010000000000001000000000000000a0010000000000000000000000000000a0010000000000001400000000000000b8010000000000000000000000000000b8010000000000004000000000000000f80100000000000009000000000000000802000000000000140000000000000020020000000000003400000000000000000000001000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000400000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000000200000000000000000000000000000002000000000000000000000000000000020000000000000000000000000000005902000000000000000000000000000002000000000000000100000000000000ffffffffffffffff00000000000000000100000000000000ffffffffffffffff000000000000f87f000000000000f87fffffffffffffffff0000000000000000ffffffffffffffff0000000000000000ffffffffffffffff00000000020000000200000000000000ffffffffffffffff00000000fc0700001908000000000000feffffffffffffff01000000000000000000000000000000fc070000000000005a4005748489c03263be315d99c7bd3ca33a426dffffffffffffffff7b22726f6c65223a2275736572222c22636f6e74656e74223a2261227d00000000000000ffffffffffffffff00000000020000000400000000000000ffffffffffffffff00000000010000000000000001000000ffffffffffffffff0300000000000000ffffffffffffffff00000000b80b00007017000000000000feffffffffffffff02000000000000000000000000000000b80b000000000000467542a55faeded09fda684dd51996a8fceb3a50b80b000000000000b80b000000000000467542a55faeded09fda684dd51996a8fceb3a50ffffffffffffffff0000000058020000ffffffffffffffff00000000580200005902000000000000feffffffffffffff0100000000000000000000000000000060090000000000008eaf24dd5d89819e815e43b920bf0c84ad8bb111ffffffffffffffff02000000ffffffffffffffff0100000000000000ffffffffffffffff00000000dc050000dc05000000000000feffffffffffffff01000000000000000000000000000000dc050000000000001ac4e8f1db1deb422344e0f81e26dcfcb00ff09c00000000');
INSERT INTO expdb.chunks VALUES (3, 28, 28, 6, 1, 2, 376, 5463608584, '834e8a2f8eca432899af60676b2121e6', '\xffffffff4801000014000000000000000c0016000600050008000c000c0000000003040018000000280000000000000000000a0018000c00040008000a000000bc000000100000000100000000000000000000000a00000000000000000000000000000000000000000000000000000008000000000000000800000000000000000000000000000008000000000000000800000000000000100000000000000000000000000000001000000000000000010000000000000018000000000000000000000000000000180000000000000001000000000000002000000000000000000000000000000020000000000000000800000000000000000000000500000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000000001000000000000000000000000000000010000000000000000000000000000000100000000000000000000000000f87f000000000000000000000000000000000000000000000440');


--
-- Data for Name: consumers; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.consumers VALUES (5, 1, 'trainer', '{"seed": 11, "max_times_sampled": 3, "max_staleness": null, "min_size": 4, "new_only": false}', 30, 12, 6, 6, 5, 3, 0);
INSERT INTO expdb.consumers VALUES (5, 2, 'evaluation', '{"seed": 7069041582161673895, "max_times_sampled": null, "max_staleness": null, "min_size": 1, "new_only": true}', 30, 0, 0, 0, 0, NULL, 0);
INSERT INTO expdb.consumers VALUES (11, 1, 'branches', '{"seed": 0, "max_times_sampled": null, "max_staleness": null, "min_size": 1, "new_only": false}', 12, 2, 1, 1, 1, NULL, 0);


--
-- Data for Name: episodes; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.episodes VALUES (1, 0, 'values', 'first run', 'types', NULL, 'agent', NULL, 'complete', 12, 48, NULL, '{"source":"kept","level":3}', 1795977177.6843593, 1795977177.7072806, true, 11, 11, 11, 12, '["obs.image", "obs.speed"]', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 3, 'attempt 3', 'first run', 'book flight', NULL, 'agent 1', 'group 1', 'complete', 5, 1.5, NULL, NULL, 1795977177.8627734, 1795977177.8642786, true, 4, 19, NULL, NULL, NULL, 8, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 4, 'broken', 'first run', 'book flight', NULL, 'agent', 'group 1', 'aborted', 1, NULL, NULL, NULL, 1795977177.8715823, 1795977177.8728738, true, 0, 20, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (2, 6, 'e6', 'first run', 'task 0', 'name 0', 'agent', NULL, 'complete', 10, -6.1645426909549705, 6, NULL, 1795977177.7602293, 1795977177.7612865, true, 9, 69, 69, 10, '["obs"]', NULL, 6, 6, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (7, 0, 'turns', 'first run', 'chat', NULL, 'agent', NULL, 'complete', 11, 3, NULL, NULL, 1795977178.025396, 1795977178.0354137, true, 10, 10, NULL, NULL, NULL, NULL, 0, 2, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (2, 9, 'e9', 'first run', 'task 0', 'name 1', 'agent', NULL, 'complete', 10, 0.12302151167639941, 9, NULL, 1795977177.7722204, 1795977177.773477, true, 9, 99, NULL, NULL, NULL, NULL, 9, 9, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (2, 11, 'e11', 'first run', 'task 2', 'name 1', 'agent', NULL, 'complete', 10, 0.6823718464796361, 11, NULL, 1795977177.777313, 1795977177.7784965, true, 9, 119, NULL, NULL, NULL, NULL, 11, 11, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (2, 7, 'e7', 'first run', 'task 1', 'name 1', 'agent', NULL, 'complete', 10, -1.594581182230815, 7, NULL, 1795977177.7652225, 1795977177.7666178, true, 9, 79, NULL, NULL, NULL, 1, 7, 7, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 5, 'out of order', 'first run', 'shuffled', NULL, 'agent', NULL, 'aborted', 3, NULL, NULL, NULL, 1795977177.8750029, 1795977177.8892555, false, 3, 23, NULL, NULL, NULL, 9, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (2, 8, 'e8', 'first run', 'task 2', 'name 0', 'agent', NULL, 'complete', 10, -5.83040049023884, 8, NULL, 1795977177.7693129, 1795977177.7706757, true, 9, 89, 89, 9, '["obs"]', 2, 8, 8, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (2, 10, 'e10', 'first run', 'task 1', 'name 0', 'agent', NULL, 'complete', 10, -8.835021912561002, 1000, NULL, 1795977177.7748187, 1795977177.7760332, true, 9, 109, 109, 10, '["obs"]', 3, 1000, 1000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 0, 'attempt 0', 'first run', 'book flight', NULL, 'agent 0', 'group 1', 'complete', 5, 0, NULL, NULL, 1795977177.830493, 1795977177.8318272, true, 4, 4, NULL, NULL, NULL, 2, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 1, 'attempt 1', 'first run', 'book flight', NULL, 'agent 1', 'group 1', 'complete', 5, 0.5, NULL, NULL, 1795977177.844679, 1795977177.8460567, true, 4, 9, NULL, NULL, NULL, 4, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 2, 'attempt 2', 'first run', 'book flight', NULL, 'agent 0', 'group 1', 'complete', 5, 1, NULL, NULL, 1795977177.853282, 1795977177.8547163, true, 4, 14, NULL, NULL, NULL, 6, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 7, 'single 0', 'first run', 'b0', NULL, 'agent', NULL, 'complete', 1, 0, NULL, NULL, 1795977177.9050653, 1795977177.9067152, true, 0, 25, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 8, 'single 1', 'first run', 'b1', NULL, 'agent', NULL, 'complete', 1, 1, NULL, NULL, 1795977177.9051054, 1795977177.9067152, true, 0, 26, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 9, 'single 2', 'first run', 'b2', NULL, 'agent', NULL, 'complete', 1, 2, NULL, NULL, 1795977177.9051175, 1795977177.9067152, true, 0, 27, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (5, 0, 'consumed 0', 'first run', 'task 0', NULL, 'agent', 'group 0', 'complete', 5, 10, NULL, NULL, 1795977177.9368849, 1795977177.9387949, true, 4, 4, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (5, 1, 'consumed 1', 'first run', 'task 1', NULL, 'agent', 'group 1', 'complete', 5, 15, NULL, NULL, 1795977177.9444165, 1795977177.9455907, true, 4, 9, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (5, 2, 'consumed 2', 'first run', 'task 0', NULL, 'agent', 'group 2', 'complete', 5, 20, NULL, NULL, 1795977177.946949, 1795977177.9481134, true, 4, 14, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (5, 3, 'consumed 3', 'first run', 'task 1', NULL, 'agent', 'group 0', 'complete', 5, 25, NULL, NULL, 1795977177.9491055, 1795977177.9502482, true, 4, 19, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (5, 4, 'consumed 4', 'first run', 'task 0', NULL, 'agent', 'group 1', 'complete', 5, 30, NULL, NULL, 1795977177.9511104, 1795977177.9521258, true, 4, 24, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (5, 5, 'consumed 5', 'first run', 'task 1', NULL, 'agent', 'group 2', 'complete', 5, 35, NULL, NULL, 1795977177.952929, 1795977177.9540296, true, 4, 29, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (6, 0, 'in flight', 'first run', 'in flight', NULL, 'agent', NULL, 'complete', 6, NULL, 3, NULL, 1795977178.0045176, 1795977178.0056028, true, 5, 5, NULL, NULL, NULL, NULL, 3, 6, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (8, 3, 'scored 3', 'first run', 'prompt', NULL, 'agent', 'g', 'complete', 3, 3, NULL, NULL, 1795977178.0588524, 1795977178.0596845, true, 2, 11, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (6, 1, 'told late', 'first run', 'told late', NULL, 'agent', NULL, 'open', 3, NULL, NULL, NULL, 1795977178.0125263, NULL, true, 2, 8, NULL, NULL, NULL, NULL, 6, 7, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (8, 0, 'scored 0', 'first run', 'prompt', NULL, 'agent', 'g', 'complete', 3, 3, NULL, NULL, 1795977178.0495412, 1795977178.050649, true, 2, 2, NULL, NULL, NULL, 2, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (8, 1, 'scored 1', 'first run', 'prompt', NULL, 'agent', 'g', 'complete', 3, 3, NULL, NULL, 1795977178.0550346, 1795977178.056009, true, 2, 5, NULL, NULL, NULL, 3, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (8, 2, 'scored 2', 'first run', 'prompt', NULL, 'agent', 'g', 'complete', 3, 3, NULL, NULL, 1795977178.0570073, 1795977178.0579765, true, 2, 8, NULL, NULL, NULL, 4, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (11, 0, 'root', 'first run', 'tree', NULL, 'agent', NULL, 'complete', 6, 6, 1, NULL, 1795977178.1135824, 1795977178.1148646, true, 5, 5, NULL, NULL, NULL, NULL, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (8, 4, 'self-play', 'first run', 'chess', NULL, 'white', NULL, 'complete', 4, NULL, NULL, NULL, 1795977178.0765073, 1795977178.077682, true, 1, 15, NULL, NULL, NULL, NULL, 0, 3, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (9, 0, 'measured', 'first run', 't', NULL, 'agent', NULL, 'open', 1, NULL, NULL, NULL, 1795977178.0919073, NULL, true, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (10, 0, 'record 0', 'first run', 'default', NULL, 'agent', NULL, 'complete', 1, 0, NULL, NULL, 1795977178.102375, 1795977178.1044834, true, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (10, 1, 'record 1', 'first run', 'default', NULL, 'agent', NULL, 'complete', 1, 1, NULL, NULL, 1795977178.1024091, 1795977178.1044834, true, 0, 1, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (10, 2, 'record 2', 'first run', 'default', NULL, 'agent', NULL, 'complete', 1, 2, NULL, NULL, 1795977178.1024187, 1795977178.1044834, true, 0, 2, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (11, 1, 'fork', 'first run', 'tree', NULL, 'agent', NULL, 'complete', 6, 2, 2, NULL, 1795977178.1222851, 1795977178.1247678, true, 5, 7, NULL, NULL, NULL, NULL, 1, 2, 0, 0, 4, 3, 'fork', 0, 4, NULL);
INSERT INTO expdb.episodes VALUES (11, 2, 'retry', 'first run', 'tree', NULL, 'agent', NULL, 'complete', 3, NULL, NULL, NULL, 1795977178.1299255, 1795977178.1333876, true, 2, 8, NULL, NULL, NULL, NULL, 1, 1, 0, 1, 2, 1, 'retry', 0, 2, NULL);
INSERT INTO expdb.episodes VALUES (11, 3, 'subagent', 'first run', 'helper', NULL, 'agent', NULL, 'complete', 1, NULL, NULL, NULL, 1795977178.1379216, 1795977178.1399903, true, 0, 9, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 5, NULL, 'subagent', 0, 0, NULL);
INSERT INTO expdb.episodes VALUES (11, 4, 'continuation', 'first run', 'helper', NULL, 'agent', NULL, 'complete', 1, NULL, NULL, NULL, 1795977178.1440709, 1795977178.1461492, true, 0, 10, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 5, NULL, 'continuation', 0, 0, NULL);
INSERT INTO expdb.episodes VALUES (11, 5, 'compaction', 'first run', 'helper', NULL, 'agent', NULL, 'complete', 1, NULL, NULL, NULL, 1795977178.1496372, 1795977178.1510715, true, 0, 11, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, 5, NULL, 'compaction', 0, 0, NULL);
INSERT INTO expdb.episodes VALUES (12, 0, 'rollout 0', 'first run', 'shared', NULL, 'agent', 'g', 'complete', 2, NULL, NULL, NULL, 1795977178.1710851, 1795977178.173664, true, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (12, 1, 'rollout 1', 'first run', 'shared', NULL, 'agent', 'g', 'complete', 2, NULL, NULL, NULL, 1795977178.181462, 1795977178.1838405, true, 1, 3, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (12, 2, 'rollout 2', 'first run', 'shared', NULL, 'agent', 'g', 'complete', 2, NULL, NULL, NULL, 1795977178.187803, 1795977178.1899428, true, 1, 5, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.episodes VALUES (3, 6, 'never ended', 'first run', 'again', NULL, 'agent', NULL, 'open', 2, NULL, NULL, '{"open":true}', 1795977177.8987901, NULL, true, 1, 28, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);


--
-- Data for Name: evictions; Type: TABLE DATA; Schema: expdb; Owner: -
--



--
-- Data for Name: expdb_version; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.expdb_version VALUES ('0017');


--
-- Data for Name: imports; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.imports VALUES (10, 'record 0', '\x437f3c5f1dbbf46369c7d15bbac549eb', 0);
INSERT INTO expdb.imports VALUES (10, 'record 1', '\x7ff1fab39f74f03ea44a0746e7eaa846', 1);
INSERT INTO expdb.imports VALUES (10, 'record 2', '\xce1582fc7fdb67de4a6d0683b41c105f', 2);


--
-- Data for Name: leases; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.leases VALUES (5, 1, 0, 0, 'acknowledged', 6319939617920762822, 'vm/89d6916a/4026531836 31206 5929921 3', 1795977177.964039, 1795977477.964039, 1795977177.967812, 0, 0, NULL, 2, 3, 20, '\x0100000000000200000003000000000000000011', '\x', 13027134734, 1048905984, NULL);
INSERT INTO expdb.leases VALUES (5, 1, 1, 1, 'acknowledged', 5226315890612553022, 'vm/89d6916a/4026531836 31206 5929921 3', 1795977177.968476, 1795977477.968476, 1795977177.976487, 1, 1, NULL, 2, 3, 5, '\x0100000000000200000003000000000000000002', '\x', 16958902386, 1080858288, NULL);
INSERT INTO expdb.leases VALUES (5, 1, 2, 2, 'acknowledged', 1271481594629334814, 'vm/89d6916a/4026531836 31206 5929921 3', 1795977177.977234, 1795977477.977234, 1795977177.980076, 2, 2, NULL, 2, 5, 20, '\x0100000000000200000005000000000000000f00', '\x', 13761132660, 3697778800, NULL);
INSERT INTO expdb.leases VALUES (5, 1, 3, 3, 'acknowledged', 3527713920529078612, 'vm/89d6916a/4026531836 31206 5929921 3', 1795977177.98069, 1795977477.98069, 1795977177.984949, 3, 3, NULL, 4, 0, 25, '\x0102000000000200000000000000000000000a19000f', '\x', 16733531515, 2269374279, NULL);
INSERT INTO expdb.leases VALUES (5, 1, 4, 4, 'acknowledged', 8289685014614433277, 'vm/89d6916a/4026531836 31206 5929921 3', 1795977177.985674, 1795977477.985674, 1795977177.993009, 4, NULL, NULL, 4, 6, 27, '\x010000000000040000000600000000000000000b0d15', '\x0128b52ffd2040dd0000981111b1b1b1b13f3f3f3f00f0f0f0f03f3f3f3f0200a03e0ac002', 12884901888, 3405205486, NULL);
INSERT INTO expdb.leases VALUES (5, 1, 5, 5, 'returned', 6319939617920762822, 'vm/89d6916a/4026531836 31206 5929921 3', 1795977177.993785, 1795977477.993785, 1795977177.996228, NULL, NULL, NULL, 3, 1, 29, '\x010000000000030000000100000000000000001c17', '\x', 16894474886, 1301966514, NULL);
INSERT INTO expdb.leases VALUES (11, 1, 0, 0, 'acknowledged', 8216971544733846894, 'vm/89d6916a/4026531836 31206 5929921 5', 1795977178.160751, 1795977478.160751, 1795977178.16507, 0, NULL, NULL, 3, 0, 10, '\x0100000000000300000000000000000000000a0900', '\x', 15614402262, 1640535425, NULL);


--
-- Data for Name: metrics; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.metrics VALUES (9, 0, 1000000000, '{"steps_added": 10, "actors": 1}');
INSERT INTO expdb.metrics VALUES (9, 1, 1000000010, '{"steps_added": 30, "actors": 1}');


--
-- Data for Name: priorities; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.priorities VALUES (2, 0, 1, '{NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,4.294731379833563e-140,NaN,7.049479406648206e-113,NaN,0.24391716083681303,NaN,6.676461258201341e-196,NaN,6.942591483274864e+137,NaN,5.399023843770216e+213,NaN,2.6007480854005925e-45,NaN,2.1069244878516578e+155,NaN,1.957782397904163e+159,NaN,8.337755341168045e+139,NaN,2.1227439728620444e+157,NaN,7.4330934063782e+296,NaN,2.466346924885695e-162,NaN,5.1917279646625455e+34,NaN,5.862737647608923e+269,NaN,8.771471751167375e-194,NaN,8.547563417646015e-94,NaN,9.687400031517784e+64,NaN,8.842682194913756e-250,NaN,4.5025760082600474e-129,NaN,1.4187896934633716e-115,NaN,9557803.981145361,NaN,2.2876220026007367e+29,NaN,6.221196887400308e-26,NaN,2.6446670739338697e+187,NaN,8.168249423825543e+37,NaN,2.0077407951137991e+145,NaN,4.207845463400741e+251,NaN,2.196999179874114e+39,NaN,8.605657120238442e+185,NaN,6.194228748791521e-22,NaN,6.308210482856672e-52,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN,NaN}');


--
-- Data for Name: requests; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.requests VALUES (5, 6319939617920762822, '{"unit": {"name": "Step"}, "sampler": {"name": "Uniform", "replace": null, "over": "step"}, "where": null, "fields": null, "columns": {}}');
INSERT INTO expdb.requests VALUES (5, 5226315890612553022, '{"unit": {"name": "NStep", "n": [1, 2], "gamma": 0.5, "end": "shorten", "next_fields": null, "stack": 1, "stack_fields": null, "gaps": "end"}, "sampler": {"name": "Uniform", "replace": null, "over": "step"}, "where": null, "fields": null, "columns": {}}');
INSERT INTO expdb.requests VALUES (5, 1271481594629334814, '{"unit": {"name": "Episode", "max_length": null, "pad": true, "lineage": false}, "sampler": {"name": "Uniform", "replace": null, "over": "step"}, "where": null, "fields": null, "columns": {}}');
INSERT INTO expdb.requests VALUES (5, 3527713920529078612, '{"unit": {"name": "Group", "size": 2, "complete": true, "min_spread": 0.0, "max_length": null, "max_spread": null, "score": null, "missing": "drop", "deadline": null, "of": ["root", "fork", "retry"], "lineage": false, "children": false}, "sampler": {"name": "Uniform", "replace": null, "over": "step"}, "where": null, "fields": null, "columns": {}}');
INSERT INTO expdb.requests VALUES (5, 8289685014614433277, '{"unit": {"name": "Step"}, "sampler": {"name": "Prioritized", "alpha": 0.6, "beta": 0.4, "anneal_steps": null, "epsilon": 1e-06, "initial": "max", "normalise": "batch", "score": null}, "where": {"task_id": "task 1"}, "fields": ["obs"], "columns": {"probability": ["<f8"], "weight": ["<f8"]}}');
INSERT INTO expdb.requests VALUES (11, 8216971544733846894, '{"unit": {"name": "Episode", "max_length": null, "pad": true, "lineage": true}, "sampler": {"name": "Uniform", "replace": null, "over": "step"}, "where": null, "fields": null, "columns": {}}');


--
-- Data for Name: rollout_groups; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.rollout_groups VALUES (1, 'types', true, 'types', 0, 1, 1);
INSERT INTO expdb.rollout_groups VALUES (2, 'task 0', true, 'task 0', 0, 2, 4);
INSERT INTO expdb.rollout_groups VALUES (2, 'task 1', true, 'task 1', 1, 2, 4);
INSERT INTO expdb.rollout_groups VALUES (2, 'task 2', true, 'task 2', 2, 2, 4);
INSERT INTO expdb.rollout_groups VALUES (3, 'group 1', false, 'book flight', 0, 5, 4);
INSERT INTO expdb.rollout_groups VALUES (3, 'shuffled', true, 'shuffled', 5, 1, 0);
INSERT INTO expdb.rollout_groups VALUES (3, 'again', true, 'again', 6, 1, 0);
INSERT INTO expdb.rollout_groups VALUES (3, 'b2', true, 'b2', 9, 1, 1);
INSERT INTO expdb.rollout_groups VALUES (3, 'b1', true, 'b1', 8, 1, 1);
INSERT INTO expdb.rollout_groups VALUES (3, 'b0', true, 'b0', 7, 1, 1);
INSERT INTO expdb.rollout_groups VALUES (5, 'group 0', false, 'task 0', 0, 2, 2);
INSERT INTO expdb.rollout_groups VALUES (5, 'group 1', false, 'task 0', 1, 2, 2);
INSERT INTO expdb.rollout_groups VALUES (5, 'group 2', false, 'task 0', 2, 2, 2);
INSERT INTO expdb.rollout_groups VALUES (6, 'in flight', true, 'in flight', 0, 1, 1);
INSERT INTO expdb.rollout_groups VALUES (6, 'told late', true, 'told late', 1, 1, 0);
INSERT INTO expdb.rollout_groups VALUES (7, 'chat', true, 'chat', 0, 1, 1);
INSERT INTO expdb.rollout_groups VALUES (8, 'g', false, 'prompt', 0, 4, 4);
INSERT INTO expdb.rollout_groups VALUES (8, 'chess', true, 'chess', 4, 1, 1);
INSERT INTO expdb.rollout_groups VALUES (9, 't', true, 't', 0, 1, 0);
INSERT INTO expdb.rollout_groups VALUES (10, 'default', true, 'default', 0, 3, 3);
INSERT INTO expdb.rollout_groups VALUES (11, 'tree', true, 'tree', 0, 3, 3);
INSERT INTO expdb.rollout_groups VALUES (12, 'g', false, 'shared', 0, 3, 3);


--
-- Data for Name: scores; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.scores VALUES (8, 0, 0, NULL, 'judge', 0.3333333333333333, 'v1', NULL, '{"é":[1]}', 1795977178.0633318);
INSERT INTO expdb.scores VALUES (8, 1, 0, NULL, 'judge', 0.6666666666666666, 'v2', NULL, NULL, 1795977178.0684977);
INSERT INTO expdb.scores VALUES (8, 2, 1, NULL, 'judge', NULL, NULL, 'timeout', NULL, 1795977178.072311);
INSERT INTO expdb.scores VALUES (8, 3, 2, 6, 'format', 1, NULL, NULL, NULL, 1795977178.0749013);
INSERT INTO expdb.scores VALUES (8, 4, 2, 7, 'format', -1e+300, NULL, NULL, NULL, 1795977178.0749013);


--
-- Data for Name: segments; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.segments VALUES (1, 11, 0, 0, 0, 11, 0);
INSERT INTO expdb.segments VALUES (2, 69, 60, 6, 0, 69, 0);
INSERT INTO expdb.segments VALUES (2, 99, 90, 9, 0, 99, 0);
INSERT INTO expdb.segments VALUES (2, 109, 100, 10, 0, 109, 0);
INSERT INTO expdb.segments VALUES (2, 119, 110, 11, 0, 119, 0);
INSERT INTO expdb.segments VALUES (2, 75, 70, 7, 0, 79, 0);
INSERT INTO expdb.segments VALUES (2, 79, 79, 7, 9, 79, 6);
INSERT INTO expdb.segments VALUES (2, 83, 80, 8, 0, 89, 0);
INSERT INTO expdb.segments VALUES (2, 89, 85, 8, 5, 89, 4);
INSERT INTO expdb.segments VALUES (3, 4, 0, 0, 0, 4, 0);
INSERT INTO expdb.segments VALUES (3, 9, 5, 1, 0, 9, 0);
INSERT INTO expdb.segments VALUES (3, 14, 10, 2, 0, 14, 0);
INSERT INTO expdb.segments VALUES (3, 19, 15, 3, 0, 19, 0);
INSERT INTO expdb.segments VALUES (3, 20, 20, 4, 0, 20, 0);
INSERT INTO expdb.segments VALUES (3, 23, 21, 5, 0, 23, 0);
INSERT INTO expdb.segments VALUES (3, 24, 24, 6, 0, 24, 0);
INSERT INTO expdb.segments VALUES (3, 25, 25, 7, 0, 27, 0);
INSERT INTO expdb.segments VALUES (3, 26, 26, 8, 0, 27, 1);
INSERT INTO expdb.segments VALUES (3, 27, 27, 9, 0, 27, 2);
INSERT INTO expdb.segments VALUES (5, 4, 0, 0, 0, 4, 0);
INSERT INTO expdb.segments VALUES (5, 9, 5, 1, 0, 9, 0);
INSERT INTO expdb.segments VALUES (5, 14, 10, 2, 0, 14, 0);
INSERT INTO expdb.segments VALUES (5, 19, 15, 3, 0, 19, 0);
INSERT INTO expdb.segments VALUES (5, 24, 20, 4, 0, 24, 0);
INSERT INTO expdb.segments VALUES (5, 29, 25, 5, 0, 29, 0);
INSERT INTO expdb.segments VALUES (6, 5, 0, 0, 0, 5, 0);
INSERT INTO expdb.segments VALUES (6, 6, 6, 1, 0, 6, 0);
INSERT INTO expdb.segments VALUES (6, 7, 7, 1, 1, 7, 0);
INSERT INTO expdb.segments VALUES (6, 8, 8, 1, 2, 8, 0);
INSERT INTO expdb.segments VALUES (7, 10, 0, 0, 0, 10, 0);
INSERT INTO expdb.segments VALUES (8, 2, 0, 0, 0, 2, 0);
INSERT INTO expdb.segments VALUES (8, 5, 3, 1, 0, 5, 0);
INSERT INTO expdb.segments VALUES (8, 8, 6, 2, 0, 8, 0);
INSERT INTO expdb.segments VALUES (8, 11, 9, 3, 0, 11, 0);
INSERT INTO expdb.segments VALUES (8, 15, 12, 4, 0, 15, 0);
INSERT INTO expdb.segments VALUES (9, 0, 0, 0, 0, 0, 0);
INSERT INTO expdb.segments VALUES (10, 0, 0, 0, 0, 2, 0);
INSERT INTO expdb.segments VALUES (10, 1, 1, 1, 0, 2, 1);
INSERT INTO expdb.segments VALUES (10, 2, 2, 2, 0, 2, 2);
INSERT INTO expdb.segments VALUES (11, 5, 0, 0, 0, 5, 0);
INSERT INTO expdb.segments VALUES (11, 7, 6, 1, 4, 7, 0);
INSERT INTO expdb.segments VALUES (11, 8, 8, 2, 2, 8, 0);
INSERT INTO expdb.segments VALUES (11, 9, 9, 3, 0, 9, 0);
INSERT INTO expdb.segments VALUES (11, 10, 10, 4, 0, 10, 0);
INSERT INTO expdb.segments VALUES (11, 11, 11, 5, 0, 11, 0);
INSERT INTO expdb.segments VALUES (12, 1, 0, 0, 0, 1, 0);
INSERT INTO expdb.segments VALUES (12, 3, 2, 1, 0, 3, 0);
INSERT INTO expdb.segments VALUES (12, 5, 4, 2, 0, 5, 0);
INSERT INTO expdb.segments VALUES (3, 28, 28, 6, 1, 28, 0);


--
-- Data for Name: shared_values; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.shared_values VALUES (12, '\x1ac4e8f1db1deb422344e0f81e26dcfcb00ff09c', 1156631697, '\xdc0500000000000028b52ffd60dc044d00001074740100d7fd000b');
INSERT INTO expdb.shared_values VALUES (12, '\x467542a55faeded09fda684dd51996a8fceb3a50', 485619515, '\xffffffffffffffffb81491397e00046574bc809f3bf3712a4ec0dff8c0f85b21562fd6ff66dc545d7358bc42790d4fb58519752582b5a09f4f45c284459853d55bf1fd70720cd63bdb9d22614ec1d51d547bbac4b1b49324b930aeb575e5ee612dd8d38f3dcfc667d0f2179f50ac5cc23a67f49497d83889b9a547adeba6ac74e6be84edae772519c1da58f25c7e383ed936c0fa0b34c798389416dcc86eb708f65dd01ac16db420f2d6a073249e2d064abb15c81ca388e4cb6d594bad83b5468c38529b8c9533de4846240ea4187d8360532134db53317fded874665b0b1465c930f811d1a867e5a3b9a06c4b1c05e7f292e83a416c6bd895439ddc713777c622a99d5158f71dac5d417761e5b0e7f71acb51cd685b9f690c66468faee7a9ebe680d20c436067355226b337a0b2c205d117629cb679ffae978e0933ed2b9dbeb967913f7783bde175a3789f3bef357916229d7e28458f2eb6cee3445d4cdb53a4b6278fc7b3f879304d3da2d35557ca4e50140a1ed8f3d374d41a46c653351df81cc64e86215bc483daf3e084efe2c10b8c230dfef83f1a81c9dd5876beab02b20cce3179a9214231baf4b1c17f999b830badcf2eab1a07bd34b40ea7c3f5b81d5b01dd5b7d05a4bc762ab234eb8ef8eeec8b37f03612bddb0374ea547541e84cd2044bea35cd0867d9d8c9d4013f22a58d3013a771da9608a0bf74729796ba852d79815557ca2f2ea386e58f186e70638b26d69767b1a396d6df8bea04a1451278310d0d704f10fd01136ebb33e578932d1360c60b85d9deb8d8fef6890d17349843aefa42acbbcbc0b1677e3cba637496645d7694dd677a1480c433d44fe5fc0585181a7f2623651428d1357744213d23c0ab6807f01072b26f6f70269509d838d8b5af7a05901e2bd7658ba9bbb13ef9a624311db6a20393bc6a657e6f6b475f260d0756b8d7eb284d168dfb3f4fc27e6370f5daa6b8f11438d305c09819f3d123348a1af15fc3863580a2dab521655d9cfa9156e748e1dcd3d30557bec5b68de4e663ace7e65fb4caac7b25544f4c6ccd9631636a2eabbcf394f36bbd35a598ea99970e59bd38940877cc7d89c6aef7515c19f20488b3b61a3d88b5b55c63deb7103735d4efc1827f5e525787ad952b18c51004ee93c5d87c8db958a5cdef1afb29fefcb017569b6fd03ebab5e0a0599d0ab9c26d89b15b5eeef383e9722fb4dca6883c7c5e4b485d8e090802562db4a0691bb5a6cbc73b35d3a1233c37f67bbc01089db3f471e612044bd218861f5933853c2a5da1bac20c4ce0f390215019cc66e8fb7ef818835e89cba2087341bd340bb9b7a3edfee1a9fb765f790d2be179adb96c0fc568105119f8f1445dd98e15bded6fe6ddfa2e6c886ac0824b4ebddbafa93bfd55467fdabcf346bb031a26cafdf123e14373794f1e78c2ca1d6a1108ffb35467ef0a60137a7c0a3ec413f67033ffb5dceec6d9a45ffc221a98f4f9435d6633bc1ad1cb35e5aa760ec5c6d137869555c4ff4659141144e4e76de61202b74681ee5780256e7f0a9f772dcfe189d0efaad242b7aae40b50c1282ca9eb70dde95f8581839692e4e65cfd84eca51b0290335acddd77177a4e2e7b1c97a71f1f73da2c13f00f8887ca539aad0860d51608978c93735d15e3914124e86831032fb2dba544ace40eab036067c2f69250a756c146983927215264bc37ed7e80e736d0bbdfa6d2314deafa58dba3791b300a61df0732f6100e416b22c4ef068ba3531ee13a3bbe2c8c950aff4d72e84d835e5c51b522264f821c37e0bf4bce8101924c5a230675a25db9fd1ee44105a66cb46df8d6a7d1b4557d0b94b1a2df1d8e4eeaab5c3135bba00278ba0e8d7480658831711a1ed628e8a0f2de753b6148f6706cc49078dd1a8ff5656fdf9e55acc533630fe44f073669d0a812392034ea01b88728f36717353ae60d11c9685b8cafec61f6512a629a993c38d564709fadfbeb54d776e2b5f739673cbf0cdbde2ed8adfbc343fbc403f1f34570f5d12f646998a811b85fc0d13a953431b4d2a69b23122f77fd5e6616be981ce042c2c3c0b93d11234f483fc56463136ee1c1123dbb60cbcfe017aea32df9239dd75ffd8d46a3ab479f639e5297b91eca1ec2ae523a2c22149821cf98e54d26f101163d79a1e0caba21f4960fc81e228c8d4adb85fff36f16fd98d38c6a6d4d04e228a492d36390afed57698ebf83a17a7ba63635797172744a3645ce7478fd3d67995c568a6c9a60e9dcf19da6b3e3d244e56d2cbb46f606337a22539f2a31dafcee91d43d6fa0238ed28bc99a16c0a5d4b612488772b3e068e3e6e88c7e2ada9321725dcac88df94eb46e61ea1bbc66112423c2996578d37eb45184d2c7ecffbe0793e69756fde119efc58d12d6cc17dd0d4d87e8b71fc4b4d50a42ae0a0d35f661df9da162b2f100c8a9ab30c463b2d090c34bcb8685529c1e5ed141acd8c5037b3d6672fd19f3e2123a84ddacd5d1fc83b5ddc98b8aa152fe750f9bd854bb1b655146226e775d5958c990aa02780d6b4c7deec045b42fd6870603409820b74cfbd55dc0f2dd26e2b4e63a6d9b001d9c4b3403a148a31d107f1edd42fe679639c05aa77066176e67933f57513a4004061862238c8d7935354e3a02145843ccf2d7b8778f1c43b72b9dfde378b6cbf3e971de9103b11cf5c9188538e1f84743e2ea8c160823e7661e95dd2d19e9918c041e0d3814cc29519f75aa8bca4043301cfc8dedb17abb0e6b36322051a19bc25996e157a0508e4b9eba5e95881bd6ff0a9be8f24ad6e32483c2f77a292a7b0fc5cb3dcc9f7d0e171a19522d0d7006bb5447cfda2ce7384bd85dddf7158f471922a363c6a56c9952b320ed0110fafa3dea419f63405a3f0674584f30fbb9ed2aa113a29be43b05f0aae8fa16d9c1b1a3a792da0b52c049965957eaf901d4c696b5cd9e1e177c7fa752b6cb11df3885e2f445e9b9c9a1125ba60a097704e94a1857c3de60504f32ec0c44ef3e290568bc415a5ef85b2f291917e3c9abd3ee35ecbc3576f18c0183e7e83943cfc90d228d9db530502c193a9ffd357da74fe4cb7599bdf3052162d1216923766a0db1e2249c4d4a3bb4b402fd7dd2b3e61a6f8baf5f23176f7dbb89f88bdcf5e51276d4b50b699350b68a43287ae137608b4e40efa051222e7f00031e9707110ae39767a04df7b0630044f59be044991f714664902d4f28ecf8e0d79033eed93ba25cf17d7b77cfdb331a80362435ffeb5fa16e52a709943dd789d8774b8753d9bc0e9cfb3a7b1c3d5259e2708e21891b789c8481d9dc2bae9b47dc42a08f7f7f74fc675a52db532389ccd652235ff00914817604d80dd12260ead8cc6804f9c4e40878b6480b14687b39671e59e5e87732eac5080a8b09523b8208e81655adb1922be1bee5a53971f1913040877f4d69f0ba50eda244da78799a9ccbced2acc0be0b44ec8c6aa31c6709e2bd02247fde3668f671f571d8ab29046fd9cc14d1458615ad83f3eaf31a7fa42104c452ce543e7074b0c276ed9be4151dced140a0505fe0d048432eee27555e4a49cb767b8917e2ff0a95f2f61ef79b383875b409bef79e58544484ee448d6c615d145b30d707acf887003cf127583eecd9aea0cabde641c8841f76f003fadf1a7677259f202834bf5ea7f86808d462be02877a72f6a5becda97afcb6fa7a54c3523e7f6ee0b05d2a1b50df9ed9bfe842145a107e28db34f1bff5a018e9bd3d78acf025e9d300e3987de9eb25cf75463bcc8f9d8d82a2548e7aa427c606cae1be6f62016fbc35523006310d46f739ff51ba918753763fd21bb86869a161bfd856c011936cfcc5397ac04e03188891373b5782fda7d6a8c0d209b5e2ee8ca4d39d632b9f0ca37b39c6268c66cd44bb3419b418e5d3c0593e35b2edccc77d3a234b11d36425c9d36b657023bb91e4be8031cefdd4e085cfa01a8b86000ba52b0e5d4df96bb8b33331da56b43a2169f81d703cdef81a561f4555799bae3ba08f2fee8b6321c591afef0154007c956b935fe5657b322dcd8e23d0abf30d41eb9baa2a74a5191d6110f9cbd6394a859e5ecb4b8fb54f5810f1a5c22047a12731cf6064919634117d3e67ee4bb454a893584df6ccaa3a2e8264ce258a275b15a0a7cdf076c1a234f8487d22ffabb8b0a4a7dc10679525dc81f6a6a8d40d44a1f080af8e69b17f1394ce447953ad5d5237d73d488756af556e4c3a03a866e0');
INSERT INTO expdb.shared_values VALUES (12, '\x5a4005748489c03263be315d99c7bd3ca33a426d', 1606493067, '\xfc0700000000000028b52ffd60fc067d010044027b22726f6c65223a2273797374656d222c22636f6e74656e742070726f6d7074202e227d0200cce3fec9b43906');
INSERT INTO expdb.shared_values VALUES (12, '\x8eaf24dd5d89819e815e43b920bf0c84ad8bb111', 35963596, '\x600900000000000028b52ffd606008452600aa5aa80c1f40b86133981ae8a48d61fb24b645b56ba5598b194323da9f77f3c562492953b400c000bd007b76ee22ed5dd883d3c0dd94fbb8b372f7eb137247e645fe2afdc9dd11d883b6e76b0fc81d81bb6c2ff54b5fb437e80fcb9d85777b18f614ed29fa53b367ed2fd05e9d3d4f77acf632fc8ddacbb517f75367b677e296eeb2fce1b89cbfb717f85bb197e20cf6a2bcd68dedd1ba8c3f337b84f6deeedcdcc5ddcf5e10cfd0df8b3b617f8fe271776f7f5fee88fc9dbafb731177a6f6f8c81dc85eb6bb147797eefcfc71f8bbf3e762efc39f9c3b637f191eebaf4f502ee9bc3c107782fec6dcedb9a6bbdde1b95b732adf8c3b671f8d3f597f16ee44ed21bbc33197ecaec01da253f6befc7d50b1c76b8fc8deadbf16775fee3edc21d8ab90da9d983b0d7baafebebb609eaeaed05d9fa3ba7bb1b767efc61d86bf07774e0eec4fd05eaa3fb8bf1d77b6ee0edc01fb903bb93f477725ee7edc0d3b9307f8b3f50c5f9ebd575ff56763afc2df88bf0077b37e628fc7de8c3f007715eedeec69fb83b2e7f6976aafc7577f6cfe945cdb1d84bb5d7baa7afcf1b9db14dddfa4bd0067fe72fd9dd96bf027eb1eee405dc25fa23d337fabba67d37cdae7e38fd797e331fe24bcc91fae3f3b7b4beec220e1e2c52873557b00ae604f5956ef752b877ba6bf607b958e690fd59f964fcf1e983db92bd983dbd37227646fcc5eb1573bb23f0af7f4e7b637e21bbeec2f93c7e40fd007e1a65ee6cecb9e98530913d61d8c3f167bb59a39a5d7b8d3f14e7b73ce094527612fdadd833f8fd4dd10623f64e22fc8dea337bbdb7227ed09ee5c7c5cee8afdd1f15edcc50d77a37067684f5477e85deeec2fce9f15407b6f9da63bf92392ead3b1c7e00ec9ff7c90f6da78d71ee8d85d873d574aeee6e2fa80bf6ea53d236fb5b7ebef4607608fc485bdc3619ce3bdf9bb7227ec3b72c1dedcc7e00b45e7a372a7e07bf6197b89bf4777a192f81b7267ed6f4f27600fcedbb6e7e00edbde953d347b13bc4e7fc7ba2a7f7dfe3879adacfd35eae2b228686fd91d843d0f7b749eeccd5dc71f9a3b6c7f21b2f923d391f018ed2592338217e6efd367e9cf89576a8fd21e05afc55f124cdf9bbb6a77de5e813d4ea5fcb9da0b80bca8f13c23400e056212c84818499274200222200429863e1098c11e33d1ff1c1f9fd1b6da18f61bc98e22bed1f81a3b07b42d2cc2e99496e03b73ec82ba436f13ff4fb8fda7f065c053f301b957c5d7087e574fe747c30332cee6ba53a6e5db5fa7b0f36c307dfc34ce0e2ee3b70ca0ba0ae1693f5dfe3fba5763d6c7ca192d511bb6cf3ac1dc502fd8afa97bcd85963dde89afb4af72da30db44be3fa7515f5a6473974087dd406911c1c03a6be727e1449a2d4df8bb52b07a53b0919a737954fd76b148effa76cb8e35888e58b6307fb18ff90de193ef3758abc8247d872cd6598e806ef4652e3fb8fde4f700e90201bf1468f971ddfa827d0bf3703e925de1e4bad5faf96cf5277bf87fc2dd4df2c1350f335735b799ec68ff3b2a23cd2d5a13f099e4e1e5874f8cb9c51ec1fe4f137a72bb780f441fcaa3ce72e7cafa7df3b26c6a1107debfbc67c18c61fd130c03ff5f482f9216851b4d3e2b3bf43771c7f8007b32a64a27bf8ae0e1641ee977199e80fafaa87f66d5d17a9b41b3f07d623f42e647c24ea7f8e50377ab704c14e1eb6cd82c56f37dd5');


--
-- Data for Name: signatures; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.signatures VALUES (1, 0, '\xffffffffb01f00001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000029000000041f0000801e0000101e0000a41d0000381d0000c41c00004c1c0000d41b00005c1b0000e01a00006c1a0000f819000084190000141900009818000024180000e0160000a81500006c14000030130000f4110000bc100000840f00004c0e0000140d0000e00b0000a80a0000700900007008000070070000740600000c060000a80500003c050000d404000064040000f8030000bc0200004c0200000401000004000000b2e1ffff0000010d1c00000060000000080000001c00000002000000b00000005000000004000000696e7473000000000100000004000000a8e1ffff2000000004000000110000005b22696e743634222c205b6e756c6c5d5d0000000b00000065787064622e6669656c640094e2fffff0e8ffff0000010c140000001c000000040000000100000014000000060000007375666669780000c0e2ffff1ce9ffff0000010210000000180000000400000000000000040000006974656d00000000f8e1ffff00000001400000004ce9ffff000001021000000018000000040000000000000006000000707265666978000028e2ffff0000000120000000aee2ffff0000010d2000000060000000080000002000000003000000d8000000780000004c000000060000006e657374656400000100000004000000a8e2ffff1c000000040000000c0000005b226a736f6e222c205b5d5d000000000b00000065787064622e6669656c640090e3ffffece9ffff00000106100000001800000004000000000000000700000069735f6c69737400b8e3ffff14eaffff0000010c140000001c000000040000000100000014000000040000007265667300000000e4e3ffff40eaffff0000010210000000180000000400000000000000040000006974656d000000001ce3ffff000000012000000070eaffff0000010c1400000018000000040000000100000010000000030000006e6577003ce4ffff98eaffff0000010510000000180000000400000000000000040000006974656d0000000064e4fffff2e3ffff000001031400000058000000080000001800000000000000090000006f62732e73706565640000000100000004000000e4e3ffff1c000000040000000f0000005b22666c6f61743332222c205b5d5d000b00000065787064622e6669656c64000eeaffff000001005ee4ffff0000011018000000f8000000080000001c00000001000000f0000000090000006f62732e696d616765000000030000009800000050000000040000005ce4ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000a4e4ffff2000000004000000130000007b227368617065223a5b31362c31362c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000e8e4ffff2400000004000000160000005b2275696e7438222c205b31362c2031362c20335d5d00000b00000065787064622e6669656c6400e6e8ffff0003000038ecffff0000010210000000180000000400000000000000040000006974656d0000000012e9ffff0800000096e5ffff000001031400000054000000080000001400000000000000040000007265616c00000000010000000400000084e5ffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c6400aeebffff00000200fee5ffff000001021400000054000000080000001400000000000000060000006e756d62657200000100000004000000ece5ffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c6400e4e5ffff00000001400000006ae6ffff00000106140000005400000008000000140000000000000004000000666c616700000000010000000400000058e6ffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640040e7ffffcee6ffff0000010514000000580000000800000018000000000000000a000000656d7074795f7465787400000100000004000000c0e6ffff1c000000040000000c0000005b2274657874222c205b5d5d000000000b00000065787064622e6669656c6400a8e7ffff36e7ffff0000010414000000500000000800000010000000000000000300000072617700010000000400000020e7ffff1c000000040000000d0000005b226279746573222c205b5d5d0000000b00000065787064622e6669656c640008e8ffff96e7ffff000001051400000054000000080000001400000000000000040000007465787400000000010000000400000084e7ffff1c000000040000000c0000005b2274657874222c205b5d5d000000000b00000065787064622e6669656c64006ce8fffffae7ffff0000010d1c00000060000000080000001c00000002000000ac0000005000000006000000666c6f61747300000100000004000000f0e7ffff2000000004000000130000005b22666c6f61743634222c205b6e756c6c5d5d000b00000065787064622e6669656c6400dce8ffff38efffff0000010c140000001c00000004000000010000001400000006000000737566666978000008e9ffff64efffff0000010310000000180000000400000000000000040000006974656d0000000072eeffff0000020090efffff00000102100000001800000004000000000000000600000070726566697800006ce8ffff0000000120000000f2e8ffff0000010d1c00000064000000080000001c00000002000000b0000000540000000400000067726964000000000100000004000000e8e8ffff2400000004000000160000005b22666c6f61743332222c205b6e756c6c2c20335d5d00000b00000065787064622e6669656c6400d8e9ffff34f0ffff0000010c140000001c00000004000000010000001400000006000000737566666978000004eaffff60f0ffff0000010310000000180000000400000000000000040000006974656d000000006eefffff000001008cf0ffff000001021000000018000000040000000000000006000000707265666978000068e9ffff0000000120000000eee9ffff0000010d1c00000060000000080000001c00000002000000b00000005000000006000000746f6b656e7300000100000004000000e4e9ffff2000000004000000110000005b22696e743332222c205b6e756c6c5d5d0000000b00000065787064622e6669656c6400d0eaffff2cf1ffff0000010c140000001c000000040000000100000014000000060000007375666669780000fceaffff58f1ffff0000010210000000180000000400000000000000040000006974656d0000000034eaffff000000012000000088f1ffff000001021000000018000000040000000000000006000000707265666978000064eaffff0000000120000000eaeaffff0000011018000000f4000000080000002000000001000000ec0000000e00000074656e736f725f666c6f61743634000003000000940000005000000004000000eceaffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000034ebffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000074ebffff2000000004000000130000005b22666c6f61743634222c205b322c20335d5d000b00000065787064622e6669656c64006eefffff06000000c0f2ffff0000010310000000180000000400000000000000040000006974656d00000000cef1ffff000002001eecffff0000011018000000f4000000080000002000000001000000ec0000000e00000074656e736f725f666c6f6174333200000300000094000000500000000400000020ecffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000068ecffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000a8ecffff2000000004000000130000005b22666c6f61743332222c205b322c20335d5d000b00000065787064622e6669656c6400a2f0ffff06000000f4f3ffff0000010310000000180000000400000000000000040000006974656d0000000002f3ffff0000010052edffff0000011018000000f4000000080000002000000001000000ec0000000e00000074656e736f725f666c6f6174313600000300000094000000500000000400000054edffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d65000000009cedffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000dcedffff2000000004000000130000005b22666c6f61743136222c205b322c20335d5d000b00000065787064622e6669656c6400d6f1ffff0600000028f5ffff0000010310000000180000000400000000000000040000006974656d00000000f4eeffff82eeffff0000011018000000f4000000080000002000000001000000ec0000000d00000074656e736f725f75696e7436340000000300000094000000500000000400000084eeffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000cceeffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d65746164617461000000000cefffff2000000004000000120000005b2275696e743634222c205b322c20335d5d00000b00000065787064622e6669656c640006f3ffff0600000058f6ffff0000010210000000180000000400000000000000040000006974656d0000000032f3ffff40000000b6efffff0000011018000000f4000000080000002000000001000000ec0000000d00000074656e736f725f75696e74333200000003000000940000005000000004000000b8efffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000000f0ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000040f0ffff2000000004000000120000005b2275696e743332222c205b322c20335d5d00000b00000065787064622e6669656c64003af4ffff060000008cf7ffff0000010210000000180000000400000000000000040000006974656d0000000066f4ffff20000000eaf0ffff0000011018000000f4000000080000002000000001000000ec0000000d00000074656e736f725f75696e74313600000003000000940000005000000004000000ecf0ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000034f1ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000074f1ffff2000000004000000120000005b2275696e743136222c205b322c20335d5d00000b00000065787064622e6669656c64006ef5ffff06000000c0f8ffff0000010210000000180000000400000000000000040000006974656d000000009af5ffff100000001ef2ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f75696e7438000000000300000094000000500000000400000020f2ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000068f2ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000a8f2ffff2000000004000000110000005b2275696e7438222c205b322c20335d5d0000000b00000065787064622e6669656c6400a2f6ffff06000000f4f9ffff0000010210000000180000000400000000000000040000006974656d00000000cef6ffff0800000052f3ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f696e743634000000000300000094000000500000000400000054f3ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d65000000009cf3ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000dcf3ffff2000000004000000110000005b22696e743634222c205b322c20335d5d0000000b00000065787064622e6669656c6400d6f7ffff0600000028fbffff0000010210000000180000000400000000000000040000006974656d0000000004f4ffff00000001400000008af4ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f696e74333200000000030000009400000050000000040000008cf4ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000d4f4ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000014f5ffff2000000004000000110000005b22696e743332222c205b322c20335d5d0000000b00000065787064622e6669656c64000ef9ffff0600000060fcffff0000010210000000180000000400000000000000040000006974656d000000003cf5ffff0000000120000000c2f5ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f696e7431360000000003000000940000005000000004000000c4f5ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d65000000000cf6ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d65746164617461000000004cf6ffff2000000004000000110000005b22696e743136222c205b322c20335d5d0000000b00000065787064622e6669656c640046faffff0600000098fdffff0000010210000000180000000400000000000000040000006974656d0000000074f6ffff0000000110000000faf6ffff0000011018000000f0000000080000001c00000001000000e80000000b00000074656e736f725f696e74380003000000940000005000000004000000f8f6ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000040f7ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000080f7ffff2000000004000000100000005b22696e7438222c205b322c20335d5d000000000b00000065787064622e6669656c64007afbffff06000000ccfeffff0000010210000000180000000400000000000000040000006974656d00000000a8f7ffff00000001080000002ef8ffff0000011018000000f0000000080000001c00000001000000f80000000b00000074656e736f725f626f6f6c00030000009400000050000000040000002cf8ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000074f8ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000b4f8ffff2000000004000000100000005b22626f6f6c222c205b322c20335d5d000000000b00000065787064622e6669656c6400aefcffff06000000100014000800060007000c0000001000100000000000010210000000180000000400000000000000040000006974656d00000000eafcffff080000006ef9ffff00000103140000005c000000080000001c000000000000000e0000007363616c61725f666c6f617436340000010000000400000064f9ffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64008effffff00000200def9ffff000001031400000064000000080000001c000000000000000e0000007363616c61725f666c6f6174333200000100000004000000d4f9ffff1c000000040000000f0000005b22666c6f61743332222c205b5d5d000b00000065787064622e6669656c64000000060008000600060000000000010056faffff00000103140000005c000000080000001c000000000000000e0000007363616c61725f666c6f61743136000001000000040000004cfaffff1c000000040000000f0000005b22666c6f61743136222c205b5d5d000b00000065787064622e6669656c640034fbffffc2faffff00000102140000005c000000080000001c000000000000000d0000007363616c61725f75696e7436340000000100000004000000b8faffff1c000000040000000e0000005b2275696e743634222c205b5d5d00000b00000065787064622e6669656c6400aefeffff4000000032fbffff00000102140000005c000000080000001c000000000000000d0000007363616c61725f75696e743332000000010000000400000028fbffff1c000000040000000e0000005b2275696e743332222c205b5d5d00000b00000065787064622e6669656c64001effffff20000000a2fbffff00000102140000005c000000080000001c000000000000000d0000007363616c61725f75696e743136000000010000000400000098fbffff1c000000040000000e0000005b2275696e743136222c205b5d5d00000b00000065787064622e6669656c64008effffff1000000012fcffff000001021400000064000000080000001c000000000000000c0000007363616c61725f75696e743800000000010000000400000008fcffff1c000000040000000d0000005b2275696e7438222c205b5d5d0000000b00000065787064622e6669656c6400000006000800040006000000080000008afcffff00000102140000005c000000080000001c000000000000000c0000007363616c61725f696e74363400000000010000000400000080fcffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640078fcffff0000000140000000fefcffff00000102140000005c000000080000001c000000000000000c0000007363616c61725f696e743332000000000100000004000000f4fcffff1c000000040000000d0000005b22696e743332222c205b5d5d0000000b00000065787064622e6669656c6400ecfcffff000000012000000072fdffff00000102140000005c000000080000001c000000000000000c0000007363616c61725f696e74313600000000010000000400000068fdffff1c000000040000000d0000005b22696e743136222c205b5d5d0000000b00000065787064622e6669656c640060fdffff0000000110000000e6fdffff0000010214000000580000000800000018000000000000000b0000007363616c61725f696e7438000100000004000000d8fdffff1c000000040000000c0000005b22696e7438222c205b5d5d000000000b00000065787064622e6669656c6400d0fdffff000000010800000056feffff0000010614000000580000000800000018000000000000000b0000007363616c61725f626f6f6c00010000000400000048feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640030ffffffbefeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"scalar_bool": ["bool", []], "scalar_int8": ["int8", []], "scalar_int16": ["int16", []], "scalar_int32": ["int32", []], "scalar_int64": ["int64", []], "scalar_uint8": ["uint8", []], "scalar_uint16": ["uint16", []], "scalar_uint32": ["uint32", []], "scalar_uint64": ["uint64", []], "scalar_float16": ["float16", []], "scalar_float32": ["float32", []], "scalar_float64": ["float64", []], "tensor_bool": ["bool", [2, 3]], "tensor_int8": ["int8", [2, 3]], "tensor_int16": ["int16", [2, 3]], "tensor_int32": ["int32", [2, 3]], "tensor_int64": ["int64", [2, 3]], "tensor_uint8": ["uint8", [2, 3]], "tensor_uint16": ["uint16", [2, 3]], "tensor_uint32": ["uint32", [2, 3]], "tensor_uint64": ["uint64", [2, 3]], "tensor_float16": ["float16", [2, 3]], "tensor_float32": ["float32", [2, 3]], "tensor_float64": ["float64", [2, 3]], "tokens": ["int32", [null], "prefix"], "grid": ["float32", [null, 3], "prefix"], "floats": ["float64", [null], "prefix"], "text": ["text", []], "raw": ["bytes", []], "empty_text": ["text", []], "flag": ["bool", []], "number": ["int64", []], "real": ["float64", []], "obs.image": ["uint8", [16, 16, 3]], "obs.speed": ["float32", []], "nested": ["json", []], "ints": ["int64", [null], "prefix"]}', 3671805546);
INSERT INTO expdb.signatures VALUES (1, 1, '\xffffffffb01f00001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000029000000041f0000801e0000101e0000a41d0000381d0000c41c00004c1c0000d41b00005c1b0000e01a00006c1a0000f819000084190000141900009818000024180000e0160000a81500006c14000030130000f4110000bc100000840f00004c0e0000140d0000e00b0000a80a000070090000700800007007000070060000740500000c050000a80400003c040000d403000064030000f8020000bc0100004c01000004000000b2e1ffff0000010d2000000060000000080000002000000003000000d8000000780000004c000000060000006e657374656400000100000004000000ace1ffff1c000000040000000c0000005b226a736f6e222c205b5d5d000000000b00000065787064622e6669656c640094e2fffff0e8ffff00000106100000001800000004000000000000000700000069735f6c69737400bce2ffff18e9ffff0000010c140000001c000000040000000100000014000000040000007265667300000000e8e2ffff44e9ffff0000010210000000180000000400000000000000040000006974656d0000000020e2ffff000000012000000074e9ffff0000010c1400000018000000040000000100000010000000030000006e65770040e3ffff9ce9ffff0000010510000000180000000400000000000000040000006974656d0000000068e3fffff6e2ffff000001031400000058000000080000001800000000000000090000006f62732e73706565640000000100000004000000e8e2ffff1c000000040000000f0000005b22666c6f61743332222c205b5d5d000b00000065787064622e6669656c640012e9ffff0000010062e3ffff0000011018000000f8000000080000001c00000001000000f0000000090000006f62732e696d6167650000000300000098000000500000000400000060e3ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000a8e3ffff2000000004000000130000007b227368617065223a5b31362c31362c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000ece3ffff2400000004000000160000005b2275696e7438222c205b31362c2031362c20335d5d00000b00000065787064622e6669656c6400eae7ffff000300003cebffff0000010210000000180000000400000000000000040000006974656d0000000016e8ffff080000009ae4ffff000001031400000054000000080000001400000000000000040000007265616c00000000010000000400000088e4ffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c6400b2eaffff0000020002e5ffff000001021400000054000000080000001400000000000000060000006e756d62657200000100000004000000f0e4ffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c6400e8e4ffff00000001400000006ee5ffff00000106140000005400000008000000140000000000000004000000666c61670000000001000000040000005ce5ffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640044e6ffffd2e5ffff0000010514000000580000000800000018000000000000000a000000656d7074795f7465787400000100000004000000c4e5ffff1c000000040000000c0000005b2274657874222c205b5d5d000000000b00000065787064622e6669656c6400ace6ffff3ae6ffff0000010414000000500000000800000010000000000000000300000072617700010000000400000024e6ffff1c000000040000000d0000005b226279746573222c205b5d5d0000000b00000065787064622e6669656c64000ce7ffff9ae6ffff000001051400000054000000080000001400000000000000040000007465787400000000010000000400000088e6ffff1c000000040000000c0000005b2274657874222c205b5d5d000000000b00000065787064622e6669656c640070e7fffffee6ffff0000010d1c00000060000000080000001c00000002000000ac0000005000000006000000666c6f61747300000100000004000000f4e6ffff2000000004000000130000005b22666c6f61743634222c205b6e756c6c5d5d000b00000065787064622e6669656c6400e0e7ffff3ceeffff0000010c140000001c0000000400000001000000140000000600000073756666697800000ce8ffff68eeffff0000010310000000180000000400000000000000040000006974656d0000000076edffff0000020094eeffff000001021000000018000000040000000000000006000000707265666978000070e7ffff0000000120000000f6e7ffff0000010d1c00000060000000080000001c00000002000000b00000005000000004000000696e7473000000000100000004000000ece7ffff2000000004000000110000005b22696e743634222c205b6e756c6c5d5d0000000b00000065787064622e6669656c6400d8e8ffff34efffff0000010c140000001c00000004000000010000001400000006000000737566666978000004e9ffff60efffff0000010210000000180000000400000000000000040000006974656d000000003ce8ffff000000014000000090efffff00000102100000001800000004000000000000000600000070726566697800006ce8ffff0000000120000000f2e8ffff0000010d1c00000064000000080000001c00000002000000b0000000540000000400000067726964000000000100000004000000e8e8ffff2400000004000000160000005b22666c6f61743332222c205b6e756c6c2c20335d5d00000b00000065787064622e6669656c6400d8e9ffff34f0ffff0000010c140000001c00000004000000010000001400000006000000737566666978000004eaffff60f0ffff0000010310000000180000000400000000000000040000006974656d000000006eefffff000001008cf0ffff000001021000000018000000040000000000000006000000707265666978000068e9ffff0000000120000000eee9ffff0000010d1c00000060000000080000001c00000002000000b00000005000000006000000746f6b656e7300000100000004000000e4e9ffff2000000004000000110000005b22696e743332222c205b6e756c6c5d5d0000000b00000065787064622e6669656c6400d0eaffff2cf1ffff0000010c140000001c000000040000000100000014000000060000007375666669780000fceaffff58f1ffff0000010210000000180000000400000000000000040000006974656d0000000034eaffff000000012000000088f1ffff000001021000000018000000040000000000000006000000707265666978000064eaffff0000000120000000eaeaffff0000011018000000f4000000080000002000000001000000ec0000000e00000074656e736f725f666c6f61743634000003000000940000005000000004000000eceaffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000034ebffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000074ebffff2000000004000000130000005b22666c6f61743634222c205b322c20335d5d000b00000065787064622e6669656c64006eefffff06000000c0f2ffff0000010310000000180000000400000000000000040000006974656d00000000cef1ffff000002001eecffff0000011018000000f4000000080000002000000001000000ec0000000e00000074656e736f725f666c6f6174333200000300000094000000500000000400000020ecffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000068ecffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000a8ecffff2000000004000000130000005b22666c6f61743332222c205b322c20335d5d000b00000065787064622e6669656c6400a2f0ffff06000000f4f3ffff0000010310000000180000000400000000000000040000006974656d0000000002f3ffff0000010052edffff0000011018000000f4000000080000002000000001000000ec0000000e00000074656e736f725f666c6f6174313600000300000094000000500000000400000054edffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d65000000009cedffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000dcedffff2000000004000000130000005b22666c6f61743136222c205b322c20335d5d000b00000065787064622e6669656c6400d6f1ffff0600000028f5ffff0000010310000000180000000400000000000000040000006974656d00000000f4eeffff82eeffff0000011018000000f4000000080000002000000001000000ec0000000d00000074656e736f725f75696e7436340000000300000094000000500000000400000084eeffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000cceeffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d65746164617461000000000cefffff2000000004000000120000005b2275696e743634222c205b322c20335d5d00000b00000065787064622e6669656c640006f3ffff0600000058f6ffff0000010210000000180000000400000000000000040000006974656d0000000032f3ffff40000000b6efffff0000011018000000f4000000080000002000000001000000ec0000000d00000074656e736f725f75696e74333200000003000000940000005000000004000000b8efffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000000f0ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000040f0ffff2000000004000000120000005b2275696e743332222c205b322c20335d5d00000b00000065787064622e6669656c64003af4ffff060000008cf7ffff0000010210000000180000000400000000000000040000006974656d0000000066f4ffff20000000eaf0ffff0000011018000000f4000000080000002000000001000000ec0000000d00000074656e736f725f75696e74313600000003000000940000005000000004000000ecf0ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000034f1ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000074f1ffff2000000004000000120000005b2275696e743136222c205b322c20335d5d00000b00000065787064622e6669656c64006ef5ffff06000000c0f8ffff0000010210000000180000000400000000000000040000006974656d000000009af5ffff100000001ef2ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f75696e7438000000000300000094000000500000000400000020f2ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000068f2ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000a8f2ffff2000000004000000110000005b2275696e7438222c205b322c20335d5d0000000b00000065787064622e6669656c6400a2f6ffff06000000f4f9ffff0000010210000000180000000400000000000000040000006974656d00000000cef6ffff0800000052f3ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f696e743634000000000300000094000000500000000400000054f3ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d65000000009cf3ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000dcf3ffff2000000004000000110000005b22696e743634222c205b322c20335d5d0000000b00000065787064622e6669656c6400d6f7ffff0600000028fbffff0000010210000000180000000400000000000000040000006974656d0000000004f4ffff00000001400000008af4ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f696e74333200000000030000009400000050000000040000008cf4ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000d4f4ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000014f5ffff2000000004000000110000005b22696e743332222c205b322c20335d5d0000000b00000065787064622e6669656c64000ef9ffff0600000060fcffff0000010210000000180000000400000000000000040000006974656d000000003cf5ffff0000000120000000c2f5ffff0000011018000000f4000000080000002000000001000000ec0000000c00000074656e736f725f696e7431360000000003000000940000005000000004000000c4f5ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d65000000000cf6ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d65746164617461000000004cf6ffff2000000004000000110000005b22696e743136222c205b322c20335d5d0000000b00000065787064622e6669656c640046faffff0600000098fdffff0000010210000000180000000400000000000000040000006974656d0000000074f6ffff0000000110000000faf6ffff0000011018000000f0000000080000001c00000001000000e80000000b00000074656e736f725f696e74380003000000940000005000000004000000f8f6ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000040f7ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d657461646174610000000080f7ffff2000000004000000100000005b22696e7438222c205b322c20335d5d000000000b00000065787064622e6669656c64007afbffff06000000ccfeffff0000010210000000180000000400000000000000040000006974656d00000000a8f7ffff00000001080000002ef8ffff0000011018000000f0000000080000001c00000001000000f80000000b00000074656e736f725f626f6f6c00030000009400000050000000040000002cf8ffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d650000000074f8ffff1c000000040000000f0000007b227368617065223a5b322c335d7d00180000004152524f573a657874656e73696f6e3a6d6574616461746100000000b4f8ffff2000000004000000100000005b22626f6f6c222c205b322c20335d5d000000000b00000065787064622e6669656c6400aefcffff06000000100014000800060007000c0000001000100000000000010210000000180000000400000000000000040000006974656d00000000eafcffff080000006ef9ffff00000103140000005c000000080000001c000000000000000e0000007363616c61725f666c6f617436340000010000000400000064f9ffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64008effffff00000200def9ffff000001031400000064000000080000001c000000000000000e0000007363616c61725f666c6f6174333200000100000004000000d4f9ffff1c000000040000000f0000005b22666c6f61743332222c205b5d5d000b00000065787064622e6669656c64000000060008000600060000000000010056faffff00000103140000005c000000080000001c000000000000000e0000007363616c61725f666c6f61743136000001000000040000004cfaffff1c000000040000000f0000005b22666c6f61743136222c205b5d5d000b00000065787064622e6669656c640034fbffffc2faffff00000102140000005c000000080000001c000000000000000d0000007363616c61725f75696e7436340000000100000004000000b8faffff1c000000040000000e0000005b2275696e743634222c205b5d5d00000b00000065787064622e6669656c6400aefeffff4000000032fbffff00000102140000005c000000080000001c000000000000000d0000007363616c61725f75696e743332000000010000000400000028fbffff1c000000040000000e0000005b2275696e743332222c205b5d5d00000b00000065787064622e6669656c64001effffff20000000a2fbffff00000102140000005c000000080000001c000000000000000d0000007363616c61725f75696e743136000000010000000400000098fbffff1c000000040000000e0000005b2275696e743136222c205b5d5d00000b00000065787064622e6669656c64008effffff1000000012fcffff000001021400000064000000080000001c000000000000000c0000007363616c61725f75696e743800000000010000000400000008fcffff1c000000040000000d0000005b2275696e7438222c205b5d5d0000000b00000065787064622e6669656c6400000006000800040006000000080000008afcffff00000102140000005c000000080000001c000000000000000c0000007363616c61725f696e74363400000000010000000400000080fcffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640078fcffff0000000140000000fefcffff00000102140000005c000000080000001c000000000000000c0000007363616c61725f696e743332000000000100000004000000f4fcffff1c000000040000000d0000005b22696e743332222c205b5d5d0000000b00000065787064622e6669656c6400ecfcffff000000012000000072fdffff00000102140000005c000000080000001c000000000000000c0000007363616c61725f696e74313600000000010000000400000068fdffff1c000000040000000d0000005b22696e743136222c205b5d5d0000000b00000065787064622e6669656c640060fdffff0000000110000000e6fdffff0000010214000000580000000800000018000000000000000b0000007363616c61725f696e7438000100000004000000d8fdffff1c000000040000000c0000005b22696e7438222c205b5d5d000000000b00000065787064622e6669656c6400d0fdffff000000010800000056feffff0000010614000000580000000800000018000000000000000b0000007363616c61725f626f6f6c00010000000400000048feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640030ffffffbefeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"scalar_bool": ["bool", []], "scalar_int8": ["int8", []], "scalar_int16": ["int16", []], "scalar_int32": ["int32", []], "scalar_int64": ["int64", []], "scalar_uint8": ["uint8", []], "scalar_uint16": ["uint16", []], "scalar_uint32": ["uint32", []], "scalar_uint64": ["uint64", []], "scalar_float16": ["float16", []], "scalar_float32": ["float32", []], "scalar_float64": ["float64", []], "tensor_bool": ["bool", [2, 3]], "tensor_int8": ["int8", [2, 3]], "tensor_int16": ["int16", [2, 3]], "tensor_int32": ["int32", [2, 3]], "tensor_int64": ["int64", [2, 3]], "tensor_uint8": ["uint8", [2, 3]], "tensor_uint16": ["uint16", [2, 3]], "tensor_uint32": ["uint32", [2, 3]], "tensor_uint64": ["uint64", [2, 3]], "tensor_float16": ["float16", [2, 3]], "tensor_float32": ["float32", [2, 3]], "tensor_float64": ["float64", [2, 3]], "tokens": ["int32", [null], "prefix"], "grid": ["float32", [null, 3], "prefix"], "ints": ["int64", [null], "prefix"], "floats": ["float64", [null], "prefix"], "text": ["text", []], "raw": ["bytes", []], "empty_text": ["text", []], "flag": ["bool", []], "number": ["int64", []], "real": ["float64", []], "obs.image": ["uint8", [16, 16, 3]], "obs.speed": ["float32", []], "nested": ["json", []]}', 1344889783);
INSERT INTO expdb.signatures VALUES (2, 0, '\xffffffffc80300001000000000000a000c000600050008000a000000000104000c00000008000800000004000800000004000000060000001c0300009802000028020000bc01000074000000040000000efdffff00000102140000005400000008000000140000000000000006000000616374696f6e00000100000004000000fcfcffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c6400f4fcffff00000001400000007afdffff0000011018000000f0000000080000001400000001000000f8000000030000006f6273000300000094000000500000000400000070fdffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000b8fdffff1c000000040000000d0000007b227368617065223a5b345d7d000000180000004152524f573a657874656e73696f6e3a6d6574616461746100000000f8fdffff2000000004000000100000005b22666c6f61743634222c205b345d5d000000000b00000065787064622e6669656c640000000600080004000600000004000000100014000800060007000c00000010001000000000000103100000001c0000000400000000000000040000006974656d00000600080006000600000000000200befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"obs": ["float64", [4]], "action": ["int64", []]}', 3593140691);
INSERT INTO expdb.signatures VALUES (3, 0, '\xffffffffb80400001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000006000000080400008403000014030000a80200004c0100000400000022fcffff0000010d2000000060000000080000002000000003000000d8000000780000004c00000006000000616374696f6e000001000000040000001cfcffff1c000000040000000c0000005b226a736f6e222c205b5d5d000000000b00000065787064622e6669656c640004fdffff0cfeffff00000106100000001800000004000000000000000700000069735f6c697374002cfdffff34feffff0000010c140000001c00000004000000010000001400000004000000726566730000000058fdffff60feffff0000010210000000180000000400000000000000040000006974656d0000000090fcffff000000012000000090feffff0000010c1400000018000000040000000100000010000000030000006e657700b0fdffffb8feffff0000010510000000180000000400000000000000040000006974656d00000000d8fdffff66fdffff0000010d2000000064000000080000002400000003000000dc0000007c00000050000000080000006d6573736167657300000000010000000400000064fdffff1c000000040000000c0000005b226a736f6e222c205b5d5d000000000b00000065787064622e6669656c64004cfeffff54ffffff00000106100000001800000004000000000000000700000069735f6c6973740074feffff7cffffff0000010c140000001c000000040000000100000014000000040000007265667300000000a0feffffa8ffffff0000010210000000180000000400000000000000040000006974656d00000000d8fdffff0000000120000000d8ffffff0000010c1400000018000000040000000100000020000000030000006e657700f8feffff100014000800060007000c0000001000100000000000010510000000180000000400000000000000040000006974656d0000000030ffffffbefeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c000800070008000000000000014000000000000000', '{"messages": ["json", []], "action": ["json", []]}', 3689019592);
INSERT INTO expdb.signatures VALUES (3, 1, '\xffffffff800200001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000005000000d401000050010000e0000000740000000400000052feffff0000010214000000540000000800000014000000000000000500000073636f7265000000010000000400000040feffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640038feffff0000000140000000befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"score": ["int64", []]}', 2821253213);
INSERT INTO expdb.signatures VALUES (3, 2, '\xffffffff880200001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000005000000dc01000058010000e80000007c000000040000004afeffff0000010314000000600000000800000018000000000000000a0000006c6174655f6669656c64000001000000040000003cfeffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c640000000600080006000600000000000200befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"late_field": ["float64", []]}', 2574519210);
INSERT INTO expdb.signatures VALUES (3, 3, '\xffffffff100200001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000040000000400000064010000e00000007000000004000000befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{}', 2169273028);
INSERT INTO expdb.signatures VALUES (5, 0, '\xffffffff580300001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000005000000ac02000028020000b80100004c010000040000007afdffff0000011018000000f0000000080000001400000001000000f8000000030000006f6273000300000094000000500000000400000070fdffff2800000004000000180000006172726f772e66697865645f73686170655f74656e736f7200000000140000004152524f573a657874656e73696f6e3a6e616d6500000000b8fdffff1c000000040000000d0000007b227368617065223a5b325d7d000000180000004152524f573a657874656e73696f6e3a6d6574616461746100000000f8fdffff2000000004000000100000005b22666c6f61743634222c205b325d5d000000000b00000065787064622e6669656c640000000600080004000600000002000000100014000800060007000c00000010001000000000000103100000001c0000000400000000000000040000006974656d00000600080006000600000000000200befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"obs": ["float64", [2]]}', 1981466540);
INSERT INTO expdb.signatures VALUES (6, 0, '\xffffffff780200001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000005000000cc01000048010000d80000006c000000040000005afeffff000001051400000054000000080000001400000000000000040000007465787400000000010000000400000048feffff1c000000040000000c0000005b2274657874222c205b5d5d000000000b00000065787064622e6669656c640030ffffffbefeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"text": ["text", []]}', 1769160740);
INSERT INTO expdb.signatures VALUES (6, 1, '\xffffffff100200001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000040000000400000064010000e00000007000000004000000befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{}', 2169273028);
INSERT INTO expdb.signatures VALUES (7, 0, '\xffffffffd80700001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000040000000900000028070000a406000034060000c8050000b4040000b00300008c02000068010000040000000ef9ffff0000010d1c00000098000000080000002000000002000000e8000000880000000800000076657273696f6e7300000000010000000400000008f9ffff5400000004000000440000005b22696e743332222c205b6e756c6c5d2c207b22616c69676e65645f77697468223a20226f75747075745f696473222c2022617363656e64696e67223a20747275657d5d000000000b00000065787064622e6669656c640028faffff38fbffff0000010c140000001c000000040000000100000014000000070000006c656e677468730054faffff64fbffff0000010210000000180000000400000000000000040000006974656d000000008cf9ffff000000012000000094fbffff0000010c140000001c0000000400000001000000140000000600000076616c7565730000b0faffffc0fbffff0000010210000000180000000400000000000000040000006974656d00000000e8f9ffff00000001200000006efaffff0000010d1c00000084000000080000002000000002000000d400000074000000080000006c6f6770726f627300000000010000000400000068faffff4000000004000000330000005b22666c6f61743332222c205b6e756c6c5d2c207b22616c69676e65645f77697468223a20226f75747075745f696473227d5d000b00000065787064622e6669656c640074fbffff84fcffff0000010c140000001c000000040000000100000014000000060000007375666669780000a0fbffffb0fcffff00000103100000001c0000000400000000000000040000006974656d00000600080006000600000000000100e0fcffff000001021000000018000000040000000000000006000000707265666978000008fbffff00000001200000008efbffff0000010d1c00000084000000080000002000000002000000d4000000740000000b0000006f75747075745f6d61736b00010000000400000088fbffff4000000004000000300000005b22626f6f6c222c205b6e756c6c5d2c207b22616c69676e65645f77697468223a20226f75747075745f696473227d5d000000000b00000065787064622e6669656c640094fcffffa4fdffff0000010c140000001c000000040000000100000014000000060000007375666669780000c0fcffffd0fdffff00000102100000001c0000000400000000000000040000006974656d0000060008000400060000000800000000feffff000001021000000018000000040000000000000006000000707265666978000028fcffff0000000120000000aefcffff0000010d1c00000064000000080000002000000002000000b4000000540000000a0000006f75747075745f69647300000100000004000000a8fcffff2000000004000000110000005b22696e743332222c205b6e756c6c5d5d0000000b00000065787064622e6669656c640094fdffffa4feffff0000010c140000001c000000040000000100000014000000060000007375666669780000c0fdffffd0feffff0000010210000000180000000400000000000000040000006974656d00000000f8fcffff000000012000000000ffffff000001021000000018000000040000000000000006000000707265666978000028fdffff0000000120000000aefdffff0000010d1c00000064000000080000002000000002000000c4000000540000000a00000070726f6d70745f69647300000100000004000000a8fdffff2000000004000000110000005b22696e743332222c205b6e756c6c5d5d0000000b00000065787064622e6669656c640094feffffa4ffffff0000010c140000001c000000040000000100000014000000060000007375666669780000c0feffffd0ffffff0000010210000000180000000400000000000000040000006974656d00000000f8fdffff0000000120000000100014000800060007000c000000100010000000000001021000000018000000040000000000000006000000707265666978000038feffff0000000120000000befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c000800070008000000000000014000000000000000', '{"prompt_ids": ["int32", [null], "prefix"], "output_ids": ["int32", [null], "prefix"], "output_mask": ["bool", [null], "prefix"], "logprobs": ["float32", [null], "prefix"], "versions": ["int32", [null], "runs"]}', 3544582688);
INSERT INTO expdb.signatures VALUES (8, 0, '\xffffffff800200001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000005000000d00100004c010000dc000000700000000400000056feffff0000010214000000500000000800000010000000000000000100000078000000010000000400000040feffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640038feffff0000000140000000befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c000800070008000000000000014000000000000000', '{"x": ["int64", []]}', 3565117752);
INSERT INTO expdb.signatures VALUES (9, 0, '\xffffffff800200001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000005000000d401000050010000e0000000740000000400000052feffff000001021400000054000000080000001400000000000000060000006e756d6265720000010000000400000040feffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640038feffff0000000140000000befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"number": ["int64", []]}', 1259627621);
INSERT INTO expdb.signatures VALUES (10, 0, '\xffffffffb80400001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000006000000080400008403000014030000a80200004c0100000400000022fcffff0000010d2000000060000000080000002000000003000000d8000000780000004c00000006000000616374696f6e000001000000040000001cfcffff1c000000040000000c0000005b226a736f6e222c205b5d5d000000000b00000065787064622e6669656c640004fdffff0cfeffff00000106100000001800000004000000000000000700000069735f6c697374002cfdffff34feffff0000010c140000001c00000004000000010000001400000004000000726566730000000058fdffff60feffff0000010210000000180000000400000000000000040000006974656d0000000090fcffff000000012000000090feffff0000010c1400000018000000040000000100000010000000030000006e657700b0fdffffb8feffff0000010510000000180000000400000000000000040000006974656d00000000d8fdffff66fdffff0000010d2000000064000000080000002400000003000000dc0000007c00000050000000080000006d6573736167657300000000010000000400000064fdffff1c000000040000000c0000005b226a736f6e222c205b5d5d000000000b00000065787064622e6669656c64004cfeffff54ffffff00000106100000001800000004000000000000000700000069735f6c6973740074feffff7cffffff0000010c140000001c000000040000000100000014000000040000007265667300000000a0feffffa8ffffff0000010210000000180000000400000000000000040000006974656d00000000d8fdffff0000000120000000d8ffffff0000010c1400000018000000040000000100000020000000030000006e657700f8feffff100014000800060007000c0000001000100000000000010510000000180000000400000000000000040000006974656d0000000030ffffffbefeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c000800070008000000000000014000000000000000', '{"messages": ["json", []], "action": ["json", []]}', 3689019592);
INSERT INTO expdb.signatures VALUES (11, 0, '\xffffffff800200001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000005000000d00100004c010000dc000000700000000400000056feffff0000010214000000500000000800000010000000000000000100000078000000010000000400000040feffff1c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640038feffff0000000140000000befeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c000800070008000000000000014000000000000000', '{"x": ["int64", []]}', 3565117752);
INSERT INTO expdb.signatures VALUES (12, 0, '\xffffffff380500001000000000000a000c000600050008000a000000000104000c00000008000800000004000800000004000000080000008c04000008040000980300002c030000d0010000680100006c00000004000000a6fbffff000001051400000054000000080000001400000000000000040000007465787400000000010000000400000094fbffff1c000000040000000c0000005b2274657874222c205b5d5d000000000b00000065787064622e6669656c64007cfcffff0afcffff0000010d1c0000005c000000080000001800000002000000ac0000004c00000003000000696473000100000004000000fcfbffff2000000004000000110000005b22696e743332222c205b6e756c6c5d5d0000000b00000065787064622e6669656c6400e8fcfffff0fdffff0000010c140000001c00000004000000010000001400000006000000737566666978000014fdffff1cfeffff0000010210000000180000000400000000000000040000006974656d000000004cfcffff00000001200000004cfeffff00000102100000001800000004000000000000000600000070726566697800007cfcffff000000012000000002fdffff0000010414000000540000000800000014000000000000000700000070696374757265000100000004000000f0fcffff1c000000040000000d0000005b226279746573222c205b5d5d0000000b00000065787064622e6669656c6400d8fdffff66fdffff0000010d2000000064000000080000002400000003000000dc0000007c00000050000000080000006d6573736167657300000000010000000400000064fdffff1c000000040000000c0000005b226a736f6e222c205b5d5d000000000b00000065787064622e6669656c64004cfeffff54ffffff00000106100000001800000004000000000000000700000069735f6c6973740074feffff7cffffff0000010c140000001c000000040000000100000014000000040000007265667300000000a0feffffa8ffffff0000010210000000180000000400000000000000040000006974656d00000000d8fdffff0000000120000000d8ffffff0000010c1400000018000000040000000100000020000000030000006e657700f8feffff100014000800060007000c0000001000100000000000010510000000180000000400000000000000040000006974656d0000000030ffffffbefeffff000001061400000058000000080000001800000000000000090000007472756e63617465640000000100000004000000b0feffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c640098ffffff26ffffff00000106140000005c0000000800000018000000000000000a0000007465726d696e617465640000010000000400000018ffffff1c000000040000000c0000005b22626f6f6c222c205b5d5d000000000b00000065787064622e6669656c6400040004000400000092ffffff00000103140000005c000000080000001400000000000000060000007265776172640000010000000400000080ffffff1c000000040000000f0000005b22666c6f61743634222c205b5d5d000b00000065787064622e6669656c64000000060006000400060000000200120018000800060007000c0000001000140012000000000001021400000064000000080000001400000000000000040000007374657000000000010000000c00000008000c0004000800080000001c000000040000000d0000005b22696e743634222c205b5d5d0000000b00000065787064622e6669656c640008000c0008000700080000000000000140000000', '{"messages": ["json", []], "picture": ["bytes", []], "ids": ["int32", [null], "prefix"], "text": ["text", []]}', 859741264);


--
-- Data for Name: steps; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.steps VALUES (1, 0, 0, 0, NULL, 1795977177.6858149, NULL, false, false, '{"k":0,"even":true,"name":"n0","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 1, 0, 1, NULL, 1795977177.688886, 1, false, false, '{"k":1,"even":false,"name":"n1","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 2, 0, 2, NULL, 1795977177.689183, 2, false, false, '{"k":2,"even":true,"name":"n2","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 3, 0, 3, NULL, 1795977177.6893246, NULL, false, false, '{"k":3,"even":false,"name":"n3","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 4, 0, 4, NULL, 1795977177.6894517, 4, false, false, '{"k":4,"even":true,"name":"n4","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 5, 0, 5, NULL, 1795977177.6895733, 5, false, false, '{"k":5,"even":false,"name":"n5","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 6, 0, 6, NULL, 1795977177.702968, NULL, false, false, '{"k":6,"even":true,"name":"n6","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 7, 0, 7, NULL, 1795977177.7034342, 7, false, false, '{"k":7,"even":false,"name":"n7","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 8, 0, 8, NULL, 1795977177.703584, 8, false, false, '{"k":8,"even":true,"name":"n8","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 9, 0, 9, NULL, 1795977177.7037086, NULL, false, false, '{"k":9,"even":false,"name":"n9","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 10, 0, 10, NULL, 1795977177.70383, 10, false, false, '{"k":10,"even":true,"name":"n10","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (1, 11, 0, 11, NULL, 1795977177.7039537, 11, false, false, '{"k":11,"even":false,"name":"n11","none":null}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 60, 6, 0, NULL, 1000000000, -1.4147243086787848, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 61, 6, 1, NULL, 1000000001, -0.622014182542398, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 62, 6, 2, NULL, 1000000002, -0.8063439113302531, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 63, 6, 3, NULL, 1000000003, -1.4084735141902456, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 64, 6, 4, NULL, 1000000004, 0.2511070416723707, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 65, 6, 5, NULL, 1000000005, 1.9306068737125515, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 66, 6, 6, NULL, 1000000006, 0.14950286537538202, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 67, 6, 7, NULL, 1000000007, -2.0320559904165476, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 68, 6, 8, NULL, 1000000008, -1.4082469773166768, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 69, 6, 9, NULL, 1000000009, -0.8039005872403687, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 70, 7, 0, NULL, 1000000000, -0.7047902081387301, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 71, 7, 1, NULL, 1000000001, -0.8090104753015942, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 72, 7, 2, NULL, 1000000002, -0.42773236114014496, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 73, 7, 3, NULL, 1000000003, 0.07020801514031626, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 74, 7, 4, NULL, 1000000004, 1.18120465051603, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 75, 7, 5, NULL, 1000000005, -0.9874929783788241, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 79, 7, 9, NULL, 1000000009, 0.12767318468091607, true, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 80, 8, 0, NULL, 1000000000, 0.6465167167989722, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 81, 8, 1, NULL, 1000000001, 0.17177251230779197, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 82, 8, 2, NULL, 1000000002, -1.1663640224796257, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 83, 8, 3, NULL, 1000000003, -0.7351632399530508, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 85, 8, 5, NULL, 1000000005, -3.661081810206792, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 86, 8, 6, NULL, 1000000006, 0.2738856385847244, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 87, 8, 7, NULL, 1000000007, -0.5837894935590013, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 88, 8, 8, NULL, 1000000008, -0.2500510425449147, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 89, 8, 9, NULL, 1000000009, 0.239704621296709, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 90, 9, 0, NULL, 1000000000, -0.29110215025682423, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 91, 9, 1, NULL, 1000000001, 2.353197592004207, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 92, 9, 2, NULL, 1000000002, -1.3347620650237593, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 93, 9, 3, NULL, 1000000003, -1.4416578625601972, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 94, 9, 4, NULL, 1000000004, 2.8290341630933096, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 95, 9, 5, NULL, 1000000005, -0.5948891385019035, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 96, 9, 6, NULL, 1000000006, 0.2136276032155486, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 97, 9, 7, NULL, 1000000007, -1.3885315648143455, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 98, 9, 8, NULL, 1000000008, 0.17294480349559044, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 99, 9, 9, NULL, 1000000009, -0.3948398689752267, true, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 100, 10, 0, NULL, 1000000000, -0.44058741092674997, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 101, 10, 1, NULL, 1000000001, -1.485101875414252, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 102, 10, 2, NULL, 1000000002, -1.656033441014323, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 103, 10, 3, NULL, 1000000003, 0.7400956798987274, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 104, 10, 4, NULL, 1000000004, -0.75115089967635, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 105, 10, 5, NULL, 1000000005, -1.086666497783329, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 106, 10, 6, NULL, 1000000006, 0.5425830336149764, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 107, 10, 7, NULL, 1000000007, -2.566464863642764, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 108, 10, 8, NULL, 1000000008, -0.7775358060742449, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 109, 10, 9, NULL, 1000000009, -1.354159831542692, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 110, 11, 0, NULL, 1000000000, 0.27193385989192836, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 111, 11, 1, NULL, 1000000001, -0.11786358135149987, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 112, 11, 2, NULL, 1000000002, -0.7824287978047578, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 113, 11, 3, NULL, 1000000003, 0.004536388153236781, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 114, 11, 4, NULL, 1000000004, 1.667666301846532, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 115, 11, 5, NULL, 1000000005, 0.41831977654672364, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 116, 11, 6, NULL, 1000000006, -0.7549023733623218, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 117, 11, 7, NULL, 1000000007, -0.07096271518980352, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 118, 11, 8, NULL, 1000000008, 0.03253481475709576, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (2, 119, 11, 9, NULL, 1000000009, 0.013538172992502411, true, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 0, 0, 0, NULL, 1795977177.8311598, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 1, 0, 1, NULL, 1795977177.8313801, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 2, 0, 2, NULL, 1795977177.8314047, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 3, 0, 3, NULL, 1795977177.8314307, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 4, 0, 4, NULL, 1795977177.8314607, 0, false, false, '{"judge":"late"}', 2, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 5, 1, 0, NULL, 1795977177.8455405, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 6, 1, 1, NULL, 1795977177.8456092, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 7, 1, 2, NULL, 1795977177.845637, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 8, 1, 3, NULL, 1795977177.8456635, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 19, 3, 4, NULL, 1795977177.8639753, 1.5, false, false, '{"judge":"late"}', 8, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 9, 1, 4, NULL, 1795977177.845695, 0.5, false, false, '{"judge":"late"}', 4, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 10, 2, 0, NULL, 1795977177.8542426, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 11, 2, 1, NULL, 1795977177.8543124, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 12, 2, 2, NULL, 1795977177.854342, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 13, 2, 3, NULL, 1795977177.8543699, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 20, 4, 0, NULL, 1795977177.872555, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 21, 5, 3, NULL, 1795977177.875019, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 14, 2, 4, NULL, 1795977177.8544047, 1, false, false, '{"judge":"late"}', 6, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 15, 3, 0, NULL, 1795977177.863824, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 16, 3, 1, NULL, 1795977177.863887, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 17, 3, 2, NULL, 1795977177.863915, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 18, 3, 3, NULL, 1795977177.8639436, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 22, 5, 1, NULL, 1795977177.880348, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 23, 5, 2, NULL, 1795977177.8844492, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 24, 6, 0, NULL, 1795977177.898856, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 25, 7, 0, NULL, 1795977177.9050937, 0, false, true, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 26, 8, 0, NULL, 1795977177.905112, 1, false, true, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 27, 9, 0, NULL, 1795977177.9051223, 2, false, true, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 0, 0, 0, NULL, 1795977177.9381979, 0, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 1, 0, 1, NULL, 1795977177.938466, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 2, 0, 2, NULL, 1795977177.938475, 2, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 3, 0, 3, NULL, 1795977177.938481, 3, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 4, 0, 4, NULL, 1795977177.9384868, 4, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 5, 1, 0, NULL, 1795977177.945296, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 6, 1, 1, NULL, 1795977177.9453292, 2, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 7, 1, 2, NULL, 1795977177.945336, 3, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 8, 1, 3, NULL, 1795977177.9453416, 4, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 9, 1, 4, NULL, 1795977177.9453473, 5, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 10, 2, 0, NULL, 1795977177.9478354, 2, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 11, 2, 1, NULL, 1795977177.947867, 3, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 12, 2, 2, NULL, 1795977177.947874, 4, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 13, 2, 3, NULL, 1795977177.9478803, 5, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 14, 2, 4, NULL, 1795977177.947886, 6, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 15, 3, 0, NULL, 1795977177.9499815, 3, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 16, 3, 1, NULL, 1795977177.9500105, 4, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 17, 3, 2, NULL, 1795977177.9500206, 5, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 18, 3, 3, NULL, 1795977177.9500277, 6, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 19, 3, 4, NULL, 1795977177.9500341, 7, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 20, 4, 0, NULL, 1795977177.9518805, 4, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 21, 4, 1, NULL, 1795977177.951907, 5, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 22, 4, 2, NULL, 1795977177.9519143, 6, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 23, 4, 3, NULL, 1795977177.9519203, 7, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 24, 4, 4, NULL, 1795977177.9519262, 8, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 25, 5, 0, NULL, 1795977177.9537463, 5, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 26, 5, 1, NULL, 1795977177.953774, 6, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 27, 5, 2, NULL, 1795977177.9537814, 7, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 28, 5, 3, NULL, 1795977177.9537866, 8, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (5, 29, 5, 4, NULL, 1795977177.9537926, 9, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 0, 0, 0, NULL, 1795977178.0052145, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 1, 0, 1, NULL, 1795977178.005334, NULL, false, false, NULL, NULL, NULL, 4, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 2, 0, 2, NULL, 1795977178.0053422, NULL, false, false, NULL, NULL, 4, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 3, 0, 3, NULL, 1795977178.0053477, NULL, false, false, NULL, NULL, 4, 5, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 4, 0, 4, NULL, 1795977178.0053525, NULL, false, false, NULL, NULL, 5, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 5, 0, 5, NULL, 1795977178.0053573, NULL, false, false, NULL, NULL, 5, 6, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 6, 1, 0, NULL, 1795977178.0125425, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 7, 1, 1, NULL, 1795977178.0167816, NULL, false, false, NULL, NULL, 7, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (6, 8, 1, 2, NULL, 1795977178.0187337, NULL, false, false, NULL, NULL, 6, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 0, 0, 0, NULL, 1795977178.0262427, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 1, 0, 1, NULL, 1795977178.0264819, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 2, 0, 2, NULL, 1795977178.0312762, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 3, 0, 3, NULL, 1795977178.0314786, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 4, 0, 4, NULL, 1795977178.0315676, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 5, 0, 5, NULL, 1795977178.0316103, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 6, 0, 6, NULL, 1795977178.033293, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 7, 0, 7, NULL, 1795977178.0334585, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 8, 0, 8, NULL, 1795977178.0335362, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 9, 0, 9, NULL, 1795977178.0335853, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (7, 10, 0, 10, NULL, 1795977178.0350995, NULL, false, false, NULL, NULL, 0, 2, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 8, 2, 2, NULL, 1795977178.0577786, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 9, 3, 0, NULL, 1795977178.0595264, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 10, 3, 1, NULL, 1795977178.0595474, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 11, 3, 2, NULL, 1795977178.0595515, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (9, 0, 0, 0, NULL, 1795977178.0919209, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (10, 0, 0, 0, NULL, 1795977178.1024973, 0, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (10, 1, 1, 0, NULL, 1795977178.1025605, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (10, 2, 2, 0, NULL, 1795977178.1025796, 2, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 0, 0, 0, NULL, 1795977178.1144383, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 1, 0, 1, NULL, 1795977178.1146324, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 0, 0, 0, NULL, 1795977178.0502298, 1, false, false, NULL, 2, NULL, NULL, '{"judge":0.6666666666666666}', NULL);
INSERT INTO expdb.steps VALUES (8, 1, 0, 1, NULL, 1795977178.0504222, 1, false, false, NULL, 2, NULL, NULL, '{"judge":0.6666666666666666}', NULL);
INSERT INTO expdb.steps VALUES (8, 2, 0, 2, NULL, 1795977178.0504274, 1, false, false, NULL, 2, NULL, NULL, '{"judge":0.6666666666666666}', NULL);
INSERT INTO expdb.steps VALUES (11, 2, 0, 2, NULL, 1795977178.1146374, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 3, 0, 3, NULL, 1795977178.114641, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 4, 0, 4, NULL, 1795977178.114644, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 3, 1, 0, NULL, 1795977178.0557904, 1, false, false, NULL, 3, NULL, NULL, '{"judge":null}', NULL);
INSERT INTO expdb.steps VALUES (8, 4, 1, 1, NULL, 1795977178.0558207, 1, false, false, NULL, 3, NULL, NULL, '{"judge":null}', NULL);
INSERT INTO expdb.steps VALUES (8, 5, 1, 2, NULL, 1795977178.0558257, 1, false, false, NULL, 3, NULL, NULL, '{"judge":null}', NULL);
INSERT INTO expdb.steps VALUES (11, 5, 0, 5, NULL, 1795977178.1146474, 1, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 6, 1, 4, NULL, 1795977178.1244752, 2, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 6, 2, 0, NULL, 1795977178.0577512, 1, false, false, NULL, 4, NULL, NULL, '{"format":1.0}', NULL);
INSERT INTO expdb.steps VALUES (8, 7, 2, 1, NULL, 1795977178.0577745, 1, false, false, NULL, 4, NULL, NULL, '{"format":-1e+300}', NULL);
INSERT INTO expdb.steps VALUES (8, 12, 4, 0, NULL, 1795977178.0773578, NULL, false, false, NULL, NULL, 0, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 13, 4, 0, NULL, 1795977178.077394, NULL, false, false, NULL, NULL, 1, NULL, NULL, 'black');
INSERT INTO expdb.steps VALUES (8, 14, 4, 1, NULL, 1795977178.0774012, NULL, false, false, NULL, NULL, 2, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (8, 15, 4, 1, NULL, 1795977178.0774052, NULL, false, false, NULL, NULL, 3, NULL, NULL, 'black');
INSERT INTO expdb.steps VALUES (11, 7, 1, 5, NULL, 1795977178.1245072, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 8, 2, 2, NULL, 1795977178.1329372, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 9, 3, 0, NULL, 1795977178.1395636, NULL, true, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 10, 4, 0, NULL, 1795977178.1457415, NULL, true, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (11, 11, 5, 0, NULL, 1795977178.1508148, NULL, true, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (12, 0, 0, 0, NULL, 1795977178.1719341, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (12, 1, 0, 1, NULL, 1795977178.1724052, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (12, 2, 1, 0, NULL, 1795977178.182484, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (12, 3, 1, 1, NULL, 1795977178.1826649, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (12, 4, 2, 0, NULL, 1795977178.1887956, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (12, 5, 2, 1, NULL, 1795977178.1889715, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO expdb.steps VALUES (3, 28, 6, 1, 'planner', 1795977178.2123961, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL);


--
-- Data for Name: value_references; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.value_references VALUES (12, 1, '\x1ac4e8f1db1deb422344e0f81e26dcfcb00ff09c');
INSERT INTO expdb.value_references VALUES (12, 1, '\x467542a55faeded09fda684dd51996a8fceb3a50');
INSERT INTO expdb.value_references VALUES (12, 1, '\x5a4005748489c03263be315d99c7bd3ca33a426d');
INSERT INTO expdb.value_references VALUES (12, 1, '\x8eaf24dd5d89819e815e43b920bf0c84ad8bb111');
INSERT INTO expdb.value_references VALUES (12, 3, '\x1ac4e8f1db1deb422344e0f81e26dcfcb00ff09c');
INSERT INTO expdb.value_references VALUES (12, 3, '\x467542a55faeded09fda684dd51996a8fceb3a50');
INSERT INTO expdb.value_references VALUES (12, 3, '\x5a4005748489c03263be315d99c7bd3ca33a426d');
INSERT INTO expdb.value_references VALUES (12, 3, '\x8eaf24dd5d89819e815e43b920bf0c84ad8bb111');
INSERT INTO expdb.value_references VALUES (12, 5, '\x1ac4e8f1db1deb422344e0f81e26dcfcb00ff09c');
INSERT INTO expdb.value_references VALUES (12, 5, '\x467542a55faeded09fda684dd51996a8fceb3a50');
INSERT INTO expdb.value_references VALUES (12, 5, '\x5a4005748489c03263be315d99c7bd3ca33a426d');
INSERT INTO expdb.value_references VALUES (12, 5, '\x8eaf24dd5d89819e815e43b920bf0c84ad8bb111');


--
-- Data for Name: waiters; Type: TABLE DATA; Schema: expdb; Owner: -
--



--
-- Data for Name: workers; Type: TABLE DATA; Schema: expdb; Owner: -
--

INSERT INTO expdb.workers VALUES (9, 7, 'host 12 34 0', 'run', 'actor', 1000000000, 1000000000, 1000000000, '{"steps": 30}', '{"steps": 1.5}');


--
-- Name: buffers_id_seq; Type: SEQUENCE SET; Schema: expdb; Owner: -
--

SELECT pg_catalog.setval('expdb.buffers_id_seq', 12, true);


--
-- Name: admissions admissions_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.admissions
    ADD CONSTRAINT admissions_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: annotations annotations_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.annotations
    ADD CONSTRAINT annotations_pkey PRIMARY KEY (buffer_id, "position", name, version);


--
-- Name: buffers buffers_name_key; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.buffers
    ADD CONSTRAINT buffers_name_key UNIQUE (name);


--
-- Name: buffers buffers_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.buffers
    ADD CONSTRAINT buffers_pkey PRIMARY KEY (id);


--
-- Name: chunks chunks_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.chunks
    ADD CONSTRAINT chunks_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: consumers consumers_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.consumers
    ADD CONSTRAINT consumers_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: episodes episodes_by_episode_id; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.episodes
    ADD CONSTRAINT episodes_by_episode_id UNIQUE (buffer_id, episode_id);


--
-- Name: episodes episodes_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.episodes
    ADD CONSTRAINT episodes_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: evictions evictions_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.evictions
    ADD CONSTRAINT evictions_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: expdb_version expdb_version_pkc; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.expdb_version
    ADD CONSTRAINT expdb_version_pkc PRIMARY KEY (version_num);


--
-- Name: imports imports_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.imports
    ADD CONSTRAINT imports_pkey PRIMARY KEY (buffer_id, record);


--
-- Name: leases leases_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (buffer_id, consumer, id);


--
-- Name: metrics metrics_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.metrics
    ADD CONSTRAINT metrics_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: priorities priorities_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.priorities
    ADD CONSTRAINT priorities_pkey PRIMARY KEY (buffer_id, block);


--
-- Name: requests requests_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: rollout_groups rollout_groups_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.rollout_groups
    ADD CONSTRAINT rollout_groups_pkey PRIMARY KEY (buffer_id, name, is_task);


--
-- Name: scores scores_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.scores
    ADD CONSTRAINT scores_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: segments segments_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.segments
    ADD CONSTRAINT segments_pkey PRIMARY KEY (buffer_id, last);


--
-- Name: shared_values shared_values_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.shared_values
    ADD CONSTRAINT shared_values_pkey PRIMARY KEY (buffer_id, digest);


--
-- Name: signatures signatures_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.signatures
    ADD CONSTRAINT signatures_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: steps steps_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.steps
    ADD CONSTRAINT steps_pkey PRIMARY KEY (buffer_id, "position");


--
-- Name: value_references value_references_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.value_references
    ADD CONSTRAINT value_references_pkey PRIMARY KEY (buffer_id, chunk, digest);


--
-- Name: waiters waiters_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.waiters
    ADD CONSTRAINT waiters_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: workers workers_pkey; Type: CONSTRAINT; Schema: expdb; Owner: -
--

ALTER TABLE ONLY expdb.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (buffer_id, id);


--
-- Name: consumers_by_name; Type: INDEX; Schema: expdb; Owner: -
--

CREATE UNIQUE INDEX consumers_by_name ON expdb.consumers USING btree (buffer_id, name);


--
-- Name: episodes_by_agent_id; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX episodes_by_agent_id ON expdb.episodes USING btree (buffer_id, agent_id);


--
-- Name: episodes_by_episode_tags_open; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX episodes_by_episode_tags_open ON expdb.episodes USING btree (buffer_id, (((episode_tags)::jsonb ->> 'open'::text)) COLLATE "C");


--
-- Name: episodes_by_revision; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX episodes_by_revision ON expdb.episodes USING btree (buffer_id, revision) WHERE (revision IS NOT NULL);


--
-- Name: episodes_by_root; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX episodes_by_root ON expdb.episodes USING btree (buffer_id, root_episode) WHERE (root_episode IS NOT NULL);


--
-- Name: episodes_by_task_id; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX episodes_by_task_id ON expdb.episodes USING btree (buffer_id, task_id);


--
-- Name: episodes_by_task_name; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX episodes_by_task_name ON expdb.episodes USING btree (buffer_id, task_name);


--
-- Name: episodes_incomplete; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX episodes_incomplete ON expdb.episodes USING btree (buffer_id, id) WHERE (status <> 'complete'::text);


--
-- Name: leases_active; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX leases_active ON expdb.leases USING btree (buffer_id, expires) WHERE (status = 'leased'::text);


--
-- Name: leases_open; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX leases_open ON expdb.leases USING btree (buffer_id, consumer, id) WHERE (status = ANY (ARRAY['leased'::text, 'returned'::text]));


--
-- Name: scores_by_episode; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX scores_by_episode ON expdb.scores USING btree (buffer_id, episode);


--
-- Name: segments_by_episode; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX segments_by_episode ON expdb.segments USING btree (buffer_id, episode);


--
-- Name: steps_by_revision; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX steps_by_revision ON expdb.steps USING btree (buffer_id, revision) WHERE (revision IS NOT NULL);


--
-- Name: steps_by_tags_judge; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX steps_by_tags_judge ON expdb.steps USING btree (buffer_id, (((tags)::jsonb ->> 'judge'::text)) COLLATE "C");


--
-- Name: steps_with_agent; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX steps_with_agent ON expdb.steps USING btree (buffer_id, agent_id) WHERE (agent_id IS NOT NULL);


--
-- Name: value_references_by_digest; Type: INDEX; Schema: expdb; Owner: -
--

CREATE INDEX value_references_by_digest ON expdb.value_references USING btree (buffer_id, digest, chunk);


--
-- Name: buffers buffers_capacity; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity, pinned, trigger_evicts ON expdb.buffers FOR EACH ROW WHEN (((new.size > new.capacity) AND new.trigger_evicts AND ((new.pinned IS NULL) OR (new.low < new.pinned) OR (new.size > (2 * new.capacity))))) EXECUTE FUNCTION expdb.buffers_capacity();


--
-- Name: buffers buffers_evicted; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER buffers_evicted AFTER UPDATE OF low ON expdb.buffers FOR EACH ROW WHEN ((new.low > old.low)) EXECUTE FUNCTION expdb.buffers_evicted();


--
-- Name: buffers buffers_limited; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER buffers_limited BEFORE UPDATE OF added ON expdb.buffers FOR EACH ROW WHEN (((new.added > new.insert_limit) AND (new.added > old.added))) EXECUTE FUNCTION expdb.buffers_limited();


--
-- Name: chunks chunks_deleted; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER chunks_deleted AFTER DELETE ON expdb.chunks REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT WHEN ((pg_trigger_depth() = 0)) EXECUTE FUNCTION expdb.chunks_deleted();


--
-- Name: chunks chunks_released; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER chunks_released AFTER DELETE ON expdb.chunks REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION expdb.chunks_released();


--
-- Name: episodes episodes_completed; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER episodes_completed AFTER UPDATE OF status ON expdb.episodes FOR EACH ROW WHEN ((((new.status = 'complete'::text) <> (old.status = 'complete'::text)) AND (COALESCE(new.relation, 'fork'::text) = ANY (ARRAY['fork'::text, 'retry'::text])))) EXECUTE FUNCTION expdb.episodes_completed();


--
-- Name: episodes episodes_deleted; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER episodes_deleted AFTER DELETE ON expdb.episodes REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION expdb.episodes_deleted();


--
-- Name: episodes episodes_grouped; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER episodes_grouped AFTER INSERT ON expdb.episodes REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION expdb.episodes_grouped();


--
-- Name: episodes episodes_regrouped; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER episodes_regrouped AFTER UPDATE OF group_id, task_id ON expdb.episodes FOR EACH ROW WHEN ((((new.group_id IS DISTINCT FROM old.group_id) OR (new.task_id <> old.task_id)) AND (COALESCE(new.relation, 'fork'::text) = ANY (ARRAY['fork'::text, 'retry'::text])))) EXECUTE FUNCTION expdb.episodes_regrouped();


--
-- Name: episodes episodes_revised; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER episodes_revised AFTER UPDATE ON expdb.episodes REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT WHEN ((pg_trigger_depth() = 0)) EXECUTE FUNCTION expdb.episodes_revised();


--
-- Name: episodes episodes_ungrouped; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER episodes_ungrouped AFTER DELETE ON expdb.episodes REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION expdb.episodes_ungrouped();


--
-- Name: episodes episodes_versioned; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER episodes_versioned BEFORE UPDATE OF policy_version ON expdb.episodes FOR EACH ROW WHEN ((new.policy_version IS DISTINCT FROM old.policy_version)) EXECUTE FUNCTION expdb.episodes_versioned();


--
-- Name: shared_values shared_values_deleted; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER shared_values_deleted AFTER DELETE ON expdb.shared_values FOR EACH ROW EXECUTE FUNCTION expdb.shared_values_deleted();


--
-- Name: shared_values shared_values_inserted; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER shared_values_inserted AFTER INSERT ON expdb.shared_values FOR EACH ROW EXECUTE FUNCTION expdb.shared_values_inserted();


--
-- Name: steps steps_deleted; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER steps_deleted AFTER DELETE ON expdb.steps REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT WHEN ((pg_trigger_depth() = 0)) EXECUTE FUNCTION expdb.steps_deleted();


--
-- Name: steps steps_revised; Type: TRIGGER; Schema: expdb; Owner: -
--

CREATE TRIGGER steps_revised AFTER UPDATE ON expdb.steps REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT WHEN ((pg_trigger_depth() = 0)) EXECUTE FUNCTION expdb.steps_revised();


--
-- PostgreSQL database dump complete
--


