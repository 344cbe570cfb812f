"""Queries as text, such as ``reward > 0.5 and tags.split = 'train'``: parse and write them.

The result of the parser is the condition that `QueryBuilder.build` returns. Values are bound as
parameters of a statement, so no part of the text is executed.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from expdb.errors import QueryError

LONGEST = 1_000_000  # characters of a query
DEEPEST = 50  # parentheses within each other
LONGEST_SHOWN = 120  # characters of a query in an error message

_NAME = re.compile(r"[A-Za-z_][\w.]*")
_OPERATOR = re.compile(r"==|!=|<>|>=|<=|[=><~]")
_JOIN = re.compile(r"\s*\b(and|or)(?=[\s(]|$)", re.IGNORECASE)
_PARAMETER = re.compile(r":([A-Za-z_]\w*)")
_WORD = re.compile(r"(not\s+in|not\s+like|in|like|is\s+not|is)\b", re.IGNORECASE)
_QUOTED = re.compile(r"'((?:[^']|'')*)'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
# Text without quotation marks ends before `and`, `or` or a closing parenthesis.
_BARE = re.compile(r"(?:(?!\s+(?:and|or)(?:[\s(]|$))[^()=<>~;\"])+", re.IGNORECASE)
# Other characters, and a comma or a percent sign after a number, are probably mistakes.
_PLAIN = re.compile(r"(?!.*--)(?![\d.]+[,%])[\w\s.,:/@#+*%?!'-]+", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_LISTED = re.compile(r"[^\s,()'\"]+")
_OPERATORS = {
    "=": "eq", "==": "eq", "!=": "ne", "<>": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte",
    "~": "like",
}  # fmt: skip
_SYMBOLS = {"eq": "=", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_WORDS = {"in": "in", "not in": "not_in", "like": "like", "not like": "not_like"}
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}

_REMEDY = (
    "put text in quotation marks or pass it as a parameter, and join conditions with 'and' or 'or'"
)

Comparison = dict[str, Any]


class Query(NamedTuple):
    """A parsed text."""

    built: dict[str, Any]  # the condition, as of `QueryBuilder.build`
    text: str
    comparisons: list[tuple[int, Comparison]]  # with their positions in the text


def parse(text: str, parameters: Mapping[str, Any]) -> Query:
    """Parse a query; raise QueryError with the position of the first mistake.

    `parameters` are the values of names such as ``:task``.
    """
    if len(text) > LONGEST:
        raise QueryError(
            f"the query has {len(text):,} characters, at most {LONGEST:,} are allowed; pass long "
            "lists as parameters, such as ('task_id in :tasks', {'tasks': tasks})"
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
            word = self._text[self._at :].split(maxsplit=1)[0]
            what = "no parenthesis is open" if word[0] == ")" else f"unexpected {word[:40]!r}"
            raise self._error(what, f"{_REMEDY}; write '' for an apostrophe in text")
        if unused := self._parameters.keys() - self._used:
            raise QueryError(
                f"the query does not use the parameter {min(unused)!r}; write :{min(unused)} in "
                f"the text, or remove it: {_shown(self._text)}"
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
            raise self._error("too many parentheses", f"use at most {DEEPEST} within each other")
        begin, self._at, self._depth = self._at, self._at + 1, self._depth + 1
        built = self._joined("or")
        self._skip_spaces()
        if not self._text.startswith(")", self._at):
            if self._at == len(self._text):
                self._at = begin
                raise self._error("this parenthesis is not closed", "add )")
            raise self._error("expected 'and', 'or' or )", _REMEDY)
        self._at, self._depth = self._at + 1, self._depth - 1
        return built

    def _comparison(self) -> Comparison:
        begin = self._at
        name = _NAME.match(self._text, begin)
        if name is None or name[0].lower() in ("and", "or", "not"):
            what = "expected a condition"
            if name is not None and name[0].lower() == "not":
                what = "not must stand before in, like or null"
                raise self._error(what, "write the opposite operator, such as != or not in")
            raise self._error(what, "write NAME OPERATOR VALUE, such as reward >= 0.5")
        self._at = name.end()
        self._skip_spaces()
        node = {"field": name[0], **self._operation()}
        self.comparisons.append((begin, node))
        return node

    def _operation(self) -> dict[str, Any]:
        """Parse an operator and its value."""
        if match := _OPERATOR.match(self._text, self._at):
            self._at = match.end()
            op = _OPERATORS[match[0]]
            begin, value = self._at, self._value(reads_json=op != "like")
            if op not in ("eq", "ne", "like") and isinstance(value, str) and self._is_bare(begin):
                self._at = begin
                raise self._error("expected a number", _REMEDY)
            if value is None and op in ("eq", "ne"):
                return {"op": "is_null" if op == "eq" else "is_not_null"}
            return {"value": value, "op": op}
        match = _WORD.match(self._text, self._at)
        word = " ".join(match[0].lower().split()) if match else ""
        if match is None:
            is_word = not self._text[self._at :].strip() and not self.comparisons
            hint = f", or pass an id by keyword, such as episode_id={self._text.strip()!r}"
            raise self._error(
                "expected an operator",
                "use one of =, !=, >, >=, <, <=, ~, in, like, is null or is not null"
                f"{hint if is_word else ''}",
            )
        self._at = match.end()
        if word.startswith("is"):
            self._skip_spaces()
            if self._text[self._at : self._at + 4].lower() != "null":
                raise self._error(f"expected null after {word}", "compare other values with =")
            self._at += 4
            return {"op": "is_null" if word == "is" else "is_not_null"}
        value = self._values() if word.endswith("in") else self._value(reads_json=False)
        return {"value": value, "op": _WORDS[word]}

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
                self._at = begin
                raise self._error("this list is not closed", "add )")
            is_list = self._text.startswith(":", self._at)
            value = self._value(_LISTED)
            values += value if is_list and isinstance(value, (list, tuple)) else [value]
            self._skip_spaces()
            if self._text.startswith(",", self._at):
                self._at += 1
            elif not self._text.startswith(")", self._at) and self._at < len(self._text):
                raise self._error("expected , or )", "separate values by commas, and quote text")
        self._at += 1
        return values

    def _value(self, plain: re.Pattern[str] = _BARE, *, reads_json: bool = True) -> Any:
        """Parse a value: quoted text, JSON, a parameter, or text without quotation marks."""
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
                self._at = begin
                raise self._error("this text has an invalid escape", "use '...'") from None
        if text[begin : begin + 1] in ("'", '"') and begin < len(text):
            raise self._error("this quotation mark is not closed", f"add {text[begin]}")
        match = plain.match(text, begin)
        if match is None or not match[0].strip():
            raise self._error("expected a value", "write a number, 'text', true, false or null")
        raw = match[0].rstrip()
        self._at = begin + len(raw)
        if text[self._at : self._at + 1] not in ("", ")", ",") and not text[self._at].isspace():
            self._at = begin
            raise self._error("this value has special characters", _REMEDY)
        is_plain = _PLAIN.fullmatch(raw) is not None or not reads_json
        if not is_plain or (" " in raw and text[match.end() : match.end() + 1] in tuple("=<>~;(")):
            self._at = begin
            raise self._error("this value has special characters", _REMEDY)
        return value_of(raw) if reads_json else raw

    def _is_bare(self, begin: int) -> bool:
        """Return whether the value from `begin` on is neither quoted nor a parameter."""
        return self._text[begin:].lstrip()[:1] not in ("'", '"', ":")

    def _parameter(self) -> Any:
        match = _PARAMETER.match(self._text, self._at)
        if match is None:
            raise self._error("expected a name after :", f"write it as :name; {_REMEDY}")
        if (name := match[1]) not in self._parameters:
            remedy = f"pass the query as (text, {{{name!r}: value}}), or quote text: ':...'"
            if f":{name}" in self._parameters:
                remedy = f"name it {name!r} in the mapping, without the colon"
            raise self._error(f"the parameter :{name} has no value", remedy)
        self._at = match.end()
        self._used.add(name)
        value = self._parameters[name]
        return sorted(value) if isinstance(value, (set, frozenset)) else value

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _error(self, problem: str, remedy: str) -> QueryError:
        return located(QueryError(f"{problem}; {remedy}"), self._text, self._at)


def located(error: QueryError, text: str, position: int) -> QueryError:
    """Return an error with the position of the mistake in a text."""
    return QueryError(f"{error} (at character {position + 1} of {_shown(text, position)})")


def _shown(text: str, position: int = 0) -> str:
    """Return the part of a text around a position as one line."""
    begin = max(0, min(position - LONGEST_SHOWN // 2, len(text) - LONGEST_SHOWN))
    part = text[begin : begin + LONGEST_SHOWN]
    return f"{'…' if begin else ''}{part!r}{'…' if begin + len(part) < len(text) else ''}"


def value_of(text: str) -> Any:
    """Parse text as JSON, true, false, null or none; return any other text unchanged."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def write(node: Mapping[str, Any]) -> str:
    """Return a condition, as of `QueryBuilder.build`, as text; the inverse of `parse`."""
    parts: list[str] = []  # in reverse order; a loop, because long chains nest to the left
    while "and_" in node or "or_" in node:
        word = "and" if "and_" in node else "or"
        node, right = node[f"{word}_"]
        parts.append(f" {word} {_part(right)}")
        if f"{word}_" not in node:  # a chain of one operator needs no parentheses
            return "".join([_part(node), *reversed(parts)])
    name, op = node["field"], node["op"]
    if op in ("is_null", "is_not_null"):
        return f"{name} is {'null' if op == 'is_null' else 'not null'}"
    if op in _SYMBOLS:
        return f"{name} {_SYMBOLS[op]} {_written(node['value'])}"
    value = node["value"]
    values = f"({', '.join(map(_written, value))})" if op in ("in", "not_in") else _written(value)
    return f"{name} {op.replace('_', ' ')} {values}"


def _part(node: Mapping[str, Any]) -> str:
    return f"({write(node)})" if "and_" in node or "or_" in node else write(node)


def _written(value: Any) -> str:
    """Return a value as text that `parse` reads."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, default=str)
