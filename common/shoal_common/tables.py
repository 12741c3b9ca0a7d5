# SPDX-License-Identifier: Apache-2.0
"""Kubernetes records as rows of a `Cluster`: what a node is, what is on it, what a pod asks for.

The API says what is allocatable and requested. How fast a node is and what power it draws may be written on
it (`NODE_SETTINGS`, as annotation or label), else it is the reference node.
What a pod uses and how long it runs is what is known of its app, else it uses what it requests for ten
minutes. A container without a request counts as kube-scheduler's scores count it, 100m and 200Mi, in all that
says what is used: a crowd of such pods is no idle node (kubernetes#129138). Requests themselves stay as they
are, so that `Cluster.fits` is NodeResourcesFit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal_common.accelerators.demand import demands, devices, pack
from shoal_common.accelerators.sharing import MILLI
from shoal_common.cluster import (
    F64,
    MAX_GPUS,
    MAX_ZONES,
    N_CPU,
    N_DEEP_IDLE,
    N_DPU,
    N_EXISTS,
    N_GPU_WATTS,
    N_GPUS,
    N_IDLE_WATTS,
    N_IO_CAPACITY,
    N_IO_SPEED,
    N_MAX_WATTS,
    N_MEMORY,
    N_PODS,
    N_SPEED,
    N_ZONES,
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_DURATION,
    P_GPU,
    P_GPUS,
    P_IO_USE,
    P_MEMORY,
    P_SLA,
    POD_COLUMNS,
    U_CPU,
    U_CPU_NONZERO,
    U_CPU_WANTED,
    U_GPU,
    U_IO_WANTED,
    U_LOAD,
    U_MEMORY,
    U_MEMORY_NONZERO,
    U_MEMORY_WANTED,
    U_PODS,
    U_REMAINING,
    U_UP,
    USE_COLUMNS,
    zone_share,
)
from shoal_common.pods import NodeRecord, PodRecord

CLASSES = ("service", "compute", "io", "gpu")
SERVICE, COMPUTE, IO, GPU_CLASS = range(4)
BATCH_OWNERS = ("Job", "CronJob", "Workflow", "ScheduledSparkApplication", "SparkApplication")
CLASS_ANNOTATION, SLA_ANNOTATION = "shoal.dev/class", "shoal.dev/slowdown"

REFERENCE: Mapping[int, float] = {  # speed 1, one NUMA zone, the power of a middling server
    N_SPEED: 1.0, N_IO_SPEED: 1.0, N_IO_CAPACITY: 4.0, N_IDLE_WATTS: 100.0, N_MAX_WATTS: 300.0,
    N_GPU_WATTS: 220.0, N_DEEP_IDLE: 0.1, N_ZONES: 1.0, N_EXISTS: 1.0,
}  # fmt: skip
NODE_SETTINGS: Mapping[str, tuple[int, float, float]] = {
    "shoal.dev/speed": (N_SPEED, 0.05, 20.0),
    "shoal.dev/io-speed": (N_IO_SPEED, 0.05, 20.0),
    "shoal.dev/io-capacity": (N_IO_CAPACITY, 0.01, 1e6),
    "shoal.dev/idle-watts": (N_IDLE_WATTS, 0.0, 1e5),
    "shoal.dev/max-watts": (N_MAX_WATTS, 1.0, 1e5),
    "shoal.dev/gpu-watts": (N_GPU_WATTS, 0.0, 1e4),
    "shoal.dev/deep-idle": (N_DEEP_IDLE, 0.0, 1.0),
    "shoal.dev/dpu": (N_DPU, 0.0, 1.0),
    "shoal.dev/numa-zones": (N_ZONES, 1.0, float(MAX_ZONES)),
}
"""Annotations (or labels) of a node: column, lowest and highest value; anything else is not read."""

SLA, DURATION_SECONDS = 1.5, 600.0
UNKNOWN_REMAINING = 0.5  # share of its expected time that a pod of unknown age is taken to have left
GRID = 1024.0
"""Amounts of use are whole 1024ths: float64 sums of them are exact, whatever the order of events."""
MOST_USE = 2.0**40


@dataclass(frozen=True, slots=True)
class App:
    """What is known of the app that a pod is of; None where it is not."""

    cpu_use: float | None = None  # millicores
    io_use: float | None = None  # in the unit of N_IO_CAPACITY
    duration_seconds: float | None = None
    sla: float | None = None  # allowed slowdown
    samples: int = 0  # measurements that the above rest on


def pod_class(pod: PodRecord) -> int:
    """Service, compute, io or gpu: as annotated, by devices, by what made the pod."""
    return _class(pod, bool(demands(pod.requests, pod.annotations)))


def _class(pod: PodRecord, asks_for_devices: bool) -> int:
    stated = pod.annotations.get(CLASS_ANNOTATION, "")
    if stated in CLASSES:
        return CLASSES.index(stated)
    if asks_for_devices:
        return GPU_CLASS
    return COMPUTE if pod.owner_kind in BATCH_OWNERS else SERVICE


def pod_row(pod: PodRecord, app: App | None = None) -> F64:
    """What a scheduler knows of a pod, f64[POD_COLUMNS]."""
    known, row = app or App(), np.zeros(POD_COLUMNS)
    row[P_CPU], row[P_MEMORY] = pod.requests.get("cpu", 0), pod.requests.get("memory", 0)
    asked = demands(pod.requests, pod.annotations)
    row[P_GPU], row[P_GPUS] = asked[0] if asked else (0, 0)
    row[P_CLASS] = _class(pod, bool(asked))
    row[P_CPU_USE] = _use(known.cpu_use, pod.nonzero_requests.get("cpu", 0))
    row[P_IO_USE] = _use(known.io_use, 0.0)
    row[P_SLA] = _number(pod.annotations.get(SLA_ANNOTATION), 1.0, 100.0, known.sla or SLA)
    row[P_DURATION] = known.duration_seconds or DURATION_SECONDS
    return row


def load_row(pod: PodRecord, row: F64) -> F64:
    """What a bound pod (with its `pod_row`) adds to its node, f64[USE_COLUMNS]; the sum over pods is exact.

    Requests beyond float64 (2**53) are kept by the caller as whole numbers; see `fill_use`.
    """
    load, nonzero = np.zeros(USE_COLUMNS), pod.nonzero_bound_requests
    load[U_PODS] = 1.0
    load[U_CPU_WANTED] = load[U_LOAD + int(row[P_CLASS])] = row[P_CPU_USE]
    load[U_IO_WANTED] = row[P_IO_USE]
    load[U_MEMORY_WANTED] = min(nonzero.get("memory", 0), MOST_USE)
    return load


def fill_node(record: NodeRecord, row: F64) -> None:
    """Fill a node's row[NODE_COLUMNS]: room, devices, and what is written on it of speed and power."""
    row[:] = 0.0
    for column, value in REFERENCE.items():
        row[column] = value
    for name, (column, low, high) in NODE_SETTINGS.items():
        text = record.annotations.get(name, record.labels.get(name))
        row[column] = _number(text, low, high, row[column])
    row[N_MAX_WATTS] = max(row[N_MAX_WATTS], row[N_IDLE_WATTS] + 1.0)
    row[N_DPU], row[N_ZONES] = round(row[N_DPU]), round(row[N_ZONES])
    room = record.allocatable
    row[N_CPU], row[N_MEMORY] = max(room.get("cpu", 0), 1), max(room.get("memory", 0), 1)
    row[N_GPUS], row[N_PODS] = min(devices(room, record.labels), MAX_GPUS), room.get("pods", 0)


def fill_use(
    record: NodeRecord,
    node: F64,
    requested: Mapping[str, int],
    nonzero: Mapping[str, int],
    load: F64,
    left: Sequence[int],
    use: F64,
    gpu: F64,
    zone: F64,
) -> None:
    """Fill what is on a node: use[USE_COLUMNS], gpu[MAX_GPUS], zone[MAX_ZONES, 2].

    Args:
        record: the node; `node` is its filled row.
        requested: exact sums of its pods' effective requests, `nonzero` those with 100m and 200Mi.
        load: sum of its pods' `load_row`, f64[USE_COLUMNS].
        left: what is left of each of its devices, milli-GPU, by number (`demand.pack`).
    """
    use[:] = load
    use[U_CPU], use[U_MEMORY] = requested.get("cpu", 0), requested.get("memory", 0)
    use[U_CPU_NONZERO], use[U_MEMORY_NONZERO] = nonzero.get("cpu", 0), nonzero.get("memory", 0)
    use[U_REMAINING] = UNKNOWN_REMAINING if load[U_PODS] else 0.0
    use[U_UP] = 1.0 if record.ready and not record.unschedulable else 0.0
    shown = sorted(left)[len(left) - int(node[N_GPUS]) :] if len(left) > MAX_GPUS else left
    gpu[:] = 0.0
    gpu[: len(shown)] = shown
    use[U_GPU] = node[N_GPUS] * MILLI - sum(shown)
    _fill_zones(node, use, zone)


def _fill_zones(node: F64, use: F64, zone: F64) -> None:
    """What is free in each NUMA zone where nobody reports it: the node's free room in equal parts."""
    zones = int(node[N_ZONES])
    free = max(0.0, node[N_CPU] - use[U_CPU]), max(0.0, node[N_MEMORY] - use[U_MEMORY])
    zone[:] = 0.0
    zone[0] = free
    if zones > 1:
        for z in range(zones):
            zone[z] = [zone_share(amount, z, zones) for amount in free]


def fill(record: NodeRecord, pods: Iterable[PodRecord], node: F64, use: F64, gpu: F64, zone: F64) -> None:
    """Fill all rows of a node from its record and the pods on it, of whose apps nothing is known."""
    on_node = list(pods)
    fill_node(record, node)
    load = np.zeros(USE_COLUMNS)
    for pod in on_node:
        load += load_row(pod, pod_row(pod))
    asked = [demand for pod in on_node for demand in demands(pod.requests, pod.annotations)]
    left = pack(asked, devices(record.allocatable, record.labels))
    requested, nonzero = (_sums(on_node, kind) for kind in ("requests", "nonzero_bound_requests"))
    fill_use(record, node, requested, nonzero, load, left, use, gpu, zone)


def _sums(pods: Iterable[PodRecord], kind: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for pod in pods:
        for name, amount in getattr(pod, kind).items():
            total[name] = total.get(name, 0) + amount
    return total


def _use(known: float | None, otherwise: float) -> float:
    """An amount on the grid, never negative, never beyond what float64 sums exactly."""
    amount = otherwise if known is None or not math.isfinite(known) else known
    return round(min(max(amount, 0.0), MOST_USE) * GRID) / GRID


def _number(text: str | None, low: float, high: float, default: float) -> float:
    """A number written by a person, within bounds; the default where there is none or no number."""
    try:
        value = float(text) if text else default
    except ValueError:
        return default
    return min(max(value, low), high) if math.isfinite(value) else default
