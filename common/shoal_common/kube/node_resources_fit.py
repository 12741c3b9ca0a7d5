# SPDX-License-Identifier: Apache-2.0
"""NodeResourcesFit: refuse nodes without room, and score room by one of three strategies.

Source: pkg/scheduler/framework/plugins/noderesources (fit.go, least_allocated.go, most_allocated.go,
requested_to_capacity_ratio.go). The filter uses plain requests; the scores of cpu and memory count 100m and
200Mi for containers that ask for nothing. All arithmetic is Go's on int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal_common.kube.plugin import MAX_NODE_SCORE, NodeTest, Score, divide
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, UNSCHEDULABLE, Refusal
from shoal_common.pods import PodRecord

NAME = "NodeResourcesFit"
NATIVE = ("cpu", "memory", "ephemeral-storage")
DEFAULT_RESOURCES: Mapping[str, int] = {"cpu": 1, "memory": 1}

Strategy = Callable[[Sequence[int], Sequence[int], Sequence[int]], int]  # requested, allocatable, weights


def scalar(resource: str) -> bool:
    """Whether the scheduler counts the resource as a scalar: extended, huge pages or attachable volumes."""
    if resource.startswith(("hugepages-", "attachable-volumes-")):
        return True
    return "/" in resource and not resource.startswith("requests.")


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest:
    """Refuse nodes where a pod slot or a requested resource is lacking; every lacking one is named.

    Scalars come in the order of their names (Go's order there is random).
    """
    scalars = sorted(name for name in pod.requests if scalar(name))
    wanted = [(name, pod.requests[name]) for name in (*NATIVE, *scalars) if pod.requests.get(name, 0) > 0]

    def test(info: NodeInfo) -> Refusal | None:
        allocatable, requested = info.node.allocatable, info.requested
        full = len(info.pods) + 1 > allocatable.get("pods", 0)
        lacking = [
            (name, amount > allocatable.get(name, 0))
            for name, amount in wanted
            if amount > allocatable.get(name, 0) - requested.get(name, 0)
        ]
        if not full and not lacking:
            return None
        reasons = (*(("Too many pods",) if full else ()), *(f"Insufficient {name}" for name, _ in lacking))
        never = any(beyond for _, beyond in lacking)
        return Refusal(reasons, UNRESOLVABLE if never else UNSCHEDULABLE)

    return test


def least_allocated_score(
    requested: Sequence[int], allocatable: Sequence[int], weights: Sequence[int] = (1, 1)
) -> int:
    """Weighted mean of the free share, 0..100. Resources that the node lacks (allocatable 0) do not count."""
    total = weight_sum = 0
    for asked, room, weight in zip(requested, allocatable, weights, strict=True):
        if room == 0:
            continue
        total += weight * (0 if asked > room else (room - asked) * MAX_NODE_SCORE // room)
        weight_sum += weight
    return total // weight_sum if weight_sum else 0


def most_allocated_score(
    requested: Sequence[int], allocatable: Sequence[int], weights: Sequence[int] = (1, 1)
) -> int:
    """Weighted mean of the used share, 0..100; more than the node has counts as all of it."""
    total = weight_sum = 0
    for asked, room, weight in zip(requested, allocatable, weights, strict=True):
        if room == 0:
            continue
        total += weight * (min(asked, room) * MAX_NODE_SCORE // room)
        weight_sum += weight
    return total // weight_sum if weight_sum else 0


def requested_to_capacity_ratio(shape: Sequence[tuple[int, int]]) -> Strategy:
    """The strategy of a broken line of (utilisation 0..100, score 0..10) points, by rising utilisation.

    Resources that score 0 or less drop out of the mean, and the mean is rounded half away from zero.
    """
    points = [(utilisation, score * MAX_NODE_SCORE // 10) for utilisation, score in shape]

    def strategy(requested: Sequence[int], allocatable: Sequence[int], weights: Sequence[int]) -> int:
        total = weight_sum = 0
        for asked, room, weight in zip(requested, allocatable, weights, strict=True):
            if room == 0:
                continue
            used = MAX_NODE_SCORE if asked > room else asked * MAX_NODE_SCORE // room
            score = _broken_line(points, used)
            if score > 0:
                total += weight * score
                weight_sum += weight
        return (2 * total + weight_sum) // (2 * weight_sum) if weight_sum else 0

    return strategy


def _broken_line(points: Sequence[tuple[int, int]], x: int) -> int:
    for index, (right, right_score) in enumerate(points):
        if x <= right:
            if index == 0:
                return right_score
            left, left_score = points[index - 1]
            return left_score + divide((right_score - left_score) * (x - left), right - left)
    return points[-1][1]


def score_by(strategy: Strategy, resources: Mapping[str, int] = DEFAULT_RESOURCES) -> Score:
    """The score of this plugin under a strategy, over resources with their weights."""

    def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[int]:
        counted = {n: w for n, w in resources.items() if not scalar(n) or pod.requests.get(n, 0) > 0}
        weights = list(counted.values())
        return [strategy(*_after(info, pod, counted), weights) for info in candidates]

    return score_nodes


def _after(info: NodeInfo, pod: PodRecord, resources: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Requested with the pod, and allocatable, by resource."""
    requested = []
    for name in resources:
        if name in ("cpu", "memory"):
            requested.append(info.nonzero_requested.get(name, 0) + pod.nonzero_requests.get(name, 0))
        else:
            requested.append(info.requested.get(name, 0) + pod.requests.get(name, 0))
    return requested, [info.node.allocatable.get(name, 0) for name in resources]
