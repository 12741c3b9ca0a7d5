# SPDX-License-Identifier: Apache-2.0
"""Takes back resizes of ours that a kubelet will not carry out.

A pod is resized while it is gated, so its kubelet normally admits it as it is. Where a pod was bound by
other hands meanwhile, the kubelet may answer `PodResizePending`: Infeasible (never on this node) or
Deferred (not now). Even a deferred resize blocks the node for the scheduler (kubernetes#135107: the largest
of spec, allocated and actual counts), so an infeasible one is reverted at once and a deferred one after a
time, to what the kubelet reports as in force. A resize that is not the one of our annotation is somebody
else's and stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal_client.actuate.events import Events, about_pod
from shoal_client.actuate.leader import Leader
from shoal_client.kube.api import PODS, Api, NotFound
from shoal_client.metrics import ACTUATIONS
from shoal_client.placement import ContainerResize, Placing, read_placing
from shoal_client.state.live import PodChange
from shoal_common.errors import ShoalError, Transient
from shoal_common.pods import PodRecord
from shoal_common.quantity import parse_quantity

STUCK = ("Deferred", "Infeasible")
MOST_ATTEMPTS = 3


class ResizeWatch:
    """Reverts stuck resizes. `pod_changed` from any thread, `step` from one."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        events: Events,
        deferred_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._leader, self._events = api, leader, events
        self._deferred_seconds, self._clock = deferred_seconds, clock
        self._stuck: dict[str, tuple[PodRecord, float]] = {}
        self._attempts: dict[str, int] = {}
        self._mutex = threading.Lock()

    def pod_changed(self, change: PodChange) -> None:
        """Note a pod whose resize is stuck, or no longer; subscribe it to the LiveCluster."""
        pod = change.after
        with self._mutex:
            if pod is None or pod.finished or not pod.node_name or pod.status.resize not in STUCK:
                if change.before is not None:
                    self._drop(change.before.uid)
                return
            since = self._stuck.get(pod.uid, (pod, self._clock()))[1]
            self._stuck[pod.uid] = (pod, since)

    def step(self) -> None:
        """Revert what is stuck for long enough."""
        with self._mutex:
            stuck = list(self._stuck.values())
        for pod, since in stuck:
            due = pod.status.resize == "Infeasible" or self._clock() - since >= self._deferred_seconds
            if due and self._attempts.get(pod.uid, 0) < MOST_ATTEMPTS and self._leader.is_leader():
                self._try(pod)

    def _try(self, pod: PodRecord) -> None:
        self._attempts[pod.uid] = self._attempts.get(pod.uid, 0) + 1
        try:
            result = self._revert(pod)
        except Transient:
            self._attempts[pod.uid] -= 1  # the API is away: not the pod's fault
            raise
        except NotFound:
            result = "gone"
        except ShoalError as error:
            ACTUATIONS.labels("revert", "failed").inc()
            self._tell(pod, "ResizeStuck", f"cannot be reverted: {error}")
            return
        ACTUATIONS.labels("revert", result).inc()
        with self._mutex:
            self._drop(pod.uid)

    def _revert(self, pod: PodRecord) -> str:
        raw = self._api.get(PODS, pod.name, pod.namespace)
        placing = read_placing(raw["metadata"].get("annotations") or {}, pod.uid)
        if raw["metadata"]["uid"] != pod.uid or placing is None or not _pending(raw, placing):
            return "foreign"
        back = [b for b in (_in_force(raw, c) for c in placing.containers) if b is not None]
        if len(back) < len(placing.containers):
            return "unknown"
        self._api.resize(pod.name, pod.namespace, back)
        kept = msgspec.structs.replace(placing, containers=())
        self._api.patch(PODS, pod.name, {"metadata": {"annotations": kept.annotation()}}, pod.namespace)
        self._tell(pod, "ResizeReverted", f"the kubelet answered {pod.status.resize}")
        return "done"

    def _drop(self, uid: str) -> None:
        self._stuck.pop(uid, None)
        self._attempts.pop(uid, None)

    def _tell(self, pod: PodRecord, reason: str, note: str) -> None:
        about = about_pod(pod.namespace, pod.name, pod.uid)
        self._events.emit(about, reason, "Resize", note, warning=True)


def _pending(raw: Mapping[str, Any], placing: Placing) -> bool:
    """Whether the amounts in the pod's spec are those that we wrote."""
    spec = {c["name"]: c.get("resources") or {} for c in raw["spec"]["containers"]}
    ours = [
        (amount, spec.get(c.name, {}).get(side, {}).get(resource))
        for c in placing.containers
        for side, amounts in c.resources.items()
        for resource, amount in amounts.items()
    ]
    return bool(ours) and all(
        there is not None and parse_quantity(there) == parse_quantity(amount) for amount, there in ours
    )


def _in_force(raw: Mapping[str, Any], container: ContainerResize) -> dict[str, Any] | None:
    """What the kubelet reports for the amounts that we changed; None where it does not report them all."""
    statuses = raw.get("status", {}).get("containerStatuses") or ()
    actual = next((s.get("resources") or {} for s in statuses if s["name"] == container.name), {})
    back = {
        side: {resource: actual.get(side, {}).get(resource) for resource in amounts}
        for side, amounts in container.resources.items()
    }
    if any(amount is None for amounts in back.values() for amount in amounts.values()):
        return None
    return {"name": container.name, "resources": back}
