# SPDX-License-Identifier: Apache-2.0
"""Cluster + pod -> Observation: the kernels that fill the feature tables of `observation.py`.

A node's features depend on that node alone, so they are re-encoded only when the node changes; what
concerns the pair (pod, node) is filled for every decision. Each value is clipped to its public bounds.
"""

from __future__ import annotations

import math

import numpy as np

from shoal_common.cluster import (
    F32,
    F64,
    N_CPU,
    N_DEEP_IDLE,
    N_DPU,
    N_EXISTS,
    N_GPUS,
    N_IDLE_WATTS,
    N_IO_CAPACITY,
    N_IO_SPEED,
    N_MAX_WATTS,
    N_MEMORY,
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
    U_CPU,
    U_CPU_WANTED,
    U_FAILURES,
    U_GPU,
    U_IO_WANTED,
    U_LOAD,
    U_MEMORY,
    U_PODS,
    U_REMAINING,
    U_UP,
    zone_holds,
)
from shoal_common.kernels import lean_kernel
from shoal_common.observation import (
    CONTEXT_FEATURES,
    NODE_FEATURES,
    PAIR_FEATURES,
    TASK_FEATURES,
    Feature,
)

GIB = 1024.0**3


def _bounds(table: tuple[Feature, ...]) -> tuple[F32, F32]:
    low = np.array([f.low for f in table], dtype=np.float32)
    return low, np.array([f.high for f in table], dtype=np.float32)


NODE_LOW, NODE_HIGH = _bounds(NODE_FEATURES)
PAIR_LOW, PAIR_HIGH = _bounds(PAIR_FEATURES)
TASK_LOW, TASK_HIGH = _bounds(TASK_FEATURES)
CONTEXT_LOW, CONTEXT_HIGH = _bounds(CONTEXT_FEATURES)


@lean_kernel
def clip(row: F32, low: F32, high: F32) -> None:
    """Clip a feature row to its public bounds, in place."""
    for i in range(len(row)):
        row[i] = min(max(row[i], low[i]), high[i])


@lean_kernel
def encode_node(node: F64, use: F64, gpu: F64, zone: F64, out: F32) -> None:
    """Fill out[FN] with the features of one node."""
    out[:] = 0.0
    if node[N_EXISTS] == 0:
        return
    cpu, memory, devices = node[N_CPU], node[N_MEMORY], int(node[N_GPUS])
    out[0] = (cpu - use[U_CPU]) / cpu
    out[1] = (memory - use[U_MEMORY]) / memory
    whole, largest = 0.0, 0.0
    for g in range(devices):
        whole += gpu[g] >= 1000.0
        largest = max(largest, gpu[g])
    if devices > 0:
        out[2] = 1.0 - use[U_GPU] / (1000.0 * devices)
    out[3], out[4] = whole / 8.0, largest / 1000.0
    out[5] = use[U_CPU_WANTED] / cpu
    out[6] = use[U_IO_WANTED] / node[N_IO_CAPACITY]
    for c in range(4):
        out[7 + c] = use[U_LOAD + c] / cpu
    out[11] = 1.0 if use[U_PODS] == 0 and use[U_UP] == 1 else 0.0
    out[12], out[13], out[14] = 1.0 if devices > 0 else 0.0, devices / 8.0, node[N_DPU]
    out[15], out[16] = node[N_SPEED] - 1.0, (node[N_IO_SPEED] - 1.0) / 2.0
    out[17], out[18] = cpu / 64_000.0, memory / GIB / (cpu / 1000.0) / 16.0
    out[19] = node[N_IDLE_WATTS] / 400.0
    out[20] = (node[N_MAX_WATTS] - node[N_IDLE_WATTS]) / (cpu / 1000.0) / 20.0
    out[21], out[22], out[23] = node[N_DEEP_IDLE], use[U_PODS] / 64.0, use[U_REMAINING]
    zones = int(node[N_ZONES])
    for z in range(zones):
        out[24] = max(out[24], zone[z, 0] / (cpu / zones))
    out[25] = use[U_FAILURES] / 4.0
    clip(out, NODE_LOW, NODE_HIGH)


@lean_kernel
def encode_nodes(node: F64, use: F64, gpu: F64, zone: F64, out: F32) -> None:
    """Fill out[N, FN] with the features of every node."""
    for n in range(len(node)):
        encode_node(node[n], use[n], gpu[n], zone[n], out[n])


@lean_kernel
def encode_pairs(node: F64, use: F64, zone: F64, pod: F64, out: F32) -> None:
    """Fill out[N, FP] with what concerns the pod on each node."""
    load, gpus = U_LOAD + int(pod[P_CLASS]), pod[P_GPU] * pod[P_GPUS]
    for n in range(len(node)):
        row = out[n]
        if node[n, N_EXISTS] == 0:
            row[:] = 0.0
            continue
        per_cpu = 1.0 / node[n, N_CPU]
        row[0] = (node[n, N_CPU] - use[n, U_CPU] - pod[P_CPU]) * per_cpu
        row[1] = (node[n, N_MEMORY] - use[n, U_MEMORY] - pod[P_MEMORY]) / node[n, N_MEMORY]
        row[2] = (1000.0 * node[n, N_GPUS] - use[n, U_GPU] - gpus) / 8000.0
        row[3] = use[n, load] * per_cpu
        row[4] = 1.0 if zone_holds(zone[n], int(node[n, N_ZONES]), pod) else 0.0
        row[5] = pod[P_CPU_USE] * per_cpu
        clip(row, PAIR_LOW, PAIR_HIGH)


@lean_kernel
def encode_task(pod: F64, out: F32) -> None:
    """Fill out[FT] with the features of the pod."""
    out[:] = 0.0
    out[int(pod[P_CLASS])] = 1.0
    out[4], out[5] = pod[P_CPU] / 16_000.0, pod[P_MEMORY] / GIB / 64.0
    out[6] = pod[P_GPU] * pod[P_GPUS] / 8000.0
    out[7] = pod[P_CPU_USE] / max(pod[P_CPU], 1.0)
    out[8], out[9] = pod[P_IO_USE] / 4.0, pod[P_SLA] - 1.0
    out[10] = math.log10(max(pod[P_DURATION], 1.0)) / 5.0
    clip(out, TASK_LOW, TASK_HIGH)


@lean_kernel
def encode_context(
    node: F64, use: F64, pending: float, price: float, charge: float, phase: float, out: F32
) -> None:
    """Fill out[FC] with the cluster as a whole; `phase` is the time of day in radians."""
    nodes, active, cpu, cpu_used, gpu, gpu_used = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for n in range(len(node)):
        nodes += node[n, N_EXISTS]
        active += use[n, U_PODS] > 0
        cpu += node[n, N_CPU]
        cpu_used += use[n, U_CPU]
        gpu += 1000.0 * node[n, N_GPUS]
        gpu_used += use[n, U_GPU]
    out[0], out[1] = pending / 32.0, active / max(nodes, 1.0)
    out[2], out[3] = 1.0 - cpu_used / max(cpu, 1.0), 1.0 - gpu_used / max(gpu, 1.0) if gpu > 0 else 0.0
    out[4] = math.log2(max(nodes, 1.0)) / 13.0
    out[5], out[6] = price / 2.0, charge
    out[7], out[8] = math.sin(phase), math.cos(phase)
    clip(out, CONTEXT_LOW, CONTEXT_HIGH)
