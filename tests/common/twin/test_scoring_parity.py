# SPDX-License-Identifier: Apache-2.0
"""The compiled scores equal the exact kube-scheduler plugins where the two overlap, to the integer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.cluster import (
    N_CPU,
    N_GPUS,
    N_MEMORY,
    NODE_COLUMNS,
    P_CPU,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    POD_COLUMNS,
    U_CPU,
    U_CPU_NONZERO,
    U_GPU,
    U_MEMORY,
    U_MEMORY_NONZERO,
    USE_COLUMNS,
)
from shoal_common.kube import balanced_allocation as exact_balance
from shoal_common.kube.node_resources_fit import least_allocated_score, most_allocated_score
from shoal_common.kube.selection import num_feasible_nodes_to_find
from shoal_common.twin import scoring

GIB = 1024**3


@settings(deadline=None, derandomize=True, max_examples=400)
@given(
    room=st.tuples(st.integers(1, 256_000), st.integers(1, 2**41)),
    used=st.tuples(st.integers(0, 300_000), st.integers(0, 2**41)),
    extra=st.tuples(st.integers(0, 5_000), st.integers(0, 2**33)),  # what pods without requests count for
    asked=st.tuples(st.integers(0, 64_000), st.integers(0, 2**38)),
)
def test_fit_and_balance_equal_the_plugins(
    room: tuple[int, int], used: tuple[int, int], extra: tuple[int, int], asked: tuple[int, int]
) -> None:
    node, use, pod = np.zeros(NODE_COLUMNS), np.zeros(USE_COLUMNS), np.zeros(POD_COLUMNS)
    node[[N_CPU, N_MEMORY]] = room
    use[[U_CPU, U_MEMORY]] = used
    use[[U_CPU_NONZERO, U_MEMORY_NONZERO]] = np.add(used, extra)
    pod[[P_CPU, P_MEMORY]] = asked
    counted = (asked[0] or 100, asked[1] or 200 * 1024**2)
    after = [u + e + c for u, e, c in zip(used, extra, counted, strict=True)]
    assert scoring.fit_score(node, use, pod, False) == least_allocated_score(after, room)
    assert scoring.fit_score(node, use, pod, True) == most_allocated_score(after, room)
    if any(asked):  # else the plugin is skipped: the twin gives every node 0
        for improvement, version in ((True, "1.36"), (False, "1.35")):
            expected = exact_balance.score(asked, used, room, version)
            assert scoring.balanced_allocation(node, use, pod, improvement) == expected
    else:
        assert scoring.balanced_allocation(node, use, pod, True) == 0.0


@pytest.mark.parametrize(
    ("nodes", "found"), [(1, 1), (99, 99), (100, 100), (200, 100), (250, 120), (1000, 420), (6000, 300)]
)
def test_the_sample_size_table(nodes: int, found: int) -> None:
    assert scoring.nodes_to_find(nodes) == found == num_feasible_nodes_to_find(nodes, 0)


def test_volcano_and_best_fit_by_hand() -> None:
    node, use, pod = np.zeros(NODE_COLUMNS), np.zeros(USE_COLUMNS), np.zeros(POD_COLUMNS)
    node[[N_CPU, N_MEMORY, N_GPUS]] = 10_000, 100 * GIB, 4
    use[[U_CPU, U_MEMORY, U_GPU]] = 2_000, 10 * GIB, 1_000
    pod[[P_CPU, P_MEMORY, P_GPU, P_GPUS]] = 3_000, 40 * GIB, 1_000, 1
    assert scoring.binpack(node, use, pod) == pytest.approx(50.0)
    assert scoring.volcano_balance(node, use, pod) == 100.0
    pod[P_GPUS] = 3
    assert scoring.binpack(node, use, pod) == pytest.approx(100 * (0.5 + 0.5 + 1.0) / 3)
    deviation = np.std([0.5, 0.5, 1.0])
    assert scoring.volcano_balance(node, use, pod) == int((1 - deviation) * 100)
    assert scoring.best_fit(node, use, pod) == pytest.approx(100 * (1 - 0.5 * 5 / 128 - 0.0))
