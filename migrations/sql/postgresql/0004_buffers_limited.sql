-- Hold back new steps that a rate limiter does not let in yet: leases raise `insert_limit`.
CREATE FUNCTION buffers_limited() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            RAISE EXCEPTION 'the rate limiter holds back new steps' USING ERRCODE = 'XD002';
        END
        $$;
CREATE TRIGGER buffers_limited BEFORE UPDATE OF added ON buffers FOR EACH ROW WHEN (NEW.added > NEW.insert_limit AND NEW.added > OLD.added)
EXECUTE FUNCTION buffers_limited()
