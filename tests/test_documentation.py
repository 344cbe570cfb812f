"""Tests of the documentation: code blocks print the shown output, and links work."""

import contextlib
import doctest
import importlib.util
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

import expdb

DOCS = Path(__file__).parents[1] / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class OutputEvaluator(PythonEvaluator):
    """Runs a block and stores its output; writes a block that begins with a file name to a file."""

    def __call__(self, example):
        if name := re.match(r"# (\w+\.py)\n", example.parsed):
            Path(name[1]).write_text(example.parsed)
            return
        with contextlib.redirect_stdout(io.StringIO()) as output:
            super().__call__(example)
        example.namespace["printed output"] = output.getvalue()


def run_shell(example):
    """Run a block with bash, and store its output."""
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
README, PAGES = Sybil(parsers=PYTHON), Sybil(parsers=[*PYTHON, SHELL])
SERVER = "postgresql://trainer:secret@db.example/experience"
OPTIONS = {"torch": "--torch", "stable_baselines3": "--torch", "ray": "--ecosystems"}


def pages():
    """Return the pages with blocks that run."""
    for page in sorted([*DOCS.glob("*.md"), *DOCS.glob("*/*.md")]):
        if re.search(r"^```(python|sh)$", page.read_text(), re.MULTILINE):
            yield pytest.param(page, id=f"{page.parent.name}/{page.stem}")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", list(pages()))
def test_the_code_blocks_of_a_page_run_and_print_the_shown_output(
    page, tmp_path, monkeypatch, request
):
    text = page.read_text()
    for module, option in OPTIONS.items():
        imported = re.search(rf"^\s*(import|from) {module}\b", text, re.MULTILINE)
        if imported and not importlib.util.find_spec(module):
            pytest.skip(f"{module} is not installed: run `python3 dev.py test {option}`")
    if SERVER in text:
        text = text.replace(SERVER, request.getfixturevalue("postgresql_url"))
    copy, folder = tmp_path / "page.md", tmp_path / "empty"
    copy.write_text(text)
    folder.mkdir()
    monkeypatch.chdir(folder)
    examples = list(PAGES.parse(copy).examples())
    assert len(examples) == len(re.findall(r"^```(python|sh|text)$", text, re.MULTILINE))
    with warnings.catch_warnings():
        if page.stem.startswith("move-from-"):  # the other framework may warn
            warnings.simplefilter("default")
        for example in examples:
            example.evaluate()


def test_the_readme_shows_the_output_of_its_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = README.parse(DOCS.parent / "README.md").examples()
    code.evaluate()
    output.evaluate()


def list_anchors(text):
    """Return the anchors of the headings of a page, as GitHub and MyST name them."""
    without_code = re.sub(r"^(`{3,4}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def list_broken_links(page):
    """Return the links of a page to files or headings that do not exist."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in list_anchors(target.read_text())):
            yield link


def test_every_link_has_an_existing_file_and_heading():
    pages = [*DOCS.parent.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("*/*.md")]
    broken = {str(page): links for page in pages if (links := list(list_broken_links(page)))}
    assert not broken


def test_a_broken_link_is_detected(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Use it\n\n[a](#use-it) [b](#use) [c](page.md#use-it) [d](other.md)\n")
    assert list(list_broken_links(page)) == ["#use", "other.md"]


def test_a_wrong_output_on_a_page_is_detected(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    run, compare = PAGES.parse(page).examples()
    run.evaluate()
    with pytest.raises(Exception, match=r"Expected:\n    3\nGot:\n    2"):
        compare.evaluate()


def test_the_reference_lists_every_public_name():
    pages = "".join(page.read_text() for page in DOCS.glob("reference/python/*.md"))
    listed = re.findall(r"^\.\. auto\w+:: expdb\.((?:errors\.)?\w+)$", pages, re.MULTILINE)
    errors = [name for name in expdb.errors.__all__ if name not in expdb.__all__]
    public = [*expdb.__all__, *[f"errors.{name}" for name in errors], "testing"]
    assert sorted(listed) == sorted(public)
