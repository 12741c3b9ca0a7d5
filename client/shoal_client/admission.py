# SPDX-License-Identifier: Apache-2.0
"""Whether a node lets a pod on at all, whatever room it has: for those who look for candidates themselves.

What a scheduler hands over as candidates has passed its filters already.
"""

from __future__ import annotations

from shoal_common.kube.taint_toleration import HARD
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.selectors import untolerated


def admits(node: NodeRecord, pod: PodRecord) -> bool:
    """Whether the node is ready, its taints are tolerated, and the pod's selector and affinity accept it."""
    if not node.ready or node.unschedulable or not pod.admits_node(node.name, node.labels):
        return False
    return not any(untolerated(node.taints, pod.tolerations, HARD))
