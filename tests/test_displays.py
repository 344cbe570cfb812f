"""Notebooks show batches, buffers and databases as tables."""

import numpy as np

import expdb


def test_displays_show_contents_and_escape_all_text(scratch):
    with scratch.episode("<script>alert(1)</script>", episode_id="first") as episode:
        for step in range(9):
            episode.append(obs=np.full(3, step), note="<img src=x>" * 20, reward=1.0)
    for text in (
        scratch._repr_html_(),
        scratch._database._repr_html_(),
        scratch.sample(7)._repr_html_(),
    ):
        assert "<script" not in text
        assert "<img" not in text
    html = scratch._repr_html_()
    assert all(part in html for part in ("9 steps", "&lt;script&gt;", "first", "int64[3]", "9.0"))
    assert f">{scratch.name}</td>" in scratch._database._repr_html_()
    html = scratch.sample(7)._repr_html_()
    assert all(part in html for part in ("Batch of 7 rows", "obs", "[7, 3]", "row 4"))
    assert "row 5" not in html


def test_displays_of_empty_objects(db):
    assert "0 steps, capacity unlimited" in db.buffer("empty")._repr_html_()
    assert "Batch of 0 rows" in expdb.Batch({"x": np.zeros(0)})._repr_html_()
    with expdb.open(":memory:") as other:
        assert "ExperienceDB" in other._repr_html_()
        buffer = other.buffer("b")
    assert other._repr_html_() is None
    assert buffer._repr_html_() is None


def test_completion_shows_no_private_names(scratch):
    for item in (scratch, scratch._database):
        assert not [name for name in dir(item) if name.startswith("_") and name[1] != "_"]
        assert {"sample", "capacity"} <= set(dir(scratch))
