        CREATE TRIGGER steps_rewarded AFTER UPDATE OF reward ON steps
        WHEN NEW.reward IS NOT OLD.reward
        BEGIN
            UPDATE episodes
               SET episode_return = coalesce(episode_return, 0) + coalesce(NEW.reward, 0) - coalesce(OLD.reward, 0)
             WHERE buffer_id = NEW.buffer_id AND id = NEW.episode;
        END
