-- Appending changes `length` and `episode_return` as well; new steps tell of that by themselves.
        CREATE TRIGGER episodes_revised
        AFTER UPDATE OF episode_id, run, task_id, task_name, agent_id, group_id, policy_version, episode_tags, started,
                        status, length, episode_return, ended ON episodes
        WHEN NEW.last_position = OLD.last_position
             AND (NEW.status <> OLD.status OR NEW.length <> OLD.length OR NEW.episode_return IS NOT OLD.episode_return
                  OR NEW.ended IS NOT OLD.ended)
             OR NEW.episode_id <> OLD.episode_id OR NEW.run <> OLD.run OR NEW.task_id <> OLD.task_id
             OR NEW.task_name IS NOT OLD.task_name OR NEW.agent_id <> OLD.agent_id OR NEW.group_id IS NOT OLD.group_id
             OR NEW.policy_version IS NOT OLD.policy_version OR NEW.episode_tags IS NOT OLD.episode_tags
             OR NEW.started <> OLD.started
        BEGIN
            UPDATE buffers SET revision = revision + 1 WHERE id = NEW.buffer_id;
            UPDATE episodes SET revision = (SELECT revision FROM buffers WHERE id = NEW.buffer_id)
             WHERE buffer_id = NEW.buffer_id AND id = NEW.id;
        END
