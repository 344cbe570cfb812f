CREATE FUNCTION chunks_deleted() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            UPDATE buffers b SET bytes = b.bytes - d.bytes
              FROM (SELECT buffer_id, sum(bytes) AS bytes FROM old_rows GROUP BY 1) d WHERE b.id = d.buffer_id;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER chunks_deleted AFTER DELETE ON chunks REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION chunks_deleted()
