-- The history of scores ends with its episode.
CREATE TRIGGER episodes_deleted AFTER DELETE ON episodes
BEGIN
    DELETE FROM scores WHERE buffer_id = OLD.buffer_id AND episode = OLD.id;
END
