-- When a chunk is deleted, delete its references, and the shared values to which no other chunk refers.
-- Bit 33 of `crc` marks a chunk with shared values.
CREATE TRIGGER chunks_released AFTER DELETE ON chunks WHEN (OLD.crc & 8589934592) <> 0
BEGIN
    DELETE FROM shared_values WHERE buffer_id = OLD.buffer_id AND digest IN (
        SELECT digest FROM value_references r WHERE r.buffer_id = OLD.buffer_id AND r.chunk = OLD.id
           AND NOT EXISTS (SELECT 1 FROM value_references o WHERE o.buffer_id = r.buffer_id
                              AND o.digest = r.digest AND o.chunk <> OLD.id));
    DELETE FROM value_references WHERE buffer_id = OLD.buffer_id AND chunk = OLD.id;
END
