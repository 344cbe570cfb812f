-- A field of a payload, which the server cannot decode: it asks for what it does not find in a
-- temporary table; the client that runs the query fills in the values and runs it again.
CREATE FUNCTION field(payload text, name text) RETURNS text LANGUAGE plpgsql STRICT SET search_path = pg_temp AS $$
DECLARE
    found_value text;
BEGIN
    IF to_regclass('expdb_fields') IS NULL THEN
        RAISE EXCEPTION 'field() works in db.sql of expdb only, where payload can be decoded';
    END IF;
    SELECT f.value INTO found_value FROM expdb_fields f WHERE f.payload = field.payload AND f.name = field.name;
    IF NOT FOUND THEN
        INSERT INTO expdb_fields (payload, name, known) VALUES (field.payload, field.name, false);
    END IF;
    RETURN found_value;
END $$
