-- One row per recorded score, oldest first by `id`. `position` is NULL if the score belongs to a whole
-- episode; `value` is NULL if the judge failed.
CREATE VIEW experience_scores AS
SELECT b.name AS buffer, r.id, e.episode_id, e.task_id, e.group_id, r.position, r.name, r.value, r.scored_by, r.status,
       r.detail::jsonb AS detail, r.scored
FROM buffers b
JOIN scores r ON r.buffer_id = b.id
JOIN episodes e ON e.buffer_id = r.buffer_id AND e.id = r.episode
