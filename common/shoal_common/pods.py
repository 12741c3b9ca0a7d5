# SPDX-License-Identifier: Apache-2.0
"""Slim, frozen records of pods, nodes, services and namespaces: what scheduling reads of the API objects.

`shoal_common.manifests` builds them from Kubernetes' own JSON. Units: cpu in millicores, everything else in
bytes or counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal_common.requests import PodResources
from shoal_common.selectors import LabelSelector, NodeSelectorTerm, Taint, Toleration

TERMINAL_PHASES = ("Succeeded", "Failed")
HOSTNAME = "kubernetes.io/hostname"
DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class PreferredNodeTerm:
    """A preferred node affinity term and its weight."""

    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A pod (anti-)affinity term; weight is 0 for required ones.

    `namespaces` already holds the pod's own namespace where the manifest names neither list nor selector.
    """

    topology_key: str
    selector: LabelSelector | None  # None matches no pod
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    weight: int = 0

    def matches(self, pod: PodRecord, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term selects this pod, whose namespace carries these labels."""
        if self.selector is None:
            return False
        inside = pod.namespace in self.namespaces or (
            self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)
        )
        return inside and self.selector.matches(pod.labels)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A topology spread constraint."""

    topology_key: str
    max_skew: int
    when_unsatisfiable: str
    selector: LabelSelector | None  # None matches no pod
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port that a pod occupies on its node."""

    ip: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Same protocol and port, and the same address or one of them all addresses."""
        return (self.protocol, self.port) == (other.protocol, other.port) and (
            self.ip == other.ip or "0.0.0.0" in (self.ip, other.ip)
        )


@dataclass(frozen=True, slots=True)
class PodStatus:
    """What the API says became of a pod. Times in seconds since the epoch, 0 where not known."""

    ready: bool = False
    scheduled_at: float = 0.0  # when PodScheduled became true
    started_at: float = 0.0  # when the kubelet took it up
    ready_at: float = 0.0  # when Ready became true
    ended_at: float = 0.0  # when its last container ended
    reason: str = ""  # why it failed: Evicted, OutOfcpu, NodeAffinity, ...
    unschedulable: str = ""  # kube-scheduler's sentence while PodScheduled is false
    unschedulable_at: float = 0.0
    disruption: str = (
        ""  # reason of a true DisruptionTarget: PreemptionByScheduler, EvictionByEvictionAPI, ...
    )
    nominated_node: str = ""
    restarts: int = 0
    oom_killed: bool = False  # a container ended with OOMKilled, now or before its last restart
    resize: str = ""  # Deferred, Infeasible, InProgress or Error while a resize is not done


NO_STATUS = PodStatus()


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod, bound when `node_name` is set."""

    name: str
    namespace: str = "default"
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    node_name: str = ""
    phase: str = ""
    terminating: bool = False
    priority: int = 0
    owner_uid: str = ""
    resources: PodResources = field(default_factory=PodResources)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    required_nodes: tuple[NodeSelectorTerm, ...] | None = None  # None: not set; (): matches nothing
    preferred_nodes: tuple[PreferredNodeTerm, ...] | None = None
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_affinity: tuple[PodTerm, ...] = ()
    preferred_anti_affinity: tuple[PodTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    images: tuple[str, ...] = ()  # of containers and init containers
    volume_images: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)  # those that scheduling reads
    scheduler_name: str = "default-scheduler"
    owner_kind: str = ""
    owner_name: str = ""
    gates: tuple[str, ...] = ()
    created_at: float = 0.0  # seconds since the epoch
    status: PodStatus = NO_STATUS

    @property
    def requests(self) -> dict[str, int]:
        """Effective requests: cpu in millicores, others in bytes or counts."""
        return self.resources.requests

    @property
    def nonzero_requests(self) -> dict[str, int]:
        """Effective requests where containers without cpu (memory) count 100m (200Mi): for scoring only."""
        return self.resources.nonzero_requests

    @property
    def nonzero_bound_requests(self) -> dict[str, int]:
        """The same as its node counts them once it is bound: pod-level requests switch defaults off."""
        return self.resources.nonzero_bound_requests

    @property
    def qos(self) -> str:
        """Guaranteed, Burstable or BestEffort."""
        return self.resources.qos

    @property
    def finished(self) -> bool:
        """Succeeded or Failed: it holds nothing any more."""
        return self.phase in TERMINAL_PHASES

    def admits_node(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether node selector and required node affinity accept a node."""
        if any(labels.get(key) != wanted for key, wanted in self.node_selector.items()):
            return False
        return self.required_nodes is None or any(t.matches(name, labels) for t in self.required_nodes)


@dataclass(frozen=True, slots=True)
class NodeImage:
    """A container image on a node: its names and its size."""

    names: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node. `allocatable` has cpu in millicores, others in bytes or counts."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    images: tuple[NodeImage, ...] = ()
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)  # those that scheduling reads
    ready: bool = True
    pressure: tuple[str, ...] = ()  # true conditions other than Ready: MemoryPressure, DiskPressure, ...
    addresses: tuple[str, ...] = ()  # host names and IP addresses, which metrics are joined by


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service and the labels it selects; without any it selects nothing."""

    name: str
    namespace: str
    selector: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace and its labels."""

    name: str
    labels: Mapping[str, str]
