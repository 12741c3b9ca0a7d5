# SPDX-License-Identifier: Apache-2.0
"""What nodes did wrong lately: NotReady flaps, and pods that their kubelet would not take.

Both are bounded, so that a pod that no kubelet takes, or a network that flaps, cannot quarantine a cluster:
flaps are a feature of at most `MOST_FAILURES`, and at most `MASKED_SHARE` of the nodes are masked for an
owner. Times are monotonic.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from shoal_common.pods import PodRecord

WINDOW_SECONDS: Final = 3600.0
MOST_FAILURES: Final = 4.0  # more says nothing new: the feature ends there
REJECTIONS: Final = 3  # of one owner's pods by one node within REJECTED_SECONDS
REJECTED_SECONDS: Final = 600.0
BACKOFF_SECONDS: Final = 60.0
LONGEST_BACKOFF: Final = 3600.0
MASKED_SHARE: Final = 0.5
MOST_OWNERS: Final = 10_000
KUBELET_REASONS: Final = (
    "TopologyAffinityError", "UnexpectedAdmissionError", "NodeAffinity", "NodeName", "NodePorts",
    "SMTAlignmentError", "InvalidNodeInfo", "PodOSNotSupported", "InitContainerRestartPolicyForbidden",
)  # fmt: skip


def rejected_by_kubelet(pod: PodRecord) -> bool:
    """Whether a node's kubelet refused to start the pod that was bound to it."""
    reason = pod.status.reason
    return pod.phase == "Failed" and (reason in KUBELET_REASONS or reason.startswith("OutOf"))


def owner_of(pod: PodRecord) -> str:
    """What rejections are counted by: the pod's owner, or the pod itself."""
    return pod.owner_uid or pod.uid


@final
class NodeHealth:
    """Failures by node, and nodes masked by owner; not thread-safe."""

    def __init__(self) -> None:
        self._flaps: dict[str, deque[float]] = {}
        self._rejections: dict[str, dict[str, deque[float]]] = {}  # owner -> node -> times
        self._masked: dict[str, dict[str, float]] = {}  # owner -> node -> until
        self._ends: deque[tuple[float, str]] = deque()  # when a flap leaves the window, in order

    def flapped(self, node: str, now: float) -> None:
        """A node turned NotReady."""
        self._flaps.setdefault(node, deque(maxlen=16)).append(now)
        self._ends.append((now + WINDOW_SECONDS, node))

    def failures(self, node: str, now: float) -> float:
        """Flaps within the last hour, bounded."""
        times = self._flaps.get(node)
        while times and now - times[0] > WINDOW_SECONDS:
            times.popleft()
        return min(float(len(times)), MOST_FAILURES) if times else 0.0

    def ended(self, now: float) -> set[str]:
        """Nodes of which a flap has left the window since the last call."""
        nodes = set()
        while self._ends and self._ends[0][0] < now:
            nodes.add(self._ends.popleft()[1])
        return nodes

    def rejected(self, pod: PodRecord, nodes: int, now: float) -> None:
        """The kubelet of the pod's node refused it; `nodes` are all that the cluster has."""
        owner, node = owner_of(pod), pod.node_name
        if len(self._rejections) >= MOST_OWNERS:
            self._rejections.clear()
        times = self._rejections.setdefault(owner, {}).setdefault(node, deque(maxlen=16))
        while times and now - times[0] > REJECTED_SECONDS:
            times.popleft()
        times.append(now)
        if len(times) >= REJECTIONS:
            seconds = min(BACKOFF_SECONDS * 2.0 ** (len(times) - REJECTIONS), LONGEST_BACKOFF)
            self._mask(owner, node, now + seconds, nodes, now)

    def _mask(self, owner: str, node: str, until: float, nodes: int, now: float) -> None:
        if len(self._masked) >= MOST_OWNERS:
            self._masked.clear()
        masked = {n: end for n, end in self._masked.get(owner, {}).items() if end > now and n != node}
        masked[node] = until
        while len(masked) > max(1, int(MASKED_SHARE * nodes)) or (nodes <= 1 and masked):
            del masked[next(iter(masked))]  # the one that was masked longest ago
        self._masked[owner] = masked

    def masked(self, pod: PodRecord, now: float) -> tuple[str, ...]:
        """Nodes that should not be chosen for the pod now."""
        masked = self._masked.get(owner_of(pod))
        return tuple(node for node, until in masked.items() if until > now) if masked else ()

    def forget(self, node: str) -> None:
        """The node is gone, or another machine under its name."""
        self._flaps.pop(node, None)
        for times in self._rejections.values():
            times.pop(node, None)
        for masked in self._masked.values():
            masked.pop(node, None)
