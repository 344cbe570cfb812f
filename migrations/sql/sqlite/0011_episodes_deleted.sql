-- The history of scores ends with its episode.
CREATE TRIGGER episodes_deleted AFTER DELETE ON episodes
WHEN EXISTS (SELECT 1 FROM scores WHERE buffer_id = OLD.buffer_id AND episode = OLD.id)
BEGIN
    DELETE FROM scores WHERE buffer_id = OLD.buffer_id AND episode = OLD.id;
END
