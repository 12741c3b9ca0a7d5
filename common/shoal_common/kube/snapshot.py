# SPDX-License-Identifier: Apache-2.0
"""The cluster as one scheduling cycle sees it, with what plugins share computed once.

Source: pkg/scheduler/backend/cache (NodeInfo, ImageStateSummary). Finished pods and pods bound to unknown
nodes count for nothing; terminating pods still hold their resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shoal_common.pods import HostPort, NamespaceRecord, NodeRecord, PodRecord, ServiceRecord


@dataclass(frozen=True)
class NodeInfo:
    """A node with its pods and their sums."""

    node: NodeRecord
    pods: tuple[PodRecord, ...]
    requested: Mapping[str, int]  # plain effective requests
    nonzero_requested: Mapping[str, int]  # with 100m and 200Mi where a container asks for nothing
    host_ports: tuple[HostPort, ...]

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name


@dataclass(frozen=True)
class Snapshot:
    """Nodes, pods, services and namespaces at one moment."""

    nodes: tuple[NodeRecord, ...]
    pods: tuple[PodRecord, ...] = ()
    services: tuple[ServiceRecord, ...] = ()
    namespaces: tuple[NamespaceRecord, ...] = ()

    @cached_property
    def infos(self) -> tuple[NodeInfo, ...]:
        """One NodeInfo per node, in the nodes' order."""
        bound: dict[str, list[PodRecord]] = {node.name: [] for node in self.nodes}
        for pod in self.pods:
            if pod.node_name in bound and not pod.finished:
                bound[pod.node_name].append(pod)
        return tuple(_info(node, tuple(bound[node.name])) for node in self.nodes)

    @cached_property
    def with_affinity(self) -> tuple[tuple[NodeInfo, PodRecord], ...]:
        """Bound pods that carry pod (anti-)affinity terms, with their nodes."""
        return tuple(
            (info, pod)
            for info in self.infos
            for pod in info.pods
            if pod.affinity or pod.anti_affinity or pod.preferred_affinity or pod.preferred_anti_affinity
        )

    @cached_property
    def namespace_labels(self) -> Mapping[str, Mapping[str, str]]:
        """Labels by namespace."""
        return {namespace.name: namespace.labels for namespace in self.namespaces}

    @cached_property
    def images(self) -> Mapping[str, tuple[int, int]]:
        """Image name -> (size in bytes as first seen, number of nodes that have it)."""
        found: dict[str, tuple[int, int]] = {}
        for node in self.nodes:
            on_node = {name: image.size_bytes for image in node.images for name in image.names}
            for name, size_bytes in on_node.items():
                first_size, count = found.get(name, (size_bytes, 0))
                found[name] = (first_size, count + 1)
        return found


def _info(node: NodeRecord, pods: tuple[PodRecord, ...]) -> NodeInfo:
    requested: dict[str, int] = {}
    nonzero: dict[str, int] = {}
    for pod in pods:
        _add(requested, pod.requests)
        _add(nonzero, pod.nonzero_bound_requests)
    ports = tuple(port for pod in pods for port in pod.host_ports)
    return NodeInfo(node, pods, requested, nonzero, ports)


def _add(total: dict[str, int], requests: Mapping[str, int]) -> None:
    for name, amount in requests.items():
        total[name] = total.get(name, 0) + amount
