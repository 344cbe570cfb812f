-- Subtract the size of a deleted shared value from the bytes of its buffer.
CREATE FUNCTION shared_values_deleted() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            UPDATE buffers SET bytes = bytes - length(OLD.data) WHERE id = OLD.buffer_id;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER shared_values_deleted AFTER DELETE ON shared_values FOR EACH ROW
EXECUTE FUNCTION shared_values_deleted()
