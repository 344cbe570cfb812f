CREATE TRIGGER episodes_completed AFTER UPDATE OF status ON episodes
WHEN (NEW.status = 'complete') <> (OLD.status = 'complete') AND coalesce(NEW.relation, 'fork') IN ('fork', 'retry')
BEGIN
    UPDATE rollout_groups SET complete = complete + CASE NEW.status WHEN 'complete' THEN 1 ELSE -1 END
     WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
       AND is_task = (OLD.group_id IS NULL);
END
