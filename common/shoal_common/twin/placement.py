# SPDX-License-Identifier: Apache-2.0
"""Binding pods to nodes and taking them off: requests, devices, NUMA zones, the pending queue, memory.

Amounts are whole numbers in float64, so that what a pod gives back is exactly what it took.
"""

from __future__ import annotations

import math

from shoal_common.cluster import (
    F64,
    N_GPUS,
    N_MEMORY,
    N_ZONES,
    P_CPU,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    U_CPU,
    U_CPU_NONZERO,
    U_GPU,
    U_MEMORY,
    U_MEMORY_NONZERO,
    U_PODS,
    nonzero_cpu,
    nonzero_memory,
)
from shoal_common.features import encode_node
from shoal_common.kernels import lean_kernel
from shoal_common.twin.accounting import (
    PENDING_LOOKED_AT,
    PENDING_WEIGHT,
    accumulate,
    recharge,
    recompute,
)
from shoal_common.twin.physics import R_CPU, R_SPANS, R_USE
from shoal_common.twin.state import (
    ANY_ROOM,
    D_DECISION,
    D_DEVICES,
    D_END,
    D_NODE,
    D_REMAINING,
    D_SLOW_INTEGRAL,
    D_START,
    D_STATUS,
    D_ZONE_CPU,
    D_ZONE_MEMORY,
    E_BASE,
    E_CLOSED,
    E_LOO,
    E_NODE,
    E_OWN,
    E_POD,
    E_TIME,
    J_TERM,
    KILLED,
    NO_ROOM,
    PENDING,
    Q_BACKOFF,
    Q_POD,
    QUEUE_COLUMNS,
    RUNNING,
    T_CPU_ASKED,
    T_LIMIT_RATIO,
    T_MEMORY_ASKED,
    T_MEMORY_USE,
    T_WORK,
    V_BACKLOG,
    V_CLOCK,
    V_DECISIONS,
    V_EVICTIONS,
    V_OOM,
    V_PENDING,
    V_RATE,
    V_REFERENCE,
    V_RETRY,
    V_STEP,
    V_TOTAL,
    V_TRACK,
    State,
)

EVICTION_SECONDS = 60.0  # an eviction or kill costs as much as waiting for this long
LEAST_QUOTA = 0.05  # no request falls below this share of what was asked


@lean_kernel
def apply_quota(pod: F64, cpu: float, memory: float) -> None:
    """Set requests to a fraction of what was asked, in [LEAST_QUOTA, 1], and the use that limits leave.

    A quota that is not a number counts as 1.
    """
    cpu = min(max(cpu, LEAST_QUOTA), 1.0) if not math.isnan(cpu) else 1.0
    memory = min(max(memory, LEAST_QUOTA), 1.0) if not math.isnan(memory) else 1.0
    pod[P_CPU] = math.ceil(pod[T_CPU_ASKED] * cpu)
    pod[P_MEMORY] = math.ceil(pod[T_MEMORY_ASKED] * memory)
    pod[R_CPU] = min(pod[R_USE], pod[P_CPU] * pod[T_LIMIT_RATIO])


@lean_kernel
def choose_devices(gpu: F64, devices: int, milli: float, count: int) -> int:
    """Choose devices for a pod, as a bit set: the tightest for a share, the lowest free ones otherwise."""
    chosen = 0
    if count == 1 and milli < 1000.0:
        best, left = -1, math.inf
        for g in range(devices):
            if milli <= gpu[g] < left:
                best, left = g, gpu[g]
        return 1 << best if best >= 0 else 0
    for g in range(devices):
        if count > 0 and gpu[g] >= milli:
            chosen |= 1 << g
            count -= 1
    return chosen


@lean_kernel
def take_zones(zone: F64, zones: int, pod: F64) -> bool:
    """Take CPU and memory in NUMA zones; False where the pod spans zones.

    The fullest zone that holds the whole pod, else the freest zones in turn.
    """
    best, left = -1, math.inf
    for z in range(zones):
        pod[D_ZONE_CPU + z], pod[D_ZONE_MEMORY + z] = 0.0, 0.0
        if pod[P_CPU] <= zone[z, 0] < left and pod[P_MEMORY] <= zone[z, 1]:
            best, left = z, zone[z, 0]
    if best >= 0:
        pod[D_ZONE_CPU + best], pod[D_ZONE_MEMORY + best] = pod[P_CPU], pod[P_MEMORY]
        zone[best, 0] -= pod[P_CPU]
        zone[best, 1] -= pod[P_MEMORY]
        return True
    spread(zone, zones, 0, pod[P_CPU], pod, D_ZONE_CPU)
    spread(zone, zones, 1, pod[P_MEMORY], pod, D_ZONE_MEMORY)
    return False


@lean_kernel
def spread(zone: F64, zones: int, resource: int, amount: float, pod: F64, column: int) -> None:
    """Take an amount from the freest zone, then from the next freest, until it is had."""
    for _ in range(zones):
        freest = 0
        for z in range(1, zones):
            if zone[z, resource] > zone[freest, resource]:
                freest = z
        part = min(amount, zone[freest, resource])
        zone[freest, resource] -= part
        pod[column + freest] += part
        amount -= part
        if amount <= 0.0:
            return


@lean_kernel
def charge_node(s: State, b: int, n: int, pod: F64, sign: float) -> None:
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


@lean_kernel
def open_decision(s: State, b: int, p: int, n: int) -> None:
    """Count a placement and, where decisions are tracked, start its record."""
    env, pod = s.env[b], s.pods[b, p]
    d = int(env[V_DECISIONS])
    env[V_DECISIONS] = d + 1.0
    pod[D_DECISION] = -1.0
    if env[V_TRACK] == 0:
        return
    row = s.decisions[b, d]
    for j in range(len(row)):
        row[j] = 0.0
    row[E_TIME], row[E_POD], row[E_NODE] = env[V_CLOCK], float(p), float(n)
    for j in range(4):
        row[E_BASE + j] = s.rates[b, n, J_TERM + j]
    pod[D_DECISION] = float(d)


@lean_kernel
def changed(s: State, b: int, n: int) -> None:
    """After a node's pods changed: new rates, new features."""
    recompute(s, b, n)
    encode_node(s.node[b, n], s.use[b, n], s.gpu[b, n], s.zone[b, n], s.features[b, n])


@lean_kernel
def room_on(env: F64, n: int) -> None:
    """Node n got room: pending pods are to be looked at for it, or for every node where others did too."""
    env[V_RETRY] = float(n) if env[V_RETRY] in (NO_ROOM, float(n)) else ANY_ROOM


@lean_kernel
def place(s: State, b: int, p: int, n: int) -> None:
    """Bind pod p to node n at V_CLOCK; the caller has checked that it fits."""
    env, pod = s.env[b], s.pods[b, p]
    now, zones = env[V_CLOCK], int(s.node[b, n, N_ZONES])
    accumulate(s, b, n, now)
    open_decision(s, b, p, n)
    pod[D_STATUS], pod[D_NODE], pod[D_START], pod[D_END] = RUNNING, float(n), now, math.inf
    pod[D_REMAINING], pod[D_SLOW_INTEGRAL] = pod[T_WORK], 0.0
    whole = take_zones(s.zone[b, n], zones, pod)
    pod[R_SPANS] = 0.0 if whole else 1.0
    devices = choose_devices(s.gpu[b, n], int(s.node[b, n, N_GPUS]), pod[P_GPU], int(pod[P_GPUS]))
    pod[D_DEVICES] = float(devices)
    charge_node(s, b, n, pod, 1.0)
    s.slots[b, n, int(s.use[b, n, U_PODS])] = p
    s.use[b, n, U_PODS] += 1.0
    if not relieve_memory(s, b, n):
        changed(s, b, n)


@lean_kernel
def take_off(s: State, b: int, n: int, k: int) -> int:
    """Remove slot k of node n and return its pod; rates are stale until `changed`."""
    last = int(s.use[b, n, U_PODS]) - 1
    p = int(s.slots[b, n, k])
    pod, zone = s.pods[b, p], s.zone[b, n]
    charge_node(s, b, n, pod, -1.0)
    for z in range(int(s.node[b, n, N_ZONES])):
        zone[z, 0] += pod[D_ZONE_CPU + z]
        zone[z, 1] += pod[D_ZONE_MEMORY + z]
    for j in range(k, last):  # order kept, so that sums are added in the order of arrival
        s.slots[b, n, j] = s.slots[b, n, j + 1]
    s.use[b, n, U_PODS] = float(last)
    if pod[D_DECISION] >= 0:  # nothing more will be added to it
        s.decisions[b, int(pod[D_DECISION]), E_CLOSED] = 1.0
        pod[D_DECISION] = -1.0
    pod[D_NODE], pod[D_END] = -1.0, s.env[b, V_CLOCK]
    return p


@lean_kernel
def impulse(s: State, b: int, pod: F64) -> None:
    """Charge an eviction or kill to the cluster and to the open decision of the pod."""
    env = s.env[b]
    cost = -PENDING_WEIGHT * EVICTION_SECONDS / env[V_REFERENCE]
    env[V_TOTAL + 3] += cost
    env[V_STEP + 3] += cost
    if pod[D_DECISION] >= 0:
        row = s.decisions[b, int(pod[D_DECISION])]
        row[E_LOO + 3] += cost
        row[E_OWN + 3] += cost


@lean_kernel
def worst_offender(s: State, b: int, n: int) -> tuple[int, bool]:
    """The slot that must go for memory (-1: none), and whether it is killed, not evicted.

    A pod above its own limit is OOM-killed; on a node over its memory the largest use above request goes
    first, as by the kubelet (eviction/helpers.go).
    """
    worst, excess, held = -1, -math.inf, 0.0
    for k in range(int(s.use[b, n, U_PODS])):
        pod = s.pods[b, s.slots[b, n, k]]
        held += pod[T_MEMORY_USE]
        if pod[T_MEMORY_USE] > pod[P_MEMORY] * pod[T_LIMIT_RATIO]:
            return k, True
        over = pod[T_MEMORY_USE] - pod[P_MEMORY]
        if over > excess:
            worst, excess = k, over
    return (worst, False) if held > s.node[b, n, N_MEMORY] else (-1, False)


@lean_kernel
def relieve_memory(s: State, b: int, n: int) -> bool:
    """Kill and evict until memory suffices; whether any pod went.

    An evicted pod backs off: it is not looked at again at this very time, or it could come back for ever.
    """
    worst, killed = worst_offender(s, b, n)
    if worst < 0:
        return False
    while worst >= 0:
        impulse(s, b, s.pods[b, s.slots[b, n, worst]])
        p = take_off(s, b, n, worst)
        if killed:
            s.env[b, V_OOM] += 1.0
            s.pods[b, p, D_STATUS] = KILLED
        else:
            s.env[b, V_EVICTIONS] += 1.0
            enqueue(s, b, p, s.env[b, V_CLOCK])
        worst, killed = worst_offender(s, b, n)
    changed(s, b, n)
    room_on(s.env[b], n)
    return True


@lean_kernel
def enqueue(s: State, b: int, p: int, backoff: float) -> None:
    """Put a pod at the end of the pending queue with its requests as asked."""
    env, pod = s.env[b], s.pods[b, p]
    apply_quota(pod, 1.0, 1.0)
    pod[D_STATUS] = PENDING
    at = int(env[V_PENDING])
    entry = s.queue[b, at]
    entry[P_CPU], entry[P_MEMORY] = pod[P_CPU], pod[P_MEMORY]
    entry[P_GPU], entry[P_GPUS] = pod[P_GPU], pod[P_GPUS]
    entry[Q_POD], entry[Q_BACKOFF] = float(p), backoff
    env[V_PENDING] += 1.0
    queue_changed(s, b, at)


@lean_kernel
def dequeue(s: State, b: int, q: int) -> int:
    """Take entry q out of the pending queue."""
    env, queue = s.env[b], s.queue[b]
    p = int(queue[q, Q_POD])
    for j in range(q, int(env[V_PENDING]) - 1):
        for i in range(QUEUE_COLUMNS):
            queue[j, i] = queue[j + 1, i]
    env[V_PENDING] -= 1.0
    queue_changed(s, b, q)
    return p


@lean_kernel
def queue_changed(s: State, b: int, q: int) -> None:
    """The queue changed from entry q on: its cost, and who is charged for its head."""
    env = s.env[b]
    cost = -min(1.0, PENDING_WEIGHT * env[V_PENDING] / env[V_REFERENCE])
    env[V_RATE + 3] += cost - env[V_BACKLOG]
    env[V_BACKLOG] = cost
    if env[V_TRACK] == 1 and q < PENDING_LOOKED_AT:
        recharge(s, b)
