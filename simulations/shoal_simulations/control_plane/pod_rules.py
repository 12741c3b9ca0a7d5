# SPDX-License-Identifier: Apache-2.0
"""What the API server fills into pods and what it refuses: only the rules that a scheduler lives by.

Source: pkg/apis/core/v1/defaults.go, validation/validation.go (ValidatePodUpdate, ValidatePodResize),
pkg/registry/core/pod/strategy.go, the admission plugins Priority, DefaultTolerationSeconds and podresize.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from shoal_common.errors import InputError
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.pods import PodRecord
from shoal_common.quantity import parse_quantity
from shoal_simulations.control_plane.failures import forbidden, invalid

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
CONTAINER_LISTS = ("containers", "initContainers")
UPDATE_RULE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
    "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)
TOLERATION_SECONDS = 300
NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def record(pod: Mapping[str, Any]) -> PodRecord:
    """The slim record of a pod.

    Raises:
        ApiError: 422, a field cannot be read.
    """
    try:
        return read_pod(Field("pod", "", pod))
    except InputError as error:
        name = str(pod.get("metadata", {}).get("name", ""))
        raise invalid("Pod", name, (error.field, f"{error.problem}; {error.remedy}")) from error


def complete(pod: dict[str, Any], priorities: Mapping[str, int], now: str) -> dict[str, Any]:
    """A new pod with the server's defaults and a fresh status; the argument is not changed.

    Raises:
        ApiError: 422 for a wrong field, 403 for an unknown priority class.
    """
    pod = copy.deepcopy(pod)
    spec: dict[str, Any] = pod.setdefault("spec", {})
    for key, value in (
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("terminationGracePeriodSeconds", 30),
        ("enableServiceLinks", True),
        ("securityContext", {}),
    ):
        spec.setdefault(key, value)
    for container in containers(spec):
        _complete_container(container)
    _set_priority(pod, priorities)
    _tolerate(spec)
    validate(pod)
    pod["status"] = {"phase": "Pending", "qosClass": record(pod).qos, **gate_status(spec, now)}
    return pod


def containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Containers and init containers of a pod."""
    return [container for key in CONTAINER_LISTS for container in spec.get(key) or ()]


def gate_status(spec: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The condition of a pod whose gates keep the scheduler away; nothing without gates."""
    if not spec.get("schedulingGates"):
        return {}
    message = "Scheduling is blocked due to non-empty scheduling gates"
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
    return {"conditions": [{**gated, "lastProbeTime": None, "lastTransitionTime": now}]}


def _complete_container(container: dict[str, Any]) -> None:
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", "IfNotPresent")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")


def _set_priority(pod: dict[str, Any], priorities: Mapping[str, int]) -> None:
    spec, name = pod["spec"], pod["spec"].get("priorityClassName", "")
    known = {**SYSTEM_PRIORITIES, **priorities}
    if name and name not in known:
        raise forbidden(
            "pods", pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found"
        )
    spec["priority"] = known[name] if name else spec.get("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _tolerate(spec: dict[str, Any]) -> None:
    """Pods stay five minutes on a node that fails, unless they say otherwise."""
    tolerations = list(spec.get("tolerations") or ())
    for key in NOT_READY:
        if not any(t.get("key") in (key, None, "") and t.get("effect") != "NoSchedule" for t in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append({**added, "tolerationSeconds": TOLERATION_SECONDS})
    spec["tolerations"] = tolerations


def validate(pod: Mapping[str, Any]) -> None:
    """Refuse a pod whose containers or resources are wrong.

    Raises:
        ApiError: 422 naming the field.
    """
    name, spec = str(pod["metadata"].get("name", "")), pod["spec"]
    if not spec.get("containers"):
        raise invalid("Pod", name, ("spec.containers", "Required value"))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        raise invalid(
            "Pod",
            name,
            ("spec.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared"),
        )
    for key in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(key) or ()):
            path = f"spec.{key}[{index}]"
            for required in ("name", "image"):
                if not container.get(required):
                    raise invalid("Pod", name, (f"{path}.{required}", "Required value"))
            _validate_resources(name, path, container.get("resources") or {})


def _validate_resources(pod: str, path: str, resources: Mapping[str, Any]) -> None:
    for side in ("limits", "requests"):
        for resource, text in (resources.get(side) or {}).items():
            where = f"{path}.resources.{side}[{resource}]"
            try:
                amount = parse_quantity(text)
            except ValueError as error:
                raise invalid("Pod", pod, (where, f"Invalid value: {text!r}: {error}")) from error
            if amount < 0:
                raise invalid(
                    "Pod", pod, (where, f"Invalid value: {text!r}: must be greater than or equal to 0")
                )
    limits, requests = quantities(resources, "limits"), quantities(resources, "requests")
    for resource, request in requests.items():
        where, limit = f"{path}.resources.requests", limits.get(resource)
        extended = "/" in resource and not resource.startswith("kubernetes.io/")
        if extended and limit is None:
            limits_path = f"{path}.resources.limits"
            raise invalid(
                "Pod",
                pod,
                (limits_path, "Required value: Limit must be set for non overcommitable resources"),
            )
        rule = "" if limit is None or request <= limit else "less than or equal to"
        rule = "equal to" if extended and request != limit else rule
        if rule:
            asked, of = resources["requests"][resource], f" of {resources['limits'][resource]}"
            raise invalid(
                "Pod", pod, (where, f'Invalid value: "{asked}": must be {rule} {resource} limit{of}')
            )


def quantities(resources: Mapping[str, Any], side: str) -> dict[str, Fraction]:
    """Requests or limits of a container as exact numbers."""
    return {name: parse_quantity(text) for name, text in (resources.get(side) or {}).items()}


def validate_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse a change of what a pod keeps for life.

    Raises:
        ApiError: 422.
    """
    name = str(new["metadata"]["name"])
    gated = bool(old["spec"].get("schedulingGates"))
    known = {gate["name"] for gate in old["spec"].get("schedulingGates") or ()}
    for index, gate in enumerate(new["spec"].get("schedulingGates") or ()):
        if gate["name"] not in known:
            why = f"Forbidden: only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            raise invalid("Pod", name, (f"spec.schedulingGates[{index}].name", why))
    if gated:
        _validate_gated_update(name, old["spec"], new["spec"])
    if _fixed(old["spec"], gated) != _fixed(new["spec"], gated):
        raise invalid("Pod", name, ("spec", UPDATE_RULE))
    kept = new["spec"].get("tolerations") or ()
    if any(toleration not in kept for toleration in old["spec"].get("tolerations") or ()):
        raise invalid("Pod", name, ("spec.tolerations", "Forbidden: existing toleration can not be modified"))


def _fixed(spec: Mapping[str, Any], gated: bool) -> dict[str, Any]:
    """The part of a spec that no update may touch."""
    free = {"schedulingGates", "activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"}
    free |= {"ephemeralContainers"} | ({"nodeSelector", "affinity"} if gated else set())
    kept = {key: value for key, value in spec.items() if key not in free}
    for key in CONTAINER_LISTS:
        if kept.get(key):
            kept[key] = [{k: v for k, v in c.items() if k != "image"} for c in kept[key]]
    return kept


def _validate_gated_update(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """A gated pod may only become pickier about its node (KEP-3838)."""
    before, after = old.get("nodeSelector") or {}, new.get("nodeSelector") or {}
    if any(after.get(key) != value for key, value in before.items()):
        shown = json.dumps(after, separators=(",", ":"), sort_keys=True)
        rule = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        why = f"Invalid value: {shown}: {rule}"
        raise invalid("Pod", name, ("spec.nodeSelector", why))
    old_terms, new_terms = _terms(old), _terms(new)
    if old_terms is None:
        return
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if new_terms is None or len(old_terms) != len(new_terms):
        raise invalid(
            "Pod",
            name,
            (path, "Invalid value: no additions/deletions to non-empty NodeSelectorTerms list are allowed"),
        )
    for was, now in zip(old_terms, new_terms, strict=True):
        for key in ("matchExpressions", "matchFields"):
            if any(line not in (now.get(key) or ()) for line in was.get(key) or ()):
                why = "Invalid value: only additions are allowed (no mutations or deletions)"
                raise invalid("Pod", name, (f"{path}.{key}", why))


def _terms(spec: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    return list(required.get("nodeSelectorTerms") or ()) if required else None


def resized(
    old: Mapping[str, Any], new: Mapping[str, Any], allocatable: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The pod after a resize: only cpu and memory of its containers can change, never its QoS class.

    `allocatable` is that of the pod's node, None while it is unbound.

    Raises:
        ApiError: 422 for a change that resize does not allow, 403 for more than the node could ever give.
    """
    name = str(old["metadata"]["name"])
    pod: dict[str, Any] = copy.deepcopy(dict(old))
    for key in CONTAINER_LISTS:
        wanted = {c["name"]: c for c in new["spec"].get(key) or ()}
        for index, container in enumerate(pod["spec"].get(key) or ()):
            asked = wanted.get(container["name"], container)
            path = f"spec.{key}[{index}].resources"
            _validate_resize(name, path, container.get("resources") or {}, asked.get("resources") or {})
            for part in ("resources", "resizePolicy"):
                if part in asked:
                    container[part] = copy.deepcopy(asked[part])
    validate(pod)
    before, after = record(old), record(pod)
    if before.qos != after.qos:
        why = f'Invalid value: "{before.qos}": Pod QOS Class may not change as a result of resizing'
        raise invalid("Pod", name, ("spec", why))
    for resource, text in (allocatable or {}).items():
        if resource in ("cpu", "memory"):
            _within_node(name, resource, after.requests.get(resource, 0), text)
    return pod


def _validate_resize(pod: str, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    sides = {side: (quantities(old, side), quantities(new, side)) for side in ("requests", "limits")}
    removed = [
        (f"{path}.{side}", f"Forbidden: resource {side} cannot be removed")
        for side, (before, after) in sides.items()
        if any(name in ("cpu", "memory") for name in set(before) - set(after))
    ]
    if removed:
        raise invalid("Pod", pod, *removed)
    for before, after in sides.values():
        if any(before.get(r) != after.get(r) for r in {*before, *after} if r not in ("cpu", "memory")):
            raise invalid("Pod", pod, ("spec", "Forbidden: only cpu and memory resources are mutable"))


def _within_node(pod: str, resource: str, request: int, allocatable: str) -> None:
    room = parse_quantity(allocatable) * (1000 if resource == "cpu" else 1)
    if request > room:
        why = f"node didn't have enough allocatable resources: {resource}"
        why += f", requested: {request}, allocatable: {int(room)}"
        refused = forbidden("pods", pod, why)
        refused.details["causes"] = [{"reason": "NodeCapacity"}]
        raise refused
