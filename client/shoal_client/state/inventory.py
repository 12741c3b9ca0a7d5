# SPDX-License-Identifier: Apache-2.0
"""Nodes and pods put together: who is where, what is promised, what went wrong, and the rows of it all.

Follows the order of events of each kind as the API gives them; pods may come before their nodes, a name may
come back with another uid, an event twice. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, final

from shoal_client.collect.measured import Measured
from shoal_client.metrics import RESERVATIONS_EXPIRED
from shoal_client.state.changes import PodChange
from shoal_client.state.live_tables import LiveTables
from shoal_client.state.node_health import NodeHealth, rejected_by_kubelet
from shoal_client.state.node_state import UNKNOWN, Asked, Held, Measurement, NodeState
from shoal_client.state.reading import TopologyRecord
from shoal_client.state.reservations import Reservations
from shoal_common.cluster import Cluster
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.tables import App

MEASURED_SECONDS: Final = 180.0
"""Measurements that nobody renewed for so long are no longer used: their collector is gone."""


def waiting(pod: PodRecord | None) -> bool:
    """Whether a scheduler has the pod to place now."""
    return pod is not None and not (pod.node_name or pod.finished or pod.terminating or pod.gates)


def holds_room(pod: PodRecord) -> bool:
    """Whether the pod takes room on a node."""
    return bool(pod.node_name) and not pod.finished


@final
class Inventory:
    """Every node and pod of a cluster."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.pods: dict[str, PodRecord] = {}
        self.pending = 0
        self.health = NodeHealth()
        self._states: dict[str, NodeState] = {}
        self._reservations = Reservations()
        self._tables = LiveTables()
        self._by_name: dict[tuple[str, str], str] = {}
        self._dirty: set[str] = set()  # whose rows a decision must not see as they are
        self._remeasured: set[str] = set()  # whose rows may wait for a moment
        self._changed: set[int] = set()
        self._measured_at: float | None = None
        nobody = PodRecord("")
        self._asking = nobody, Asked.of(nobody)

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows of the nodes."""
        return self._tables.rows

    @property
    def reserved(self) -> int:
        """Pods for which room is held."""
        return len(self._reservations)

    def put_node(self, record: NodeRecord, now: float) -> None:
        """Take up a node as it is now."""
        state = self._state(record.name)
        before = state.record
        if before is not None and before.uid != record.uid:
            self._leave(state)
            before = None
        elif before is None and state.uid == record.uid:
            self._return(state)
        if before is not None and before.ready and not record.ready:
            self.health.flapped(record.name, now)
        state.set(record)
        if state.row < 0:
            state.row = self._tables.rows.get(record.name, -1)
        if state.row < 0:
            state.row = self._tables.add(record.name)
        self._tables.describe(record, state.row)
        self.nodes[record.name] = record
        self._dirty.add(record.name)

    def drop_node(self, name: str) -> None:
        """A node is gone."""
        state = self._states.get(name)
        if state is None or state.record is None:
            return
        self._leave(state)
        self._changed.add(self._tables.remove(name))
        del self.nodes[name]
        self._discard(state)

    def _leave(self, state: NodeState) -> None:
        for uid in state.reserved:
            self._reservations.pop(uid)
        state.leave()
        self.health.forget(state.name)

    def _return(self, state: NodeState) -> None:
        """The same machine is back (a list had missed it): its pods are where they were."""
        for uid in state.former:
            pod = self.pods.get(uid)
            if pod is not None and holds_room(pod) and pod.node_name == state.name:
                state.put(uid, Held.of(pod, None, None))
        state.former.clear()

    def put_pod(self, pod: PodRecord, app: App | None, now: float, *, seen_to_come: bool) -> list[PodChange]:
        """Take up a pod as it is now; `seen_to_come` is False for what a first list shows."""
        uid, name = _key(pod), (pod.namespace, pod.name)
        changes = []
        earlier = self._by_name.get(name, uid)
        if earlier != uid:  # the end of the earlier pod of this name was missed
            changes += self.drop_pod(earlier, now)
        before = self.pods.get(uid)
        if self._reservations.settled_by(pod, uid):
            self.release(uid)
        self._place(before, pod, uid, app, now if seen_to_come or before is not None else None)
        if seen_to_come and rejected_by_kubelet(pod) and not (before and rejected_by_kubelet(before)):
            self.health.rejected(pod, len(self.nodes), now)
        self.pending += waiting(pod) - waiting(before)
        self.pods[uid], self._by_name[name] = pod, uid
        return [*changes, PodChange(before, pod, now)]

    def _place(
        self, before: PodRecord | None, pod: PodRecord, uid: str, app: App | None, since: float | None
    ) -> None:
        """Bring a pod's node in line with what the pod is now."""
        state = self._states.get(pod.node_name)
        held = state.pods.get(uid) if state is not None else None
        if held is not None and holds_room(pod):
            if held.pod.resources is pod.resources and held.pod.annotations is pod.annotations:
                held.pod = pod  # the same template: it takes and loads what it did
                return
            since = held.since
        if before is not None:
            self._unplace(before, uid)
        if holds_room(pod):
            state = self._state(pod.node_name)
            state.former.discard(uid)
            state.put(uid, Held.of(pod, app, since))
            self._dirty.add(pod.node_name)

    def listed_again(self, uid: str) -> None:
        """A list shows a pod unchanged: it is on its node, whatever machine that is now."""
        pod = self.pods.get(uid)
        if pod is not None and holds_room(pod) and self._on_former(pod, uid):
            self._place(pod, pod, uid, None, None)

    def _unplace(self, pod: PodRecord, uid: str) -> None:
        state = self._states.get(pod.node_name)
        if state is not None:
            state.take(uid)
            state.former.discard(uid)
            self._dirty.add(pod.node_name)
            self._discard(state)

    def drop_pod(self, uid: str, now: float) -> list[PodChange]:
        """A pod is gone."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return []
        self.release(uid)
        self._unplace(pod, uid)
        self.pending -= waiting(pod)
        if self._by_name.get((pod.namespace, pod.name)) == uid:
            del self._by_name[pod.namespace, pod.name]
        return [PodChange(pod, None, now)]

    def reserve(self, pod: PodRecord, node: str, app: App | None, now: float) -> None:
        """Hold a decided pod's room; not for a pod that is seen bound or gone, or on an unknown node."""
        uid = _key(pod)
        self.release(uid)
        pod, state = self.pods.get(uid, pod), self._states.get(node)
        if state is None or state.record is None or pod.node_name or pod.finished:
            return
        self._reservations.add(pod, node, now)
        state.put(uid, Held.of(pod, app, now), reserved=True)
        self._dirty.add(node)

    def release(self, uid: str) -> None:
        """Give the room held for a pod free."""
        held = self._reservations.pop(uid)
        if held is not None and held.node in self._states:
            self._states[held.node].take(uid, reserved=True)
            self._dirty.add(held.node)

    def insufficient(self, node: str, pod: PodRecord, gone: str = "") -> tuple[str, ...]:
        """What a node lacks for a pod; see `NodeState.insufficient`."""
        if pod is not self._asking[0]:  # many nodes are asked for one pod after the other
            self._asking = pod, Asked.of(pod)
        state = self._states.get(node)
        return (UNKNOWN,) if state is None else state.insufficient(self._asking[1], gone)

    def put_topology(self, record: TopologyRecord, now: float) -> None:
        """Take up what is free in a node's NUMA zones."""
        state = self._state(record.node)
        state.topology, state.topology_at = record, now
        self._dirty.add(record.node)

    def drop_topology(self, node: str) -> None:
        """Nobody reports a node's NUMA zones any more."""
        state = self._states.get(node)
        if state is not None:
            state.topology = None
            self._dirty.add(node)
            self._discard(state)

    def measure(self, table: Mapping[str, Measured], now: float) -> None:
        """Replace what was measured on all nodes."""
        self._measured_at = now
        for name, state in self._states.items():
            values = table.get(name)
            if values is not None or state.measured is not None:
                state.measured = None if values is None else Measurement(values, now)
                self._remeasured.add(name)

    def flush(self, now: float, most: int) -> bool:
        """Bring rows in line: of all nodes whose pods changed, of `most` of those that were measured.

        Returns whether none is left. A measurement changes every row of a cluster at once, and no decision
        may wait for them all.
        """
        self._expire(now)
        due, self._dirty = self._dirty, set()
        self._remeasured -= due
        due.update(islice(self._remeasured, most))
        self._remeasured -= due
        for name in due:
            state = self._states.get(name)
            if state is not None and self._tables.refill(state, self.health.failures(name, now), now):
                self._changed.add(state.row)
        return not self._remeasured

    def _expire(self, now: float) -> None:
        """End what only time ends."""
        for uid in self._reservations.expired(now, self.pods):
            RESERVATIONS_EXPIRED.inc()
            self.release(uid)
        self._dirty |= self.health.ended(now)
        if self._measured_at is not None and now - self._measured_at > MEASURED_SECONDS:
            self.measure({}, now)
            self._measured_at = None

    @property
    def cluster(self) -> Cluster:
        """The tables as of the last `flush`."""
        return self._tables.cluster

    def take_changed(self) -> set[int]:
        """Rows that changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def counted_pods(self) -> Iterator[PodRecord]:
        """All pods, those that room is held for on their node; none of an earlier machine of a name."""
        for held in self._reservations:
            yield replace(held.pod, node_name=held.node)
        for uid, pod in self.pods.items():
            if self._reservations.get(uid) is None and not self._on_former(pod, uid):
                yield pod

    def _on_former(self, pod: PodRecord, uid: str) -> bool:
        state = self._states.get(pod.node_name)
        return state is not None and uid in state.former

    def states(self) -> Iterator[NodeState]:
        """The states of the nodes that are there."""
        return (state for state in self._states.values() if state.record is not None)

    def _state(self, name: str) -> NodeState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = NodeState(name)
        return state

    def _discard(self, state: NodeState) -> None:
        if state.empty:
            self._states.pop(state.name, None)


def _key(pod: PodRecord) -> str:
    """What a pod is known by."""
    return pod.uid or f"{pod.namespace}/{pod.name}"
