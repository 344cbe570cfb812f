-- A group still counts its evicted complete episodes. The row of a group is deleted with the last
-- episode of the group.
CREATE TRIGGER episodes_ungrouped AFTER DELETE ON episodes
WHEN coalesce(OLD.relation, 'fork') IN ('fork', 'retry')
BEGIN
    UPDATE rollout_groups SET episodes = episodes - 1
     WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
       AND is_task = (OLD.group_id IS NULL);
    DELETE FROM rollout_groups
     WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
       AND is_task = (OLD.group_id IS NULL) AND episodes = 0;
END
