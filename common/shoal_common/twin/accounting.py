# SPDX-License-Identifier: Apache-2.0
"""From a node's pods to its reward terms, and the leave-one-out differences of its pods.

A node's terms are, with `total` the cluster's cores x speed, `range` its power range, `n_ref` a constant
number of pods: util = -(cores speed - useful work) / total while it is on; qos = -sum loss / n_ref;
energy = -(P - P_deep) / range; penalty = -price (P - P_deep) / range x PRICE_WEIGHT. Pending pods cost
-min(1, 4 pending / n_ref) for the whole cluster and are charged, by leave-one-out, to the pods whose
removal would let them fit. The sum over nodes is the cluster's rate: that is what makes credit exact.
"""

from __future__ import annotations

import math

from shoal_common.cluster import (
    F64,
    N_CPU,
    N_GPUS,
    N_MEMORY,
    N_SPEED,
    P_CLASS,
    P_CPU,
    P_DURATION,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    U_CPU,
    U_CPU_WANTED,
    U_IO_WANTED,
    U_LOAD,
    U_MEMORY,
    U_MEMORY_WANTED,
    U_PODS,
    U_REMAINING,
    U_UP,
)
from shoal_common.kernels import kernel
from shoal_common.twin.physics import (
    S_COUNT,
    S_IO,
    S_LOAD,
    S_WANTED,
    SUMS,
    add_pod,
    deep_watts,
    progress_rate,
    qos_loss,
    slowdown,
    wanted,
    watts,
)
from shoal_common.twin.state import (
    D_CHARGE,
    D_DECISION,
    D_DEVICES,
    D_LOO,
    D_RATE,
    D_REMAINING,
    D_SLOW_INTEGRAL,
    D_START,
    E_BASE,
    E_CLOSED,
    E_LOO,
    E_OWN,
    E_TIME,
    I32,
    J_FINISH,
    J_FINISHER,
    J_LAST,
    J_SUMS,
    J_TERM,
    J_USED,
    J_WATTS,
    T_MEMORY_USE,
    T_SLOWDOWN,
    V_CAPACITY,
    V_CLOCK,
    V_HORIZON,
    V_LAST,
    V_NODES,
    V_PENDING,
    V_PRICE,
    V_RATE,
    V_REFERENCE,
    V_STEP,
    V_TAU,
    V_TOTAL,
    V_TRACK,
    V_USED,
    V_USED_SECONDS,
    V_WATT_RANGE,
    V_WATT_SECONDS,
    V_WATTS,
    State,
)

PRICE_WEIGHT = 0.25
PENDING_WEIGHT = 4.0
PENDING_LOOKED_AT = 4  # pending pods that leave-one-out looks at: the queue's head is what could start


@kernel
def node_terms(
    node: F64, physics: F64, env: F64, sums: F64, pods: F64, slots: I32, count: int, skip: int, out: F64
) -> None:
    """Fill out[4] with a node's reward terms for its pods without slot `skip` (-1: all of them)."""
    out[:] = 0.0
    if sums[S_COUNT] < 0.5:
        return
    useful, loss = 0.0, 0.0
    for k in range(count):
        if k == skip:
            continue
        pod = pods[slots[k]]
        rate = progress_rate(node, physics, sums, pod)
        slow = slowdown(node, physics, sums, pod, rate)
        useful += wanted(node, physics, pod) * rate
        loss += qos_loss(pod, slow)
    energy = (watts(node, sums) - deep_watts(node)) / env[V_WATT_RANGE]
    out[0] = -max(0.0, node[N_CPU] * node[N_SPEED] - useful) / env[V_CAPACITY]
    out[1] = -loss / env[V_REFERENCE]
    out[2] = -energy
    out[3] = -PRICE_WEIGHT * env[V_PRICE] * energy


@kernel
def let_in(node: F64, use: F64, gpu: F64, leaving: F64, coming: F64) -> bool:
    """Whether a pending pod that does not fit would, if `leaving` left the node."""
    if coming[P_CPU] > node[N_CPU] - use[U_CPU] + leaving[P_CPU]:
        return False
    if coming[P_MEMORY] > node[N_MEMORY] - use[U_MEMORY] + leaving[P_MEMORY]:
        return False
    needed = int(coming[P_GPUS])
    if needed == 0:
        return True
    devices = int(leaving[D_DEVICES])
    for g in range(int(node[N_GPUS])):
        free = gpu[g] + (leaving[P_GPU] if devices & (1 << g) else 0.0)
        if free >= coming[P_GPU]:
            needed -= 1
    return needed <= 0


@kernel
def pending_charge(
    env: F64, node: F64, use: F64, gpu: F64, pods: F64, queue: I32, leaving: F64
) -> float:
    """Penalty rate charged to a running pod for the pending pods that its removal would let in."""
    held = 0
    for q in range(min(PENDING_LOOKED_AT, int(env[V_PENDING]))):
        held += let_in(node, use, gpu, leaving, pods[queue[q]])
    return float(-PENDING_WEIGHT * held / env[V_REFERENCE])


@kernel
def leave_one_out(s: State, b: int, n: int, scratch: F64) -> None:
    """Set D_LOO of every pod of a node: the node's terms with it minus without it, as the model believes."""
    env, node, physics = s.env[b], s.believed[b, n], s.physics[1]
    slots, count = s.slots[b, n], int(s.use[b, n, U_PODS])
    sums, whole, without = scratch[0, :SUMS], scratch[1, :4], scratch[2, :4]
    sums[:] = 0.0
    for k in range(count):
        add_pod(sums, node, physics, s.pods[b, slots[k]], 1.0)
    node_terms(node, physics, env, sums, s.pods[b], slots, count, -1, whole)
    for k in range(count):
        pod = s.pods[b, slots[k]]
        if pod[D_DECISION] < 0:
            continue
        add_pod(sums, node, physics, pod, -1.0)
        node_terms(node, physics, env, sums, s.pods[b], slots, count, k, without)
        add_pod(sums, node, physics, pod, 1.0)
        for j in range(4):
            pod[D_LOO + j] = whole[j] - without[j]
        pod[D_CHARGE] = pending_charge(env, s.node[b, n], s.use[b, n], s.gpu[b, n], s.pods[b], s.queue[b], pod)


@kernel
def advance_cluster(env: F64, t: float) -> None:
    """Integrate the cluster's rates up to time t."""
    dt = t - env[V_LAST]
    if dt <= 0.0:
        return
    for j in range(4):
        env[V_TOTAL + j] += env[V_RATE + j] * dt
        env[V_STEP + j] += env[V_RATE + j] * dt
    env[V_WATT_SECONDS] += env[V_WATTS] * dt
    env[V_USED_SECONDS] += env[V_USED] * dt
    env[V_LAST] = t


@kernel
def credit(env: F64, terms: F64, row: F64, pod: F64, last: float, t: float) -> None:
    """Add [last, t] to the pod's open decision `row`: discounted from the decision on, up to the horizon."""
    begin, tau = row[E_TIME], env[V_TAU]
    stop = min(t, begin + env[V_HORIZON])
    if stop > last:
        weight = tau * (math.exp(-(last - begin) / tau) - math.exp(-(stop - begin) / tau))
        for j in range(4):
            row[E_LOO + j] += weight * pod[D_LOO + j]
            row[E_OWN + j] += weight * (terms[j] - row[E_BASE + j])
        row[E_LOO + 3] += weight * pod[D_CHARGE]
    if t >= begin + env[V_HORIZON]:
        row[E_CLOSED] = 1.0
        pod[D_DECISION] = -1.0


@kernel
def accumulate(s: State, b: int, n: int, t: float) -> None:
    """Bring a node's pods and open decisions up to time t at the present rates."""
    rates, pods, slots = s.rates[b, n], s.pods[b], s.slots[b, n]
    last = rates[J_LAST]
    dt = t - last
    if dt > 0.0:
        env, decisions = s.env[b], s.decisions[b]
        for k in range(int(s.use[b, n, U_PODS])):
            pod = pods[slots[k]]
            pod[D_REMAINING] -= pod[D_RATE] * dt
            pod[D_SLOW_INTEGRAL] += pod[T_SLOWDOWN] * dt
            if pod[D_DECISION] >= 0:
                credit(env, rates[J_TERM : J_TERM + 4], decisions[int(pod[D_DECISION])], pod, last, t)
    rates[J_LAST] = t


@kernel
def recompute(s: State, b: int, n: int, scratch: F64) -> None:
    """Recompute a node's rates, its next finish and its share of the cluster's rates; time is V_CLOCK."""
    env, node, use, rates = s.env[b], s.node[b, n], s.use[b, n], s.rates[b, n]
    pods, slots, physics = s.pods[b], s.slots[b, n], s.physics[0]
    sums, terms = rates[J_SUMS : J_SUMS + SUMS], scratch[3, :4]
    set_sums(sums, node, use, physics, pods, slots)
    set_progress(env[V_CLOCK], node, use, rates, sums, physics, pods, slots)
    node_terms(node, physics, env, sums, pods, slots, int(use[U_PODS]), -1, terms)
    for j in range(4):
        env[V_RATE + j] += terms[j] - rates[J_TERM + j]
        rates[J_TERM + j] = terms[j]
    power = watts(node, sums) if use[U_UP] == 1 else 0.0
    used = min(sums[S_WANTED], node[N_CPU])
    env[V_WATTS] += power - rates[J_WATTS]
    env[V_USED] += used - rates[J_USED]
    rates[J_WATTS], rates[J_USED] = power, used
    if env[V_TRACK] == 1 and use[U_PODS] > 0:
        leave_one_out(s, b, n, scratch)


@kernel
def set_sums(sums: F64, node: F64, use: F64, physics: F64, pods: F64, slots: I32) -> None:
    """Sum what a node's pods want, in the order of their arrival, and note it in `use`."""
    sums[:] = 0.0
    memory = 0.0
    for k in range(int(use[U_PODS])):
        pod = pods[slots[k]]
        add_pod(sums, node, physics, pod, 1.0)
        memory += pod[T_MEMORY_USE]
    use[U_CPU_WANTED], use[U_IO_WANTED], use[U_MEMORY_WANTED] = sums[S_WANTED], sums[S_IO], memory
    for c in range(4):
        use[U_LOAD + c] = sums[S_LOAD + c]


@kernel
def set_progress(
    now: float, node: F64, use: F64, rates: F64, sums: F64, physics: F64, pods: F64, slots: I32
) -> None:
    """Set rate and slowdown of a node's pods and find the one that finishes next."""
    rates[J_FINISH], rates[J_FINISHER] = math.inf, -1.0
    left = 0.0
    for k in range(int(use[U_PODS])):
        pod = pods[slots[k]]
        rate = progress_rate(node, physics, sums, pod)
        pod[T_SLOWDOWN] = slowdown(node, physics, sums, pod, rate)
        pod[D_RATE] = 1.0 if pod[P_CLASS] == 0 else rate
        finish = now + max(0.0, pod[D_REMAINING]) / pod[D_RATE]
        left += max(0.0, 1.0 - (now - pod[D_START]) / pod[P_DURATION])  # what a scheduler may know
        if finish < rates[J_FINISH]:
            rates[J_FINISH], rates[J_FINISHER] = finish, float(k)
    use[U_REMAINING] = left / max(1.0, use[U_PODS])


@kernel
def recharge(s: State, b: int) -> None:
    """The pending queue changed: charge it anew to the pods whose removal would let its head in."""
    env, pods, queue = s.env[b], s.pods[b], s.queue[b]
    for n in range(int(env[V_NODES])):
        node, use, gpu, slots = s.node[b, n], s.use[b, n], s.gpu[b, n], s.slots[b, n]
        moved = False
        for k in range(int(use[U_PODS])):
            pod = pods[slots[k]]
            if pod[D_DECISION] < 0:
                continue
            charge = pending_charge(env, node, use, gpu, pods, queue, pod)
            if charge != pod[D_CHARGE]:
                if not moved:  # what was owed until now is owed at the old charge
                    accumulate(s, b, n, env[V_CLOCK])
                    moved = True
                pod[D_CHARGE] = charge


@kernel
def free_devices(gpu: F64, devices: int, milli: float, count: int) -> int:
    """Choose devices for a pod, as a bit set: the tightest for a share, the lowest free ones otherwise."""
    chosen = 0
    if count == 1 and milli < 1000.0:
        best, left = -1, math.inf
        for g in range(devices):
            if gpu[g] >= milli and gpu[g] < left:
                best, left = g, gpu[g]
        return 1 << best if best >= 0 else 0
    for g in range(devices):
        if count > 0 and gpu[g] >= milli:
            chosen |= 1 << g
            count -= 1
    return chosen
