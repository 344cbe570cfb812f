"""Token fields: a repeated prefix is stored once, and aligned fields have equal lengths."""

import itertools
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import expdb
from expdb import InvalidValue
from expdb.chunks import prefix_column
from expdb.chunks.chunk import Decoder, crc_of, read_ragged
from expdb.chunks.codec import Rows
from expdb.chunks.fields import Field, Signature
from expdb.chunks.prefix_column import StoredColumn, read_prefixed
from expdb.errors import ChunkDamaged, FieldMismatch
from expdb.export import export
from expdb.storage.reading.chunk_cache import ChunkCache

FIELDS = st.sampled_from(
    [Field("int32", (None,)), Field("bool", (None,)), Field("uint8", (None, 3, 2))]
)


@st.composite
def histories(draw):
    """Draw a field and values that often start with the previous value."""
    field = draw(FIELDS)
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def new(length):
        return rng.integers(0, 2, (length, *field.shape[1:])).astype(field.numpy)

    value, values = new(draw(st.integers(0, 300))), []
    for change in draw(st.lists(st.sampled_from(["extend", "cut", "replace", "repeat", "null"]))):
        length = draw(st.integers(0, 200))
        if change == "extend":
            value = np.concatenate([value, new(length)])
        elif change == "cut":
            value = np.concatenate([value[: max(0, len(value) - length)], new(length // 2)])
        elif change == "replace":
            value = new(length)
        values.append(None if change == "null" else value)
    return field, values


def chunk_of(rows):
    block = rows.block()
    decoder = Decoder(Signature(block.fields))
    message = block.message(decoder.templates, [], [], [], [])
    crc = crc_of(decoder.signature, 1, block.rows, message)
    return decoder.chunk(1, block.rows, crc, message)


def equal(decoded, value):
    if value is None or decoded is None:
        return value is decoded
    return decoded.dtype == value.dtype and np.array_equal(decoded, value)


@settings(max_examples=examples(50))
@given(histories(), st.data())
def test_growing_values_round_trip_for_every_range_of_rows(history, data):
    field, values = history
    rows = Rows()
    for value in values:
        if value is not None and data.draw(st.integers(0, 4)) == 0:
            count, columns = rows.count, len(rows.columns)
            discarded = np.concatenate([value, value])  # must not become the prefix of a value
            rows.append({"x": discarded}, {"x": field})
            rows.cut_back(count, columns)
        rows.append({"x": value}, {"x": field})
    if "x" not in rows.columns:
        return
    chunk = chunk_of(rows)
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start, len(values)))
    decoded = chunk.objects("x", start, stop)
    assert all(map(equal, decoded, values[start:stop]))
    assert len(decoded) == stop - start
    if start == stop:
        return
    ragged = read_ragged([(chunk, start, stop), (chunk, 0, len(values))], "x")
    arrays = ragged.to_list()
    whole = chunk.objects("x", 0, len(values))
    assert len(arrays) == len(decoded) + len(whole)
    assert all(map(equal, arrays, [*decoded, *whole]))
    present = np.flatnonzero(ragged.lengths > 0)
    for first, second in itertools.pairwise(present.tolist()):
        if ragged.starts[first] == ragged.starts[second]:
            shorter = min(len(arrays[first]), len(arrays[second]))
            assert np.array_equal(arrays[first][:shorter], arrays[second][:shorter])
    copied = Rows()
    copied.copy(chunk, start, stop, {"x": field})
    if copied.count:
        assert all(map(equal, chunk_of(copied).objects("x", 0, stop - start), decoded))


def test_plain_pyarrow_reads_prefixes_and_suffixes():
    rows = Rows()
    prompt = np.arange(100, dtype=np.int32)
    for stop in (40, 70, 100):
        rows.append({"x": prompt[:stop]}, {"x": Field("int32", (None,))})
    chunk = chunk_of(rows)
    schema = pa.ipc.read_schema(pa.py_buffer(chunk.signature.message))
    batch = pa.ipc.read_record_batch(pa.py_buffer(chunk.data), schema)
    batch.validate(full=True)
    assert [row["prefix"] for row in batch["x"].to_pylist()] == [0, 40, 70]
    assert [len(row["suffix"]) for row in batch["x"].to_pylist()] == [40, 30, 30]


def test_plain_pyarrow_reads_run_length_encoded_versions():
    rows = Rows()
    field = expdb.TOKEN_FIELDS["versions"]
    rows.append({"x": [3, 3, 3, 4]}, {"x": Field("int32", (None,), ascending=True)})
    rows.append({"x": None}, {"x": field})
    rows.append({"x": []}, {"x": field})
    chunk = chunk_of(rows)
    schema = pa.ipc.read_schema(pa.py_buffer(chunk.signature.message))
    batch = pa.ipc.read_record_batch(pa.py_buffer(chunk.data), schema)
    batch.validate(full=True)
    assert batch["x"].to_pylist() == [
        {"values": [3, 4], "lengths": [3, 1]}, None, {"values": [], "lengths": []}
    ]  # fmt: skip
    assert [None if v is None else v.tolist() for v in chunk.objects("x", 0, 3)] == [
        [3, 3, 3, 4], None, []
    ]  # fmt: skip


@pytest.mark.parametrize("prefixes", [[0, 41], [1, 10], [0, -1], [0, 2**30]])
def test_an_invalid_prefix_length_is_reported(prefixes):
    field, offsets = Field("int32", (None,)), np.array([0, 40, 80], np.int32).tobytes()

    def read(prefixes):
        stored = np.array(prefixes, np.int32).tobytes()
        buffers = [b"", b"", stored, b"", offsets, b"", bytes(320)]
        return read_prefixed(field, [StoredColumn(2, buffers)], [(0, 0, 1)])

    assert len(read([0, 40])) == 1
    with pytest.raises(ChunkDamaged, match=r"prefix|value"):
        read(prefixes)


def test_the_first_row_of_each_chunk_must_have_no_prefix():
    field, offsets = Field("int32", (None,)), np.array([0, 40], np.int32).tobytes()
    first, second = (
        StoredColumn(1, [b"", b"", np.int32(prefix).tobytes(), b"", offsets, b"", bytes(160)])
        for prefix in (0, 40)
    )
    assert read_prefixed(field, [first, first], [(0, 0, 1), (1, 0, 1)]).lengths.tolist() == [40, 40]
    with pytest.raises(ChunkDamaged, match="a prefix is longer than the previous value"):
        read_prefixed(field, [first, second], [(0, 0, 1), (1, 0, 1)])


def turns(count, seed=0, prompt=200, generated=60, feedback=40):
    """Yield the steps of a rollout; each prompt starts with the previous prompt and output."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 150_000, prompt).astype(np.int32)
    for _ in range(count):
        output = rng.integers(0, 150_000, generated).astype(np.int32)
        yield {
            "prompt_ids": ids,
            "output_ids": output,
            "output_mask": np.ones(generated, bool),
            "logprobs": -rng.random(generated, np.float32),
            "versions": np.repeat([3, 4], generated // 2).astype(np.int32),
        }
        ids = np.concatenate([ids, output, rng.integers(0, 150_000, feedback).astype(np.int32)])


@pytest.mark.parametrize("as_lists", [False, True])
def test_repeated_prompts_take_at_most_10_percent_extra_space(db, as_lists):
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    unique = 0
    with buffer.episode("task") as episode:
        for turn in turns(50):
            unique += 4 * (60 + 60 + 40 + 60) + 60  # bytes: prompt and output ids, log-probs; mask
            values = {name: v.tolist() for name, v in turn.items()} if as_lists else turn
            episode.append(reward=0.0, **values)
            if not as_lists:
                episode.flush()
    assert buffer.stats()["bytes"] <= 1.1 * unique


@pytest.mark.both_databases
@pytest.mark.parametrize("between", [[], [{"reward": 1.0}]], ids=["tokens", "rewards between"])
def test_long_prompts_flushed_after_each_turn_are_merged_at_episode_end(db, between):
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    with buffer.episode("task") as episode:
        for turn in turns(10, prompt=40_000):
            for values in (turn, *between):
                episode.append(**values)
                episode.flush()
        whole = buffer.stats()["bytes"]
    assert buffer.stats()["bytes"] < whole / 5


def test_check_does_not_expand_runs_and_prefixes_in_memory(db):
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    ids = np.arange(200_000, dtype=np.int32)
    with buffer.episode("task") as episode:
        for _ in range(200):
            episode.append(output_ids=ids, versions=np.zeros(len(ids), np.int32))
    assert buffer.stats()["bytes"] < 2e6
    tracemalloc.start()
    assert db.check() == []
    assert tracemalloc.get_traced_memory()[1] < 50e6  # the expanded values take 320 MB
    tracemalloc.stop()


def test_get_sql_export_and_copy_return_the_same_tokens(db, tmp_path):
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    expected = list(turns(6))
    with buffer.episode("task", episode_id="e") as episode:
        for turn in expected:
            episode.append(reward=1.0, **turn)
    batch = buffer.get(np.arange(6))
    for name in expdb.TOKEN_FIELDS:
        assert all(map(equal, batch[name], [turn[name] for turn in expected]))
    rows = db.sql("SELECT field(payload, 'prompt_ids') AS ids FROM experience ORDER BY position")
    assert [json.loads(ids) for ids in rows["ids"].to_pylist()] == [
        turn["prompt_ids"].tolist() for turn in expected
    ]
    export(buffer, tmp_path / "steps.parquet")
    table = pq.read_table(tmp_path / "steps.parquet")
    expdb.copy(db.location, tmp_path / "copy.db")
    with expdb.open(tmp_path / "copy.db") as other:
        copied = other.buffer("train")
        batch = copied.get(np.arange(6))
        for name in expdb.TOKEN_FIELDS:
            assert table[name].to_pylist() == [turn[name].tolist() for turn in expected]
            assert all(map(equal, batch[name], [turn[name] for turn in expected]))
        assert other.check() == []
        with pytest.raises(InvalidValue, match="logprobs has 1 elements, but output_ids has 2"):
            copied.store(task_id="t", output_ids=[1, 2], logprobs=[-0.5])
    assert db.check() == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"logprobs": np.zeros(3, np.float32)}, "logprobs has 3 elements, but output_ids has 2"),
        ({"output_mask": [True]}, "output_mask has 1 elements, but output_ids has 2"),
        ({"versions": [1, 2, 3]}, "versions has 3 elements, but output_ids has 2"),
        ({"versions": [2, 1]}, "versions decreases from 2 to 1 at index 1"),
        ({"output_ids": None, "logprobs": [-0.5]}, "the step has no output_ids"),
    ],
)
def test_token_fields_of_inconsistent_lengths_or_versions_are_rejected(db, values, message):
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    with pytest.raises(InvalidValue, match=message):
        buffer.store(task_id="t", **{"output_ids": [1, 2], **values})
    with pytest.raises(InvalidValue, match=rf"rows\[1\]: {message}|rows\[1\]: .*{message}"):
        buffer.store_batch(
            [{"task_id": "t", "output_ids": [1]}, {"task_id": "t", "output_ids": [1, 2], **values}]
        )
    assert len(buffer) == 0
    buffer.store(task_id="t", output_ids=[1, 2], logprobs=[-0.5, -0.25])
    assert len(buffer) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([1, 2]), r"got int64\[2\]; convert it with .astype\('int32'\)"),
        (
            [1, 2.5],
            r"cannot store 2.5 at index 1 of the list exactly; pass np.array\(value, 'int32'\)",
        ),
        ([1, 2**40], "cannot store 1099511627776 at index 1 of the list exactly"),
        ([[1, 2]], "cannot store a list at index 0 of the list exactly"),
        (np.zeros((2, 2), np.int32), "output_ids"),
        ([0.5], "output_ids"),
        (3, "output_ids"),
    ],
)
def test_the_error_for_a_value_of_another_type_says_how_to_convert_it(db, value, message):
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    with pytest.raises(FieldMismatch, match=message):
        buffer.store(task_id="t", output_ids=value)
    assert len(buffer) == 0


def test_changing_the_stored_alignment_of_a_field_is_rejected(db):
    ids = Field("int32", (None,))
    aligned = Field("int32", (None,), aligned_with="ids")
    db.buffer("train", fields={"ids": ids, "others": ids, "x": aligned})
    with pytest.raises(FieldMismatch, match="'x' is stored with aligned_with='ids'"):
        db.buffer("train", fields={"x": Field("int32", (None,), aligned_with="others")})


def test_declaring_an_alignment_applies_it_to_an_existing_field(db, location):
    types = {"output_ids": Field("int32", (None,)), "logprobs": Field("float32", (None,))}
    buffer = db.buffer("train", fields=types)
    buffer.store(task_id="t", output_ids=[1, 2], logprobs=[-0.5])
    db.buffer("train", fields={"logprobs": expdb.TOKEN_FIELDS["logprobs"]})
    with expdb.open(location) as other:
        for handle in (db, other):
            with pytest.raises(InvalidValue, match="logprobs has 1 elements"):
                handle.buffer("train").store(task_id="t", output_ids=[1, 2], logprobs=[-0.5])
    assert db.check() == []


@pytest.mark.parametrize("target", ["none", "x", "scalar"])
def test_a_field_can_be_aligned_only_with_another_variable_length_array(db, target):
    fields = {"x": Field("int32", (None,), aligned_with=target), "scalar": Field("int32")}
    with pytest.raises(InvalidValue, match=f"'x' cannot be aligned with '{target}'"):
        db.buffer("train", fields=fields)
    assert db.buffers() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float32", "shape": (None,), "ascending": True}, "cannot be ascending"),
        ({"dtype": "int32", "shape": (None, 2), "ascending": True}, "cannot be ascending"),
        ({"dtype": "int32", "shape": (3,), "aligned_with": "x"}, "cannot be aligned"),
        ({"dtype": "text", "aligned_with": "x"}, "cannot be aligned"),
        ({"dtype": "int32", "shape": (None,), "aligned_with": 3}, "must be the name of a field"),
    ],
)
def test_invalid_aligned_with_and_ascending_options_are_rejected(arguments, message):
    with pytest.raises(InvalidValue, match=message):
        Field(**arguments)


def test_chunks_replaced_by_a_merge_are_not_read_from_the_cache(db):
    buffer = db.buffer("tokens", fields=expdb.TOKEN_FIELDS)
    prompts = [[k, k + 1, k + 2] for k in range(4)]

    def values():
        batch = buffer.sample(64, fields=["position", "prompt_ids"])
        return {
            position: prompt.tolist()
            for position, prompt in zip(
                batch["position"].tolist(), batch["prompt_ids"], strict=True
            )
        }

    with buffer.episode("t") as episode:
        for prompt in prompts:
            episode.append(prompt_ids=prompt, output_ids=[9], logprobs=[-1.0])
            episode.flush()
        expected = dict(enumerate(prompts))
        buffer.sample(1, unit=expdb.NStep(1))  # loads the rows, so that samples use the cache
        assert values() == values() == expected
        count = buffer.stats()["chunks"]
    assert buffer.stats()["chunks"] < count
    assert values() == expected


def test_the_chunk_cache_does_not_return_evicted_chunks():
    rows, cache = Rows(), ChunkCache()
    rows.append({"x": [1]}, {"x": Field("int32", (None,))})
    chunk, cache.limit = chunk_of(rows), 1 << 20
    assert cache.find_candidates(np.array([1])) == {}
    cache.keep({1: chunk})
    assert cache.find_candidates(np.array([0, 1, 2])) == {1: chunk}
    assert cache.find_candidates(np.array([2])) == {}
    cache.evict(2)
    assert cache.find_candidates(np.array([1])) == {}


def test_arrays_that_are_too_large_for_one_read_are_scanned_in_pieces(new_buffer, monkeypatch):
    monkeypatch.setattr(prefix_column, "MAX_READ_BYTES", 20_000)
    buffer = new_buffer(fields=expdb.TOKEN_FIELDS)
    prompts = np.tile(np.arange(1000, dtype=np.int32), (20, 1))
    prompts[:, -1] = np.arange(20)  # so that each prompt is copied when it is read
    with buffer.episode("t") as episode:
        episode.extend({"prompt_ids": list(prompts)})
    batches = list(buffer.scan(fields=["prompt_ids"]))
    assert max(len(batch["prompt_ids"]) for batch in batches) == 5
    np.testing.assert_array_equal([p for batch in batches for p in batch["prompt_ids"]], prompts)
    assert buffer.to_arrow(fields=["prompt_ids"]).read_all().num_rows == 20
    with pytest.raises(expdb.InvalidValue, match=r"chunk.* 19.* 20 values .* use scan\(\)"):
        buffer.get(range(20), fields=["prompt_ids"])
