# SPDX-License-Identifier: Apache-2.0
"""Compiled scorers of the twin: kube-scheduler's resource scores, Volcano, packing, a hand-made rule, lookahead.

kube-scheduler's scores follow pkg/scheduler/framework/plugins/noderesources to the integer; the plugins that
read labels, taints, images or affinities give every node of the twin the same score and are left out (the
exact profile on Kubernetes objects is `shoal_common.kube`; a test holds the two equal where they overlap).
"""

from __future__ import annotations

import math

import numpy as np

from shoal_common.cluster import (
    F64,
    N_CPU,
    N_GPUS,
    N_IO_CAPACITY,
    N_IO_SPEED,
    N_MEMORY,
    N_SPEED,
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
)
from shoal_common.kernels import kernel
from shoal_common.twin.accounting import node_terms
from shoal_common.twin.physics import SUMS, add_pod, progress_rate
from shoal_common.twin.state import (
    J_SUMS,
    J_TERM,
    V_HORIZON,
    V_NODES,
    V_ROTATION,
    V_TAU,
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


@kernel
def uniform(random: np.ndarray, b: int) -> float:
    """The next number in [0, 1) of cluster b's own generator (xorshift64*, Vigna 2016)."""
    x = random[b]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[b] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@kernel
def least_allocated(requested: float, allocatable: float) -> float:
    """LeastAllocated of one resource, 0..100 (noderesources/least_allocated.go)."""
    if requested > allocatable:
        return 0.0
    return float(math.floor((allocatable - requested) * 100.0 / allocatable))


@kernel
def most_allocated(requested: float, allocatable: float) -> float:
    """MostAllocated of one resource, 0..100 (noderesources/most_allocated.go)."""
    return float(math.floor(min(requested, allocatable) * 100.0 / allocatable))


@kernel
def balance(cpu: float, memory: float) -> float:
    """int((1 - std) * 100) of two utilisations (noderesources/balanced_allocation.go)."""
    return float(math.floor((1.0 - abs(min(1.0, cpu) - min(1.0, memory)) / 2.0) * 100.0))


@kernel
def balanced_allocation(node: F64, use: F64, pod: F64, improvement: bool) -> float:
    """BalancedAllocation; since 1.36 it scores the improvement of the balance."""
    if pod[P_CPU] == 0 and pod[P_MEMORY] == 0:
        return 0.0
    after = balance((use[U_CPU] + pod[P_CPU]) / node[N_CPU], (use[U_MEMORY] + pod[P_MEMORY]) / node[N_MEMORY])
    if not improvement:
        return after
    before = balance(use[U_CPU] / node[N_CPU], use[U_MEMORY] / node[N_MEMORY])
    return float(50.0 + math.trunc((50.0 + after - before) / 2.0))


@kernel
def fit_score(node: F64, use: F64, pod: F64, most: bool) -> float:
    """NodeResourcesFit over CPU and memory with equal weights, on non-zero requests."""
    cpu = use[U_CPU_NONZERO] + nonzero_cpu(pod[P_CPU])
    memory = use[U_MEMORY_NONZERO] + nonzero_memory(pod[P_MEMORY])
    if most:
        total = most_allocated(cpu, node[N_CPU]) + most_allocated(memory, node[N_MEMORY])
    else:
        total = least_allocated(cpu, node[N_CPU]) + least_allocated(memory, node[N_MEMORY])
    return float(math.floor(total / 2.0))


@kernel
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
    return 100.0 * score / max(weights, 1.0)


@kernel
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


@kernel
def best_fit(node: F64, use: F64, pod: F64) -> float:
    """BestFit of the openb study: least left of CPU (of 128 cores) and GPU (of 8 devices)."""
    cpu = node[N_CPU] - use[U_CPU] - pod[P_CPU]
    gpu = 1000.0 * node[N_GPUS] - use[U_GPU] - pod[P_GPU] * pod[P_GPUS]
    return 100.0 * (1.0 - 0.5 * cpu / 128_000.0 - 0.5 * gpu / 8000.0)


@kernel
def class_aware(node: F64, use: F64, pod: F64) -> float:
    """What an engineer who knows the classes would write: match, pack, keep GPUs for GPU pods, spread likes."""
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


@kernel
def lookahead_terms(s: State, b: int, p: int, n: int, which: int, scratch: F64, out: F64) -> None:
    """Fill out[4] with the change of node n's terms if pod p were placed there, times its expected stay.

    The stay is the discounted time until its expected end there or the horizon, so the figure is on the
    scale of the leave-one-out reward. `which` picks the true (0) or the believed (1) nodes and physics.
    """
    env, pod = s.env[b], s.pods[b, p]
    node = s.node[b, n] if which == 0 else s.believed[b, n]
    physics = s.physics[which]
    count = int(s.use[b, n, U_PODS])
    sums, before = scratch[0, :SUMS], scratch[1, :4]
    if which == 0:
        sums[:] = s.rates[b, n, J_SUMS : J_SUMS + SUMS]
        before[:] = s.rates[b, n, J_TERM : J_TERM + 4]
    else:
        sums[:] = 0.0
        for k in range(count):
            add_pod(sums, node, physics, s.pods[b, s.slots[b, n, k]], 1.0)
        node_terms(node, physics, env, sums, s.pods[b], s.slots[b, n], count, -1, before)
    add_pod(sums, node, physics, pod, 1.0)
    s.slots[b, n, count] = p  # behind the taken slots: seen by node_terms, never by the engine
    node_terms(node, physics, env, sums, s.pods[b], s.slots[b, n], count + 1, -1, out)
    stay = pod[P_DURATION]
    if pod[P_CLASS] != 0:
        stay /= progress_rate(node, physics, sums, pod)
    tau = env[V_TAU]
    weight = tau * (1.0 - math.exp(-min(stay, env[V_HORIZON]) / tau))
    for j in range(4):
        out[j] = (out[j] - before[j]) * weight


@kernel
def score_node(node: F64, use: F64, pod: F64, scorer: int) -> float:
    """Score of one feasible node under a compiled scorer that reads the node alone; larger is better."""
    score = 0.0
    if scorer == KUBE_136:
        score = fit_score(node, use, pod, False) + balanced_allocation(node, use, pod, True)
    elif scorer == KUBE_135:
        score = fit_score(node, use, pod, False) + balanced_allocation(node, use, pod, False)
    elif scorer == MOST_ALLOCATED:
        score = fit_score(node, use, pod, True) + balanced_allocation(node, use, pod, True)
    elif scorer == VOLCANO:
        score = fit_score(node, use, pod, False) + volcano_balance(node, use, pod)
    elif scorer == VOLCANO_BINPACK:
        score = binpack(node, use, pod) + volcano_balance(node, use, pod)
    elif scorer == BEST_FIT:
        score = best_fit(node, use, pod)
    elif scorer == HAND:
        score = class_aware(node, use, pod)
    return score


@kernel
def lookahead_score(s: State, b: int, p: int, n: int, w: F64, scratch: F64) -> float:
    """Score of one feasible node by the scalarised change of its terms."""
    terms = scratch[2, :4]
    lookahead_terms(s, b, p, n, 0, scratch, terms)
    return float(w[0] * terms[0] + w[1] * terms[1] + w[2] * terms[2] + w[3] * terms[3])


@kernel
def nodes_to_find(nodes: int) -> int:
    """numFeasibleNodesToFind with the default percentage (schedule_one.go)."""
    if nodes < 100:
        return nodes
    percentage = max(5, 50 - nodes // 125)
    return max(100, nodes * percentage // 100)


@kernel
def choose(s: State, b: int, p: int, scorer: int, w: F64, scratch: F64) -> int:
    """The node a compiled scorer picks for pod p, -1 where none fits.

    kube-scheduler's profiles look at a rotating window of the nodes and stop when enough are feasible; ties
    are broken uniformly (reservoir, as with extenders or before 1.35).
    """
    node, use, gpu, pod = s.node[b], s.use[b], s.gpu[b], s.pods[b, p]
    nodes = int(s.env[b, V_NODES])
    sampled = scorer in (KUBE_136, KUBE_135, MOST_ALLOCATED)
    start = int(s.env[b, V_ROTATION]) if sampled else 0
    enough = nodes_to_find(nodes) if sampled else nodes
    best, best_score, ties, found, seen = -1, -math.inf, 0, 0, 0
    for i in range(nodes):
        n = (start + i) % nodes
        seen += 1
        if not fits(node[n], use[n], gpu[n], pod):
            continue
        found += 1
        if scorer == LOOKAHEAD:
            score = lookahead_score(s, b, p, n, w, scratch)
        elif scorer == RANDOM:
            score = 0.0
        else:
            score = score_node(node[n], use[n], pod, scorer)
        if score > best_score:
            best, best_score, ties = n, score, 1
        elif score == best_score:
            ties += 1
            if uniform(s.random, b) * ties < 1.0:
                best = n
        if found >= enough:
            break
    if sampled:
        s.env[b, V_ROTATION] = float((start + seen) % nodes)
    return best
