"""Build queries from the arguments of commands, such as `reward>=0.5`."""

import json
from collections.abc import Sequence
from typing import Any

import click

import expdb


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
    builder, *others = queries
    if others:
        builder = expdb.QueryBuilder().nested(builder)
    for query in others:
        builder = builder.and_().nested(query)
    return builder


def parse_query(text: str) -> "expdb.QueryBuilder":
    """Return the query of a text; raise BadParameter if it is invalid."""
    try:
        return expdb.QueryBuilder.from_text(text)
    except expdb.QueryError as error:
        raise click.BadParameter(str(error)) from None


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
