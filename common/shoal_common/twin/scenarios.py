# SPDX-License-Identifier: Apache-2.0
"""What a virtual cluster is made of, and the arrivals that a seed gives it.

The embedded fleet is generated here. Node classes and constants come from published ranges (docs/twin.md);
apps (what a pod asks for, really uses, how long it runs) belong to the cluster and stay the same for every
arrival seed, as teams keep deploying the same things.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import (
    F64,
    MAX_GPUS,
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
    NODE_COLUMNS,
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_DURATION,
    P_GPU,
    P_GPUS,
    P_IO_USE,
    P_MEMORY,
    P_SLA,
)
from shoal_common.twin.physics import R_CPU, R_IO, R_USE
from shoal_common.twin.state import (
    D_DECISION,
    D_NODE,
    T_ARRIVAL,
    T_CPU_ASKED,
    T_LIMIT_RATIO,
    T_MEMORY_ASKED,
    T_MEMORY_USE,
    T_WORK,
    TWIN_POD_COLUMNS,
)
from shoal_common.twin.traced import LONGEST_SECONDS, SHORTEST_SECONDS, TRAINING_SEED, Recorded

GIB = 1024**3
CLASSES = ("service", "compute", "io", "gpu")


@dataclass(frozen=True, slots=True)
class NodeClass:
    """One kind of node. Power in watts, speeds relative to a reference node, deep idle as a share of idle."""

    name: str
    cores: float
    memory_gib: float
    gpus: int = 0
    speed: float = 1.0
    io_speed: float = 1.0
    io_capacity: float = 4.0
    idle_watts: float = 100.0
    max_watts: float = 300.0
    gpu_watts: float = 220.0
    deep_idle: float = 0.1
    dpu: bool = False
    numa_zones: int = 2
    accelerator: str = ""
    nvlink: bool = False
    software: tuple[tuple[str, str], ...] = ()  # labels of its accelerator software
    pods: int = 110

    @property
    def labels(self) -> dict[str, str]:
        """What GPU feature discovery would say of the node's devices and software; empty without GPUs."""
        if self.gpus == 0:
            return {}
        return {"nvidia.com/gpu.product": self.accelerator or "unknown"} | dict(self.software)

    def row(self) -> F64:
        """The class as one row f64[NODE_COLUMNS] of `Cluster.node`."""
        row = np.zeros(NODE_COLUMNS)
        row[N_CPU], row[N_MEMORY] = round(self.cores * 1000), round(self.memory_gib * GIB)
        row[N_GPUS], row[N_PODS] = self.gpus, self.pods
        row[N_SPEED], row[N_IO_SPEED], row[N_IO_CAPACITY] = self.speed, self.io_speed, self.io_capacity
        row[N_IDLE_WATTS], row[N_MAX_WATTS], row[N_GPU_WATTS] = (
            self.idle_watts,
            self.max_watts,
            self.gpu_watts,
        )
        row[N_DEEP_IDLE], row[N_DPU] = self.deep_idle, self.dpu
        row[N_ZONES], row[N_EXISTS] = self.numa_zones, 1
        return row


_GPU_SOFTWARE = (  # a GPU operator of 2025: driver and CUDA, by the labels of GPU feature discovery
    ("nvidia.com/cuda.driver-version.full", "570.172.08"),
    ("nvidia.com/cuda.runtime-version.full", "12.8"),
)
_MIG_SOFTWARE = (*_GPU_SOFTWARE, ("nvidia.com/mig.capable", "true"), ("nvidia.com/mig.strategy", "mixed"))
_CLASSES = (
    NodeClass("old-cpu", 16, 64, 0, 0.70, 1.0, 4.0, 110, 280),
    NodeClass("new-cpu", 32, 128, 0, 1.15, 1.0, 6.0, 95, 290),
    NodeClass("gpu", 24, 96, 4, 1.0, 1.0, 5.0, 160, 380, 220, accelerator="T4", software=_GPU_SOFTWARE),
    NodeClass("dpu", 16, 64, 0, 0.85, 2.2, 14.0, 90, 200, dpu=True),
    NodeClass("cpu64", 64, 256, 0, 1.0, 1.0, 8.0, 150, 420),
    NodeClass(
        "a100x2",
        64,
        256,
        2,
        1.05,
        1.2,
        8.0,
        180,
        450,
        400,
        accelerator="A100-40GB",
        nvlink=True,
        software=_MIG_SOFTWARE,
    ),
    NodeClass("bluefield", 64, 256, 0, 0.95, 2.2, 24.0, 160, 430, dpu=True),
)
NODE_CLASSES: dict[str, NodeClass] = {c.name: c for c in _CLASSES}


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals of one cluster. Times in seconds; the mix is over (service, compute, io, gpu) pods."""

    mix: tuple[float, float, float, float] = (0.40, 0.25, 0.25, 0.10)
    load: float = 0.66  # requested CPU that is offered / cores
    apps: int = 28
    diurnal: float = 0.35  # amplitude of the arrival rate
    period_seconds: float = 7200.0
    bursts_per_hour: float = 3.0
    burst_pods: float = 8.0
    heavy_tail: float = 0.0  # share of pods whose duration is Pareto (index 1.5)
    mean_seconds: tuple[float, float] = (200.0, 1400.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A virtual cluster: its nodes by class, its workload, its site."""

    name: str
    nodes: tuple[tuple[NodeClass, int], ...]
    workload: Workload = field(default_factory=Workload)
    seconds: float = 7200.0
    price_amplitude: float = 0.3
    battery_wh: float = 0.0
    failures_per_node_day: float = 0.0
    repair_seconds: float = 600.0
    recorded: Recorded | None = None  # pods of a trace instead of generated ones

    @property
    def node_rows(self) -> F64:
        """The nodes as f64[N, NODE_COLUMNS], class by class."""
        return np.concatenate([np.repeat(c.row()[None], count, axis=0) for c, count in self.nodes])

    @property
    def cores(self) -> float:
        """Allocatable cores of the cluster."""
        return float(self.node_rows[:, N_CPU].sum() / 1000)

    def generator(self, *key: int) -> np.random.Generator:
        """A generator that depends on the cluster's name and the key alone."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return np.random.default_rng([int.from_bytes(digest[:8], "little"), *key])


def embedded_fleet() -> tuple[Scenario, ...]:
    """Four clusters that differ in size, hardware and mix; the last one is short of GPUs."""
    old, new, gpu, dpu = (NODE_CLASSES[n] for n in ("old-cpu", "new-cpu", "gpu", "dpu"))
    return (
        Scenario("harbour", ((old, 8), (new, 8), (gpu, 4), (dpu, 4)), Workload()),
        Scenario(
            "meadow", ((old, 6), (new, 6), (gpu, 2), (dpu, 2)), Workload((0.65, 0.20, 0.10, 0.05), 0.62)
        ),
        Scenario(
            "quarry", ((old, 10), (new, 14), (gpu, 4), (dpu, 4)), Workload((0.20, 0.50, 0.20, 0.10), 0.70)
        ),
        Scenario(
            "summit", ((old, 12), (new, 10), (gpu, 6), (dpu, 8)), Workload((0.30, 0.15, 0.35, 0.20), 0.66)
        ),
    )


def article(scale: float = 1.0) -> Scenario:
    """The article's testbed, 150 CPU, 40 GPU and 10 DPU nodes, at any scale."""
    counts = [max(1, round(scale * n)) for n in (150, 40, 10)]
    classes = [NODE_CLASSES[n] for n in ("cpu64", "a100x2", "bluefield")]
    workload = Workload((0.40, 0.25, 0.25, 0.10), 0.66, apps=60)
    return Scenario(f"article-{sum(counts)}", tuple(zip(classes, counts, strict=True)), workload, 86_400.0)


def equal_nodes(scenario: Scenario) -> Scenario:
    """The same cluster with every node of one class but for its GPUs: what there is to learn shrinks."""
    base = NODE_CLASSES["new-cpu"]
    nodes = tuple(
        (replace(base, name=c.name, cores=c.cores, memory_gib=c.memory_gib, gpus=c.gpus, speed=1.0), n)
        for c, n in scenario.nodes
    )
    return replace(scenario, name=f"{scenario.name}-equal", nodes=nodes)


@dataclass(frozen=True, slots=True)
class Apps:
    """The apps of a cluster, one entry each: shares, requests, use, durations."""

    share: F64
    kind: npt.NDArray[np.int64]
    cpu_milli: F64
    memory: F64
    gpu_milli: F64
    gpus: F64
    use_ratio: F64
    memory_ratio: F64
    io: F64
    sla: F64
    seconds: F64


def make_apps(scenario: Scenario) -> Apps:
    """Draw the cluster's apps: requests by class, real use 25 to 95 % of them, mean durations."""
    rng, work = scenario.generator(0), scenario.workload
    mix = np.asarray(work.mix)
    count = work.apps
    # every class that occurs gets an app; the rest by the mix
    kind = np.concatenate([np.flatnonzero(mix > 0), rng.choice(4, size=count, p=mix / mix.sum())])[:count]
    weight = rng.uniform(0.5, 1.5, count)
    of_kind = np.array([weight[kind == k].sum() for k in range(4)])
    share = mix[kind] * weight / of_kind[kind]
    low, high = np.array([0.5, 2.0, 1.0, 2.0]), np.array([4.0, 10.0, 6.0, 8.0])
    cpu = np.round(1000 * (low[kind] + (high - low)[kind] * rng.random(count)), -2)
    memory = np.round(cpu / 1000 * rng.uniform(1.0, 4.0, count) * 1024) * 1024**2
    fraction = rng.choice([250.0, 500.0, 1000.0], size=count, p=[0.25, 0.25, 0.5])
    devices = np.where(fraction < 1000, 1.0, rng.choice([1.0, 2.0], size=count, p=[0.75, 0.25]))
    is_gpu = kind == 3
    io, sla = _unrecorded(rng, kind, count)
    return Apps(
        share=share / share.sum(),
        kind=kind,
        cpu_milli=cpu,
        memory=memory,
        gpu_milli=np.where(is_gpu, fraction, 0.0),
        gpus=np.where(is_gpu, devices, 0.0),
        use_ratio=rng.uniform(0.25, 0.95, count),
        memory_ratio=rng.uniform(0.4, 0.9, count),
        io=io,
        sla=sla,
        seconds=rng.uniform(*work.mean_seconds, count),
    )


def arrival_times(scenario: Scenario, rate: float, rng: np.random.Generator) -> F64:
    """Diurnal Poisson arrivals by thinning (Lewis & Shedler 1979), `rate` per second on average."""
    work = scenario.workload
    top = rate * (1 + work.diurnal)
    count = rng.poisson(top * scenario.seconds)
    times = np.sort(rng.uniform(0, scenario.seconds, count))
    keep = 1 + work.diurnal * np.sin(2 * np.pi * times / work.period_seconds)
    return times[rng.random(count) * (1 + work.diurnal) < keep]


def make_pods(scenario: Scenario, seed: int) -> F64:
    """The pods that arrive under a seed, f64[M, TWIN_POD_COLUMNS] in order of arrival."""
    if scenario.recorded is not None:
        return _recorded_pods(scenario, scenario.recorded, seed)
    apps, work, rng = make_apps(scenario), scenario.workload, scenario.generator(1, seed)
    demand = float((apps.share * apps.cpu_milli * apps.seconds).sum())  # millicore seconds a pod
    rate = work.load * scenario.cores * 1000 / demand
    burst_rate = work.bursts_per_hour / 3600
    base = max(rate - burst_rate * work.burst_pods, 0.25 * rate)
    times = arrival_times(scenario, base, rng)
    app = rng.choice(len(apps.share), size=len(times), p=apps.share)
    for begin in np.sort(rng.uniform(0, scenario.seconds, rng.poisson(burst_rate * scenario.seconds))):
        size = rng.poisson(work.burst_pods)
        times = np.concatenate([times, begin + rng.uniform(0, 60, size)])
        app = np.concatenate([app, np.full(size, rng.choice(len(apps.share), p=apps.share))])
    order = np.argsort(times, kind="stable")
    return _pod_rows(apps, times[order], app[order], work, rng)


def _recorded_pods(scenario: Scenario, trace: Recorded, seed: int) -> F64:
    """A window of a trace; each request shape is an app whose unrecorded properties are drawn."""
    rows, shape = trace.shapes()
    draw, work, rng = scenario.generator(0), scenario.workload, scenario.generator(1, seed)
    kind, count = trace.kind[rows], len(rows)
    uses, tolerates = _unrecorded(draw, kind, count)
    means = np.bincount(shape, trace.seconds) / np.bincount(shape)
    ratio, memory_ratio = draw.uniform(0.25, 0.95, count), draw.uniform(0.4, 0.9, count)
    if trace.known is not None:
        ratio, uses, tolerates = (np.bincount(shape, column) / np.bincount(shape) for column in trace.known.T)
    apps = Apps(
        share=np.bincount(shape) / len(shape),
        kind=kind,
        cpu_milli=trace.cpu_milli[rows],
        memory=trace.memory[rows],
        gpu_milli=trace.gpu_milli[rows],
        gpus=trace.gpus[rows],
        io=uses,
        sla=tolerates,
        use_ratio=ratio,
        memory_ratio=memory_ratio,
        seconds=np.clip(means, SHORTEST_SECONDS, LONGEST_SECONDS),
    )
    nodes = scenario.node_rows
    capacity = [nodes[:, column].sum() for column in (N_CPU, N_MEMORY, N_GPUS, N_PODS)]
    offered = work.load * np.array(capacity) * np.array([1, 1, 1000, 1])
    picked, times = trace.window(offered, scenario.seconds, seed >= TRAINING_SEED, rng)
    pods = _pod_rows(apps, times, shape[picked], work, rng)
    pods[:, T_WORK] = np.clip(trace.seconds[picked], SHORTEST_SECONDS, LONGEST_SECONDS)
    return pods


def _unrecorded(rng: np.random.Generator, kind: npt.NDArray[np.int64], count: int) -> tuple[F64, F64]:
    """I/O that pods want and the slowdown they tolerate, by class."""
    io = np.array([0.15, 0.05, 1.2, 0.2])[kind] * rng.uniform(0.5, 1.5, count)
    sla = np.maximum(1.1, np.array([1.2, 1.4, 1.4, 1.3])[kind] * rng.uniform(0.9, 1.3, count))
    return io, sla


def _pod_rows(
    apps: Apps, times: F64, app: npt.NDArray[np.int64], work: Workload, rng: np.random.Generator
) -> F64:
    count = len(times)
    pods = np.zeros((count, TWIN_POD_COLUMNS))
    seconds = apps.seconds[app] * rng.lognormal(-0.5, 1.0, count)  # mean as the app's
    if work.heavy_tail > 0:
        heavy = rng.random(count) < work.heavy_tail
        seconds = np.where(heavy, apps.seconds[app] * (1 + rng.pareto(1.5, count)), seconds)
    cpu, memory = apps.cpu_milli[app], apps.memory[app]
    use = np.minimum(apps.use_ratio[app] * rng.lognormal(0.0, 0.25, count), 1.5) * cpu
    pods[:, P_CPU], pods[:, P_MEMORY] = cpu, memory
    pods[:, P_GPU], pods[:, P_GPUS] = apps.gpu_milli[app], apps.gpus[app]
    pods[:, P_CLASS], pods[:, P_SLA] = apps.kind[app], apps.sla[app]
    pods[:, P_CPU_USE], pods[:, P_IO_USE] = apps.use_ratio[app] * cpu, apps.io[app]
    pods[:, P_DURATION] = apps.seconds[app]
    pods[:, R_IO] = apps.io[app] * rng.lognormal(0.0, 0.25, count)
    pods[:, T_ARRIVAL], pods[:, T_WORK] = times, np.clip(seconds, SHORTEST_SECONDS, LONGEST_SECONDS)
    pods[:, R_USE], pods[:, T_LIMIT_RATIO] = use, 1.5
    pods[:, R_CPU] = use
    pods[:, T_MEMORY_USE] = np.minimum(apps.memory_ratio[app] * rng.lognormal(0.0, 0.15, count), 1.3) * memory
    pods[:, T_CPU_ASKED], pods[:, T_MEMORY_ASKED] = cpu, memory
    pods[:, [D_DECISION, D_NODE]] = -1.0
    return pods


def make_faults(scenario: Scenario, seed: int) -> F64:
    """Node failures under a seed, f64[Q, 3]: time, node, seconds down."""
    rng = scenario.generator(2, seed)
    nodes = sum(count for _, count in scenario.nodes)
    mean = scenario.failures_per_node_day * nodes * scenario.seconds / 86_400
    count = int(rng.poisson(mean))
    rows = np.zeros((count, 3))
    rows[:, 0] = np.sort(rng.uniform(0, scenario.seconds, count))
    rows[:, 1] = rng.integers(0, nodes, count)
    rows[:, 2] = rng.exponential(scenario.repair_seconds, count)
    return rows


def links(node_class: NodeClass) -> npt.NDArray[np.uint8]:
    """NVLink bonds between the devices of a node of the class, u8[MAX_GPUS, MAX_GPUS]."""
    bonds = np.zeros((MAX_GPUS, MAX_GPUS), dtype=np.uint8)
    if node_class.nvlink:
        bonds[: node_class.gpus, : node_class.gpus] = 1
        np.fill_diagonal(bonds, 0)
    return bonds
