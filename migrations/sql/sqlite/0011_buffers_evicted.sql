-- When `low` rises, delete the steps before it and then the rows that only they used. `low` is already
-- set, so `steps_deleted` does not count these steps as deleted. The statement that raises `low` also
-- sets `size`, `holes` and `pinned`.
CREATE TRIGGER buffers_evicted AFTER UPDATE OF low ON buffers WHEN NEW.low > OLD.low
BEGIN
    DELETE FROM steps WHERE buffer_id = NEW.id AND position < NEW.low;
    DELETE FROM episodes
     WHERE buffer_id = NEW.id AND status <> 'open' AND last_position < NEW.low
       AND id IN (SELECT episode FROM segments WHERE buffer_id = NEW.id AND last < NEW.low);
    DELETE FROM segments WHERE buffer_id = NEW.id AND last < NEW.low;
    DELETE FROM chunks WHERE buffer_id = NEW.id AND id < NEW.low;
    DELETE FROM priorities WHERE buffer_id = NEW.id AND block < NEW.low >> 10;
    DELETE FROM annotations WHERE buffer_id = NEW.id AND position < NEW.low;
END
