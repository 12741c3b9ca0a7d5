# SPDX-License-Identifier: Apache-2.0
"""NodeUnschedulable: cordoned nodes take no pod that does not tolerate the unschedulable taint."""

from __future__ import annotations

from shoal_common.kube.plugin import NodeTest
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, Refusal
from shoal_common.pods import PodRecord
from shoal_common.selectors import Taint

NAME = "NodeUnschedulable"
CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
REFUSAL = Refusal(("node(s) were unschedulable",), UNRESOLVABLE)


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest:
    """Refuse nodes with spec.unschedulable, unless the pod tolerates the cordon's taint."""
    tolerated = any(toleration.tolerates(CORDON) for toleration in pod.tolerations)

    def test(info: NodeInfo) -> Refusal | None:
        return REFUSAL if info.node.unschedulable and not tolerated else None

    return test
