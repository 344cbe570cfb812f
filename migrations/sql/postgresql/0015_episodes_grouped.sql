-- Count new episodes in their groups, or, without a group, in their tasks.
-- Sub-agents, continuations and compactions are not rollouts of their group.
CREATE FUNCTION episodes_grouped() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
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
CREATE TRIGGER episodes_grouped AFTER INSERT ON episodes REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
EXECUTE FUNCTION episodes_grouped()
