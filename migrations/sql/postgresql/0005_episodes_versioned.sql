-- An episode whose version is set, late or anew, has that one in all of its steps that have none of
-- their own.
CREATE FUNCTION episodes_versioned() RETURNS trigger LANGUAGE plpgsql
SET search_path = expdb, pg_temp AS $$
        BEGIN
            NEW.first_policy_version := NEW.policy_version;
            NEW.last_policy_version := NEW.policy_version;
            RETURN NEW;
        END
        $$;
CREATE TRIGGER episodes_versioned BEFORE UPDATE OF policy_version ON episodes FOR EACH ROW WHEN (NEW.policy_version IS DISTINCT FROM OLD.policy_version)
EXECUTE FUNCTION episodes_versioned()
