# SPDX-License-Identifier: Apache-2.0
"""Moving pods of low priority away from where they harm: evicted, and placed anew by the scheduler.

Two reasons count: a *hot* node, whose measured use of CPU is above a share of what it has; and a *fragmented*
one, where a waiting pod of higher priority would fit if one pod went elsewhere. A pod is moved only when it
opted in, its controller makes it again, another node has room for it, and the twin shows a gain (the callable
that `shoal_common.gate` is behind). Through the Eviction API, which respects PodDisruptionBudgets; one at a
time, evenly spaced so that no hour sees more than the bound, restarts included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events, about_pod
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.load import cpu_load
from shoal_client.actuate.locks import Locks
from shoal_client.actuate.narrowing import MADE_AGAIN
from shoal_client.admission import admits
from shoal_client.kube.api import Api, Conflict, NotFound, TooManyRequests
from shoal_client.metrics import ACTUATIONS
from shoal_client.policies.spec import MigrationAction
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord

OPT_IN = ("shoal.dev/migratable", "true")
HOUR = 3600.0


SETTLE_SECONDS = 120.0
"""For a moved pod's replacement, before anything else moves."""

ASK_SECONDS = 30.0
"""Between two questions to the twin."""

LOOKED_AT = 64
"""Pods that are looked at in one step, the least important first: a step shares the process that serves."""

OWNER_REST_SECONDS = 3600.0
"""Between two moves of one owner's pods."""


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that could go, and why: hot or fragmented."""

    pod: PodRecord
    reason: str
    per_hour: int


Gain = Callable[[PodRecord], bool]
"""Whether the twin shows, with confidence, a gain from placing this running pod anew."""


class Migration:
    """Evicts a pod now and then; `step` from one thread."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        cluster: LiveCluster,
        authority: Authority,
        gain: Gain,
        locks: Locks,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._leader, self._cluster, self._authority = api, leader, cluster, authority
        self._gain, self._locks, self._events, self._clock = gain, locks, events, clock
        self._last = clock()  # a restart counts as a move: the bound holds over crashes
        self._asked = float("-inf")
        self._rested: dict[str, float] = {}  # owner UID -> until when its pods stay

    def step(self) -> None:
        """At most one eviction, when the spacing allows one and the twin is for it."""
        now = self._clock()
        if now - self._last < SETTLE_SECONDS or now - self._asked < ASK_SECONDS:
            return
        self._rested = {owner: until for owner, until in self._rested.items() if until > now}
        for move in moves(self._cluster, self._bounds):
            due = now - self._last >= HOUR / move.per_hour
            if due and move.pod.owner_uid not in self._rested and not self._locks.holder(move.pod.node_name):
                self._asked = now
                self._consider(move)
                return

    def _bounds(self, pod: PodRecord) -> MigrationAction | None:
        actions = self._authority.actions(pod)
        return actions.migration if actions is not None and actions.migration.enabled else None

    def _consider(self, move: Move) -> None:
        pod = move.pod
        self._rested[pod.owner_uid] = self._clock() + OWNER_REST_SECONDS
        if not self._gain(pod):
            ACTUATIONS.labels("migrate", "no_gain").inc()
            return
        if not self._leader.is_leader() or not self._locks.acquire(pod.node_name, pod.uid, SETTLE_SECONDS):
            return
        self._last = self._clock()  # counted before the call: its answer may be lost
        result = self._evict(pod)
        ACTUATIONS.labels("migrate", result).inc()
        if result == "done":
            about = about_pod(pod.namespace, pod.name, pod.uid)
            self._events.emit(about, "Migrated", "Migration", f"{pod.node_name} is {move.reason}")

    def _evict(self, pod: PodRecord) -> str:
        try:
            self._api.evict(pod.name, pod.namespace, uid=pod.uid)
        except Conflict:
            return "replaced"
        except NotFound:
            return "gone"
        except TooManyRequests:
            return "disruption_budget"
        return "done"


def moves(cluster: LiveCluster, bounds: Callable[[PodRecord], MigrationAction | None]) -> Iterator[Move]:
    """Pods that could be moved: first those on hot nodes, then those in a waiting pod's way."""
    pods = [p for p in list(cluster.pods.values()) if not p.finished and not p.terminating]
    movable = []
    for pod in filter(_willing, pods):
        held = bounds(pod)
        if held is not None and pod.priority <= held.highest_priority:
            movable.append((pod, held))
    movable = sorted(movable, key=lambda pair: (pair[0].priority, pair[0].namespace, pair[0].name))[
        :LOOKED_AT
    ]
    for pod, held in movable:
        load = cpu_load(cluster, pod.node_name)
        if load > held.hot_ratio and _room_elsewhere(cluster, pod, held.hot_ratio):
            yield Move(pod, "hot", held.per_hour)
    waiting = [p for p in pods if not p.node_name and not p.gates and p.status.unschedulable]
    for pod, held in movable:
        helped = any(p.priority > pod.priority and _would_fit(cluster, p, pod) for p in waiting)
        if helped and _room_elsewhere(cluster, pod, held.hot_ratio):
            yield Move(pod, "fragmented", held.per_hour)


def _willing(pod: PodRecord) -> bool:
    """Opted in, running, and made again by its controller."""
    key, value = OPT_IN
    settled = bool(pod.node_name) and pod.status.ready
    return settled and pod.labels.get(key) == value and pod.owner_kind in MADE_AGAIN


def _room_elsewhere(cluster: LiveCluster, pod: PodRecord, hot_ratio: float) -> bool:
    """Whether a ready node other than the pod's own, and not hot, has room for it and admits it."""
    return any(
        name != pod.node_name
        and admits(node, pod)
        and cpu_load(cluster, name) < hot_ratio
        and not cluster.insufficient(name, pod)
        for name, node in list(cluster.nodes.items())
    )


def _would_fit(cluster: LiveCluster, waiting: PodRecord, gone: PodRecord) -> bool:
    """Whether a waiting pod that does not fit on a node would, were one of the node's pods gone."""
    node = cluster.nodes.get(gone.node_name)
    if node is None or not admits(node, waiting):
        return False
    if not cluster.insufficient(gone.node_name, waiting):
        return False  # it fits already: something else holds it back
    return not cluster.insufficient_without(gone.node_name, waiting, gone)
