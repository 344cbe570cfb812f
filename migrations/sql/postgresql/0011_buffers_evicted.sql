-- When `low` rises, delete the steps before it and then the rows that only they used. The statement
-- that raises `low` also sets `size`, `holes` and `pinned`. Scans begin at the old `low`: before it
-- lie rows that are dead and not yet vacuumed. These deletions are at trigger depth 1, so that other
-- triggers do not count them. Episodes are looked up by a list: a join scans all segments for each
-- episode if the buffer has no statistics yet.
CREATE FUNCTION buffers_evicted() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        DECLARE
            freed bigint;
            dead bigint[];
        BEGIN
            DELETE FROM steps WHERE buffer_id = NEW.id AND position >= OLD.low AND position < NEW.low;
            dead := ARRAY(SELECT DISTINCT episode FROM segments
                           WHERE buffer_id = NEW.id AND last >= OLD.low AND last < NEW.low);
            DELETE FROM episodes
             WHERE buffer_id = NEW.id AND status <> 'open' AND last_position < NEW.low AND id = ANY(dead);
            DELETE FROM segments WHERE buffer_id = NEW.id AND last >= OLD.low AND last < NEW.low;
            WITH gone AS (
                DELETE FROM chunks c WHERE buffer_id = NEW.id AND id >= OLD.low AND id < NEW.low RETURNING c.bytes
            ) SELECT sum(gone.bytes) INTO freed FROM gone;
            DELETE FROM priorities WHERE buffer_id = NEW.id AND block >= OLD.low >> 10 AND block < NEW.low >> 10;
            DELETE FROM annotations WHERE buffer_id = NEW.id AND position >= OLD.low AND position < NEW.low;
            IF freed > 0 THEN
                UPDATE buffers SET bytes = bytes - freed WHERE id = NEW.id;
            END IF;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER buffers_evicted AFTER UPDATE OF low ON buffers FOR EACH ROW WHEN (NEW.low > OLD.low)
EXECUTE FUNCTION buffers_evicted()
