# SPDX-License-Identifier: Apache-2.0
"""The FGD family against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np

from shoal_common.scorers import fgd
from shoal_common.scorers.fragmentation import PodSpecs, TypicalPods, node_fragmentation, typical_pods


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


# half a GPU, a whole GPU, two GPUs, CPU only, a whole GPU of model 1
SPECS = PodSpecs(
    cpu_milli=column(8_000, 8_000, 16_000, 4_000, 8_000),
    memory_mib=column(0, 0, 0, 0, 0),
    gpu_milli=column(500, 1000, 1000, 0, 1000),
    num_gpu=column(1, 1, 2, 0, 1),
    models=column(0, 0, 0, 0, 0b10),
)
HALF, WHOLE, TWO, CPU, MODEL = range(5)
TYPICAL = TypicalPods(
    SPECS.cpu_milli[:2], SPECS.gpu_milli[:2], SPECS.num_gpu[:2], SPECS.models[:2], np.array([0.5, 0.5])
)


def state() -> fgd.State:
    """Node 0: 32 cores and two GPUs of model 0, half of one in use. Node 1: 64 cores, four free, model 1."""
    nodes = fgd.empty_nodes(column(32_000, 64_000), column(1000, 1000), column(2, 4), column(0b01, 0b10))
    state = fgd.start(nodes, SPECS, TYPICAL)
    fgd.place(state, HALF, 0, 0b1)
    return state


def test_fragmentation_by_hand() -> None:
    left = column(500, 1000)
    # half: fits, nothing is below 500. whole: fits, the 500 left on device 0 are too small
    assert node_fragmentation(24_000, left, 2, 1, TYPICAL) == 0.5 * 0 + 0.5 * 500
    # with 1 core left nothing fits: everything idle is a fragment for both
    assert node_fragmentation(1_000, left, 2, 1, TYPICAL) == 1500
    assert node_fragmentation(24_000, column(0, 0), 2, 1, TYPICAL) == 0


def test_typical_pods_cover_95_percent_and_are_renormalised() -> None:
    typical = typical_pods(SPECS, ["", "", "", "", "G2"], column(60, 30, 6, 3, 1))
    assert typical.num_gpu.tolist() == [1, 1, 2]  # 60 + 30 < 95 <= 60 + 30 + 6
    np.testing.assert_allclose(typical.frequency, np.array([60, 30, 6]) / 96)


def test_typical_pods_of_equal_count_are_ordered_by_size_downwards() -> None:
    typical = typical_pods(SPECS, ["", "", "", "", "G2"], column(1, 1, 1, 1, 1))
    assert typical.cpu_milli.tolist() == [16_000, 8_000, 8_000, 8_000, 4_000]
    assert typical.models.tolist() == [0, 0b10, 0, 0, 0]  # "G2" sorts above "", 1000 above 500


def test_feasible_nodes() -> None:
    now = state()
    assert fgd.feasible_nodes(now, WHOLE).tolist() == [True, True]
    assert fgd.feasible_nodes(now, TWO).tolist() == [False, True]
    assert fgd.feasible_nodes(now, MODEL).tolist() == [False, True]
    assert fgd.feasible_nodes(now, CPU).tolist() == [True, True]


def test_best_fit_by_hand() -> None:
    # node 0: CPU (24000 - 8000) / 128000 / 2 = 0.0625; GPU (1500 - 500) / 8000 / 2 = 0.0625
    assert fgd.best_fit(state(), HALF, 0) == 87
    # node 1: (64000 - 8000) / 128000 / 2 = 0.21875; (4000 - 500) / 8000 / 2 = 0.21875
    assert fgd.best_fit(state(), HALF, 1) == 56
    assert fgd.normalised(column(87, 56, 60)).tolist() == [100, 0, 12]
    assert fgd.normalised(column(7, 7)).tolist() == [0, 0]


def test_dot_product_by_hand() -> None:
    # node 0: 24/128 * 8/128 + 1500/8000 * 500/8000 = 0.0234375 -> 100 * (1 - 0.01171875)
    assert fgd.dot_product(state(), HALF, 0) == 98


def test_gpu_packing_by_hand() -> None:
    now = state()
    assert fgd.gpu_packing(now, HALF, 0) == 100 - 50 // 10  # the used device, half free
    assert fgd.gpu_packing(now, WHOLE, 0) == 50 - 1  # a free device of a used node
    assert fgd.gpu_packing(now, HALF, 1) == 33 - 4  # an unused node
    assert fgd.gpu_packing(now, CPU, 0) == 0


def test_gpu_clustering_by_hand() -> None:
    now = state()
    assert fgd.gpu_clustering(now, HALF, 0) == 25 * 6500 // 8000 + 75  # only share pods there
    assert fgd.gpu_clustering(now, WHOLE, 0) == 25 * 6500 // 8000  # only others there
    assert fgd.gpu_clustering(now, WHOLE, 1) == 25 * 4000 // 8000 + 25  # nobody there
    fgd.place(now, WHOLE, 0, 0b10)
    assert fgd.gpu_clustering(now, HALF, 0) == 25 * 7500 // 8000 + 50  # share pods among others
    assert fgd.gpu_clustering(now, CPU, 0) == 0


def test_gradient_by_hand() -> None:
    now = state()
    # half on device 0: left 0 and 1000, F from 250 to 0; on device 1: left 500 and 500: whole lacks all of it
    assert fgd.fragmentation_gradient(now, HALF, 0) == (int(100 / (1 + math.exp(-0.25))), 0b1)
    assert now.nodes.gpu_left[0].tolist() == [500, 1000, 0, 0]


def test_decide_prefers_the_first_of_equal_nodes() -> None:
    nodes = fgd.empty_nodes(column(32_000, 32_000), column(10, 10), column(1, 1), column(0, 0))
    now = fgd.start(nodes, SPECS, TYPICAL)
    for policy in range(1, len(fgd.POLICIES)):
        cache = fgd.empty_cache(5, 2)
        assert fgd.decide(policy, now, cache, WHOLE, np.zeros(2)) == (0, 1)
        assert fgd.decide(policy, now, cache, TWO, np.zeros(2)) == (-1, 0)
    cache = fgd.empty_cache(5, 2)
    assert fgd.decide(fgd.RANDOM, now, cache, WHOLE, np.array([0.49, 0.0]))[0] == 0
    assert fgd.decide(fgd.RANDOM, now, cache, WHOLE, np.array([0.5, 0.0]))[0] == 1
