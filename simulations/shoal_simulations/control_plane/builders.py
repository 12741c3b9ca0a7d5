# SPDX-License-Identifier: Apache-2.0
"""Manifests of nodes and pods that a scheduler accepts: hostname label, Ready condition, allocatable pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HOSTNAME = "kubernetes.io/hostname"
IMAGE = "registry.k8s.io/pause:3.10"
GPU = "nvidia.com/gpu"
EPOCH = "2026-01-01T00:00:00Z"
NODE_INFO = {
    "architecture": "amd64",
    "bootID": "",
    "containerRuntimeVersion": "virtual://1",
    "kernelVersion": "",
    "kubeProxyVersion": "",
    "kubeletVersion": "v1.36.2",
    "machineID": "",
    "operatingSystem": "linux",
    "osImage": "",
    "systemUUID": "",
}


def node(
    name: str,
    *,
    cpu: str | int = "8",
    memory: str = "32Gi",
    gpus: int = 0,
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    resources: Mapping[str, str | int] | None = None,
    address: str = "",
) -> dict[str, Any]:
    """A ready node; `resources` are further allocatable ones, such as nvidia.com/mig-1g.5gb."""
    room = {"cpu": cpu, "memory": memory, "pods": pods, "ephemeral-storage": "100Gi"}
    room |= ({GPU: gpus} if gpus else {}) | dict(resources or {})
    allocatable = {key: str(amount) for key, amount in room.items()}
    addresses = [{"type": "Hostname", "address": name}]
    if address:
        addresses.insert(0, {"type": "InternalIP", "address": address})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {HOSTNAME: name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {"taints": [dict(taint) for taint in taints]} if taints else {},
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [ready(True)],
            "addresses": addresses,
            "nodeInfo": NODE_INFO,
        },
    }


def ready(is_ready: bool, since: str = EPOCH) -> dict[str, Any]:
    """A node's Ready condition."""
    return {
        "type": "Ready",
        "status": "True" if is_ready else "False",
        "reason": "KubeletReady" if is_ready else "KubeletNotReady",
        "lastHeartbeatTime": since,
        "lastTransitionTime": since,
    }


def pod(
    name: str,
    *,
    namespace: str = "default",
    cpu: str | int | None = "100m",
    memory: str | None = "128Mi",
    gpus: int = 0,
    limits: Mapping[str, str | int] | None = None,
    resources: Mapping[str, str | int] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: Mapping[str, Any] | None = None,
    node_name: str = "",
    gates: Sequence[str] = (),
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod of one container. `resources` are extended ones, asked and limited alike; `spec` adds fields."""
    devices = ({GPU: gpus} if gpus else {}) | dict(resources or {})
    asked = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v is not None} | devices
    bounds = dict(limits or {}) | devices
    sides = {"requests": asked, "limits": bounds}
    container = {
        "name": "main",
        "image": IMAGE,
        "resources": {side: {k: str(v) for k, v in held.items()} for side, held in sides.items() if held},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            **({"ownerReferences": [dict(owner)]} if owner else {}),
        },
        "spec": {
            "containers": [container],
            **({"nodeName": node_name} if node_name else {}),
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            **(spec or {}),
        },
    }
