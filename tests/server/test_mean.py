# SPDX-License-Identifier: Apache-2.0
"""The weighted mean by hand numbers, and its independence of the order of arrival."""

from __future__ import annotations

import itertools

import numpy as np

from shoal_server.aggregate.mean import OrderedMean

NAMES = ("a", "b", "c")


def _vector(*values):
    return np.array(values, np.float32)


def test_equal_weights():
    mean = OrderedMean(NAMES, {}, 2)
    for name, vector in zip(NAMES, (_vector(1, 2), _vector(2, 4), _vector(6, 9)), strict=True):
        mean.offer(name, vector)
    assert mean.result().tolist() == [3, 5]
    assert mean.result().dtype == np.float32


def test_public_weights():
    mean = OrderedMean(("a", "b"), {"a": 3.0}, 1)
    mean.offer("a", _vector(2))
    mean.offer("b", _vector(10))
    assert mean.result().tolist() == [4]  # (3 * 2 + 10) / 4


def test_skipped_and_silent_clusters_do_not_count():
    mean = OrderedMean(NAMES, {}, 1)
    mean.skip("a")
    mean.offer("c", _vector(5))
    assert mean.result().tolist() == [5]


def test_zero_weight_contributes_nothing_and_zero_in_all_is_no_mean():
    mean = OrderedMean(("a", "b"), {"a": 0.0}, 1)
    mean.offer("a", _vector(100))
    mean.offer("b", _vector(1))
    assert mean.result().tolist() == [1]
    empty = OrderedMean(("a",), {"a": 0.0}, 1)
    empty.offer("a", _vector(100))
    assert empty.result() is None
    assert OrderedMean((), {}, 1).result() is None


def test_the_order_of_arrival_does_not_change_a_bit():
    rng = np.random.default_rng(0)
    updates = {name: (rng.normal(size=50) * 10.0**e).astype(np.float32) for e, name in enumerate("abcd")}
    results = set()
    for order in itertools.permutations(updates):
        mean = OrderedMean(tuple("abcd"), {"b": 0.3}, 50)
        for name in order:
            mean.offer(name, updates[name])
        results.add(mean.result().tobytes())
    assert len(results) == 1


def test_an_update_in_its_turn_is_not_kept():
    mean = OrderedMean(NAMES, {}, 1)
    mean.offer("a", _vector(1))
    mean.offer("c", _vector(1))
    assert set(mean._waiting) == {"c"}


def test_an_unchanged_model_stays_bit_for_bit():
    model = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    mean = OrderedMean(NAMES, {}, 1000)
    for name in NAMES:
        mean.offer(name, model)
    assert mean.result().tobytes() == model.tobytes()
