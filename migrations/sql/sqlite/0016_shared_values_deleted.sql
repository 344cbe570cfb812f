-- Subtract the size of a deleted shared value from the bytes of its buffer.
CREATE TRIGGER shared_values_deleted AFTER DELETE ON shared_values
BEGIN
    UPDATE buffers SET bytes = bytes - length(OLD.data) WHERE id = OLD.buffer_id;
END
