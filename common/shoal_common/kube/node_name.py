# SPDX-License-Identifier: Apache-2.0
"""NodeName: a pod that names its node goes there or nowhere."""

from __future__ import annotations

from shoal_common.kube.plugin import NodeTest
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, Refusal
from shoal_common.pods import PodRecord

NAME = "NodeName"
REFUSAL = Refusal(("node(s) didn't match the requested node name",), UNRESOLVABLE)


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest | None:
    """Refuse every node but the one in spec.nodeName, where it is set."""
    if not pod.node_name:
        return None

    def test(info: NodeInfo) -> Refusal | None:
        return None if info.name == pod.node_name else REFUSAL

    return test
