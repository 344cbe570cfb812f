-- Hold back new steps that a rate limiter does not let in yet: leases raise `insert_limit`.
        CREATE TRIGGER buffers_limited BEFORE UPDATE OF added ON buffers
        WHEN NEW.added > NEW.insert_limit AND NEW.added > OLD.added
        BEGIN
            SELECT RAISE(ABORT, 'expdb: the rate limiter holds back new steps');
        END
