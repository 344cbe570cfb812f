"""Check the final observation of an episode, which callers pass to `end`."""

from collections.abc import Collection, Iterable

from expdb import errors
from expdb.names import OBSERVATIONS, STEP_KEYS, nearest


def check_final(names: Collection[str], fields: Iterable[str]) -> None:
    """Raise InvalidValue if a final observation has unsuitable names.

    A final observation must not name a column of steps, or have a name that looks like a misspelt
    field of the steps. If the steps have observations, the final observation must have one too:
    otherwise, the next observation of the last step would be zeros.
    """
    for name in names:
        if name in STEP_KEYS:
            raise errors.InvalidValue(
                f"end({name}=...) got {name!r}, which belongs to a step; pass it to append() with "
                "the last step"
            )
    step_fields = set(fields)
    step_fields |= {name.split(".", 1)[0] for name in step_fields}
    seen = step_fields.intersection(OBSERVATIONS)
    unknown = sorted(set(names).intersection(OBSERVATIONS))
    if unknown and not seen:
        raise errors.InvalidValue(
            f"end({unknown[0]}=...): no step has a field {unknown[0]!r}; pass the fields of the "
            f"steps, which are {', '.join(sorted(step_fields)) or 'none'}"
        )
    if seen and not seen.intersection(name.split(".", 1)[0] for name in names):
        raise errors.InvalidValue(
            f"end({', '.join(names)}) lacks the field {min(seen)!r} of the steps; pass the "
            "observation after the last step"
        )
    for name in names:
        meant = "" if name in step_fields else nearest(name, step_fields.difference(names))
        if meant:
            raise errors.InvalidValue(
                f"end({name}=...): no step has a field {name!r}{meant} If {name!r} is a separate "
                "field, declare the field with db.buffer(name, fields={...})"
            )
