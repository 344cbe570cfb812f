-- Evict the oldest steps. Fires once per write, on the row of `buffers` that the write counts in;
-- nothing fires per step. Pinned steps stay, unless that is more than twice the capacity; a buffer
-- whose policy evicts, not this trigger, is left alone. The writer holds that row from its first
-- statement on, so evictions take turns and cannot deadlock, and each statement here sees what the
-- writers before it committed (READ COMMITTED). Scans begin at the old `low`: before it lie rows
-- that are dead and not yet vacuumed. Deletions made by eviction are at trigger depth 1 and counted
-- here.
CREATE FUNCTION buffers_capacity() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        DECLARE
            bound bigint;
            gone bigint;
            freed bigint;
        BEGIN
            SELECT position INTO bound FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low
             ORDER BY position LIMIT 1 OFFSET NEW.size - NEW.capacity;
            bound := coalesce(bound, NEW.added);
            IF NEW.size <= 2 * NEW.capacity THEN
                bound := least(bound, NEW.pinned);
            END IF;
            DELETE FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low AND position < bound;
            GET DIAGNOSTICS gone = ROW_COUNT;
            DELETE FROM episodes
             WHERE buffer_id = NEW.id AND status <> 'open' AND last_position < bound
               AND id IN (SELECT episode FROM segments
                           WHERE buffer_id = NEW.id AND last >= NEW.low AND last < bound);
            DELETE FROM segments WHERE buffer_id = NEW.id AND last >= NEW.low AND last < bound;
            WITH gone AS (
                DELETE FROM chunks c WHERE buffer_id = NEW.id AND id >= NEW.low AND id < bound RETURNING c.bytes
            ) SELECT coalesce(sum(gone.bytes), 0) INTO freed FROM gone;
            DELETE FROM priorities WHERE buffer_id = NEW.id AND block >= NEW.low >> 10 AND block < bound >> 10;
            UPDATE buffers SET low = bound, size = size - gone, bytes = bytes - freed,
                               holes = CASE WHEN added - bound = size - gone THEN 0 ELSE holes END,
                               pinned = CASE WHEN pinned < bound THEN NULL ELSE pinned END
             WHERE id = NEW.id;
            RETURN NULL;
        END
        $$;
CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity, pinned, trigger_evicts ON buffers FOR EACH ROW
WHEN (NEW.size > NEW.capacity AND NEW.trigger_evicts AND (NEW.pinned IS NULL OR NEW.low < NEW.pinned OR NEW.size > 2 * NEW.capacity))
EXECUTE FUNCTION buffers_capacity()
