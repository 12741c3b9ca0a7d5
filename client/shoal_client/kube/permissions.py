# SPDX-License-Identifier: Apache-2.0
"""Every permission that the client uses, by the part that uses it; deploy/rbac grants these and no other.

A test holds the manifests to this list in both directions; `doctor` asks the API server about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shoal_client.kube.api import (
    AUTOSCALERS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    HTTP_ROUTES,
    JOBS,
    LEASES,
    LIMIT_RANGES,
    MEMBERSHIPS,
    NAMESPACES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SCHEDULING_POLICIES,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)

OWN_NAMESPACE = "shoal"
LEASE = "shoal-client"
GPU_OPERATOR, MIG_CONFIG = "gpu-operator", "default-mig-parted-config"


class Permission(NamedTuple):
    """One verb on one resource; `namespace` "" is all of them, `name` "" every object."""

    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def sentence(self) -> str:
        """The permission in words."""
        group = self.resource.api_version.rpartition("/")[0]
        what = (
            self.resource.plural
            + (f".{group}" if group else "")
            + (f"/{self.subresource}" * bool(self.subresource))
        )
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {what}{f' {self.name}' if self.name else ''}{where}"


def _each(verbs: str, *resources: Resource, subresource: str = "") -> Iterator[Permission]:
    return (Permission(verb, resource, subresource) for resource in resources for verb in verbs.split())


CLIENT: tuple[Permission, ...] = (
    *_each("list watch", NODES, PODS, NAMESPACES, SERVICES, RESOURCE_SLICES, NODE_TOPOLOGIES),
    *_each("get list watch", SCHEDULING_POLICIES, MEMBERSHIPS),
    *_each("patch", SCHEDULING_POLICIES, MEMBERSHIPS, subresource="status"),
    Permission("create", EVENTS),
    Permission("create", LEASES, "", OWN_NAMESPACE),
    Permission("get", LEASES, "", OWN_NAMESPACE, LEASE),
    Permission("patch", LEASES, "", OWN_NAMESPACE, LEASE),
)

ACTIONS: dict[str, tuple[Permission, ...]] = {
    "placement": (
        *_each("get patch delete", PODS),
        Permission("patch", PODS, "resize"),
        *_each("list", LIMIT_RANGES, RESOURCE_QUOTAS),
        *_each("get", REPLICA_SETS, STATEFUL_SETS, JOBS),
    ),
    "accelerator": (
        *_each("get patch", NODES),
        Permission("get", CONFIG_MAPS, "", GPU_OPERATOR, MIG_CONFIG),
    ),
    "replicas": (
        *_each("list", DEPLOYMENTS, STATEFUL_SETS, AUTOSCALERS),
        *_each("patch", DEPLOYMENTS, STATEFUL_SETS, subresource="scale"),
    ),
    "routes": (*_each("list patch", HTTP_ROUTES), Permission("get", SERVICES)),
    "migration": (Permission("create", PODS, "eviction"),),
    "binding": (Permission("get", PODS), Permission("create", PODS, "binding")),
}
"""By the file in deploy/rbac that grants them: action-NAME.yaml."""
