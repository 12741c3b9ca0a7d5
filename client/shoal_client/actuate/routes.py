# SPDX-License-Identifier: Apache-2.0
"""The fast time scale of KaiS: where requests go, once each slot, through HTTPRoute backend weights.

For routes labelled `shoal.dev/dispatch=enabled` (gateway.networking.k8s.io/v1). The headroom of a backend is
the free share of CPU on the nodes of its ready pods, summed; weights move towards it in bounded steps
(`dispatch.py`). Where we differ from KaiS (see `scale.py`): the paper dispatches single requests by a trained
policy, a gateway takes weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.dispatch import TOTAL, rebalance
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.load import cpu_load
from shoal_client.kube.api import HTTP_ROUTES, SERVICES, Api, Conflict, NotFound
from shoal_client.metrics import ACTUATIONS
from shoal_client.policies.spec import RoutesAction
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord

OPT_IN = "shoal.dev/dispatch=enabled"
HYSTERESIS = 2
"""Weights are only written when one changes by so much: the gateway is reconfigured by every write."""

ABSENT_SECONDS = 300.0
"""Until a cluster without the Gateway API is asked again."""

Rule = Mapping[str, Any]


class Routes:
    """Moves the weights of labelled routes; `step` from one thread."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        cluster: LiveCluster,
        authority: Authority,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._leader, self._cluster, self._authority = api, leader, cluster, authority
        self._clock = clock
        self._next: dict[str, float] = {}  # route UID -> when its next slot begins
        self._absent_until = float("-inf")

    def step(self) -> None:
        """Move the weights of every route whose slot is over."""
        if self._clock() < self._absent_until:
            return
        try:
            routes = list(self._api.list(HTTP_ROUTES, labels=OPT_IN))
        except NotFound:
            self._absent_until = self._clock() + ABSENT_SECONDS
            return
        uids = {route["metadata"]["uid"] for route in routes}
        self._next = {uid: at for uid, at in self._next.items() if uid in uids}
        for route in routes:
            due = self._clock() >= self._next.get(route["metadata"]["uid"], 0.0)
            if due and self._leader.is_leader():
                self._move(route)

    def _move(self, route: Mapping[str, Any]) -> None:
        namespace = route["metadata"]["namespace"]
        rules = list(route["spec"].get("rules") or ())
        pods = {name: self._pods(namespace, name) for rule in rules for name in _services(rule, namespace)}
        bounds = self._bounds([pod for group in pods.values() for pod in group])
        if bounds is None:
            return
        self._next[route["metadata"]["uid"]] = self._clock() + bounds.slot_seconds
        headroom = {name: self._headroom(group) for name, group in pods.items()}
        after = [_rebalanced(rule, namespace, headroom, bounds) for rule in rules]
        if any(_moved(a, b) for a, b in zip(rules, after, strict=True)):
            self._write(route, after)

    def _pods(self, namespace: str, service: str) -> list[PodRecord]:
        """The ready pods behind a service; none where it is not there or selects nothing."""
        try:
            selector = self._api.get(SERVICES, service, namespace)["spec"].get("selector")
        except NotFound:
            return []
        wanted = set((selector or {}).items())
        return [
            pod
            for pod in list(self._cluster.pods.values())
            if wanted
            and pod.namespace == namespace
            and pod.status.ready
            and wanted <= set(pod.labels.items())
        ]

    def _bounds(self, pods: Sequence[PodRecord]) -> RoutesAction | None:
        """The bounds of the policy that serves all these pods; None where one of them may not be steered."""
        actions = [self._authority.actions(pod) for pod in pods]
        allowed = [a.routes for a in actions if a is not None and a.routes.enabled]
        if not allowed or len(allowed) < len(pods):
            return None
        return min(allowed, key=lambda bounds: bounds.largest_step)

    def _headroom(self, pods: Sequence[PodRecord]) -> float | None:
        """Free shares of CPU of the pods' nodes, summed; None where the backend has no ready pod."""
        loads = [cpu_load(self._cluster, pod.node_name) for pod in pods]
        return sum(max(0.0, 1.0 - load) for load in loads) if loads else None

    def _write(self, route: Mapping[str, Any], rules: Sequence[Rule]) -> None:
        metadata = route["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": {"rules": list(rules)}}
        try:
            self._api.patch(HTTP_ROUTES, metadata["name"], body, metadata["namespace"])
        except (Conflict, NotFound):
            ACTUATIONS.labels("dispatch", "conflict").inc()
            return
        ACTUATIONS.labels("dispatch", "done").inc()


def _services(rule: Rule, namespace: str) -> list[str]:
    """Names of a rule's backends that are services of the route's own namespace, one for each backend."""
    return [ref["name"] for ref in rule.get("backendRefs") or () if _is_service(ref, namespace)]


def _is_service(ref: Mapping[str, Any], namespace: str) -> bool:
    own = ref.get("namespace", namespace) == namespace
    return own and ref.get("kind", "Service") == "Service" and not ref.get("group")


def _rebalanced(
    rule: Rule, namespace: str, headroom: Mapping[str, float | None], bounds: RoutesAction
) -> Rule:
    refs = list(rule.get("backendRefs") or ())
    if len(refs) < 2:
        return rule
    free = [headroom.get(ref["name"]) if _is_service(ref, namespace) else None for ref in refs]
    weights = rebalance([ref.get("weight", 1) for ref in refs], free, bounds)
    return {**rule, "backendRefs": [{**r, "weight": w} for r, w in zip(refs, weights, strict=True)]}


def _moved(before: Rule, after: Rule) -> bool:
    """Whether any share of traffic, in hundredths, changes by enough to be written."""
    old = [ref.get("weight", 1) for ref in before.get("backendRefs") or ()]
    new = [ref["weight"] for ref in after.get("backendRefs") or () if "weight" in ref]
    whole = sum(old)
    if len(old) < 2 or whole <= 0:
        return False
    return any(abs(o * TOTAL / whole - n) >= HYSTERESIS for o, n in zip(old, new, strict=True))
