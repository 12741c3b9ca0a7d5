# SPDX-License-Identifier: Apache-2.0
"""Sampled candidates: the taken first, the others feasible, distinct, and uniform."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.observation import FC, FN, FP, FT
from shoal_common.replay import Replay, ReplayConfig
from shoal_common.transition import Transitions

W = np.full(4, 0.25, np.float32)


def build(seed, d, n, p):
    rng = np.random.default_rng(seed)
    mask = rng.random((d, n, p)) < 0.5
    action = rng.integers(0, n * p, d)
    mask.reshape(d, -1)[np.arange(d), action] = True
    node = np.zeros((d, n, FN), np.float16)
    node[..., 0] = np.arange(n)
    made = Replay(ReplayConfig(profiles=p), n)
    made.add(
        Transitions(
            node=node,
            pair=np.zeros((d, n, FP), np.float16),
            task=np.zeros((d, FT), np.float16),
            ctx=np.zeros((d, FC), np.float16),
            mask=mask,
            action=action.astype(np.int32),
            quota=np.ones((d, 2), np.float32),
            propensity=np.ones(d, np.float32),
            reward=np.zeros((d, 4), np.float32),
            closed=np.ones(d, bool),
            next_index=np.append(np.arange(1, d), -1),
            unit=np.arange(d),
        )
    )
    return made, mask, action


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 999), st.integers(2, 9), st.integers(1, 12), st.integers(1, 3), st.integers(1, 14))
def test_candidates(seed, d, n, p, k):
    made, mask, action = build(seed, d, n, p)
    rows = made.eligible
    batch = made.sample(np.random.default_rng(seed), 0, k, W, rows=rows)
    places = min(k, n)
    assert batch.obs_t.node.shape == (len(rows), places, FN)
    for seen, taken, first in ((batch.obs_t, rows, True), (batch.obs_t1, rows + 1, False)):
        for m, row in enumerate(taken):
            nodes = seen.node[m, :, 0].astype(int)
            real = nodes[seen.mask[m].any(-1)]
            feasible = np.flatnonzero(mask[row].any(-1))
            assert len(set(real)) == len(real) == min(places, len(feasible))
            assert set(real) <= set(feasible)
            for place in np.flatnonzero(seen.mask[m].any(-1)):
                assert (seen.mask[m, place] == mask[row, nodes[place]]).all()
            if first:
                assert nodes[0] * p + batch.action[m] == action[row]
                assert seen.mask[m].reshape(-1)[batch.action[m]]


def test_the_others_are_uniform():
    made, mask, action = build(3, 2, 10, 1)
    batch = made.sample(np.random.default_rng(0), 0, 3, W, rows=np.zeros(20_000, np.int64))
    others = np.setdiff1d(np.flatnonzero(mask[0, :, 0]), action[0])
    counts = np.bincount(batch.obs_t.node[:, 1:, 0].astype(int).ravel(), minlength=10)
    assert counts[action[0]] == 0
    assert np.allclose(counts[others] / counts.sum(), 1 / len(others), atol=0.01)


def test_equal_seeds_give_equal_batches():
    made, _, _ = build(5, 9, 8, 1)
    one, two = (made.sample(np.random.default_rng(1), 30, 4, W) for _ in range(2))
    assert (one.obs_t.node == two.obs_t.node).all()
    assert (one.obs_t1.node == two.obs_t1.node).all()
