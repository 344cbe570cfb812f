"""Parse JSON from the tables, which a corrupted or malicious file may have altered; write JSON."""

import json
from typing import Any

from expdb.errors import DatabaseDamaged

LARGEST = 1e300  # limit of stored numbers, so that sums are finite

compact_json = json.JSONEncoder(separators=(",", ":")).encode  # without spaces


def parse(text: Any, what: str) -> Any:
    """Parse stored JSON; raise DatabaseDamaged, which names `what`, if it is unreadable."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(what, error) from None


def parse_object(text: Any, what: str) -> dict[str, Any]:
    """Return a stored JSON object."""
    value = parse(text, what)
    if not isinstance(value, dict):
        raise damaged(what, f"{type(value).__name__} instead of an object")
    return value


def parse_names(text: Any, what: str) -> list[str]:
    """Return a stored JSON array of strings."""
    value = parse(text, what)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise damaged(what, "not a list of strings")
    return value


def parse_numbers(text: Any, what: str) -> dict[str, float]:
    """Return a stored JSON object whose values are finite numbers."""
    numbers = parse_object(text, what)
    for name, value in numbers.items():
        if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
            raise damaged(what, f"{name!r} is {str(value)[:40]!r} instead of a number")
        if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
            raise damaged(what, f"invalid name {name!r}")
    return numbers


def damaged(what: str, why: object) -> DatabaseDamaged:
    """Return the error for a stored value that cannot be read."""
    return DatabaseDamaged(f"{what} cannot be read ({why}); restore a backup")


def json_text(value: Any, separators: tuple[str, str] | None = None) -> str:
    """Return a stored JSON value as text that UTF-8 can encode; lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=separators)
    return text
