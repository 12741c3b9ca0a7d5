# SPDX-License-Identifier: Apache-2.0
"""The resources of the Kubernetes API that Shoal reads or writes, and where they are found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote


class Resource(NamedTuple):
    """A resource of the API: `apps/v1`, `deployments`, `Deployment`."""

    api_version: str
    plural: str
    kind: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of an object, or of the collection without a name."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        parts = ["namespaces", namespace] if namespace else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join([root, *(quote(part, safe="") for part in parts)])


PODS = Resource("v1", "pods", "Pod")
NODES = Resource("v1", "nodes", "Node")
NAMESPACES = Resource("v1", "namespaces", "Namespace")
SERVICES = Resource("v1", "services", "Service")
CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
LIMIT_RANGES = Resource("v1", "limitranges", "LimitRange")
RESOURCE_QUOTAS = Resource("v1", "resourcequotas", "ResourceQuota")
EVENTS = Resource("events.k8s.io/v1", "events", "Event")
LEASES = Resource("coordination.k8s.io/v1", "leases", "Lease")
DEPLOYMENTS = Resource("apps/v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps/v1", "replicasets", "ReplicaSet")
STATEFUL_SETS = Resource("apps/v1", "statefulsets", "StatefulSet")
JOBS = Resource("batch/v1", "jobs", "Job")
AUTOSCALERS = Resource("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
DISRUPTION_BUDGETS = Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
HTTP_ROUTES = Resource("gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute")
NODE_TOPOLOGIES = Resource("topology.node.k8s.io/v1alpha2", "noderesourcetopologies", "NodeResourceTopology")
RESOURCE_SLICES = Resource("resource.k8s.io/v1", "resourceslices", "ResourceSlice")
CUSTOM_RESOURCES = Resource(
    "apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition"
)
ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
SCHEDULING_POLICIES = Resource("shoal.dev/v1alpha1", "schedulingpolicies", "SchedulingPolicy")
MEMBERSHIPS = Resource("shoal.dev/v1alpha1", "federationmemberships", "FederationMembership")


def micro_time() -> str:
    """Now, in the form of a MicroTime: for people who read the object, never compared."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
