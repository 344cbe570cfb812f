"""RecordArray stores the narrow columns of a row side by side and copies them together."""

import numpy as np
import pytest

from expdb.memory.batch_arrays import BatchArrays
from expdb.memory.records import RecordArray

COLUMNS = {
    "done": (np.dtype("?"), ()),
    "after": (np.dtype("i8"), ()),
    "obs": (np.dtype("f4"), (4,)),
    "action": (np.dtype("i2"), ()),
}


@pytest.mark.parametrize("shape", [(6,), (2, 3), (0,)])
def test_take_returns_copies_for_row_indices_of_any_shape(shape):
    made, rng = RecordArray(50, COLUMNS), np.random.default_rng(0)
    for name, (_, inner) in COLUMNS.items():
        made[name][:] = rng.integers(0, 2, (50, *inner))
    rows = rng.integers(0, 50, shape)
    taken = made.take(rows, BatchArrays())
    for name in COLUMNS:
        column = taken.items[name].copy()
        column = column if made.types[name] is None else column.view(made.types[name])
        for taken_column in (taken.columns[name], column):
            assert (taken_column == made[name][rows]).all()
            assert taken_column.shape[: len(shape)] == shape
    with pytest.raises(ValueError, match="read-only"):
        taken.columns["after"][...] = 7
    taken.items["after"][...] = 7
    assert (made["after"] <= 1).all()
