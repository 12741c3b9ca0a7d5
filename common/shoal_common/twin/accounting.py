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
    I32,
    N_CPU,
    N_GPUS,
    N_IO_CAPACITY,
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
    fits,
)
from shoal_common.kernels import lean_kernel
from shoal_common.twin.physics import (
    S_COUNT,
    S_IO,
    S_LOAD,
    S_WANTED,
    SUMS,
    Y_KNEE,
    add_pod,
    deep_watts,
    qos_loss,
    queueing,
    stretch,
    unlimited,
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
    J_FINISHER,
    J_HELD,
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
    W_LOSS,
    W_PART,
    W_SUMS,
    W_USEFUL,
    W_WHOLE,
    W_WITH,
    State,
)

PRICE_WEIGHT = 0.25
PENDING_WEIGHT = 4.0
PENDING_LOOKED_AT = 4  # pending pods that leave-one-out looks at: the queue's head is what could start


@lean_kernel
def set_terms(node: F64, env: F64, sums: F64, useful: float, loss: float, power: float, out: F64) -> None:
    """Set out[4] to the reward terms of a node that does `useful` work and loses `loss` service quality."""
    if sums[S_COUNT] < 0.5:
        for j in range(4):
            out[j] = 0.0
        return
    energy = (power - deep_watts(node)) / env[V_WATT_RANGE]
    out[0] = -max(0.0, node[N_CPU] * node[N_SPEED] - useful) / env[V_CAPACITY]
    out[1] = -loss / env[V_REFERENCE]
    out[2] = -energy
    out[3] = -PRICE_WEIGHT * env[V_PRICE] * energy


@lean_kernel
def pod_terms(node: F64, physics: F64, sums: F64, pod: F64, k: int, work: F64) -> None:
    """Note what the pod of slot k adds to a node: its useful work and its loss of service quality."""
    seconds = stretch(node, physics, sums, pod)
    work[W_USEFUL, k] = unlimited(node, physics, pod) / seconds
    work[W_LOSS, k] = qos_loss(pod, seconds * queueing(node, physics, sums, pod))


@lean_kernel
def node_terms(
    node: F64, physics: F64, env: F64, sums: F64, pods: F64, slots: I32, count: int, work: F64, out: F64
) -> None:
    """Set out[4] to a node's reward terms for its pods, whose parts stay in `work`."""
    useful, loss = 0.0, 0.0
    for k in range(count):
        pod_terms(node, physics, sums, pods[slots[k]], k, work)
        useful += work[W_USEFUL, k]
        loss += work[W_LOSS, k]
    set_terms(node, env, sums, useful, loss, watts(node, sums), out)


@lean_kernel
def held_back(s: State, b: int, n: int) -> int:
    """Which of the queue's first pods node n keeps out though it is large enough, as bits."""
    node, use, gpu, queue, held = s.node[b, n], s.use[b, n], s.gpu[b, n], s.queue[b], 0
    for q in range(min(PENDING_LOOKED_AT, int(s.env[b, V_PENDING]))):
        coming = queue[q]
        large = coming[P_GPUS] <= node[N_GPUS] and coming[P_CPU] <= node[N_CPU]
        if large and coming[P_MEMORY] <= node[N_MEMORY] and not fits(node, use, gpu, coming):
            held |= 1 << q
    return held


@lean_kernel
def let_in(node: F64, use: F64, gpu: F64, leaving: F64, coming: F64) -> bool:
    """Whether a pending pod that does not fit the node would, if `leaving` left it."""
    if coming[P_CPU] > node[N_CPU] - use[U_CPU] + leaving[P_CPU]:
        return False
    if coming[P_MEMORY] > node[N_MEMORY] - use[U_MEMORY] + leaving[P_MEMORY]:
        return False
    needed, devices = int(coming[P_GPUS]), int(leaving[D_DEVICES])
    if needed > 0:
        for g in range(int(node[N_GPUS])):
            free = gpu[g] + (leaving[P_GPU] if devices & (1 << g) else 0.0)
            if free >= coming[P_GPU]:
                needed -= 1
    return needed <= 0


@lean_kernel
def pending_charge(s: State, b: int, n: int, leaving: F64, held: int) -> float:
    """Penalty rate charged to a pod of node n for the `held` pending pods that its removal would let in."""
    count = 0
    for q in range(PENDING_LOOKED_AT if held else 0):
        if held & (1 << q) and let_in(s.node[b, n], s.use[b, n], s.gpu[b, n], leaving, s.queue[b, q]):
            count += 1
    return float(-PENDING_WEIGHT * count / s.env[b, V_REFERENCE])


@lean_kernel
def disturbed(node: F64, physics: F64, sums: F64, pod: F64, by: F64) -> bool:
    """Whether a pod does anything to another one on the node; sums with both. False is certain."""
    if pod[P_CLASS] == by[P_CLASS] or sums[S_WANTED] > node[N_CPU] or sums[S_IO] > node[N_IO_CAPACITY]:
        return True
    if 0.0 < pod[P_GPU] < 1000.0 and 0.0 < by[P_GPU] < 1000.0:
        return True
    return bool(pod[P_CLASS] == 0 and sums[S_WANTED] > physics[Y_KNEE] * node[N_CPU])


@lean_kernel
def terms_without(s: State, b: int, n: int, out_slot: int, out: F64) -> None:
    """Set out[4] to the believed terms of node n without a slot; what that pod did not touch is kept.

    W_WITH and the parts of `node_terms` are those of all pods.
    """
    node, physics, work, pods = s.believed[b, n], s.physics[b, 1], s.work[b], s.pods[b]
    slots, count, sums = s.slots[b, n], int(s.use[b, n, U_PODS]), s.work[b, W_SUMS]
    sum_pods(sums, node, physics, pods, slots, count, out_slot)
    gone = pods[slots[out_slot]]
    useful, loss = 0.0, 0.0
    for k in range(count):
        if k == out_slot:
            continue
        pod = pods[slots[k]]
        if disturbed(node, physics, work[W_WITH], pod, gone):
            seconds = stretch(node, physics, sums, pod)
            useful += unlimited(node, physics, pod) / seconds
            loss += qos_loss(pod, seconds * queueing(node, physics, sums, pod))
        else:
            useful += work[W_USEFUL, k]
            loss += work[W_LOSS, k]
    set_terms(node, s.env[b], sums, useful, loss, watts(node, sums), out)


@lean_kernel
def leave_one_out(s: State, b: int, n: int) -> None:
    """Set D_LOO of every pod of a node: the node's terms with it minus without it, as the model believes."""
    node, physics, pods, work = s.believed[b, n], s.physics[b, 1], s.pods[b], s.work[b]
    slots, count = s.slots[b, n], int(s.use[b, n, U_PODS])
    whole, without = work[W_WHOLE], work[W_PART]
    known, held = False, held_back(s, b, n)
    s.rates[b, n, J_HELD] = float(held)
    for k in range(count):
        pod = pods[slots[k]]
        if pod[D_DECISION] < 0:
            continue
        if not known:
            sum_pods(work[W_WITH], node, physics, pods, slots, count, -1)
            node_terms(node, physics, s.env[b], work[W_WITH], pods, slots, count, work, whole)
            known = True
        terms_without(s, b, n, k, without)
        for j in range(4):
            pod[D_LOO + j] = whole[j] - without[j]
        pod[D_CHARGE] = pending_charge(s, b, n, pod, held)


@lean_kernel
def sum_pods(sums: F64, node: F64, physics: F64, pods: F64, slots: I32, count: int, skip: int) -> None:
    """Set sums[SUMS] to those of a node's pods without slot `skip`, added in the order of their arrival."""
    for j in range(SUMS):
        sums[j] = 0.0
    for k in range(count):
        if k != skip:
            add_pod(sums, node, physics, pods[slots[k]], 1.0)


@lean_kernel
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


@lean_kernel
def credit(env: F64, rates: F64, row: F64, pod: F64, last: float, t: float) -> None:
    """Add [last, t] to the pod's open decision `row`: discounted from the decision on, up to the horizon."""
    begin, tau = row[E_TIME], env[V_TAU]
    stop = min(t, begin + env[V_HORIZON])
    if stop > last:
        weight = tau * (math.exp(-(last - begin) / tau) - math.exp(-(stop - begin) / tau))
        for j in range(4):
            row[E_LOO + j] += weight * pod[D_LOO + j]
            row[E_OWN + j] += weight * (rates[J_TERM + j] - row[E_BASE + j])
        row[E_LOO + 3] += weight * pod[D_CHARGE]
    if t >= begin + env[V_HORIZON]:
        row[E_CLOSED] = 1.0
        pod[D_DECISION] = -1.0


@lean_kernel
def accumulate(s: State, b: int, n: int, t: float) -> None:
    """Bring a node's pods and open decisions up to time t at the present rates."""
    rates, pods, slots = s.rates[b, n], s.pods[b], s.slots[b, n]
    last = rates[J_LAST]
    dt = t - last
    if dt <= 0.0:
        return
    env, decisions = s.env[b], s.decisions[b]
    for k in range(int(s.use[b, n, U_PODS])):
        pod = pods[slots[k]]
        pod[D_REMAINING] -= pod[D_RATE] * dt
        pod[D_SLOW_INTEGRAL] += pod[T_SLOWDOWN] * dt
        if pod[D_DECISION] >= 0:
            credit(env, rates, decisions[int(pod[D_DECISION])], pod, last, t)
    rates[J_LAST] = t


@lean_kernel
def recompute(s: State, b: int, n: int) -> None:
    """Recompute a node's rates, its next finish and its share of the cluster's rates; time is V_CLOCK."""
    env, node, use, rates = s.env[b], s.node[b, n], s.use[b, n], s.rates[b, n]
    sums, terms = rates[J_SUMS:], s.work[b, W_WHOLE]
    sum_pods(sums, node, s.physics[b, 0], s.pods[b], s.slots[b, n], int(use[U_PODS]), -1)
    power = watts(node, sums)
    useful, loss = set_progress(s, b, n)
    set_terms(node, env, sums, useful, loss, power, terms)
    for j in range(4):
        env[V_RATE + j] += terms[j] - rates[J_TERM + j]
        rates[J_TERM + j] = terms[j]
    if use[U_UP] == 0:
        power = 0.0
    used = min(sums[S_WANTED], node[N_CPU])
    env[V_WATTS] += power - rates[J_WATTS]
    env[V_USED] += used - rates[J_USED]
    rates[J_WATTS], rates[J_USED] = power, used
    if env[V_TRACK] == 1:
        leave_one_out(s, b, n)


@lean_kernel
def set_progress(s: State, b: int, n: int) -> tuple[float, float]:
    """Set rate and slowdown of a node's pods and find the one that finishes next: useful work, QoS loss."""
    node, use, rates, physics = s.node[b, n], s.use[b, n], s.rates[b, n], s.physics[b, 0]
    pods, slots, now, sums = s.pods[b], s.slots[b, n], s.env[b, V_CLOCK], rates[J_SUMS:]
    first, finisher = math.inf, -1
    left, memory, useful, loss = 0.0, 0.0, 0.0, 0.0
    for k in range(int(use[U_PODS])):
        pod = pods[slots[k]]
        seconds = stretch(node, physics, sums, pod)
        slow = seconds * queueing(node, physics, sums, pod)
        pod[T_SLOWDOWN] = slow
        useful += unlimited(node, physics, pod) / seconds
        loss += qos_loss(pod, slow)
        if pod[P_CLASS] == 0:
            seconds = 1.0  # a service runs for its time, however slowly it answers
        pod[D_RATE] = 1.0 / seconds
        finish = now + max(0.0, pod[D_REMAINING]) * seconds
        if finish < first:
            first, finisher = finish, k
        left += max(0.0, 1.0 - (now - pod[D_START]) / pod[P_DURATION])  # what a scheduler may know
        memory += pod[T_MEMORY_USE]
    if use[U_UP] == 1:  # the time of a failed node is that of its return
        s.due[b, n] = first
    rates[J_FINISHER] = float(finisher)
    use[U_REMAINING] = left / max(1.0, use[U_PODS])
    use[U_CPU_WANTED], use[U_IO_WANTED], use[U_MEMORY_WANTED] = sums[S_WANTED], sums[S_IO], memory
    for c in range(4):
        use[U_LOAD + c] = sums[S_LOAD + c]
    return useful, loss


@lean_kernel
def recharge(s: State, b: int) -> None:
    """The head of the queue changed: charge it anew to the pods whose removal would let it in."""
    env, pods = s.env[b], s.pods[b]
    for n in range(int(env[V_NODES])):
        slots, held = s.slots[b, n], held_back(s, b, n)
        if held == 0 and s.rates[b, n, J_HELD] == 0.0:
            continue
        s.rates[b, n, J_HELD] = float(held)
        moved = False
        for k in range(int(s.use[b, n, U_PODS])):
            pod = pods[slots[k]]
            if pod[D_DECISION] < 0:
                continue
            charge = pending_charge(s, b, n, pod, held)
            if charge != pod[D_CHARGE]:
                if not moved:  # what was owed until now is owed at the old charge
                    accumulate(s, b, n, env[V_CLOCK])
                    moved = True
                pod[D_CHARGE] = charge
