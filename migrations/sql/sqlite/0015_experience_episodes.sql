-- One row per episode. `steps_held` counts rows, not the span of segments: steps that were deleted
-- by hand leave gaps in these.
CREATE VIEW experience_episodes AS
SELECT b.name AS buffer, e.id AS episode, e.episode_id, e.run, e.task_id, e.task_name, e.agent_id, e.group_id, e.status, e.length,
       e.episode_return, e.policy_version, e.first_policy_version, e.last_policy_version, e.episode_tags AS episode_tags, e.started, e.ended,
       e.parent_episode, e.parent_step, e.parent_position, e.relation, coalesce(e.root_episode, e.id) AS root_episode,
       coalesce(e.trainable, true) AS trainable,
       (SELECT count(*) FROM segments g JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last
         WHERE g.buffer_id = e.buffer_id AND g.episode = e.id) AS steps_held
FROM buffers b
JOIN episodes e ON e.buffer_id = b.id
