# SPDX-License-Identifier: Apache-2.0
"""One node of a live cluster: its record, the pods on it, those decided for it, and their exact sums.

Sums are whole numbers (or whole 1024ths, `tables.GRID`), so taking a pod off leaves nothing behind: they
equal a recomputation whatever came in which order. A node may be unknown yet (`record` None): the pods that
the API shows on it wait here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from shoal_client.collect.measured import Measured, PodUse, smaller_free
from shoal_client.state.reading import TopologyRecord
from shoal_common.accelerators.demand import GPU, Demand, demands, devices, holds, mig_milli, pack
from shoal_common.accelerators.sharing import MILLI
from shoal_common.cluster import (
    F64,
    MAX_ZONES,
    N_GPUS,
    N_ZONES,
    NODE_COLUMNS,
    P_DURATION,
    U_CPU_WANTED,
    U_FAILURES,
    U_GPU,
    U_IO_WANTED,
    U_LOAD,
    U_MEMORY_WANTED,
    U_PODS,
    U_REMAINING,
    USE_COLUMNS,
)
from shoal_common.kube.node_resources_fit import NATIVE, scalar
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.tables import UNKNOWN_REMAINING, App, fill_node, fill_use, load_row, pod_row

FULL: Final = "Too many pods"
UNKNOWN: Final = "node(s) not found"
SHARE: Final = f"Insufficient {GPU} (share)"
CLASSES: Final = slice(U_LOAD, U_LOAD + 4)

Requests = Mapping[str, int]


@dataclass(slots=True)
class Held:
    """A pod on a node, bound or decided, and what it adds."""

    pod: PodRecord
    load: F64  # [USE_COLUMNS]
    demand: tuple[Demand, ...]
    duration_seconds: float
    since: float | None  # monotonic, when it was seen to come; None where it was there before us

    @classmethod
    def of(cls, pod: PodRecord, app: App | None, since: float | None) -> Held:
        """A pod with what is known of its app."""
        row = pod_row(pod, app)
        return cls(
            pod, load_row(pod, row), demands(pod.requests, pod.annotations), float(row[P_DURATION]), since
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod asks of any node, computed once for all nodes."""

    uid: str
    wanted: tuple[tuple[str, int], ...]  # in kube-scheduler's order
    shares: tuple[Demand, ...]  # of devices that several pods share; () where none or MIG's slices

    @classmethod
    def of(cls, pod: PodRecord) -> Asked:
        """What a pod asks for."""
        requests = pod.requests
        names = (*NATIVE, *sorted(filter(scalar, requests)))
        asked = demands(requests, pod.annotations)
        shared = any(milli < MILLI for milli, _ in asked) and not any(map(mig_milli, requests))
        wanted = tuple((name, amount) for name in names if (amount := requests.get(name, 0)) > 0)
        return cls(pod.uid, wanted, asked if shared else ())


@dataclass(slots=True)
class Measurement:
    """What was measured on a node, and when it arrived (monotonic)."""

    values: Measured
    at: float


@final
class NodeState:
    """A node's pods and sums; not thread-safe."""

    __slots__ = (
        "demand", "devices", "former", "load", "measured", "name", "node", "nonzero", "pods", "record",
        "requested", "reserved", "row", "topology", "topology_at", "uid",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name, self.row = name, -1
        self.record: NodeRecord | None = None
        self.uid = ""  # of the record, or of the last one
        self.node, self.devices = np.zeros(NODE_COLUMNS), 0  # its row, and how many devices it has
        self.pods: dict[str, Held] = {}
        self.reserved: dict[str, Held] = {}
        self.former: set[str] = set()  # uids of pods on an earlier node of this name
        self.requested: dict[str, int] = {}
        self.nonzero: dict[str, int] = {}
        self.load = np.zeros(USE_COLUMNS)
        self.demand: dict[str, tuple[Demand, ...]] = {}
        self.measured: Measurement | None = None
        self.topology: TopologyRecord | None = None
        self.topology_at = 0.0

    @property
    def empty(self) -> bool:
        """Whether nothing is known of it any more."""
        return self.record is None and not (self.pods or self.reserved or self.former or self.topology)

    def put(self, uid: str, held: Held, *, reserved: bool = False) -> None:
        """Add a pod."""
        (self.reserved if reserved else self.pods)[uid] = held
        self._count(uid, held, 1)

    def take(self, uid: str, *, reserved: bool = False) -> None:
        """Take a pod off; nothing happens where it is not on the node."""
        held = (self.reserved if reserved else self.pods).pop(uid, None)
        if held is not None:
            self._count(uid, held, -1)

    def _count(self, uid: str, held: Held, sign: int) -> None:
        _add(self.requested, held.pod.requests, sign)
        _add(self.nonzero, held.pod.nonzero_bound_requests, sign)
        self.load += sign * held.load
        if held.demand and sign > 0:
            self.demand[uid] = held.demand
        elif held.demand:
            self.demand.pop(uid, None)

    def leave(self) -> None:
        """The node is gone: its pods belong to no node of this name that may come."""
        for uid in list(self.pods):
            self.take(uid)
            self.former.add(uid)
        for uid in list(self.reserved):
            self.take(uid, reserved=True)
        self.record, self.measured, self.topology, self.row = None, None, None, -1

    def set(self, record: NodeRecord) -> None:
        """Take up what the node is now."""
        self.record, self.uid = record, record.uid
        self.devices = devices(record.allocatable, record.labels)
        fill_node(record, self.node)

    def left(self, without: Container[str] = ()) -> list[int]:
        """What is left of each device, milli-GPU, `without` the pods of these uids."""
        asked = [d for uid, demand in self.demand.items() if uid not in without for d in demand]
        return pack(asked, self.devices)

    def insufficient(self, asked: Asked, gone: str = "") -> tuple[str, ...]:
        """What the node lacks for a pod, in kube-scheduler's sentences; () where it fits.

        A pod that is on the node already, or decided for it, does not stand in its own way, nor does the pod
        of the uid `gone`.
        """
        if self.record is None:
            return (UNKNOWN,)
        without = [h for uid in {asked.uid, gone} if (h := self.pods.get(uid) or self.reserved.get(uid))]
        allocatable, requested = self.record.allocatable, self.requested
        count = len(self.pods) + len(self.reserved) - len(without)
        reasons = [FULL] if count + 1 > allocatable.get("pods", 0) else []
        for name, wanted in asked.wanted:
            used = requested.get(name, 0)
            for held in without:
                used -= held.pod.requests.get(name, 0)
            if wanted > allocatable.get(name, 0) - used:
                reasons.append(f"Insufficient {name}")
        if asked.shares:
            left = self.left({asked.uid, gone})
            if not all(holds(left, demand) for demand in asked.shares):
                reasons.append(SHARE)
        return tuple(reasons)

    def fill(self, node: F64, use: F64, gpu: F64, zone: F64, failures: float, now: float) -> None:
        """Fill the node's rows, with the `failures` of its health."""
        if self.record is None:
            return
        node[:] = self.node
        fill_use(self.record, node, self.requested, self.nonzero, self.load, self.left(), use, gpu, zone)
        use[U_REMAINING] = self._remaining(now)
        if self.topology is not None:
            self._fill_zones(self.topology, node, zone)
        if self.measured is not None:
            failures += self.measured.values.failures or 0.0
            self._fill_measured(self.measured, node, use, gpu)
        use[U_FAILURES] = failures

    def _remaining(self, now: float) -> float:
        """Mean share of the expected time that the pods have left."""
        if not self.load[U_PODS]:
            return 0.0
        left = [
            UNKNOWN_REMAINING if h.since is None else max(0.0, 1.0 - (now - h.since) / h.duration_seconds)
            for h in (*self.pods.values(), *self.reserved.values())
        ]
        return sum(sorted(left)) / len(left)

    def _fill_zones(self, topology: TopologyRecord, node: F64, zone: F64) -> None:
        """What the exporter says is free, less what it cannot know yet: deducted from every zone."""
        new = [h.pod for h in self.reserved.values()]
        new += [h.pod for h in self.pods.values() if h.since is not None and h.since > self.topology_at]
        exclusive = [p.requests for p in new if p.qos == "Guaranteed"]
        zones = topology.zones[:MAX_ZONES]
        node[N_ZONES] = max(1, len(zones))
        for z, free in enumerate(zones):
            for k, name in enumerate(("cpu", "memory")):
                zone[z, k] = max(0, free.get(name, 0) - sum(r.get(name, 0) for r in exclusive))
        zone[len(zones) :] = 0.0

    def _fill_measured(self, measured: Measurement, node: F64, use: F64, gpu: F64) -> None:
        """Replace what pods are known to use by what was measured, where it was.

        Pods that came since are added, pods that went since are taken off, as far as their use is known.
        """
        values = measured.values
        new, gone = self._since(measured)
        cpu = _total(
            values.cpu_millicores, (h.load[U_CPU_WANTED] for h in new), (u.cpu_millicores for u in gone)
        )
        io = _total(values.io, (h.load[U_IO_WANTED] for h in new), ())
        memory = _total(
            values.memory_bytes, (h.load[U_MEMORY_WANTED] for h in new), (u.memory_bytes for u in gone)
        )
        if cpu is not None:
            if use[U_CPU_WANTED] > 0:
                use[CLASSES] *= cpu / use[U_CPU_WANTED]
            use[U_CPU_WANTED] = cpu
        if io is not None:
            use[U_IO_WANTED] = io
        if memory is not None:
            use[U_MEMORY_WANTED] = memory
        if values.gpu_memory_free:
            gpu[:] = smaller_free(gpu, values.gpu_memory_free, int(node[N_GPUS]))
            use[U_GPU] = node[N_GPUS] * MILLI - gpu.sum()

    def _since(self, measured: Measurement) -> tuple[list[Held], list[PodUse]]:
        """Pods that came after the sample, and the use of those that were in it and have gone."""
        in_sample, on_node = measured.values.pods, list(self.pods.values())
        new = list(self.reserved.values())
        if in_sample:
            new += [h for h in on_node if (h.pod.namespace, h.pod.name) not in in_sample]
        else:
            taken = measured.at - measured.values.age_seconds
            new += [h for h in on_node if h.since is not None and h.since > taken]
        here = {(h.pod.namespace, h.pod.name) for h in on_node}
        return new, [use for name, use in in_sample.items() if name not in here]


def _total(measured: float | None, new: Iterable[float], gone: Iterable[float | None]) -> float | None:
    if measured is None:
        return None
    return max(0.0, measured + sum(new) - sum(filter(None, gone)))


def _add(total: dict[str, int], requests: Requests, sign: int) -> None:
    for name, amount in requests.items():
        count = total.get(name, 0) + sign * amount
        if count:
            total[name] = count
        else:
            total.pop(name, None)
