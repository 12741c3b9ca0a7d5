# SPDX-License-Identifier: Apache-2.0
"""`Cluster`: the nodes as a struct of arrays, one form for live, trace and virtual clusters.

Two packed float64 tables hold the numbers that kernels read, with named columns: `node` what a node is
(`N_*`), `use` what is on it now (`U_*`). Requests and allocatable are whole numbers of millicores, bytes and
milli-GPU, far below 2**53, so float64 holds them exactly. The twin's batch is the same tables with a leading
axis; features and scorers never know which it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal_common.kernels import lean_kernel

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

MAX_GPUS = 8
MAX_ZONES = 4

# node: what a node is
N_CPU = 0  # allocatable CPU, millicores
N_MEMORY = 1  # allocatable memory, bytes
N_GPUS = 2  # devices
N_PODS = 3  # allocatable pods
N_SPEED = 4  # CPU speed relative to the reference node
N_IO_SPEED = 5  # I/O speed relative to the reference node
N_IO_CAPACITY = 6  # I/O a node can serve, in the unit of the pods' I/O
N_IDLE_WATTS = 7
N_MAX_WATTS = 8
N_GPU_WATTS = 9  # per device at full use
N_DEEP_IDLE = 10  # power of the empty node as a share of its idle power
N_DPU = 11  # 1 where a DPU takes network and storage work off the CPU
N_ZONES = 12  # NUMA zones
N_EXISTS = 13  # 0 for padding
NODE_COLUMNS = 14

# use: what is on it now
U_CPU = 0  # requested, millicores
U_MEMORY = 1  # requested, bytes
U_GPU = 2  # requested, milli-GPU
U_PODS = 3
U_CPU_NONZERO = 4  # as U_CPU, with kube-scheduler's 100m for containers that ask for nothing
U_MEMORY_NONZERO = 5  # as U_MEMORY, with 200Mi
U_CPU_WANTED = 6  # millicores that the running pods would use
U_IO_WANTED = 7
U_LOAD = 8  # .. U_LOAD + 3: millicores wanted by class (service, compute, io, gpu)
U_REMAINING = 12  # mean share of the expected time that is left
U_UP = 13  # 0 while the node has failed or is cordoned
U_FAILURES = 14  # failures in the last hour
U_MEMORY_WANTED = 15  # bytes that the running pods hold
USE_COLUMNS = 16

# pod: what a scheduler knows of a pod
P_CPU = 0  # request, millicores
P_MEMORY = 1  # request, bytes
P_GPU = 2  # milli-GPU a device
P_GPUS = 3  # devices
P_CLASS = 4  # 0 service, 1 compute, 2 io, 3 gpu
P_CPU_USE = 5  # millicores the app is known to use
P_IO_USE = 6
P_SLA = 7  # allowed slowdown
P_DURATION = 8  # mean past duration of the app, seconds
POD_COLUMNS = 9

DEFAULT_MILLICPU = 100.0  # k8s: DefaultMilliCPURequest
DEFAULT_MEMORY = 200.0 * 1024 * 1024  # k8s: DefaultMemoryRequest


@lean_kernel
def nonzero_cpu(request: float) -> float:
    """The CPU that kube-scheduler's scores count for a request: 100m for none."""
    return request if request > 0 else DEFAULT_MILLICPU


@lean_kernel
def nonzero_memory(request: float) -> float:
    """The memory that kube-scheduler's scores count for a request: 200Mi for none."""
    return request if request > 0 else DEFAULT_MEMORY


@lean_kernel
def zone_share(amount: float, zone: int, zones: int) -> float:
    """What one of a node's NUMA zones has of its CPU or memory: equal whole parts, zone 0 the rest."""
    part = amount // zones
    return amount - part * (zones - 1) if zone == 0 else part


@lean_kernel
def gpu_fits(gpu_free: F64, devices: int, milli: float, count: int) -> bool:
    """Whether `count` devices of a node have `milli` milli-GPU left each."""
    if count == 0:
        return True
    found = 0
    for g in range(devices):
        if gpu_free[g] >= milli:
            found += 1
            if found >= count:
                return True
    return False


@lean_kernel
def fits(node: F64, use: F64, gpu_free: F64, pod: F64) -> bool:
    """NodeResourcesFit for one node row and one pod row (noderesources/fit.go), plus milli-GPU."""
    if node[N_EXISTS] == 0 or use[U_UP] == 0 or use[U_PODS] + 1 > node[N_PODS]:
        return False
    if pod[P_CPU] > 0 and pod[P_CPU] > node[N_CPU] - use[U_CPU]:
        return False
    if pod[P_MEMORY] > 0 and pod[P_MEMORY] > node[N_MEMORY] - use[U_MEMORY]:
        return False
    return gpu_fits(gpu_free, int(node[N_GPUS]), pod[P_GPU], int(pod[P_GPUS]))


@lean_kernel
def feasible_mask(node: F64, use: F64, gpu_free: F64, pod: F64, out: Mask) -> int:
    """Fill out[N] with the nodes that fit the pod and return how many there are."""
    count = 0
    for n in range(len(node)):
        out[n] = fits(node[n], use[n], gpu_free[n], pod)
        count += out[n]
    return count


@lean_kernel
def zone_holds(zone_free: F64, zones: int, pod: F64) -> bool:
    """Whether one of a node's NUMA zones holds the whole pod; zone_free [MAX_ZONES, 2]."""
    for z in range(zones):  # noqa: SIM110 (compiled: a generator would not be)
        if pod[P_CPU] <= zone_free[z, 0] and pod[P_MEMORY] <= zone_free[z, 1]:
            return True
    return False


@lean_kernel
def single_numa_mask(node: F64, zone_free: F64, pod: F64, out: Mask) -> int:
    """Fill out[N] with the nodes where one NUMA zone holds the whole pod (policy single-numa-node)."""
    count = 0
    for n in range(len(node)):
        out[n] = zone_holds(zone_free[n], int(node[n, N_ZONES]), pod)
        count += out[n]
    return count


@dataclass(slots=True)
class Cluster:
    """N nodes as tables; views into the twin's batch where the cluster is virtual.

    Shapes: node [N, NODE_COLUMNS], use [N, USE_COLUMNS], gpu_free [N, MAX_GPUS] in milli-GPU,
    zone_free [N, MAX_ZONES, 2] (millicores, bytes). Topology is present as far as a source has it:
    zone and rack are indices (-1 unknown), links [N, MAX_GPUS, MAX_GPUS] counts NVLink bonds.
    """

    names: tuple[str, ...]
    node: F64
    use: F64
    gpu_free: F64
    zone_free: F64
    zone: npt.NDArray[np.int32]
    rack: npt.NDArray[np.int32]
    links: npt.NDArray[np.uint8]
    accelerator: tuple[str, ...]  # model of the node's devices, "" without
    software: tuple[dict[str, str], ...] = field(default_factory=tuple)  # driver, CUDA, MIG labels

    def __len__(self) -> int:
        return len(self.node)

    def feasible(self, pod: F64) -> Mask:
        """Nodes that fit the pod row [POD_COLUMNS], as bool[N]."""
        out = np.zeros(len(self), dtype=np.bool_)
        feasible_mask(self.node, self.use, self.gpu_free, pod, out)
        return out

    def single_numa(self, pod: F64) -> Mask:
        """Nodes where one NUMA zone holds the pod row, as bool[N]."""
        out = np.zeros(len(self), dtype=np.bool_)
        single_numa_mask(self.node, self.zone_free, pod, out)
        return out
