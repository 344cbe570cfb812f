"""Records of verifiers are imported with their tokens, scores and groups."""

import copy

import pytest

from expdb import formats


def node(parent, role, content, tokens=(), mask=(), logprobs=()):
    return {
        "parent": parent, "sampled": role == "assistant",
        "message": {"role": role, "content": content, "name": None}, "token_ids": list(tokens),
        "mask": list(mask), "logprobs": list(logprobs),
    }  # fmt: skip


RECORD = {
    "id": "trace-1", "task": {"type": "SumTask", "key": "sum-7"},
    "agent": {"name": "solver", "trainable": False}, "ok": True, "stop_condition": None,
    "rewards": {"correct": {"score": 1.0, "weight": 1.0}, "style": None, "a b": {
        "score": 0.5, "weight": 0.2}},
    "metrics": {"turns": 2.0, "errors": None},
    "nodes": [
        node(None, "user", "2 + 2?", [1, 10], [False, False]),
        node(0, "assistant", "4", [2, 20, 21, 3], [False, True, True, False], [-0.5, -0.25]),
        node(1, "user", "Sure?", [3, 30], [False, False]),
        node(2, "assistant", "Yes."),
        node(3, "user", "Thanks."),
    ],
}  # fmt: skip


def load(buffer, *records):
    return formats.import_rollouts(buffer, formats.read(list(records)))


def test_responses_of_the_model_become_turns(scratch):
    assert load(scratch, RECORD).refused == []
    fields = ["messages", "action", "prompt_ids", "output_ids", "output_mask", "logprobs",
              "next_messages"]  # fmt: skip
    first, last = scratch.get([0, 1], fields=fields).to_list()
    assert first["messages"] == [{"role": "user", "content": "2 + 2?"}]
    assert first["action"] == {"role": "assistant", "content": "4"}
    assert first["prompt_ids"].tolist() == [1, 10, 2]
    assert first["output_ids"].tolist() == [20, 21, 3]
    assert first["output_mask"].tolist() == [True, True, False]
    assert first["logprobs"].tolist() == [-0.5, -0.25, 0.0]
    assert (last["prompt_ids"], last["action"]["content"]) == (None, "Yes.")
    assert [message["content"] for message in last["next_messages"]] == [
        "2 + 2?", "4", "Sure?", "Yes.", "Thanks.",
    ]  # fmt: skip
    (row,) = scratch.episodes().to_pylist()
    assert (row["task_id"], row["agent_id"], row["trainable"], row["episode_tags"]) == (
        "sum-7", "solver", 0, '{"ok":true}',
    )  # fmt: skip
    scores = {row["name"]: (row["value"], row["status"]) for row in scratch.scores().to_pylist()}
    assert scores == {
        "reward": (1.1, None), "reward_correct": (1.0, None), "reward_a_b": (0.5, None),
        "reward_style": (None, "not_scored"), "metric_turns": (2.0, None),
        "metric_errors": (None, "not_scored"),
    }  # fmt: skip


def test_an_episode_gives_its_traces_a_group_and_a_version(scratch):
    episode = {
        "id": "e", "group": {"id": "g"}, "run": {"work": {"policy": {"start": 3, "end": 4}}},
        "traces": [RECORD, {**RECORD, "id": "trace-2"}],
    }  # fmt: skip
    assert load(scratch, episode).episodes == 2
    row = scratch.episodes().to_pylist()[1]
    assert (row["group_id"], row["policy_version"]) == ("g/solver", 3)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (["nodes", 1, "parent"], 7, "is not a trace of verifiers"),
        (["nodes", 0, "parent"], 1, "form a circle"),
        (["nodes", 1, "logprobs"], [-0.5], "do not fit together"),
        (["nodes", 1, "token_ids"], [2, 20], "do not fit together"),
        (["nodes", 1, "token_ids"], None, "is not a trace of verifiers"),
        (["rewards", "a_b"], {"score": 0.5, "weight": 1.0}, "become the score 'reward_a_b'"),
        (["task"], {}, "is not a trace of verifiers"),
        (["nodes"], RECORD["nodes"][:1], "has no response of a model"),
        (["agent", "trainable"], "yes", "trainable must be"),
    ],
)
def test_a_broken_trace_is_refused_and_the_others_are_imported(scratch, path, value, reason):
    broken = copy.deepcopy(RECORD)
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    report = load(scratch, broken, {**RECORD, "id": "other"})
    assert report.episodes == 1
    (found,) = report.refused
    assert reason in found
