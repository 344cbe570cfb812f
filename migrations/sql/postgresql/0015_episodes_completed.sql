CREATE FUNCTION episodes_completed() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            UPDATE rollout_groups SET complete = complete + CASE NEW.status WHEN 'complete' THEN 1 ELSE -1 END
             WHERE buffer_id = OLD.buffer_id AND name = coalesce(OLD.group_id, OLD.task_id)
               AND is_task = (OLD.group_id IS NULL);
            RETURN NULL;
        END
        $$;
CREATE TRIGGER episodes_completed AFTER UPDATE OF status ON episodes FOR EACH ROW
WHEN ((NEW.status = 'complete') <> (OLD.status = 'complete') AND coalesce(NEW.relation, 'fork') IN ('fork', 'retry'))
EXECUTE FUNCTION episodes_completed()
