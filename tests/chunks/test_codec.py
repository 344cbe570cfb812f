"""Chunk encoding: values round-trip bit for bit, and plain pyarrow reads every message.

A corrupted message raises ChunkDamaged.
"""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from expdb.chunks.chunk import Decoder, crc_of
from expdb.chunks.codec import Rows
from expdb.chunks.fields import NUMERIC, Field, Signature
from expdb.chunks.message import read_metadata
from expdb.errors import ChunkDamaged, ExpDBError

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}),
    max_size=6,
)


def values_of(field):
    """Return a strategy for the values that a field can hold."""
    if field.dtype == "text":
        return TEXT
    if field.dtype == "bytes":
        return st.binary(max_size=40)
    if field.dtype == "json":
        return MESSAGES | JSON.filter(lambda value: value is not None)
    shape = st.tuples(*(st.integers(0, 3) if n is None else st.just(n) for n in field.shape))
    return shape.flatmap(lambda s: hnp.arrays(np.dtype(field.dtype), s))


FIELDS = st.one_of(
    st.builds(Field, st.sampled_from(NUMERIC), st.just(())),
    st.builds(
        Field,
        st.sampled_from(NUMERIC),
        st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(
        Field,
        st.sampled_from(NUMERIC),
        st.lists(st.none() | st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(Field, st.sampled_from(["text", "bytes", "json"])),
)


@st.composite
def chunks(draw, optional=True):
    """Draw fields and rows that match them, with some values missing."""
    fields = {
        f"f{k}": field for k, field in enumerate(draw(st.lists(FIELDS, min_size=1, max_size=3)))
    }
    count = draw(st.integers(1, 12))
    gaps = st.just(False) if not optional else st.booleans()
    rows = [
        {
            name: None if draw(gaps) and draw(st.booleans()) else draw(values_of(field))
            for name, field in fields.items()
        }
        for _ in range(count)
    ]
    return fields, rows


def encode(fields, rows, compress=None):
    """Encode rows as one chunk; return its decoder, message and checksum."""
    taken = Rows()
    for row in rows:
        taken.append(row, fields)
    block = taken.block()
    decoder = Decoder(Signature(block.fields))
    count = len(rows)
    message = block.message(
        decoder.templates, list(range(count)), [None if k % 3 else k / 7 for k in range(count)],
        [k % 2 == 0 for k in range(count)],
        [k % 5 == 0 for k in range(count)],
    )  # fmt: skip
    return decoder, message, crc_of(decoder.signature, 7, count, message)


def same(decoded, value, field):
    if value is None:
        return decoded is None
    if field.dtype in ("text", "bytes", "json"):
        return decoded == value and type(decoded) is type(value)
    return (
        decoded.dtype == field.numpy
        and decoded.shape == value.shape
        and decoded.tobytes() == value.tobytes()
    )


def read(chunk, field, name, row):
    if not chunk.present(name, row, row + 1)[0]:
        return None
    if field.varies:
        return chunk.objects(name, row, row + 1)[0]
    return np.frombuffer(bytes(chunk.raw(name, row, row + 1)), field.numpy).reshape(field.shape)


@settings(max_examples=examples(80))
@given(chunks())
def test_values_round_trip_bit_for_bit(drawn):
    fields, rows = drawn
    decoder, message, crc = encode(fields, rows)
    for _ in range(2):  # the second decode may use the cached layout
        chunk = decoder.chunk(7, len(rows), crc, message)
        for k, row in enumerate(rows):
            for name, value in row.items():
                assert same(read(chunk, fields[name], name, k), value, fields[name])
            assert np.frombuffer(chunk.raw("step", k, k + 1), np.int64)[0] == k
            assert chunk.raw("terminated", k, k + 1) == bytes([k % 2 == 0])
        assert bytes(chunk.raw("truncated", 0, len(rows))) == bytes(
            k % 5 == 0 for k in range(len(rows))
        )


@settings(max_examples=examples(80))
@given(chunks())
def test_plain_pyarrow_reads_every_message(drawn):
    fields, rows = drawn
    decoder, message, _ = encode(fields, rows)
    batch = pa.ipc.read_record_batch(
        pa.py_buffer(message), pa.ipc.read_schema(pa.py_buffer(decoder.signature.message))
    )
    batch.validate(full=True)
    assert batch.num_rows == len(rows)
    assert batch["step"].to_pylist() == list(range(len(rows)))
    for name, field in fields.items():
        column = batch[name] if name in batch.schema.names else None
        for k, row in enumerate(rows):
            value = row[name]
            if column is None or not column[k].is_valid:
                assert value is None
            elif field.dtype in ("text", "bytes"):
                assert column[k].as_py() == value
            elif field.dtype == "json":
                seen = [
                    text
                    for earlier in column.slice(0, k + 1).to_pylist()
                    for text in (earlier or {}).get("new") or ()
                ]
                cell = column[k].as_py()
                decoded = [json.loads(seen[place]) for place in cell["refs"]]
                assert (decoded if cell["is_list"] else decoded[0]) == value
            elif field.shape == ():
                assert (
                    np.array(column[k].as_py(), field.numpy).tobytes() == value.tobytes()
                    or value != value
                )


@given(chunks(), st.data())
def test_copying_rows_between_chunks_preserves_their_values(drawn, data):
    fields, rows = drawn
    decoder, message, crc = encode(fields, rows)
    chunk = decoder.chunk(7, len(rows), crc, message)
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8))
    taken = Rows()
    for k in picked:
        taken.copy(chunk, k, k + 1, fields)
    block = taken.block()
    again = Decoder(Signature(block.fields))
    second = block.message(
        again.templates,
        [0] * len(picked),
        [None] * len(picked),
        [False] * len(picked),
        [False] * len(picked),
    )
    copied = again.chunk(1, len(picked), crc_of(again.signature, 1, len(picked), second), second)
    for place, k in enumerate(picked):
        for name, field in fields.items():
            assert same(read(copied, field, name, place), rows[k][name], field)


def test_a_chunk_stores_each_message_of_a_conversation_once():
    fields = {"messages": Field("json")}
    generator = random.Random(0)
    messages, rows = [], []
    for k in range(50):
        messages.append(
            {"role": "user", "content": "".join(generator.choices("abcdefgh ", k=400)), "id": k}
        )
        rows.append({"messages": list(messages)})
    _, message, _ = encode(fields, rows)
    unique = sum(len(json.dumps(turn)) for turn in messages)
    assert len(message) < 0.6 * unique
    assert sum(len(json.dumps(row)) for row in rows) > 20 * unique


def test_text_is_compressed_and_raw_floats_are_not():
    generator = np.random.default_rng(0)
    _, text, _ = encode({"t": Field("text")}, [{"t": "hello " * 100} for _ in range(20)])
    _, floats, _ = encode(
        {"x": Field("float32", (4000,))},
        [{"x": generator.standard_normal(4000, np.float32)} for _ in range(4)],
    )
    _, image, _ = encode(
        {"x": Field("uint8", (84, 84))}, [{"x": np.zeros((84, 84), np.uint8)} for _ in range(4)]
    )
    assert len(text) < 2_000
    assert 4 * 16_000 < len(floats) < 4 * 16_000 + 1_000
    assert len(image) < 2_000
    schema = Signature({"x": Field("float32", (4000,))})
    assert not read_metadata(floats).compressed
    assert Decoder(schema)


def samples():
    generator = np.random.default_rng(0)
    yield (
        {"obs": Field("float32", (4,)), "action": Field("int64")},
        [{"obs": generator.random(4, np.float32), "action": k} for k in range(20)],
    )
    yield (
        {
            "m": Field("json"),
            "t": Field("text"),
            "v": Field("int32", (None,)),
            "w": Field("float32", (None, 2)),
        },
        [
            {
                "m": [{"a": "x" * 200, "k": k}],
                "t": "y" * k,
                "v": np.arange(k, dtype=np.int32),
                "w": np.ones((k, 2), np.float32),
            }
            for k in range(20)
        ],
    )


def decode_all(decoder, rows, crc, message):
    chunk = decoder.chunk(7, rows, crc, message)
    for name, field in chunk.signature.fields.items():
        chunk.present(name, 0, rows)
        if field.varies:
            chunk.objects(name, 0, rows)
        else:
            assert len(chunk.raw(name, 0, rows)) == rows * field.nbytes
    return chunk


@pytest.mark.parametrize("sample", list(samples()), ids=["fixed", "varying"])
def test_the_checksum_detects_flipped_bits(sample):
    fields, rows = sample
    decoder, message, crc = encode(fields, rows)
    generator = random.Random(1)
    for _ in range(300):
        damaged = bytearray(message)
        bit = generator.randrange(8 * len(message))
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(ChunkDamaged, match="chunk 7 does not match its checksum"):
            decoder.chunk(7, len(rows), crc, bytes(damaged))
    for changed in (
        (8, len(rows), crc),
        (7, len(rows) + 1, crc),
        (7, len(rows), crc ^ 1),
        ("7", len(rows), crc),
        (7, "1", crc),
        (7, len(rows), None),
    ):
        with pytest.raises(ChunkDamaged):
            decoder.chunk(*changed, message)


@pytest.mark.parametrize("sample", list(samples()), ids=["fixed", "varying"])
def test_forged_messages_decode_safely_or_raise_chunk_damaged(sample):
    """Decode randomly modified messages whose checksum an attacker has recomputed.

    Decoding must not read outside the message and may raise only ChunkDamaged.
    """
    fields, rows = sample
    decoder, message, _ = encode(fields, rows)
    generator = random.Random(2)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(message)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(
                len(message) if generator.random() < 0.3 else min(1200, len(message))
            )
            damaged[at] = generator.randrange(256)
        forged = bytes(
            damaged[: generator.randrange(len(damaged))] if generator.random() < 0.1 else damaged
        )
        try:
            decode_all(decoder, len(rows), crc_of(decoder.signature, 7, len(rows), forged), forged)
        except ChunkDamaged:
            refused += 1
    assert refused > 300


def test_a_decompression_bomb_is_rejected_before_memory_is_allocated():
    decoder, message, _ = encode({"t": Field("text")}, [{"t": "a" * 5000} for _ in range(4)])
    metadata = read_metadata(message)
    assert metadata.compressed
    at = metadata.body + int(metadata.buffers[-1, 0])
    forged = message[:at] + (1 << 40).to_bytes(8, "little") + message[at + 8 :]
    with pytest.raises(ChunkDamaged, match="size of a compressed Arrow buffer is not valid"):
        decode_all(decoder, 4, crc_of(decoder.signature, 7, 4, forged), forged)


def test_decoding_with_a_signature_of_another_type_raises():
    _, message, crc = encode({"x": Field("int64", (2,))}, [{"x": np.array([1, 2])}])
    with pytest.raises(ExpDBError):
        Decoder(Signature({"x": Field("int32", (2,))})).chunk(7, 1, crc, message)


def test_signalling_nans_round_trip_bit_for_bit(db):
    numbers = np.array([0x7FA00001, 0x3F800000, 0x7F800001, 0xFFC00000], np.uint32).view(np.float32)
    buffer = db.buffer("b", fields={"x": "float32"})
    for number in numbers:
        buffer.store(episode_id="e", x=number)
    buffer.end_episode("e")  # merges the chunks of the episode
    buffer.store_batch({"x": numbers})
    stored = buffer.get(np.arange(8))["x"].view(np.uint32)
    np.testing.assert_array_equal(stored, np.tile(numbers, 2).view(np.uint32))
