# SPDX-License-Identifier: Apache-2.0
"""API objects into records that share what they have in common: 50,000 pods in seconds and little memory.

Pods of one owner differ in name, node and status; the rest, of which their requests are computed, is read
once and shared. Two pods share it when everything that `manifests.read_template` reads is the same, told by a
digest of just that. So do nodes their images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

import msgspec

from shoal_common.fields import Field
from shoal_common.manifests import (
    ANNOTATIONS,
    read_instance,
    read_namespace,
    read_node,
    read_pod,
    read_service,
    read_template,
)
from shoal_common.pods import NamespaceRecord, NodeImage, NodeRecord, PodRecord, ServiceRecord
from shoal_common.requests import rounded

SPEC: Final = (
    "affinity", "nodeSelector", "overhead", "priority", "resources", "schedulerName", "schedulingGates",
    "tolerations", "topologySpreadConstraints",
)  # fmt: skip
MOST_TEMPLATES: Final = 20_000
MOST_IMAGES: Final = 50_000
"""Beyond them what is shared is forgotten and built up anew; records stay as they are."""

_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TopologyRecord:
    """What is free in each NUMA zone of a node: cpu in millicores, others in bytes or counts."""

    node: str
    zones: tuple[Mapping[str, int], ...]


@dataclass(frozen=True, slots=True)
class SliceRecord:
    """Devices that a DRA driver offers on a node ("" where on several)."""

    name: str
    node: str
    driver: str
    devices: int


@final
class Reader:
    """Reads pods and nodes; not thread-safe.

    Raises:
        InputError: an object has a wrong field; the error names it.
    """

    def __init__(self, most_templates: int = MOST_TEMPLATES) -> None:
        self._most_templates = most_templates
        self._templates: dict[bytes, PodRecord] = {}
        self._images: dict[NodeImage, NodeImage] = {}

    def pod(self, content: Mapping[str, Any], where: str = "pod", path: str = "") -> PodRecord:
        """The record of a pod, equal to `manifests.read_pod` of it; errors name `where` and `path`."""
        source = Field(where, path, content)
        try:
            key = hashlib.blake2b(_encode(_shared(content)), digest_size=16).digest()
        except (AttributeError, TypeError):
            return read_pod(source)  # not of a pod's shape: tells which field is wrong
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= self._most_templates:
                self._templates.clear()
            template = self._templates[key] = read_template(source)
        return read_instance(source, template)

    def namespace(self, content: Mapping[str, Any]) -> NamespaceRecord:
        """The record of a namespace."""
        return read_namespace(Field("namespace", "", content))

    def service(self, content: Mapping[str, Any]) -> ServiceRecord:
        """The record of a service."""
        return read_service(Field("service", "", content))

    def topology(self, content: Mapping[str, Any]) -> TopologyRecord:
        """The record of a NodeResourceTopology."""
        source = Field("noderesourcetopology", "", content)
        zones = [z for z in source.get("zones").items() if z.get("type").text("") == "Node"]
        return TopologyRecord(source.get("metadata").get("name").text(), tuple(map(_available, zones)))

    def devices(self, content: Mapping[str, Any]) -> SliceRecord:
        """The record of a ResourceSlice."""
        source = Field("resourceslice", "", content)
        spec = source.get("spec")
        return SliceRecord(
            name=source.get("metadata").get("name").text(),
            node=spec.get("nodeName").text(""),
            driver=spec.get("driver").text(""),
            devices=sum(1 for _ in spec.get("devices").items()),
        )

    def node(self, content: Mapping[str, Any]) -> NodeRecord:
        """The record of a node."""
        node = read_node(Field("node", "", content))
        if len(self._images) >= MOST_IMAGES:
            self._images.clear()
        return replace(node, images=tuple(self._images.setdefault(image, image) for image in node.images))


def node_digest(content: Mapping[str, Any]) -> bytes:
    """A digest of everything that `manifests.read_node` reads of a node: equal for a mere heartbeat.

    Cheaper than reading by two orders: conditions count without their times and messages.
    """
    metadata, status = content["metadata"], content.get("status") or {}
    annotations = metadata.get("annotations") or {}
    parts = (
        metadata.get("uid"),
        metadata.get("labels"),
        {k: v for k, v in annotations.items() if k.startswith(ANNOTATIONS)},
        content.get("spec"),
        [status.get(key) for key in ("allocatable", "images", "addresses")],
        [(c.get("type"), c.get("status")) for c in status.get("conditions") or ()],
    )
    return hashlib.blake2b(_encode(parts), digest_size=16).digest()


def _shared(content: Mapping[str, Any]) -> list[Any]:
    """Everything that `manifests.read_template` reads of a pod."""
    metadata, spec, status = content["metadata"], content["spec"], content.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return [
        metadata.get("namespace"),
        metadata.get("labels"),
        metadata.get("ownerReferences"),
        {k: v for k, v in annotations.items() if type(v) is not str or k.startswith(ANNOTATIONS)},
        [spec.get(key) for key in SPEC],
        [volume["image"] for volume in spec.get("volumes") or () if "image" in volume],
        [_container(c) for key in ("containers", "initContainers") for c in spec.get(key) or ()],
        len(spec.get("containers") or ()),
        [
            (key, s.get("name"), s.get("resources"), s.get("allocatedResources"))
            for key in ("containerStatuses", "initContainerStatuses")
            for s in status.get(key) or ()
        ],
        [c.get("reason") for c in status.get("conditions") or () if c.get("type") == "PodResizePending"],
    ]


def _container(content: Mapping[str, Any]) -> tuple[Any, ...]:
    get = content.get
    return get("name"), get("image"), get("resources"), get("restartPolicy"), get("ports")


def _available(zone: Field) -> dict[str, int]:
    """What is free in a NUMA zone; what it has at all where the exporter tells no more."""
    amounts = {}
    for resource in zone.get("resources").items():
        available = resource.get("available")
        amount = available if available.present else resource.get("allocatable")
        amounts[resource.get("name").text()] = amount.quantity()
    return rounded(amounts)
