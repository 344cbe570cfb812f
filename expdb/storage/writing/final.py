"""Check the final observation of an episode, which callers pass to `end`."""

from collections.abc import Collection, Iterable

from expdb import errors
from expdb.names import OBSERVATIONS, STEP_KEYS, nearest


def check_final(names: Collection[str], fields: Iterable[str]) -> None:
    """Raise InvalidValue if a final observation has unsuitable names.

    It must not have a column of steps or a name that resembles a field of the steps. If the steps
    have observations, it must have one, otherwise the next observation of the last step would be
    zeros.
    """
    for name in names:
        if name in STEP_KEYS:
            raise errors.InvalidValue(
                f"end({name}=...): {name!r} is of a step: give it to append, with the last one"
            )
    known = set(fields)
    known |= {name.split(".", 1)[0] for name in known}
    seen = known.intersection(OBSERVATIONS)
    if seen and not seen.intersection(name.split(".", 1)[0] for name in names):
        raise errors.InvalidValue(
            f"end({', '.join(names)}) does not give {min(seen)!r}, which steps have: give "
            "what is seen after the last one"
        )
    for name in names:
        meant = "" if name in known else nearest(name, known.difference(names))
        if meant:
            raise errors.InvalidValue(
                f"end({name}=...): no step has a field {name!r}{meant} If it is a field of "
                "its own, declare it: db.buffer(name, fields={...})"
            )
