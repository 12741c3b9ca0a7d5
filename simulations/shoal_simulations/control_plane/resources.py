# SPDX-License-Identifier: Apache-2.0
"""The resources that the emulated API serves: group, version, names, scope and subresources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object; `custom` ones come from a CustomResourceDefinition."""

    group: str  # "" is core
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = True  # has the subresource `status`
    scale: bool = False
    generation: bool = False  # metadata.generation counts changes of the spec
    custom: bool = False
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """What objects carry as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name that errors use: plural, with the group where there is one."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def subresources(self) -> tuple[str, ...]:
        """Names of the subresources."""
        extra = ("binding", "eviction", "resize", "ephemeralcontainers") if self.qualified == "pods" else ()
        return (*("status",) * self.status, *("scale",) * self.scale, *extra)


def _cluster(group: str, version: str, plural: str, kind: str, *, status: bool = True) -> Resource:
    return Resource(group, version, plural, kind, namespaced=False, status=status)


def _plain(group: str, version: str, plural: str, kind: str) -> Resource:
    return Resource(group, version, plural, kind, status=False)


ADMISSION, DRA = "admissionregistration.k8s.io", "resource.k8s.io"

BUILT_IN: tuple[Resource, ...] = (
    Resource("", "v1", "pods", "Pod", generation=True, short_names=("po",), categories=("all",)),
    Resource("", "v1", "nodes", "Node", namespaced=False, short_names=("no",)),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, short_names=("ns",)),
    Resource("", "v1", "services", "Service", short_names=("svc",), categories=("all",)),
    _plain("", "v1", "events", "Event"),
    _plain("", "v1", "configmaps", "ConfigMap"),
    _plain("", "v1", "secrets", "Secret"),
    _plain("", "v1", "serviceaccounts", "ServiceAccount"),
    _plain("", "v1", "limitranges", "LimitRange"),
    Resource("", "v1", "resourcequotas", "ResourceQuota"),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("", "v1", "replicationcontrollers", "ReplicationController", scale=True, generation=True),
    Resource("apps", "v1", "deployments", "Deployment", scale=True, generation=True, short_names=("deploy",)),
    Resource("apps", "v1", "replicasets", "ReplicaSet", scale=True, generation=True, short_names=("rs",)),
    Resource("apps", "v1", "statefulsets", "StatefulSet", scale=True, generation=True, short_names=("sts",)),
    Resource("apps", "v1", "daemonsets", "DaemonSet", generation=True, short_names=("ds",)),
    Resource("batch", "v1", "jobs", "Job", generation=True),
    Resource("batch", "v1", "cronjobs", "CronJob", generation=True),
    Resource(
        "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", short_names=("hpa",)
    ),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", generation=True),
    _plain("coordination.k8s.io", "v1", "leases", "Lease"),
    _plain("events.k8s.io", "v1", "events", "Event"),
    _cluster("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", status=False),
    _cluster(DRA, "v1", "resourceslices", "ResourceSlice", status=False),
    _cluster(DRA, "v1", "deviceclasses", "DeviceClass", status=False),
    Resource(DRA, "v1", "resourceclaims", "ResourceClaim"),
    _cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    _cluster(ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", status=False),
    _cluster(
        ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", status=False
    ),
    Resource(
        "topology.node.k8s.io",
        "v1alpha2",
        "noderesourcetopologies",
        "NodeResourceTopology",
        namespaced=False,
        status=False,
        custom=True,
        generation=True,
    ),
    Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute", custom=True, generation=True),
)
