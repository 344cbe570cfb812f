"""Run and test expdb from a checkout with nothing but Python and pip.

    python3 dev.py run demo [ARGS]    the command line, here the demo
    python3 dev.py test [ARGS]        ruff, mypy --strict and pytest (ARGS go to pytest)
    python3 dev.py torture [ARGS]     every fault there is, in one table: kills, power loss, full disks, flipped bits, ...
    python3 dev.py bench [ARGS]       the benchmarks
    python3 dev.py scale              what breaks first with 10, 1,000 and 100,000 actors, on this machine
    python3 dev.py peers [ARGS]       expdb beside other replay buffers, each in an environment that this makes

The first call makes the environment `.venv` in the checkout; nothing outside the checkout is changed. It needs neither
a venv module nor root, and it works where the system's Python is externally managed (PEP 668): `pip install --target`
is exempt from that, so virtualenv can be fetched with it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV, BOOT = ROOT / ".venv", ROOT / ".venv-boot"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PIP_OPTIONS = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-warn-script-location"]


def call(*command: object, **environment: str) -> None:
    """Run a command in the checkout and leave with its exit status if it fails."""
    status = subprocess.call([str(part) for part in command], cwd=ROOT, env={**os.environ, **environment})
    if status:
        sys.exit(status)


def requirements(groups: list[str]) -> list[str]:
    """List the requirements of dependency groups of pyproject.toml (pip knows groups only since 25.1)."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    found: list[str] = []
    for group in groups:
        for entry in table[group]:
            found += requirements([entry["include-group"]]) if isinstance(entry, dict) else [entry]
    return found


def environment(groups: list[str]) -> Path:
    """Return the Python of an environment that holds expdb, editable, with the groups; make it where it is missing."""
    wanted = (ROOT / "pyproject.toml").read_bytes() + sys.version.encode() + repr(groups).encode()
    stamp = VENV / f"stamp-{'-'.join(groups)}"
    python = BIN / "python"
    if stamp.exists() and stamp.read_text() == hashlib.sha256(wanted).hexdigest():
        return python
    print(f"preparing {VENV} (once; a minute or so)", file=sys.stderr, flush=True)
    if not list(VENV.glob("stamp-*")):
        shutil.rmtree(VENV, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, cwd=ROOT)
        if made.returncode:
            shutil.rmtree(VENV, ignore_errors=True)
            call(sys.executable, "-m", "pip", "install", *PIP_OPTIONS, "--upgrade", "--target", BOOT, "virtualenv")
            call(
                sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update", VENV,
                PYTHONPATH=str(BOOT), VIRTUALENV_OVERRIDE_APP_DATA=str(BOOT / "data"),
            )
    options = [*PIP_OPTIONS, "--root-user-action=ignore"]
    call(python, "-m", "pip", "install", *options, "--editable", f"{ROOT}[cli,gym,postgres]", *requirements(groups))
    stamp.write_text(hashlib.sha256(wanted).hexdigest())
    return python


def main(arguments: list[str]) -> None:
    """Do what the first argument says."""
    match arguments:
        case ["run", *rest]:
            python = environment(["test", "lint"])
            call(python, "-m", "expdb", *rest)
        case ["test", *rest]:
            python = environment(["test", "lint"])
            call(python, "-m", "ruff", "check", ".")
            call(python, "-m", "mypy")
            call(python, "-m", "pytest", f"--basetemp={VENV / 'tests'}", *rest)
        case ["torture", *rest]:
            python = environment(["test", "lint"])
            call(python, "tests/torture", *rest)
        case ["bench", *rest]:
            python = environment(["test", "lint", "bench"])
            call(python, "-m", "benchmarks", *rest)
        case ["scale"]:
            call(environment(["test", "lint", "bench"]), "-m", "benchmarks.scale")
        case ["peers", *rest]:
            python = environment(["test", "lint", "bench"])
            call(python, "-m", "benchmarks.peers", *rest)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
