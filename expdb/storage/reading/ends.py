"""Count complete episodes whose ends NStep cannot use."""

from expdb.sql.session import Session
from expdb.storage.store import Store

NEWEST_EPISODES = 64  # maximum number of examined episodes
MIN_MISSING_ENDS = 8  # minimum number of complete episodes without an end for a warning
# One row per complete episode. The first column says whether the last step is terminated, truncated
# or followed by a final observation. The second column says whether NStep draws a last step without
# a reward, although other steps of the episode have a reward. Episodes whose steps are out of order
# are skipped, because their last step need not be at `last_position`.
ENDS = f"""
SELECT s.terminated OR s.truncated OR e.tail_chunk IS NOT NULL,
    (s.terminated OR e.tail_chunk IS NOT NULL) AND s.reward IS NULL
    AND e.episode_return IS NOT NULL
FROM (SELECT * FROM episodes WHERE buffer_id = ? ORDER BY id DESC LIMIT {NEWEST_EPISODES}) e
JOIN steps s ON s.buffer_id = e.buffer_id AND s.position = e.last_position
WHERE e.status = 'complete' AND e.ordered
"""


def count_ends(store: Store, session: Session) -> tuple[int, int, int]:
    """Count the newest complete episodes, and those whose end or last reward is missing.

    The second number is 0 unless at least `MIN_MISSING_ENDS` episodes, and more than half of them,
    have no end.
    """
    rows = session.query(ENDS, store.id)
    missing = sum(not has_end for has_end, _ in rows)
    is_common = missing >= MIN_MISSING_ENDS and missing > len(rows) // 2
    unrewarded = sum(bool(lacks_reward) for _, lacks_reward in rows)
    return len(rows), missing if is_common else 0, unrewarded
