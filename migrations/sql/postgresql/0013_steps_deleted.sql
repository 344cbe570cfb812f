-- EXECUTE plans each statement for the number of rows of each call. Otherwise, PL/pgSQL keeps the
-- plan of the first call, such as a nested loop over one row.
-- Count the steps that were deleted on purpose, by expdb or by hand, and delete their annotations.
CREATE FUNCTION steps_deleted() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            UPDATE buffers b SET size = size - d.count, holes = holes + d.count, deleted = deleted + d.count,
                                 revision = revision + 1
              FROM (SELECT o.buffer_id, count(*) AS count FROM old_rows o
                      JOIN buffers h ON h.id = o.buffer_id AND o.position >= h.low GROUP BY 1) d
             WHERE b.id = d.buffer_id;
            EXECUTE $sql$DELETE FROM annotations a USING old_rows o WHERE a.buffer_id = o.buffer_id AND a.position = o.position$sql$;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER steps_deleted AFTER DELETE ON steps REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION steps_deleted()
