# SPDX-License-Identifier: Apache-2.0
"""NodeAffinity: node selector and required terms refuse, preferred terms add their weights."""

from __future__ import annotations

from collections.abc import Sequence

from shoal_common.kube.plugin import NodeTest, normalise
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, Refusal
from shoal_common.pods import PodRecord

NAME = "NodeAffinity"
REFUSAL = Refusal(("node(s) didn't match Pod's node affinity/selector",), UNRESOLVABLE)


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest | None:
    """Refuse nodes that the node selector or all required terms turn down."""
    if not pod.node_selector and pod.required_nodes is None:
        return None

    def test(info: NodeInfo) -> Refusal | None:
        return None if pod.admits_node(info.name, info.node.labels) else REFUSAL

    return test


def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[int] | None:
    """Sum of the weights of matching preferred terms, scaled by the largest sum."""
    if pod.preferred_nodes is None:
        return None
    sums = [
        sum(p.weight for p in pod.preferred_nodes if p.term.matches(info.name, info.node.labels))
        for info in candidates
    ]
    return normalise(sums)
