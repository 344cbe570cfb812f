"""Measure which defects the tests detect: reversed fixes and mutated lines.

    python tests/detection record FOLDER [PYTEST ARGS]
        Run each test file in its own process, and record in FOLDER which test executes which
        lines and how long it takes.
    python tests/detection fixes FOLDER TABLE [BEFORE]
        Reverse hunks of past fixes, one at a time, and run the tests that execute their lines. With
        BEFORE, run only the cases that this table detects.
    python tests/detection mutants FOLDER TABLE [BEFORE]
        Do the same with mutated lines that a seed chooses.
    python tests/detection compare OLD NEW
        List the defects of table OLD that table NEW does not detect.

The tables before.csv and after.csv hold the results for the tests before and after they were
reduced to one run of each behaviour; after.csv holds only the cases that were detected before.

Run it in a checkout without changes: it changes and restores files of `expdb/`. A case that is
already in TABLE is not run again, and `SHARD=0/2` runs every second case, so that two checkouts
can share the work. Requires the packages of the dependency group `detection`.
"""

import ast
import csv
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

LAST = "6b4fe9e"  # Later commits do not change the choice of fixes.
SUBJECT = r"\b(fix|correct|wrong|los[et]|reject|refuse|keep|never|mend)"
HUNKS_PER_COMMIT = 6
FIXES, MUTANTS, SEED = 92, 60, 53
MUTATED = ("storage", "memory", "sampling", "consumers")
SECONDS = 45  # for the tests of one case
BATCHES = 60, 200  # number of tests per run of pytest: the first runs, and the following ones
FIELDS = "case", "tests", "result", "detected by", "seconds"


class Case(NamedTuple):
    """A defect: the file that has it, the defective text, and the lines that differ."""

    name: str
    path: str
    text: str
    lines: set[int]
    first: tuple[str, ...] = ()  # test files to run first


def git(*arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], input=text, capture_output=True, text=True
    )
    return done.stdout if not done.returncode else ""


def code_of(text: str) -> str:
    """Return the code of a file without comments, docstrings and formatting."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [part for part in node.body if not is_text(part)] or [ast.Pass()]
    return ast.unparse(tree)


def is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a constant, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def is_runnable(text: str) -> bool:
    """Return whether a text is Python without undefined names."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
    return not subprocess.run(command, input=text, text=True, capture_output=True).returncode


def changed_lines(old: str, new: str) -> set[int]:
    """Return the lines of `old` that `new` changes, or that surround added ones."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("old", "new")]
        for path, text in zip(paths, (old, new), strict=True):
            path.write_text(text)
        done = subprocess.run(["diff", "-U0", *paths], capture_output=True, text=True)
    lines: set[int] = set()
    for start, count in re.findall(r"^@@ -(\d+)(?:,(\d+))? ", done.stdout, re.MULTILINE):
        size = int(count or 1)
        lines |= set(range(int(start), int(start) + size)) or {int(start), int(start) + 1}
    return lines


def reversed_hunks(commit: str) -> Iterator[Case]:
    """Reverse each hunk of a commit alone; skip hunks that do not apply or change no code."""
    files = git("show", "--format=", "--name-only", commit).split()
    tests = tuple(name for name in files if name.startswith("tests/"))
    for path in files:
        if not (path.startswith("expdb/") and path.endswith(".py") and (ROOT / path).exists()):
            continue
        head, *hunks = re.split(r"(?m)^(?=@@ )", git("show", "--format=", commit, "--", path))
        old = (ROOT / path).read_text()
        for number, hunk in enumerate(hunks):
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder, path)
                copy.parent.mkdir(parents=True)
                copy.write_text(old)
                subprocess.run(
                    ["git", "apply", "-R", "--recount"], cwd=folder, input=head + hunk, text=True,
                    capture_output=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": "/"},
                )  # fmt: skip
                new = copy.read_text()
            try:
                if new == old or code_of(new) == code_of(old) or not is_runnable(new):
                    continue
            except SyntaxError:
                continue
            yield Case(f"{commit}:{path}:{number}", path, new, changed_lines(old, new), tests)


def fixes(names: set[str]) -> Iterator[Case]:
    """Yield the named cases, or choose at most `HUNKS_PER_COMMIT` of each commit by the seed."""
    log = git("log", "--no-merges", "-i", "-E", f"--grep={SUBJECT}", "--format=%h", LAST)
    found = 0
    for commit in log.split():
        if names and not any(name.startswith(f"{commit}:") for name in names):
            continue
        cases = list(reversed_hunks(commit))
        if names:
            yield from (case for case in cases if case.name in names)
            continue
        random.Random(f"{SEED}{commit}").shuffle(cases)
        for case in cases[: min(HUNKS_PER_COMMIT, FIXES - found)]:
            found += 1
            yield case


def mutants(names: set[str]) -> Iterator[Case]:
    """Yield the named cases, or choose lines by the seed; cosmic-ray mutates an expression."""
    for path, line, operator, occurrence in (
        (name.split(":") for name in sorted(names)) if names else chosen_mutations()
    ):
        case = mutant(path, int(line), operator, int(occurrence))
        if case is not None:
            yield case


def mutant(path: str, line: int, operator: str, occurrence: int) -> Case | None:
    """Return a mutated file, or None if the mutation does not change its code."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    old = (ROOT / path).read_text()
    new = mutate_code(old, get_operator(f"core/{operator}")(), occurrence)
    if new is None or code_of(new) == code_of(old):
        return None
    return Case(f"{path}:{line}:{operator}:{occurrence}", path, new, changed_lines(old, new))


def chosen_mutations() -> Iterator[tuple[str, int, str, int]]:
    """Choose lines by the seed, and a mutation of each; yield mutations that change the code."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    chance = random.Random(SEED)
    paths = sorted(path for name in MUTATED for path in (ROOT / "expdb" / name).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    lines = [
        (path, number)
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r" {4,}(if|elif|while|return|assert|[\w.\[\], ]+ (=|\+=|-=)) ?", line)
    ]
    found = 0
    while found < MUTANTS:
        path, number = chance.choice(lines)
        candidates, nodes = [], list(ast_nodes(get_ast(texts[path])))
        for name in sorted(name for name in operator_names() if "Variable" not in name):
            operator = get_operator(name)()
            positions = (
                position for node in nodes for position in operator.mutation_positions(node)
            )
            for occurrence, (start, _) in enumerate(positions):
                if start[0] == number:
                    candidates.append((name.removeprefix("core/"), occurrence))
        if candidates:
            name, occurrence = chance.choice(candidates)
            if mutant(path, number, name, occurrence) is not None:
                found += 1
                yield path, number, name, occurrence


class Recording:
    """Which test executes which lines, and how long each test takes."""

    def __init__(self, folder: Path):
        from coverage import CoverageData

        self.lines: dict[str, dict[int, list[str]]] = {}
        for file in folder.glob("**/.coverage"):
            data = CoverageData(str(file))
            data.read()
            for name in data.measured_files():
                lines = self.lines.setdefault("expdb/" + name.split("/expdb/", 1)[1], {})
                for line, contexts in data.contexts_by_lineno(name).items():
                    lines.setdefault(line, []).extend(contexts)
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        for file in folder.glob("**/*.xml"):
            for test in ElementTree.parse(file).iter("testcase"):
                module, name = test.get("classname", ""), test.get("name", "")
                node = f"{module.replace('.', '/')}.py::{name}"
                self.seconds[node] = float(test.get("time", 0))
                if test.find("failure") is not None or test.find("error") is not None:
                    self.failed.add(node)

    def tests_of(self, case: Case) -> list[str]:
        """Return the tests that execute the lines of a case, the likeliest and shortest first."""
        lines = self.lines.get(case.path, {})
        tests = {
            context.rsplit("|", 1)[0]
            for line in case.lines
            for context in lines.get(line, ())
            if "::" in context
        } - self.failed
        if not tests:  # a line that runs at import: every test that executes the file
            every = {test.rsplit("|", 1)[0] for contexts in lines.values() for test in contexts}
            tests = {test for test in every if "::" in test} - self.failed

        def order(test: str) -> tuple[bool, float, str]:
            return not test.startswith(case.first or "-"), self.seconds.get(test, 1.0), test

        return sorted(tests, key=order)


def is_importable(path: str) -> bool:
    """Return whether every package that uses a module can be imported."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    imports = f"import expdb.api, expdb.cli, expdb.serve.app, {module}"
    # The tests turn warnings into errors, such as one about `is` with a literal.
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", imports]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return not subprocess.run(command, cwd=ROOT, env=environment, capture_output=True).returncode


def run_tests(tests: list[str]) -> str | None:
    """Run tests until one fails, for at most `SECONDS`; return the test that failed."""
    deadline, size = time.monotonic() + SECONDS, BATCHES[0]
    while tests and time.monotonic() < deadline:
        batch, tests, size = tests[:size], tests[size:], BATCHES[1]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "tests").write_text("\n".join(batch))
            command = [
                sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
                "--timeout=60", "--timeout-method=thread", f"--basetemp={folder}/temporary",
                f"@{folder}/tests",
            ]  # fmt: skip
            places = {"PYTHONPATH": str(ROOT), "TMPDIR": folder}
            remaining = max(20.0, deadline - time.monotonic())
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env={**os.environ, **places}, capture_output=True,
                    text=True, timeout=remaining + 10,
                )  # fmt: skip
            except subprocess.TimeoutExpired:  # a test that hangs fails after --timeout
                return None
        if done.returncode == 4:  # for example, the recording is of another version
            raise RuntimeError(f"pytest cannot run the tests: {done.stderr}")
        if done.returncode not in (0, 5):
            named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            return named[1] if named else f"pytest ends with {done.returncode}"
    return None


def run_cases(cases: Iterator[Case], recording: Recording, table: Path) -> None:
    """Run the tests of each case, and add the results to a table."""
    from postgres_server import Server

    shard, shards = map(int, os.environ.get("SHARD", "0/1").split("/"))
    is_new = not table.exists()
    done = set() if is_new else {row["case"] for row in csv.DictReader(table.open())}
    server = Server()
    os.environ["EXPDB_TEST_SERVER"] = str(server.folder)
    try:
        for number, case in enumerate(cases):
            if number % shards != shard or case.name in done:
                continue
            tests, began, path = recording.tests_of(case), time.monotonic(), ROOT / case.path
            original = path.read_text()
            try:
                path.write_text(case.text)
                failed = run_tests(tests) if is_importable(case.path) else "import"
            finally:
                path.write_text(original)
            seconds = round(time.monotonic() - began)
            result = {None: "missed", "import": "not importable"}.get(failed, "detected")
            row = case.name, len(tests), result, failed or "", seconds
            with table.open("a", newline="") as file:
                writer = csv.writer(file)
                if is_new:
                    writer.writerow(FIELDS)
                writer.writerow(row)
            is_new = False
            print(*row, flush=True)
    finally:
        server.remove()


def detected(table: Path) -> set[str]:
    """Return the names of the cases that a table detects."""
    rows = csv.DictReader(table.open())
    return {row["case"] for row in rows if row["result"] == "detected"}


def compare(old: Path, new: Path) -> None:
    """Print the shares of detected defects, and the defects that only the old tests detect."""
    results = [
        {row["case"]: row["result"] for row in csv.DictReader(path.open())} for path in (old, new)
    ]
    for path, result in zip((old, new), results, strict=True):
        values = list(result.values())
        valid = len(values) - values.count("not importable")
        print(f"{path}: {values.count('detected')} of {valid} detected")
    for case in results[0]:
        if results[0][case] == "detected" and results[1].get(case) != "detected":
            print(results[1].get(case, "not run"), case)


def main() -> None:
    """Run the command that the first argument names."""
    match sys.argv[1:]:
        case ["record", folder, *arguments]:
            # Run each file in its own process: a test that sets a trace function ends recording.
            for path in sorted((ROOT / "tests").rglob("test_*.py")):
                place = Path(folder).resolve() / path.relative_to(ROOT / "tests").with_suffix("")
                place.mkdir(parents=True, exist_ok=True)
                options = [f"--cov={ROOT / 'expdb'}", "--cov-context=test", "--cov-report="]
                options.append(f"--junitxml={place}/times.xml")
                command = [sys.executable, "-m", "pytest", *options, str(path), *arguments]
                places = {"COVERAGE_FILE": str(place / ".coverage"), "PYTHONPATH": str(ROOT)}
                subprocess.run(command, cwd=ROOT, env={**os.environ, **places})
        case [("fixes" | "mutants") as kind, folder, table, *before]:
            names = {name for path in before for name in detected(Path(path))}
            cases = fixes(names) if kind == "fixes" else mutants(names)
            run_cases(cases, Recording(Path(folder)), Path(table))
        case ["compare", old, new]:
            compare(Path(old), Path(new))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
