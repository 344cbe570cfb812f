-- Evict the oldest steps, exactly as many as are over the capacity, whatever gaps `delete` left;
-- then what only they needed. `low` moves first, so that `steps_deleted` does not count the evicted
-- rows once more. The OFFSET walks over no more rows than are evicted.
        CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity ON buffers
        WHEN NEW.size > NEW.capacity
        BEGIN
            UPDATE buffers SET low = (SELECT position FROM steps WHERE buffer_id = NEW.id
                                      ORDER BY position LIMIT 1 OFFSET NEW.size - NEW.capacity)
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
            UPDATE buffers SET size = NEW.capacity, holes = CASE WHEN added - low = NEW.capacity THEN 0 ELSE holes END
             WHERE id = NEW.id;
        END
