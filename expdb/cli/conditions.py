"""Conditions as they are typed: `reward>=0.5`."""

import json
import re
from collections.abc import Sequence
from typing import Any

import click

import expdb

_OPERATORS = {"=": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte", "~": "like"}


_NULL = {"=": "is_null", "!=": "is_not_null"}


_CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|>=|<=|=|>|<|~)\s*(.*?)\s*", re.DOTALL)


def condition_of(conditions: Sequence[str], where: str | None) -> Any:
    """Return the query that conditions, or --where, make; None for neither."""
    if where is not None and conditions:
        raise click.UsageError("give conditions or --where, not both")
    if where is not None and where.lstrip()[:1] not in ("{", "["):
        conditions, where = [where], None
    if where is not None:
        try:
            return json.loads(where)
        except ValueError as error:
            raise click.BadParameter(
                f"--where is not valid JSON ({error}); write a condition such as "
                '"reward >= 0.5", or a query as JSON'
            ) from None
    built = expdb.QueryBuilder()
    for index, text in enumerate(conditions):
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise click.BadParameter(f'{text!r}: write NAME OP VALUE, such as "reward >= 0.5"')
        name, operator, value = match.groups()
        built = built.and_() if index else built
        given = value if operator == "~" else value_of(value)
        if given is None and operator in _NULL:
            getattr(built, _NULL[operator])(name)
        else:
            getattr(built, _OPERATORS[operator])(name, given)
    return built if conditions else None


_PYTHON = {"True": True, "False": False, "None": None}


def value_of(text: str) -> Any:
    """Return a value as it is typed: a number, True, None, else text."""
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
