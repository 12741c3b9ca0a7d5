# SPDX-License-Identifier: Apache-2.0
"""Observations that no policy was trained for, and distributions that moved."""

from __future__ import annotations

import numpy as np

from shoal_client.serve.drift import NODE_CAPPED, PAIR_CAPPED, TASK_CAPPED, Drift, clipped_ratio
from shoal_common.features import CONTEXT_HIGH, NODE_HIGH, PAIR_HIGH, TASK_HIGH
from shoal_common.observation import FC, FN, FP, FT, NODE_FEATURES, Observation


def observation(level: float, nodes: int = 3) -> Observation:
    """All features at this share of their upper bounds."""
    return Observation(
        node=np.broadcast_to(level * NODE_HIGH, (1, nodes, FN)).astype(np.float32),
        pair=np.broadcast_to(level * PAIR_HIGH, (1, nodes, FP)).astype(np.float32),
        task=(level * TASK_HIGH)[None].reshape(1, FT),
        ctx=(level * CONTEXT_HIGH)[None].reshape(1, FC),
        w=np.full((1, 4), 0.25, np.float32),
        mask=np.ones((1, nodes, 1), np.bool_),
        plugin=np.zeros((1, nodes, 0), np.float32),
    )


def test_only_caps_count_as_out_of_distribution() -> None:
    names = {NODE_FEATURES[i].name for i in NODE_CAPPED}
    assert {"cores", "pods", "cpu_load", "idle_power"} <= names
    assert not {"empty", "has_gpu", "cpu_free", "speed"} & names
    assert clipped_ratio(observation(0.5)) == 0.0
    assert clipped_ratio(observation(1.0)) == 1.0
    some = observation(0.5)
    some.task[0, TASK_CAPPED[0]] = TASK_HIGH[TASK_CAPPED[0]]
    every = 3 * (len(NODE_CAPPED) + len(PAIR_CAPPED)) + len(TASK_CAPPED)
    assert clipped_ratio(some) == 1 / every
    assert clipped_ratio(observation(1.0, nodes=0)) == 1.0


def test_the_index_compares_full_windows_with_the_usual() -> None:
    rng, drift = np.random.default_rng(0), Drift()

    def window(low: float, high: float) -> float:
        for _ in range(500):
            drift.see(observation(float(rng.uniform(low, high))), 500)
        return drift.index

    assert window(0.1, 0.4) == 0.0
    assert window(0.1, 0.4) < 0.1
    first = window(0.5, 0.9)
    assert first > 0.25
    later = [window(0.5, 0.9) for _ in range(12)]
    assert later == sorted(later, reverse=True)
    assert later[-1] < 0.25


def test_how_full_the_cluster_is_is_no_drift() -> None:
    drift, names = Drift(), [f.name for f in NODE_FEATURES]
    for free in np.linspace(1.0, 0.0, 1000):
        seen = observation(0.3)
        for name in ("cpu_free", "memory_free", "pods", "cpu_load"):
            seen.node[..., names.index(name)] = free
        drift.see(seen, 100)
    assert drift.index == 0.0
