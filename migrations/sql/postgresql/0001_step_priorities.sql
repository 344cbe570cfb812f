-- The priority of each step that has one, out of its block of 1,024 positions. NaN stands for none.
CREATE VIEW step_priorities AS
SELECT s.buffer_id, s.position, p.data[(s.position & 1023) + 1] AS priority
FROM steps s JOIN priorities p ON p.buffer_id = s.buffer_id AND p.block = s.position >> 10
WHERE p.data[(s.position & 1023) + 1] <> 'NaN'
