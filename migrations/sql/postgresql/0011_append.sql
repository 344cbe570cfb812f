-- Store a whole write in one round trip. Positions of rows, segments and chunks count from 0 within
-- the write. Episodes are JSON and are referred to by their place there, from 1; a new episode has
-- id null. The function locks the row of `buffers`, assigns positions and adds them. If the caller's
-- fields or episodes are out of date, it raises XD001 and changes nothing. It returns the first
-- position, the counters low, size, revision and deleted after the write, and the episode ids. If
-- `again` is true, an earlier call of this write may have been committed; its chunks show whether it
-- was, once the row is locked. `segments_` has six numbers per segment (last, first, episode,
-- ordinal, chunk, chunk_row), `chunk_numbers` six per chunk (last, first, episode or 0, rows,
-- signature, crc).
CREATE FUNCTION append(
    buffer bigint, known_fields bigint, wait_ms bigint, write_id text, again boolean, now_ float8, episodes_ json,
    step bigint[], episode bigint[], pre_agent text[], execute_time float8[], reward float8[],
    terminated boolean[], truncated boolean[], tags text[], policy_version bigint[], policy_version_end bigint[],
    agent_id text[], segments_ bigint[], chunk_numbers bigint[], chunk_data bytea[], tail_chunk_ bigint, tail_row_ bigint, tail_fields_ text
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
END $$
