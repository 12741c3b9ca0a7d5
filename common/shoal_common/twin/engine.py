# SPDX-License-Identifier: Apache-2.0
"""The event engine: arrivals, starts, finishes, evictions, node failures; one kernel call a step.

Between events rates are constant, so a node is touched only when its set of pods changes (and at a slow tick
that lets prices and ages move). `advance` runs a cluster to its next decision: a pod that fits somewhere.
Pods that fit nowhere wait in a FIFO queue with skipping and are looked at again when a node gets room, and
all of them at each tick, as kube-scheduler flushes its unschedulable pods now and then.
"""

from __future__ import annotations

import math

from shoal_common.cluster import (
    F64,
    N_CPU,
    N_GPUS,
    N_MEMORY,
    N_ZONES,
    P_CPU,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    U_CPU,
    U_FAILURES,
    U_GPU,
    U_MEMORY,
    U_PODS,
    U_UP,
    fits,
    zone_share,
)
from shoal_common.kernels import lean_kernel
from shoal_common.twin.accounting import accumulate, advance_cluster
from shoal_common.twin.placement import changed, dequeue, enqueue, impulse, room_on, take_off
from shoal_common.twin.state import (
    ANY_ROOM,
    D_DEVICES,
    D_NODE,
    D_STATUS,
    D_ZONE_CPU,
    D_ZONE_MEMORY,
    E_CLOSED,
    E_NODE,
    E_TIME,
    FINISHED,
    J_FINISHER,
    NO_ROOM,
    Q_BACKOFF,
    RUNNING,
    T_ARRIVAL,
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
    V_PENDING,
    V_PERIOD,
    V_POD,
    V_PODS,
    V_PRICE,
    V_PRICE_AMPLITUDE,
    V_RETRY,
    V_ROOM,
    V_TICK,
    V_TRACK,
    V_WATTS,
    State,
)

TICK_SECONDS = 900.0
NEVER = -1.0  # before every clock

# kinds of events
ARRIVAL, NODE_DUE, FAULT, TICK, END = 0, 1, 2, 3, 4


@lean_kernel
def finish(s: State, b: int, n: int) -> None:
    """The pod of node n that was due has ended; pending pods may now fit."""
    accumulate(s, b, n, s.env[b, V_CLOCK])
    p = take_off(s, b, n, int(s.rates[b, n, J_FINISHER]))
    s.pods[b, p, D_STATUS] = FINISHED
    changed(s, b, n)
    room_on(s.env[b], n)


@lean_kernel
def fail_node(s: State, b: int, n: int, seconds: float) -> None:
    """Node n goes down: its pods are evicted and wait again; their work is lost."""
    env = s.env[b]
    if s.use[b, n, U_UP] == 0:
        return
    accumulate(s, b, n, env[V_CLOCK])
    s.use[b, n, U_UP] = 0.0
    while s.use[b, n, U_PODS] > 0:
        impulse(s, b, s.pods[b, s.slots[b, n, 0]])
        p = take_off(s, b, n, 0)
        env[V_EVICTIONS] += 1.0
        enqueue(s, b, p, NEVER)
    s.use[b, n, U_FAILURES] += 1.0
    s.due[b, n] = env[V_CLOCK] + seconds
    changed(s, b, n)
    env[V_RETRY] = ANY_ROOM  # the evicted pods may fit anywhere


@lean_kernel
def recover_node(s: State, b: int, n: int) -> None:
    """Node n comes back empty."""
    accumulate(s, b, n, s.env[b, V_CLOCK])
    s.use[b, n, U_UP] = 1.0
    changed(s, b, n)
    room_on(s.env[b], n)


@lean_kernel
def tick(s: State, b: int) -> None:
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
        changed(s, b, n)
    env[V_TICK] += TICK_SECONDS
    env[V_RETRY] = ANY_ROOM


@lean_kernel
def settle(s: State, b: int, t: float) -> None:
    """Close decisions whose horizon has passed by time t, oldest first."""
    env = s.env[b]
    while env[V_TRACK] == 1 and env[V_OLDEST] < env[V_DECISIONS]:
        row = s.decisions[b, int(env[V_OLDEST])]
        if row[E_TIME] + env[V_HORIZON] > t:
            return
        if row[E_CLOSED] == 0:
            accumulate(s, b, int(row[E_NODE]), row[E_TIME] + env[V_HORIZON])
        env[V_OLDEST] += 1.0


@lean_kernel
def fits_anywhere(s: State, b: int, pod: F64) -> bool:
    """Whether any node fits the pod."""
    node, use, gpu = s.node[b], s.use[b], s.gpu[b]
    for n in range(int(s.env[b, V_NODES])):  # noqa: SIM110 (compiled: a generator would not be)
        if fits(node[n], use[n], gpu[n], pod):
            return True
    return False


@lean_kernel
def next_pending(s: State, b: int) -> bool:
    """Take the first pending pod that fits the node that got room (or any node) as the next decision."""
    env = s.env[b]
    n = int(env[V_RETRY])
    for q in range(int(env[V_PENDING])):
        pod = s.queue[b, q]
        if pod[Q_BACKOFF] == env[V_CLOCK]:
            continue
        if fits(s.node[b, n], s.use[b, n], s.gpu[b, n], pod) if n >= 0 else fits_anywhere(s, b, pod):
            env[V_POD] = float(dequeue(s, b, q))
            return True
    env[V_RETRY] = NO_ROOM
    return False


@lean_kernel
def next_event(s: State, b: int) -> tuple[float, int, int]:
    """Time, kind and node of the next event; at equal times arrivals come first and nodes last."""
    env, due = s.env[b], s.due[b]
    at, kind, where = env[V_END], END, -1
    if env[V_TICK] < at:
        at, kind = env[V_TICK], TICK
    if env[V_NEXT_POD] < env[V_PODS]:
        arrival = s.pods[b, int(env[V_NEXT_POD]), T_ARRIVAL]
        if arrival < at:
            at, kind = arrival, ARRIVAL
    if env[V_FAULT] < s.faults.shape[1]:
        fault = s.faults[b, int(env[V_FAULT]), 0]
        if fault < at:
            at, kind = fault, FAULT
    for n in range(int(env[V_NODES])):
        if due[n] < at:
            at, kind, where = due[n], NODE_DUE, n
    return at, kind, where


@lean_kernel
def advance(s: State, b: int) -> bool:
    """Run cluster b to its next decision (V_POD >= 0, True) or to the end of the episode (False).

    The episode also ends when the table of decisions is full, so that none goes uncredited.
    """
    env = s.env[b]
    env[V_POD] = -1.0
    if env[V_TRACK] == 1 and env[V_DECISIONS] >= env[V_ROOM]:
        env[V_END] = env[V_CLOCK]
    while env[V_CLOCK] < env[V_END]:
        if env[V_RETRY] != NO_ROOM and next_pending(s, b):
            return True
        at, kind, where = next_event(s, b)
        at = max(at, env[V_CLOCK])
        settle(s, b, at)
        advance_cluster(env, at)
        env[V_CLOCK] = at
        if kind == ARRIVAL:
            p = int(env[V_NEXT_POD])
            env[V_NEXT_POD] += 1.0
            if fits_anywhere(s, b, s.pods[b, p]):
                env[V_POD] = float(p)
                return True
            enqueue(s, b, p, NEVER)
        elif kind == NODE_DUE and s.use[b, where, U_UP] == 1:
            finish(s, b, where)
        elif kind == NODE_DUE:
            recover_node(s, b, where)
        elif kind == FAULT:
            row = s.faults[b, int(env[V_FAULT])]
            env[V_FAULT] += 1.0
            fail_node(s, b, int(row[1]), row[2])
        elif kind == TICK:
            tick(s, b)
    for n in range(int(env[V_NODES])):  # decisions that are still open stay open
        accumulate(s, b, n, env[V_CLOCK])
    return False


@lean_kernel
def free_from_scratch(s: State, b: int, use: F64, gpu: F64, zone: F64) -> None:
    """Recompute requests, devices and zones of every node from the running pods (for checks)."""
    use[:], gpu[:], zone[:] = 0.0, 0.0, 0.0
    for n in range(int(s.env[b, V_NODES])):
        node = s.node[b, n]
        gpu[n, : int(node[N_GPUS])] = 1000.0
        for z in range(int(node[N_ZONES])):
            zone[n, z, 0] = zone_share(node[N_CPU], z, int(node[N_ZONES]))
            zone[n, z, 1] = zone_share(node[N_MEMORY], z, int(node[N_ZONES]))
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
        for z in range(int(s.node[b, n, N_ZONES])):
            zone[n, z, 0] -= pod[D_ZONE_CPU + z]
            zone[n, z, 1] -= pod[D_ZONE_MEMORY + z]
