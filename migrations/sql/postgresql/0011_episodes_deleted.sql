-- The history of scores ends with its episode.
CREATE FUNCTION episodes_deleted() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            DELETE FROM scores s USING old_rows o WHERE s.buffer_id = o.buffer_id AND s.episode = o.id;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER episodes_deleted AFTER DELETE ON episodes REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
EXECUTE FUNCTION episodes_deleted()
