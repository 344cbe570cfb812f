-- A later step can set the group of its episode. If the statement also changes `status`,
-- `episodes_completed` counts this change in the old group.
CREATE FUNCTION episodes_regrouped() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
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
CREATE TRIGGER episodes_regrouped AFTER UPDATE OF group_id, task_id ON episodes FOR EACH ROW
WHEN ((NEW.group_id IS DISTINCT FROM OLD.group_id OR NEW.task_id <> OLD.task_id) AND coalesce(NEW.relation, 'fork') IN ('fork', 'retry'))
EXECUTE FUNCTION episodes_regrouped()
