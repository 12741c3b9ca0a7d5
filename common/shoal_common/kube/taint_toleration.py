# SPDX-License-Identifier: Apache-2.0
"""TaintToleration: untolerated NoSchedule and NoExecute taints refuse, PreferNoSchedule ones cost score."""

from __future__ import annotations

from collections.abc import Sequence

from shoal_common.kube.plugin import NodeTest, normalise
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, Refusal
from shoal_common.pods import PodRecord
from shoal_common.selectors import untolerated

NAME = "TaintToleration"
HARD = ("NoSchedule", "NoExecute")
SOFT = ("PreferNoSchedule",)
REFUSAL = Refusal(("node(s) had untolerated taint(s)",), UNRESOLVABLE)


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest:
    """Refuse nodes with a hard taint that the pod does not tolerate."""

    def test(info: NodeInfo) -> Refusal | None:
        return REFUSAL if any(untolerated(info.node.taints, pod.tolerations, HARD)) else None

    return test


def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[int]:
    """Fewest untolerated PreferNoSchedule taints first; 100 for all where there are none."""
    tolerations = [t for t in pod.tolerations if t.effect in ("", *SOFT)]
    counts = [len(list(untolerated(info.node.taints, tolerations, SOFT))) for info in candidates]
    return normalise(counts, reverse=True)
