-- Wait on the server until a consumer may be handed out something that it might not be, or for some
-- seconds: who waits asks once, and costs its own machine nothing. Each look sees what is committed
-- by then, as the function is volatile and runs in READ COMMITTED.
CREATE FUNCTION wait_for_change(of_buffer bigint, of_consumer bigint, seen bigint[], seconds float8) RETURNS bigint[] LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        DECLARE
            found bigint[];
            until timestamptz := clock_timestamp() + make_interval(secs => seconds);
        BEGIN
            LOOP
                found := NULL;
                SELECT ARRAY[c.version, b.added, b.low, b.deleted, b.revision, b.priorities, coalesce(b.policy_version, -1)]
                  INTO found FROM consumers c JOIN buffers b ON b.id = c.buffer_id
                 WHERE c.buffer_id = of_buffer AND c.id = of_consumer;
                IF found IS NULL OR found IS DISTINCT FROM seen OR clock_timestamp() >= until THEN
                    RETURN found;
                END IF;
                PERFORM pg_sleep(0.01);
            END LOOP;
        END
        $$
