# SPDX-License-Identifier: Apache-2.0
"""Integers from logits: by hand, and what holds for any logits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal_client.serve.scoring import forced_scores, integer_scores

ALL = np.ones(4, np.bool_)


def test_scores_by_hand() -> None:
    logits = np.array([0.0, 1.0, 9.0, 10.0], np.float32)
    assert integer_scores(logits, ALL, ALL, 10).tolist() == [1, 1, 9, 10]
    assert integer_scores(logits, ALL, ALL, 100).tolist() == [1, 10, 90, 100]
    full = np.array([True, True, True, False])
    assert integer_scores(logits, full, ALL, 10).tolist() == [1, 2, 10, 0]
    strangers = np.array([True, True, True, False])
    assert integer_scores(logits, full, strangers, 10).tolist() == [1, 2, 10, 5]
    assert integer_scores(logits, ~ALL, ALL, 10).tolist() == [0, 0, 0, 0]
    assert integer_scores(logits, full & False, strangers, 10).tolist() == [0, 0, 0, 5]
    assert integer_scores(np.full(4, 3.0, np.float32), ALL, ALL, 10).tolist() == [10] * 4
    assert forced_scores(2, 4, 10).tolist() == [0, 0, 10, 0]


@given(
    hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-1e6, 1e6, width=32)),
    st.integers(1, 1000),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_case_9_integers_keep_the_order(logits, scale, random) -> None:
    feasible = np.array([random.random() < 0.8 for _ in logits])
    scores = integer_scores(logits, feasible, np.ones_like(feasible), scale)
    assert scores.dtype == np.int64
    assert ((scores >= 0) & (scores <= scale)).all()
    assert (scores[~feasible] == 0).all()
    if not feasible.any():
        return
    found, given_scores = logits[feasible].astype(np.float64), scores[feasible]
    order = np.argsort(found, kind="stable")
    assert (np.diff(given_scores[order]) >= 0).all()
    equal = np.diff(found[order]) == 0
    assert (np.diff(given_scores[order])[equal] == 0).all()
    spread = found.max() - found.min()
    if spread > 0 and scale > 1:
        apart = np.diff(found[order]) * (1 - 1e-9) > spread / (scale - 1)
        assert (np.diff(given_scores[order])[apart] > 0).all()
        assert (given_scores == scale).tolist() == (found == found.max()).tolist()
