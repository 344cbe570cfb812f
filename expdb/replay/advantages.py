"""Advantages of rollouts, computed from the scores of a group or of a batch.

The docstring of `Tokens` has the formulas and their sources.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from expdb.errors import InvalidValue

EPSILON = 1e-6  # avoids division by zero

# Scores float64 [G, n], numbers of tokens int64 [G, n] and mask bool [G, n] to advantages [G, n].
Advantage = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]


def compute_advantages(
    advantage: str | Advantage, scores: np.ndarray, lengths: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """Return the advantages of rollouts; 0 for a missing rollout.

    Parameters
    ----------
    advantage : str or callable
        Name of a formula, or a function as described for `Tokens`.
    scores : ndarray of float64, shape (G, n)
        Score of each rollout, NaN for a missing rollout.
    lengths : ndarray of int64, shape (G, n)
        Number of tokens to train on in each rollout.
    mask : ndarray of bool, shape (G, n)
        True for a rollout.

    Returns
    -------
    ndarray of float64, shape (G, n)
        Advantages.

    Raises
    ------
    InvalidValue
        If the score of a rollout is unknown, the function returns an array of another shape than
        (G, n), or an advantage is not finite as float32.
    """
    if np.isnan(scores[mask]).any():
        raise InvalidValue(
            f"the score of {int(np.isnan(scores[mask]).sum())} of {int(mask.sum())} drawn rollouts "
            "is unknown, so their advantage cannot be computed; store a reward, or pass "
            "of=expdb.Group(size, score=name) to use the score of a judge"
        )
    if callable(advantage):
        values = np.asarray(advantage(scores.copy(), lengths.copy(), mask.copy()), np.float64)
        if values.shape != scores.shape:
            raise InvalidValue(
                f"the advantage function must return numbers of shape {scores.shape}, got shape "
                f"{values.shape}"
            )
    else:
        values = ADVANTAGES[advantage](scores, lengths, mask)
    values = np.where(mask, values, 0.0)
    with np.errstate(over="ignore"):
        if not np.isfinite(values.astype(np.float32)).all():
            raise InvalidValue(
                "the advantage of a rollout is not finite or does not fit float32; scale the "
                "scores or returns, or correct the advantage function"
            )
    return values


def _center_scores(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the scores minus the mean of their group; exactly 0 if all of them are equal."""
    means = np.where(mask, scores, 0.0).sum(1) / np.maximum(mask.sum(1), 1)
    lowest = np.where(mask, scores, np.inf).min(1, initial=np.inf)
    differ = np.where(mask, scores, -np.inf).max(1, initial=-np.inf) > lowest
    centred: np.ndarray = np.where(mask & differ[:, None], scores - means[:, None], 0.0)
    return centred


def _grpo(scores: np.ndarray, lengths: np.ndarray, mask: np.ndarray) -> np.ndarray:
    centred = _center_scores(scores, mask)
    deviations = np.sqrt((centred**2).sum(1) / np.maximum(mask.sum(1) - 1, 1))
    advantages: np.ndarray = centred / (deviations[:, None] + EPSILON)
    return advantages


def _dr_grpo(scores: np.ndarray, lengths: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return _center_scores(scores, mask)


def _rloo(scores: np.ndarray, lengths: np.ndarray, mask: np.ndarray) -> np.ndarray:
    count = mask.sum(1)[:, None]
    advantages: np.ndarray = _center_scores(scores, mask) * count / np.maximum(count - 1, 1)
    return advantages


def _reinforce(scores: np.ndarray, lengths: np.ndarray, mask: np.ndarray) -> np.ndarray:
    weights = np.where(mask, lengths, 0)
    total = max(int(weights.sum()), 1)
    filled = np.where(mask, scores, 0.0)
    mean = (filled * weights).sum() / total
    deviation = np.sqrt((weights * (filled - mean) ** 2).sum() / total)
    advantages: np.ndarray = (filled - mean) / (deviation + EPSILON)
    return advantages


ADVANTAGES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "reinforce++": _reinforce,
}
