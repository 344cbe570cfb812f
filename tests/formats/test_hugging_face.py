"""Conversations are exported as a Hugging Face dataset, and datasets are imported."""

import pytest

import expdb
from expdb import errors, formats

WHY = "datasets is not installed: run `python3 dev.py test --ecosystems`"
datasets = pytest.importorskip("datasets", reason=WHY)

QUESTION = {"role": "user", "content": "2 + 2?"}
CALL = {
    "role": "assistant", "content": None,
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    ],
}  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": "c", "content": "4"}
ANSWER = {"role": "assistant", "content": "4"}
RECORDS = [
    {"id": str(k), "messages": messages, "reward": k / 2, "task_id": f"t{k}", "metadata": metadata}
    for k, (messages, metadata) in enumerate(
        [
            ([QUESTION, ANSWER], {"source": "web"}),
            ([QUESTION, CALL, RESULT, ANSWER], {"source": "web", "level": 3}),
        ]
        * 200
    )
]


def steps_of(buffer):
    fields = ["episode_id", "task_id", "messages", "action", "reward", "episode_tags"]
    return [row for batch in buffer.scan(fields=fields) for row in batch.to_list()]


def load(buffer, source):
    report = formats.import_rollouts(buffer, formats.read(source))
    assert report.refused == []


def test_an_exported_dataset_is_imported_again(new_buffer, tmp_path):
    buffer, by_path, by_object = new_buffer(), new_buffer(), new_buffer()
    load(buffer, RECORDS)
    assert formats.write_dataset(buffer, tmp_path / "out") == 400
    dataset = datasets.load_from_disk(tmp_path / "out")
    assert formats.source_files.without_null_keys(dataset[1]["messages"]) == RECORDS[1]["messages"]
    load(by_path, tmp_path / "out")
    load(by_object, dataset)
    assert steps_of(by_path) == steps_of(by_object) == steps_of(buffer)


def test_a_dataset_with_splits_is_imported(scratch, tmp_path):
    dataset = datasets.Dataset.from_list(
        [{"messages": [QUESTION, ANSWER], "n": k} for k in range(5)]
    )
    dataset.train_test_split(2, seed=0).save_to_disk(tmp_path / "both")
    load(scratch, tmp_path / "both")
    assert len(scratch) == 5


def test_values_of_different_types_are_refused(scratch, tmp_path):
    parts = [{"type": "text", "text": "?"}]
    load(scratch, [{"messages": [{"role": "user", "content": c}, ANSWER]} for c in ("?", parts)])
    with pytest.raises(errors.InvalidValue, match="cannot be one table"):
        formats.write_dataset(scratch, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(scratch, tmp_path):
    load(scratch, RECORDS[:2])
    with pytest.raises(errors.TargetExists):
        formats.write_dataset(scratch, tmp_path)
    assert issubclass(errors.TargetExists, expdb.ExpDBError)
