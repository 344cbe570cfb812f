"""Tests of searches in short transactions within a time limit."""

import itertools

import pytest

import expdb
from expdb.serve import search
from expdb.serve.source import Source


@pytest.fixture
def many(buffer):
    rows = [
        {
            "task_id": f"t{k % 7}",
            "episode_id": f"e{k}",
            "text": f"text {k}",
            "reward": float(k % 10 == 0),
            "terminated": True,
        }
        for k in range(300)
    ]
    for row in rows:
        buffer.store(**row)
    buffer.delete({"episode_id": "e250"})
    return buffer


def ids(result):
    return [row["episode"] for row in result.rows]


@pytest.mark.parametrize(
    ("width", "where"),
    [(1, {"task_id": "t3"}), (7, None), (7, "either"), (1_000, {"reward": 1.0})],
)
def test_pages_together_contain_all_matches(many, monkeypatch, width, where):
    monkeypatch.setattr(search, "FIRST_WIDTH", width)
    if where == "either":
        where = expdb.QueryBuilder().gte("reward", 1.0).or_().eq("task_id", "t1")
    expected = many.episodes(where)["episode"].to_pylist()[::-1]
    seen, before = [], None
    while True:
        result = search.find_episodes(many, where, before=before, limit=11, seconds=60)
        seen += ids(result)
        before = result.next_before
        if before is None:
            break
        assert len(result.rows) == 11
    assert seen == expected


def test_a_text_search_continues_where_the_last_page_ended(many, location):
    source = Source(location, write=False)
    keep = search.contains_text(source, many, "TEXT 2")
    expected = [k for k in reversed(range(300)) if str(k).startswith("2") and k != 250]
    seen, before = [], None
    while before is not None or not seen:
        result = search.find_episodes(many, before=before, limit=9, seconds=60, keep=keep)
        seen += ids(result)
        before = result.next_before
    assert seen == expected
    source.close()


def test_a_search_stops_at_its_time_limit_and_can_be_continued(many, monkeypatch):
    monkeypatch.setattr(search, "FIRST_WIDTH", 10)
    clock = itertools.count()
    monkeypatch.setattr(search.time, "monotonic", lambda: next(clock) * 1.0)
    result = search.find_episodes(many, {"task_id": "nothing"}, seconds=5.0)
    assert result.rows == []
    assert not result.is_complete
    assert 0 < result.next_before < 300


def test_an_empty_buffer_has_no_episode(buffer):
    assert search.find_episodes(buffer) == search.SearchResult([], 0, True)


def test_texts_are_found_in_nested_values():
    assert list(search.texts_of({"a": ["b", {"c": "d"}], "e": 1})) == ["b", "d"]
