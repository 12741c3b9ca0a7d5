# SPDX-License-Identifier: Apache-2.0
"""The new cpu and memory of a pod's containers when a policy asks for a fraction of what they requested.

What `pods/resize` demands (kubernetes v1.36, ValidatePodResize) holds before a call is made: only cpu and
memory, the QoS class stays, no request or limit is added or removed, no request above its limit. On top of
it:

- a resource is touched only where the policy allows it, within its smallest and largest factor;
- limits follow their request by the same factor, rounded up like it, so that equal ones stay equal and
  unequal ones unequal, which keeps the QoS class; without a limit only the request is touched;
- never below what the pod's app is known to use, plus a margin; of unknown use nothing is taken;
- LimitRange and ResourceQuota of the namespace are respected.

Where one of these cannot hold, the answer is a `Refusal` with its reason and the pod keeps what it asked for.
Memory in bytes, cpu in cores, both as exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from shoal_common.quantity import parse_quantity
from shoal_common.requests import ContainerResources, ResourceList

RESOURCES = ("cpu", "memory")
SMALLEST: ResourceList = {"cpu": Fraction(10, 1000), "memory": Fraction(16 * 2**20)}
"""No container is cut below these."""

GRAIN: ResourceList = {"cpu": Fraction(1, 1000), "memory": Fraction(1)}
MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class QuotaBounds:
    """Smallest and largest factor on a pod's request of each resource that may be touched at all."""

    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)
    usage_margin: Mapping[str, float] = field(default_factory=dict)  # cut to no less than use * (1 + margin)


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """The namespace's own rules: items of its LimitRanges, and what is left of each ResourceQuota."""

    limit_ranges: Sequence[Mapping[str, Any]] = ()  # elements of spec.limits
    headroom: Sequence[ResourceList] = ()  # hard - used by quota key (requests.cpu, limits.memory, ...)


@dataclass(frozen=True, slots=True)
class Resize:
    """What to write: `containers` as the resize patch takes it; empty when nothing changes."""

    containers: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod keeps what it asked for: a short reason for metrics, and a sentence."""

    reason: str
    sentence: str


def resize(
    pod: Mapping[str, Any],
    factors: Mapping[str, float],
    bounds: QuotaBounds,
    used: Mapping[str, float | None],
    limits: NamespaceLimits = NamespaceLimits(),
) -> Resize | Refusal:
    """The resize of a pod (its API object) by factors on its requests.

    `used` is what the pod's app is known to use of each resource (cores, bytes), None where unknown.
    """
    unfit = _unfit(pod)
    if unfit:
        return Refusal("unsupported", unfit)
    before = [_resources(c) for c in pod["spec"]["containers"]]
    after = list(before)
    for resource in RESOURCES:
        if resource in bounds.low and math.isfinite(factors.get(resource, 1.0)):
            after = _scaled(
                after, resource, _factor(resource, factors, bounds), _floor(used, resource, bounds)
            )
    broken = _broken(before, after, limits)
    if broken is not None:
        return broken
    names = (c["name"] for c in pod["spec"]["containers"])
    return Resize(tuple(_patch(n, b, a) for n, b, a in zip(names, before, after, strict=True) if a != b))


def _unfit(pod: Mapping[str, Any]) -> str:
    spec, annotations = pod["spec"], pod["metadata"].get("annotations") or {}
    if MIRROR in annotations:
        return "a static pod cannot be resized"
    if (spec.get("os") or {}).get("name") == "windows":
        return "a Windows pod cannot be resized"
    if spec.get("resources"):
        return "the pod sets resources for the pod as a whole"
    return ""


def _resources(container: Mapping[str, Any]) -> ContainerResources:
    resources = container.get("resources") or {}
    requests, limits = (
        {k: parse_quantity(v) for k, v in (resources.get(side) or {}).items()}
        for side in ("requests", "limits")
    )
    sidecar = container.get("restartPolicy") == "Always"
    return ContainerResources(requests, limits, sidecar)


def _factor(resource: str, factors: Mapping[str, float], bounds: QuotaBounds) -> Fraction:
    wanted = min(max(factors.get(resource, 1.0), bounds.low[resource]), bounds.high[resource])
    return Fraction(wanted).limit_denominator(1000)


def _floor(used: Mapping[str, float | None], resource: str, bounds: QuotaBounds) -> Fraction | None:
    use = used.get(resource)
    return (
        None
        if use is None or not math.isfinite(use)
        else Fraction(use) * Fraction(1 + bounds.usage_margin.get(resource, 0.0))
    )


def _scaled(
    containers: Sequence[ContainerResources], resource: str, factor: Fraction, floor: Fraction | None
) -> list[ContainerResources]:
    """All containers by one factor, raised so far that together they keep the floor."""
    asked = sum((c.requests.get(resource, Fraction(0)) for c in containers), Fraction(0))
    if factor < 1:
        needed = min(floor / asked, Fraction(1)) if floor is not None and asked else Fraction(1)
        factor = max(factor, needed)
    return [_scale(c, resource, factor) for c in containers]


def _scale(container: ContainerResources, resource: str, factor: Fraction) -> ContainerResources:
    asked, limit = container.requests.get(resource), container.limits.get(resource)
    if not asked or factor == 1:
        return container
    wanted = max(_grains(asked * factor, resource), min(asked, SMALLEST[resource]))
    requests = {**container.requests, resource: wanted}
    if limit is None:
        return ContainerResources(requests, container.limits, container.sidecar)
    limits = {**container.limits, resource: _grains(limit * wanted / asked, resource)}
    return ContainerResources(requests, limits, container.sidecar)


def _grains(amount: Fraction, resource: str) -> Fraction:
    """Rounded up to what the API keeps: 1m of cpu, one byte."""
    return math.ceil(amount / GRAIN[resource]) * GRAIN[resource]


def _broken(
    before: Sequence[ContainerResources],
    after: Sequence[ContainerResources],
    limits: NamespaceLimits,
) -> Refusal | None:
    for item in limits.limit_ranges:
        sentence = _outside(item, after)
        if sentence:
            return Refusal("limit_range", sentence)
    growth = _growth(before, after)
    for left in limits.headroom:
        for key, amount in left.items():
            if growth.get(key, Fraction(0)) > max(amount, Fraction(0)):
                return Refusal("quota", f"the namespace's quota of {key} has no room for the growth")
    return None


def _outside(item: Mapping[str, Any], containers: Sequence[ContainerResources]) -> str:
    """Which rule of a LimitRange item the containers break, "" for none."""
    if item.get("type") == "Container":
        subjects = [(c.requests, c.limits) for c in containers]
    elif item.get("type") == "Pod":
        subjects = [(_sum(c.requests for c in containers), _sum(c.limits for c in containers))]
    else:
        return ""
    least, most, ratio = (_quantities(item.get(k)) for k in ("min", "max", "maxLimitRequestRatio"))
    for requests, limits in subjects:
        for resource in RESOURCES:
            asked, limit = requests.get(resource), limits.get(resource)
            if asked is not None and asked < least.get(resource, Fraction(0)):
                return f"{resource} would be below the LimitRange's min"
            if resource in most and max(asked or 0, limit or 0) > most[resource]:
                return f"{resource} would be above the LimitRange's max"
            if resource in ratio and asked and limit and limit / asked > ratio[resource]:
                return f"the limit of {resource} would be too far above its request for the LimitRange"
    return ""


def _growth(before: Sequence[ContainerResources], after: Sequence[ContainerResources]) -> ResourceList:
    """How much more the pod would count against each quota key."""
    grown: dict[str, Fraction] = {}
    for resource in RESOURCES:
        for side in ("requests", "limits"):
            old, new = (
                sum((getattr(c, side).get(resource, Fraction(0)) for c in group), Fraction(0))
                for group in (before, after)
            )
            grown[f"{side}.{resource}"] = new - old
        grown[resource] = grown[f"requests.{resource}"]
    return grown


def _quantities(source: Mapping[str, Any] | None) -> ResourceList:
    return {key: parse_quantity(value) for key, value in (source or {}).items()}


def _sum(lists: Iterable[ResourceList]) -> ResourceList:
    total: dict[str, Fraction] = {}
    for resources in lists:
        for resource, amount in resources.items():
            total[resource] = total.get(resource, Fraction(0)) + amount
    return total


def _patch(name: str, before: ContainerResources, after: ContainerResources) -> Mapping[str, Any]:
    resources = {}
    for side in ("requests", "limits"):
        old, new = getattr(before, side), getattr(after, side)
        changed = {r: text(r, new[r]) for r in RESOURCES if r in new and new[r] != old[r]}
        if changed:
            resources[side] = changed
    return {"name": name, "resources": resources}


def text(resource: str, amount: Fraction) -> str:
    """A quantity as the API takes it: millicores, bytes."""
    return f"{math.ceil(amount * 1000)}m" if resource == "cpu" else str(math.ceil(amount))


def headroom(quotas: Iterable[Mapping[str, Any]]) -> tuple[ResourceList, ...]:
    """What each ResourceQuota (API object) has left by key; a scoped one counts as if it always applied."""
    left = []
    for quota in quotas:
        status = quota.get("status") or {}
        hard = _quantities(status.get("hard") or quota["spec"].get("hard"))
        used = _quantities(status.get("used"))
        left.append({key: amount - used.get(key, Fraction(0)) for key, amount in hard.items()})
    return tuple(left)
