"""Accept old names of arguments and methods for one version, and reject unknown arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from expdb import errors
from expdb.names import nearest

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def checked_keywords(
    **renamed: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function so that it accepts old names of its arguments and refuses unknown ones.

    `renamed` maps each old name to the new one. An old name emits a DeprecationWarning. An unknown
    name raises InvalidValue with the most similar known one.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        code = inspect.unwrap(function).__code__
        if code.co_flags & inspect.CO_VARKEYWORDS:
            return function  # it accepts any name
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = frozenset(names)

        @functools.wraps(function)
        def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            if not known.issuperset(named):
                by_position = names[: len(arguments)]
                *_, owner, name = f".{function.__qualname__}".split(".")
                name = owner if name == "__init__" else name.lstrip("_")
                named = translate(name, names, renamed, named, by_position)  # type: ignore
            return function(*arguments, **named)

        return call

    return decorate


def with_new_names(function: str, arguments: Mapping[str, Any], **renamed: str) -> dict[str, Any]:
    """Return the arguments of a method that has ``**others``, under their new names.

    `arguments` is `locals()` at the start of the method. Frequently called methods use this
    function, because a decorator would slow down every call. The default of each renamed argument
    must be None.
    """
    names = tuple(name for name in arguments if name not in ("self", "others"))
    given = {name: arguments[name] for name in names if arguments[name] is not None}
    return translate(function, names, renamed, given | arguments["others"])


def translate(
    function: str,
    names: tuple[str, ...],
    renamed: Mapping[str, str],
    named: Mapping[str, Any],
    by_position: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the named arguments of a call under their new names; see `checked_keywords`."""
    translated = {name: value for name, value in named.items() if name in names}
    for name in [name for name in named if name not in translated]:
        new = renamed.get(name)
        if new is None:
            public = [known for known in names if known != "self"]
            longer = [known for known in public if known.startswith(f"{name}_")]
            hint = nearest(name, longer or [*public, *renamed])
            for old, meant in renamed.items():
                hint = hint.replace(f"{old!r}", f"{meant!r}")
            hint = hint or f"; its arguments are {', '.join(public)}"
            raise errors.InvalidValue(f"{function}() has no argument {name!r}{hint}")
        if new in translated or new in by_position:
            raise errors.InvalidValue(
                f"{function}() got both {name!r} and {new!r}; pass only {new!r}"
            )
        errors.warn(
            f"the argument {name!r} of {function}() is deprecated; use {new!r}", DeprecationWarning
        )
        translated[new] = named[name]
    return translated


def deprecated(
    replacement: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a method so that each call emits a DeprecationWarning with the replacement."""

    def decorate(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        name = method.__qualname__.replace("._", ".")
        message = f"{name} is deprecated; use {replacement}"

        @functools.wraps(method)
        def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            errors.warn(message, DeprecationWarning)
            return method(*arguments, **named)

        call.__name__ = method.__name__.lstrip("_")
        call.__deprecated__ = message  # type: ignore[attr-defined]  # the name of PEP 702
        return call

    return decorate
