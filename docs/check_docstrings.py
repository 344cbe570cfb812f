"""Check the docstrings of all public names with numpydoc and ruff: `python3 dev.py lint`.

numpydoc checks sections, parameters and returned values. Ruff checks that each exception that a
function raises itself is in its section `Raises`.

Public names are those of `expdb`, `expdb.testing` and the integrations whose frameworks are
installed, and the public members of their classes.
"""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from numpydoc.validate import validate

import expdb
import expdb.testing

# https://numpydoc.readthedocs.io/en/latest/validation.html lists all checks.
CHECKS = {
    "GL06", "GL07", "GL08",  # sections: known, in order; a docstring
    "SS02", "SS03", "SS05",  # summary: capital letter, full stop, imperative
    "PR01", "PR02", "PR03", "PR04", "PR05", "PR06", "PR07", "PR08", "PR09", "PR10",  # parameters
    "RT01", "RT02", "RT03", "RT04", "RT05",  # returns
    "YD01",  # yields
}  # fmt: skip
# Integrations that import without their framework come first.
INTEGRATIONS = (
    "aworld", "di_engine", "minestudio", "records",
    "aworld.current", "gymnasium", "memmap", "rllib", "stable_baselines3", "torch",
)  # fmt: skip
# Instances of these are returned by other calls, so their constructors are not documented.
NOT_CONSTRUCTED = {
    "expdb.Consumer", "expdb.Epochs", "expdb.EpisodeWriter", "expdb.ExperienceDB", "expdb.Lease",
    "expdb.Population", "expdb.ReplayBuffer", "expdb.StepWriter", "expdb.Trajectories",
}  # fmt: skip


def list_modules() -> Iterator[ModuleType]:
    """Yield the modules with public names."""
    yield from (expdb, expdb.errors, expdb.testing)
    for name in INTEGRATIONS:
        with suppress(ImportError):  # the framework is not installed
            yield importlib.import_module(f"expdb.integrations.{name}")


def list_names() -> Iterator[str]:
    """Yield the dotted name of each public class, function, method and property."""
    for module in list_modules():
        for name in module.__all__:
            item = getattr(module, name)
            if module.__name__.startswith("expdb.integrations."):
                yield from _list_names_of_integration(item)
            elif inspect.isclass(item) or inspect.isfunction(item):
                yield f"{module.__name__}.{name}"
                yield from _list_members(f"{module.__name__}.{name}", item)


def _list_names_of_integration(item: Any) -> Iterator[str]:
    """Yield the name of a class or function, and the names of own and inherited members."""
    if inspect.isfunction(item):
        yield f"{item.__module__}.{item.__qualname__}"
    for base in item.__mro__ if inspect.isclass(item) else ():
        if base.__module__.startswith("expdb.integrations."):  # not a class of a framework
            path = f"{base.__module__}.{base.__qualname__}"
            if base is item:
                yield path
            yield from _list_members(path, base)


def _list_members(path: str, item: Any) -> Iterator[str]:
    for member in vars(item) if inspect.isclass(item) else ():
        if not member.startswith("_") and _has_docstring(inspect.getattr_static(item, member)):
            yield f"{path}.{member}"


def _has_docstring(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))


def list_problems(path: str, result: dict[str, Any]) -> Iterator[str]:
    """Yield the failed checks of a name."""
    for code, message in result["errors"]:
        is_internal = path in NOT_CONSTRUCTED and code.startswith("PR")
        if code in CHECKS and not is_internal:
            yield f"{result['file']}:{result['file_line']}: {path}: {code} {message}"


def main() -> None:
    """Print the problems, and exit with status 1 if there are any."""
    results = {path: validate(path) for path in list_names()}
    problems = [problem for item in results.items() for problem in list_problems(*item)]
    print(*problems, sep="\n")
    files = sorted({result["file"] for result in results.values()})
    ruff = [sys.executable, "-m", "ruff", "check", "--quiet", "--preview", "--select=DOC501"]
    options = ["--config=lint.pydoclint.ignore-one-line-docstrings=true", *files]
    sys.exit(bool(problems) | subprocess.run([*ruff, *options], check=False).returncode)


if __name__ == "__main__":
    main()
