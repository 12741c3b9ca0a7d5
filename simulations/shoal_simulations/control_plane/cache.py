# SPDX-License-Identifier: Apache-2.0
"""What the virtual scheduler knows of the cluster: its watch cache, with pods that it assumes to be bound.

Source: pkg/scheduler/backend/cache and eventhandlers.go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

from shoal_common.fields import Field
from shoal_common.kube.snapshot import Snapshot
from shoal_common.manifests import read_namespace, read_node, read_pod, read_service
from shoal_common.pods import NamespaceRecord, NodeRecord, PodRecord, ServiceRecord
from shoal_simulations.control_plane.queue import Queue
from shoal_simulations.control_plane.store import DELETED

Content = Mapping[str, Any]


@final
class Cache:
    """Nodes, pods, services and namespaces. All is done under the lock of `changed`, which is notified."""

    PATHS: ClassVar[Mapping[str, str]] = {
        "Node": "/api/v1/nodes",
        "Pod": "/api/v1/pods",
        "Service": "/api/v1/services",
        "Namespace": "/api/v1/namespaces",
    }

    def __init__(self, queue: Queue, schedulers: frozenset[str], changed: threading.Condition) -> None:
        self.pending: dict[str, tuple[PodRecord, Content]] = {}
        self.node_manifests: dict[str, Content] = {}
        self._queue, self._schedulers, self._changed = queue, schedulers, changed
        self._nodes: dict[str, NodeRecord] = {}
        self._bound: dict[str, PodRecord] = {}
        self._assumed: set[str] = set()
        self._services: dict[str, ServiceRecord] = {}
        self._namespaces: dict[str, NamespaceRecord] = {}

    def replacing(self, kind: str) -> Callable[[Iterable[Content]], None]:
        """Takes a whole list of a kind: what is not in it is gone."""

        def replace_all(objects: Iterable[Content]) -> None:
            found = {_identity(kind, content): content for content in objects}
            with self._changed:
                for identity in [i for i in self._known(kind) if i not in found]:
                    self._forget(kind, identity)
                for content in found.values():
                    self._apply(kind, content)
                self._changed.notify_all()

        return replace_all

    def changing(self, kind: str) -> Callable[[str, Content], None]:
        """Takes one change of a kind."""

        def change(event: str, content: Content) -> None:
            with self._changed:
                if event == DELETED:
                    self._forget(kind, _identity(kind, content))
                else:
                    self._apply(kind, content)
                self._changed.notify_all()

        return change

    @property
    def bound(self) -> frozenset[str]:
        """Uids of bound and assumed pods."""
        return frozenset(self._bound)

    def snapshot(self) -> Snapshot:
        """The cluster now."""
        return Snapshot(
            nodes=tuple(self._nodes.values()),
            pods=tuple(self._bound.values()),
            services=tuple(self._services.values()),
            namespaces=tuple(self._namespaces.values()),
        )

    def assume(self, pod: PodRecord, node: str) -> None:
        """Count a pod as bound until the watch says so or the binding fails."""
        self._bound[pod.uid] = replace(pod, node_name=node)
        self._assumed.add(pod.uid)

    def forget(self, uid: str) -> None:
        """The binding of an assumed pod failed."""
        if uid in self._assumed:
            self._assumed.discard(uid)
            self._bound.pop(uid, None)
            self._queue.wake(makes_room=True)

    def _known(self, kind: str) -> Iterable[str]:
        if kind == "Pod":
            return {*self.pending, *self._bound} - self._assumed
        if kind == "Node":
            return set(self._nodes)
        return set(self._services if kind == "Service" else self._namespaces)

    def _apply(self, kind: str, content: Content) -> None:
        source = Field(kind, "", content)
        if kind == "Pod":
            self._apply_pod(read_pod(source), content)
        elif kind == "Node":
            node = read_node(source)
            makes_room = self._nodes.get(node.name) != node
            self._nodes[node.name] = node
            self.node_manifests[node.name] = content
            self._queue.wake(makes_room=makes_room)
        elif kind == "Service":
            self._services[_identity(kind, content)] = read_service(source)
        else:
            namespace = read_namespace(source)
            self._namespaces[namespace.name] = namespace

    def _apply_pod(self, pod: PodRecord, content: Content) -> None:
        if pod.node_name or pod.finished:
            self._settle(pod)
            return
        if pod.uid in self._assumed:
            return
        if pod.scheduler_name not in self._schedulers or pod.gates or pod.terminating:
            self.pending.pop(pod.uid, None)
            self._queue.remove(pod.uid)
            return
        before = self.pending.get(pod.uid)
        self.pending[pod.uid] = (pod, content)
        if before is None or before[1]["spec"] != content["spec"]:
            self._queue.add(pod.uid, pod.priority, time.monotonic())

    def _settle(self, pod: PodRecord) -> None:
        """A pod that is bound or done."""
        before = self._bound.get(pod.uid)
        self.pending.pop(pod.uid, None)
        self._queue.remove(pod.uid)
        self._assumed.discard(pod.uid)
        if pod.finished:
            self._bound.pop(pod.uid, None)
        else:
            self._bound[pod.uid] = pod
        shrunk = before is not None and (pod.finished or pod.requests != before.requests)
        self._queue.wake(makes_room=shrunk)

    def _forget(self, kind: str, identity: str) -> None:
        if kind == "Pod":
            was_bound = self._bound.pop(identity, None) is not None
            self.pending.pop(identity, None)
            self._assumed.discard(identity)
            self._queue.remove(identity)
            self._queue.wake(makes_room=was_bound)
        elif kind == "Node":
            self._nodes.pop(identity, None)
            self.node_manifests.pop(identity, None)
        elif kind == "Service":
            self._services.pop(identity, None)
        else:
            self._namespaces.pop(identity, None)


def _identity(kind: str, content: Content) -> str:
    metadata = content["metadata"]
    if kind == "Pod":
        return str(metadata["uid"])
    return str(metadata["name"]) if kind != "Service" else f"{metadata['namespace']}/{metadata['name']}"
