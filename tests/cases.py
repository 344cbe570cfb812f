"""Combinations of parameters and numbers of examples; `dev.py test --all` runs more of both."""

import itertools
import os
from typing import Any

from allpairspy import AllPairs

ALL = bool(os.environ.get("EXPDB_TEST_ALL"))


def combinations(*values: Any) -> list[tuple[Any, ...]]:
    """Return tuples with one element of each sequence.

    Every pair of elements of two sequences occurs. With `ALL`, return every tuple.
    """
    if ALL:
        return list(itertools.product(*values))
    indices = AllPairs([list(range(len(sequence))) for sequence in values])
    return [tuple(values[k][index] for k, index in enumerate(row)) for row in indices]


def examples(count: int) -> int:
    """Return the number of examples that Hypothesis tries, five times as many with `ALL`."""
    return 5 * count if ALL else count
