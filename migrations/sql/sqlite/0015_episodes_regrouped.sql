-- A later step can set the group of its episode. If the statement also changes `status`,
-- `episodes_completed` counts this change in the old group.
CREATE TRIGGER episodes_regrouped AFTER UPDATE OF group_id, task_id ON episodes
WHEN (NEW.group_id IS NOT OLD.group_id OR NEW.task_id <> OLD.task_id) AND coalesce(NEW.relation, 'fork') IN ('fork', 'retry')
BEGIN
    UPDATE rollout_groups SET episodes = episodes - 1, complete = complete - (NEW.status = 'complete')
     WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
       AND is_task = (OLD.group_id IS NULL);
    INSERT INTO rollout_groups (buffer_id, name, is_task, task_id, first_episode, episodes, complete)
    VALUES (NEW.buffer_id, coalesce(NEW.group_id, NEW.task_id), NEW.group_id IS NULL, NEW.task_id, NEW.id, 1,
            NEW.status = 'complete')
    ON CONFLICT DO UPDATE SET episodes = episodes + 1, complete = complete + excluded.complete,
                              task_id = min(task_id, excluded.task_id), first_episode = min(first_episode, excluded.first_episode);
    DELETE FROM rollout_groups
     WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
       AND is_task = (OLD.group_id IS NULL) AND episodes = 0;
END
