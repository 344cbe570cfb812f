"""Check and encode JSON values and tags.

A value that cannot be stored exactly raises InvalidValue with the name of its field or argument.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from expdb import checks
from expdb.chunks.infer import check_depth, plain
from expdb.errors import InvalidValue

MAX_VALUE_BYTES = 256 << 20


# -- fields ----------------------------------------------------------------------------------------


def check_size(size: int, name: str) -> None:
    """Raise InvalidValue if a value is too large for a chunk."""
    if size > MAX_VALUE_BYTES:
        raise InvalidValue(
            f"{name} has a value of {size} bytes, but the maximum is {MAX_VALUE_BYTES}; split "
            "the value over several steps or fields"
        )


def is_object(value: Any) -> bool:
    """Return whether a value becomes a JSON object: a dict, a dataclass or a pydantic model."""
    return (
        isinstance(value, dict)
        or hasattr(value, "model_dump")
        or hasattr(value, "__dataclass_fields__")
    )


def _check_json(value: Any, name: str, depth: int = 0) -> None:
    """Raise InvalidValue for keys that are not text, unknown objects and too deep nesting."""
    check_depth(name, depth)
    if isinstance(value, dict):
        for key, inner in value.items():
            if type(key) is not str:
                raise InvalidValue(
                    f"{name} has the key {key!r}, but JSON keys must be text; convert the key to "
                    "text"
                )
            if type(inner) is not str:
                _check_json(inner, name, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            if type(inner) is not str:
                _check_json(inner, name, depth + 1)
    elif not isinstance(value, (str, int, float, type(None))):
        converted = _converted(value, name)
        if not isinstance(converted, (int, float)):
            _check_json(converted, name, depth + 1)


def _converted(value: Any, name: str) -> Any:
    try:
        return plain(value)
    except TypeError as error:
        raise InvalidValue(f"{name}: {error}") from None


_dump = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain
).encode
# Tags are stored in a column, so they must not contain NUL or lone surrogates.
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\u(0000|[dD][89a-fA-F]..)")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def encode_json(value: Any, name: str) -> bytes:
    """Return a value as JSON in UTF-8; lone surrogates and NUL are escaped.

    Raise InvalidValue for values that JSON would change: NaN, keys that are not text, and unknown
    objects.
    """
    if is_object(value) and not isinstance(value, dict):
        value = _converted(value, name)
    _check_json(value, name)
    try:
        text = _dump(value)
    except ValueError as error:
        raise InvalidValue(
            f"{name} contains NaN or infinity, which JSON cannot represent ({error}); use None, "
            "or an array field"
        ) from None
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        if _SURROGATE_PAIR.search(text):  # JSON would make one character of the two
            checks.utf8(text, name)  # raises
        encoded = text.encode(errors="backslashreplace")
    check_size(len(encoded), name)
    return encoded


def encode_tags(value: Any, name: str) -> str:
    """Return a mapping of tags as JSON, or raise InvalidValue."""
    if not isinstance(value, Mapping):
        raise InvalidValue(
            f"{name} must be a mapping such as {{'difficulty': 'hard'}}, got {value!r}"
        )
    for key, tag in value.items():
        if (
            isinstance(tag, (int, np.integer))
            and not isinstance(tag, bool)
            and not -(2**63) <= int(tag) < 2**63
        ):
            raise InvalidValue(
                f"{name}: tag {key!r} is {tag}, which does not fit 64 bits; store the number as "
                "text"
            )
    text = encode_json(dict(value), name).decode()
    if "\\u" in text and (escaped := _ESCAPED.search(text)):
        raise InvalidValue(
            f"{name} contains a {'NUL character' if escaped[1] == '0000' else 'lone surrogate'}; "
            "remove this character, store the text in a field, or, for tags of steps, open the "
            "database with text='replace'"
        )
    return text
