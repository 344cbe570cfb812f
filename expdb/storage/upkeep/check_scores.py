"""Compare the scores of the steps of a buffer with the history of its scores."""

import math
from collections.abc import Iterator
from typing import Any

from expdb.errors import ExpDBError
from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_object

HISTORY = (
    "SELECT r.id, r.episode, r.position, r.name, r.value, r.detail, r.scored, s.episode "
    "FROM scores r LEFT JOIN steps s ON s.buffer_id = r.buffer_id AND s.position = r.position "
    "WHERE r.buffer_id = ? ORDER BY r.id"
)
SCORED = "SELECT position, episode, scores FROM steps WHERE buffer_id = ? AND scores IS NOT NULL"


def check_scores(store: Store, session: Session) -> Iterator[str]:
    """Yield the problems of the scores, one line each."""
    # The id and value of the latest score, by the step (or the episode) and the name of the score.
    # A failed score does not replace a value.
    of_steps: dict[tuple[int, str], tuple[int, float | None]] = {}
    of_episodes: dict[tuple[int, str], tuple[int, float | None]] = {}
    expected: dict[tuple[int, str], None] = {}
    for id, episode, position, name, value, detail, scored, owner in session.query(
        HISTORY, store.id
    ):
        problem = _problem(value, detail, scored)
        if owner is not None and owner != episode:
            problem = f"position {position} is a step of another episode"
        if problem:
            yield f"score {id} is wrong: {problem}"
        latest = of_episodes if position is None else of_steps
        key = (episode if position is None else position), name
        if value is not None or key not in latest:
            latest[key] = id, value
        if owner is not None:
            expected[key] = None
    for position, episode, text in session.query(SCORED, store.id):
        try:
            scores = parse_object(text, f"column scores of position {position}")
        except ExpDBError as error:
            yield str(error)
            continue
        for name, value in scores.items():
            own, whole = of_steps.get((position, name)), of_episodes.get((episode, name))
            values = [score for score in (own, whole) if score and score[1] is not None]
            last = max(values)[1] if values else None
            # A step that was stored after the score of its episode lacks this score.
            is_late = value is None and (own is None or own[1] is None)
            if own is whole is None or (value != last and not is_late) or value is True:
                yield f"position {position} has {value!r:.40} as {name!r}, unlike its history"
            expected.pop((position, name), None)
    yield from (f"position {position} lacks its score {name!r}" for position, name in expected)


def _problem(value: Any, detail: Any, scored: Any) -> str:
    """Return the problem of a row of the table `scores`, or an empty text."""
    for what, number in (("value", value), ("time", scored)):
        if number is not None and not math.isfinite(number):
            return f"its {what} is {number}"
    try:
        if detail is not None:
            parse_object(detail, "its detail")
    except ExpDBError as error:
        return str(error)
    return ""
