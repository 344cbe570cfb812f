        CREATE TRIGGER chunks_deleted AFTER DELETE ON chunks
        BEGIN
            UPDATE buffers SET bytes = bytes - OLD.bytes WHERE id = OLD.buffer_id;
        END
