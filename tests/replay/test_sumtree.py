"""The sum tree draws rows in proportion to their weights and never a row of weight 0."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from expdb.replay import sumtree
from expdb.replay.sumtree import SumTree

WEIGHTS = st.lists(
    st.sampled_from([0.0, 0.0, 1e-300, 1e-9, 0.3, 1.0, 7.0, 1e9]), min_size=1, max_size=600
).filter(any)


@given(WEIGHTS, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50))
def test_find_maps_each_share_to_its_row_and_skips_rows_of_weight_0(weights, shares):
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.array(weights))
    rows, _ = tree.find(np.array([*shares, 0.0, np.nextafter(1.0, 0.0)]))
    assert (tree.weights[rows] > 0).all()
    assert rows.max() < len(weights)
    sums = np.cumsum(weights)
    for row, share in zip(rows.tolist(), shares, strict=False):
        low, high = sums[row] - weights[row], sums[row]
        assert low - 1e-9 * sums[-1] <= share * sums[-1] <= high + 1e-9 * sums[-1]


@given(
    st.lists(
        st.tuples(st.integers(0, 999), st.sampled_from([0.0, 0.1, 2.5, 1e7])),
        min_size=1,
        max_size=200,
    )
)
def test_sums_do_not_depend_on_how_the_weights_were_set(updates):
    stepwise, whole = SumTree(1000), SumTree(1000)
    for row, weight in updates:
        stepwise.set(np.array([row]), np.array([weight]))
    rows, weights = (np.array(part) for part in zip(*updates, strict=True))
    whole.set(rows, weights)  # if a row occurs twice, the last weight wins
    assert (stepwise.weights == whole.weights).all()
    whole.sum_up()
    assert all((a == b).all() for a, b in zip(stepwise._levels, whole._levels, strict=True))
    assert stepwise.total == whole.total


def test_the_number_of_levels_does_not_change_the_draws(monkeypatch):
    weights = np.random.default_rng(0).random(5000)
    flat = SumTree(5000)
    monkeypatch.setattr(sumtree, "TOP", 4)
    deep = SumTree(5000)
    for tree in (flat, deep):
        tree.set(np.arange(5000), weights)
    shares = np.random.default_rng(1).random(2000)
    assert len(deep._levels) > len(flat._levels)
    assert (flat.find(shares)[0] == deep.find(shares)[0]).all()
    assert flat.minimum() == weights.min()


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 99), st.sampled_from([0.0, 0.1, 2.5])), min_size=1, max_size=30
        ),
        max_size=20,
    )
)
def test_minimum_returns_the_smallest_positive_weight_after_each_update(updates):
    tree = SumTree(100)
    for update in updates:
        rows, weights = (np.array(part) for part in zip(*update, strict=True))
        tree.set(rows, weights)
        positive = tree.weights[tree.weights > 0]
        assert tree.minimum() == (positive.min() if len(positive) else np.inf)
