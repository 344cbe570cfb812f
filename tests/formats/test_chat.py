"""Conversations become turns, and turns become conversations and preference pairs."""

import json

import pytest

import expdb
from expdb import errors, formats

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "2 + 2?"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {}}]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": ""}
ANSWER = {"role": "assistant", "content": "4"}
THANKS = {"role": "user", "content": "Thanks"}


def load(buffer, records, **options):
    report = formats.import_rollouts(buffer, formats.read(records, **options))
    return report.refused


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_message_of_the_assistant_is_a_step(scratch):
    messages = [SYSTEM, QUESTION, CALL, RESULT, ANSWER, THANKS]
    assert load(scratch, [{"id": "a", "messages": messages, "reward": 0.5}]) == []
    fields = ["messages", "action", "reward", "next_messages"]
    first, last = scratch.get([0, 1], fields=fields).to_list()
    assert (first["messages"], first["action"], first["reward"]) == (messages[:2], CALL, None)
    assert (last["messages"], last["action"], last["reward"]) == (messages[:4], ANSWER, 0.5)
    assert last["next_messages"] == messages


def test_other_keys_become_columns_scores_and_tags(scratch):
    record = {
        "id": 7, "messages": [QUESTION, ANSWER], "task_id": 12, "group_id": "g", "agent_id": "m",
        "policy_version": 3, "scores": {"judge": 0.5}, "metadata": {"a": 1}, "source": "web",
        "tools": '[{"name": "search"}]', "missing": None,
    }  # fmt: skip
    assert load(scratch, [record]) == []
    (row,) = scratch.episodes().to_pylist()
    names = "episode_id", "task_id", "group_id", "agent_id", "policy_version"
    assert [row[name] for name in names] == ["7", "12", "g", "m", 3]
    assert json.loads(row["episode_tags"]) == {"a": 1, "source": "web"}
    step = scratch.get([0], fields=["tools", "scores"]).to_list()[0]
    assert step["tools"] == [{"name": "search"}]
    assert step["scores"] == {"judge": 0.5}


def test_names_map_columns_to_keys(scratch):
    record = {"conversation": json.dumps([QUESTION, ANSWER]), "question": 3, "task_id": "other"}
    names = {"messages": "conversation", "task_name": "question"}
    assert load(scratch, [record], names=names) == []
    assert scratch.episodes()["task_name"].to_pylist() == ["3"]
    assert load(scratch, [record], names={**names, "task_id": "question_id"}) == [
        "list[0]: the record has no key 'question_id', which is mapped to 'task_id'; its keys are "
        "conversation, question, task_id"
    ]
    (reason,) = load(scratch, [record], names={"messages": "conversation", "task_id": "question"})
    assert "the record has a key 'task_id', and 'question' is mapped to the same name" in reason


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": []}, "messages must be a list with at least one message"),
        ({"messages": "[1"}, "messages is text that is not valid JSON"),
        ({"messages": {"role": "user"}}, "messages must be a list"),
        ({"messages": [{"content": "x"}]}, "messages[0] must be an object with a role"),
        ({"messages": [QUESTION]}, "has no message with the role assistant"),
        ({"messages": [ANSWER], "scores": 3}, "scores must be an object"),
        ({"messages": [ANSWER], "scores": {"a b": 1}}, "'a b'"),
        ({"messages": [ANSWER], "reward": "good"}, "reward must be"),
        ({"messages": [ANSWER], "task_id": ["a"]}, "task_id must be"),
        ({"messages": [ANSWER], "status": "done"}, "status must be"),
    ],
)
def test_an_invalid_conversation_is_refused(scratch, record, reason):
    load(scratch, [{"messages": [QUESTION, ANSWER]}])
    (found,) = load(scratch, [record], format="chat")
    assert reason in found
    assert len(scratch) == 1


def test_an_exported_conversation_can_be_imported_again(new_buffer, tmp_path):
    buffer, again = new_buffer(), new_buffer()
    records = [
        {"id": "a", "messages": [SYSTEM, QUESTION, CALL, RESULT, ANSWER, THANKS], "reward": 0.25,
         "tools": [{"name": "add"}], "scores": {"judge": 1.0}, "metadata": {"k": [1, None]},
         "group_id": "g", "task_id": "t", "agent_id": "m", "status": "aborted"},
        {"id": "b", "messages": [QUESTION, ANSWER], "task_id": "u", "agent_id": "agent"},
    ]  # fmt: skip
    load(buffer, records)
    assert formats.write_chat(buffer, tmp_path / "a.jsonl") == 2
    assert lines_of(tmp_path / "a.jsonl") == records
    assert load(again, tmp_path / "a.jsonl") == []
    formats.write_chat(again, tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_query_selects_whole_episodes(scratch, tmp_path):
    messages = [QUESTION, CALL, RESULT, ANSWER]
    load(scratch, [{"id": str(k), "messages": messages, "reward": k} for k in range(3)])
    assert formats.write_chat(scratch, tmp_path / "a.jsonl", "reward >= 1") == 2
    assert [record["messages"] for record in lines_of(tmp_path / "a.jsonl")] == [messages] * 2


def test_turns_that_do_not_continue_each_other_are_separate_conversations(scratch, tmp_path):
    with scratch.episode("t", episode_id="a") as episode:
        episode.append(messages=[QUESTION], action=CALL)
        episode.append(messages=[QUESTION, CALL, RESULT], action=ANSWER)
        episode.append(messages=[SYSTEM], action=ANSWER)  # after a compaction
    formats.write_chat(scratch, tmp_path / "a.jsonl")
    assert [(record["id"], record["messages"]) for record in lines_of(tmp_path / "a.jsonl")] == [
        ("a#0", [QUESTION, CALL, RESULT, ANSWER]), ("a#1", [SYSTEM, ANSWER]),
    ]  # fmt: skip


def test_a_lone_surrogate_is_escaped(scratch, tmp_path):
    answer = {"role": "assistant", "content": "\ud800 é"}
    load(scratch, [{"messages": [QUESTION, answer]}])
    formats.write_chat(scratch, tmp_path / "a.jsonl")
    assert lines_of(tmp_path / "a.jsonl")[0]["messages"] == [QUESTION, answer]


def test_fields_with_other_names_are_mapped(scratch, tmp_path):
    scratch.store(episode_id="a", prompt=[QUESTION], reply=ANSWER)
    names = {"messages": "prompt", "action": "reply"}
    assert formats.write_chat(scratch, tmp_path / "a.jsonl", names=names) == 1
    with pytest.raises(errors.InvalidValue, match="has no JSON field 'messages'"):
        formats.write_chat(scratch, tmp_path / "b.jsonl")
    with pytest.raises(errors.InvalidValue, match="names has 'prompt', which is not a part"):
        formats.write_chat(scratch, tmp_path / "b.jsonl", names={"prompt": "messages"})
    assert not (tmp_path / "b.jsonl").exists()


def test_a_split_is_stable_while_data_grows(scratch, tmp_path):
    def ids(split, number):
        path = tmp_path / f"{split.replace(':', '-')}{number}.jsonl"
        formats.write_chat(scratch, path, split=split)
        return {record["id"] for record in lines_of(path)}

    def records(start):
        return [
            {"id": str(k), "task_id": str(k // 2), "messages": [QUESTION, ANSWER]}
            for k in range(start, start + 200)
        ]

    load(scratch, records(0))
    before = ids("train:0.8", 0), ids("test:0.2", 0)
    load(scratch, records(200))
    after = ids("train:0.8", 1), ids("test:0.2", 1)
    assert before[0] < after[0]
    assert before[1] < after[1]
    assert after[0].isdisjoint(after[1])
    assert len(after[0] | after[1]) == 400
    assert 60 <= len(after[1]) <= 100  # 80 expected; the hash is fixed
    assert all((str(2 * k) in after[0]) == (str(2 * k + 1) in after[0]) for k in range(200))


@pytest.mark.parametrize("split", ["train", "train:0", "train:1", "dev:0.5", "train:x", 0.5])
def test_an_invalid_split_is_refused(scratch, tmp_path, split):
    load(scratch, [{"messages": [QUESTION, ANSWER]}])
    with pytest.raises(errors.InvalidValue, match=r"'train:SHARE' or 'test:SHARE'"):
        formats.write_chat(scratch, tmp_path / "a.jsonl", split=split)


def test_pairs_are_those_of_the_unit(scratch, tmp_path):
    for number, reward in enumerate([0.0, 1.0, 0.5, 0.75]):
        answer = {"role": "assistant", "content": str(number)}
        with scratch.episode("t", group_id="g", episode_id=str(number)) as episode:
            episode.append(messages=[SYSTEM, QUESTION], action=answer, reward=reward)
    assert formats.write_pairs(scratch, tmp_path / "a.jsonl", margin=0.5) == 1
    assert lines_of(tmp_path / "a.jsonl") == [
        {
            "prompt": [SYSTEM, QUESTION],
            "chosen": [{"role": "assistant", "content": "1"}],
            "rejected": [{"role": "assistant", "content": "0"}],
            "margin": 1.0,
            "chosen_id": "1",
            "rejected_id": "0",
        }
    ]
    formats.write_pairs(scratch, tmp_path / "b.jsonl")
    batch = scratch.sample(
        2, unit=expdb.Pairs(), sampler=expdb.Ordered("position"), fields=["episode_id"]
    )
    found = [[r["chosen_id"], r["rejected_id"]] for r in lines_of(tmp_path / "b.jsonl")]
    assert found == batch["episode_id"].tolist()
    formats.write_pairs(scratch, tmp_path / "c.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "c.jsonl").read_bytes()


def test_a_buffer_without_pairs_gives_an_empty_file(scratch, tmp_path):
    load(scratch, [{"messages": [QUESTION, ANSWER], "reward": 1.0}])
    assert formats.write_pairs(scratch, tmp_path / "a.jsonl", score="judge") == 0
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_targets_are_checked_before_anything_is_written(scratch, tmp_path):
    load(scratch, [{"messages": [QUESTION, ANSWER]}])
    with pytest.raises(errors.InvalidValue, match=r"must end in \.jsonl"):
        formats.write_chat(scratch, tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_text("mine")
    with pytest.raises(errors.TargetExists):
        formats.write_chat(scratch, tmp_path / "a.jsonl")
    with pytest.raises(errors.DatabaseMissing):
        formats.write_chat(scratch, tmp_path / "no" / "a.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
