-- EXECUTE plans each statement for the number of rows of each call. Otherwise, PL/pgSQL keeps the
-- plan of the first call, such as a nested loop over one row.
-- The history of scores ends with its episode.
CREATE FUNCTION episodes_deleted() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            EXECUTE $sql$DELETE FROM scores s USING old_rows o WHERE s.buffer_id = o.buffer_id AND s.episode = o.id$sql$;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER episodes_deleted AFTER DELETE ON episodes REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
EXECUTE FUNCTION episodes_deleted()
