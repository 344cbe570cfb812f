"""Payload types: supported values round-trip, and other values raise before any write."""

import dataclasses
import enum
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest
from contents import steps_of
from kept_files import DTYPES

import expdb
from expdb import Field, errors
from expdb.export import export


class Message(pydantic.BaseModel):
    role: str
    content: str | None = None


@dataclasses.dataclass
class Call:
    name: str
    arguments: dict


class Tensor:
    """An array of another framework that supports only DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Wrapped:
    """An array of another framework that supports only NumPy's ``__array__`` protocol."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(3, dtype=np.int16)


class Bfloat16:
    dtype = "torch.bfloat16"

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")


def stored(buffer, **fields):
    return buffer.get([buffer.store(**fields)])


def test_arrays_of_every_dtype_and_shape_round_trip_bit_for_bit(scratch):
    rng = np.random.default_rng(0)
    arrays = {
        f"{dtype}_{'x'.join(map(str, shape))}": (rng.random(shape) * 100).astype(dtype)
        for dtype in DTYPES
        for shape in [(), (3,), (2, 3), (0,), (2, 0), (1, 1, 1)]
    }
    batch = stored(scratch, **arrays)
    for name, array in arrays.items():
        assert batch[name].dtype == array.dtype, name
        assert batch[name].shape == (1, *array.shape), name
        assert batch[name][0].tobytes() == array.tobytes(), name


def test_non_contiguous_and_fortran_ordered_arrays_round_trip(scratch):
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    for k, array in enumerate((base[::2, ::-1], base.T, np.asfortranarray(base))):
        assert (stored(scratch, **{f"x{k}": array})[f"x{k}"][0] == array).all()


@pytest.mark.parametrize(
    "value", [True, -(2**63), 2**63 - 1, -0.0, float("nan"), np.float32(0.1), np.uint8(3)]
)
def test_scalars_are_returned_in_arrays_of_their_dtype(scratch, value):
    array = stored(scratch, x=value)["x"]
    wanted = np.array([value])
    assert array.dtype == wanted.dtype
    assert array.tobytes() == wanted.tobytes()


def test_lists_of_numbers_may_vary_in_length(scratch):
    for row in ([1, 2, 3], [], [4]):
        scratch.store(tokens=row, logprobs=[x / 3 for x in row] or [0.5])
    batch = scratch.get([0, 1, 2])
    assert batch["tokens"].dtype == object
    assert [array.tolist() for array in batch["tokens"]] == [[1, 2, 3], [], [4]]
    assert batch["tokens"][0].dtype == np.int64
    assert batch["logprobs"][2].tobytes() == np.array([4 / 3]).tobytes()


def test_declared_fields_may_vary_in_dimensions_of_size_none(db):
    buffer = db.buffer(
        "d",
        fields={
            "tokens": Field("int32", shape=(None,)),
            "frames": Field("uint8", shape=(None, 2, None)),
            "n": "int16",
        },
    )
    frames = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    buffer.store(tokens=[1, 2], frames=frames, n=5)
    buffer.store(tokens=np.array([3], np.int32), frames=frames[:1], n=np.int16(6))
    batch = buffer.get([1, 0])
    assert [array.tolist() for array in batch["tokens"]] == [[3], [1, 2]]
    assert batch["tokens"][0].dtype == np.int32
    assert batch["frames"][1].tobytes() == frames.tobytes()
    assert batch["frames"][0].shape == (1, 2, 2)
    assert batch["n"].dtype == np.int16
    with pytest.raises(errors.FieldMismatch, match=r"uint8\[None, 2, None\]"):
        buffer.store(frames=np.zeros((3, 3, 2), np.uint8))


def test_text_and_bytes_round_trip(scratch):
    batch = stored(scratch, t="añ\u2028🙂", b=b"\0\xff", ba=bytearray(b"x"))
    assert batch["t"].tolist() == ["añ\u2028🙂"]
    assert batch["b"].tolist() == [b"\0\xff"]
    assert batch["ba"].tolist() == [b"x"]


@pytest.mark.both_databases
def test_nul_and_surrogates_of_tool_output_round_trip(open_db, tmp_path):
    db = open_db()
    buffer = db.buffer("b")
    messages = [{"role": "tool", "content": "a\0b\ud800c"}]
    buffer.store(task_id="t", note="a\0b", messages=messages, terminated=True)
    batch = buffer.get([0])
    assert (batch["note"][0], batch["messages"][0]) == ("a\0b", messages)
    query = "SELECT field(payload, 'note') AS n, field(payload, 'messages') AS m FROM experience"
    (row,) = db.sql(query).to_pylist()
    assert (row["n"], json.loads(row["m"])) == ("a\ufffdb", messages)
    (row,) = buffer.to_arrow().read_all().to_pylist()
    assert (row["note"], json.loads(row["messages"])) == ("a\0b", messages)
    path = tmp_path / "out.parquet"
    export(buffer, path)
    (row,) = pq.read_table(path).to_pylist()
    assert (row["note"], json.loads(row["messages"])) == ("a\0b", messages)


@pytest.mark.parametrize("column", ["tags", "pre_agent", "task_id"])
def test_columns_with_nul_or_surrogates_are_refused(scratch, column):
    for text, name in (("\0", "NUL character"), ("\ud800", "lone surrogate")):
        with pytest.raises(expdb.InvalidValue, match=f"{column} contains a {name}"):
            scratch.store(x=1, **{column: {"k": text} if column == "tags" else text})


@pytest.mark.both_databases
def test_text_replace_replaces_and_counts_characters_that_cannot_be_stored(location):
    with expdb.open(location, text="replace") as db:
        buffer = db.buffer("b")
        buffer.store(note="a\ud800\0", tags={"k": ["\0"]}, pre_agent="\ud800", info={"c": "\ud800"})
        with buffer.episode("t") as episode:
            episode.append(note="\udfff")
            episode.extend({"note": ["whole", "\udfff"]})
            episode.end(note="\udfff")
        keys = ["note", "tags", "pre_agent", "info", "next_note"]
        batch = buffer.get(range(4), fields=keys)
        assert batch["note"].tolist() == ["a\ufffd\0", "\ufffd", "whole", "\ufffd"]
        assert batch["next_note"][3] == "\ufffd"
        assert (batch["tags"][0], batch["pre_agent"][0]) == ({"k": ["\ufffd"]}, "\ufffd")
        assert buffer.stats()["replaced_characters"] == 7
        with pytest.raises(expdb.InvalidValue, match="reward must be"):
            buffer.store(reward=float("nan"))
        assert db.check() == []
    with pytest.raises(expdb.InvalidValue, match="text must be"):
        expdb.open(location, text="ignore")


def test_json_values_of_every_kind_are_returned_as_python_objects(scratch):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    values = {
        "state": {"content": "...", "n": 1, "f": 0.1, "none": None, "deep": [[1, [2]], {}]},
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "mixed": [1, "a", None],
        "names": ["a", "b"],
        "empty": {},
    }
    batch = stored(scratch, **values, big={"n": 2**70})
    for name, value in values.items():
        assert batch[name][0] == value
    assert batch["big"][0] == {"n": 2**70}


def test_models_and_dataclasses_are_stored_as_json(scratch):
    message, call = Message(role="user", content="hi"), Call("search", {"q": "x"})
    batch = stored(
        scratch,
        messages=[message, {"role": "tool", "content": "y"}],
        call=call,
        one=message,
        inside={"m": message, "np": np.int64(3)},
    )
    assert batch["messages"][0] == [
        {"role": "user", "content": "hi"},
        {"role": "tool", "content": "y"},
    ]
    assert batch["call"][0] == {"name": "search", "arguments": {"q": "x"}}
    assert batch["one"][0] == {"role": "user", "content": "hi"}
    assert batch["inside"][0] == {"m": {"role": "user", "content": "hi"}, "np": 3}


def test_arrays_of_other_frameworks_are_stored_through_dlpack_or_numpy(scratch):
    batch = stored(
        scratch,
        a=Tensor(np.arange(4, dtype=np.float32)),
        b=Wrapped(),
        c=Tensor(np.array(2.5, np.float32)),
    )
    assert batch["a"].tolist() == [[0, 1, 2, 3]]
    assert batch["a"].dtype == np.float32
    assert batch["b"].tolist() == [[0, 1, 2]]
    assert batch["c"].tolist() == [2.5]


def test_torch_tensors_can_be_stored_directly(scratch):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: tensors are tested by protocol above"
    )
    batch = stored(scratch, x=torch.arange(6, dtype=torch.float32).reshape(2, 3))
    assert batch["x"].shape == (1, 2, 3)
    with pytest.raises(expdb.InvalidValue, match="detach"):
        scratch.store(y=torch.zeros(2, requires_grad=True))
    with pytest.raises(expdb.InvalidValue, match="bfloat16"):
        scratch.store(z=torch.zeros(2, dtype=torch.bfloat16))
    assert batch.to_torch()["x"].dtype == torch.float32


def test_jax_arrays_can_be_stored_directly(scratch):
    jnp = pytest.importorskip(
        "jax.numpy", reason="jax is not installed: arrays are tested by protocol above"
    )
    assert stored(scratch, x=jnp.arange(3))["x"].tolist() == [[0, 1, 2]]


def test_mappings_with_arrays_become_dotted_fields(scratch):
    obs = {
        "image": np.zeros((2, 2), np.uint8),
        "state": {"pos": np.array(1.5, np.float32), "name": "a"},
    }
    with scratch.episode("t") as episode:
        episode.append(obs=obs)
        episode.append(obs={"image": np.ones((2, 2), np.uint8)})
        episode.end(obs=obs)
    batch = scratch.get([0, 1])
    assert batch["obs.image"].shape == (2, 2, 2)
    assert batch["obs.state.name"].tolist() == ["a", None]
    assert batch["has_obs.state.pos"].tolist() == [True, False]
    sampled = scratch.sample(4, {"step": 1}, unit=expdb.NStep(1))
    assert (sampled["next_obs.image"] == 0).all()
    with pytest.raises(errors.FieldMismatch, match="must be a mapping with arrays"):
        scratch.store(obs=np.zeros(3))


def test_missing_values_are_filled_and_marked_by_a_has_mask(scratch):
    scratch.store(x=1.5, n=3, b=True, t="a", v=[1], i=np.ones(2, np.int8))
    scratch.store(x=None)
    scratch.store(late=1)
    batch = scratch.get([0, 1, 2])
    assert np.isnan(batch["x"][1:]).all()
    assert batch["n"].tolist() == [3, 0, 0]
    assert batch["b"].tolist() == [True, False, False]
    assert batch["t"].tolist() == ["a", None, None]
    assert batch["v"][1] is None
    assert batch["i"].tolist() == [[1, 1], [0, 0], [0, 0]]
    for name in ("x", "n", "b", "t", "v", "i"):
        assert batch[f"has_{name}"].tolist() == [True, False, False]
    assert batch["has_late"].tolist() == [False, False, True]
    assert batch.to_list()[1]["n"] is None


def test_a_field_present_in_every_step_has_no_mask(scratch):
    scratch.store(x=1.5)
    scratch.store(x=2.5)
    assert "has_x" not in scratch.get([0, 1])


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    a: object


class Level(enum.Enum):
    HIGH = 1


RECURSIVE: list = []
RECURSIVE.append(RECURSIVE)
RECURSIVE_MAPPING: dict = {"a": np.zeros(2)}
RECURSIVE_MAPPING |= {"b": RECURSIVE_MAPPING, "c": RECURSIVE_MAPPING}

REFUSED = {
    "structured": (np.zeros(2, [("a", int)]), "cannot be stored"),
    "text array": (np.array(["a", "b"]), "tolist"),
    "bfloat16": (Bfloat16(), "bfloat16"),
    "long double": (np.zeros(2, np.longdouble), "cannot be stored"),
    "infinity in JSON": ({"a": [float("inf")]}, "NaN or infinity"),
    "a deep key": ({"a": [{"b": {None: 2}}]}, "key None"),
    "surrogate": ("\ud800", "surrogate"),
    "surrogates in JSON that form a pair": ({"a": "\ud83d\ude00"}, "surrogate"),
    "an enum": ({"a": Level.HIGH}, "cannot be stored as JSON"),
    "recursive": (RECURSIVE, "x is nested"),
    "a recursive mapping of arrays": (RECURSIVE_MAPPING, "x is nested"),
    "NaN in a model": (Loose(a=float("nan")), "nan"),
    "a key of a model": (Loose(a={1: 2}), "key 1"),
    "an array in a model": (Loose(a=np.zeros(2)), "model contains an array"),
    "too deep": (json.loads("[" * 300 + "]" * 300), "nested"),
    "an array in JSON": ([np.zeros(2)], "array"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_values_are_rejected_before_anything_is_stored(scratch, name):
    value, message = REFUSED[name]
    with pytest.raises(expdb.ExpDBError, match=message) as caught:
        scratch.store(x=value)
    assert "\n" not in str(caught.value)
    with pytest.raises(expdb.ExpDBError, match=message):
        scratch.store_batch([{"ok": 1}, {"ok": 2, "x": value}])
    with pytest.raises(expdb.ExpDBError, match=message), scratch.episode("t") as episode:
        episode.append(x=value)
    assert len(scratch) == 0
    assert scratch.stats()["fields"] == {}
    assert scratch.store(x=1) == 0


def test_a_literal_backslash_u0000_in_json_text_is_accepted(scratch):
    value = {"a": "\\u0000 and \\\\u0000"}
    assert stored(scratch, x=value)["x"][0] == value


MISMATCHES = [
    (np.zeros(3, np.float32), np.zeros(4, np.float32)), (np.zeros(3, np.float32), [1, 2, 3]),
    (1, True), ("a", b"a"), (np.int8(1), 128), (1.5, 2**53 + 1), ([1, 2], [0.5]),
    ({"a": 1}, np.zeros(2)), (np.float32(1), np.float64(0.1)), (1, np.float32(1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"),
    MISMATCHES,
    ids=[f"{type(a).__name__}-{type(b).__name__}-{k}" for k, (a, b) in enumerate(MISMATCHES)],
)
def test_the_error_for_a_value_of_another_type_names_both_types(scratch, first, second):
    scratch.store(x=first)
    with pytest.raises(
        expdb.ExpDBError, match=r"'x' has type .*, (got|and|which would|which cannot)|x: "
    ) as caught:
        scratch.store(x=second)
    assert "\n" not in str(caught.value)
    assert len(scratch) == 1
    scratch.store(x=first)


def test_numpy_scalars_of_any_width_are_accepted_if_the_value_fits(db):
    for first, others in (
        (1, (np.int32(2), np.uint8(3), np.array(4, np.int16))),
        (1.5, (np.float32(0.5), np.int8(2))),
        (np.float32(1), (np.float64(0.5),)),
    ):
        buffer = db.buffer(f"{type(first).__name__}")
        for value in (first, *others):
            buffer.store(x=value)
        array = buffer.get(range(len(others) + 1))["x"]
        assert array.dtype == np.asarray(first).dtype
        assert array.tolist() == [float(number) for number in (first, *others)]


@pytest.mark.parametrize(
    ("first", "second", "cure"),
    [
        (0, 0.5, r"fields=\{'x': expdb\.Field\('float64'\)\}.*, or pass floats"),
        (np.zeros((2, 3)), np.zeros((5, 3)),
            r"expdb\.Field\('float64', shape=\(None, 3\)\).* or pad the array"),
        (np.zeros((4, 4), np.uint8), np.zeros((8, 6), np.uint8), r"shape=\(None, None\)"),
        (np.zeros((2, 3)), [np.zeros(3), np.zeros(3)], r"np\.stack"),
        (np.zeros(3, np.float32), np.zeros(3), r"\.astype\('float32'\)"),
    ],
)  # fmt: skip
def test_the_fix_suggested_by_a_mismatch_error_works(db, first, second, cure):
    db.buffer("x").store(x=first)
    with pytest.raises(errors.FieldMismatch, match=cure) as caught:
        db.buffer("x").store(x=second)
    declared = re.search(r"fields=\{'x': (expdb\.Field\(.*?\))\}", str(caught.value))
    if declared:
        buffer = db.buffer("declared", fields={"x": eval(declared[1], {"expdb": expdb})})
        for value in (first, second):
            buffer.store(x=value)
        assert [
            np.array_equal(a, b)
            for a, b in zip(buffer.get([0, 1])["x"], (first, second), strict=True)
        ] == [True, True]


def test_empty_lists_and_none_do_not_determine_the_field_type(scratch):
    with pytest.warns(errors.ExpDBWarning, match="first value of field 'x' is an empty list"):
        scratch.store(x=[], y=None)
    assert scratch.stats()["fields"] == {}
    scratch.store(x=[1, 2], y=[0.5])
    scratch.store(x=[], y=[])
    assert scratch.stats()["fields"] == {"x": "int64[None]", "y": "float64[None]"}
    batch = scratch.get([0, 1, 2])
    assert [None if array is None else array.tolist() for array in batch["x"]] == [None, [1, 2], []]


def test_python_numbers_are_converted_to_the_field_dtype(scratch):
    scratch.store(x=0.5, y=np.float32(0.5), z=np.int8(1))
    scratch.store(x=3, y=2, z=-128)
    batch = scratch.get([1])
    assert (batch["x"][0], batch["y"][0], batch["z"][0]) == (3.0, 2.0, -128)


@pytest.mark.parametrize(
    "name", ["reward", "position", "payload", "priority", "discount", "mask", "next_x", "has_x"]
)
def test_names_of_columns_and_batch_keys_are_reserved(db, name):
    buffer = db.buffer("r")
    with pytest.raises(errors.ReservedName, match=name):
        buffer.store_batch([{f"{name}.x": 1}])
    with pytest.raises(errors.ReservedName, match=name):
        db.buffer("other", fields={name: Field("int64")})
    assert len(buffer) == 0


@pytest.mark.parametrize("name", ["", "a b", "a..b", ".a", "a\0", "x" * 300, "a-b"])
def test_malformed_field_names_are_rejected(scratch, name):
    with pytest.raises(expdb.InvalidValue):
        scratch.store_batch([{name: 1}])


def test_invalid_column_values_are_rejected(scratch):
    for column, value in [
        ("reward", float("nan")), ("reward", float("inf")), ("reward", "1"), ("reward", True),
        ("reward", np.zeros(2)), ("reward", 2**53 + 1), ("reward", np.int64(2**53 + 1)),
        ("step", 1.5), ("step", 2**63), ("step", True), ("terminated", 1), ("truncated", "no"),
        ("task_id", 5),
        ("task_id", "a\0"), ("agent_id", 5), ("tags", ["a"]), ("tags", {"a": float("nan")}),
        ("tags", {"a": 2**63}),
        ("episode_tags", "x"), ("policy_version", "1"), ("pre_agent", 3),
        ("execute_time", float("nan")), ("group_id", 3),
    ]:  # fmt: skip
        with pytest.raises(expdb.InvalidValue, match=column):
            scratch.store(**{column: value})
    assert len(scratch) == 0


def test_numpy_scalars_are_accepted_as_column_values(scratch):
    values = {
        "reward": np.float32(0.5), "step": np.int64(3), "terminated": np.bool_(True),
        "policy_version": np.int32(2), "execute_time": np.float64(1.0),
    }  # fmt: skip
    scratch.store(**values)
    row = steps_of(scratch)[0]
    assert {name: row[name] for name in values} == values


def test_arrays_may_be_modified_after_they_are_appended(scratch):
    obs = np.zeros(2)
    with scratch.episode("t") as episode:
        for k in range(3):
            obs += 1
            episode.append(obs=obs, state={"k": k})
    assert scratch.get([0, 1, 2])["obs"][:, 0].tolist() == [1, 2, 3]


SIGNALLING = np.array([0x7F800001, 0xFF800001, 0x7FC00001, 0x80000000], np.uint32)


@pytest.mark.parametrize("shape", [(None,), (2, None)])
def test_archives_and_exports_preserve_variable_shape_arrays_bit_for_bit(
    db, tmp_path, shape, monkeypatch
):
    monkeypatch.setattr("expdb.archive.retention.LOOK_SECONDS", 1000.0)

    bits = {"float32": SIGNALLING, "float16": SIGNALLING.astype(np.uint16), "int64": None}
    fields = {name: expdb.Field(name, shape) for name in bits} | {
        "flag": expdb.Field("bool", shape), "none": expdb.Field("float32", (2, 0)),
    }  # fmt: skip
    buffer = db.buffer("b", capacity=1, fields=fields)
    buffer.eviction = expdb.Eviction(archive=tmp_path / "archive")
    sizes = [2 if n is None else n for n in shape]
    rows = [
        None,
        {
            name: (np.arange(np.prod(sizes)) if of is None else np.resize(of, np.prod(sizes)))
            .astype(np.int64 if of is None else of.dtype).view(name).reshape(sizes)
            for name, of in bits.items()
        }
        | {"flag": np.ones(sizes, bool), "none": np.zeros((2, 0), np.float32)}
    ]  # fmt: skip
    for row in (*rows, rows[1]):
        buffer.store(**(row or {"n": 1}))
    export(buffer, tmp_path / "all.parquet")
    assert buffer.evict() == 2
    (archived,) = (tmp_path / "archive").rglob("*.parquet")
    for path in (archived, tmp_path / "all.parquet"):
        table = pq.read_table(path).combine_chunks()
        for name, value in rows[1].items():
            column = table[name].chunk(0)
            assert [cell is None for cell in column.to_pylist()[:2]] == [True, False], name
            flat = column.slice(1, 1)
            while pa.types.is_list(flat.type):
                flat = flat.flatten()
            assert flat.to_numpy(zero_copy_only=False).tobytes() == value.tobytes(), name
