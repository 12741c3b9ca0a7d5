# SPDX-License-Identifier: Apache-2.0
"""The twin's compiled scorers: kube-scheduler's resource scores, Volcano, packing, a hand rule, lookahead.

kube-scheduler's scores follow pkg/scheduler/framework/plugins/noderesources to the integer; the plugins that
read labels, taints, images or affinities give every node of the twin the same score and are left out (the
exact profile on Kubernetes objects is `shoal_common.kube`; a test holds the two equal where they overlap).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import (
    F64,
    N_CPU,
    N_GPUS,
    N_IO_CAPACITY,
    N_IO_SPEED,
    N_MEMORY,
    N_SPEED,
    N_ZONES,
    P_CLASS,
    P_CPU,
    P_DURATION,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    U_CPU,
    U_CPU_NONZERO,
    U_CPU_WANTED,
    U_GPU,
    U_IO_WANTED,
    U_LOAD,
    U_MEMORY,
    U_MEMORY_NONZERO,
    U_PODS,
    fits,
    nonzero_cpu,
    nonzero_memory,
    zone_holds,
)
from shoal_common.kernels import lean_kernel
from shoal_common.twin.accounting import node_terms, sum_pods
from shoal_common.twin.physics import R_SPANS, add_pod, stretch
from shoal_common.twin.state import (
    J_TERM,
    V_HORIZON,
    V_NODES,
    V_ROTATION,
    V_TAU,
    W_PART,
    W_SUMS,
    W_WHOLE,
    State,
)

# the ids of the compiled scorers, by name
RANDOM, KUBE_136, KUBE_135, MOST_ALLOCATED, VOLCANO, VOLCANO_BINPACK, BEST_FIT, HAND, LOOKAHEAD = range(9)
SCORER_IDS: dict[str, int] = {
    "random": RANDOM,
    "kube@1.36": KUBE_136,
    "kube@1.35": KUBE_135,
    "most-allocated": MOST_ALLOCATED,
    "volcano": VOLCANO,
    "volcano-binpack": VOLCANO_BINPACK,
    "bestfit": BEST_FIT,
    "class-aware": HAND,
    "lookahead": LOOKAHEAD,
}


@lean_kernel
def uniform(random: npt.NDArray[np.uint64], b: int) -> float:
    """The next number in [0, 1) of cluster b's own generator (xorshift64*, Vigna 2016)."""
    x = random[b]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[b] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@lean_kernel
def least_allocated(requested: float, allocatable: float) -> float:
    """LeastAllocated of one resource, 0..100 (noderesources/least_allocated.go)."""
    if requested > allocatable:
        return 0.0
    return float(math.floor((allocatable - requested) * 100.0 / allocatable))


@lean_kernel
def most_allocated(requested: float, allocatable: float) -> float:
    """MostAllocated of one resource, 0..100 (noderesources/most_allocated.go)."""
    return float(math.floor(min(requested, allocatable) * 100.0 / allocatable))


@lean_kernel
def balance(cpu: float, memory: float) -> float:
    """int((1 - std) * 100) of two utilisations (noderesources/balanced_allocation.go)."""
    return float(math.floor((1.0 - abs(min(1.0, cpu) - min(1.0, memory)) / 2.0) * 100.0))


@lean_kernel
def balanced_allocation(node: F64, use: F64, pod: F64, improvement: bool) -> float:
    """BalancedAllocation; since 1.36 it scores the improvement of the balance."""
    if pod[P_CPU] == 0 and pod[P_MEMORY] == 0:
        return 0.0
    after = balance((use[U_CPU] + pod[P_CPU]) / node[N_CPU], (use[U_MEMORY] + pod[P_MEMORY]) / node[N_MEMORY])
    if not improvement:
        return after
    before = balance(use[U_CPU] / node[N_CPU], use[U_MEMORY] / node[N_MEMORY])
    return float(50.0 + math.trunc((50.0 + after - before) / 2.0))


@lean_kernel
def fit_score(node: F64, use: F64, pod: F64, most: bool) -> float:
    """NodeResourcesFit over CPU and memory with equal weights, on non-zero requests."""
    cpu = use[U_CPU_NONZERO] + nonzero_cpu(pod[P_CPU])
    memory = use[U_MEMORY_NONZERO] + nonzero_memory(pod[P_MEMORY])
    if most:
        total = most_allocated(cpu, node[N_CPU]) + most_allocated(memory, node[N_MEMORY])
    else:
        total = least_allocated(cpu, node[N_CPU]) + least_allocated(memory, node[N_MEMORY])
    return float(math.floor(total / 2.0))


@lean_kernel
def binpack(node: F64, use: F64, pod: F64) -> float:
    """Volcano's binpack over CPU, memory and GPUs that the task asks for (plugins/binpack)."""
    score, weights = 0.0, 0.0
    if pod[P_CPU] > 0:
        score += (use[U_CPU] + pod[P_CPU]) / node[N_CPU]
        weights += 1.0
    if pod[P_MEMORY] > 0:
        score += (use[U_MEMORY] + pod[P_MEMORY]) / node[N_MEMORY]
        weights += 1.0
    if pod[P_GPUS] > 0:
        score += (use[U_GPU] + pod[P_GPU] * pod[P_GPUS]) / (1000.0 * node[N_GPUS])
        weights += 1.0
    return float(100.0 * score / max(weights, 1.0))


@lean_kernel
def volcano_balance(node: F64, use: F64, pod: F64) -> float:
    """Volcano's balancedresource: the balance over CPU, memory and nvidia.com/gpu."""
    x = min(1.0, (use[U_CPU] + pod[P_CPU]) / node[N_CPU])
    y = min(1.0, (use[U_MEMORY] + pod[P_MEMORY]) / node[N_MEMORY])
    if node[N_GPUS] == 0 or pod[P_GPUS] == 0:
        return balance(x, y)
    z = min(1.0, (use[U_GPU] + pod[P_GPU] * pod[P_GPUS]) / (1000.0 * node[N_GPUS]))
    mean = (x + y + z) / 3.0
    variance = ((x - mean) ** 2 + (y - mean) ** 2 + (z - mean) ** 2) / 3.0
    return float(math.floor((1.0 - math.sqrt(variance)) * 100.0))


@lean_kernel
def best_fit(node: F64, use: F64, pod: F64) -> float:
    """BestFit of the openb study: least left of CPU (of 128 cores) and GPU (of 8 devices)."""
    cpu = node[N_CPU] - use[U_CPU] - pod[P_CPU]
    gpu = 1000.0 * node[N_GPUS] - use[U_GPU] - pod[P_GPU] * pod[P_GPUS]
    return float(100.0 * (1.0 - 0.5 * cpu / 128_000.0 - 0.5 * gpu / 8000.0))


@lean_kernel
def class_aware(node: F64, use: F64, pod: F64) -> float:
    """What an engineer who knows the classes would write: match, pack, keep GPUs free, spread likes."""
    c = int(pod[P_CLASS])
    cores = node[N_CPU]
    score = 0.6 if use[U_PODS] > 0 else 0.0
    score += node[N_IO_SPEED] * 0.5 if c == 2 else node[N_SPEED]
    score += 0.4 * (use[U_CPU] + pod[P_CPU]) / cores
    score -= use[U_LOAD + c] / cores
    score -= 2.0 * max(0.0, use[U_CPU_WANTED] / cores - 0.6)
    if c == 2:
        score -= max(0.0, use[U_IO_WANTED] / node[N_IO_CAPACITY] - 0.8)
    if node[N_GPUS] > 0 and pod[P_GPUS] == 0:
        score -= 1.5
    return float(score)


@lean_kernel
def lookahead_terms(s: State, b: int, p: int, n: int, which: int, out: F64) -> None:
    """Set out[4] to the change of node n's terms if pod p were placed there, times its expected stay.

    The stay is the discounted time until its expected end there or the horizon, so the figure is on the
    scale of the leave-one-out reward. `which` picks the true (0) or the believed (1) nodes and physics.
    """
    env, pod, pods, slots = s.env[b], s.pods[b, p], s.pods[b], s.slots[b, n]
    node = s.node[b, n] if which == 0 else s.believed[b, n]
    physics = s.physics[b, which]
    count = int(s.use[b, n, U_PODS])
    sums, before = s.work[b, W_SUMS], s.work[b, W_WHOLE]
    sum_pods(sums, node, physics, pods, slots, count, -1)
    if which == 0:
        for j in range(4):
            before[j] = s.rates[b, n, J_TERM + j]
    else:
        node_terms(node, physics, env, sums, pods, slots, count, s.work[b], before)
    add_pod(sums, node, physics, pod, 1.0)
    spans = pod[R_SPANS]
    pod[R_SPANS] = 0.0 if zone_holds(s.zone[b, n], int(s.node[b, n, N_ZONES]), pod) else 1.0
    slots[count] = p  # behind the taken slots: seen by node_terms, never by the engine
    node_terms(node, physics, env, sums, pods, slots, count + 1, s.work[b], out)
    stay = pod[P_DURATION]
    if pod[P_CLASS] != 0:
        stay *= stretch(node, physics, sums, pod)
    pod[R_SPANS] = spans
    tau = env[V_TAU]
    weight = tau * (1.0 - math.exp(-min(stay, env[V_HORIZON]) / tau))
    for j in range(4):
        out[j] = (out[j] - before[j]) * weight


@lean_kernel
def score_by_kube(s: State, b: int, p: int, scorer: int, count: int) -> None:
    """`score_nodes` for kube-scheduler's profiles."""
    node, use, pod, found, score = s.node[b], s.use[b], s.pods[b, p], s.found[b], s.score[b]
    most, improvement = scorer == MOST_ALLOCATED, scorer != KUBE_135
    for i in range(count):
        n = found[i]
        fit = fit_score(node[n], use[n], pod, most)
        score[i] = fit + balanced_allocation(node[n], use[n], pod, improvement)


@lean_kernel
def score_by_volcano(s: State, b: int, p: int, scorer: int, count: int) -> None:
    """`score_nodes` for Volcano's nodeorder, with or without binpack."""
    node, use, pod, found, score = s.node[b], s.use[b], s.pods[b, p], s.found[b], s.score[b]
    for i in range(count):
        n = found[i]
        fit = (
            binpack(node[n], use[n], pod)
            if scorer == VOLCANO_BINPACK
            else fit_score(node[n], use[n], pod, False)
        )
        score[i] = fit + volcano_balance(node[n], use[n], pod)


@lean_kernel
def score_by_lookahead(s: State, b: int, p: int, w: F64, count: int) -> None:
    """`score_nodes` by the scalarised change of each node's terms."""
    terms = s.work[b, W_PART]
    for i in range(count):
        lookahead_terms(s, b, p, s.found[b, i], 0, terms)
        s.score[b, i] = w[0] * terms[0] + w[1] * terms[1] + w[2] * terms[2] + w[3] * terms[3]


@lean_kernel
def score_nodes(s: State, b: int, p: int, scorer: int, w: F64, count: int) -> None:
    """Set score[b, :count] to a compiled scorer's scores of the nodes found[b, :count]; larger is better.

    The scorer is told apart outside the loops, so that each loop is small and compiles to straight code.
    """
    node, use, pod, found, score = s.node[b], s.use[b], s.pods[b, p], s.found[b], s.score[b]
    if scorer in (KUBE_136, KUBE_135, MOST_ALLOCATED):
        score_by_kube(s, b, p, scorer, count)
    elif scorer in (VOLCANO, VOLCANO_BINPACK):
        score_by_volcano(s, b, p, scorer, count)
    elif scorer == LOOKAHEAD:
        score_by_lookahead(s, b, p, w, count)
    elif scorer == BEST_FIT:
        for i in range(count):
            score[i] = best_fit(node[found[i]], use[found[i]], pod)
    elif scorer == HAND:
        for i in range(count):
            score[i] = class_aware(node[found[i]], use[found[i]], pod)
    else:
        for i in range(count):
            score[i] = 0.0  # random: all are equal, and ties are broken uniformly


@lean_kernel
def nodes_to_find(nodes: int) -> int:
    """numFeasibleNodesToFind with the default percentage (schedule_one.go)."""
    if nodes < 100:
        return nodes
    percentage = max(5, 50 - nodes // 125)
    return max(100, nodes * percentage // 100)


@lean_kernel
def find_nodes(s: State, b: int, p: int, scorer: int) -> int:
    """Set found[b] to the nodes that fit pod p and may be scored; how many there are.

    kube-scheduler's profiles look at a rotating window of the nodes and stop when enough are feasible.
    """
    node, use, gpu, pod, found = s.node[b], s.use[b], s.gpu[b], s.pods[b, p], s.found[b]
    nodes = int(s.env[b, V_NODES])
    sampled = scorer in (KUBE_136, KUBE_135, MOST_ALLOCATED)
    n = int(s.env[b, V_ROTATION]) if sampled else 0
    enough = nodes_to_find(nodes) if sampled else nodes
    count = 0
    for _ in range(nodes):
        if fits(node[n], use[n], gpu[n], pod):
            found[count] = n
            count += 1
        n = n + 1 if n + 1 < nodes else 0
        if count >= enough:
            break
    if sampled:
        s.env[b, V_ROTATION] = float(n)
    return count


@lean_kernel
def choose(s: State, b: int, p: int, scorer: int, w: F64) -> int:
    """The node a compiled scorer picks for pod p, -1 where none fits; ties are broken uniformly.

    A reservoir over the ties, as kube-scheduler breaks them with extenders or before 1.35.
    """
    count = find_nodes(s, b, p, scorer)
    score_nodes(s, b, p, scorer, w, count)
    found, score = s.found[b], s.score[b]
    best, best_score, ties = -1, -math.inf, 0
    for i in range(count):
        if score[i] > best_score:
            best, best_score, ties = found[i], score[i], 1
        elif score[i] == best_score:
            ties += 1
            if uniform(s.random, b) * ties < 1.0:
                best = found[i]
    return best
