-- PL/pgSQL keeps the plan of the first call, such as a nested loop over one row. EXECUTE plans a
-- statement again, which takes longer than changing a few rows. So only statements with many changed
-- rows are planned at each call.
-- This statement trigger replaces two row triggers of SQLite, because one join yields both the
-- revisions and the returns.
CREATE FUNCTION steps_revised() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
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
        $$;
CREATE TRIGGER steps_revised AFTER UPDATE ON steps REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION steps_revised()
