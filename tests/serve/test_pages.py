"""Tests of the contents of the pages, on SQLite and PostgreSQL."""

import csv
import io
import json
import re
import time
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
import pytest
from behind import report_now

import expdb
from expdb.serve import transcript
from expdb.serve.views import episode, episodes, overview


def test_the_start_page_redirects_to_the_only_buffer(site):
    answer = site.get("/")
    assert (answer.status, answer.headers["location"]) == (303, "/b/train")


def test_several_buffers_are_listed(filled, location, serve):
    filled.buffer("a/b <c>").store(task_id="t", x=1)
    site = serve(location)
    text = site.get("/").text
    (path,) = re.findall(r'href="(/b/a[^"]+)"', text)
    assert "a/b &lt;c&gt;" in text
    assert site.get(path).status == 200
    assert site.get(path + "/episodes").status == 200


def test_an_empty_database_has_a_page(open_db, location, serve):
    open_db()
    assert "no buffer yet" in serve(location).get("/").text


def worker(role, state, waits_for=None, active=0.0):
    return {"role": role, "state": state, "waits_for": waits_for, "active": active}


def test_the_overview_shows_waiting_workers_and_reasons():
    reason = "no groups of 4; store steps first, or wait"
    workers = [worker("learner", "waiting", reason), worker("actor", "active")]
    waiting = [{"role": "learner", "seconds": 90.0, "who": "1 on box", "for": reason}]
    assert list(overview.describe_work(workers, waiting)) == [
        ("waiting", "The learner is waiting (longest wait so far: 90 s); reason: no groups of 4."),
        ("active", "The actor is active."),
    ]
    workers = [worker("actor", "waiting", "the pace"), worker("actor", "active")]
    learners, actors = overview.describe_work(workers, [])
    assert learners == ("silent", "No learner is running.")
    assert actors == ("waiting", "1 of 2 actors is waiting; reason: the pace.")
    workers = [worker("actor", "waiting", "the pace")] * 3
    assert overview.describe_work(workers, [])[1] == (
        "waiting", "The 3 actors are waiting; reason: the pace.",
    )  # fmt: skip
    workers = [worker("actor", "silent", active=time.time() - 90)] * 2 + [worker("actor", "active")]
    assert list(overview.describe_work(workers, []))[1:] == [
        ("active", "1 of 3 actors is active."),
        ("silent", "2 of 3 actors are silent; the last report was 90 s ago."),
    ]
    workers = [worker("actor", "ended", active=time.time() - 600)]
    assert list(overview.describe_work(workers, []))[1:] == [
        ("silent", "No actor is running; the last one ended 10 min ago.")
    ]


def test_pages_of_episodes_are_stable_while_episodes_are_added(
    filled, location, serve, monkeypatch
):
    monkeypatch.setattr(episodes, "PER_PAGE", 2)
    site = serve(location)
    first = site.get("/b/train/episodes").text
    assert re.findall(r">(e\d)<", first) == ["e5", "e4"]
    filled.buffer("train").store(task_id="t9", episode_id="e9", n=0, terminated=True)
    older = re.search(r'rel="next" href="([^"]+)"', first)[1].replace("&amp;", "&")
    assert re.findall(r">(e\d)<", site.get(older).text) == ["e3", "e2"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [("reward > 0", ["e5", "e3", "e1"]), ('task_id = "t0" and episode_return < 1', ["e2", "e0"]),
     ("scores.quality = 0.5", ["e0"]), ("last_policy_version = 2", ["e5", "e4", "e3"]),
     ('scores.quality = 0.5 or reward > 0 and task_id = "t1"', ["e5", "e3", "e0"]),
     ("episode_id = nothing", [])],
)  # fmt: skip
def test_queries_select_episodes(site, query, expected):
    text = site.get("/b/train/episodes?q=" + query.replace(" ", "+").replace('"', "%22")).text
    assert re.findall(r'<td><a href="/b/train/e/[^"]+">(e\d)</a>', text) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [("reward >", "reward"), ("nope = 1", "nope"), ("reward", "expected an operator"),
     ("length < 'x'", "length")],
)  # fmt: skip
def test_errors_in_queries_are_shown_beside_the_query(site, query, message):
    answer = site.get("/b/train/episodes?q=" + query.replace(" ", "+"))
    assert answer.status == 400
    assert message in re.search(r'role="alert">(.*?)</p>', answer.text)[1]
    assert (
        f'value="{query.replace(chr(39), "&#39;").replace(">", "&gt;").replace("<", "&lt;")}"'
        in answer.text
    )


def test_facets_have_their_own_time_limit(site, monkeypatch):
    monkeypatch.setattr(episodes, "FACET_SECONDS", 0.0)
    monkeypatch.setattr(episodes.search, "FIRST_WIDTH", 2)
    text = site.get("/b/train/facets").text
    assert "At least 2 episodes" in text
    assert "The counts cover the newest 2 matching episodes." in text


def test_a_text_search_links_to_the_first_matching_step(site):
    text = site.get("/b/train/episodes?text=NO+SUCH+FILE").text
    assert re.findall(r'<td><a href="/b/train/e/[^"]+">(e\d)</a>', text) == ["e3"]
    assert 'href="/b/train/e/e3?from=2#step-2"' in text


def test_facets_count_values_and_show_the_worst_tasks_first(site):
    text = site.get("/b/train/facets").text
    assert "6 episodes" in text
    assert re.findall(r">(t\d)</a>", text) == ["t0", "t1"]
    assert "last_policy_version" not in text
    assert site.get("/b/train/facets?q=nope+%3D+1", accept="*/*").status == 400


def test_an_episode_page_shows_a_transcript(site):
    text = site.get("/b/train/e/e3").text
    assert "Question <strong>3</strong>" in text
    assert text.count("Question") == 1  # only new messages of each step
    assert text.count("Thought 0") == 1
    assert "tool call: search" in text
    assert 'class="part result failed"' in text
    assert 'id="step-2"' in text
    assert "quality" in site.get("/b/train/e/e0").text


def test_the_page_of_a_fork_begins_with_the_steps_of_its_parents(filled, location, serve):
    buffer = filled.buffer("train")
    conversation = [{"role": "user", "content": "Question"}]
    with buffer.episode("t", episode_id="root") as root:
        for step in range(60):
            conversation += [{"role": "assistant", "content": f"Answer {step}."}]
            root.append(messages=list(conversation))
    with buffer.fork("root", 50, episode_id="fork") as fork:
        fork.append(messages=[*conversation[:51], {"role": "assistant", "content": "Other."}])
        fork.append(messages=[{"role": "assistant", "content": "Last."}])
    site = serve(location)
    first = site.get("/b/train/e/fork").text
    assert [int(n) for n in re.findall(r'id="step-(\d+)"', first)] == list(range(40))
    assert "fork of" in first
    assert 'href="/b/train/e/root"' in first
    second = site.get("/b/train/e/fork?from=40").text
    assert [int(n) for n in re.findall(r'id="step-(\d+)"', second)] == list(range(40, 52))
    assert second.count("Answer 49.") == second.count("Other.") == 1
    assert "Answer 50." not in second
    assert "data-more" not in second
    buffer.delete({"episode_id": "root"})
    alone = site.get("/b/train/e/fork?from=50").text
    assert [int(n) for n in re.findall(r'id="step-(\d+)"', alone)] == [50, 51]
    assert "an episode that is no longer stored" in alone


def test_unknown_episodes_and_buffers_return_404(site):
    answer = site.get("/b/train/e/nope")
    assert answer.status == 404
    assert "nope" in answer.text
    assert site.get("/b/nope").status == 404
    assert site.get("/b/train/p/99").status == 200
    assert site.get("/b/train/p/99/tokens.json").status == 404  # no such step


def test_an_episode_page_shows_all_steps_stored_out_of_order(filled, location, serve):
    buffer = filled.buffer("train")
    for step in reversed(range(100)):
        buffer.store(task_id="t", episode_id="late", step=step, n=step)
    site = serve(location)
    seen, path = [], "/b/train/e/late"
    while path:
        text = site.get(path).text
        seen += map(int, re.findall(r'id="step-(\d+)"', text))
        match = re.search(r'data-more><a href="([^"]+)"', text)
        path = match and match[1]
    assert seen == list(range(100))


def test_numeric_fields_of_an_episode_are_plotted(site):
    data = site.get("/b/train/e/e1/series.json").json
    assert data["step"] == [0, 1, 2]
    plots = {plot["title"]: plot["series"][0]["values"] for plot in data["plots"]}
    assert plots["reward"] == [0.0, 0.0, 1.0]
    assert plots["n"] == [0, 1, 2]


def test_tokens_include_fields_with_one_value_per_token(filled, location, serve):
    filled.buffer("train").annotate([0], advantages=[np.array([0.5, np.nan, 1, 2, 3])])
    site = serve(location)
    data = site.get("/b/train/p/0/tokens.json").json
    assert data["tokens"] == [0, 1, 2, 3, 4]
    assert data["colours"]["output_mask"] == [1, 1, 1, 0, 1]
    assert data["colours"]["logprobs"][0] == -2
    assert data["colours"]["advantages"][:2] == [0.5, None]
    assert data["colours"]["versions"] == [0, 0, 1, 1, 1]
    prompt = site.get("/b/train/p/0/tokens.json?of=prompt_ids").json
    assert (prompt["of"], prompt["count"], prompt["colours"]) == ("prompt_ids", 4, {})


def test_long_token_arrays_are_paged(open_db, location, serve):
    ids = np.arange(12_000, dtype=np.int32)
    open_db().buffer("train", fields={"ids": expdb.Field("int32", shape=(None,))}).store(
        task_id="t", ids=ids
    )
    data = serve(location).get("/b/train/p/0/tokens.json?first=10000").json
    assert (data["first"], data["count"], data["tokens"][-1]) == (10_000, 12_000, 11_999)


def test_pictures_are_png_files(site):
    answer = site.get("/b/train/p/1/picture/screen")
    assert answer.headers["content-type"] == "image/png"
    assert answer.body.startswith(b"\x89PNG")
    assert site.get("/b/train/p/1/picture/messages").status == 404
    assert site.get("/b/train/p/1/picture/nope").status == 400
    assert json.loads(site.get("/b/train/p/1/text/messages").text)[0]["role"] == "user"


def test_a_group_shows_its_rollouts_side_by_side(site):
    text = site.get("/b/train/group?task=t1&group=g1").text
    assert re.findall(r'aria-label="Rollout (e\d)"', text) == ["e3", "e4", "e5"]
    assert "standard deviation 0.4714" in text
    assert "first differ at step 0" in text
    assert "1 error<" in text
    assert "No rollout is stored" in site.get("/b/train/group?task=nope").text


def test_leases_link_to_episodes_and_episodes_to_leases(site):
    text = site.get("/b/train/ledger").text
    path = re.search(r'href="(/b/train/ledger/learner/\d+)"', text)[1]
    lease = site.get(path).text
    assert "trainer step" in lease
    episode = re.search(r'href="/b/train/e/(e\d)', lease)[1]
    assert lease.count('href="/b/train/e/') == 4
    draws = site.get(f"/b/train/e/{episode}/draws").text
    assert "batch 0" in draws
    assert "0.0556" in draws.replace("0.05556", "0.0556")  # 1 of 18
    position = re.search(r'href="/b/train/p/(\d+)"', lease)[1]
    assert "leased in batch 0" in site.get(f"/b/train/p/{position}").text
    assert "batch 0" in site.get("/b/train/ledger?step=7").text
    assert "No lease of trainer step 8" in site.get("/b/train/ledger?step=8").text
    assert "no such lease" in site.get("/b/train/ledger/learner/99").text
    assert site.get("/b/train/ledger/unknown/0").status == 404


def test_random_transcripts_come_from_the_newest_trainer_step(site):
    text = site.get("/b/train/random").text
    assert "from the batches of trainer step 7" in text
    lease = site.get("/b/train/ledger/learner/0").text
    trained = set(re.findall(r'href="/b/train/e/(e\d)', lease))
    assert set(re.findall(r'<h2><a href="/b/train/e/(e\d)"', text)) == trained
    assert "No acknowledged lease of trainer step 3" in site.get("/b/train/random?step=3").text


def test_sql_shows_rows_and_exports_them(site):
    statement = "SELECT+task_id,+count(*)+AS+n+FROM+experience+GROUP+BY+task_id+ORDER+BY+1;"
    text = site.get(f"/sql?q={statement}").text
    assert "2 rows" in text
    rows = list(csv.reader(io.StringIO(site.get(f"/sql.csv?q={statement}").text)))
    assert rows == [["task_id", "n"], ["t0", "9"], ["t1", "9"]]
    table = pq.read_table(io.BytesIO(site.get(f"/sql.parquet?q={statement}").body))
    assert table["n"].to_pylist() == [9, 9]
    assert site.get(f"/sql.exe?q={statement}").status == 404


@pytest.mark.parametrize(
    ("statement", "message"),
    [("DELETE FROM steps", "one SELECT"), ("SELECT nope FROM experience", "nope"),
     ("SELECT 1; SELECT 2", ""), ("SELECT 1) AS x; DROP TABLE steps; --", ""),
     ("SELECT count(*) FROM experience a, experience b, experience c, experience d, experience e, "
      "experience f, experience g, experience h", "the query took")],
)  # fmt: skip
def test_refused_statements_show_the_reason(site, statement, message):
    answer = site.get("/sql?q=" + statement.replace(" ", "+").replace(";", "%3B"))
    assert answer.status == 400
    assert message in re.search(r'role="alert">(.*?)</p>', answer.text, re.DOTALL)[1]


def test_long_results_are_truncated(site):
    numbers = "WITH+RECURSIVE+n(i)+AS+(SELECT+1+UNION+ALL+SELECT+i%2B1+FROM+n+WHERE+i<5000)+"
    text = site.get(f"/sql?q={numbers}SELECT+i,+i*2+AS+d+FROM+n").text
    assert "1,000 rows; the result has more" in text
    assert "data-plot" in text


def test_metrics_are_prometheus_text(site):
    answer = site.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_pages_of_a_moved_database_show_an_error(filled, location, serve):
    site = serve(location)
    if "://" in location:
        pytest.skip("a server's database is not a file")
    import os

    os.rename(location, location + ".moved")
    try:
        answer = site.get("/b/train")
        assert answer.status == 503
        assert "deleted or replaced" in answer.text
    finally:
        os.rename(location + ".moved", location)


def test_steps_without_a_picture_or_tokens_show_none(open_db, location, serve):
    buffer = open_db().buffer("train", fields=expdb.TOKEN_FIELDS)
    screen = np.zeros((16, 16, 3), np.uint8)
    ids = np.arange(3, dtype=np.int32)
    buffer.store(task_id="t", episode_id="e", screen=screen, output_ids=ids)
    buffer.store(task_id="t", episode_id="e", n=1)
    site = serve(location)
    text = site.get("/b/train/e/e").text
    assert re.findall(r"/b/train/p/(\d)/picture/screen", text) == ["0"]
    assert site.get("/b/train/p/1/tokens.json").json["count"] == 0
    assert site.get("/b/train/p/0/tokens.json").json["count"] == 3


@pytest.mark.parametrize(
    "statement",
    ["\ufeffSELECT 1", ";SELECT 1", "EXPLAIN SELECT 1", "TABLE experience", "SELECT 1 ) /*",
     "/**/" * 5_000 + "x", "-- only a comment", "select1"],
)  # fmt: skip
def test_statements_that_cannot_be_limited_are_refused(site, statement):
    answer = site.get("/sql?q=" + quote(statement))
    assert answer.status == 400
    assert "one SELECT" in answer.text


@pytest.mark.parametrize(
    "statement",
    ["select 1 as x", "/* a */ -- b\n SELECT 1 AS x", "SELECT 1 AS x -- why",
     "WITH y AS (SELECT 1 AS x) SELECT x FROM y"],
)  # fmt: skip
def test_comments_in_statements_are_allowed(site, statement):
    assert "1 row." in site.get("/sql?q=" + quote(statement)).text


def test_another_site_cannot_choose_the_statement_that_runs(site):
    link = {
        "sec_fetch_site": "cross-site",
        "sec_fetch_mode": "navigate",
        "sec_fetch_dest": "document",
    }
    text = site.get("/sql?q=SELECT+'exp'||'ected'+AS+x", **link).text
    assert ">expected<" not in text
    assert "another site has opened this page" in text
    assert site.get("/sql.csv?q=SELECT+1", **link).status == 400
    assert ">expected<" in site.get("/sql?q=SELECT+'exp'||'ected'+AS+x").text


def test_csv_export_rejects_binary_values(site, location):
    value = "'\\xff'::bytea" if "://" in location else "x'ff00'"
    answer = site.get("/sql.csv?q=" + quote(f"SELECT {value} AS x"))
    assert answer.status == 400
    assert "use Parquet" in answer.text


def test_malformed_messages_are_shown(open_db, location, serve):
    messages = [
        {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "tool_calls": [None, 1, "x", []]},
        {"role": "assistant", "tool_calls": [{"function": 1}, {"function": {"name": None}}]},
        {"role": "assistant", "function_call": {"arguments": "[" * 3000 + "]" * 3000}},
        {"role": None, "content": {"a": [1]}},
        {"role": ["x"], "content": [1, None, {"text": 2}]},
        {"role": "tool", "content": "", "is_error": True},
    ]
    open_db().buffer("train").store(task_id="t", episode_id="e", messages=messages, terminated=True)
    site = serve(location)
    for path in ("/b/train/e/e", "/b/train/group?task=t", "/b/train/random"):
        assert site.get(path).status == 200


@pytest.mark.filterwarnings("ignore:step 0 of episode 'e' is stored twice")
def test_steps_with_the_same_number_stay_on_one_page(open_db, location, serve, monkeypatch):
    monkeypatch.setattr(transcript, "PAGE_CHARACTERS", 10)
    buffer = open_db().buffer("train")
    for agent, step in (("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2)):
        note = "a long text " * 20
        buffer.store(task_id="t", episode_id="e", step=step, agent_id=agent, note=note)
    site = serve(location)
    text = site.get("/b/train/e/e").text
    assert re.findall(r'id="step-(\d)"', text) == ["0", "0", "0"]
    text = site.get(re.search(r'data-more><a href="([^"]+)"', text)[1]).text
    assert re.findall(r'id="step-(\d)"', text) == ["1", "1"]


@pytest.mark.parametrize("name", ["..", ".", "a/b/1", "50%", "a b?c#d", "%2F"])
def test_names_in_urls_may_contain_any_character(open_db, location, serve, name):
    db = open_db()
    db.buffer(name).store(task_id="t", episode_id=name, terminated=True)
    site = serve(location)
    text = site.get(site.get("/").headers["location"]).text
    path = re.search(r'<td><a href="(/b/[^"]+/e/[^"]+)"', text)[1]
    assert not {".", ".."} & set(path.split("/"))
    assert site.get(path).status == 200
    assert site.get(path + "/draws").status == 200


def test_an_episode_id_with_slashes_works_unescaped_in_a_url(open_db, location, serve):
    open_db().buffer("train").store(task_id="t", episode_id="order-7/0", terminated=True)
    assert serve(location).get("/b/train/e/order-7/0").status == 200


def test_the_overview_shows_progress_after_a_released_lease(filled, location, serve):
    filled.buffer("train").consumer("learner").lease(2).release()
    text = serve(location).get("/b/train").text
    row = re.search(r"consumer=learner.*?</tr>", text, re.DOTALL)[0]
    assert re.findall(r'<td class="n">(\d+)</td>', row)[0] == "7"


def test_pages_of_long_episodes_mention_omitted_steps(site, monkeypatch):
    monkeypatch.setattr(episode, "MAX_STEPS", 2)
    data = site.get("/b/train/e/e1/series.json").json
    assert (data["step"], data["is_cut"]) == ([0, 1], True)
    assert "Only the first 2 steps" in site.get("/b/train/e/e1/draws").text
    monkeypatch.setattr(episode, "MAX_STEPS", 3)
    assert site.get("/b/train/e/e1/series.json").json["is_cut"] is False


def test_neighbours_are_found_beyond_many_deleted_episodes(open_db):
    buffer = open_db().buffer("train")
    for number in range(90):
        buffer.store(task_id="t", episode_id=f"e{number}", n=0, terminated=True)
    buffer.delete(np.arange(1, 89))
    assert episode.find_neighbours(buffer, 0) == ("e89", None)
    assert episode.find_neighbours(buffer, 89) == (None, "e0")
    buffer.delete([0, 89])
    assert episode.find_neighbours(buffer, 40) == (None, None)


def test_an_open_episode_without_stored_steps_has_no_page(open_db, location, serve):
    buffer = open_db().buffer("train", capacity=2)
    buffer.store(task_id="t", episode_id="evicted", n=0)
    for number in range(2):
        buffer.store(task_id="t", episode_id=f"e{number}", n=1, terminated=True)
    site = serve(location)
    assert site.get("/b/train/e/evicted").status == 404
    assert 'rel="next"' not in site.get("/b/train/e/e0").text


def test_the_newest_step_age_includes_the_measurement_age(filled, location, serve, monkeypatch):
    report_now(filled.buffer("train"))
    site, now = serve(location), time.time()
    monkeypatch.setattr(overview, "time", SimpleNamespace(time=lambda: now + 600))
    text = site.get("/b/train").text
    assert re.search(r"<dt>Newest step</dt><dd>(.*?) <", text)[1] == "10 min"


def test_expired_leases_are_shown_as_expired(filled, location, serve):
    lease = filled.buffer("train").consumer("slow").lease(1, expiry_seconds=0.01)
    time.sleep(0.02)
    site = serve(location)
    for path in ("ledger", f"ledger/slow/{lease.id}"):
        assert '<span class="badge expired">expired</span>' in site.get(f"/b/train/{path}").text


def test_a_group_compares_forks_from_the_root_and_omits_helpers(filled, location, serve):
    buffer = filled.buffer("train")
    with buffer.episode("t", episode_id="root", group_id="g") as root:
        for step in range(4):
            root.append(messages=[{"role": "assistant", "content": f"Answer {step}."}])
    with buffer.fork("root", 2, episode_id="fork") as fork:
        fork.append(messages=[{"role": "assistant", "content": "Other."}])
    buffer.store(
        task_id="t", group_id="g", episode_id="helper", parent="root", relation="subagent",
        terminated=True,
    )  # fmt: skip
    site = serve(location)
    text = site.get("/b/train/group?task=t&group=g").text
    assert "first differ at step 2" in text
    assert "Other." in text
    assert "helper" not in text
    buffer.score(episode_id="root", name="quality", value=0.25)
    text = site.get("/b/train/group?task=t&group=g").text
    assert text.count("quality") == 1  # not for the fork
    buffer.delete({"episode_id": "root", "step": 0})  # the fork lacks its shared steps
    text = site.get("/b/train/group?task=t&group=g").text
    assert "first differ at step 2" in text


@pytest.mark.parametrize(
    ("second", "difference"),
    [
        ([("edit", "a"), ("read", "b")], None),
        ([("edit", "a"), ("edit", "b")], 1),
        ([("edit", "a")], 1),
        ([("edit", "a"), ("read", "b"), ("read", "c")], 2),
        ([("edit", "x"), ("read", "b")], 0),
    ],
)
def test_a_group_shows_the_first_step_at_which_its_rollouts_differ(
    open_db, location, serve, second, difference
):
    buffer = open_db().buffer("train")
    for number, calls in enumerate(([("edit", "a"), ("read", "b")], second)):
        for step, (name, text) in enumerate(calls):
            call = {"function": {"name": name, "arguments": json.dumps({"text": text})}}
            buffer.store(
                task_id="t", group_id="g", episode_id=f"e{number}", reward=1.0,
                messages=[{"role": "assistant", "content": "", "tool_calls": [call]}],
                terminated=step == len(calls) - 1,
            )  # fmt: skip
    text = serve(location).get("/b/train/group?task=t&group=g").text
    shown = re.search(r"first differ at step (\d)", text)
    assert (shown and int(shown[1])) == difference
    assert ("do not differ" in text) == (difference is None)
