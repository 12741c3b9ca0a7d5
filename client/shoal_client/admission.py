# SPDX-License-Identifier: Apache-2.0
"""Whether a node lets a pod on at all, whatever room it has: for those who look for candidates themselves.

What a scheduler hands over as candidates has passed its filters already.
"""

from __future__ import annotations

from shoal_common.kube.taint_toleration import HARD
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.selectors import untolerated


def admits(node: NodeRecord, pod: PodRecord) -> bool:
    """Whether the node is open to the pod, and the pod's selector and required affinity accept it."""
    return pod.admits_node(node.name, node.labels) and is_open(node, pod)


def is_open(node: NodeRecord, pod: PodRecord) -> bool:
    """Whether the node is ready and neither a cordon nor a taint keeps the pod off."""
    return node.ready and not node.unschedulable and not any(untolerated(node.taints, pod.tolerations, HARD))
