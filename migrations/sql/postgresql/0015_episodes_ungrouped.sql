-- A group still counts its evicted complete episodes. The row of a group is deleted with the last
-- episode of the group. PL/pgSQL caches the plan of the first call, when the table may be small. Other
-- plans than index scans are disabled, because they are slow when the table is large.
CREATE FUNCTION episodes_ungrouped() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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
CREATE TRIGGER episodes_ungrouped AFTER DELETE ON episodes REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
EXECUTE FUNCTION episodes_ungrouped()
