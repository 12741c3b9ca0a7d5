# SPDX-License-Identifier: Apache-2.0
"""Subresources that are acts rather than objects: binding, eviction, scale; and access reviews.

Source: pkg/registry/core/pod/storage/storage.go (BindingREST), eviction.go, pkg/registry/autoscaling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal_simulations.control_plane.failures import ApiError, bad_request, conflict, invalid
from shoal_simulations.control_plane.query import selects
from shoal_simulations.control_plane.registry import Registry
from shoal_simulations.control_plane.store import Key

Content = Mapping[str, Any]


CREATED = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Success",
    "code": 201,
}
"""The Status that a successful act answers."""


def with_condition(status: Content, condition: Content) -> dict[str, Any]:
    """A status with a condition set; its transition time stays where its value does."""
    kind = condition["type"]
    before: Content = next((c for c in status.get("conditions") or () if c["type"] == kind), {})
    kept = [c for c in status.get("conditions") or () if c["type"] != kind]
    since = {}
    if before.get("status") == condition["status"] and "lastTransitionTime" in before:
        since = {"lastTransitionTime": before["lastTransitionTime"]}
    return {**status, "conditions": [*kept, {**condition, **since}]}


def bind(registry: Registry, key: Key, binding: Content) -> dict[str, Any]:
    """Assign a pod to a node.

    Raises:
        ApiError: 400 without a target, 404, 409 where the pod is bound, gated, going or another one.
    """
    target = (binding.get("target") or {}).get("name")
    if not target:
        raise bad_request("target.name: Required value")
    pods = registry.resource("pods")
    with registry.store.lock:
        pod = registry.store.get(pods, key).content
        _check_bindable(pod, binding.get("metadata") or {})
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        conditions = {**scheduled, "lastTransitionTime": registry.now()}
        spec = {**pod["spec"], "nodeName": target}
        metadata = registry.with_topology(pod["metadata"], target)
        added = (binding.get("metadata") or {}).get("annotations")
        if added:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **added}
        status = with_condition(pod["status"], conditions)
        registry.store.replace(pods, key, {**pod, "metadata": metadata, "spec": spec, "status": status})
    return dict(CREATED)


def _check_bindable(pod: Content, binding: Content) -> None:
    metadata, spec, name = pod["metadata"], pod["spec"], pod["metadata"]["name"]
    if binding.get("uid") and binding["uid"] != metadata["uid"]:
        why = f"Precondition failed: UID in precondition: {binding['uid']}, "
        why += f"UID in object meta: {metadata['uid']}"
        raise conflict("pods", name, why)
    if metadata.get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")


def evict(registry: Registry, key: Key, eviction: Content) -> dict[str, Any]:
    """Delete a pod unless a disruption budget forbids it.

    Raises:
        ApiError: 404, 409 (preconditions), 429 (the budget), 500 (two budgets).
    """
    options = eviction.get("deleteOptions") or {}
    pods = registry.resource("pods")
    with registry.store.lock:
        pod = registry.store.get(pods, key).content
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
            _spend_budget(registry, pod)
        if not options.get("dryRun"):
            evicted = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastProbeTime": None,
                "lastTransitionTime": registry.now(),
            }
            registry.store.replace(
                pods,
                key,
                {**pod, "metadata": dict(pod["metadata"]), "status": with_condition(pod["status"], evicted)},
            )
            registry.delete(pods, key, options)
    return dict(CREATED)


def _spend_budget(registry: Registry, pod: Content) -> None:
    budgets = registry.resource("poddisruptionbudgets")
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    matching = [
        (key, stored.content)
        for key, stored in registry.store.items(budgets)
        if key[0] == namespace and selects(stored.content["spec"].get("selector"), pod)
    ]
    if len(matching) > 1:
        text = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise ApiError(500, "InternalError", text)
    for key, budget in matching:
        covered = [
            p.content
            for k, p in registry.store.items(registry.resource("pods"))
            if k[0] == namespace and selects(budget["spec"].get("selector"), p.content)
        ]
        status = disruption_status(budget["spec"], covered)
        spent = {**budget, "metadata": dict(budget["metadata"]), "status": status}
        if status["disruptionsAllowed"] <= 0:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            cause = (
                f"The disruption budget {key[1]} needs {status['desiredHealthy']} healthy pods and has "
                f"{status['currentHealthy']} currently"
            )
            causes = [{"reason": "DisruptionBudget", "message": cause}]
            raise ApiError(429, "TooManyRequests", message, {"name": name, "causes": causes})
        status["disruptionsAllowed"] -= 1
        registry.store.replace(budgets, key, spent)


def disruption_status(spec: Content, covered: list[Content]) -> dict[str, Any]:
    """How many of these pods may go now."""
    expected = [p for p in covered if p["status"].get("phase") not in ("Succeeded", "Failed")]
    healthy = sum(_is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in expected)
    if "minAvailable" in spec:
        desired = _share(spec["minAvailable"], len(expected))
    else:
        desired = max(0, len(expected) - _share(spec.get("maxUnavailable", 0), len(expected)))
    counts = {"expectedPods": len(expected), "currentHealthy": healthy, "desiredHealthy": desired}
    return {**counts, "disruptionsAllowed": max(0, healthy - desired)}


def _share(amount: int | str, total: int) -> int:
    if isinstance(amount, str):
        return math.ceil(int(amount.rstrip("%")) * total / 100)
    return amount


def _is_ready(pod: Content) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def scale_of(content: Content) -> dict[str, Any]:
    """The Scale object of a workload."""
    metadata, spec, status = content["metadata"], content.get("spec", {}), content.get("status", {})
    kept = {
        k: metadata[k]
        for k in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if k in metadata
    }
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": kept,
        "spec": {"replicas": spec.get("replicas", 1)},
        "status": {
            "replicas": status.get("replicas", 0),
            "selector": ",".join(f"{k}={v}" for k, v in sorted(labels.items())),
        },
    }


def rescaled(content: Content, scale: Content) -> dict[str, Any]:
    """A workload with the replicas of a Scale object.

    Raises:
        ApiError: 422, the count is no whole number from 0.
    """
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        why = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid("Scale.autoscaling", content["metadata"]["name"], ("spec.replicas", why))
    version = (scale.get("metadata") or {}).get("resourceVersion", content["metadata"]["resourceVersion"])
    metadata = {**content["metadata"], "resourceVersion": version}
    return {**content, "metadata": metadata, "spec": {**content.get("spec", {}), "replicas": replicas}}


def verb_of(method: str, name: str, *, watch: bool) -> str:
    """The RBAC verb of a request."""
    if method == "GET":
        return "watch" if watch else ("get" if name else "list")
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]
