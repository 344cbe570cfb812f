"""Checks of arguments.

Each check returns the value as a built-in Python type, or raises InvalidValue with advice.
"""

import math
import os
from typing import Any, Final, TypeVar

import numpy as np

from expdb.errors import InvalidValue
from expdb.names import SCORE

Kind = TypeVar("Kind")

LARGEST_REWARD = 1e300


class Unchanged:
    """Leave a stored setting unchanged."""

    def __repr__(self) -> str:
        return "expdb.UNCHANGED"


UNCHANGED: Final = Unchanged()


def seconds(value: Any) -> float:
    """Return a positive number of seconds."""
    checked = number(value, "expiry_seconds")
    if checked <= 0:
        raise InvalidValue(f"expiry_seconds must be a positive number, got {value!r}")
    return checked


def _is_large(value: Any) -> bool:
    return isinstance(value, int) and value >= 2**63


def whole(value: Any, name: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """Return an integer from `least` to `most`; by default, any 64-bit integer."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        integer = int(value)
        if least <= integer <= most:
            return integer
    wanted = "a 64-bit integer" if least < -(2**62) else f"an integer of at least {least}"
    wanted += (
        f" and at most {most}" if least > -(2**62) and (most < 2**62 or _is_large(value)) else ""
    )
    raise InvalidValue(f"{name} must be {wanted}, got {value!r}")


LEAST_ROW_BYTES = 64  # minimum size of a row of a batch with the usual columns


def _most_rows() -> int:
    """Return the maximum number of rows of a batch, or steps of a sequence, that fit in memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return 10**9
    return min(10**9, memory // LEAST_ROW_BYTES)


MOST_ROWS = _most_rows()


def rows(value: Any, name: str) -> int:
    """Return a number of rows or steps: at least 1, and small enough for one batch."""
    count = whole(value, name, 1, 10**9)
    if count > MOST_ROWS:
        raise InvalidValue(
            f"{name} is {count}, which does not fit in memory; request a smaller batch or shorter "
            "sequences"
        )
    return count


def raise_if_too_large(size: Any, error: Exception) -> None:
    """Raise InvalidValue if an error says that a batch of `size` does not fit in memory."""
    if isinstance(error, MemoryError) or "array is too big" in str(error):
        raise InvalidValue(
            f"a batch of size {size} does not fit in memory ({error}); request a smaller batch or "
            "shorter sequences"
        ) from error


def number(value: Any, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite float from `least` to `most`; accept arrays of one element."""
    try:
        if isinstance(value, (str, bytes, bool, np.bool_)):
            raise TypeError
        if getattr(value, "shape", ()) not in ((), (1,)):
            raise TypeError
        converted = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue(f"{name} must be a number{_range(least, most)}, got {value!r}") from None
    if not math.isfinite(converted):
        raise InvalidValue(f"{name} must be a finite number{_range(least, most)}, got {converted}")
    if not least <= converted <= most:
        raise InvalidValue(f"{name} must be a number{_range(least, most)}, got {value!r}")
    return converted + 0.0  # converts -0.0 to 0.0, because SQL has only one zero


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, so that equal values have the same type."""
    return value.item() if hasattr(value, "item") else value


def _range(least: float, most: float) -> str:
    if least == -math.inf:
        return ""
    return f" of at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")


def reward(value: Any) -> float:
    """Return a reward as a float, limited in size so that the return of an episode stays finite."""
    if len(getattr(value, "shape", ())) == 1 and len(value) > 1:
        raise InvalidValue(
            f"reward must be a number, got {value!r}; for a rollout [T, N], pass agents= to "
            "writer.extend()"
        )
    converted = number(value, "reward")
    if isinstance(value, (int, np.integer)) and int(converted) != int(value):
        raise InvalidValue(
            f"reward is {value}, which a float rounds to {converted:.0f}; scale the rewards"
        )
    if not -LARGEST_REWARD <= converted <= LARGEST_REWARD:
        raise InvalidValue(f"reward must be between -1e300 and 1e300, got {converted}")
    return converted


def flag(value: Any, name: str) -> bool:
    """Return a bool; accept NumPy bools."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if getattr(value, "shape", None) == () and str(value.dtype) in ("bool", "torch.bool"):
        return bool(value)
    is_number = isinstance(value, (float, np.number))
    cure = "; convert an array of numbers with array.astype(bool)" if is_number else ""
    raise InvalidValue(f"{name} must be True or False, got {value!r}{cure}")


def instance(value: Any, kind: type[Kind], name: str, example: str) -> Kind:
    """Return the value if it is an instance of `kind`; the error message names `example`."""
    if not isinstance(value, kind):
        is_class = isinstance(value, type) and issubclass(value, kind)
        advice = f"; pass an instance, {value.__name__}(...)" if is_class else ""
        raise InvalidValue(
            f"{name} must be a {kind.__name__} such as {example}, got {value!r}{advice}"
        )
    return value


def choice(value: Any, name: str, *choices: str) -> str:
    """Return the value if it is one of the known texts."""
    if isinstance(value, str) and value in choices:
        return value
    listed = ", ".join(map(repr, choices[:-1]))
    raise InvalidValue(f"{name} must be {listed} or {choices[-1]!r}, got {value!r}")


def text(value: Any, name: str) -> str:
    """Return a text as `str` if every database can store it."""
    if not isinstance(value, str):
        cure = f"; pass {str(value)!r}" if isinstance(value, (int, np.integer)) else ""
        raise InvalidValue(f"{name} must be text, got {value!r}{cure}")
    if "\0" in value:
        raise InvalidValue(
            f"{name} contains a NUL character; remove this character, or store the text in a field"
        )
    utf8(value, name)
    return str(value)


def utf8(value: str, name: str) -> bytes:
    """Return a text as UTF-8; raise InvalidValue for lone surrogates."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(
            f"{name} contains a lone surrogate; encode the text with errors='replace', store it as "
            "bytes in a field, or, unless it is an id, open the database with text='replace'"
        ) from None


def names(value: Any, name: str) -> tuple[str, ...]:
    """Return a tuple of names."""
    if not isinstance(value, (tuple, list)) or not all(
        isinstance(element, str) for element in value
    ):
        raise InvalidValue(f"{name} must be a tuple of names, got {value!r}")
    return tuple(value)


def name(value: Any, what: str) -> str:
    """Return a name if every database can store it and it has 1 to 255 bytes."""
    checked = text(value, f"the name of {what}")
    if not 0 < len(checked.encode()) <= 255:
        raise InvalidValue(f"the name of {what} must have 1 to 255 bytes, got {value!r}")
    return checked


def score_name(value: Any) -> str:
    """Return the name of a score if queries can name it."""
    if not isinstance(value, str) or not SCORE.fullmatch(f"scores.{value}"):
        raise InvalidValue(
            f"the name of a score must be 1 to 64 letters, digits and _, got {value!r}; pass the "
            "version of a judge as by="
        )
    return value


def shard(value: Any) -> tuple[int, int]:
    """Return a checked pair (k, n), which selects the k-th of n parts."""
    sound = (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(isinstance(integer, (int, np.integer)) for integer in value)
    )
    if not sound or not 0 <= value[0] < value[1]:
        raise InvalidValue(
            f"shard must be a pair (k, n) of integers with 0 <= k < n, got {value!r}"
        )
    return int(value[0]), int(value[1])


def flush_limits(steps: Any, nbytes: Any, seconds: Any) -> tuple[int, int, float]:
    """Check the limits at which a writer flushes."""
    return (
        whole(steps, "flush_steps", 1),
        whole(nbytes, "flush_bytes", 1),
        number(seconds, "flush_seconds", 0),
    )


def have_alike_shapes(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes are equal apart from axes of length 1."""
    return shape == other or [n for n in shape if n != 1] == [n for n in other if n != 1]


def positions(values: Any) -> np.ndarray:
    """Return positions as an int64 array with one dimension."""
    if isinstance(values, str):
        raise InvalidValue(
            f"positions must be integers, got {values!r}; pass other arguments by keyword"
        )
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidValue(
            "positions must be a 1-D sequence of integers, got sequences of different lengths"
        ) from None
    except (TypeError, RuntimeError) as error:  # a tensor on another device or with a gradient
        raise InvalidValue(
            f"positions must be integers that NumPy can read ({error}); convert a tensor with "
            "positions.detach().cpu()"
        ) from None
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidValue(f"positions must be 1-D integers, got {array.dtype}{list(array.shape)}")
    if array.dtype == np.uint64 and (array >= 2**63).any():
        raise InvalidValue(f"positions must fit 64 bits, got {array.max()}")
    return array.astype(np.int64)


def priorities(positions_: Any, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return positions, int64, and their priorities, float64, both with one dimension."""
    are_arrays = type(positions_) is type(values) is np.ndarray
    are_arrays = are_arrays and positions_.ndim == 1 and positions_.shape == values.shape
    if are_arrays and positions_.dtype == np.int64 and values.dtype.kind == "f":
        numbers = values.astype(np.float64, copy=False)
        _check_priorities(numbers)
        return positions_, numbers  # the usual case
    try:
        wanted = positions(np.asarray(positions_).reshape(-1))
        numbers = np.asarray(values, np.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor with gradient
        raise InvalidValue(
            f"positions and priorities must be numbers ({error}); pass batch['position'] first, "
            "and then one priority for each position"
        ) from None
    if not have_alike_shapes(np.shape(positions_), np.shape(values)):
        raise InvalidValue(
            f"positions have shape {list(np.shape(positions_))} but priorities have shape "
            f"{list(np.shape(values))}; pass one priority for each position, in the same order"
        )
    _check_priorities(numbers)
    return wanted, numbers


def _check_priorities(values: np.ndarray) -> None:
    # `argmin` and `argmax` take a third of the time of `min` and `max`, and find NaN, too.
    if len(values) and not (values[values.argmin()] >= 0 and values[values.argmax()] < np.inf):
        raise InvalidValue(
            "priorities must be finite and at least 0, got a negative, NaN or infinite value; pass "
            "the absolute TD errors"
        )


def capacity(value: Any) -> int | None:
    """Check a capacity, an int from 1 or None for unlimited, and return it."""
    if value is None:
        return None
    try:
        return whole(value, "capacity", 1)
    except InvalidValue as error:
        raise InvalidValue(f"{error}; pass None for no limit") from None


LOGPROBS = "logprobs"  # the field of `TOKEN_FIELDS` with log-probabilities
LOGPROB_ROUNDING = 1e-3  # accepted, because rounding may turn 0 into a slightly positive value


def are_logprobs(values: np.ndarray) -> np.ndarray:
    """Return which values can be log-probabilities: finite and at most `LOGPROB_ROUNDING`."""
    are_valid: np.ndarray = np.isfinite(values) & (values <= LOGPROB_ROUNDING)
    return are_valid


def logprobs(values: Any, output_mask: Any) -> None:
    """Raise InvalidValue unless the values of all tokens in the mask are log-probabilities."""
    array = np.asarray(values)
    invalid = ~are_logprobs(array) if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)
    if invalid.any() and output_mask is not None and len(output_mask) == len(array):
        invalid &= np.asarray(output_mask, np.bool_)
    if invalid.any():
        token = int(invalid.argmax())
        raise InvalidValue(
            f"{LOGPROBS}[{token}] is {array[token]}, but must be finite and at most 0; for tokens "
            "that the model did not generate, also pass output_mask with False"
        )
