"""Tests of scores and tags that the pages store."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from behind import dialect_of
from behind import writing as writing_transaction

TOKEN = "a-long-secret"
HEADERS = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def writing(filled, location, serve):
    return serve(location, write=True, token=TOKEN)


def test_a_reviewer_scores_and_tags_an_episode(writing, filled):
    path = "/b/train/e/e1/label"
    score = {"kind": "score", "name": "human", "value": "0.25", "by": "ann"}
    answer = writing.post(path, score, **HEADERS)
    assert (answer.status, answer.headers["location"]) == (303, "/b/train/e/e1")
    tag = {"kind": "tag", "name": "checked", "value": ""}
    assert writing.post(path, tag, **HEADERS).status == 303
    tag = {"kind": "tag", "name": "why", "value": "too long"}
    assert writing.post(path, tag, **HEADERS).status == 303
    buffer = filled.buffer("train")
    (row,) = buffer.scores({"episode_id": "e1"}).to_pylist()
    assert (row["name"], row["value"], row["scored_by"]) == ("human", 0.25, "ann")
    (episode,) = buffer.episodes({"episode_id": "e1"}).to_pylist()
    assert json.loads(episode["episode_tags"]) == {"checked": True, "why": "too long"}
    assert "human" in writing.get("/b/train/e/e1", **HEADERS).text


@pytest.mark.parametrize(
    "form",
    [{"kind": "score", "name": "human", "value": "good"},
     {"kind": "score", "name": "", "value": "1"},
     {"kind": "score", "name": "a b", "value": "1"}, {"kind": "tag", "name": "", "value": "1"},
     {"kind": "score", "name": "human", "value": "true"}, {},
     {"kind": "score", "name": "human", "value": "1" * 400},
     {"kind": "tag", "name": "bad name!", "value": "1"}],
)  # fmt: skip
def test_wrong_labels_are_refused(writing, filled, form):
    assert writing.post("/b/train/e/e1/label", form, **HEADERS).status == 400
    assert filled.buffer("train").scores({"episode_id": "e1"}).num_rows == 0


def test_labels_need_the_token_and_a_page_of_this_site(writing, filled):
    form = {"kind": "score", "name": "human", "value": "1"}
    path = "/b/train/e/e1/label"
    assert writing.post(path, form).status == 401
    assert writing.post(path, form, origin="http://evil.example", **HEADERS).status == 403
    assert writing.post(path, form, sec_fetch_site="cross-site", **HEADERS).status == 403
    cookie = {"cookie": f"expdb_token_{writing.port}={TOKEN}"}
    navigation = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert (
        writing.post(path, form, sec_fetch_site="same-site", **navigation, **cookie).status == 403
    )
    assert filled.buffer("train").scores({"episode_id": "e1"}).num_rows == 0
    assert writing.post(path, {**form, "value": "1" * 20_000}, **HEADERS).status == 413


def test_pages_offer_labels_only_if_they_can_be_stored(site, writing):
    assert 'class="label"' not in site.get("/b/train/e/e1").text
    assert 'class="label"' in writing.get("/b/train/e/e1", **HEADERS).text


def test_events_continue_while_labels_wait_for_another_writer(writing, filled):
    tag = {"kind": "tag", "name": "checked", "value": ""}
    lock = writing_transaction(filled)
    with ThreadPoolExecutor(12) as pool:
        with lock as session:
            session.query(dialect_of(filled).LOCK, 1)
            session.query("UPDATE buffers SET name = name")
            labels = [
                pool.submit(writing.post, "/b/train/e/e1/label", tag, **HEADERS) for _ in range(12)
            ]
            time.sleep(0.5)
            events = http.client.HTTPConnection("127.0.0.1", writing.port, timeout=5)
            events.request("GET", "/b/train/events", headers=HEADERS)
            assert events.getresponse().readline().startswith((b"data:", b"event:", b":", b"retry"))
            events.close()
        assert [label.result().status for label in labels] == [303] * 12
