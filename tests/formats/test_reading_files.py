"""Files of every kind are read, and a broken part is named and skipped."""

import bz2
import gzip
import json
import lzma
import re

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
    "no messages": (b'{"id": "b"}', "the record has no messages"),
    "null character": (b'{"id": "\\u0000", "messages": [{"role": "assistant"}]}', "id contains"),
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
        ([*ROWS, ROWS[0]], "two steps of agent 'agent' have the number 0"),
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
def test_an_unsupported_or_missing_source_raises(source):
    with pytest.raises(expdb.InvalidValue, match="pass"):
        list(formats.read(source))


def test_rows_of_an_episode_may_be_apart(scratch):
    rows = [ROWS[0], ROWS[2], ROWS[1]]
    assert load(scratch, iter(rows)).refused == []
    assert values_of(scratch) == [ROWS[2], ROWS[0], ROWS[1]]


def test_an_episode_beside_an_unreadable_row_is_refused(scratch, tmp_path):
    lines = [json.dumps(row) for row in (*ROWS, {"episode_id": "c", "x": 1})]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([lines[0], "{bad", *lines[1:]]))
    report = load(scratch, path)
    assert report.episodes == 2
    assert report.refused == [
        f"{path}:2: the record is not valid JSON (Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)); correct or remove it",
        f"{path}:1: episode 'a' is refused, because the row at {path}:2 cannot be read; "
        "correct the row",
    ]
    path.write_text("\n".join([*lines[:2], "{bad", *lines[2:]]))
    scratch.clear()
    assert load(scratch, path).episodes == 1


def test_empty_cells_and_times_of_tables_are_read(scratch, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "episode,t,rew,day,began,angle\n"
        "a,0,,2026-01-02,2026-01-02T03:04:05Z,0.5\n"
        "a,1,2.5,2026-01-03,2026-01-02T03:04:06Z,\n"
    )
    names = {"episode_id": "episode", "step": "t", "reward": "rew", "execute_time": "began"}
    assert load(scratch, path, names=names).refused == []
    rows = next(scratch.scan(fields=["reward", "execute_time", "day", "angle"])).to_list()
    assert [tuple(row.values()) for row in rows] == [
        (None, 1767323045.0, "2026-01-02", 0.5), (2.5, 1767323046.0, "2026-01-03", None),
    ]  # fmt: skip


def test_all_cells_of_a_csv_column_decide_its_type(scratch, tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"a,{number},0,1,1" for number in range(100_000)]  # more than the first MiB
    path.write_text("\n".join(["episode_id,step,reward,x,y", *rows, "a,100000,0.5,2.5,z"]))
    assert load(scratch, path).refused == []
    last = scratch.get([100_000], fields=["reward", "x", "y"]).to_list()
    assert last == [{"reward": 0.5, "x": 2.5, "y": "z"}]
    assert scratch.get([0], fields=["y"]).to_list() == [{"y": "1"}]


def test_ids_in_csv_files_keep_their_zeros(scratch, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("name,task_id,agent_id,x\n007,01,true,1\n7,1,1.0,2\n")
    assert load(scratch, path, names={"episode_id": "name"}).refused == []
    assert [
        (row["episode_id"], row["task_id"], row["agent_id"])
        for row in scratch.episodes().to_pylist()
    ] == [("007", "01", "true"), ("7", "1", "1.0")]


def test_cells_of_csv_files_may_contain_lines(scratch, tmp_path):
    path = tmp_path / "a.csv"
    cells = [f"one\n{'x' * (number % 700)}\ntwo" for number in range(5000)]  # 1.7 MB
    path.write_text("episode_id,x\n" + "".join(f'a,"{cell}"\n' for cell in cells))
    assert load(scratch, path).refused == []
    assert scratch.to_arrow(fields=["x"]).read_all().column("x").to_pylist() == cells


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_with_the_same_name_are_refused(scratch, tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    table = pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], ["episode_id", "x", "x"])
    if kind == "csv":
        path.write_text("episode_id,x,x\na,1,2\n")
    elif kind == "parquet":
        parquet.write_table(table, path)
    (refused,) = load(scratch, path).refused
    assert "several columns are named x; rename them" in str(refused)
    assert len(scratch) == 0


def test_one_key_may_be_mapped_to_several_columns(scratch):
    record = {**CHAT, "task_id": 3, "trial": 1}
    names = {"group_id": "task_id", "agent_id": "trial"}
    assert load(scratch, [record], names=names).refused == []
    (row,) = scratch.episodes().to_pylist()
    assert (row["task_id"], row["group_id"], row["agent_id"]) == ("3", "3", "1")


def test_probably_misspelt_names_raise_or_warn(scratch):
    (reason,) = load(scratch, [CHAT], names={"mesages": "messages"}, format="chat").refused
    assert "the mapping has 'mesages', did you mean 'messages'?" in reason
    with pytest.warns(expdb.ExpDBWarning, match="the key 'Reward' becomes a tag"):
        load(scratch, [{**CHAT, "Reward": 1.0}])


def test_an_exported_table_is_read(new_buffer):
    buffer, copy = new_buffer(), new_buffer()
    with buffer.episode("t", episode_id="a") as episode:
        episode.append(obs=[1.0, 2.0], note={"k": 1})
        episode.end(obs=[3.0, 4.0])
    buffer.score(episode_id="a", name="judge", value=1.0)
    for source in (buffer.to_arrow(), buffer.to_arrow().read_all()):
        copy.clear()
        assert load(copy, source).refused == []
        fields = ["obs", "note", "next_obs", "scores"]
        assert repr(copy.get(range(copy.added - 1, copy.added), fields=fields).to_list()) == repr(
            buffer.get([0], fields=fields).to_list()
        )


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([{"text": "x"}], "neither messages .* nor an episode_id"),
        ([{"prompt": [], "chosen": [], "rejected": []}], "is a preference pair"),
    ],
)
def test_a_record_of_an_unknown_format_is_refused(scratch, tmp_path, records, reason):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "b.jsonl").write_text(json.dumps(CHAT))
    report = load(scratch, tmp_path)
    assert report.episodes == 1
    assert re.search(reason, report.refused[0])


def test_arguments_of_reading_are_checked(scratch):
    with pytest.raises(expdb.InvalidValue, match="format must be"):
        list(formats.read([CHAT], format="chats"))
    with pytest.raises(expdb.InvalidValue, match="names must map"):
        list(formats.read([CHAT], names=["task_id"]))
    for source in ([CHAT], pa.table({"x": [1]})):
        with pytest.raises(expdb.InvalidValue, match="was not exported by expdb"):
            list(formats.read(source, format="expdb"))
    with pytest.raises(expdb.InvalidValue, match=r"pass formats\.read\(path\)"):
        formats.import_rollouts(scratch, "chats.jsonl")
    with pytest.raises(expdb.InvalidValue, match="buffer must be a ReplayBuffer"):
        formats.import_rollouts("train", [])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.jsonl", json.dumps([CHAT]), "so that it ends in .json"),
        ("a.json", f"{json.dumps(CHAT)}\n{json.dumps(CHAT)}", "so that it ends in .jsonl"),
    ],
)
def test_a_file_with_the_wrong_ending_is_refused_once(scratch, tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    (found,) = load(scratch, tmp_path / name).refused
    assert reason in found
