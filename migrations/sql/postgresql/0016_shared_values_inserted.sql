-- Add the size of a new shared value to the bytes of its buffer.
CREATE FUNCTION shared_values_inserted() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            UPDATE buffers SET bytes = bytes + length(NEW.data) WHERE id = NEW.buffer_id;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER shared_values_inserted AFTER INSERT ON shared_values FOR EACH ROW
EXECUTE FUNCTION shared_values_inserted()
