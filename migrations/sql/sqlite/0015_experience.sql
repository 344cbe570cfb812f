-- One row per step, with the columns of its episode. A step without versions or an agent of its own
-- has those of its episode.
CREATE VIEW experience AS
SELECT b.name AS buffer, s.position, s.episode, e.episode_id, e.run, e.task_id, e.task_name, coalesce(s.agent_id, e.agent_id) AS agent_id, e.group_id,
       e.status, e.length, e.episode_return, e.episode_tags AS episode_tags, e.started, e.ended,
       e.first_policy_version, e.last_policy_version,
       e.parent_episode, e.parent_step, e.parent_position, e.relation, coalesce(e.root_episode, e.id) AS root_episode,
       coalesce(e.trainable, true) AS trainable,
       s.step, s.pre_agent, s.execute_time, s.reward, s.terminated, s.truncated,
       coalesce(s.policy_version, e.policy_version) AS policy_version,
       coalesce(s.policy_version_end, s.policy_version, e.policy_version) AS policy_version_end,
       (SELECT p.priority FROM step_priorities p WHERE p.buffer_id = s.buffer_id AND p.position = s.position) AS priority,
       s.tags AS tags, s.scores AS scores,
       g.buffer_id || ':' || g.chunk || ':' || (g.chunk_row + s.position - g.first) AS payload
FROM buffers b
JOIN episodes e ON e.buffer_id = b.id
JOIN segments g ON g.buffer_id = e.buffer_id AND g.episode = e.id
JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last AND s.episode = e.id
