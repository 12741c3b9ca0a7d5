# SPDX-License-Identifier: Apache-2.0
"""The twin's state: packed tables with named columns, B clusters stepped as one batch.

Legend: B clusters, N padded nodes, M pods, K pod slots of a node, D decisions, Q faults. A cluster's rows are
its own, so clusters can be stepped in any order and by several threads with the same result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import F32, F64, I32, MAX_ZONES
from shoal_common.twin.physics import RUNNING_COLUMNS, SUMS

# pods: behind the columns of cluster.py (P_*) and physics.py (R_*); what every event reads comes first, as a
# cluster's pods are spread over more memory than the caches hold
T_MEMORY_USE = RUNNING_COLUMNS  # bytes this pod holds at its peak
T_LIMIT_RATIO = 14  # limit / request
T_SLOWDOWN = 15  # current slowdown against the reference node alone
D_REMAINING = 16  # seconds of work left
D_RATE = 17  # work per second
D_START = 18
D_SLOW_INTEGRAL = 19  # slowdown x seconds
D_DECISION = 20  # open decision, -1 none
D_LOO = 21  # .. + 3: current leave-one-out reward rates
D_CHARGE = 25  # penalty rate charged for pending pods
D_DEVICES = 26  # bit set of GPU devices
T_ARRIVAL = 27  # seconds
T_WORK = 28  # seconds on the reference node alone; a service's fixed duration
T_CPU_ASKED = 29  # request before quotas
T_MEMORY_ASKED = 30
D_STATUS = 31
D_NODE = 32
D_END = 33
D_ZONE_CPU = 34  # .. + MAX_ZONES - 1: millicores taken in each NUMA zone
D_ZONE_MEMORY = D_ZONE_CPU + MAX_ZONES
TWIN_POD_COLUMNS = D_ZONE_MEMORY + MAX_ZONES

# status of a pod
WAITING, PENDING, RUNNING, FINISHED, KILLED = 0.0, 1.0, 2.0, 3.0, 4.0

# queue: requests as in the first four columns of a pod, kept apart so that the queue is read in one go
Q_POD = 4  # row
Q_BACKOFF = 5  # evicted for memory at this time: looked at again only later
QUEUE_COLUMNS = 6

# rates: what a node contributes now
J_TERM = 0  # .. + 3: util, qos, energy, penalty
J_LAST = 4  # time of the last accumulation
J_FINISHER = 5  # slot of the pod that finishes next
J_WATTS = 6
J_USED = 7  # millicores in use
J_HELD = 8  # pending pods that the node keeps out, as bits (`held_back`)
J_SUMS = 9
RATE_COLUMNS = J_SUMS + SUMS

# decisions
E_TIME, E_POD, E_NODE, E_CLOSED = 0, 1, 2, 3
E_LOO = 4  # .. + 3: leave-one-out difference, discounted integral
E_OWN = 8  # .. + 3: the node's own rate minus its rate before, discounted integral
E_BASE = 12  # .. + 3: the node's rate just before placement
DECISION_COLUMNS = 16

# env: one row of scalars a cluster
V_CLOCK, V_END, V_NEXT_POD, V_PODS, V_PENDING, V_POD, V_RETRY, V_FAULT = 0, 1, 2, 3, 4, 5, 6, 7
V_TICK, V_PRICE, V_PRICE_AMPLITUDE, V_CHARGE, V_BATTERY_WH, V_PERIOD = 8, 9, 10, 11, 12, 13
V_CAPACITY, V_WATT_RANGE, V_REFERENCE, V_TRACK, V_HORIZON, V_TAU = 14, 15, 16, 17, 18, 19
V_DECISIONS, V_OLDEST, V_NODES, V_LAST, V_ROTATION, V_EVICTIONS, V_OOM = 20, 21, 22, 23, 24, 25, 26
V_RATE = 27  # .. + 3: sum over nodes, penalty with the pending pods
V_TOTAL = 31  # .. + 3: integral over the episode
V_STEP = 35  # .. + 3: integral since the last decision
V_WATT_SECONDS, V_USED_SECONDS, V_WATTS, V_USED, V_CPU, V_BACKLOG, V_ROOM = 39, 40, 41, 42, 43, 44, 45
ENV_COLUMNS = 46

# V_RETRY: the node that got room and whose pending pods are being looked at, or one of these
NO_ROOM, ANY_ROOM = -1.0, -2.0

# work: rows of scratch space of one cluster
W_SUMS, W_WHOLE, W_PART, W_WEIGHTS = 0, 1, 2, 3
W_WITH = 4  # sums over all pods of a node
W_USEFUL, W_LOSS = 5, 6  # by slot: useful work, loss of service quality
SLOTS = 112  # kubelet's default of 110 pods a node, and one for lookahead
WORK = (7, SLOTS)


class State(NamedTuple):
    """Everything a batch of B twins is; kernels take it whole and index it by cluster."""

    node: F64  # [B, N, NODE_COLUMNS]
    believed: F64  # [B, N, NODE_COLUMNS], nodes as the counterfactual model believes them
    use: F64  # [B, N, USE_COLUMNS]
    gpu: F64  # [B, N, MAX_GPUS], free milli-GPU
    zone: F64  # [B, N, MAX_ZONES, 2], free millicores and bytes
    rates: F64  # [B, N, RATE_COLUMNS]
    due: F64  # [B, N]: time of the node's next finish, of its return where it is down, else inf
    slots: I32  # [B, N, K], pod rows; the first use[U_PODS] are taken
    pods: F64  # [B, M, TWIN_POD_COLUMNS], in order of arrival
    queue: F64  # [B, M, QUEUE_COLUMNS], the pending pods, oldest first
    decisions: F64  # [B, D, DECISION_COLUMNS]
    faults: F64  # [B, Q, 3]: time, node, seconds down
    env: F64  # [B, ENV_COLUMNS]
    physics: F64  # [B, 2, PHYSICS]: the truth, and what the counterfactual model believes
    random: npt.NDArray[np.uint64]  # [B], one generator a cluster
    features: F32  # [B, N, FN], re-encoded when a node changes
    work: F64  # [B, *WORK], scratch
    found: I32  # [B, N], scratch: candidates of a decision
    score: F64  # [B, N], scratch: their scores
