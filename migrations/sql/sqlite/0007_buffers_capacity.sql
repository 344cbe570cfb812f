-- Evict the oldest steps, exactly as many as are over the capacity, whatever gaps `delete` left;
-- then what only they needed. Pinned steps stay, unless that is more than twice the capacity; a
-- buffer whose policy evicts, not this trigger, is left alone. `low` moves first, so that
-- `steps_deleted` does not count the evicted rows once more. The OFFSET walks over no more rows than
-- are evicted.
CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity, pinned, trigger_evicts ON buffers
WHEN NEW.size > NEW.capacity AND NEW.trigger_evicts
     AND (NEW.pinned IS NULL OR NEW.low < NEW.pinned OR NEW.size > 2 * NEW.capacity)
BEGIN
    UPDATE buffers SET low = min(
        (SELECT position FROM steps WHERE buffer_id = NEW.id ORDER BY position LIMIT 1 OFFSET NEW.size - NEW.capacity),
        CASE WHEN NEW.size > 2 * NEW.capacity THEN NEW.added ELSE coalesce(NEW.pinned, NEW.added) END)
     WHERE id = NEW.id;
    UPDATE buffers SET size = CASE WHEN NEW.pinned IS NULL THEN NEW.capacity ELSE
        size - (SELECT count(*) FROM steps s WHERE s.buffer_id = NEW.id AND s.position < (SELECT low FROM buffers WHERE id = NEW.id)) END
     WHERE id = NEW.id;
    DELETE FROM steps
     WHERE buffer_id = NEW.id AND position < (SELECT low FROM buffers WHERE id = NEW.id);
    DELETE FROM episodes
     WHERE buffer_id = NEW.id AND status <> 'open'
       AND last_position < (SELECT low FROM buffers WHERE id = NEW.id)
       AND id IN (SELECT episode FROM segments WHERE buffer_id = NEW.id
                  AND last < (SELECT low FROM buffers WHERE id = NEW.id));
    DELETE FROM segments
     WHERE buffer_id = NEW.id AND last < (SELECT low FROM buffers WHERE id = NEW.id);
    DELETE FROM chunks
     WHERE buffer_id = NEW.id AND id < (SELECT low FROM buffers WHERE id = NEW.id);
    DELETE FROM priorities
     WHERE buffer_id = NEW.id AND block < (SELECT low FROM buffers WHERE id = NEW.id) >> 10;
    UPDATE buffers SET holes = CASE WHEN added - low = size THEN 0 ELSE holes END,
                       pinned = CASE WHEN pinned < low THEN NULL ELSE pinned END
     WHERE id = NEW.id;
END
