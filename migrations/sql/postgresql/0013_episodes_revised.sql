-- PL/pgSQL keeps the plan of the first call, such as a nested loop over one row. EXECUTE plans a
-- statement again, which takes longer than changing a few rows. So only statements with many changed
-- rows are planned at each call.
-- A write of new steps also changes `length` and `episode_return`, but is not a revision.
CREATE FUNCTION episodes_revised() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
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
        $$;
CREATE TRIGGER episodes_revised AFTER UPDATE ON episodes REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION episodes_revised()
