-- When chunks are deleted, delete their references, and the shared values to which no other chunk refers.
-- Bit 33 of `crc` marks a chunk with shared values. The trigger fires once per statement: a check for each
-- row would scan the references that the same transaction has deleted.
CREATE FUNCTION chunks_released() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        DECLARE
            released bytea[];
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM old_rows WHERE (crc & 8589934592) <> 0) THEN
                RETURN NULL;
            END IF;
            WITH gone AS (
                DELETE FROM value_references r USING old_rows o
                 WHERE r.buffer_id = o.buffer_id AND r.chunk = o.id RETURNING r.digest
            ) SELECT array_agg(DISTINCT digest) INTO released FROM gone;
            DELETE FROM shared_values v
             WHERE buffer_id IN (SELECT buffer_id FROM old_rows) AND digest = ANY(released)
               AND NOT EXISTS (SELECT 1 FROM value_references r
                                WHERE r.buffer_id = v.buffer_id AND r.digest = v.digest);
            RETURN NULL;
        END
        $$;
CREATE TRIGGER chunks_released AFTER DELETE ON chunks REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
EXECUTE FUNCTION chunks_released()
