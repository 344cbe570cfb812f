-- Something that a query can filter by has changed; `revision` of the row says which rows to read
-- again. A statement that changes many rows sets `revision` itself, which is three times as fast.
        CREATE TRIGGER steps_revised
        AFTER UPDATE OF step, pre_agent, execute_time, reward, terminated, truncated, tags, policy_version, policy_version_end, scores, agent_id ON steps
        WHEN NEW.revision IS OLD.revision
        BEGIN
            UPDATE buffers SET revision = revision + 1 WHERE id = NEW.buffer_id;
            UPDATE steps SET revision = (SELECT revision FROM buffers WHERE id = NEW.buffer_id)
             WHERE buffer_id = NEW.buffer_id AND position = NEW.position;
        END
