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

# Makes the modules of the tests importable, as in pytest.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from expdb import errors
from torture import FAULTS, HEAD, Place, Servers, line, run

SHORT_MINUTES = 1.5


def main() -> int:
    """Run the short table, or as much of the long table as the minutes allow.

    Return the number of faults with violations.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--minutes", type=float, default=SHORT_MINUTES, help="1.5: short run, 40: long run")
    option("--only", action="append", choices=sorted(FAULTS), help="one fault; may be repeated")
    option("--soak", type=float, metavar="MINUTES", help="only the soak; time per database")
    option("--seed", type=int, help="seed of random times, places and values (default: the time)")
    option("--json", type=Path, help="also write the outcomes to this file")
    arguments = parser.parse_args()
    # The fault tests cause these warnings on purpose, and check them.
    warnings.simplefilter("ignore", errors.ExpDBWarning)
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    share = min(1.0, max(0.0, (arguments.minutes - SHORT_MINUTES) / (40 - SHORT_MINUTES)))
    failed, start = 0, time.monotonic()
    print(HEAD, flush=True)
    outcomes = {}
    with Servers() as servers:
        soaks = [key for key in FAULTS if key.startswith("soak_")]
        for key in arguments.only or (FAULTS if arguments.soak is None else soaks):
            fault = FAULTS[key]
            count = round(fault.short + share * (fault.long - fault.short))
            if arguments.soak is not None and key in soaks:
                count = round(60 * arguments.soak)
            with tempfile.TemporaryDirectory(prefix="expdb-torture-") as folder:
                outcomes[key], seconds = run(key, Place(Path(folder), seed, servers), count)
            print(line(key, outcomes[key], seconds), flush=True)
            failed += bool(outcomes[key].violations)
            for violation in outcomes[key].violations[:10]:
                print(f"  {violation[-600:]}", file=sys.stderr, flush=True)
    if arguments.json:
        results = {key: vars(outcome) for key, outcome in outcomes.items()}
        arguments.json.write_text(json.dumps(results))
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    system = f"{os.cpu_count()} cores, {platform.system()}, {versions}, seed {seed}"
    minutes = (time.monotonic() - start) / 60
    print(f"\n{time.strftime('%Y-%m-%d')}, {system}, {minutes:.1f} minutes; {failed} did not hold.")
    return failed


sys.exit(main())
