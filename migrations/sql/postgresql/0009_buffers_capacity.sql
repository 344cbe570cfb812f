-- Evict the oldest steps, exactly as many as are over the capacity. Fires once per write, on the row
-- of `buffers` that the write counts in; nothing fires per step. Pinned steps are kept until the
-- buffer holds more than twice its capacity. The trigger does nothing if a policy evicts
-- (trigger_evicts is false). The writer holds that row from its first statement on, so evictions run
-- one after another and cannot deadlock, and each statement here sees what the writers before it
-- committed (READ COMMITTED).
CREATE FUNCTION buffers_capacity() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        DECLARE
            bound bigint;
            gone bigint := NEW.size - NEW.capacity;
        BEGIN
            SELECT position INTO bound FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low
             ORDER BY position LIMIT 1 OFFSET gone;
            bound := coalesce(bound, NEW.added);
            IF NEW.size <= 2 * NEW.capacity AND NEW.pinned < bound THEN
                bound := NEW.pinned;
                SELECT count(*) INTO gone FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low AND position < bound;
            END IF;
            UPDATE buffers SET low = bound, size = size - gone,
                               holes = CASE WHEN added - bound = size - gone THEN 0 ELSE holes END,
                               pinned = CASE WHEN pinned < bound THEN NULL ELSE pinned END
             WHERE id = NEW.id;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity, pinned, trigger_evicts ON buffers FOR EACH ROW
WHEN (NEW.size > NEW.capacity AND NEW.trigger_evicts AND (NEW.pinned IS NULL OR NEW.low < NEW.pinned OR NEW.size > 2 * NEW.capacity))
EXECUTE FUNCTION buffers_capacity()
