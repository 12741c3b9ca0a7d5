# SPDX-License-Identifier: Apache-2.0
"""NodeResourcesFit by hand: the three strategies, what is refused and why."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shoal_common.kube.node_resources_fit import (
    filter_nodes,
    least_allocated_score,
    most_allocated_score,
    requested_to_capacity_ratio,
    score_by,
)
from shoal_common.kube.snapshot import Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, UNSCHEDULABLE, Refusal
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.requests import ContainerResources, PodResources

GPU = "nvidia.com/gpu"


def pod(name: str = "p", node: str = "", **requests: int) -> PodRecord:
    amounts = {key.replace("_", "."): Fraction(amount) for key, amount in requests.items()}
    return PodRecord(name, node_name=node, resources=PodResources((ContainerResources(amounts),)))


def test_least_allocated_is_the_mean_free_share() -> None:
    assert least_allocated_score([1000, 2], [4000, 4]) == 62  # (75 + 50) // 2
    assert least_allocated_score([5000, 2], [4000, 4]) == 25  # beyond capacity scores 0
    assert least_allocated_score([1, 1], [3, 3]) == 66
    assert least_allocated_score([1000, 2], [4000, 0]) == 75  # the missing resource does not count
    assert least_allocated_score([1], [0], [1]) == 0
    assert least_allocated_score([1000, 2], [4000, 4], [3, 1]) == 68  # (225 + 50) // 4


def test_most_allocated_is_the_mean_used_share() -> None:
    assert most_allocated_score([1000, 2], [4000, 4]) == 37
    assert most_allocated_score([5000, 2], [4000, 4]) == 75
    assert most_allocated_score([1], [0], [1]) == 0


def test_requested_to_capacity_ratio_interpolates_in_integers() -> None:
    packing = requested_to_capacity_ratio([(0, 0), (100, 10)])
    assert packing([1000, 2], [4000, 4], [1, 1]) == 38  # 25 and 50, 37.5 rounds away from zero
    assert packing([0, 2], [4000, 4], [1, 1]) == 50  # what scores 0 leaves the mean
    assert packing([0, 0], [4000, 4], [1, 1]) == 0
    assert packing([9000, 4], [4000, 4], [1, 1]) == 100
    bent = requested_to_capacity_ratio([(20, 2), (40, 10), (80, 0)])
    assert bent([10], [100], [1]) == 20  # flat before the first point
    assert bent([30], [100], [1]) == 60
    assert bent([59], [100], [1]) == 53  # 100 + trunc(-100 * 19 / 40) = 100 - 47
    assert bent([90], [100], [1]) == 0  # flat after the last


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"cpu": 1}, None),
        ({}, None),
        ({"cpu": 2}, Refusal(("Insufficient cpu",), UNSCHEDULABLE)),
        ({"cpu": 5}, Refusal(("Insufficient cpu",), UNRESOLVABLE)),
        ({"cpu": 2, "memory": 11}, Refusal(("Insufficient cpu", "Insufficient memory"), UNRESOLVABLE)),
        ({GPU: 1}, Refusal((f"Insufficient {GPU}",), UNRESOLVABLE)),
        (
            {"unknown": 1},
            None,
        ),  # without a domain it is no extended resource: the scheduler does not count it
    ],
)
def test_every_lacking_resource_is_named(asked: dict[str, int], expected: Refusal | None) -> None:
    node = NodeRecord("n", allocatable={"cpu": 4000, "memory": 10, "pods": 2})
    snapshot = Snapshot((node,), (pod("bound", "n", cpu=3),))
    assert filter_nodes(snapshot, pod(**asked))(snapshot.infos[0]) == expected


def test_a_full_node_refuses_even_a_pod_that_asks_for_nothing() -> None:
    snapshot = Snapshot((NodeRecord("n", allocatable={"pods": 1}),), (pod("bound", "n"),))
    assert filter_nodes(snapshot, pod())(snapshot.infos[0]) == Refusal(("Too many pods",), UNSCHEDULABLE)


def test_an_over_committed_node_has_nothing_left() -> None:
    node = NodeRecord("n", allocatable={GPU: 6, "pods": 9})
    bound = PodRecord("b", node_name="n", resources=PodResources((ContainerResources({GPU: Fraction(8)}),)))
    snapshot = Snapshot((node,), (bound,))
    assert filter_nodes(snapshot, pod(**{GPU: 1}))(snapshot.infos[0]) == Refusal(
        (f"Insufficient {GPU}",), UNSCHEDULABLE
    )
    assert filter_nodes(snapshot, pod(cpu=0))(snapshot.infos[0]) is None


def test_scores_count_defaults_of_pods_without_requests() -> None:
    node = NodeRecord("n", allocatable={"cpu": 1000, "memory": 1000 * 2**20, "pods": 9})
    snapshot = Snapshot((node,), (pod("bound", "n"),))
    assert score_by(least_allocated_score)(snapshot, pod(), snapshot.infos) == [70]  # cpu 80, memory 60


def test_extended_resources_score_only_for_pods_that_ask() -> None:
    node = NodeRecord("n", allocatable={"cpu": 1000, GPU: 4})
    snapshot = Snapshot((node,))
    score = score_by(most_allocated_score, {"cpu": 1, GPU: 1})
    assert score(snapshot, pod(cpu=1), snapshot.infos) == [100]
    assert score(snapshot, pod(cpu=1, **{GPU: 1}), snapshot.infos) == [62]
