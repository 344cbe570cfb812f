"""Parse conditions written as text, such as `reward>=0.5`."""

import json
import re
from collections.abc import Sequence
from typing import Any

import click

import expdb

_OPERATORS = {
    "=": "eq",
    "==": "eq",
    "!=": "ne",
    ">": "gt",
    ">=": "gte",
    "<": "lt",
    "<=": "lte",
    "~": "like",
}


_NULL = {"=": "is_null", "==": "is_null", "!=": "is_not_null"}


_CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|>=|<=|==|=|>|<|~)\s*(.*?)\s*", re.DOTALL)


def condition_of(conditions: Sequence[str], where_options: Sequence[str]) -> Any:
    """Return a query built from conditions or --where options, or None if there are none."""
    if where_options and conditions:
        raise click.UsageError("conditions and --where cannot be combined; remove one of the two")
    is_json = [option.lstrip()[:1] in ("{", "[") for option in where_options]
    if any(is_json) and len(where_options) > 1:
        raise click.UsageError("a JSON query must be the only --where option; remove the others")
    if not any(is_json):
        conditions = [*conditions, *where_options]
    else:
        try:
            return json.loads(where_options[0])
        except ValueError as error:
            raise click.BadParameter(
                f"--where is not valid JSON ({error}); write a condition such as "
                '"reward >= 0.5", or a JSON query'
            ) from None
    queries = [parse_query(text) for text in conditions]
    if not queries:
        return None
    return _join(queries, "and_")


def parse_query(text: str) -> "expdb.QueryBuilder":
    """Return the query of conditions that are joined by `and` and `or`; `and` is evaluated first.

    Raise BadParameter if a condition is invalid.
    """
    queries = [_all_of(split_at(alternative, "and")) for alternative in split_at(text, "or")]
    return _join(queries, "or_")


def _join(queries: "Sequence[expdb.QueryBuilder]", operator: str) -> "expdb.QueryBuilder":
    """Return a query that joins queries with `and_` or `or_`."""
    builder, *others = queries
    if others:
        builder = expdb.QueryBuilder().nested(builder)
    for query in others:
        builder = getattr(builder, operator)().nested(query)
    return builder


def _all_of(conditions: Sequence[str]) -> "expdb.QueryBuilder":
    """Return a query that matches if all conditions match."""
    built = expdb.QueryBuilder()
    for index, text in enumerate(conditions):
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise click.BadParameter(
                f'{text!r} is not a condition; write NAME OP VALUE, such as "reward >= 0.5", and '
                "quote a value that contains the word and or the word or"
            )
        name, operator, value = match.groups()
        built = built.and_() if index else built
        operand = value if operator == "~" else value_of(value)
        if operand is None and operator in _NULL:
            getattr(built, _NULL[operator])(name)
        else:
            getattr(built, _OPERATORS[operator])(name, operand)
    return built


def split_at(text: str, word: str) -> list[str]:
    """Split a text at each `word` that is not inside of quotation marks.

    An apostrophe after a letter, as in "don't", is no quotation mark.
    """
    parts, quote, start, index = [], "", 0, 0
    separator = f" {word} "
    while index < len(text):
        character = text[index]
        if quote:
            if character == "\\" and quote == '"':
                index += 1
            elif character == quote:
                quote = ""
        elif character in "\"'" and not text[max(0, index - 1) : index].isalnum():
            quote = character
        elif text[index : index + len(separator)].lower() == separator:
            parts.append(text[start:index])
            start = index + len(separator)
            index = start - 1
            continue
        index += 1
    return [*parts, text[start:]]


_PYTHON = {"True": True, "False": False, "None": None}


def value_of(text: str) -> Any:
    """Parse text as JSON, True, False, None or quoted text; return any other text unchanged."""
    if text in _PYTHON:
        return _PYTHON[text]
    if len(text) > 1 and text[0] == text[-1] == "'":  # as in SQL
        return text[1:-1].replace("''", "'")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
