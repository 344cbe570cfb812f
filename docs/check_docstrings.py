"""Check the docstrings of all public names with numpydoc: `python3 dev.py lint`.

Public names are those of `expdb` and `expdb.testing`, and the public members of their classes.
"""

import inspect
import sys
from collections.abc import Iterator
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
# Instances of these are returned by other calls, so their constructors are not documented.
NOT_CONSTRUCTED = {
    "Consumer", "Epochs", "EpisodeWriter", "ExperienceDB", "Lease", "Population", "ReplayBuffer",
    "StepWriter", "Trajectories",
}  # fmt: skip


def list_names() -> Iterator[str]:
    """Yield the dotted name of each public class, function, method and property."""
    for module in (expdb, expdb.testing):
        for name in module.__all__:
            item = getattr(module, name)
            if inspect.isclass(item) or inspect.isfunction(item):
                path = f"{module.__name__}.{name}"
                yield path
                for member in vars(item) if inspect.isclass(item) else ():
                    if not member.startswith("_") and _has_docstring(
                        inspect.getattr_static(item, member)
                    ):
                        yield f"{path}.{member}"


def _has_docstring(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))


def list_problems(path: str) -> Iterator[str]:
    """Yield the failed checks of a name."""
    result = validate(path)
    for code, message in result["errors"]:
        is_internal = path.rpartition(".")[2] in NOT_CONSTRUCTED and code.startswith("PR")
        if code in CHECKS and not is_internal:
            yield f"{result['file']}:{result['file_line']}: {path}: {code} {message}"


def main() -> None:
    """Print the problems, and exit with status 1 if there are any."""
    problems = [problem for path in list_names() for problem in list_problems(path)]
    print(*problems, sep="\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
