"""Flatten mappings that hold arrays into fields, and infer the types of new fields."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

from expdb import errors
from expdb.chunks.fields import Field, check_name, warn_of_likely_name
from expdb.chunks.infer import holds_array, infer


def flatten_step(
    values: Mapping[str, Any], types: Mapping[str, Field], nested: Container[str]
) -> dict[str, Any]:
    """Return the values of a step by field: {"obs": {"x": array}} has the field "obs.x".

    Raise InvalidValue or FieldMismatch if a name is not valid, or two values have the same name.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise errors.InvalidValue(f"field name must be text, got {name!r}")
        if name not in types:
            check_name(name)
        for field, inner in _leaves(name, value, types, nested):
            if field in flat:
                raise errors.InvalidValue(
                    f"field {field!r} is passed twice, once nested and once by its dotted "
                    "name; pass the field only once"
                )
            flat[field] = inner
    return flat


def _leaves(
    name: str, value: Any, types: Mapping[str, Field], nested: Container[str], depth: int = 0
) -> Iterator[tuple[str, Any]]:
    is_apart = name in nested
    if (
        name not in types
        and isinstance(value, Mapping)
        and (is_apart or holds_array(value, name.partition(".")[0], depth))
    ):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise errors.InvalidValue(
                    f"{name} has the key {key!r}, which is not text and cannot name a field; "
                    "convert it to text"
                )
            yield from _leaves(f"{name}.{key}", inner, types, nested, depth + 1)
        return
    if is_apart and value is not None:
        raise errors.FieldMismatch(
            f"field {name!r} must be a mapping with arrays, got {type(value).__name__}; use "
            "another name"
        )
    yield name, value


def new_types(flat: dict[str, Any], types: Mapping[str, Field]) -> dict[str, Field]:
    """Return the type of each new field; remove fields from `flat` if their type is unknown."""
    new: dict[str, Field] = {}
    unknown = [name for name in flat if name not in types]
    absent = [name for name in types if name not in flat] if unknown else []
    for name in unknown:
        value = flat[name]
        if value is None:
            del flat[name]  # its type is unknown until a first value
        elif isinstance(value, (list, tuple)) and not value:  # the type of its elements is unknown
            del flat[name]
            errors.warn(
                f"the first value of field {name!r} is an empty list, so its type is unknown and "
                "the step is stored without the field; declare the field with db.buffer(name, "
                f'fields={{{name!r}: "json"}}) for messages, or expdb.Field("int64", '
                "shape=(None,)) for numbers"
            )
        else:
            check_name(name)
            new[name] = infer(value, name)
            warn_of_likely_name(name, new[name], absent)
    return new
