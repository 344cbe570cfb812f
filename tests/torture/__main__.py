"""Run the fault tests and print a table of the results.

`python3 dev.py torture [--minutes N] [--only NAME] [--seed N]`.
"""

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # makes the modules of the tests importable, as in pytest

from torture import FAULTS, HEAD, Outcome, Place, Servers, line, run

SHORT_MINUTES = 1.5


def main() -> int:
    """Run the short table, or as much of the long table as the minutes allow.

    Return the number of faults with violations.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=SHORT_MINUTES,
        help="about how long; 1.5 is the short table, 40 the long one",
    )
    parser.add_argument(
        "--only", action="append", choices=sorted(FAULTS), help="one fault; may be repeated"
    )
    parser.add_argument(
        "--soak",
        type=float,
        metavar="MINUTES",
        help="nothing but the soak, for so long on each database",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="of the random instants, places and values (default: the time)",
    )
    parser.add_argument("--json", type=Path, help="write the outcomes there as well")
    arguments = parser.parse_args()
    warnings.simplefilter(
        "ignore", expdb_warning()
    )  # the fault tests cause these warnings on purpose, and check them
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    share = min(1.0, max(0.0, (arguments.minutes - SHORT_MINUTES) / (40 - SHORT_MINUTES)))
    failed, start = 0, time.monotonic()
    print(HEAD, flush=True)
    outcomes: dict[str, Outcome] = {}
    with Servers() as servers:
        soaks = [key for key in FAULTS if key.startswith("soak_")]
        for key in arguments.only or (FAULTS if arguments.soak is None else soaks):
            fault = FAULTS[key]
            count = (
                round(fault.short + share * (fault.long - fault.short))
                if arguments.soak is None or key not in soaks
                else round(60 * arguments.soak)
            )
            with tempfile.TemporaryDirectory(prefix="expdb-torture-") as folder:
                outcomes[key], seconds = run(key, Place(Path(folder), seed, servers), count)
            print(line(key, outcomes[key], seconds), flush=True)
            failed += bool(outcomes[key].violations)
            show(outcomes[key])
    if arguments.json:
        arguments.json.write_text(
            json.dumps({key: vars(outcome) for key, outcome in outcomes.items()})
        )
    system = (
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, SQLite "
        f"{sqlite3.sqlite_version}"
    )
    print(
        f"\n{time.strftime('%Y-%m-%d')}, {system}, seed {seed}, "
        f"{(time.monotonic() - start) / 60:.1f} minutes; {failed} of the faults did not hold."
    )
    return failed


def show(outcome: Outcome) -> None:
    """Print the first violations."""
    for violation in outcome.violations[:10]:
        print(f"  {violation[-600:]}", file=sys.stderr, flush=True)


def expdb_warning() -> type[Warning]:
    """Return the class of the library's warnings."""
    import expdb

    return expdb.ExpDBWarning


sys.exit(main())
