"""Convert Unix seconds to Arrow timestamps in UTC."""

import pyarrow as pa

from expdb.errors import InvalidValue

COLUMNS = ("started", "ended", "execute_time")
KIND = pa.timestamp("us", tz="UTC")
FIRST, END = -62_135_596_800, 253_402_300_800  # the years 1 to 9999, as in Python


def to_timestamps(name: str, seconds: pa.Array) -> pa.Array:
    """Return a float64 column of Unix seconds as timestamps, rounded to microseconds.

    Raise InvalidValue for seconds outside of the years 1 to 9999.
    """
    import pyarrow.compute as compute

    extremes = compute.min_max(seconds).as_py()
    for extreme in (extremes["min"], extremes["max"]):
        if extreme is not None and not FIRST <= extreme < END:
            raise InvalidValue(
                f"{name} must be a time in Unix seconds in the years 1 to 9999, got {extreme}; "
                "read the times without timestamps=True"
            )
    microseconds = compute.round(compute.multiply(seconds, 1e6))
    return microseconds.cast(pa.int64()).cast(KIND)
