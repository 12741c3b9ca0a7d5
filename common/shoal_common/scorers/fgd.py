# SPDX-License-Identifier: Apache-2.0
"""The FGD family, compiled: Random, DotProd, GpuClustering, GpuPacking, BestFit and FGD, node and device.

Source: Weng, Yang et al., "Beware of Fragmentation", USENIX ATC'23, and its simulator (pkg/simulator/plugin).
Raw scores are integers 0..100. A score depends on the node's state and the pod's specification only, so it is
cached by (specification, node) and computed again only for nodes that changed since. Nodes lie in tie order:
of equal scores the first wins.

BestFit's min-max normalisation with integer division keeps the set of best nodes, since only the highest
raw score becomes 100; the choice needs no normalised scores, and `normalised` is for whoever shows them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_common.accelerators.sharing import MILLI, allocate, fits, free, tightest, tightest_device, whole
from shoal_common.kernels import kernel
from shoal_common.scorers.fragmentation import PodSpecs, TypicalPods, node_fragmentation

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

POLICIES = ("random", "dotprod", "gpuclustering", "gpupacking", "bestfit", "fgd")
RANDOM, DOTPROD, GPU_CLUSTERING, GPU_PACKING, BEST_FIT, FGD = range(len(POLICIES))

MAX_CPU_MILLI = 128_000
MAX_GPU_MILLI = 8_000
"""The largest node of openb, by which DotProd and BestFit divide (MaxSpecCpu, MaxSpecGpu)."""

INFEASIBLE = -(2**15)
"""Below every score: DotProd and BestFit turn negative on nodes larger than those of openb."""


class Nodes(NamedTuple):
    """State of N nodes in tie order; the arrays change in place."""

    cpu_left: I64  # [N] milli-CPU
    memory_left: I64  # [N] MiB
    gpu_left: I64  # [N, G] milli-GPU per device
    gpu_count: I64  # [N] devices
    model: I64  # [N] bit of the GPU model; 0 without
    classes: I64  # [N, G + 1] GPU pods running: share pods in column 0, k-device pods in column k
    pods: I64  # [N] pods running
    gpu_pods_cpu: I64  # [N] milli-CPU of the GPU pods running
    fragmentation: F64  # [N] milli-GPU, see fragmentation.py
    version: I64  # [N] counts the changes of a node


class State(NamedTuple):
    """Everything a score depends on."""

    nodes: Nodes
    specs: PodSpecs
    typical: TypicalPods


class ScoreCache(NamedTuple):
    """Raw scores by (specification, node), each with the node version it was computed for; both [S, N]."""

    score: npt.NDArray[np.int16]
    version: I64


def empty_nodes(cpu_milli: I64, memory_mib: I64, gpu_count: I64, model: I64) -> Nodes:
    """Nodes on which nothing runs; all arguments [N], in tie order. Their F is for `start` to compute."""
    n, width = len(cpu_milli), max(1, int(gpu_count.max(initial=1)))
    gpu_left = np.where(np.arange(width) < gpu_count[:, None], MILLI, 0).astype(np.int64)
    return Nodes(
        cpu_milli.astype(np.int64),
        memory_mib.astype(np.int64),
        gpu_left,
        gpu_count.astype(np.int64),
        model.astype(np.int64),
        np.zeros((n, width + 1), dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n),
        np.zeros(n, dtype=np.int64),
    )


def start(nodes: Nodes, specs: PodSpecs, typical: TypicalPods) -> State:
    """The state of these nodes, every F computed."""
    state = State(nodes, specs, typical)
    for i in range(len(nodes.version)):
        update(state, i)
    return state


def empty_cache(num_specs: int, num_nodes: int) -> ScoreCache:
    """A cache in which every score is out of date."""
    shape = (num_specs, num_nodes)
    return ScoreCache(np.full(shape, INFEASIBLE, dtype=np.int16), np.full(shape, -1, dtype=np.int64))


@kernel
def update(state: State, node: int) -> None:
    """Note that a node changed: its F is computed again and its cached scores are out of date."""
    nodes = state.nodes
    nodes.fragmentation[node] = node_fragmentation(
        nodes.cpu_left[node],
        nodes.gpu_left[node],
        nodes.gpu_count[node],
        nodes.model[node],
        state.typical,
    )
    nodes.version[node] += 1


@kernel
def feasible(state: State, s: int, node: int) -> bool:
    """Whether CPU, memory, GPU model and devices suffice; pods without GPU go anywhere."""
    nodes, specs = state.nodes, state.specs
    if nodes.cpu_left[node] < specs.cpu_milli[s] or nodes.memory_left[node] < specs.memory_mib[s]:
        return False
    if specs.num_gpu[s] == 0:
        return True
    if specs.models[s] != 0 and specs.models[s] & nodes.model[node] == 0:
        return False
    return fits(nodes.gpu_left[node], nodes.gpu_count[node], specs.gpu_milli[s], specs.num_gpu[s])


@kernel
def feasible_nodes(state: State, s: int) -> npt.NDArray[np.bool_]:
    """Mask [N] of the nodes that can take a pod of specification s."""
    mask = np.zeros(state.nodes.version.shape[0], dtype=np.bool_)
    for node in range(mask.shape[0]):
        mask[node] = feasible(state, s, node)
    return mask


@kernel
def _idle(nodes: Nodes, node: int) -> int:
    total = 0
    for device in range(nodes.gpu_count[node]):
        total += nodes.gpu_left[node, device]
    return total


@kernel
def best_fit(state: State, s: int, node: int) -> int:
    """100 * (1 - half the CPU left after placing / 128 cores - half the GPU left after placing / 8)."""
    nodes, specs = state.nodes, state.specs
    cpu = nodes.cpu_left[node] - specs.cpu_milli[s]
    gpu = _idle(nodes, node) - specs.gpu_milli[s] * specs.num_gpu[s]
    return int((1.0 - (cpu / MAX_CPU_MILLI * 0.5 + gpu / MAX_GPU_MILLI * 0.5)) * 100.0)


@kernel
def dot_product(state: State, s: int, node: int) -> int:
    """100 * (1 - mean over CPU and GPU of free/max * asked/max): the smaller the product, the better."""
    nodes, specs = state.nodes, state.specs
    cpu = nodes.cpu_left[node] / MAX_CPU_MILLI * (specs.cpu_milli[s] / MAX_CPU_MILLI)
    gpu = _idle(nodes, node) / MAX_GPU_MILLI * (specs.gpu_milli[s] * specs.num_gpu[s] / MAX_GPU_MILLI)
    return int(100.0 * (1.0 - (cpu + gpu) / 2.0))


@kernel
def gpu_packing(state: State, s: int, node: int) -> int:
    """Shared devices before free devices of a used node before an unused node."""
    nodes, specs = state.nodes, state.specs
    milli, wanted, count = specs.gpu_milli[s], specs.num_gpu[s], nodes.gpu_count[node]
    if milli == 0:
        return 0
    left = nodes.gpu_left[node]
    wholly_free = 0
    for device in range(count):
        wholly_free += left[device] == MILLI
    if wholly_free == count:
        return max(100 // 3 - wholly_free, wholly_free)
    used_free, shared = 0, 0
    if milli < MILLI:
        device = tightest_device(left, count, milli)
        if left[device] == MILLI:
            used_free = 1
        else:
            shared = left[device] * 100 // MILLI
    else:
        used_free = wanted
    if used_free > 0:
        return max(100 // 2 - used_free, 100 // 3)
    return max(100 - shared // 10, 100 // 2)


@kernel
def gpu_class(gpu_milli: int, num_gpu: int) -> int:
    """Column of `Nodes.classes`: 0 for shares, k for k whole devices; -1 for pods without GPU."""
    if num_gpu == 0:
        return -1
    return 0 if gpu_milli < MILLI else num_gpu


@kernel
def gpu_clustering(state: State, s: int, node: int) -> int:
    """Nodes with pods of the same class first, fuller nodes first within each tier."""
    nodes, specs = state.nodes, state.specs
    own = gpu_class(specs.gpu_milli[s], specs.num_gpu[s])
    if own < 0:
        return 0
    present = 0
    for column in range(nodes.classes.shape[1]):
        present += nodes.classes[node, column] > 0
    fullness = 25 * (MAX_GPU_MILLI - _idle(nodes, node)) // MAX_GPU_MILLI
    if own < nodes.classes.shape[1] and nodes.classes[node, own] > 0:
        return fullness + (75 if present == 1 else 50)
    return fullness + (25 if present == 0 else 0)


@kernel
def _gradient(before: float, after: float) -> int:
    """100 * sigmoid of the fragmentation removed, in GPUs."""
    return int(1.0 / (1.0 + math.exp(-((before - after) / 1000.0))) * 100.0)


@kernel
def _after(state: State, s: int, node: int, devices: int) -> float:
    """F of a node if a pod of specification s took these devices."""
    nodes, gpu_milli = state.nodes, state.specs.gpu_milli[s]
    left, cpu = nodes.gpu_left[node], nodes.cpu_left[node] - state.specs.cpu_milli[s]
    allocate(left, devices, gpu_milli)
    value = node_fragmentation(cpu, left, nodes.gpu_count[node], nodes.model[node], state.typical)
    free(left, devices, gpu_milli)
    return value


@kernel
def fragmentation_gradient(state: State, s: int, node: int) -> tuple[int, int]:
    """FGD's score and devices: the devices whose use removes most fragmentation, the lowest of equal ones."""
    nodes = state.nodes
    before, left, count = nodes.fragmentation[node], nodes.gpu_left[node], nodes.gpu_count[node]
    milli, wanted = state.specs.gpu_milli[s], state.specs.num_gpu[s]
    if wanted != 1 or milli == MILLI:
        devices = whole(left, count, wanted)
        return _gradient(before, _after(state, s, node, devices)), devices
    best, chosen = -1, 0
    for device in range(count):
        if left[device] < milli:
            continue
        seen = False  # a device with as much left as an earlier one has the same F
        for earlier in range(device):
            seen = seen or left[earlier] == left[device]
        if seen:
            continue
        score = _gradient(before, _after(state, s, node, 1 << device))
        if score > best:
            best, chosen = score, 1 << device
    return best, chosen


@kernel
def raw_score(policy: int, state: State, s: int, node: int) -> int:
    """Raw score 0..100 of a feasible node under one of POLICIES; Random gives every node 0."""
    if policy == FGD:
        return fragmentation_gradient(state, s, node)[0]
    if policy == BEST_FIT:
        return best_fit(state, s, node)
    if policy == GPU_PACKING:
        return gpu_packing(state, s, node)
    if policy == GPU_CLUSTERING:
        return gpu_clustering(state, s, node)
    if policy == DOTPROD:
        return dot_product(state, s, node)
    return 0


@kernel
def refresh(policy: int, state: State, cache: ScoreCache, s: int) -> None:
    """Bring one specification's row of the cache up to date; infeasible nodes get INFEASIBLE."""
    nodes = state.nodes
    for node in range(nodes.version.shape[0]):
        if cache.version[s, node] != nodes.version[node]:
            cache.version[s, node] = nodes.version[node]
            if feasible(state, s, node):
                cache.score[s, node] = raw_score(policy, state, s, node)
            else:
                cache.score[s, node] = INFEASIBLE


@kernel
def best_node(policy: int, cache: ScoreCache, s: int, draw: float) -> int:
    """The first best node of an up-to-date row, -1 if none is feasible; Random takes the draw's quantile."""
    best, top, found = -1, INFEASIBLE, 0
    for node in range(cache.score.shape[1]):
        score = cache.score[s, node]
        found += score > INFEASIBLE
        if score > top:
            best, top = node, score
    if policy != RANDOM or found == 0:
        return best
    skip = int(draw * found)
    for node in range(cache.score.shape[1]):
        if cache.score[s, node] > INFEASIBLE:
            if skip == 0:
                return node
            skip -= 1
    return best


@kernel
def choose_devices(policy: int, state: State, s: int, node: int, draw: float) -> int:
    """Devices for a pod on its node: FGD's own choice, a random one for Random, else the tightest."""
    nodes, specs = state.nodes, state.specs
    left, count = nodes.gpu_left[node], nodes.gpu_count[node]
    milli, wanted = specs.gpu_milli[s], specs.num_gpu[s]
    if wanted == 0:
        return 0
    if policy == FGD:
        return fragmentation_gradient(state, s, node)[1]
    if policy == RANDOM and wanted == 1 and milli < MILLI:
        able = 0
        for device in range(count):
            able += left[device] >= milli
        skip = int(draw * able)
        for device in range(count):
            if left[device] >= milli:
                if skip == 0:
                    return 1 << device
                skip -= 1
    return tightest(left, count, milli, wanted)


@kernel
def decide(policy: int, state: State, cache: ScoreCache, s: int, draws: F64) -> tuple[int, int]:
    """Node and devices for a pod of specification s, (-1, 0) if it fits nowhere; draws [2] in [0, 1)."""
    refresh(policy, state, cache, s)
    node = best_node(policy, cache, s, draws[0])
    if node < 0:
        return -1, 0
    return node, choose_devices(policy, state, s, node, draws[1])


@kernel
def place(state: State, s: int, node: int, devices: int) -> None:
    """Bind a pod of a specification to a node and its devices."""
    nodes, specs = state.nodes, state.specs
    nodes.cpu_left[node] -= specs.cpu_milli[s]
    nodes.memory_left[node] -= specs.memory_mib[s]
    if specs.num_gpu[s] > 0:
        allocate(nodes.gpu_left[node], devices, specs.gpu_milli[s])
        nodes.classes[node, gpu_class(specs.gpu_milli[s], specs.num_gpu[s])] += 1
        nodes.gpu_pods_cpu[node] += specs.cpu_milli[s]
    nodes.pods[node] += 1
    update(state, node)


@kernel
def remove(state: State, s: int, node: int, devices: int) -> None:
    """Undo `place` when a pod leaves."""
    nodes, specs = state.nodes, state.specs
    nodes.cpu_left[node] += specs.cpu_milli[s]
    nodes.memory_left[node] += specs.memory_mib[s]
    if specs.num_gpu[s] > 0:
        free(nodes.gpu_left[node], devices, specs.gpu_milli[s])
        nodes.classes[node, gpu_class(specs.gpu_milli[s], specs.num_gpu[s])] -= 1
        nodes.gpu_pods_cpu[node] -= specs.cpu_milli[s]
    nodes.pods[node] -= 1
    update(state, node)


def normalised(raw: I64) -> I64:
    """BestFit's scores as the framework shows them: min-max to 0..100 by integer division; all 0 if equal."""
    if not len(raw) or raw.max() == raw.min():
        return np.zeros_like(raw)
    result: I64 = (raw - raw.min()) * 100 // (raw.max() - raw.min())
    return result
