# SPDX-License-Identifier: Apache-2.0
"""Admission of pods by namespace: LimitRange defaults and ResourceQuota.

Source: plugin/pkg/admission/limitranger and resourcequota. Of quotas: requests, limits and counts of pods
without scopes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from shoal_common.quantity import parse_quantity
from shoal_simulations.control_plane.failures import forbidden
from shoal_simulations.control_plane.pod_rules import containers, quantities
from shoal_simulations.control_plane.resources import Resource
from shoal_simulations.control_plane.store import Store

Content = Mapping[str, Any]


def _in_namespace(store: Store, resource: Resource, pod: Content) -> Iterator[Content]:
    namespace = pod["metadata"]["namespace"]
    return (stored.content for key, stored in store.items(resource) if key[0] == namespace)


def limit_range(store: Store, ranges: Resource, pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with a namespace's default requests and limits.

    Raises:
        ApiError: 403, a container is outside of the bounds.
    """
    lines = [
        line
        for found in _in_namespace(store, ranges, pod)
        for line in found["spec"]["limits"]
        if line["type"] == "Container"
    ]
    if not lines:
        return pod
    pod = copy.deepcopy(pod)
    for container in containers(pod["spec"]):
        for line in lines:
            _default(container, line)
            _check_bounds(pod["metadata"].get("name", ""), container["resources"], line)
    return pod


def _default(container: dict[str, Any], line: Content) -> None:
    """LimitRange fills limits first; requests without a default follow the container's own limits."""
    resources = container.setdefault("resources", {})
    own_limits = dict(resources.get("limits") or {})
    requests = {
        **line.get("defaultRequest", line.get("default", {})),
        **own_limits,
        **(resources.get("requests") or {}),
    }
    limits = {**line.get("default", {}), **own_limits}
    resources.update({side: held for side, held in (("limits", limits), ("requests", requests)) if held})


def _check_bounds(pod: str, resources: Content, line: Content) -> None:
    for bound, side, outside in (("max", "limits", "maximum"), ("min", "requests", "minimum")):
        for name, text in line.get(bound, {}).items():
            amount = quantities(resources, side).get(name)
            edge = parse_quantity(text)
            if amount is not None and (amount > edge if bound == "max" else amount < edge):
                given = f"{side[:-1]} is {resources[side][name]}"
                why = f"{outside} {name} usage per Container is {text}, but {given}"
                raise forbidden("pods", pod, why)


def check_quota(store: Store, quotas: Resource, pods: Resource, new: Content, old: Content | None) -> None:
    """Refuse a pod, or its resize from `old`, that would exceed a quota of its namespace.

    Raises:
        ApiError: 403.
    """
    name = new["metadata"]["name"]
    found = list(_in_namespace(store, quotas, new))
    if not found:
        return
    others = [
        pod
        for pod in _in_namespace(store, pods, new)
        if pod["metadata"]["name"] != name and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    for quota in found:
        for key, text in quota["spec"].get("hard", {}).items():
            used = sum((_charge(pod, key) for pod in others), Fraction(0))
            before = _charge(old, key) if old else Fraction(0)
            asked = _charge(new, key)
            if asked > before and used + asked > parse_quantity(text):
                why = (
                    f"exceeded quota: {quota['metadata']['name']}, requested: {key}="
                    f"{float(asked - before):g}, used: {key}={float(used + before):g}, limited: {key}={text}"
                )
                raise forbidden("pods", name, why)


def _charge(pod: Content, key: str) -> Fraction:
    """What a pod counts for a line of a quota: `cpu` is short for `requests.cpu`."""
    if key in ("pods", "count/pods"):
        return Fraction(1)
    side, _, resource = (
        key.partition(".") if key.startswith(("requests.", "limits.")) else ("requests", "", key)
    )
    held = (quantities(c.get("resources") or {}, side) for c in pod["spec"].get("containers") or ())
    return sum((amounts.get(resource, Fraction(0)) for amounts in held), Fraction(0))
