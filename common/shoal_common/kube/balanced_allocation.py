# SPDX-License-Identifier: Apache-2.0
"""NodeResourcesBalancedAllocation: prefer nodes whose resources are used evenly.

With f_i = min(1, requested_i / allocatable_i), B = int((1 - std(f)) * 100). Up to kubernetes 1.35 the score
is B with the pod; from 1.36 on (kubernetes#135573) it is what the pod changes: 50 + (50 + B with - B
without) / 2, so 75 where it changes nothing. Plain requests; a pod that requests none of the resources is
not scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal_common.kube.node_resources_fit import scalar
from shoal_common.kube.plugin import MAX_NODE_SCORE, Score, divide
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.pods import PodRecord

NAME = "NodeResourcesBalancedAllocation"
DEFAULT_RESOURCES = ("cpu", "memory")
HALF = MAX_NODE_SCORE // 2


def balance(requested: Sequence[int], allocatable: Sequence[int]) -> int:
    """B: 100 where all used shares are equal, 0..100; resources with allocatable 0 do not count."""
    shares = [min(1.0, asked / room) for asked, room in zip(requested, allocatable, strict=True) if room]
    if len(shares) < 2:
        deviation = 0.0
    elif len(shares) == 2:
        deviation = abs((shares[0] - shares[1]) / 2)
    else:
        deviation = _population_deviation(shares)
    return int((1 - deviation) * MAX_NODE_SCORE)


def _population_deviation(shares: Sequence[float]) -> float:
    """In Go's order of operations, so that the last bit agrees."""
    total = 0.0
    for share in shares:
        total += share
    mean = total / len(shares)
    squares = 0.0
    for share in shares:
        squares += (share - mean) * (share - mean)
    return math.sqrt(squares / len(shares))


def score(
    pod_requests: Sequence[int], requested: Sequence[int], allocatable: Sequence[int], version: str = "1.36"
) -> int:
    """The plugin's score on plain integers; `requested` is what the node's pods ask for without this one.

    `version` is "1.35" (and before) or "1.36" (and after).
    """
    together = [asked + extra for asked, extra in zip(requested, pod_requests, strict=True)]
    with_pod = balance(together, allocatable)
    if version == "1.35":
        return with_pod
    return HALF + divide(HALF + with_pod - balance(requested, allocatable), 2)


def score_by(version: str, resources: Sequence[str] = DEFAULT_RESOURCES) -> Score:
    """The score of this plugin in a version, over resources; scalars count where the pod asks for them."""

    def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[int] | None:
        counted = [name for name in resources if not scalar(name) or pod.requests.get(name, 0) > 0]
        asked = [pod.requests.get(name, 0) for name in counted]
        if not any(asked):
            return None
        return [
            score(
                asked,
                [info.requested.get(name, 0) for name in counted],
                [info.node.allocatable.get(name, 0) for name in counted],
                version,
            )
            for info in candidates
        ]

    return score_nodes
