# SPDX-License-Identifier: Apache-2.0
"""The kubelets of all nodes, as kwok plays them: bound pods run, end, fail and go, resizes are carried out.

A pod runs `shoal.dev/run-seconds` (annotation) by the clock that is given, then succeeds; without it for
ever.
What can go wrong is asked for by annotations of the pod: `shoal.dev/fail` is `OOMKilled` (after its run time)
or a reason of refusal at once (`OutOfcpu`, `TopologyAffinityError`, ...). A pod that does not fit is refused
as by a kubelet: OutOfcpu, OutOfmemory, OutOfpods.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, final

from shoal_common.fields import Field
from shoal_common.manifests import read_node, read_pod
from shoal_common.pods import NodeRecord, PodRecord
from shoal_simulations.control_plane.client import ApiClient, Feed
from shoal_simulations.control_plane.failures import ApiError
from shoal_simulations.control_plane.registry import stamp
from shoal_simulations.control_plane.store import DELETED

RUN_SECONDS, FAIL = "shoal.dev/run-seconds", "shoal.dev/fail"
OOM_KILLED, OOM_EXIT = "OOMKilled", 137
IDLE_SECONDS = 0.05
"""How often the clock is looked at when nothing happens."""

Content = Mapping[str, Any]


@final
class Kubelet:
    """Plays every node's kubelet, as a context manager.

    `clock` gives the seconds since the epoch that statuses carry and run times are counted by; a virtual one
    may run faster. `resizes` decides what becomes of a resize: "" (it is done) or why it is not, Deferred or
    Infeasible; by default what does not fit is Deferred, or Infeasible where it could never fit.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        resizes: Callable[[PodRecord], str] | None = None,
    ) -> None:
        self._client = ApiClient(url, "kubelet/v1.36.2 (virtual)")
        self._clock, self._resizes = clock, resizes or self._room_for_resize
        self._lock = threading.Condition()
        self._nodes: dict[str, NodeRecord] = {}
        self._pods: dict[str, tuple[PodRecord, Content]] = {}
        self._running: dict[str, dict[str, Any]] = {}  # uid -> container resources as carried out
        self._dirty: list[str] = []
        self._ends: list[tuple[float, str]] = []
        self._stopping = False
        self._feeds = [
            Feed(self._client, "/api/v1/nodes", self._replace_nodes, self._change_node),
            Feed(self._client, "/api/v1/pods", self._replace_pods, self._change_pod),
        ]
        self._thread = threading.Thread(target=self._run, daemon=True, name="kubelet")

    def __enter__(self) -> Self:
        for feed in self._feeds:
            feed.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        self._thread.join()
        for feed in self._feeds:
            feed.stop()
        self._client.close()

    # What the watch says

    def _replace_nodes(self, objects: Any) -> None:
        for content in objects:
            self._change_node("ADDED", content)

    def _replace_pods(self, objects: Any) -> None:
        found = list(objects)
        with self._lock:
            gone = set(self._pods) - {content["metadata"]["uid"] for content in found}
            for uid in gone:
                self._forget(uid)
        for content in found:
            self._change_pod("ADDED", content)

    def _change_node(self, event: str, content: Content) -> None:
        node = read_node(Field("node", "", content))
        with self._lock:
            if event == DELETED:
                self._nodes.pop(node.name, None)
                return
            if self._nodes.get(node.name) != node:
                self._dirty += [uid for uid, (pod, _) in self._pods.items() if pod.node_name == node.name]
                self._lock.notify_all()
            self._nodes[node.name] = node

    def _change_pod(self, event: str, content: Content) -> None:
        pod = read_pod(Field("pod", "", content))
        with self._lock:
            if event == DELETED:
                self._forget(pod.uid)
            elif pod.node_name:
                self._pods[pod.uid] = (pod, content)
                self._dirty.append(pod.uid)
            if event == DELETED or pod.finished:  # there is room for resizes that wait
                self._dirty += [uid for uid, (known, _) in self._pods.items() if known.status.resize]
            self._lock.notify_all()

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._running.pop(uid, None)

    # What the kubelet does

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._dirty and not self._stopping:
                    self._lock.wait(IDLE_SECONDS if self._ends else None)
                if self._stopping:
                    return
                dirty, self._dirty = self._dirty, []
            for uid in dict.fromkeys(dirty):
                self._quietly(self._sync, uid)
            while self._ends and self._ends[0][0] <= self._clock():
                self._quietly(self._end, heapq.heappop(self._ends)[1])

    def _quietly(self, act: Callable[[str], None], uid: str) -> None:
        """Act on a pod; when the API is away, again later; when the pod is gone, not at all."""
        try:
            act(uid)
        except ConnectionError:
            with self._lock:
                self._dirty.append(uid)
            time.sleep(IDLE_SECONDS)
        except ApiError as error:
            if error.code >= 500:
                with self._lock:
                    self._dirty.append(uid)

    def _sync(self, uid: str) -> None:
        """Bring a pod from what its status says to what its spec says."""
        with self._lock:
            known = self._pods.get(uid)
            node = self._nodes.get(known[0].node_name) if known else None
        if known is None or node is None:
            return
        pod, content = known
        if pod.terminating:
            self._terminate(pod)
        elif pod.finished:
            self._running.pop(uid, None)
        elif uid not in self._running:
            self._start(pod, content, node)
        else:
            self._resize(pod, content)

    def _terminate(self, pod: PodRecord) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        self._running.pop(pod.uid, None)
        self._client.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})

    def _start(self, pod: PodRecord, content: Content, node: NodeRecord) -> None:
        refusal = pod.annotations.get(FAIL, "")
        refusal = "" if refusal == OOM_KILLED else refusal or self._lacking(pod, node)
        if refusal and pod.phase != "Running":
            message = f"Pod was rejected: Node didn't have enough resource: {refusal}"
            self._status(pod, {"phase": "Failed", "reason": refusal, "message": message})
            return
        self._running[pod.uid] = _asked(content)
        started = pod.status.started_at or self._clock()
        if pod.phase != "Running":
            self._status(pod, _running_status(content, started))
        seconds = pod.annotations.get(RUN_SECONDS)
        if seconds is not None or pod.annotations.get(FAIL) == OOM_KILLED:
            with self._lock:
                heapq.heappush(self._ends, (started + float(seconds or 0), pod.uid))

    def _lacking(self, pod: PodRecord, node: NodeRecord) -> str:
        """Why the node has no room for the pod beside those that run there; "" when it has."""
        with self._lock:
            others = [
                p for p, _ in self._pods.values() if p.node_name == node.name and p.uid in self._running
            ]
        if len(others) + 1 > node.allocatable.get("pods", 0):
            return "OutOfpods"
        for name, amount in pod.requests.items():
            used = sum(other.requests.get(name, 0) for other in others if other.uid != pod.uid)
            if amount > 0 and used + amount > node.allocatable.get(name, 0):
                return f"OutOf{name}"
        return ""

    def _end(self, uid: str) -> None:
        with self._lock:
            known = self._pods.get(uid)
        if known is None or known[0].finished or uid not in self._running:
            return
        pod, content = known
        killed = pod.annotations.get(FAIL) == OOM_KILLED
        now = stamp(self._clock())
        terminated = {
            "exitCode": OOM_EXIT if killed else 0,
            "reason": OOM_KILLED if killed else "Completed",
            "startedAt": stamp(pod.status.started_at),
            "finishedAt": now,
        }
        reason = "PodFailed" if killed else "PodCompleted"
        conditions = [
            {"type": kind, "status": "False", "reason": reason, "lastTransitionTime": now}
            for kind in ("ContainersReady", "Ready")
        ]
        self._running.pop(uid, None)
        status = {
            "phase": "Failed" if killed else "Succeeded",
            "conditions": conditions,
            "containerStatuses": _container_statuses(content, {"terminated": terminated}, ready=False),
        }
        self._status(pod, status)

    def _resize(self, pod: PodRecord, content: Content) -> None:
        """Carry out what the spec asks, or say why not."""
        wanted = _asked(content)
        if self._running.get(pod.uid) == wanted:
            return
        why = self._resizes(pod)
        generation = content["metadata"].get("generation", 0)
        if why:
            pending = {
                "type": "PodResizePending",
                "status": "True",
                "reason": why,
                "observedGeneration": generation,
            }
            if pod.status.resize != why:
                self._status(pod, {"conditions": [{**pending, "lastTransitionTime": stamp(self._clock())}]})
            return
        self._running[pod.uid] = wanted
        statuses = _container_statuses(
            content, {"running": {"startedAt": stamp(pod.status.started_at)}}, ready=True
        )
        done = [{"type": "PodResizePending", "$patch": "delete"}] if pod.status.resize else []
        self._status(pod, {"containerStatuses": statuses, "conditions": done})

    def _room_for_resize(self, pod: PodRecord) -> str:
        with self._lock:
            node = self._nodes.get(pod.node_name)
        if node is None:
            return ""
        if any(amount > node.allocatable.get(name, math.inf) for name, amount in pod.requests.items()):
            return "Infeasible"
        return "Deferred" if self._lacking(pod, node) else ""

    def _status(self, pod: PodRecord, status: Content) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        self._client.patch(path, {"metadata": {"uid": pod.uid}, "status": status})


def _asked(content: Content) -> dict[str, Any]:
    return {c["name"]: c.get("resources") or {} for c in content["spec"]["containers"]}


def _running_status(content: Content, started: float) -> dict[str, Any]:
    now = stamp(started)
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    ]
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": "10.0.0.1",
        "conditions": conditions,
        "containerStatuses": _container_statuses(content, {"running": {"startedAt": now}}, ready=True),
    }


def _container_statuses(content: Content, state: Content, *, ready: bool) -> list[dict[str, Any]]:
    """Statuses of all containers, with the resources that they have."""
    return [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": dict(state),
            "resources": container.get("resources") or {},
            "allocatedResources": (container.get("resources") or {}).get("requests") or {},
        }
        for container in content["spec"]["containers"]
    ]
