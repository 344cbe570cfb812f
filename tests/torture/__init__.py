"""The fault tests: each causes a failure and compares a database with its expected contents.

`python3 dev.py torture` runs them and prints a table of the results.
"""

# These modules register their faults.
from torture import (  # noqa: F401
    archive,
    damage,
    hostile,
    kills,
    learners,
    machine,
    migrations,
    power,
    soak,
    trees,
)  # fmt: skip
from torture.oracle import verify
from torture.table import FAULTS, HEAD, Outcome, Place, Servers, line, run

__all__ = ["FAULTS", "HEAD", "Outcome", "Place", "Servers", "line", "run", "verify"]
