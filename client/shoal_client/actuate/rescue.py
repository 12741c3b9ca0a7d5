# SPDX-License-Identifier: Apache-2.0
"""Pods that cannot be scheduled because of nodes that we required: made again, without us.

A narrowed affinity cannot be widened once the gate is off. Only pods whose controller makes them again are
narrowed to required nodes, so a pod that stays unschedulable while another node has room is deleted, once:
its owner's pods are then let through untouched for an hour. The deletion names the UID and the
resourceVersion that was read, so a pod that was bound meanwhile is not hit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shoal_client.actuate.events import Events, about_pod
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.narrowing import MADE_AGAIN
from shoal_client.admission import is_open
from shoal_client.kube.api import PODS, Api, Conflict, NotFound
from shoal_client.metrics import ACTUATIONS
from shoal_client.placement import Placing, read_placing
from shoal_client.state.live import LiveCluster, PodChange
from shoal_common.pods import HOSTNAME, PodRecord

STUCK_SECONDS = 60.0
OWNER_REST_SECONDS = 3600.0


class Rescue:
    """Deletes stuck pods of ours. `pod_changed` from any thread, the rest from one."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        cluster: LiveCluster,
        events: Events,
        stuck_seconds: float = STUCK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._leader, self._cluster, self._events = api, leader, cluster, events
        self._stuck_seconds, self._clock = stuck_seconds, clock
        self._stuck: dict[str, tuple[PodRecord, float]] = {}
        self._exempt: dict[str, float] = {}  # owner UID -> until when its pods are let through
        self._mutex = threading.Lock()

    def pod_changed(self, change: PodChange) -> None:
        """Note a narrowed pod that cannot be scheduled, or can again; subscribe it to the LiveCluster."""
        pod = change.after
        with self._mutex:
            if pod is not None and _is_stuck(pod):
                self._stuck[pod.uid] = (pod, self._stuck.get(pod.uid, (pod, self._clock()))[1])
            elif change.before is not None:
                self._stuck.pop(change.before.uid, None)

    def exempt(self, pod: PodRecord) -> bool:
        """Whether a pod is let through untouched because one of its owner's had to be rescued."""
        return self._clock() < self._exempt.get(pod.owner_uid, float("-inf"))

    def step(self) -> None:
        """Make again what is stuck for long enough."""
        now = self._clock()
        self._exempt = {owner: until for owner, until in self._exempt.items() if until > now}
        with self._mutex:
            stuck = [pod for pod, since in self._stuck.values() if now - since >= self._stuck_seconds]
        for pod in stuck:
            placing = read_placing(pod.annotations, pod.uid)
            helps = placing is not None and self._room_beyond(pod, placing)
            if helps and not self.exempt(pod) and self._leader.is_leader():
                self._make_again(pod)

    def _room_beyond(self, pod: PodRecord, placing: Placing) -> bool:
        """Whether a node that we did not choose would take it; its required affinity is ours in part."""
        return any(
            node.labels.get(HOSTNAME) not in placing.hosts
            and is_open(node, pod)
            and pod.node_selector.items() <= node.labels.items()
            and not self._cluster.insufficient(name, pod)
            for name, node in list(self._cluster.nodes.items())
        )

    def _make_again(self, pod: PodRecord) -> None:
        self._exempt[pod.owner_uid] = self._clock() + OWNER_REST_SECONDS
        try:
            raw = self._api.get(PODS, pod.name, pod.namespace)
            if raw["metadata"]["uid"] != pod.uid or raw["spec"].get("nodeName"):
                return
            version = raw["metadata"]["resourceVersion"]
            self._api.delete(PODS, pod.name, pod.namespace, uid=pod.uid, resource_version=version)
        except (Conflict, NotFound):
            ACTUATIONS.labels("rescue", "conflict").inc()
            return
        ACTUATIONS.labels("rescue", "done").inc()
        note = f"none of the chosen nodes takes it: {pod.status.unschedulable}"
        about = about_pod(pod.namespace, pod.name, pod.uid)
        self._events.emit(about, "PlacementFailed", "Placement", note, warning=True)


def _is_stuck(pod: PodRecord) -> bool:
    placing = read_placing(pod.annotations, pod.uid)
    waits = not pod.node_name and not pod.gates and not pod.terminating and bool(pod.status.unschedulable)
    return waits and pod.owner_kind in MADE_AGAIN and placing is not None and placing.required
