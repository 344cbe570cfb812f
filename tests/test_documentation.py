"""The blocks of the tutorials run, and print what the pages show."""

import contextlib
import doctest
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

import expdb

DOCS = Path(__file__).parents[1] / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class OutputEvaluator(PythonEvaluator):
    """Runs a block and keeps what it prints; saves a block that begins with a file name."""

    def __call__(self, example):
        if name := re.match(r"# (\w+\.py)\n", example.parsed):
            Path(name[1]).write_text(example.parsed)
            return
        with contextlib.redirect_stdout(io.StringIO()) as output:
            super().__call__(example)
        example.namespace["printed output"] = output.getvalue()


def run_shell(example):
    """Run a block with bash, and keep what it prints."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", example.parsed],
        env={**os.environ, "PATH": programs, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"},
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    example.namespace["printed output"] = done.stdout


def find_difference(shown, actual):
    """Return the difference between a shown output and the actual one, or None."""
    checker = doctest.OutputChecker()
    if checker.check_output(shown, actual, FLAGS):
        return None
    return checker.output_difference(doctest.Example("", shown), actual, FLAGS)


def compare_output(example):
    """Compare a shown output with the output of the block before it."""
    return find_difference(example.parsed, example.namespace["printed output"])


PYTHON = [
    CodeBlockParser(language="python", evaluator=OutputEvaluator()),
    CodeBlockParser(language="text", evaluator=compare_output),
]
SHELL = CodeBlockParser(language="sh", evaluator=run_shell)
PAGES, TUTORIALS = Sybil(parsers=PYTHON), Sybil(parsers=[*PYTHON, SHELL])


def tutorials():
    pages = sorted(DOCS.glob("tutorials/[!i]*.md"))
    return [pytest.param(page, id=page.stem) for page in pages]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", tutorials())
def test_a_tutorial_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    if "import torch" in page.read_text() and not importlib.util.find_spec("torch"):
        pytest.skip("torch is not installed: run `python3 dev.py test --torch`")
    monkeypatch.chdir(tmp_path)
    examples = list(TUTORIALS.parse(page).examples())
    assert len(examples) == len(
        re.findall(r"^```(python|sh|text)$", page.read_text(), re.MULTILINE)
    )
    for example in examples:
        example.evaluate()


GUIDES = sorted(page for page in DOCS.glob("*.md") if "```python" in page.read_text())
SERVER = "postgresql://trainer:secret@db.example/experience"
OPTIONS = {"stable_baselines3": "--torch", "ray": "--ecosystems"}


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in GUIDES])
def test_each_block_of_a_guide_runs_twice_and_prints_what_it_shows(
    page, tmp_path, monkeypatch, request
):
    """Each block is a program of its own; processes are started with `spawn`."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    if f'"{SERVER}"' in text:
        text = text.replace(SERVER, request.getfixturevalue("postgresql_url"))
    for module, option in OPTIONS.items():
        if f"from {module}" in text and not importlib.util.find_spec(module):
            pytest.skip(f"{module} is not installed: run `python3 dev.py test {option}`")
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
    for number, (block, shown) in enumerate(blocks):
        if "torch" in block and not importlib.util.find_spec("torch"):
            continue
        program = tmp_path / f"block_{number}.py"
        spawn = "import multiprocessing\nmultiprocessing.set_start_method('spawn', force=True)\n"
        program.write_text(spawn + block)
        warnings = "default" if "coming_from" in page.name else "error"  # frameworks may warn
        for attempt in range(1 if "torch" in block else 2):  # importing torch takes seconds
            done = subprocess.run(
                [sys.executable, "-W", warnings, program], capture_output=True, text=True
            )
            assert done.returncode == 0, f"block {number}: {done.stderr}"
            if shown and not attempt:
                assert find_difference(shown, done.stdout) is None, f"block {number}: {done.stdout}"


def test_the_readme_shows_the_output_of_its_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = PAGES.parse(DOCS.parent / "README.md").examples()
    code.evaluate()
    output.evaluate()


def test_an_output_that_differs_from_the_page_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    run, compare = PAGES.parse(page).examples()
    run.evaluate()
    with pytest.raises(Exception, match=r"Expected:\n    3\nGot:\n    2"):
        compare.evaluate()


def test_the_reference_lists_every_public_name():
    pages = "".join(page.read_text() for page in DOCS.glob("reference/python/*.md"))
    listed = re.findall(r"^\.\. auto\w+:: expdb\.(\w+)$", pages, re.MULTILINE)
    assert sorted(listed) == sorted([*expdb.__all__, "testing"])
