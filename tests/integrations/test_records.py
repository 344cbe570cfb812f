"""Tests of records: values of other libraries round-trip, or an error names the value."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import expdb
from expdb.integrations.records import Kind, Records

Point = namedtuple("Point", "x y")


@pytest.fixture
def buffer(db):
    return db.buffer("items")


def round_trip(db, buffer, values):
    records = Records(db, buffer)
    buffer.store_batch([records.step(value) for value in values])
    return Records(db, buffer).values(buffer.get(range(len(values))))


def assert_same(first, other):
    assert type(first) is type(other)
    if isinstance(first, dict):
        assert list(first) == list(other)
        first, other = list(first.values()), list(other.values())
    if isinstance(first, (list, tuple)):
        assert len(first) == len(other)
        for part, other_part in zip(first, other, strict=True):
            assert_same(part, other_part)
    elif hasattr(first, "dtype"):
        assert (first.dtype, first.shape) == (other.dtype, other.shape)
        assert np.asarray(first).tobytes() == np.asarray(other).tobytes()
    else:
        assert first == other


VALUES = [
    {"obs": np.zeros(4, np.float32), "reward": 1.5, "done": False, "info": {}},
    {"obs": np.ones(4, np.float32), "reward": float("inf"), "done": True, "info": {"a": [1, (2,)]}},
    {"obs": np.zeros((2, 3), np.uint8)},
    {"obs": np.ones((5, 3), np.uint8)},
    {"obs": {"image": np.array(3), "text": "ä"}, "priority": 2, "next_hidden": b"\0", "step": None},
    {"a b": 1, "a_b": 2, "a.b": 3, "a": {"b": 4}, 5: 5, "5": 6, "structure": 7},
    Point(1, np.float16(2)), [], (), None, True, "text", b"", 2**63 - 1, [[[]], {"x": ()}],
    np.array([[True]]), np.array([], np.int8),
    [{"obs": np.full(2, k), "reward": 1.0, "at": (k, [k, k])} for k in range(3)],
    [{"obs": np.full(2, k), "reward": 1.0, "at": (k, [k, k])} for k in range(5)],
    [np.zeros(2), np.zeros(3)], (1, 2), [1, 2.0], [True, False], [[1, 2], [3, 4]],
    [Point(1, 2)] * 2,
    {"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": None}]},
    {"m": [np.zeros(2), np.zeros(2)]}, {"m": [np.zeros(3), np.zeros(3)]},
    {"m": [[1] * 4, [2] * 4]}, {"m": [[1] * 5, [2] * 5]}, {"self": 1},
    {"x": [np.uint64(2**63 + 1), np.uint64(5)]}, ((((1, 2.0), 3), "x"), None),
    [("a", 1), ("b", 2)], [b"x", b"y"], [[], []],
]  # fmt: skip


def test_values_round_trip_unchanged(db, buffer):
    results = round_trip(db, buffer, VALUES)
    for value, result in zip(VALUES, results, strict=True):
        assert_same(value, result)


def test_value_reverses_step_without_storing(db, buffer):
    records = Records(db, buffer)
    for value in VALUES:
        assert_same(value, records.value(records.step(value)))


def test_tensors_round_trip_as_tensors(db, buffer):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
    )
    values = [
        {"reward": torch.tensor([1.5]), "obs": torch.randn(3, requires_grad=True)},
        {"reward": torch.tensor([float("nan")]), "obs": torch.randn(3).double()},
        {"reward": torch.tensor(2.0, dtype=torch.float64), "obs": torch.randn(3).bfloat16()},
        {"reward": torch.tensor(3), "obs": torch.zeros(0, 2, dtype=torch.bool)},
        {"obs": torch.randn(2, 3).T, "many": [torch.tensor(1, dtype=torch.int8)]},
    ]
    for value, result in zip(values, round_trip(db, buffer, values), strict=True):
        assert value.keys() == result.keys()
        for name, tensor in value.items():
            pair = tensor, result[name]
            expected, actual = (part[0] for part in pair) if name == "many" else pair
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            assert torch.allclose(expected.detach(), actual, equal_nan=True)
            assert not actual.requires_grad
    table = db.sql("SELECT reward FROM experience WHERE buffer = 'items'")
    assert table["reward"].to_pylist() == [1.5, None, 2.0, None, None]
    refused = [torch.zeros(1, dtype=torch.complex64), torch.eye(2).to_sparse()]
    for tensor in refused:
        with pytest.raises(expdb.InvalidValue, match="'obs' is a tensor"):
            Records(db, buffer).step({"obs": tensor})


@pytest.mark.parametrize(
    ("value", "named"),
    [({"a": object()}, "'a' is a builtins.object"), ({"a": {1.5: 0}}, "'a' has the key 1.5"),
     ([1, 2j], "'each' is a builtins.complex"), ({"t": np.array("2020", "M8[D]")}, "'t': dtype"),
     ({"n": 2**70}, "'n' is .* does not fit"), ({"o": np.array([None])}, "'o': dtype object"),
     (np.zeros(2, ">f4"), "the value: big-endian"), ({1, 2}, "the value is a builtins.set")],
)  # fmt: skip
def test_errors_name_the_values_that_cannot_be_stored(db, buffer, value, named):
    with pytest.raises(expdb.InvalidValue, match=named):
        Records(db, buffer).step(value)
    assert len(buffer) == 0


def test_values_of_different_shapes_share_a_structure(db, buffer):
    values = [np.zeros(k) for k in range(50)]
    for value, result in zip(values, round_trip(db, buffer, values), strict=True):
        assert_same(value, result)
    assert len(db.buffer("items.structures")) <= 2


def test_a_handle_reads_structures_added_by_another_handle(open_db):
    first, other = open_db(), open_db()
    writer = Records(first, first.buffer("items"))
    reader = Records(other, other.buffer("items"))
    first.buffer("items").store_batch([writer.step({"a": 1}), writer.step({"b": np.ones(2)})])
    batch = other.buffer("items").get([0, 1], fields=["position", *reader.fields])
    assert_same(reader.values(batch), [{"a": 1}, {"b": np.ones(2)}])


def test_equal_keys_of_different_types_are_refused(db, buffer):
    records = Records(db, buffer)
    records.step({1: np.zeros(2)})
    with pytest.raises(expdb.InvalidValue, match="key True"):
        records.step({True: np.zeros(2)})


def test_the_cost_of_nested_values_is_linear_in_their_depth(db, buffer):
    value = np.zeros(1)
    for _ in range(60):
        value = (value, np.int32(1))
    buffer.store(**Records(db, buffer).step(value))
    assert_same(value, Records(db, buffer).values(buffer.get([0]))[0])


def test_a_kind_defines_how_values_of_a_class_are_stored(db, buffer):
    kind = Kind("fraction", complex, lambda z: (z.real, z.imag), lambda parts: complex(*parts))
    buffer.store(**Records(db, buffer, kind).step({"z": 1 + 2j}))
    batch = buffer.get([0])
    assert Records(db, buffer, kind).values(batch) == [{"z": 1 + 2j}]
    assert Records(db, buffer).values(batch) == [{"z": (1.0, 2.0)}]  # without the kind


def test_values_share_no_memory(db, buffer):
    records = Records(db, buffer)
    buffer.store(**records.step(np.zeros(3)))
    first, second = records.values(buffer.sample(2, fields=["position", *records.fields]))
    first[:] = 1
    assert second.tolist() == [0, 0, 0]


def test_ordered_dictionaries_round_trip(db, buffer):
    inner = OrderedDict(b=np.arange(3), a=OrderedDict(c="text"))
    values = [{"info": inner, "k": 1}, OrderedDict(x=1.5)]
    for result, value in zip(round_trip(db, buffer, values), values, strict=True):
        assert_same(result, value)
