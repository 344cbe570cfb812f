"""ATIF documents of each version are exported again as they were imported."""

import json
import random

import numpy as np
import pytest

import expdb
from expdb import errors, formats

pytest.importorskip("atif")
from atif import Trajectory

DOCUMENT = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "trajectory_id": "t1",
    "agent": {
        "name": "coder", "version": "2.0", "model_name": "m",
        "tool_definitions": [{"type": "function", "function": {"name": "ls"}}],
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": "List.", "timestamp": "2026-01-02T03:04:05Z"},
        {
            "step_id": 3, "source": "agent", "message": "",
            "timestamp": "2026-01-02T03:04:06+00:00", "reasoning_content": "hm",
            "model_name": "m2", "reasoning_effort": "high",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "ls", "arguments": {"p": ["/", 1.0, None]}}
            ],
            "observation": {"results": [
                {"source_call_id": "c1", "content": "a\\nb"},
                {"content": None, "subagent_trajectory_ref": [{"trajectory_id": "sub"}]},
            ]},
            "metrics": {
                "prompt_tokens": 3, "completion_tokens": 2, "cost_usd": 0.125,
                "prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5],
                "logprobs": [-0.1, -0.2000000001], "extra": {"reasoning_tokens": 1},
            },
        },
        {"step_id": 4, "source": "agent", "message": [{"type": "text", "text": "Done."}],
         "llm_call_count": 1, "extra": {"k": 1}},
        {"step_id": 5, "source": "user", "message": "Thanks."},
    ],
    "final_metrics": {"total_steps": 5, "total_cost_usd": 0.125},
    "notes": "n",
    "extra": {"a": {"b": 1}},
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7", "trajectory_id": "sub",
            "agent": {"name": "helper", "version": "1"},
            "steps": [{"step_id": 1, "source": "agent", "message": "x"}],
        }
    ],
}  # fmt: skip


def load(buffer, *documents):
    return formats.import_rollouts(buffer, formats.read(list(documents)))


def exported(buffer, path, **options):
    formats.write_atif(buffer, path, **options)
    return [json.loads(line) for line in path.read_text().splitlines()]


def as_text(document):
    return json.dumps(document, sort_keys=True)


def test_a_document_is_exported_as_it_was_imported(scratch, tmp_path):
    report = load(scratch, DOCUMENT)
    assert (report.episodes, report.steps, report.refused) == (2, 3, [])
    (document,) = exported(scratch, tmp_path / "a.jsonl")
    assert as_text(document) == as_text(DOCUMENT)


def test_the_steps_of_the_agent_are_turns_with_their_tokens(scratch):
    load(scratch, DOCUMENT)
    names = "messages", "action", "prompt_ids", "output_ids", "logprobs", "model", "execute_time"
    first, last = scratch.get([0, 1], fields=[*names, "next_messages", "tools"]).to_list()
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["action"]["tool_calls"][0]["function"]["name"] == "ls"
    assert json.loads(first["action"]["tool_calls"][0]["function"]["arguments"])["p"][1] == 1.0
    assert (first["prompt_ids"].tolist(), first["output_ids"].tolist()) == ([1, 2, 3], [4, 5])
    assert first["logprobs"].tolist() == np.float32([-0.1, -0.2000000001]).tolist()
    assert (first["model"], first["execute_time"]) == ("m2", 1767323046.0)
    assert [message["role"] for message in last["messages"][2:]] == ["assistant", "tool", "tool"]
    assert last["next_messages"][-1] == {"role": "user", "content": "Thanks."}
    assert last["tools"] == DOCUMENT["agent"]["tool_definitions"]
    rows = scratch.lineage("t1").to_pylist()
    assert [(row["episode_id"], row["relation"], row["parent_step"]) for row in rows] == [
        ("t1", None, None), ("t1/sub", "subagent", 0),
    ]  # fmt: skip


def random_document(rng, depth=0):
    def maybe(**values):
        return {name: value for name, value in values.items() if rng.random() < 0.5}

    steps = []
    for number in range(1, rng.randint(2, 8)):
        source = rng.choice(["system", "user", "agent", "agent"])
        text = rng.choice(["", "hello \u00e9", "line\n2"])
        message = rng.choice([text, [{"type": "text", "text": text}]])
        step = {"step_id": number, "source": source, "message": message}
        step |= maybe(
            timestamp=f"2026-01-0{rng.randint(1, 9)}T03:04:05.12+02:00", extra={"k": number}
        )
        step |= maybe(is_copied_context=rng.random() < 0.5, llm_call_count=rng.randint(1, 3))
        calls = []
        if source == "agent":
            calls = [
                {"tool_call_id": f"c{k}", "function_name": "f", "arguments": {"n": k, "x": k / 3}}
                | maybe(extra={"retry": 1})
                for k in range(rng.randint(0, 2))
            ]
            step |= {"tool_calls": calls} if calls else {}
            tokens = [rng.randint(0, 150_000) for _ in range(rng.randint(1, 5))]
            metrics = maybe(prompt_tokens=3, cost_usd=0.1, prompt_token_ids=tokens)
            if rng.random() < 0.5:
                logprobs = [-rng.random() for _ in tokens]
                metrics |= {"completion_token_ids": tokens, **maybe(logprobs=logprobs)}
            step |= maybe(metrics=metrics, reasoning_content="why", model_name="m")
        if rng.random() < 0.5:
            results = [{"source_call_id": call["tool_call_id"], "content": text} for call in calls]
            results += [maybe(content="event", extra={"e": 1}) for _ in range(rng.randint(0, 1))]
            step["observation"] = {"results": results}
        steps.append(step)
    steps.append({"step_id": len(steps) + 1, "source": "agent", "message": "end"})
    document = {
        "schema_version": f"ATIF-v1.{rng.randint(0, 8)}",
        "trajectory_id": f"t{rng.randrange(10**12)}",
        "agent": {"name": "a", "version": "1", **maybe(tool_definitions=[{"name": "f"}])},
        "steps": steps,
        **maybe(session_id="s", notes="n", final_metrics={"total_steps": 3}, extra={"q": [1]}),
    }
    if depth < 2 and rng.random() < 0.4:
        document["subagent_trajectories"] = [
            random_document(rng, depth + 1) for _ in range(rng.randint(1, 2))
        ]
    return document


def test_random_documents_are_exported_as_they_were_imported(scratch, tmp_path):
    rng = random.Random(0)
    documents = [random_document(rng) for _ in range(150)]
    for document in documents:
        Trajectory.model_validate(document)
    assert load(scratch, *documents).refused == []
    found = exported(scratch, tmp_path / "a.jsonl")
    assert sorted(map(as_text, found)) == sorted(map(as_text, documents))


def test_an_episode_of_another_origin_becomes_a_valid_document(new_buffer, tmp_path):
    buffer, again = new_buffer(), new_buffer()
    question, late = {"role": "user", "content": "?"}, {"role": "user", "content": "go on"}
    call = {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "not json"}}],
    }  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c", "content": "4"}
    answer = {"role": "assistant", "content": "4"}
    with buffer.episode("t", episode_id="a", group_id="g", policy_version=3) as episode:
        episode.append(messages=[question], action=call)
        episode.append(messages=[question, call, result], action=answer, reward=0.5)
        episode.append(messages=[late], action=answer)  # after a compaction
    buffer.score(episode_id="a", name="judge", value=1.0)
    buffer.store(
        episode_id="b", messages=[question], action=answer, parent="a", parent_step=1,
        relation="subagent", terminated=True,
    )  # fmt: skip
    (document,) = exported(buffer, tmp_path / "a.jsonl")
    Trajectory.model_validate(document)
    assert [step["source"] for step in document["steps"]] == [
        "user", "agent", "agent", "user", "agent",
    ]  # fmt: skip
    assert document["steps"][3]["is_copied_context"] is True
    assert document["steps"][1]["observation"]["results"][0]["content"] == "4"
    assert document["extra"]["expdb"] == {
        "task_id": "t", "group_id": "g", "reward": 0.5, "scores": {"judge": 1.0},
    }  # fmt: skip
    assert load(again, document).refused == []
    row = again.episodes({"episode_id": "a"}).to_pylist()[0]
    assert (row["task_id"], row["group_id"], row["episode_return"]) == ("t", "g", 0.5)
    assert exported(again, tmp_path / "b.jsonl") == [document]


def test_documents_are_written_to_a_new_folder(scratch, tmp_path):
    load(scratch, DOCUMENT, {**DOCUMENT, "trajectory_id": "a/b"})
    assert formats.write_atif(scratch, tmp_path / "out") == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a%2Fb.json", "t1.json"]
    assert load(scratch, DOCUMENT).known == 2
    report = formats.import_rollouts(scratch, formats.read(tmp_path / "out"))
    assert (report.known, report.refused) == (4, [])
    with pytest.raises(errors.TargetExists):
        formats.write_atif(scratch, tmp_path / "out")


def test_each_document_of_a_folder_has_its_own_file(new_buffer, tmp_path):
    buffer, again = new_buffer(), new_buffer()
    ids = ["2", "a", "A", "A" * 300 + "x", "A" * 300 + "y", ".hid", "_under", "..", "../../evil"]
    load(buffer, *[{**DOCUMENT, "trajectory_id": id} for id in ids])
    assert formats.write_atif(buffer, tmp_path / "out") == len(ids)
    assert len(list((tmp_path / "out").iterdir())) == len(ids)
    report = formats.import_rollouts(again, formats.read(tmp_path / "out"))
    assert (report.episodes, report.refused) == (2 * len(ids), [])


def test_grandchildren_are_embedded_once(scratch, tmp_path):
    message = {"role": "assistant", "content": "x"}
    for name, parent in (("p", None), ("c", "p"), ("g", "c")):
        relation = {"parent": parent, "relation": "subagent"} if parent else {}
        scratch.store(
            episode_id=name,
            messages=[{"role": "user", "content": "?"}],
            action=message,
            terminated=True,
            **relation,
        )
    where = expdb.QueryBuilder().in_("episode_id", ["p", "g"])
    (document,) = exported(scratch, tmp_path / "a.jsonl", where=where)
    assert document["subagent_trajectories"][0]["subagent_trajectories"][0]["trajectory_id"] == "g"


def test_a_tag_named_atif_is_ignored_unless_an_import_wrote_it(scratch, tmp_path):
    message = {"role": "assistant", "content": "x"}
    scratch.store(
        episode_id="a",
        messages=[{"role": "user", "content": "?"}],
        action=message,
        episode_tags={"atif": {"x": 1}},
        terminated=True,
    )
    (document,) = exported(scratch, tmp_path / "a.jsonl")
    assert document["trajectory_id"] == "a"


def test_a_failed_export_leaves_nothing(scratch, tmp_path):
    load(scratch, DOCUMENT)
    scratch.store(episode_id="text", messages=[], action="no message", terminated=True)
    for name in ("out", "a.jsonl"):
        with pytest.raises(expdb.InvalidValue, match="has no message with a role in 'action'"):
            formats.write_atif(scratch, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": "ATIF-v2.0"}, "is not one of ATIF-v1.0 to ATIF-v1.8"),
        ({"steps": []}, "no step of an agent"),
        ({"steps": [{"step_id": 1, "source": "user", "message": ""}]}, "no step of an agent"),
        ({"extra": {"expdb": {"scores": [1]}}}, "scores must be an object"),
        (
            {
                "steps": [
                    {
                        "step_id": 1,
                        "source": "agent",
                        "message": "",
                        "timestamp": "0001-01-01T00:00:00+23:59",
                    }
                ]
            },
            "year 0",
        ),
        ({"agent": {"name": "x"}}, "agent.version: Field required"),
        ({"unknown": 1}, "unknown: Extra inputs are not permitted"),
        ({"steps": [{"step_id": 2, "source": "agent", "message": ""}]}, "is not sequential"),
        ({"steps": [{"step_id": 1, "source": "agent", "message": 3}]}, "steps.0.message"),
    ],
)
def test_an_invalid_document_is_refused(scratch, change, reason):
    report = load(scratch, {**DOCUMENT, **change})
    assert report.episodes == 0
    assert reason in report.refused[0]


def test_a_buffer_without_conversations_is_refused(scratch, tmp_path):
    scratch.store(x=1)
    with pytest.raises(expdb.InvalidValue, match="has no fields 'messages' and 'action'"):
        formats.write_atif(scratch, tmp_path / "a.jsonl")
