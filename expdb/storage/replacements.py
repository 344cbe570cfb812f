"""Replace characters that cannot be stored, for handles with ``text="replace"``."""

import re
from collections.abc import Mapping
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")
_SURROGATES_AND_NUL = re.compile("[\0\ud800-\udfff]")


class Replacements:
    """Replace characters by U+FFFD, and count them."""

    def __init__(self) -> None:
        self.count = 0

    def in_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a step without lone surrogates in text."""
        return {name: self._replace(value, _SURROGATES) for name, value in values.items()}

    def in_columns(self, columns: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the columns of a step without lone surrogates and NUL in text and tags."""
        return tuple([self._replace(value, _SURROGATES_AND_NUL) for value in columns])

    def _replace(self, value: Any, characters: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            replaced, count = characters.subn("\ufffd", value)
            self.count += count
            return replaced
        if isinstance(value, Mapping):
            return {
                self._replace(key, characters): self._replace(inner, characters)
                for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._replace(inner, characters) for inner in value]
        return value
