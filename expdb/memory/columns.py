"""The columns that every buffer has in memory, in addition to its fields.

Each column is an array with one entry per row. Every batch has the columns `episode`, `step`,
`reward`, `terminated` and `truncated`. The other columns have names that no field can have:

- `:after` and `:before`: the rows of the next and the previous step, or UNKNOWN
- `:ordinal`: the number of steps of the episode that were written before the step
- `:whole`: at the first step of a complete episode, the length of the episode, as long as all of
  its steps are in memory; otherwise 0
- `:present`: whether the position holds a step; False after a deletion
- `:priority` and `:unsaved`, from the first use of priorities on: the priority of the step, and
  whether it is not yet written to the database

A priority of 0 or more was set explicitly. A negative entry is the initial priority with its sign
reversed: the greatest priority at the time when a draw by priority first included the step. NaN
marks steps that have no priority and no initial priority.
"""

from typing import Any

import numpy as np

from expdb.names import UNKNOWN

# Names that no field can have.
AFTER, BEFORE, ORDINAL, WHOLE, PRESENT = ":after", ":before", ":ordinal", ":whole", ":present"
PRIORITY, UNSAVED = ":priority", ":unsaved"

BATCH_COLUMNS: dict[str, Any] = {
    "episode": np.int64, "step": np.int64, "reward": np.float64, "terminated": np.bool_,
    "truncated": np.bool_,
    AFTER: np.int64, BEFORE: np.int64, ORDINAL: np.int32, WHOLE: np.int32,
    PRESENT: np.bool_,
}  # fmt: skip
LINKS = (AFTER, BEFORE)
# Columns that nearly every batch reads.
PACKED = (AFTER, "episode", "step", "reward", "terminated", "truncated")
# Values of the last row, which represents "no step". The index UNKNOWN (-1) selects it.
NO_STEP: dict[str, Any] = {
    "episode": UNKNOWN, "step": UNKNOWN, "reward": np.nan,
    AFTER: UNKNOWN, BEFORE: UNKNOWN, ORDINAL: UNKNOWN,
}  # fmt: skip


def run_starts(values: np.ndarray) -> np.ndarray:
    """Return the indices at which runs of equal values begin."""
    begins = np.concatenate((np.ones(min(1, len(values)), np.bool_), np.diff(values) != 0))
    return begins.nonzero()[0]


def last_run(positions: np.ndarray, high: int) -> int:
    """Return the first of the consecutive positions that end at `high - 1`; `high` if none."""
    # In the run, each position is `high` minus the number of positions from it to the end.
    run = positions == np.arange(high - len(positions), high)
    return high - len(positions) + int(run.argmax()) if run.any() else high
