-- The priorities of all steps that have one. Each block of 1,024 positions is decoded once, which is
-- fast for many steps and slow for a few.
CREATE VIEW step_priorities AS
SELECT p.buffer_id, p.block * 1024 + d.place - 1 AS position, d.priority
FROM priorities p CROSS JOIN LATERAL unnest(p.data) WITH ORDINALITY AS d(priority, place)
WHERE d.priority <> 'NaN'
