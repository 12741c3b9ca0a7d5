# SPDX-License-Identifier: Apache-2.0
"""The decision on a gated pod: the policy's nodes and quotas, within its SchedulingPolicy's action bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import msgspec

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.narrowing import MADE_AGAIN
from shoal_client.actuate.quotas import RESOURCES, NamespaceLimits, QuotaBounds, Refusal, headroom, resize
from shoal_client.kube.api import LIMIT_RANGES, RESOURCE_QUOTAS, Api
from shoal_client.metrics import ACTUATIONS
from shoal_client.placement import ContainerResize, Placing
from shoal_client.policies.spec import Actions
from shoal_client.state.live import LiveCluster
from shoal_common.pods import HOSTNAME, PodRecord

WIDTH = 3
"""Nodes that a pod is narrowed to: the best, and two for when it is full by then."""

KEPT_SECONDS = 2.0
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy wants for a pod: node names, best first, and factors on its requests."""

    nodes: Sequence[str]
    factors: Mapping[str, float]
    policy: str  # digest
    used: Mapping[str, float | None]  # cores and bytes that the pod's app is known to use


class Chooser(Protocol):
    """Asks the policy that is loaded."""

    def choose(self, pod: PodRecord) -> Choice | None:
        """Decide on a pod and hold its room back; None where the policy abstains."""

    def forget(self, uid: str) -> None:
        """Give the room held back for a pod free again."""


@final
class PolicyPlacer:
    """Turns a policy's choice into a placing that the API server and the namespace's own rules allow."""

    def __init__(
        self,
        api: Api,
        cluster: LiveCluster,
        authority: Authority,
        chooser: Chooser,
        exempt: Callable[[PodRecord], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._cluster, self._authority = api, cluster, authority
        self._chooser, self._exempt, self._clock = chooser, exempt, clock
        self._kept: dict[str, tuple[float, NamespaceLimits]] = {}

    def place(self, pod: PodRecord, raw: Mapping[str, Any]) -> Placing | None:
        """The decision on a pod, given its API object; None where no policy places it or it abstains."""
        actions = self._authority.actions(pod)
        if actions is None or not self._authority.places(pod) or self._exempt(pod):
            return None
        choice = self._chooser.choose(pod)
        if choice is None:
            return None
        result = resize(raw, choice.factors, _bounds(actions), choice.used, self._limits(pod.namespace))
        containers: tuple[ContainerResize, ...] = ()
        if isinstance(result, Refusal):
            ACTUATIONS.labels("resize", result.reason).inc()
        else:
            containers = msgspec.convert(result.containers, tuple[ContainerResize, ...])
        required = pod.owner_kind in MADE_AGAIN
        asked = {r: pod.requests[r] for r in RESOURCES if r in pod.requests} if containers else {}
        return Placing(pod.uid, self._hosts(choice.nodes), required, containers, choice.policy, asked)

    def forget(self, uid: str) -> None:
        """The decision on this pod will not be carried out."""
        self._chooser.forget(uid)

    def _hosts(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Host names of the best nodes; none where the best has no such label, which affinity goes by."""
        hosts: list[str] = []
        for name in nodes[:WIDTH]:
            node = self._cluster.nodes.get(name)
            host = node.labels.get(HOSTNAME) if node is not None else None
            if host is None and not hosts:
                return ()
            if host is not None:
                hosts.append(host)
        return tuple(hosts)

    def _limits(self, namespace: str) -> NamespaceLimits:
        """The namespace's rules, seconds old at most: the API server has the last word on its quotas."""
        since, limits = self._kept.get(namespace, (float("-inf"), NamespaceLimits()))
        if self._clock() - since >= KEPT_SECONDS:
            ranges = self._api.list(LIMIT_RANGES, namespace)
            items = tuple(item for r in ranges for item in r["spec"].get("limits") or ())
            limits = NamespaceLimits(items, headroom(self._api.list(RESOURCE_QUOTAS, namespace)))
            if len(self._kept) >= REMEMBERED:
                self._kept.clear()
            self._kept[namespace] = (self._clock(), limits)
        return limits


def _bounds(actions: Actions) -> QuotaBounds:
    quotas = {"cpu": actions.cpu_quota, "memory": actions.memory_quota}
    allowed = {resource: quota for resource, quota in quotas.items() if quota.enabled}
    return QuotaBounds(
        {r: q.lowest for r, q in allowed.items()},
        {r: q.highest for r, q in allowed.items()},
        {r: q.usage_margin for r, q in allowed.items()},
    )
