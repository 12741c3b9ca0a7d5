# SPDX-License-Identifier: Apache-2.0
"""Effective pod requests and the QoS class, as kube-scheduler computes them.

Source: component-helpers/resource/helpers.go (PodRequests) and pkg/apis/core/v1/helper/qos, kubernetes v1.36.
All sums are exact fractions; rounding happens once, at the end (cpu up to 1m, everything else up to 1).
Defaulting requests from limits is the API server's work and is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from shoal_common.quantity import milli_value, value

ResourceList = Mapping[str, Fraction]

DEFAULT_CPU = Fraction(100, 1000)
DEFAULT_MEMORY = Fraction(200 * 2**20)
NON_MISSING: ResourceList = {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY}


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """Requests and limits of one container, and what the kubelet reports where it resizes in place."""

    requests: ResourceList = field(default_factory=dict)
    limits: ResourceList = field(default_factory=dict)
    sidecar: bool = False
    actuated: ResourceList | None = None  # status.resources.requests
    allocated: ResourceList | None = None  # status.allocatedResources


@dataclass(frozen=True)
class PodResources:
    """Everything that a pod's effective requests and its QoS class depend on; both are computed once.

    Requests are rounded: cpu in millicores, others in bytes or counts.
    """

    containers: tuple[ContainerResources, ...] = ()
    init_containers: tuple[ContainerResources, ...] = ()
    overhead: ResourceList = field(default_factory=dict)
    pod_requests: ResourceList = field(default_factory=dict)  # spec.resources
    pod_limits: ResourceList = field(default_factory=dict)
    resize_infeasible: bool = False

    @cached_property
    def requests(self) -> dict[str, int]:
        """Effective requests."""
        return rounded(effective_requests(self))

    @cached_property
    def nonzero_requests(self) -> dict[str, int]:
        """Effective requests where containers without cpu (memory) count 100m (200Mi): for scoring only."""
        return rounded(effective_requests(self, NON_MISSING))

    @cached_property
    def nonzero_bound_requests(self) -> dict[str, int]:
        """The same as a node counts them once the pod is bound: pod-level requests switch defaults off."""
        return rounded(effective_requests(self, bound_defaults(self)))

    @cached_property
    def qos(self) -> str:
        """Guaranteed, Burstable or BestEffort."""
        return qos_class(self)


def effective_requests(pod: PodResources, defaults: ResourceList | None = None) -> dict[str, Fraction]:
    """The pod's requests by resource, unrounded.

    `defaults` gives what each container without such a request is counted with (the "non-zero" variant);
    an explicit 0 stays 0.
    """

    def of(container: ContainerResources) -> ResourceList:
        requests = _container_requests(container, pod.resize_infeasible)
        return requests if defaults is None else {**defaults, **requests}

    total = _largest((_running(pod, of), _initialising(pod, of)))
    total.update({name: q for name, q in pod.pod_requests.items() if _pod_level(name)})
    return _sum((total, pod.overhead))


def bound_defaults(pod: PodResources) -> ResourceList:
    """What the containers of a bound pod count with where they ask for nothing, for the "non-zero" sums.

    Under pod-level requests only what the whole pod leaves out; a pending pod always counts NON_MISSING
    (calculatePodResourceRequest does not look).
    """
    if not any(map(_pod_level, pod.pod_requests)):
        return NON_MISSING
    known = effective_requests(pod)
    return {name: quantity for name, quantity in NON_MISSING.items() if name not in known}


def _container_requests(container: ContainerResources, infeasible: bool) -> ResourceList:
    if container.actuated is None:
        return container.requests
    known = (container.actuated, container.allocated or {})
    return _largest(known if infeasible else (container.requests, *known))


def _running(pod: PodResources, of: Callable[[ContainerResources], ResourceList]) -> dict[str, Fraction]:
    sidecars = [c for c in pod.init_containers if c.sidecar]
    return _sum(of(container) for container in (*pod.containers, *sidecars))


def _initialising(pod: PodResources, of: Callable[[ContainerResources], ResourceList]) -> dict[str, Fraction]:
    """The most that is in use while any init container runs: its own, and the sidecars declared before it."""
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in pod.init_containers:
        use = _sum((sidecars, of(container)))
        if container.sidecar:
            sidecars = use
        peak = _largest((peak, use))
    return peak


def _pod_level(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def _sum(lists: Iterable[ResourceList]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for resources in lists:
        for name, quantity in resources.items():
            total[name] = total.get(name, Fraction(0)) + quantity
    return total


def _largest(lists: Iterable[ResourceList]) -> dict[str, Fraction]:
    most: dict[str, Fraction] = {}
    for resources in lists:
        for name, quantity in resources.items():
            most[name] = max(most.get(name, quantity), quantity)
    return most


def rounded(resources: ResourceList) -> dict[str, int]:
    """Whole scheduler units: cpu in millicores, bytes or counts for everything else, rounded up."""
    return {name: milli_value(q) if name == "cpu" else value(q) for name, q in resources.items()}


def qos_class(pod: PodResources) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory only; pod-level resources decide where set."""
    if pod.pod_requests or pod.pod_limits:
        pairs = [(pod.pod_requests, pod.pod_limits)]
    else:
        pairs = [(c.requests, c.limits) for c in (*pod.containers, *pod.init_containers)]
    counted = [q for pair in pairs for side in pair for name, q in side.items() if name in ("cpu", "memory")]
    if not any(counted):
        return "BestEffort"
    return "Guaranteed" if all(_guaranteed(requests, limits) for requests, limits in pairs) else "Burstable"


def _guaranteed(requests: ResourceList, limits: ResourceList) -> bool:
    return all(
        limits.get(name, Fraction(0)) > 0 and requests.get(name, limits[name]) == limits[name]
        for name in ("cpu", "memory")
    )
