"""RecordArray stores the narrow columns of a row side by side and copies them together."""

import numpy as np
import pytest

import expdb
from expdb.memory.batch_arrays import BatchArrays
from expdb.memory.records import LINE, MOST, RecordArray

COLUMNS = {
    "done": (np.dtype("?"), ()),
    "after": (np.dtype("i8"), ()),
    "obs": (np.dtype("f4"), (4,)),
    "action": (np.dtype("i2"), ()),
}


def test_a_record_fills_one_cache_line_with_aligned_columns():
    made = RecordArray(10, COLUMNS)
    assert made.names == set(COLUMNS)
    assert made.dtype.itemsize == LINE
    assert made.records.ctypes.data % LINE == 0
    for name, (dtype, _) in COLUMNS.items():
        assert made[name].ctypes.data % dtype.alignment == 0


@pytest.mark.parametrize(
    ("width", "size"), [(0, LINE), (8, LINE), (56, LINE), (LINE, 72), (LINE + 1, LINE)]
)
def test_records_exclude_wide_columns_and_are_padded_if_padding_is_small(width, size):
    made = RecordArray(3, {"after": COLUMNS["after"], "obs": (np.dtype("u1"), (width,))})
    assert ("obs" in made.names) == (0 < width <= LINE)
    assert made.dtype.itemsize == size


@pytest.mark.parametrize(("width", "fills"), [(52, True), (53, False), (56, False), (60, True)])
def test_filler_columns_are_added_only_if_the_record_does_not_grow(width, fills):
    columns = {"after": COLUMNS["after"], "obs": (np.dtype("u1"), (width,))}
    made = RecordArray(3, columns, {"ordinal": np.dtype("i4")})
    assert ("ordinal" in made.names) == fills
    assert made.dtype.itemsize == RecordArray(3, columns).dtype.itemsize


def test_a_record_does_not_exceed_its_maximum_size():
    many = {f"c{k}": (np.dtype("f8"), (8,)) for k in range(9)}
    made = RecordArray(3, many)
    assert len(made.names) == MOST // LINE
    assert made.dtype.itemsize == MOST


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


def test_fields_that_no_longer_fit_in_memory_are_read_from_the_database(tmp_path):
    with expdb.open(tmp_path / "runs.db", resident_bytes=4000) as db:
        buffer = db.buffer("b")
        for first, stop in ((0, 50), (50, 450)):  # two fields of 450 steps do not fit
            n = np.arange(first, stop)
            buffer.store_batch({"n": n, "x": n.astype(np.float64), "m": n * 2})
            for _ in range(3):
                batch = buffer.sample(64, unit=expdb.NStep(1, next_fields=("n",)))
                assert (batch["m"] == 2 * batch["n"]).all()
                assert (batch["x"] == batch["n"]).all()
                assert (batch["next_n"] == batch["n"] + 1).all()
