"""Queries as text, such as ``reward > 0.5 and tags.split = 'train'``: parse and write them.

The result of the parser is the condition that `QueryBuilder.build` returns. Values are bound as
parameters of a statement, so no part of the text is executed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from expdb.errors import QueryError
from expdb.names import EPISODE_VIEW_COLUMNS, VIEW_COLUMNS

LONGEST = 1_000_000  # characters of a query
DEEPEST = 100  # levels of nested parentheses
LONGEST_SHOWN = 120  # characters of a query in an error message

_FLAGS = re.IGNORECASE | re.ASCII
_NAME = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_OPERATOR = re.compile(r"==|!=|<>|>=|<=|[=><~]")
_JOIN = re.compile(r"\s*\b(and|or)(?=[\s(]|$)", re.IGNORECASE)
_PARAMETER = re.compile(r":([A-Za-z_]\w*)", re.ASCII)
_WORD_OPERATOR = re.compile(r"(not\s+in|not\s+like|in|like|is\s+not|is)\b", re.IGNORECASE)
_QUOTED = re.compile(r"'((?:[^']|'')*)'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NUMBER = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:Infinity|inf|NaN|nan)", _FLAGS
)
# Text may be a word without quotation marks; a pattern may also contain percent signs.
_BARE = re.compile(r"[^\W\d][\w.:/@#*+-]*")
_BARE_PATTERN = re.compile(r"[\w.:/@#*+%\\-]+")
_END_OF_VALUE = re.compile(r"[\s),]|$")
_OPERATORS = {
    "=": "eq", "==": "eq", "!=": "ne", "<>": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte",
    "~": "like",
}  # fmt: skip
_SYMBOLS = {"eq": "=", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_WORDS = {"in": "in", "not in": "not_in", "like": "like", "not like": "not_like"}
_CONSTANTS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "None", "NULL"), None),
}
_KEYWORDS = ("and", "or", "not", "in", "is", "like")
_COLUMNS = {*VIEW_COLUMNS, *EPISODE_VIEW_COLUMNS}

_QUOTE = "put text in quotation marks or pass it as a parameter"
_REMEDY = f"{_QUOTE}, and join conditions with 'and' or 'or'"

Comparison = dict[str, Any]


class Query(NamedTuple):
    """A parsed query."""

    built: dict[str, Any]  # the condition in the format of `QueryBuilder.build`
    text: str
    comparisons: list[tuple[int, Comparison]]  # with their positions in the text


def parse(text: str, parameters: Mapping[str, Any]) -> Query:
    """Parse a query; raise QueryError with the position of the first mistake.

    `parameters` maps names to values, such as ``task`` for ``:task``.
    """
    if len(text) > LONGEST:
        raise QueryError(
            f"the query must have at most {LONGEST:,} characters, got {len(text):,}; pass long "
            "lists as parameters, such as ('task_id in :tasks', {'tasks': tasks})"
        )
    if not isinstance(parameters, Mapping):
        raise QueryError(
            f"parameters must be a mapping such as {{'task': name}}, got {parameters!r}"
        )
    parser = _Parser(text, parameters)
    return Query(parser.parse(), text, parser.comparisons)


class _Parser:
    """Parse a text by recursive descent."""

    def __init__(self, text: str, parameters: Mapping[str, Any]):
        self._text, self._parameters, self._at, self._depth = text, parameters, 0, 0
        self._used: set[str] = set()
        self.comparisons: list[tuple[int, Comparison]] = []

    def parse(self) -> dict[str, Any]:
        built = self._joined("or")
        self._skip_spaces()
        if self._at < len(self._text):
            word = self._text[self._at : self._at + 40].split(maxsplit=1)[0]
            if word[0] == ")":
                raise self._error("unmatched ')'", "remove it, or add '(' before it")
            remedy = f"{_REMEDY}, and write '' for an apostrophe in text"
            raise self._error(f"unexpected {word!r}", remedy)
        if unused := [name for name in self._parameters if name not in self._used]:
            raise QueryError(
                f"the query does not use the parameter {unused[0]!r}; add :{unused[0]} to the text "
                f"or remove the parameter (query: {_shown(self._text)})"
            )
        return built

    def _joined(self, word: str) -> dict[str, Any]:
        """Parse conditions that are joined by `word`; `and` binds more tightly than `or`."""
        built = self._joined("and") if word == "or" else self._condition()
        while (match := _JOIN.match(self._text, self._at)) and match[1].lower() == word:
            self._at = match.end()
            following = self._joined("and") if word == "or" else self._condition()
            built = {f"{word}_": [built, following]}
        return built

    def _condition(self) -> dict[str, Any]:
        self._skip_spaces()
        if not self._text.startswith("(", self._at):
            return self._comparison()
        if self._depth == DEEPEST:
            remedy = f"use at most {DEEPEST} levels"
            raise self._error("parentheses are nested too deeply", remedy)
        begin, self._at, self._depth = self._at, self._at + 1, self._depth + 1
        built = self._joined("or")
        self._skip_spaces()
        if not self._text.startswith(")", self._at):
            if self._at == len(self._text):
                raise self._error("this parenthesis is not closed", "add ')'", begin)
            raise self._error("expected 'and', 'or' or ')'", _REMEDY)
        self._at, self._depth = self._at + 1, self._depth - 1
        return built

    def _comparison(self) -> Comparison:
        begin = self._at
        name = _NAME.match(self._text, begin)
        if name is not None and name[0].lower() == "not":
            what = "'not' is allowed only before 'in', 'like' or 'null'"
            raise self._error(what, "write the opposite operator, such as != or not in")
        if name is None or name[0].lower() in ("and", "or"):
            remedy = "write NAME OPERATOR VALUE, such as reward >= 0.5"
            raise self._error("expected a condition", remedy)
        self._at = name.end()
        self._skip_spaces()
        node = {"field": name[0], **self._operation()}
        self.comparisons.append((begin, node))
        return node

    def _operation(self) -> dict[str, Any]:
        """Parse an operator and its value."""
        text = self._text
        if match := _OPERATOR.match(text, self._at):
            self._at, op = match.end(), _OPERATORS[match[0]]
            value = self._value(op)
            if value is None and op in ("eq", "ne"):
                return {"op": "is_null" if op == "eq" else "is_not_null"}
            return {"value": value, "op": op}
        match = _WORD_OPERATOR.match(text, self._at)
        if match is None or not match[0].isascii():  # the pattern also matches a dotless i
            remedy = "use one of =, !=, >, >=, <, <=, ~, in, like, is null or is not null"
            if not text[self._at :].strip() and not self.comparisons:
                remedy += f", or pass an id by keyword, such as episode_id={text.strip()!r}"
            raise self._error("expected an operator", remedy)
        word = " ".join(match[0].lower().split())
        self._at = match.end()
        if word.startswith("is"):
            self._skip_spaces()
            if text[self._at : self._at + 4].lower() != "null":
                raise self._error(f"expected 'null' after {word!r}", "compare other values with =")
            self._at += 4
            return {"op": "is_null" if word == "is" else "is_not_null"}
        op = _WORDS[word]
        return {"value": self._value(op) if word.endswith("like") else self._values(), "op": op}

    def _values(self) -> Any:
        """Parse the list of `in`: values in parentheses, or a parameter."""
        self._skip_spaces()
        if self._text.startswith(":", self._at):
            return self._parameter()
        if not self._text.startswith("(", self._at):
            raise self._error("expected a list", "write the values in parentheses: (1, 2, 3)")
        begin, values = self._at, list[Any]()
        self._at += 1
        while True:
            self._skip_spaces()
            if self._text.startswith(")", self._at):
                break
            if self._at == len(self._text):
                raise self._error("this list is not closed", "add ')'", begin)
            is_parameter = self._text.startswith(":", self._at)
            value = self._value("in")
            values += value if is_parameter and isinstance(value, list) else [value]
            self._skip_spaces()
            if self._text.startswith(",", self._at):
                self._at += 1
            elif not self._text.startswith(")", self._at) and self._at < len(self._text):
                raise self._error(
                    "expected ',' or ')'", f"separate values with commas, and {_QUOTE}"
                )
        self._at += 1
        return values

    def _value(self, op: str) -> Any:
        """Parse the value of an operator: quoted text, JSON, a parameter or a word."""
        self._skip_spaces()
        text, begin = self._text, self._at
        if text.startswith(":", begin):
            return self._parameter()
        if match := _QUOTED.match(text, begin):
            self._at = match.end()
            if match[1] is not None:
                return match[1].replace("''", "'")
            try:
                return json.loads(match[0], strict=False)
            except ValueError:
                remedy = "use single quotation marks, where a backslash is an ordinary character"
                raise self._error("invalid escape sequence in text", remedy, begin) from None
        if text.startswith(("'", '"'), begin):
            raise self._error("this quotation mark is not closed", f"add {text[begin]}")
        is_pattern = op in ("like", "not_like")
        number = None if is_pattern else _NUMBER.match(text, begin)
        if number and _END_OF_VALUE.match(text, number.end()):
            self._at = number.end()
            return _number_of(number[0])
        match = (_BARE_PATTERN if is_pattern else _BARE).match(text, begin)
        if (match is None and _END_OF_VALUE.match(text, begin)) or (
            match is not None and match[0].lower() in _KEYWORDS
        ):
            raise self._error("expected a value", "write a number, 'text', true, false or null")
        if match is None or not _END_OF_VALUE.match(text, match.end()):
            raise self._error("this value must be in quotation marks", _REMEDY)
        self._at = match.end()
        if match[0] in _CONSTANTS and not is_pattern:
            return _CONSTANTS[match[0]]
        if (lower := match[0].lower()) in _CONSTANTS or lower == "none":
            remedy = f"write {'null' if lower == 'none' else lower}, or {_QUOTE}"
            raise self._error(f"{match[0]!r} is neither a constant nor text", remedy, begin)
        if is_pattern:
            return match[0]
        if match[0] in _COLUMNS or match[0].startswith(("tags.", "episode_tags.", "scores.")):
            what = f"{match[0]!r} is a column, and columns are not compared with each other"
            raise self._error(what, _QUOTE, begin)
        if op not in ("eq", "ne", "in"):
            raise self._error("expected a number", _QUOTE, begin)
        return match[0]

    def _parameter(self) -> Any:
        match = _PARAMETER.match(self._text, self._at)
        if match is None:
            remedy = "write a parameter as :name, or put text in quotation marks"
            raise self._error("expected a name after ':'", remedy)
        if (name := match[1]) not in self._parameters:
            remedy = (
                f"pass the query as (text, {{{name!r}: value}}), or put text that begins with ':' "
                "in quotation marks"
            )
            if f":{name}" in self._parameters:
                remedy = f"name it {name!r} in the mapping, without the colon"
            raise self._error(f"the parameter :{name} has no value", remedy)
        value = self._parameters[name]
        if isinstance(value, Iterator):  # a second call would get an empty list
            raise self._error(f"the parameter :{name} is an iterator", "pass a list")
        self._at = match.end()
        self._used.add(name)
        return plain_value(value)

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _error(self, problem: str, remedy: str, at: int | None = None) -> QueryError:
        position = self._at if at is None else at
        return located(QueryError(f"{problem}; {remedy}"), self._text, position)


def located(error: QueryError, text: str, position: int) -> QueryError:
    """Return an error with the position of the mistake in a text."""
    return QueryError(f"{error} (at character {position + 1} of {_shown(text, position)})")


def _shown(text: str, position: int = 0) -> str:
    """Return the part of a text around a position as one line."""
    begin = max(0, min(position - LONGEST_SHOWN // 2, len(text) - LONGEST_SHOWN))
    part = text[begin : begin + LONGEST_SHOWN]
    return f"{'…' if begin else ''}{part!r}{'…' if begin + len(part) < len(text) else ''}"


def _number_of(text: str) -> int | float:
    digits = text.lstrip("+-")
    # int() raises ValueError for thousands of digits; such numbers fit no column.
    return int(text) if digits.isdigit() and len(digits) < 100 else float(text)


def plain_value(value: Any) -> Any:
    """Convert NumPy scalars to Python scalars, and iterables except text to lists."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping)):
        return [plain_value(element) for element in value]
    return value


def write(node: Mapping[str, Any]) -> str:
    """Convert a condition from `QueryBuilder.build` to text; the inverse of `parse`."""
    parts: list[str] = []  # from right to left; a loop, because recursion fails on long chains
    while "and_" in node or "or_" in node:
        word = "and" if "and_" in node else "or"
        node, right = node[f"{word}_"]
        parts.append(f" {word} {_part(right)}")
        if f"{word}_" not in node:  # a chain of one operator needs no parentheses
            return "".join([_part(node), *reversed(parts)])
    name, op = node["field"], node["op"]
    if op in ("is_null", "is_not_null"):
        return f"{name} is {'null' if op == 'is_null' else 'not null'}"
    value = node["value"]
    if op in _SYMBOLS:
        return f"{name} {_SYMBOLS[op]} {_written(value)}"
    values = f"({', '.join(map(_written, value))})" if op in ("in", "not_in") else _written(value)
    return f"{name} {op.replace('_', ' ')} {values}"


def _part(node: Mapping[str, Any]) -> str:
    return f"({write(node)})" if "and_" in node or "or_" in node else write(node)


def _written(value: Any) -> str:
    """Return a value as text that `parse` reads."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if value is None:
        raise QueryError("cannot compare a column with None; use is_null() or is_not_null()")
    return json.dumps(value, default=str)
