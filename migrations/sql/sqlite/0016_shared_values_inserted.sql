-- Add the size of a new shared value to the bytes of its buffer.
CREATE TRIGGER shared_values_inserted AFTER INSERT ON shared_values
BEGIN
    UPDATE buffers SET bytes = bytes + length(NEW.data) WHERE id = NEW.buffer_id;
END
