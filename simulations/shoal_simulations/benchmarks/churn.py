# SPDX-License-Identifier: Apache-2.0
"""A day of a cluster's life as events of the API, on a virtual clock: pods come, are decided, run and go.

Objects are Kubernetes' own JSON with rising versions, as a watch would bring them. Where the pods go is
decided by whoever is given; what happens then is drawn: most end well, some are evicted, killed for memory,
refused by the kubelet or deleted early, and nodes flap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, final

import numpy as np

from shoal_simulations.control_plane.builders import node, pod, ready

DAY_SECONDS = 86_400.0
HEARTBEAT_SECONDS = 300.0  # a kubelet reports so often when nothing changed
EPOCH = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
NAMESPACES = 40
SIZES = (("100m", "128Mi"), ("500m", "512Mi"), ("1", "2Gi"), ("2", "4Gi"), ("4", "8Gi"))
ENDS = ("succeeded", "deleted", "evicted", "oom", "rejected")
ODDS = (0.90, 0.04, 0.03, 0.02, 0.01)
APPS = 200

Object = dict[str, Any]
Apply = Callable[[str, str, Object], None]  # kind, event, object
Decide = Callable[[Object], str]  # a pending pod -> a node, "" for none


@dataclass(frozen=True, slots=True)
class ChurnConfig:
    """How much happens."""

    nodes: int = 1_000
    hours: float = 24.0
    pods_per_second: float = 0.2
    mean_run_seconds: float = 1_800.0
    flaps_per_hour: float = 4.0
    heartbeats: bool = True


@dataclass(order=True, slots=True)
class _Due:
    at: float
    turn: int
    act: Callable[[], None] = field(compare=False)


@final
class Churn:
    """The events of a cluster. `now` is the virtual time in seconds from the beginning."""

    def __init__(self, config: ChurnConfig, apply: Apply, decide: Decide, seed: int = 0) -> None:
        self.now = 0.0
        self.config, self._apply, self._decide = config, apply, decide
        self.nodes: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.decided = 0
        self._rng = np.random.default_rng(seed)
        self._line: list[_Due] = []
        self._version = self._turn = self._named = 0
        for index in range(config.nodes):
            self._add_node(index)
        self._later(self._gap(), self._arrive)
        if config.flaps_per_hour:
            self._later(self._rng.exponential(3_600 / config.flaps_per_hour), self._flap)

    def clock(self) -> float:
        """The virtual monotonic clock."""
        return self.now

    def run(self, until: float) -> Iterator[float]:
        """Let things happen until a virtual time; yields the time of each."""
        while self._line and self._line[0].at <= until:
            due = heapq.heappop(self._line)
            self.now = due.at
            due.act()
            yield self.now
        self.now = until

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._line, _Due(self.now + seconds, self._turn, act))

    def _gap(self) -> float:
        return float(self._rng.exponential(1.0 / self.config.pods_per_second))

    def _stamp(self) -> str:
        return datetime.fromtimestamp(EPOCH + self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _changed(self, content: Object) -> Object:
        """The object with a new version."""
        self._version += 1
        return {**content, "metadata": {**content["metadata"], "resourceVersion": str(self._version)}}

    # Nodes

    def _add_node(self, index: int) -> None:
        name, zone = f"node-{index:05}", {"topology.kubernetes.io/zone": f"z{index % 3}"}
        made = node(name, cpu=32, memory="128Gi", labels=zone)
        made["metadata"] |= {"uid": f"uid-{name}"}
        self.nodes[name] = self._changed(made)
        self._apply("Node", "ADDED", self.nodes[name])
        if self.config.heartbeats:
            self._later(index * HEARTBEAT_SECONDS / self.config.nodes, lambda: self._heartbeat(name))

    def _heartbeat(self, name: str) -> None:
        self._node(name, is_ready=True)
        self._later(HEARTBEAT_SECONDS, lambda: self._heartbeat(name))

    def _flap(self) -> None:
        name = f"node-{self._rng.integers(self.config.nodes):05}"
        self._node(name, is_ready=False)
        self._later(30.0, lambda: self._node(name, is_ready=True))
        self._later(self._rng.exponential(3_600 / self.config.flaps_per_hour), self._flap)

    def _node(self, name: str, *, is_ready: bool) -> None:
        before = self.nodes[name]
        condition = {**ready(is_ready), "lastHeartbeatTime": self._stamp()}
        status = {**before["status"], "conditions": [condition]}
        self.nodes[name] = self._changed({**before, "status": status})
        self._apply("Node", "MODIFIED", self.nodes[name])

    # Pods

    def _arrive(self) -> None:
        self._named += 1
        app = int(self._rng.zipf(1.5)) % APPS
        cpu, memory = SIZES[app % len(SIZES)]
        owner = {"kind": "Job" if app % 2 else "ReplicaSet", "name": f"app-{app}", "uid": f"owner-{app}"}
        name = f"app-{app}-{self._named}"
        made = pod(name, namespace=f"tenant-{app % NAMESPACES}", cpu=cpu, memory=memory, owner=owner)
        made["metadata"] |= {"uid": f"uid-{self._named}", "creationTimestamp": self._stamp()}
        made["status"] = {"phase": "Pending"}
        self._put("ADDED", made)
        self._schedule(str(made["metadata"]["uid"]))
        self._later(self._gap(), self._arrive)

    def _put(self, event: str, content: Object) -> None:
        content = self._changed(content)
        self.pods[content["metadata"]["uid"]] = content
        self._apply("Pod", event, content)

    def _schedule(self, uid: str) -> None:
        content = self.pods.get(uid)
        if content is None:
            return
        chosen = self._decide(content)
        self.decided += 1
        if not chosen:
            self._later(10.0, lambda: self._schedule(uid))
            return
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._stamp()}
        spec = {**content["spec"], "nodeName": chosen}
        self._put(
            "MODIFIED", {**content, "spec": spec, "status": {"phase": "Pending", "conditions": [scheduled]}}
        )
        end = str(self._rng.choice(ENDS, p=ODDS))
        self._later(
            1.0, (lambda: self._end(uid, end)) if end == "rejected" else lambda: self._start(uid, end)
        )

    def _status(self, uid: str, status: Mapping[str, Any]) -> None:
        content = self.pods.get(uid)
        if content is not None:
            self._put("MODIFIED", {**content, "status": {**content["status"], **status}})

    def _start(self, uid: str, end: str) -> None:
        now = self._stamp()
        is_ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        conditions = [*self.pods[uid]["status"]["conditions"], is_ready]
        self._status(uid, {"phase": "Running", "startTime": now, "conditions": conditions})
        self._later(float(self._rng.exponential(self.config.mean_run_seconds)), lambda: self._end(uid, end))

    def _end(self, uid: str, end: str) -> None:
        if end == "deleted":
            self._drop(uid)
            return
        terminated = {"finishedAt": self._stamp(), "reason": "OOMKilled" if end == "oom" else "Completed"}
        reason = {"evicted": "Evicted", "rejected": "OutOfcpu"}.get(end, "")
        status = {
            "phase": "Succeeded" if end == "succeeded" else "Failed",
            **({"reason": reason} if reason else {}),
            "containerStatuses": [{"name": "main", "restartCount": 0, "state": {"terminated": terminated}}],
        }
        self._status(uid, status)
        self._later(60.0, lambda: self._drop(uid))

    def _drop(self, uid: str) -> None:
        content = self.pods.pop(uid, None)
        if content is not None:
            self._apply("Pod", "DELETED", self._changed(content))
