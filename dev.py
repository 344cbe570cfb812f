"""Run and test expdb from a checkout with nothing but Python and pip.

    python3 dev.py run COMMAND [ARGS] the command line: `run demo`, `run info runs.db`, ...
    python3 dev.py test [ARGS]        the tests without the slow ones; ARGS go to pytest
                --torch               with PyTorch, which is a large download
                --slow                with the slow ones: faults, training runs
                --ecosystems          and those of RLlib, DI-engine, AWorld and Datasette, in
                                      environments of their own: large downloads
                --newest              with the newest versions, not those of constraints.txt
    python3 dev.py lint               ruff, mypy --strict and the docstrings of public names
    python3 dev.py docs               the documentation site, in docs/_build/html
                --browser             and load each page in Chromium, with screenshots
    python3 dev.py torture [ARGS]     every fault in one table: kills, power loss, full disks, ...
    python3 dev.py bench [ARGS]       the benchmarks
    python3 dev.py scale              what breaks first with 10, 1,000 and 100,000 actors
    python3 dev.py peers [ARGS]       expdb beside other replay buffers, each in its environment

The first call makes the environment `.venv` in the checkout and installs what the command needs;
nothing outside the checkout is changed. It needs neither a venv module nor root, and it works where
the system's Python is externally managed (PEP 668): `pip install --target` is exempt from that, so
virtualenv can be fetched with it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BOOT = ROOT / ".venv-boot"
CONSTRAINTS = ROOT / "constraints.txt"
PIP_OPTIONS = [
    "--quiet",
    "--disable-pip-version-check",
    "--no-cache-dir",
    "--no-warn-script-location",
]
NEEDS = {
    "lint": ["lint"],
    "docs": ["docs"],
    "test": ["test"],
    "torture": ["test"],
    "bench": ["test", "bench"],
    "scale": ["test", "bench"],
    "peers": ["test", "bench"],
}


# The groups of pyproject.toml that cannot live with the others, and what is tested with them.
ECOSYSTEMS = {
    "rllib": [
        "tests/integrations/test_rllib.py",
        "tests/integrations/test_rllib_multi_agent.py",
        "tests/test_documentation.py",
        "-k",
        "rllib",
    ],
    "di-engine": [
        "tests/integrations/test_di_engine.py",
        "tests/integrations/test_di_engine_training.py",
    ],
    "aworld": ["tests/integrations/test_aworld_current.py"],
    "datasette": ["tests/integrations/test_datasette.py"],
}


class Environment:
    """A virtual environment in the checkout, with expdb in it, editable.

    With `extras` of expdb, and the versions of constraints.txt by default.
    """

    def __init__(self, folder: Path, *, newest: bool = False, alone: bool = False):
        self.folder, self.newest, self.alone = folder, newest, alone
        self.python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        self.temporary = folder / "tmp"

    def provide(self, groups: list[str]) -> None:
        """Install what the dependency groups of pyproject.toml name.

        Make the environment where it is missing.
        """
        stamp = self.folder / f"stamp-{'-'.join(['run', *groups])}"
        files = [ROOT / "pyproject.toml", CONSTRAINTS]
        wanted = hashlib.sha256(
            b"".join(path.read_bytes() for path in files) + sys.version.encode()
        ).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"preparing {self.folder} (once; a minute or so)", file=sys.stderr, flush=True)
        if not list(self.folder.glob("stamp-*")):
            self._make()
        options = [
            *PIP_OPTIONS,
            "--root-user-action=ignore",
            *(["--upgrade"] if self.newest else []),
            *([] if self.newest or self.alone else ["--constraint", CONSTRAINTS]),
        ]
        self.call(
            "-m",
            "pip",
            "install",
            *options,
            "--editable",
            ROOT if self.alone else f"{ROOT}[cli,gym,postgres]",
            *requirements(groups),
        )
        stamp.write_text(wanted)

    def _make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if not subprocess.run(
            [sys.executable, "-m", "venv", self.folder], capture_output=True, cwd=ROOT
        ).returncode:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        call(
            sys.executable,
            "-m",
            "pip",
            "install",
            *PIP_OPTIONS,
            "--upgrade",
            "--target",
            BOOT,
            "virtualenv",
        )
        call(
            sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update", self.folder,
            PYTHONPATH=str(BOOT), VIRTUALENV_OVERRIDE_APP_DATA=str(BOOT / "data"),
        )  # fmt: skip

    def call(self, *arguments: object, cwd: Path = ROOT) -> None:
        """Run the environment's Python.

        Which leaves its temporary files and caches in the environment.
        """
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        places = {
            "TMPDIR": self.temporary,
            "MPLCONFIGDIR": self.temporary,
            "XDG_CACHE_HOME": self.temporary,
        }
        call(self.python, *arguments, cwd=cwd, **{name: str(path) for name, path in places.items()})


def call(*command: object, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command, and exit with its status if it fails."""
    status = subprocess.call(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **environment}
    )
    if status:
        sys.exit(status)


def requirements(groups: list[str]) -> list[str]:
    """List the requirements of dependency groups of pyproject.toml.

    Pip knows groups only since 25.1.
    """
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    found: list[str] = []
    for group in groups:
        for entry in table[group]:
            found += requirements([entry["include-group"]]) if isinstance(entry, dict) else [entry]
    return found


def test(arguments: list[str]) -> None:
    """Run the tests, by one process more than there are cores, up to four."""
    chosen = {"--torch", "--slow", "--newest", "--ecosystems"} & set(arguments)
    newest = "--newest" in chosen
    environment = Environment(ROOT / (".venv-newest" if newest else ".venv"), newest=newest)
    environment.provide(["test", *(["torch"] if "--torch" in chosen else [])])
    options = [
        f"--basetemp={environment.folder / 'tests'}",
        f"--numprocesses={min(4, (os.cpu_count() or 1) + 1)}",  # as many tests wait for others
        "--dist=worksteal",
    ]
    options += ["-m", ""] if "--slow" in chosen else []
    environment.call("-m", "pytest", *options, *[one for one in arguments if one not in chosen])
    for name, tests in ECOSYSTEMS.items() if "--ecosystems" in chosen else ():
        other = Environment(ROOT / f".venv-{name}", alone=True)
        other.provide([name])
        # These libraries warn of each other's versions, from their imports on.
        options = [f"--basetemp={other.folder / 'tests'}", "-m", "", "-W", "default"]
        other.call("-m", "pytest", *options, *tests)


def main(arguments: list[str]) -> None:
    """Do what the first argument says."""
    environment = Environment(ROOT / ".venv")
    match arguments:
        case ["run", *rest]:
            environment.provide([])
            environment.call("-m", "expdb", *rest, cwd=Path.cwd())
        case ["test", *rest]:
            test(rest)
        case ["lint"]:
            environment.provide(NEEDS["lint"])
            environment.call("-m", "ruff", "check", ".")
            environment.call("-m", "ruff", "format", "--check", ".")
            environment.call("-m", "mypy")
            environment.call("docs/check_docstrings.py")
        case ["docs", *rest] if rest in ([], ["--browser"]):
            environment.provide(NEEDS["docs"])
            options = ["--fresh-env", "--fail-on-warning", "--keep-going", "--quiet"]
            environment.call("-m", "sphinx", *options, "docs", "docs/_build/html")
            if rest:
                browser = Environment(ROOT / ".venv-browser", alone=True)
                browser.provide(["browser"])
                browser.call("docs/check_site.py")
        case ["torture", *rest]:
            environment.provide(NEEDS["torture"])
            environment.call("tests/torture", *rest)
        case [("bench" | "scale" | "peers") as name, *rest]:
            environment.provide(NEEDS[name])
            environment.call("-m", "benchmarks" if name == "bench" else f"benchmarks.{name}", *rest)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
