-- Count a new episode in its group, or, without a group, in its task.
-- Sub-agents, continuations and compactions are not rollouts of their group.
CREATE TRIGGER episodes_grouped AFTER INSERT ON episodes
WHEN coalesce(NEW.relation, 'fork') IN ('fork', 'retry')
BEGIN
    INSERT INTO rollout_groups (buffer_id, name, is_task, task_id, first_episode, episodes, complete)
    VALUES (NEW.buffer_id, coalesce(NEW.group_id, NEW.task_id), NEW.group_id IS NULL, NEW.task_id, NEW.id, 1,
            NEW.status = 'complete')
    ON CONFLICT DO UPDATE SET episodes = episodes + 1, complete = complete + excluded.complete,
                              task_id = min(task_id, excluded.task_id), first_episode = min(first_episode, excluded.first_episode);
END
