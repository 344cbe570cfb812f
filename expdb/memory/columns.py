"""The columns that every buffer has in memory, beside its fields.

Arrays of one entry per row: the columns that every batch has (`episode`, `step`, `reward`,
`terminated`, `truncated`), and under names that no field can have the links `:after` and `:before`
(rows, or UNKNOWN), `:ordinal` (steps of the episode written before), `:whole` (the length of a
complete episode, at its first step, while every step of it is held), `:present` (not deleted) and,
from the first use on, `:priority` and `:unsaved`. A priority from 0 on was given; one below 0 is,
but for its sign, the greatest that there was when a draw by priority first saw the step; NaN is for
steps that neither happened to.
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
# Those that nearly every batch takes.
PACKED = (AFTER, "episode", "step", "reward", "terminated", "truncated")
# What the last row says, which -1 (UNKNOWN) is the index of: the one that stands for no step.
NO_STEP: dict[str, Any] = {
    "episode": UNKNOWN, "step": UNKNOWN, "reward": np.nan,
    AFTER: UNKNOWN, BEFORE: UNKNOWN, ORDINAL: UNKNOWN,
}  # fmt: skip
