-- Count the steps that were deleted on purpose, by expdb or by hand, and delete their annotations.
        CREATE TRIGGER steps_deleted AFTER DELETE ON steps
        WHEN OLD.position >= (SELECT low FROM buffers WHERE id = OLD.buffer_id)
        BEGIN
            UPDATE buffers SET size = size - 1, holes = holes + 1, deleted = deleted + 1, revision = revision + 1
             WHERE id = OLD.buffer_id;
            DELETE FROM annotations WHERE buffer_id = OLD.buffer_id AND position = OLD.position;
        END
