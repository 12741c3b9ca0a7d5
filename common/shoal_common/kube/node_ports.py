# SPDX-License-Identifier: Apache-2.0
"""NodePorts: two pods on one node cannot hold the same host port of a protocol on overlapping addresses."""

from __future__ import annotations

from shoal_common.kube.plugin import NodeTest
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNSCHEDULABLE, Refusal
from shoal_common.pods import PodRecord

NAME = "NodePorts"
REFUSAL = Refusal(("node(s) didn't have free ports for the requested pod ports",), UNSCHEDULABLE)


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest | None:
    """Refuse nodes where a host port of the pod is taken."""
    if not pod.host_ports:
        return None

    def test(info: NodeInfo) -> Refusal | None:
        taken = any(wanted.conflicts(used) for wanted in pod.host_ports for used in info.host_ports)
        return REFUSAL if taken else None

    return test
