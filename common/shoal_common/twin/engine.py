# SPDX-License-Identifier: Apache-2.0
"""The event engine: arrivals, starts, finishes, evictions, node failures; one kernel call a step.

Between events rates are constant, so a node is touched only when its set of pods changes (and at a slow tick
that lets prices and ages move). `advance` runs a cluster to its next decision: a pod that fits somewhere.
Pods that fit nowhere wait in a FIFO queue with skipping and are looked at again when a node gets room.
"""

from __future__ import annotations

import math

import numpy as np

from shoal_common.cluster import (
    MAX_ZONES,
    N_CPU,
    N_GPUS,
    N_MEMORY,
    N_ZONES,
    P_CPU,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    U_CPU,
    U_CPU_NONZERO,
    U_FAILURES,
    U_GPU,
    U_MEMORY,
    U_MEMORY_NONZERO,
    U_PODS,
    U_UP,
    fits,
    nonzero_cpu,
    nonzero_memory,
)
from shoal_common.features import encode_node
from shoal_common.kernels import kernel
from shoal_common.twin.accounting import (
    PENDING_WEIGHT,
    accumulate,
    advance_cluster,
    free_devices,
    recharge,
    recompute,
)
from shoal_common.twin.physics import R_CPU, R_SPANS
from shoal_common.twin.state import (
    D_DECISION,
    D_DEVICES,
    D_END,
    D_NODE,
    D_REMAINING,
    D_START,
    D_STATUS,
    D_ZONE,
    E_BASE,
    E_CLOSED,
    E_LOO,
    E_NODE,
    E_OWN,
    E_POD,
    E_TIME,
    FINISHED,
    J_FINISH,
    J_FINISHER,
    J_RECOVER,
    J_TERM,
    KILLED,
    PENDING,
    RUNNING,
    T_ARRIVAL,
    T_CPU_ASKED,
    T_CPU_USE,
    T_LIMIT_RATIO,
    T_MEMORY_ASKED,
    T_MEMORY_USE,
    T_WORK,
    V_BACKLOG,
    V_BATTERY_WH,
    V_CHARGE,
    V_CLOCK,
    V_DECISIONS,
    V_END,
    V_EVICTIONS,
    V_FAULT,
    V_HORIZON,
    V_NEXT_POD,
    V_NODES,
    V_OLDEST,
    V_OOM,
    V_PENDING,
    V_PERIOD,
    V_POD,
    V_PODS,
    V_PRICE,
    V_PRICE_AMPLITUDE,
    V_RATE,
    V_REFERENCE,
    V_RETRY,
    V_STEP,
    V_TICK,
    V_TOTAL,
    V_TRACK,
    V_WATTS,
    State,
)

TICK_SECONDS = 900.0
EVICTION_SECONDS = 60.0  # an eviction or kill costs as much as waiting for this long
SCRATCH = (4, 16)


@kernel
def apply_quota(pod: np.ndarray, cpu: float, memory: float) -> None:
    """Set requests to a fraction of what was asked, and what the limits leave the pod to use."""
    pod[P_CPU] = math.ceil(pod[T_CPU_ASKED] * cpu)
    pod[P_MEMORY] = math.ceil(pod[T_MEMORY_ASKED] * memory)
    pod[R_CPU] = min(pod[T_CPU_USE], pod[P_CPU] * pod[T_LIMIT_RATIO])


@kernel
def choose_zone(s: State, b: int, n: int, pod: np.ndarray) -> int:
    """The fullest NUMA zone that still holds the whole pod, or -1 where it spans zones."""
    best, left = -1, math.inf
    for z in range(int(s.node[b, n, N_ZONES])):
        cpu, memory = s.zone[b, n, z, 0], s.zone[b, n, z, 1]
        if pod[P_CPU] <= cpu and pod[P_MEMORY] <= memory and cpu < left:
            best, left = z, cpu
    return best


@kernel
def move_zone(s: State, b: int, n: int, pod: np.ndarray, sign: float) -> None:
    """Take (sign -1) or give back (+1) a pod's CPU and memory in the NUMA zones."""
    z = int(pod[D_ZONE])
    zones = int(s.node[b, n, N_ZONES])
    if z >= 0:
        s.zone[b, n, z, 0] += sign * pod[P_CPU]
        s.zone[b, n, z, 1] += sign * pod[P_MEMORY]
        return
    for j in range(zones):  # a spanning pod takes an equal share of each
        s.zone[b, n, j, 0] += sign * pod[P_CPU] / zones
        s.zone[b, n, j, 1] += sign * pod[P_MEMORY] / zones


@kernel
def charge_node(s: State, b: int, n: int, pod: np.ndarray, sign: float) -> None:
    """Add (+1) or remove (-1) a pod's requests and devices on a node."""
    use = s.use[b, n]
    use[U_CPU] += sign * pod[P_CPU]
    use[U_MEMORY] += sign * pod[P_MEMORY]
    use[U_GPU] += sign * pod[P_GPU] * pod[P_GPUS]
    use[U_CPU_NONZERO] += sign * nonzero_cpu(pod[P_CPU])
    use[U_MEMORY_NONZERO] += sign * nonzero_memory(pod[P_MEMORY])
    devices = int(pod[D_DEVICES])
    for g in range(int(s.node[b, n, N_GPUS])):
        if devices & (1 << g):
            s.gpu[b, n, g] -= sign * pod[P_GPU]
    move_zone(s, b, n, pod, -sign)


@kernel
def open_decision(s: State, b: int, p: int, n: int) -> None:
    """Start the record of a placement; beyond the table's size it goes untracked."""
    env = s.env[b]
    d = int(env[V_DECISIONS])
    if env[V_TRACK] == 0 or d >= len(s.decisions[b]):
        s.pods[b, p, D_DECISION] = -1.0
        return
    row = s.decisions[b, d]
    row[:] = 0.0
    row[E_TIME], row[E_POD], row[E_NODE] = env[V_CLOCK], float(p), float(n)
    row[E_BASE : E_BASE + 4] = s.rates[b, n, J_TERM : J_TERM + 4]
    s.pods[b, p, D_DECISION] = float(d)
    env[V_DECISIONS] = d + 1.0


@kernel
def changed(s: State, b: int, n: int, scratch: np.ndarray) -> None:
    """After a node's pods changed: new rates, new features."""
    recompute(s, b, n, scratch)
    encode_node(s.node[b, n], s.use[b, n], s.gpu[b, n], s.zone[b, n], s.features[b, n])


@kernel
def place(s: State, b: int, p: int, n: int, scratch: np.ndarray) -> None:
    """Bind pod p to node n at V_CLOCK; the caller has checked that it fits."""
    env, pod = s.env[b], s.pods[b, p]
    now = env[V_CLOCK]
    accumulate(s, b, n, now)
    open_decision(s, b, p, n)
    pod[D_STATUS], pod[D_NODE], pod[D_START], pod[D_END] = RUNNING, float(n), now, math.inf
    pod[D_REMAINING] = pod[T_WORK]
    pod[D_ZONE] = float(choose_zone(s, b, n, pod))
    pod[R_SPANS] = 1.0 if pod[D_ZONE] < 0 and s.node[b, n, N_ZONES] > 1 else 0.0
    devices = free_devices(s.gpu[b, n], int(s.node[b, n, N_GPUS]), pod[P_GPU], int(pod[P_GPUS]))
    pod[D_DEVICES] = float(devices)
    charge_node(s, b, n, pod, 1.0)
    s.slots[b, n, int(s.use[b, n, U_PODS])] = p
    s.use[b, n, U_PODS] += 1.0
    changed(s, b, n, scratch)
    relieve_memory(s, b, n, scratch)


@kernel
def take_off(s: State, b: int, n: int, k: int) -> int:
    """Remove slot k of node n and return its pod; rates are stale until `changed`."""
    last = int(s.use[b, n, U_PODS]) - 1
    p = s.slots[b, n, k]
    pod = s.pods[b, p]
    charge_node(s, b, n, pod, -1.0)
    for j in range(k, last):  # order kept, so that sums are added in the order of arrival
        s.slots[b, n, j] = s.slots[b, n, j + 1]
    s.use[b, n, U_PODS] = float(last)
    close(s, b, pod)
    pod[D_NODE], pod[D_END] = -1.0, s.env[b, V_CLOCK]
    return int(p)


@kernel
def close(s: State, b: int, pod: np.ndarray) -> None:
    """Close a pod's open decision: nothing more will be added to it."""
    if pod[D_DECISION] >= 0:
        s.decisions[b, int(pod[D_DECISION]), E_CLOSED] = 1.0
        pod[D_DECISION] = -1.0


@kernel
def impulse(s: State, b: int, pod: np.ndarray) -> None:
    """Charge an eviction or kill to the cluster and to the open decision of the pod."""
    env = s.env[b]
    cost = -PENDING_WEIGHT * EVICTION_SECONDS / env[V_REFERENCE]
    env[V_TOTAL + 3] += cost
    env[V_STEP + 3] += cost
    if pod[D_DECISION] >= 0:
        row = s.decisions[b, int(pod[D_DECISION])]
        row[E_LOO + 3] += cost
        row[E_OWN + 3] += cost


@kernel
def relieve_memory(s: State, b: int, n: int, scratch: np.ndarray) -> None:
    """Memory: a pod above its limit is OOM-killed; a node over its memory evicts the worst offender.

    Order of eviction as the kubelet's: largest use above request first (eviction/helpers.go).
    """
    gone = 0
    while True:
        worst, excess, held = -1, -math.inf, 0.0
        for k in range(int(s.use[b, n, U_PODS])):
            pod = s.pods[b, s.slots[b, n, k]]
            held += pod[T_MEMORY_USE]
            over = pod[T_MEMORY_USE] - pod[P_MEMORY]
            if pod[T_MEMORY_USE] > pod[P_MEMORY] * pod[T_LIMIT_RATIO]:
                over = math.inf
            if over > excess:
                worst, excess = k, over
        if worst < 0 or (held <= s.node[b, n, N_MEMORY] and excess != math.inf):
            break
        impulse(s, b, s.pods[b, s.slots[b, n, worst]])
        p = take_off(s, b, n, worst)
        gone += 1
        if excess == math.inf:
            s.env[b, V_OOM] += 1.0
            s.pods[b, p, D_STATUS] = KILLED
        else:
            s.env[b, V_EVICTIONS] += 1.0
            enqueue(s, b, p)
    if gone > 0:
        changed(s, b, n, scratch)


@kernel
def enqueue(s: State, b: int, p: int) -> None:
    """Put a pod at the end of the pending queue with its requests as asked."""
    env, pod = s.env[b], s.pods[b, p]
    apply_quota(pod, 1.0, 1.0)
    pod[D_STATUS] = PENDING
    s.queue[b, int(env[V_PENDING])] = p
    env[V_PENDING] += 1.0
    pending_changed(s, b)


@kernel
def dequeue(s: State, b: int, q: int) -> int:
    """Take entry q out of the pending queue."""
    env = s.env[b]
    p = s.queue[b, q]
    for j in range(q, int(env[V_PENDING]) - 1):
        s.queue[b, j] = s.queue[b, j + 1]
    env[V_PENDING] -= 1.0
    pending_changed(s, b)
    return int(p)


@kernel
def pending_changed(s: State, b: int) -> None:
    """The queue changed: its cost, and who is charged for it."""
    env = s.env[b]
    cost = -min(1.0, PENDING_WEIGHT * env[V_PENDING] / env[V_REFERENCE])
    env[V_RATE + 3] += cost - env[V_BACKLOG]
    env[V_BACKLOG] = cost
    if env[V_TRACK] == 1:
        recharge(s, b)


@kernel
def finish(s: State, b: int, n: int, scratch: np.ndarray) -> None:
    """The pod of node n that was due has ended; pending pods may now fit."""
    accumulate(s, b, n, s.env[b, V_CLOCK])
    p = take_off(s, b, n, int(s.rates[b, n, J_FINISHER]))
    s.pods[b, p, D_STATUS] = FINISHED
    changed(s, b, n, scratch)
    s.env[b, V_RETRY] = float(n)


@kernel
def fail_node(s: State, b: int, n: int, seconds: float, scratch: np.ndarray) -> None:
    """Node n goes down: its pods are evicted and wait again; their work is lost."""
    env = s.env[b]
    if s.use[b, n, U_UP] == 0:
        return
    accumulate(s, b, n, env[V_CLOCK])
    while s.use[b, n, U_PODS] > 0:
        impulse(s, b, s.pods[b, s.slots[b, n, 0]])
        p = take_off(s, b, n, 0)
        env[V_EVICTIONS] += 1.0
        enqueue(s, b, p)
    s.use[b, n, U_UP] = 0.0
    s.use[b, n, U_FAILURES] += 1.0
    s.rates[b, n, J_RECOVER] = env[V_CLOCK] + seconds
    changed(s, b, n, scratch)
    env[V_RETRY] = -2.0  # the evicted pods may fit anywhere


@kernel
def recover_node(s: State, b: int, n: int, scratch: np.ndarray) -> None:
    """Node n comes back empty."""
    accumulate(s, b, n, s.env[b, V_CLOCK])
    s.use[b, n, U_UP] = 1.0
    s.rates[b, n, J_RECOVER] = math.inf
    changed(s, b, n, scratch)
    s.env[b, V_RETRY] = float(n)


@kernel
def tick(s: State, b: int, scratch: np.ndarray) -> None:
    """Every 900 s: energy price, battery charge, and the ages in the features move on."""
    env = s.env[b]
    phase = 2.0 * math.pi * env[V_CLOCK] / env[V_PERIOD]
    env[V_PRICE] = 1.0 + env[V_PRICE_AMPLITUDE] * math.sin(phase)
    if env[V_BATTERY_WH] > 0.0:  # the sun at its height charges at twice the mean draw
        net = env[V_WATTS] * (2.0 * max(0.0, -math.cos(phase)) - 1.0)
        charge = env[V_CHARGE] + net * TICK_SECONDS / 3600.0 / env[V_BATTERY_WH]
        env[V_CHARGE] = min(1.0, max(0.0, charge))
    for n in range(int(env[V_NODES])):
        accumulate(s, b, n, env[V_CLOCK])
        s.use[b, n, U_FAILURES] *= 0.75  # forgets over about an hour
        changed(s, b, n, scratch)
    env[V_TICK] += TICK_SECONDS


@kernel
def settle(s: State, b: int, t: float) -> None:
    """Close decisions whose horizon has passed by time t, oldest first."""
    env = s.env[b]
    while env[V_OLDEST] < env[V_DECISIONS]:
        row = s.decisions[b, int(env[V_OLDEST])]
        if row[E_TIME] + env[V_HORIZON] > t:
            return
        if row[E_CLOSED] == 0:
            accumulate(s, b, int(row[E_NODE]), row[E_TIME] + env[V_HORIZON])
        env[V_OLDEST] += 1.0


@kernel
def fits_anywhere(s: State, b: int, pod: np.ndarray) -> bool:
    """Whether any node fits the pod."""
    node, use, gpu = s.node[b], s.use[b], s.gpu[b]
    for n in range(int(s.env[b, V_NODES])):  # noqa: SIM110 (compiled: a generator would not be)
        if fits(node[n], use[n], gpu[n], pod):
            return True
    return False


@kernel
def next_pending(s: State, b: int) -> bool:
    """Take the first pending pod that fits the node that got room (-2: any node) as the next decision."""
    env = s.env[b]
    n = int(env[V_RETRY])
    for q in range(int(env[V_PENDING])):
        pod = s.pods[b, s.queue[b, q]]
        if n >= 0:
            found = fits(s.node[b, n], s.use[b, n], s.gpu[b, n], pod)
        else:
            found = fits_anywhere(s, b, pod)
        if found:
            env[V_POD] = float(dequeue(s, b, q))
            return True
    env[V_RETRY] = -1.0
    return False


@kernel
def next_event(s: State, b: int) -> tuple[float, int, int]:
    """Time, kind (0 arrival, 1 finish, 2 fault, 3 recovery, 4 tick, 5 end) and node of the next event."""
    env = s.env[b]
    at, kind, where = env[V_END], 5, -1
    if env[V_TICK] < at:
        at, kind = env[V_TICK], 4
    if env[V_NEXT_POD] < env[V_PODS]:
        arrival = s.pods[b, int(env[V_NEXT_POD]), T_ARRIVAL]
        if arrival < at:
            at, kind = arrival, 0
    if env[V_FAULT] < s.faults.shape[1]:
        fault = s.faults[b, int(env[V_FAULT]), 0]
        if fault < at:
            at, kind = fault, 2
    rates = s.rates[b]
    for n in range(int(env[V_NODES])):
        if rates[n, J_FINISH] < at:
            at, kind, where = rates[n, J_FINISH], 1, n
        if rates[n, J_RECOVER] < at:
            at, kind, where = rates[n, J_RECOVER], 3, n
    return at, kind, where


@kernel
def advance(s: State, b: int, scratch: np.ndarray) -> bool:
    """Run cluster b to its next decision (V_POD >= 0, True) or to the end of the episode (False)."""
    env = s.env[b]
    env[V_POD] = -1.0
    while True:
        if env[V_RETRY] != -1.0 and next_pending(s, b):
            return True
        at, kind, where = next_event(s, b)
        at = max(at, env[V_CLOCK])
        settle(s, b, at)
        advance_cluster(env, at)
        env[V_CLOCK] = at
        if kind == 0:
            p = int(env[V_NEXT_POD])
            env[V_NEXT_POD] += 1.0
            if fits_anywhere(s, b, s.pods[b, p]):
                env[V_POD] = float(p)
                return True
            enqueue(s, b, p)
        elif kind == 1:
            finish(s, b, where, scratch)
        elif kind == 2:
            row = s.faults[b, int(env[V_FAULT])]
            env[V_FAULT] += 1.0
            fail_node(s, b, int(row[1]), row[2], scratch)
        elif kind == 3:
            recover_node(s, b, where, scratch)
        elif kind == 4:
            tick(s, b, scratch)
        else:
            finish_episode(s, b)
            return False


@kernel
def finish_episode(s: State, b: int) -> None:
    """Bring every node up to the end; decisions that are still open stay open."""
    for n in range(int(s.env[b, V_NODES])):
        accumulate(s, b, n, s.env[b, V_CLOCK])


@kernel
def free_from_scratch(s: State, b: int, use: np.ndarray, gpu: np.ndarray, zone: np.ndarray) -> None:
    """Recompute requests, devices and zones of every node from the running pods (for checks)."""
    use[:] = 0.0
    gpu[:] = 0.0
    zone[:] = 0.0
    for n in range(int(s.env[b, V_NODES])):
        node = s.node[b, n]
        gpu[n, : int(node[N_GPUS])] = 1000.0
        for z in range(min(MAX_ZONES, int(node[N_ZONES]))):
            zone[n, z, 0] = node[N_CPU] / node[N_ZONES]
            zone[n, z, 1] = node[N_MEMORY] / node[N_ZONES]
    for p in range(int(s.env[b, V_PODS])):
        pod = s.pods[b, p]
        if pod[D_STATUS] != RUNNING:
            continue
        n = int(pod[D_NODE])
        use[n, U_CPU] += pod[P_CPU]
        use[n, U_MEMORY] += pod[P_MEMORY]
        use[n, U_GPU] += pod[P_GPU] * pod[P_GPUS]
        use[n, U_PODS] += 1.0
        for g in range(int(s.node[b, n, N_GPUS])):
            if int(pod[D_DEVICES]) & (1 << g):
                gpu[n, g] -= pod[P_GPU]
        zones = int(s.node[b, n, N_ZONES])
        for z in range(zones):
            share = 1.0 if int(pod[D_ZONE]) == z else (1.0 / zones if pod[D_ZONE] < 0 else 0.0)
            zone[n, z, 0] -= share * pod[P_CPU]
            zone[n, z, 1] -= share * pod[P_MEMORY]
