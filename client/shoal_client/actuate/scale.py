# SPDX-License-Identifier: Apache-2.0
"""The slow time scale of KaiS: the number of replicas of a service, once each frame, through `scale`.

KaiS (Han et al., "Tailored learning-based scheduling for Kubernetes-oriented edge-cloud system", INFOCOM
2021) orchestrates services each frame and dispatches requests each slot (`routes.py`). Here a labelled
Deployment or StatefulSet follows its measured load: replicas = ceil(current * utilisation / target), as the
Horizontal Pod Autoscaler, but by a bounded step and within bounds. Where we differ from the paper: the rule
is this formula, not a trained policy. Nothing is scaled while the use of any of its ready pods is unknown,
while a rollout is under way, or when an autoscaler has the same target.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events, Regarding
from shoal_client.actuate.leader import Leader
from shoal_client.kube.api import (
    AUTOSCALERS,
    DEPLOYMENTS,
    STATEFUL_SETS,
    Api,
    Conflict,
    NotFound,
    Resource,
)
from shoal_client.metrics import ACTUATIONS
from shoal_client.policies.spec import ReplicasAction
from shoal_client.state.live import LiveCluster
from shoal_common.fields import Field
from shoal_common.manifests import read_label_selector
from shoal_common.pods import PodRecord

OPT_IN = "shoal.dev/replicas=enabled"
LOWEST, HIGHEST = "shoal.dev/min-replicas", "shoal.dev/max-replicas"
TOLERANCE = 0.1
"""No change while utilisation / target is within 1 +- this, as the Horizontal Pod Autoscaler."""

PodUse = Callable[[], Mapping[tuple[str, str], float]]
"""(namespace, pod) -> cores used now; a pod that is not named is not known."""


def desired(current: int, utilisation: float, bounds: ReplicasAction) -> int:
    """Replicas for a mean utilisation (CPU use / request), one bounded step from `current`."""
    ratio = utilisation / bounds.target_ratio
    wanted = current if abs(ratio - 1) <= TOLERANCE else math.ceil(current * ratio)
    stepped = min(max(wanted, current - bounds.largest_step), current + bounds.largest_step)
    return min(max(stepped, bounds.lowest), bounds.highest)


class Scale:
    """Scales labelled workloads; `step` from one thread."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        cluster: LiveCluster,
        authority: Authority,
        pod_use: PodUse,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._leader, self._cluster, self._authority = api, leader, cluster, authority
        self._pod_use, self._events, self._clock = pod_use, events, clock
        self._next: dict[str, float] = {}  # workload UID -> when its next frame begins

    def step(self) -> None:
        """Scale every workload whose frame is over."""
        workloads = [(r, w) for r in (DEPLOYMENTS, STATEFUL_SETS) for w in self._api.list(r, labels=OPT_IN)]
        uids = {w["metadata"]["uid"] for _, w in workloads}
        self._next = {uid: at for uid, at in self._next.items() if uid in uids}
        due = [(r, w) for r, w in workloads if self._clock() >= self._next.get(w["metadata"]["uid"], 0.0)]
        if not due:
            return
        use, held = self._pod_use(), self._autoscaled()
        for resource, workload in due:
            if self._leader.is_leader():
                self._consider(resource, workload, use, held)

    def _autoscaled(self) -> frozenset[tuple[str, str, str]]:
        """(namespace, kind, name) of what an autoscaler scales already."""
        targets = [(a["metadata"]["namespace"], a["spec"]["scaleTargetRef"]) for a in self._autoscalers()]
        return frozenset((namespace, target["kind"], target["name"]) for namespace, target in targets)

    def _autoscalers(self) -> list[dict[str, Any]]:
        try:
            return list(self._api.list(AUTOSCALERS))
        except NotFound:
            return []  # the cluster has no such resource

    def _consider(
        self,
        resource: Resource,
        workload: Mapping[str, Any],
        use: Mapping[tuple[str, str], float],
        held: frozenset[tuple[str, str, str]],
    ) -> None:
        metadata, kind = workload["metadata"], resource.kind
        pods = self._pods(workload)
        bounds = self._bounds(pods, metadata.get("annotations") or {})
        if bounds is None:
            return
        self._next[metadata["uid"]] = self._clock() + bounds.frame_seconds
        if (metadata["namespace"], kind, metadata["name"]) in held:
            ACTUATIONS.labels("scale", "autoscaled").inc()
            return
        load = utilisation(pods, use)
        if load is None or not _settled(workload):
            ACTUATIONS.labels("scale", "unknown").inc()
            return
        current = int(workload["spec"].get("replicas", 1))
        wanted = desired(current, load, bounds)
        if wanted != current:
            self._write(resource, workload, wanted, f"{load:.0%} of the requested CPU in use")

    def _pods(self, workload: Mapping[str, Any]) -> list[PodRecord]:
        """The workload's live pods."""
        metadata = workload["metadata"]
        selector = read_label_selector(Field("workload", "spec.selector", workload["spec"].get("selector")))
        return [
            pod
            for pod in list(self._cluster.pods.values())
            if pod.namespace == metadata["namespace"]
            and not pod.finished
            and not pod.terminating
            and selector is not None
            and selector.matches(pod.labels)
        ]

    def _bounds(self, pods: list[PodRecord], annotations: Mapping[str, str]) -> ReplicasAction | None:
        """The policy's bounds, narrowed by the workload's own annotations; None where nothing may be done."""
        actions = self._authority.actions(pods[0]) if pods else None
        if actions is None or not actions.replicas.enabled:
            return None
        bounds = actions.replicas
        own = {key: int(v) for key in (LOWEST, HIGHEST) if (v := annotations.get(key, "")).isdecimal()}
        lowest = max(bounds.lowest, own.get(LOWEST, bounds.lowest))
        highest = min(bounds.highest, own.get(HIGHEST, bounds.highest))
        return bounds.model_copy(update={"lowest": lowest, "highest": highest}) if lowest <= highest else None

    def _write(self, resource: Resource, workload: Mapping[str, Any], replicas: int, note: str) -> None:
        metadata = workload["metadata"]
        try:
            self._api.scale(resource, metadata["name"], metadata["namespace"], replicas)
        except (Conflict, NotFound):
            ACTUATIONS.labels("scale", "conflict").inc()
            return
        ACTUATIONS.labels("scale", "done").inc()
        about = Regarding("apps/v1", resource.kind, metadata["name"], metadata["uid"], metadata["namespace"])
        self._events.emit(about, "Scaled", "Scale", f"{replicas} replicas: {note}")


def utilisation(pods: list[PodRecord], use: Mapping[tuple[str, str], float]) -> float | None:
    """CPU use / request over the ready pods; None while any of them is unknown or asks for nothing."""
    ready = [pod for pod in pods if pod.status.ready]
    asked = [pod.requests.get("cpu", 0) / 1000 for pod in ready]
    used = [use.get((pod.namespace, pod.name)) for pod in ready]
    known = [u for u in used if u is not None and math.isfinite(u)]
    if not ready or len(known) < len(ready) or min(asked) <= 0:
        return None
    return sum(known) / sum(asked)


def _settled(workload: Mapping[str, Any]) -> bool:
    """Whether no rollout or earlier scaling is under way."""
    status, spec = workload.get("status") or {}, workload["spec"]
    wanted = spec.get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    return bool(
        seen and wanted > 0 and status.get("readyReplicas", 0) == status.get("updatedReplicas", 0) == wanted
    )
