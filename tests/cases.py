"""Combinations of the values of several parameters, for tests of many combinations."""

import itertools
import os
from typing import Any

from allpairspy import AllPairs


def combinations(*values: Any) -> list[tuple[Any, ...]]:
    """Return tuples with one element of each sequence.

    Every pair of elements of two sequences occurs. With ``EXPDB_TEST_PRODUCTS=1``, which
    `dev.py test --all` sets, return every tuple.
    """
    if os.environ.get("EXPDB_TEST_PRODUCTS"):
        return list(itertools.product(*values))
    indices = AllPairs([list(range(len(sequence))) for sequence in values])
    return [tuple(values[k][index] for k, index in enumerate(row)) for row in indices]
