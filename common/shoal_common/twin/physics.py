# SPDX-License-Identifier: Apache-2.0
"""What pods do to each other and to a node: rates of progress, slowdown, power.

Every equation is one small kernel. For a pod i of class c on a node of C cores, with u_i the CPU it wants:

- CPU sharing (cgroup v2, cpu.weight from requests): what is requested is guaranteed, the rest of the node is
  shared in proportion to unmet demand: a_i = min(u_i, r_i) + e_i min(1, (C - sum min(u, r)) / sum e),
  e_i = max(0, u_i - r_i). A limit caps u_i (cpu.max), which slows the pod by what it would have used more.
- Interference of like with like (Bubble-Up, Mars et al. 2011; Paragon, Delimitrou & Kozyrakis 2013):
  1 / (1 + a_c L), L = CPU wanted by *other* pods of the class / C.
- I/O: served in full up to the node's capacity, in proportion beyond it. An I/O share s_c of the work
  waits for I/O, the rest for CPU (Amdahl): 1/rate = (1 - s_c)/cpu + s_c/io.
- DPU (BlueField, iSCSI/NVMe-oF and OVS offload): a share o_c of the pod's CPU demand leaves the CPU.
- NUMA: a pod that no single zone holds runs at 1 - p (remote memory, 10 to 20 % in the literature).
- GPU sharing (time slicing): 1 / (1 + g F), F = fractional milli-GPU of other pods / devices.
- Service latency against load: slowdown = (1 + q max(0, rho - knee)^2) / rate, rho = sum u / C.
- Power (Fan, Weber & Barroso 2007): idle + (max - idle)(2 x - x^1.4), x = CPU used / C; GPUs linear in
  use; an empty node falls to deep idle (PowerNap, Meisner et al. 2009).
"""

from __future__ import annotations

import numpy as np

from shoal_common.cluster import (
    F64,
    N_CPU,
    N_DEEP_IDLE,
    N_DPU,
    N_GPU_WATTS,
    N_GPUS,
    N_IDLE_WATTS,
    N_IO_CAPACITY,
    N_IO_SPEED,
    N_MAX_WATTS,
    N_SPEED,
    P_CLASS,
    P_CPU,
    P_GPU,
    P_GPUS,
    P_SLA,
)
from shoal_common.kernels import lean_kernel

# constants of the physics, one row f64[PHYSICS]
Y_INTERFERENCE = 0  # .. + 3, by class
Y_IO_SHARE = 4  # .. + 3
Y_OFFLOAD = 8  # .. + 3
Y_NUMA = 12
Y_GPU_SHARING = 13
Y_QUEUE = 14
Y_KNEE = 15
PHYSICS = 16

# columns of a running pod that the physics reads, behind those of cluster.py
R_CPU = 9  # millicores it really wants (after its limit)
R_IO = 10
R_SPANS = 11  # 1 where no single NUMA zone holds it
R_USE = 12  # millicores it would use without a limit
RUNNING_COLUMNS = 13

# sums over a node's pods
S_WANTED = 0
S_GUARANTEED = 1
S_EXCESS = 2
S_IO = 3
S_LOAD = 4  # .. + 3
S_GPU = 8  # milli-GPU in use
S_SHARED = 9  # milli-GPU of pods that share a device
S_COUNT = 10
SUMS = 11

QOS_SLOPE = 2.0
SLOWEST = 1e-6  # no pod stands still altogether, so that every pod has a time of finish


def default_physics() -> F64:
    """The constants that the embedded fleet uses (see the module's sources and docs/twin.md)."""
    row = np.zeros(PHYSICS)
    row[Y_INTERFERENCE : Y_INTERFERENCE + 4] = (1.0, 0.45, 1.0, 0.35)
    row[Y_IO_SHARE : Y_IO_SHARE + 4] = (0.10, 0.02, 0.70, 0.10)
    row[Y_OFFLOAD : Y_OFFLOAD + 4] = (0.15, 0.0, 0.35, 0.05)
    row[Y_NUMA], row[Y_GPU_SHARING] = 0.12, 0.25
    row[Y_QUEUE], row[Y_KNEE] = 3.0, 0.6
    return row


@lean_kernel
def wanted(node: F64, physics: F64, pod: F64) -> float:
    """CPU that the pod wants on this node within its limit, millicores: a DPU takes its share off."""
    return float(pod[R_CPU] * (1.0 - physics[Y_OFFLOAD + int(pod[P_CLASS])] * node[N_DPU]))


@lean_kernel
def unlimited(node: F64, physics: F64, pod: F64) -> float:
    """CPU that the pod would want on this node without a limit, millicores."""
    return float(pod[R_USE] * (1.0 - physics[Y_OFFLOAD + int(pod[P_CLASS])] * node[N_DPU]))


@lean_kernel
def add_pod(sums: F64, node: F64, physics: F64, pod: F64, sign: float) -> None:
    """Add a pod to (or, with sign -1, take it off) a node's sums[SUMS]."""
    u = wanted(node, physics, pod)
    guaranteed = min(u, pod[P_CPU])
    sums[S_WANTED] += sign * u
    sums[S_GUARANTEED] += sign * guaranteed
    sums[S_EXCESS] += sign * (u - guaranteed)
    sums[S_IO] += sign * pod[R_IO]
    sums[S_LOAD + int(pod[P_CLASS])] += sign * u
    milli = pod[P_GPU] * pod[P_GPUS]
    sums[S_GPU] += sign * milli
    if 0.0 < pod[P_GPU] < 1000.0:
        sums[S_SHARED] += sign * milli
    sums[S_COUNT] += sign


@lean_kernel
def cpu_share(node: F64, sums: F64, pod: F64, u: float, full: float) -> float:
    """Share of the CPU that the pod would use without limit or neighbours that it gets."""
    got = u
    if sums[S_WANTED] > node[N_CPU]:
        left = max(0.0, node[N_CPU] - sums[S_GUARANTEED]) / max(sums[S_EXCESS], 1e-9)
        guaranteed = min(u, pod[P_CPU])
        got = guaranteed + (u - guaranteed) * min(1.0, left)
    return 1.0 if got == full else got / full


@lean_kernel
def stretch(node: F64, physics: F64, sums: F64, pod: F64) -> float:
    """Seconds that a second's work on the reference node alone takes; the pod is already in the sums."""
    c = int(pod[P_CLASS])
    u = wanted(node, physics, pod)
    cpu = max(node[N_SPEED] * cpu_share(node, sums, pod, u, unlimited(node, physics, pod)), SLOWEST)
    io = node[N_IO_SPEED]
    if sums[S_IO] > node[N_IO_CAPACITY]:
        io = max(io * node[N_IO_CAPACITY] / sums[S_IO], SLOWEST)
    waits = physics[Y_IO_SHARE + c]
    like = max(0.0, sums[S_LOAD + c] - u) / node[N_CPU]
    crowd = 1.0 + physics[Y_INTERFERENCE + c] * like
    if pod[R_SPANS] != 0.0:
        crowd /= 1.0 - physics[Y_NUMA]
    if 0.0 < pod[P_GPU] < 1000.0:
        others = max(0.0, sums[S_SHARED] - pod[P_GPU] * pod[P_GPUS]) / (1000.0 * max(node[N_GPUS], 1.0))
        crowd *= 1.0 + physics[Y_GPU_SHARING] * others
    return float(((1.0 - waits) * io + waits * cpu) / (cpu * io) * crowd)


@lean_kernel
def queueing(node: F64, physics: F64, sums: F64, pod: F64) -> float:
    """Factor of a service's latency as the node fills; 1 for other classes."""
    if pod[P_CLASS] != 0:
        return 1.0
    over = max(0.0, sums[S_WANTED] / node[N_CPU] - physics[Y_KNEE])
    return float(1.0 + physics[Y_QUEUE] * over * over)


@lean_kernel
def qos_loss(pod: F64, slow: float) -> float:
    """Clipped excess of the slowdown over the SLA, in [0, 1]."""
    return float(min(1.0, max(0.0, QOS_SLOPE * (slow / pod[P_SLA] - 1.0))))


@lean_kernel
def watts(node: F64, sums: F64) -> float:
    """Power of a node that is up."""
    if sums[S_COUNT] < 0.5:
        return float(node[N_IDLE_WATTS] * node[N_DEEP_IDLE])
    x = min(1.0, max(0.0, sums[S_WANTED] / node[N_CPU]))
    curve = 2.0 * x - x**1.4
    gpu = node[N_GPU_WATTS] * sums[S_GPU] / 1000.0
    return float(node[N_IDLE_WATTS] + (node[N_MAX_WATTS] - node[N_IDLE_WATTS]) * curve + gpu)


@lean_kernel
def deep_watts(node: F64) -> float:
    """Power of the empty node."""
    return float(node[N_IDLE_WATTS] * node[N_DEEP_IDLE])
