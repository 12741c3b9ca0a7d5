# SPDX-License-Identifier: Apache-2.0
"""Gated pods: decide, resize, narrow the nodes, take the gate off.

The webhook puts the gate `shoal.dev/placement` on opted-in pods; here it comes off again, always. The steps
for one pod, in this order, each left out where it is done already:

1. the decision is written to the pod's annotation `shoal.dev/placement`, before anything acts on it;
2. `pods/resize` with the amounts of the annotation, while the pod is gated and so unknown to the scheduler
   (kubernetes#126891: resizing a pod that is being scheduled races with the kubelet's admission);
3. node affinity narrowed and the gate removed, in one patch that carries the resourceVersion it was made for.

So a crash between any two steps is continued from the annotation: amounts are absolute, nothing happens
twice. A pod is released untouched when no policy wants it, when its owner is suspended or gone, when a step
is refused, and in any case once its deadline has passed. Members of a gang (`gangs.py`) come free together
or not at all. Only the gate of ours is removed; a pod may have others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal_client.actuate.events import Events, about_pod
from shoal_client.actuate.gangs import Gang, complete, gang_of
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.owners import Owners
from shoal_client.actuate.placing import Placer, free_patch, is_gated
from shoal_client.actuate.webhook import GATE
from shoal_client.kube.api import PODS, Api, Conflict, NotFound
from shoal_client.metrics import ACTUATIONS, GATE_WAIT, GATED_PODS
from shoal_client.placement import Placing, read_placing
from shoal_client.state.live import LiveCluster, PodChange
from shoal_common.errors import ShoalError, Transient
from shoal_common.pods import PodRecord

LONGEST_BACKOFF = 30.0


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How long a pod may be kept waiting by us, in seconds on our clock since we first saw it gated."""

    deadline_seconds: float = 10.0
    gang_seconds: float = 60.0  # for the members of a gang to be created


@dataclass(slots=True)
class _Waiting:
    """A pod that carries our gate."""

    pod: PodRecord
    since: float
    failures: int = 0
    retry_at: float = 0.0


@dataclass(slots=True)
class _Group:
    """Pods that come free together: the members of a gang that are gated, or a single pod."""

    gang: Gang | None
    members: list[_Waiting] = field(default_factory=list)

    @property
    def since(self) -> float:
        return min(m.since for m in self.members)


@dataclass(slots=True)
class _Work:
    """A pod that is being worked on: its API object as of the last answer, and the decision on it."""

    member: _Waiting
    raw: dict[str, Any]
    placing: Placing | None


class Gates:
    """Takes the gate off the pods that carry it. `pod_changed` from any thread, the rest from one."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        cluster: LiveCluster,
        placer: Placer,
        events: Events,
        settings: GateSettings = GateSettings(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._leader, self._cluster, self._placer = api, leader, cluster, placer
        self._events, self._settings, self._clock = events, settings, clock
        self._owners = Owners(api, clock)
        self._waiting: dict[str, _Waiting] = {}
        self._mutex = threading.Lock()

    def pod_changed(self, change: PodChange) -> None:
        """Note a pod's gate coming or going; subscribe it to the LiveCluster."""
        pod = change.after
        if pod is None or GATE not in pod.gates or pod.terminating:
            if change.before is not None:
                self._forget(change.before.uid)
            return
        with self._mutex:
            known = self._waiting.get(pod.uid)
            if known is None:
                self._waiting[pod.uid] = _Waiting(pod, self._clock())
            else:
                known.pod = pod

    def step(self) -> None:
        """One pass over the gated pods, the longest waiting first; ends when the API is away."""
        GATED_PODS.set(len(self._waiting))
        for group in self._groups():
            if not self._leader.is_leader():
                return
            if all(self._clock() >= m.retry_at for m in group.members) and not self._handle(group):
                return

    def release_all(self) -> None:
        """Let every gated pod go, untouched: we are about to stop."""
        for group in self._groups():
            for member in group.members:
                if not self._leader.is_leader():
                    return
                try:
                    self._release(member, "stopping")
                except ShoalError:
                    ACTUATIONS.labels("gate", "failed").inc()

    def _groups(self) -> list[_Group]:
        groups: dict[object, _Group] = {}
        with self._mutex:
            for uid, waiting in self._waiting.items():
                gang = gang_of(waiting.pod)
                groups.setdefault(gang or uid, _Group(gang)).members.append(waiting)
        return sorted(groups.values(), key=lambda g: g.since)

    def _handle(self, group: _Group) -> bool:
        """Move a group on as far as it goes now; False when the API is away and the pass should end."""
        try:
            self._move(group)
        except Transient:
            ACTUATIONS.labels("gate", "unavailable").inc()
            return False
        except Conflict:
            ACTUATIONS.labels("gate", "conflict").inc()  # it changed under us: read again in the next pass
        except ShoalError as error:
            self._failed(group, str(error))
        return True

    def _failed(self, group: _Group, sentence: str) -> None:
        ACTUATIONS.labels("gate", "failed").inc()
        for member in group.members:
            member.failures += 1
            member.retry_at = self._clock() + min(2.0**member.failures, LONGEST_BACKOFF)
            self._tell(member.pod, "GateFailed", sentence, warning=True)

    def _move(self, group: _Group) -> None:
        reason = self._untouched_because(group)
        if reason:
            for member in group.members:
                self._release(member, reason)
            return
        if group.gang is not None and not self._gathered(group.gang):
            return
        works = [w for w in map(self._decide, group.members) if w is not None]
        if len(works) < len(group.members):
            return  # one vanished meanwhile: look at the group anew in the next pass
        if any(work.placing is None for work in works):
            for member in group.members:
                self._release(member, "unwanted")
            return
        for work in works:  # every member resized before the first is free
            self._resize(work)
        for work in works:
            self._free(work)

    def _untouched_because(self, group: _Group) -> str:
        """Why a group must be let go as it is; "" when it need not."""
        allowed = self._settings.deadline_seconds if group.gang is None else self._settings.gang_seconds
        if self._clock() - group.since > allowed:
            return "deadline"
        if any(m.failures for m in group.members):
            return "refused"
        if not all(self._owners.wants(m.pod) for m in group.members):
            return "unowned"
        return ""

    def _gathered(self, gang: Gang) -> bool:
        """Whether all members of a gang are there, or some of them were let go by us already."""
        members = [p for p in list(self._cluster.pods.values()) if gang_of(p) == gang]
        return complete(members) or any(
            GATE not in p.gates and read_placing(p.annotations, p.uid) is not None
            for p in members
            if not p.finished
        )

    def _decide(self, member: _Waiting) -> _Work | None:
        """The decision on a pod: that of its annotation, or a new one, written there before it is used."""
        raw = self._fetch(member)
        if raw is None:
            return None
        placing = read_placing(raw["metadata"].get("annotations") or {}, member.pod.uid)
        if placing is None:
            placing = self._placer.place(member.pod, raw)
            if placing is not None and placing.containers:
                raw = self._patch(member.pod, raw, {"metadata": {"annotations": placing.annotation()}})
        return _Work(member, raw, placing)

    def _resize(self, work: _Work) -> None:
        if work.placing is None or not work.placing.containers:
            return
        pod = work.member.pod
        self._must_lead()
        work.raw = self._api.resize(pod.name, pod.namespace, work.placing.resize_patch())
        ACTUATIONS.labels("resize", "done").inc()

    def _free(self, work: _Work) -> None:
        hosts = work.placing.hosts if work.placing is not None else ()
        self._patch(work.member.pod, work.raw, free_patch(work.raw, work.placing))
        self._freed(work.member, "placed", f"Chosen: {', '.join(hosts) or 'any node'}")

    def _release(self, member: _Waiting, reason: str) -> None:
        """Take our gate off and leave everything else as it is."""
        raw = self._fetch(member)
        if raw is None:
            return
        self._placer.forget(member.pod.uid)
        self._patch(member.pod, raw, free_patch(raw, None))
        self._freed(member, reason, f"Let go as it is: {reason}")

    def _freed(self, member: _Waiting, result: str, note: str) -> None:
        ACTUATIONS.labels("gate", result).inc()
        GATE_WAIT.observe(self._clock() - member.since)
        self._forget(member.pod.uid)
        self._tell(member.pod, "PlacementApplied" if result == "placed" else "GateReleased", note)

    def _fetch(self, member: _Waiting) -> dict[str, Any] | None:
        """The pod as it is now; None, and forgotten, when it is gone, replaced or no longer gated."""
        pod = member.pod
        try:
            raw = self._api.get(PODS, pod.name, pod.namespace)
        except NotFound:
            raw = {}
        if not raw or raw["metadata"]["uid"] != pod.uid or not is_gated(raw):
            self._forget(pod.uid)
            return None
        return raw

    def _patch(self, pod: PodRecord, raw: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        """Patch the pod if it is still as it was read; the pod after it."""
        self._must_lead()
        metadata = {**body.get("metadata", {}), "resourceVersion": raw["metadata"]["resourceVersion"]}
        return self._api.patch(PODS, pod.name, {**body, "metadata": metadata}, pod.namespace)

    def _must_lead(self) -> None:
        if not self._leader.is_leader():
            raise Transient("another process leads now")

    def _forget(self, uid: str) -> None:
        with self._mutex:
            self._waiting.pop(uid, None)

    def _tell(self, pod: PodRecord, reason: str, note: str, warning: bool = False) -> None:
        self._events.emit(about_pod(pod.namespace, pod.name, pod.uid), reason, "Placement", note, warning)
