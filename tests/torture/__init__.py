"""The fault harness: what happens to a database when something fails, in one table.

`python3 dev.py torture`.
"""

# They enter their faults in the table.
from torture import archive, damage, hostile, kills, learners, machine, migrations, power, soak  # noqa: F401
from torture.oracle import verify
from torture.table import FAULTS, HEAD, Outcome, Place, Servers, line, run

__all__ = ["FAULTS", "HEAD", "Outcome", "Place", "Servers", "line", "run", "verify"]
