# SPDX-License-Identifier: Apache-2.0
"""Volcano's node scores: nodeorder (kube-scheduler's plugins under its own weights) and binpack.

Source: volcano v1.16-dev, pkg/scheduler/plugins/{nodeorder,binpack}, on kubernetes 1.36. Volcano adds the
two; its default configuration has nodeorder only, and binpack where the operator packs. Feasibility is that
of the same filters (Volcano's predicates plugin runs them). Queues, gangs and fair shares order jobs, not
nodes: not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal_common.kube import (
    balanced_allocation,
    image_locality,
    inter_pod_affinity,
    node_affinity,
    node_resources_fit,
    pod_topology_spread,
    taint_toleration,
)
from shoal_common.kube.plugin import MAX_NODE_SCORE, Score
from shoal_common.kube.profile import DEFAULT_FILTERS, Profile, WeightedScore
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import Verdict
from shoal_common.pods import PodRecord

BINPACK = "binpack"
BINPACK_RESOURCES: Mapping[str, int] = {"cpu": 1, "memory": 1}
BALANCED_RESOURCES = ("cpu", "memory", "nvidia.com/gpu")
LEAST_REQUESTED = node_resources_fit.score_by(
    node_resources_fit.least_allocated_score, {"cpu": 50, "memory": 50}
)

NODEORDER: tuple[WeightedScore, ...] = (
    WeightedScore(node_resources_fit.NAME, 1, LEAST_REQUESTED),
    WeightedScore(node_affinity.NAME, 2, node_affinity.score_nodes),
    WeightedScore(inter_pod_affinity.NAME, 2, inter_pod_affinity.score_nodes),
    WeightedScore(balanced_allocation.NAME, 1, balanced_allocation.score_by("1.36", BALANCED_RESOURCES)),
    WeightedScore(taint_toleration.NAME, 3, taint_toleration.score_nodes),
    WeightedScore(image_locality.NAME, 1, image_locality.score_nodes),
    WeightedScore(pod_topology_spread.NAME, 2, pod_topology_spread.score_nodes),
)


def binpack_score(
    requests: Mapping[str, int],
    used: Mapping[str, int],
    allocatable: Mapping[str, int],
    weights: Mapping[str, int] = BINPACK_RESOURCES,
) -> float:
    """Weighted mean of the used share after placing, times 100.

    Counts the resources that the pod requests and that have a weight. One that the node does not have at all
    adds nothing but its weight still counts; one that it would exceed makes the whole score 0.
    """
    total, weight_sum = 0.0, 0
    for name in (name for name, amount in requests.items() if amount > 0 and name in weights):
        after, room = requests[name] + used.get(name, 0), allocatable.get(name, 0)
        if 0 < room < after:
            return 0.0
        total += after * weights[name] / room if room else 0.0
        weight_sum += weights[name]
    return total / weight_sum * MAX_NODE_SCORE if weight_sum else 0.0


def binpack_by(weights: Mapping[str, int] = BINPACK_RESOURCES) -> Score:
    """The binpack plugin over resources with their weights."""

    def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[float]:
        return [
            binpack_score(pod.requests, info.requested, info.node.allocatable, weights) for info in candidates
        ]

    return score_nodes


def volcano_profile() -> Profile:
    """Volcano with nodeorder and binpack at their default weights."""
    return Profile(DEFAULT_FILTERS, (*NODEORDER, WeightedScore(BINPACK, 1, binpack_by())))


def evaluate(snapshot: Snapshot, pod: PodRecord) -> Verdict:
    """Volcano's answer for one pod: nodeorder plus binpack."""
    return volcano_profile().judge(snapshot, pod)
