# SPDX-License-Identifier: Apache-2.0
"""`LiveCluster`: the cluster as the API shows it, as tables, records and sums; knows no API itself.

The informer feeds it objects in the order of each kind's watch; nodes and pods may come in any order between
them. Readers get the tables (`cluster`, with `take_changed` for what to encode again), the records (`nodes`,
`pods`), whether a pod fits (`insufficient`), and every change of a pod (`subscribe`). Everything is
thread-safe; `nodes` and `pods` are live views: iterate over `list(view.values())`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, Literal, final

import numpy as np

from shoal_client.collect.measured import Measured
from shoal_client.metrics import STATE_UNREADABLE
from shoal_client.state.changes import Changes, PodChange
from shoal_client.state.inventory import Inventory
from shoal_client.state.live_tables import I64
from shoal_client.state.reading import Reader, SliceRecord, node_digest
from shoal_client.state.summary import Summary, rooms_of, summarise
from shoal_common.cluster import Cluster
from shoal_common.errors import InputError
from shoal_common.kube.snapshot import Snapshot
from shoal_common.pods import NamespaceRecord, NodeRecord, PodRecord, ServiceRecord
from shoal_common.tables import App

__all__ = ["Kind", "LiveCluster", "PodChange"]

Kind = Literal["Node", "Pod", "Namespace", "Service", "NodeResourceTopology", "ResourceSlice"]
KINDS: Final[tuple[Kind, ...]] = (
    "Node", "Pod", "Namespace", "Service", "NodeResourceTopology", "ResourceSlice",
)  # fmt: skip
REQUIRED: Final[tuple[Kind, ...]] = ("Node", "Pod")
DELETED: Final = "DELETED"
CHUNK: Final = 64
"""Rows that are brought up to date at a time when all were measured: decisions come in between."""
GIVE_WAY_SECONDS: Final = 0.0002

Object = Mapping[str, Any]

_log = logging.getLogger("shoal.client.state")


@final
class LiveCluster:
    """A live cluster's state. `apps` tells what is known of a pod's app, by default nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start empty; `clock` is monotonic."""
        self.apps: Callable[[PodRecord], App | None] = lambda pod: None
        self._clock = clock
        self._lock = threading.RLock()
        self._changes = Changes()
        self._inventory = Inventory()
        self._reader = Reader()
        self._versions: dict[Kind, dict[str, str]] = {kind: {} for kind in KINDS}
        self._digests: dict[str, bytes] = {}  # of nodes
        self._names: dict[str, str] = {}  # of what is kept by name
        self._namespaces: dict[str, NamespaceRecord] = {}
        self._services: dict[str, ServiceRecord] = {}
        self._slices: dict[str, SliceRecord] = {}
        self._listed: set[Kind] = set()
        self._heard: dict[Kind, float] = {}

    # What the API says

    def apply(self, kind: Kind, event: str, obj: Object) -> None:
        """Take up one event of a watch: ADDED, MODIFIED or DELETED, and the object as it came.

        An object that cannot be read is logged and counted; what was known of it stays.
        """
        with self._lock:
            self._heard[kind] = self._clock()
            metadata = obj["metadata"]
            if event == DELETED:
                self._delete(kind, _uid(metadata))
            elif self._versions[kind].get(_uid(metadata)) != metadata.get("resourceVersion", ""):
                self._put(kind, obj, seen_to_come=kind in self._listed)
        self._changes.deliver()

    def replace(self, kind: Kind, objects: Iterable[Object]) -> None:
        """Take up a whole list: what it holds is there, what it does not hold is gone.

        Of an object that `holds` in that version, `metadata` is enough.
        """
        listed: set[str] = set()
        for obj in objects:
            listed.add(_uid(obj["metadata"]))
            with self._lock:
                self._relist(kind, obj)
            self._changes.deliver()
        with self._lock:
            for uid in self._versions[kind].keys() - listed:
                self._delete(kind, uid)
            self._listed.add(kind)
            self._heard[kind] = self._clock()
        self._changes.deliver()

    def holds(self, kind: Kind, uid: str, version: str) -> bool:
        """Whether this very version of an object is known."""
        return bool(version) and self._versions[kind].get(uid) == version

    def touch(self, kind: Kind) -> None:
        """The watch of this kind is alive: a bookmark came, or a stream ended in good order."""
        self._heard[kind] = self._clock()

    def _relist(self, kind: Kind, obj: Object) -> None:
        metadata = obj["metadata"]
        if not self.holds(kind, _uid(metadata), metadata.get("resourceVersion", "")):
            self._put(kind, obj, seen_to_come=False)
        elif kind == "Pod":
            self._inventory.listed_again(_uid(metadata))

    def _put(self, kind: Kind, obj: Object, *, seen_to_come: bool) -> None:
        metadata = obj["metadata"]
        try:
            self._take_up(kind, obj, seen_to_come)
        except InputError as error:
            STATE_UNREADABLE.labels(kind).inc()
            _log.warning("%s %s cannot be read: %s", kind, metadata.get("name"), error)
        self._versions[kind][_uid(metadata)] = metadata.get("resourceVersion", "")

    def _take_up(self, kind: Kind, obj: Object, seen_to_come: bool) -> None:
        now, read, uid, name = self._clock(), self._reader, _uid(obj["metadata"]), obj["metadata"]["name"]
        if kind == "Pod":
            pod = read.pod(obj)
            app = self.apps(pod) if pod.node_name else None
            self._changes.add(self._inventory.put_pod(pod, app, now, seen_to_come=seen_to_come))
            return
        if kind == "Node":
            digest = node_digest(obj)
            if self._digests.get(uid) != digest:  # else it is a heartbeat
                self._forget_other_machine(name, uid)
                self._inventory.put_node(read.node(obj), now)
                self._digests[uid] = digest
        elif kind == "Namespace":
            self._namespaces[name] = read.namespace(obj)
        elif kind == "Service":
            self._services[uid] = read.service(obj)
        elif kind == "NodeResourceTopology":
            self._inventory.put_topology(read.topology(obj), now)
        else:
            self._slices[uid] = read.devices(obj)
        self._names[uid] = name

    def _forget_other_machine(self, name: str, uid: str) -> None:
        """Another machine has this node's name now, and the end of the earlier one was missed."""
        before = self._inventory.nodes.get(name)
        if before is not None and before.uid != uid:
            self._versions["Node"].pop(before.uid, None)
            self._digests.pop(before.uid, None)

    def _delete(self, kind: Kind, uid: str) -> None:
        if self._versions[kind].pop(uid, None) is None:
            return
        if kind == "Pod":
            self._changes.add(self._inventory.drop_pod(uid, self._clock()))
            return
        name = self._names.pop(uid, "")
        if kind == "Node":
            self._digests.pop(uid, None)
            self._inventory.drop_node(name)
        elif kind == "Namespace":
            self._namespaces.pop(name, None)
        elif kind == "Service":
            self._services.pop(uid, None)
        elif kind == "NodeResourceTopology":
            self._inventory.drop_topology(name)
        else:
            self._slices.pop(uid, None)

    # What is there

    @property
    def cluster(self) -> Cluster:
        """The tables as of now, with spare rows (N_EXISTS 0); the arrays are live.

        While a measurement of the whole cluster is being taken up, some rows are still as before it.
        """
        with self._lock:
            self._inventory.flush(self._clock(), CHUNK)
            return self._inventory.cluster

    def take_changed(self) -> I64:
        """Rows i64[R] whose numbers changed since this was last asked; for one reader."""
        with self._lock:
            self._inventory.flush(self._clock(), CHUNK)
            return np.array(sorted(self._inventory.take_changed()), dtype=np.int64)

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """Nodes by name."""
        return MappingProxyType(self._inventory.nodes)

    @property
    def pods(self) -> Mapping[str, PodRecord]:
        """Pods by uid."""
        return MappingProxyType(self._inventory.pods)

    @property
    def slices(self) -> Sequence[SliceRecord]:
        """What DRA drivers offer."""
        return list(self._slices.values())

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Labels of a namespace; none where it is not known."""
        known = self._namespaces.get(namespace)
        return known.labels if known is not None else {}

    def row(self, name: str) -> int:
        """A node's row; -1 where there is no such node."""
        return self._inventory.rows.get(name, -1)

    def rows(self, names: Sequence[str]) -> I64:
        """Rows of nodes, i64[len(names)]; -1 where a name is not known."""
        get = self._inventory.rows.get
        return np.fromiter(map(get, names, repeat(-1)), np.int64, len(names))

    @property
    def pending(self) -> int:
        """Pods that a scheduler has to place now; gated ones are not among them."""
        return self._inventory.pending

    def snapshot(self) -> Snapshot:
        """The same as records, for filters and scores of kube-scheduler; reserved pods are on their node."""
        with self._lock:
            return Snapshot(
                tuple(self._inventory.nodes.values()),
                tuple(self._inventory.counted_pods()),
                tuple(self._services.values()),
                tuple(self._namespaces.values()),
            )

    def summary(self) -> Summary:
        """Free room of single nodes, for who compares clusters."""
        with self._lock:
            rooms, nodes = rooms_of(self._inventory.states()), len(self._inventory.nodes)
        return summarise(self.synced, nodes, rooms)

    def insufficient(self, node: str, pod: PodRecord) -> tuple[str, ...]:
        """What a node lacks for a pod, in kube-scheduler's sentences; () if it fits. Reservations count."""
        with self._lock:
            return self._inventory.insufficient(node, pod)

    def insufficient_without(self, node: str, pod: PodRecord, gone: PodRecord) -> tuple[str, ...]:
        """The same if the pod `gone` were not there."""
        with self._lock:
            return self._inventory.insufficient(node, pod, gone.uid)

    def rejecting(self, pod: PodRecord) -> tuple[str, ...]:
        """Nodes whose kubelet lately refused pods of this owner: to be avoided for a while, not filtered."""
        with self._lock:
            return self._inventory.health.masked(pod, self._clock())

    # Decisions and measurements

    def reserve(self, pod: PodRecord, node: str) -> None:
        """Hold a decided pod's room until it is seen bound, deleted or refused; replaces an earlier one."""
        with self._lock:
            self._inventory.reserve(pod, node, self.apps(pod), self._clock())

    def try_reserve(self, pod: PodRecord, node: str) -> tuple[str, ...]:
        """Hold a pod's room if there is any, in one step; what is lacking, () where it is held now."""
        with self._lock:
            lacking = self._inventory.insufficient(node, pod)
            if not lacking:
                self.reserve(pod, node)
            return lacking

    def release(self, uid: str) -> None:
        """Give the room held for a pod free, before it is decided anew or when its decision was refused."""
        with self._lock:
            self._inventory.release(uid)

    @property
    def reserved(self) -> int:
        """Pods for which room is held."""
        return self._inventory.reserved

    def measure(self, table: Mapping[str, Measured]) -> None:
        """Take up what was measured, by node; a node that is not in the table was not measured."""
        with self._lock:
            self._inventory.measure(table, self._clock())
        done = False
        while not done:
            with self._lock:
                done = self._inventory.flush(self._clock(), CHUNK)
            time.sleep(GIVE_WAY_SECONDS)  # who waits for the lock would not get it from a thread that runs on

    def subscribe(self, subscriber: Callable[[PodChange], None]) -> None:
        """Call `subscriber` for every change of a pod, in order, outside the lock, in `apply`'s thread."""
        self._changes.subscribe(subscriber)

    # How fresh it is

    @property
    def synced(self) -> bool:
        """Whether nodes and pods were listed."""
        return self._listed.issuperset(REQUIRED)

    def staleness_seconds(self, kind: str) -> float:
        """Seconds since the API was last heard of for this kind; infinite before the first list."""
        heard = self._heard.get(kind)  # type: ignore[call-overload]
        return float("inf") if heard is None else self._clock() - heard


def _uid(metadata: Object) -> str:
    """What an object is known by; kinds that have no uid by namespace and name."""
    return metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata['name']}"
