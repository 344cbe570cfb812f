"""Run and test expdb from a checkout. dev.py requires only Python and pip.

    python3 dev.py run COMMAND [ARGS] run an expdb command: `run demo`, `run info runs.db`, ...
    python3 dev.py test [GROUP...] [ARGS]
                                      run tests; the groups are core, tools (command line, pages),
                                      adapters, documentation (its code, the examples, the demo)
                                      and faults, by default core and tools; ARGS go to pytest
                --torch               install PyTorch and run the tests that need it
                --slow                also run the slow tests, such as long random histories
                --all                 also run the slow tests, all groups, every combination of
                                      values, and each test that opens a database on both
                --ecosystems          also test with RLlib, DI-engine, AWorld, Datasette, TRL,
                                      verifiers, Hugging Face datasets and Minari, each in its
                                      own environment (large downloads)
                --newest              install the newest versions instead of constraints.txt
    python3 dev.py lint               run ruff, mypy --strict and the docstring checks
    python3 dev.py docs               build the documentation site in docs/_build/html
                --browser             also load each page in Chromium and save screenshots
                --screenshots         only retake the screenshots of `expdb serve` in docs/pictures
    python3 dev.py detection [ARGS]   count the past defects and mutated lines that the tests detect
    python3 dev.py torture [ARGS]     run all fault tests: kills, power loss, full disks, ...
    python3 dev.py bench [ARGS]       run the benchmarks
    python3 dev.py scale              compute which limit 10, 1,000 and 100,000 actors reach first
    python3 dev.py peers [ARGS]       compare expdb with other replay buffers

The first command that you run creates the environment `.venv` in the checkout. Each command
installs the packages that it needs, and changes nothing outside the checkout. dev.py requires
neither root nor the venv module. If that module is missing, dev.py installs virtualenv with
`pip install --target`, which also works with an externally managed Python (PEP 668).
"""

import hashlib
import itertools
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
    "detection": ["detection"],
    "bench": ["test", "bench"],
    "scale": ["test", "bench"],
    "peers": ["test", "bench"],
}


# Dependency groups that conflict with the other groups, and the pytest arguments for their tests.
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
    "trl": ["tests/integrations/test_trl_rows.py"],
    "verifiers": ["tests/integrations/test_verifiers_rows.py"],
    "datasets": ["tests/formats/test_hugging_face.py"],
    "minari": ["tests/formats/test_minari.py"],
}


# Tests outside of the group core.
GROUPS = {
    "tools": ["tests/cli", "tests/serve"],
    "adapters": ["tests/integrations"],
    "documentation": ["tests/test_documentation.py", "tests/test_examples.py"],
    "faults": ["tests/test_torture.py"],
}


class Environment:
    """A virtual environment in the checkout with an editable installation of expdb.

    By default, it contains the versions of constraints.txt and the extras cli, gym,
    postgres and serve.
    """

    def __init__(self, folder: Path, *, newest: bool = False, alone: bool = False):
        self.folder, self.newest, self.alone = folder, newest, alone
        self.python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        self.temporary = folder / "tmp"

    def provide(self, groups: list[str]) -> None:
        """Install dependency groups of pyproject.toml.

        If the environment does not exist, create it first.
        """
        stamp = self.folder / f"stamp-{'-'.join(['run', *groups])}"
        files = [ROOT / "pyproject.toml", CONSTRAINTS]
        wanted = hashlib.sha256(
            b"".join(path.read_bytes() for path in files) + sys.version.encode()
        ).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"preparing {self.folder} (once; about a minute)", file=sys.stderr, flush=True)
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
            ROOT if self.alone else f"{ROOT}[cli,gym,postgres,serve]",
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

    def call(self, *arguments: object, cwd: Path = ROOT, **variables: str) -> None:
        """Run the Python of the environment, with temporary files and caches in its folder."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        places = {
            "TMPDIR": self.temporary,
            "MPLCONFIGDIR": self.temporary,
            "XDG_CACHE_HOME": self.temporary,
        }
        variables |= {name: str(path) for name, path in places.items()}
        call(self.python, *arguments, cwd=cwd, **variables)


def call(*command: object, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command, and exit with its status if it fails."""
    variables = {**os.environ, **environment}
    # Without cached bytecode, each process that a test starts compiles expdb again.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        status = subprocess.call([str(part) for part in command], cwd=cwd, env=variables)
    except KeyboardInterrupt:  # the command received Ctrl-C too
        status = 130
    if status:
        sys.exit(status)


def requirements(groups: list[str]) -> list[str]:
    """List the requirements of dependency groups of pyproject.toml.

    pip supports dependency groups only since version 25.1.
    """
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    found: list[str] = []
    for group in groups:
        for entry in table[group]:
            found += requirements([entry["include-group"]]) if isinstance(entry, dict) else [entry]
    return found


def test(arguments: list[str]) -> None:
    """Run the tests in one process more than there are cores, up to four processes."""
    flags = {"--torch", "--slow", "--all", "--newest", "--ecosystems"} & set(arguments)
    arguments = [argument for argument in arguments if argument not in flags]
    groups = set(itertools.takewhile(lambda argument: argument in ("core", *GROUPS), arguments))
    arguments = arguments[len(groups) :]
    newest = "--newest" in flags
    environment = Environment(ROOT / (".venv-newest" if newest else ".venv"), newest=newest)
    environment.provide(["test", *(["torch"] if "--torch" in flags else [])])
    options = [
        f"--basetemp={environment.folder / 'tests'}",
        f"--numprocesses={min(4, (os.cpu_count() or 1) + 1)}",  # many tests wait for subprocesses
        "--dist=worksteal",
    ]
    if flags & {"--slow", "--all"}:
        options += ["-m", ""]
    variables = {}
    if "--all" in flags:
        variables = {"EXPDB_TEST_DATABASES": "both", "EXPDB_TEST_ALL": "1"}
        groups = groups or {"core", *GROUPS}
    if not any((ROOT / argument.split("::")[0]).exists() for argument in arguments):
        options += paths_of(groups or {"core", "tools"})
    environment.call("-m", "pytest", *options, *arguments, **variables)
    for name, tests in ECOSYSTEMS.items() if "--ecosystems" in flags else ():
        other = Environment(ROOT / f".venv-{name}", alone=True)
        other.provide([name])
        # When imported, these libraries warn about each other's versions.
        options = [f"--basetemp={other.folder / 'tests'}", "-m", "", "-W", "default"]
        other.call("-m", "pytest", *options, *tests)


def paths_of(groups: set[str]) -> list[str]:
    """Return the arguments of pytest that select groups of tests."""
    if "core" not in groups:
        return [path for group in groups for path in GROUPS[group]]
    others = GROUPS.keys() - groups
    return ["tests", *(f"--ignore={path}" for group in others for path in GROUPS[group])]


def main(arguments: list[str]) -> None:
    """Run the command that the first argument names."""
    if arguments[:1] != ["run"] and not {"-h", "--help"}.isdisjoint(arguments):
        print(__doc__)
        return
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
        case ["docs", "--screenshots"]:
            environment.provide(NEEDS["test"])
            environment.call("docs/take_screenshots.py")
        case ["docs", *rest] if rest in ([], ["--browser"]):
            environment.provide(NEEDS["docs"])
            options = ["--fresh-env", "--fail-on-warning", "--keep-going", "--quiet"]
            environment.call("-m", "sphinx", *options, "docs", "docs/_build/html")
            if rest:
                browser = Environment(ROOT / ".venv-browser", alone=True)
                browser.provide(["browser"])
                browser.call("docs/check_site.py")
        case [("torture" | "detection") as name, *rest]:
            environment.provide(NEEDS[name])
            environment.call(f"tests/{name}", *rest)
        case [("bench" | "scale" | "peers") as name, *rest]:
            environment.provide(NEEDS[name])
            environment.call("-m", "benchmarks" if name == "bench" else f"benchmarks.{name}", *rest)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
