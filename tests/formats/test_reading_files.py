"""Files of every kind are read, and a broken part is named and skipped."""

import bz2
import gzip
import json
import lzma

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import expdb
from expdb import formats
from expdb.formats import source_files as files

ROWS = [
    {"episode_id": "a", "step": 0, "x": 1, "reward": 0.5},
    {"episode_id": "a", "step": 1, "x": 2, "reward": None},
    {"episode_id": "b", "step": 0, "x": 3, "reward": 1.0},
]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)
CHAT = {"id": "c", "messages": [{"role": "assistant", "content": "x"}]}


def load(buffer, *sources, **options):
    return formats.import_rollouts(buffer, formats.read(*sources, **options))


def values_of(buffer):
    fields = ["episode_id", "step", "x", "reward"]
    return [row for batch in buffer.scan(fields=fields) for row in batch.to_list()]


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.ndjson", "a.json", "a.csv", "a.parquet", "a.arrow", "b.arrow", "a.jsonl.gz",
     "a.jsonl.xz", "a.jsonl.bz2", "a.jsonl.zst", "a.csv.gz"],
)  # fmt: skip
def test_rows_of_steps_are_read_from_each_kind_of_file(scratch, tmp_path, name):
    path, table = tmp_path / name, pa.Table.from_pylist(ROWS)
    csv = "episode_id,step,x,reward\na,0,1,0.5\na,1,2,\nb,0,3,1.0\n"
    text = {".csv": csv, ".json": json.dumps(ROWS)}.get(files.ending_of(path), LINES).encode()
    compress = {
        ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress,
        ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    }.get(path.suffix)  # fmt: skip
    if name == "a.parquet":
        parquet.write_table(table, path)
    elif name == "a.arrow":
        feather.write_feather(table, path)
    elif name == "b.arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".zst":
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as stream:
            stream.write(text)
    else:
        path.write_bytes(compress(text) if compress else text)
    assert load(scratch, path).refused == []
    assert values_of(scratch) == ROWS
    assert scratch.stats()["episodes"]["complete"] == 2


@pytest.mark.parametrize("make", [pa.Table.from_pylist, pd.DataFrame, list, iter])
def test_rows_of_steps_are_read_from_objects(scratch, make):
    source = make(ROWS)
    if isinstance(source, pd.DataFrame):
        source = pa.Table.from_pandas(source.astype(object).where(source.notna(), None))
    assert load(scratch, source).refused == []
    assert values_of(scratch) == ROWS


def test_a_folder_is_read_in_the_order_of_the_names(scratch, tmp_path):
    for name in ("b", "a", "c/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({**CHAT, "id": name}))
    (tmp_path / ".hidden.jsonl").write_text("{bad")
    (tmp_path / "notes.txt").write_text("not a record")
    assert load(scratch, tmp_path).refused == []
    assert scratch.episodes()["episode_id"].to_pylist() == ["a", "b", "c/d"]


def test_nested_objects_of_tables_lose_their_missing_keys(scratch):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
    ]
    table = pa.Table.from_pylist([{"messages": messages}])
    assert load(scratch, table).refused == []
    step = scratch.get([0], fields=["messages", "action"]).to_list()[0]
    assert [*step["messages"], step["action"]] == messages


BROKEN = {
    "cut line": (b'{"id": "a", "messages": [{"role"', "not valid JSON"),
    "no object": (b"[1, 2]", "a record must be a JSON object, got list"),
    "number": (b"7", "a record must be a JSON object, got int"),
    "two values": (b'{"a": 1} {"b": 2}', "not valid JSON"),
    "latin-1": ('{"messages": "é"}'.encode("latin-1"), "not valid UTF-8"),
    "nested arrays": (b"[" * 100_000, "nested too deeply"),
    "nested objects": (b'{"a":' * 100_000, "nested too deeply"),
    "nested value": (
        b'{"messages": [{"role": "assistant", "content": ' + b"[" * 600 + b"]" * 600 + b"}]}",
        "nested",
    ),
    "huge integer": (b'{"messages": [{"role": "assistant"}], "reward": ' + b"9" * 5000 + b"}", ""),
    "infinite": (b'{"messages": [{"role": "assistant"}], "reward": Infinity}', "reward"),
    "no messages": (b'{"id": "b"}', "no key 'messages'"),
    "null character": (b'{"id": "\\u0000", "messages": [{"role": "assistant"}]}', "episode_id"),
    "empty id": (b'{"id": "", "messages": [{"role": "assistant"}]}', "id of the record is empty"),
    "object as id": (b'{"id": {}, "messages": [{"role": "assistant"}], "task_id": {}}', "task_id"),
}


@pytest.mark.usefixtures("without_garbage_collection")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_named_and_the_others_are_imported(scratch, tmp_path, name):
    line, reason = BROKEN[name]
    good = json.dumps(CHAT).encode()
    path = tmp_path / "a.jsonl"
    path.write_bytes(good + b"\n" + line + b"\n\n" + good.replace(b'"c"', b'"d"') + b"\n")
    report = load(scratch, path)
    assert report.episodes == 2
    (found,) = report.refused
    assert found.startswith(f"{path}:2: ")
    assert reason in found
    assert "\n" not in found


BROKEN_FILES = {
    "utf-16": ("a.jsonl", "x".encode("utf-16"), "in UTF-16"),
    "cut gzip": ("a.jsonl.gz", gzip.compress(LINES.encode())[:-30], "cannot be read to its end"),
    "no gzip": ("a.jsonl.gz", b"not gzip", "cannot be read to its end"),
    "cut xz": ("a.jsonl.xz", lzma.compress(LINES.encode())[:-30], "cannot be read to its end"),
    "bzip2": ("a.jsonl.bz2", b"BZh9 garbage", "cannot be read to its end"),
    "zstd": ("a.jsonl.zst", b"garbage", "cannot be read to its end"),
    "parquet": ("a.parquet", b"PAR1 garbage PAR1", "cannot be read to its end"),
    "arrow": ("a.arrow", b"ARROW1 garbage", "cannot be read to its end"),
    "ragged csv": ("a.csv", b"episode_id,x\na,1\nb,2,3\n", "cannot be read to its end"),
    "cut json": ("a.json", b"[{", "not valid JSON"),
    "empty json": ("a.json", b"", "not valid JSON"),
    "text": ("a.txt", b"x", "must end in"),
    "pickle": ("a.pkl", b"x", "must end in"),
}


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_a_broken_file_is_named(scratch, tmp_path, kind):
    name, data, reason = BROKEN_FILES[kind]
    (tmp_path / name).write_bytes(data)
    report = load(scratch, tmp_path / name)
    assert report.refused
    assert all(text.startswith(f"{tmp_path / name}") for text in report.refused)
    assert reason in report.refused[-1]


def test_a_line_that_is_too_long_is_skipped(scratch, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LINE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text(f"{'x' * 5000}\n{json.dumps(CHAT)}\n")
    report = load(scratch, path)
    assert report.episodes == 1
    assert report.refused == [f"{path}:1: the line is longer than 0 MiB; write one record per line"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"x": 1}], "the row has no episode_id"),
        ([{"episode_id": None, "x": 1}], "the row has no episode_id"),
        ([*ROWS, ROWS[0]], "whose other rows come earlier and apart"),
        ([ROWS[0], {**ROWS[1], "task_id": "t"}, {**ROWS[1], "task_id": "u"}], "task_id is 'u'"),
        ([{**ROWS[0], "tags": "{"}], "tags is text that is not valid JSON"),
        ([{**ROWS[0], "position": 1}], "'position' is the name of a column"),
        ([{**ROWS[0], "terminated": "yes"}], "terminated must be"),
    ],
)
def test_an_invalid_row_of_a_step_is_refused(scratch, rows, reason):
    report = load(scratch, rows, format="steps")
    assert reason in report.refused[0]


@pytest.mark.parametrize("source", [{"a": 1}, b"x", 7, "missing.jsonl"])
def test_a_source_that_is_none_raises(source):
    with pytest.raises(expdb.InvalidValue, match="pass"):
        list(formats.read(source))


def test_the_format_of_a_record_must_be_clear():
    with pytest.raises(expdb.InvalidValue, match=r"neither messages .* nor an episode_id"):
        list(formats.read([{"text": "x"}]))
    with pytest.raises(expdb.InvalidValue, match="format must be"):
        list(formats.read([CHAT], format="chats"))
    with pytest.raises(expdb.InvalidValue, match="names must map"):
        list(formats.read([CHAT], names=["task_id"]))
    with pytest.raises(expdb.InvalidValue, match="names maps two columns to 'a'"):
        list(formats.read([CHAT], names={"task_id": "a", "group_id": "a"}))
