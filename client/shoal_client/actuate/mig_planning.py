# SPDX-License-Identifier: Apache-2.0
"""Which MIG configuration of which node would let most waiting pods run, touching only devices proven idle.

Everything here is computed from API objects. Which device a pod's slice lies on is not among them, so a
device counts as idle only when no pod on its node holds any resource that the device offers. Under strategy
`mixed` exactly one device of one node may change at a time; under `single` all devices of a node must stay
alike, so the whole node has to be idle and changes at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal_client.actuate.mig_catalogue import NOTHING, Catalogue, Counts, homogeneous, on_node
from shoal_common.accelerators.demand import GPU
from shoal_common.accelerators.mig import PROFILES
from shoal_common.pods import NodeRecord, PodRecord

CONFIG, STATE, STRATEGY = "nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/mig.strategy"
PRODUCT, DEVICES, CAPABLE = "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/mig.capable"
KNOWN_PRODUCT = re.compile(r"(NVIDIA-)?A100-[A-Z0-9]+-40GB(-MIG-.*)?")
SLICE_PRODUCT = re.compile(r".*-MIG-(?P<profile>[0-9]g\.[0-9]+gb)")
RESOURCES = tuple(profile.resource for profile in PROFILES)
MOST_DEVICES = 16


@dataclass(frozen=True, slots=True)
class MigNode:
    """A node whose devices may be cut: what each is cut into now, and what pods hold of each resource."""

    name: str
    strategy: str  # mixed or single
    config: str
    cut: tuple[Counts, ...]
    used: Mapping[str, int]

    def idle(self) -> frozenset[int]:
        """Devices that certainly nobody uses."""
        return frozenset(d for d, counts in enumerate(self.cut) if not self._in_use(counts))

    def free(self) -> list[int]:
        """Instances of each profile that nobody holds."""
        total = [sum(counts[i] for counts in self.cut) for i in range(len(PROFILES))]
        return [max(0, n - self.used.get(self._resource(i), 0)) for i, n in enumerate(total)]

    def _in_use(self, counts: Counts) -> bool:
        if counts == NOTHING or self.strategy == "single":
            return self.used.get(GPU, 0) > 0
        return any(n and self.used.get(RESOURCES[i], 0) for i, n in enumerate(counts))

    def _resource(self, profile: int) -> str:
        return GPU if self.strategy == "single" else RESOURCES[profile]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Give a node a configuration: how many more waiting slices would find a place."""

    node: str
    config: str
    gain: int


def mig_node(record: NodeRecord, pods: Iterable[PodRecord], catalogue: Catalogue) -> MigNode | None:
    """The node as far as layouts go; None where its state is not known for certain or may not change."""
    labels = record.labels
    count, config = labels.get(DEVICES, ""), labels.get(CONFIG, "")
    settled = labels.get(STATE) == "success" and config in catalogue
    if not settled or not record.ready or labels.get(CAPABLE) != "true" or not count.isdecimal():
        return None
    strategy, product = labels.get(STRATEGY, ""), labels.get(PRODUCT, "")
    if strategy not in ("mixed", "single") or not KNOWN_PRODUCT.fullmatch(product):
        return None
    cut = on_node(catalogue[config], min(int(count), MOST_DEVICES))
    return MigNode(record.name, strategy, config, cut, _used(pods))


def _used(pods: Iterable[PodRecord]) -> dict[str, int]:
    used: dict[str, int] = {}
    for pod in pods:
        for resource, number in pod.requests.items():
            if resource.startswith("nvidia.com/"):
                used[resource] = used.get(resource, 0) + number
    return used


def waiting_slices(pods: Iterable[PodRecord]) -> Counts:
    """Instances of each profile that these waiting pods ask for.

    By their resource (`mixed`), or by `nvidia.com/gpu` with a node selector for a sliced product (`single`).
    """
    wanted = [0] * len(PROFILES)
    for pod in pods:
        for i, resource in enumerate(RESOURCES):
            wanted[i] += pod.requests.get(resource, 0)
        match = SLICE_PRODUCT.fullmatch(pod.node_selector.get(PRODUCT, ""))
        for i, profile in enumerate(PROFILES):
            if match is not None and profile.name == match["profile"]:
                wanted[i] += pod.requests.get(GPU, 0)
    return tuple(wanted)


def served(wanted: Sequence[int], free: Sequence[int]) -> int:
    """How many of the wanted instances are there."""
    return sum(min(w, f) for w, f in zip(wanted, free, strict=True))


def propose(nodes: Sequence[MigNode], catalogue: Catalogue, wanted: Counts) -> Proposal | None:
    """The change that serves most waiting slices, of equal ones the first by name; None without gain."""
    free = [sum(column) for column in zip(*(n.free() for n in nodes), strict=True)] or list(NOTHING)
    now, best = served(wanted, free), None
    for node in sorted(nodes, key=lambda n: n.name):
        for config, entries in catalogue.items():
            cut = on_node(entries, len(node.cut))
            if not allowed(node, cut):
                continue
            gain = served(wanted, _after(free, node.cut, cut)) - now
            if gain > 0 and (best is None or gain > best.gain):
                best = Proposal(node.name, config, gain)
    return best


def allowed(node: MigNode, cut: tuple[Counts, ...]) -> bool:
    """Whether a node may be cut so: only idle devices change, one at a time or, under `single`, all alike."""
    changed = {d for d, (old, new) in enumerate(zip(node.cut, cut, strict=True)) if old != new}
    if not changed or not changed <= node.idle():
        return False
    return homogeneous(cut) if node.strategy == "single" else len(changed) == 1


def _after(free: Sequence[int], old: Sequence[Counts], new: Sequence[Counts]) -> list[int]:
    change = [sum(b[i] - a[i] for a, b in zip(old, new, strict=True) if a != b) for i in range(len(PROFILES))]
    return [max(0, f + c) for f, c in zip(free, change, strict=True)]
