-- Evict the oldest steps, exactly as many as are over the capacity, whatever gaps `delete` left.
-- Pinned steps are kept until the buffer holds more than twice its capacity. The trigger does nothing
-- if a policy evicts (trigger_evicts is false). The OFFSET walks over no more rows than are evicted.
CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity, pinned, trigger_evicts ON buffers
WHEN NEW.size > NEW.capacity AND NEW.trigger_evicts
     AND (NEW.pinned IS NULL OR NEW.low < NEW.pinned OR NEW.size > 2 * NEW.capacity)
BEGIN
    UPDATE buffers SET (low, size) = (
        SELECT bound, CASE WHEN NEW.pinned IS NULL THEN NEW.capacity ELSE NEW.size -
            (SELECT count(*) FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low AND position < bound) END
          FROM (SELECT min(
            (SELECT position FROM steps WHERE buffer_id = NEW.id AND position >= NEW.low
              ORDER BY position LIMIT 1 OFFSET NEW.size - NEW.capacity),
            CASE WHEN NEW.size > 2 * NEW.capacity THEN NEW.added ELSE coalesce(NEW.pinned, NEW.added) END) AS bound))
     WHERE id = NEW.id;
    UPDATE buffers SET holes = CASE WHEN added - low = size THEN 0 ELSE holes END,
                       pinned = CASE WHEN pinned < low THEN NULL ELSE pinned END
     WHERE id = NEW.id;
END
