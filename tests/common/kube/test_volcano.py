# SPDX-License-Identifier: Apache-2.0
"""Volcano's binpack and nodeorder by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shoal_common.kube.snapshot import Snapshot
from shoal_common.kube.volcano import binpack_score, evaluate
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.requests import ContainerResources, PodResources

GPU = "nvidia.com/gpu"


def test_binpack_is_the_mean_used_share() -> None:
    room = {"cpu": 4000, "memory": 100}
    assert binpack_score({"cpu": 1000, "memory": 25}, {"cpu": 1000}, room) == pytest.approx(37.5)
    assert binpack_score({"cpu": 1000}, {}, room) == pytest.approx(25)
    assert binpack_score({}, {"cpu": 1000}, room) == 0


def test_binpack_beyond_a_capacity_scores_nothing_at_all() -> None:
    room = {"cpu": 4000, "memory": 100}
    assert binpack_score({"cpu": 1000, "memory": 80}, {"memory": 30}, room) == 0


def test_binpack_counts_the_weight_of_a_resource_the_node_lacks() -> None:
    weights = {"cpu": 1, GPU: 3}
    assert binpack_score({"cpu": 1000, GPU: 1}, {}, {"cpu": 1000}, weights) == pytest.approx(25)
    assert binpack_score({"cpu": 500, GPU: 1}, {}, {"cpu": 1000, GPU: 4}, weights) == pytest.approx(31.25)


def test_a_pod_on_two_nodes() -> None:
    asked = {"cpu": Fraction(1), "memory": Fraction(2**30)}
    pod = PodRecord("p", resources=PodResources((ContainerResources(asked),)))
    bound = PodRecord("b", node_name="used", resources=pod.resources)
    room = {"cpu": 4000, "memory": 4 * 2**30, "pods": 9}
    verdict = evaluate(Snapshot((NodeRecord("idle", {}, room), NodeRecord("used", {}, room)), (bound,)), pod)
    expected = {
        "idle": {"NodeResourcesFit": 75, "binpack": 25.0},
        "used": {"NodeResourcesFit": 50, "binpack": 50.0},
    }
    both = {"NodeResourcesBalancedAllocation": 75, "TaintToleration": 300, "ImageLocality": 0}
    assert verdict.scores == {name: {**row, **both} for name, row in expected.items()}
    assert verdict.total == {"idle": 475, "used": 475}


def test_balance_counts_gpus_for_pods_that_ask_for_them() -> None:
    pod = PodRecord("p", resources=PodResources((ContainerResources({GPU: Fraction(1)}),)))
    room = {"cpu": 4000, "memory": 2**30, GPU: 1, "pods": 9}
    verdict = evaluate(Snapshot((NodeRecord("n", {}, room),)), pod)
    assert verdict.scores["n"]["NodeResourcesBalancedAllocation"] == 51  # 50 + (50 + 52 - 100) // 2
