"""Tests that the programs in `tests/data/mistakes.md` raise the errors that it lists."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

import expdb

TEXT = (Path(__file__).parent / "data/mistakes.md").read_text()
PROGRAMS = re.findall(
    r"^## (\d{3}) .*\n```python\n((?:(?!```).*\n)*)```\nExpect: .*\nRaises: (.*)$",
    TEXT,
    re.MULTILINE,
)


@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
@pytest.mark.parametrize(
    ("code", "raises"), [pytest.param(*program[1:], id=program[0]) for program in PROGRAMS]
)
def test_an_ordinary_mistake_raises_an_error_with_a_remedy(code, raises, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    with expdb.open(tmp_path / "runs.db") as db:
        names = {"expdb": expdb, "np": np, "db": db, "buffer": db.buffer("train"), "folder": folder}
        with pytest.raises(expdb.ExpDBError) as caught, contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, "mistake.py", "exec"), names)
    message = f"{type(caught.value).__name__}: {caught.value}"
    assert re.fullmatch(re.escape(raises).replace(re.escape("..."), ".*"), message), message
    assert "\n" not in message
