-- An episode whose version is set, late or anew, has that one in all of its steps that have none of
-- their own.
CREATE TRIGGER episodes_versioned AFTER UPDATE OF policy_version ON episodes
WHEN NEW.policy_version IS NOT OLD.policy_version
BEGIN
    UPDATE episodes SET first_policy_version = NEW.policy_version, last_policy_version = NEW.policy_version
     WHERE buffer_id = NEW.buffer_id AND id = NEW.id;
END
