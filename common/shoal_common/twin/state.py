# SPDX-License-Identifier: Apache-2.0
"""The twin's state: packed tables with named columns, B clusters stepped as one batch.

Legend: B clusters, N padded nodes, M pods, K pod slots of a node, D decisions, Q faults.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import F64
from shoal_common.twin.physics import SUMS

I32 = npt.NDArray[np.int32]

# pods: behind the columns of cluster.py (P_*) and physics.py (R_*)
T_ARRIVAL = 12  # seconds
T_WORK = 13  # seconds on the reference node alone; a service's fixed duration
T_CPU_USE = 14  # millicores this pod would use
T_MEMORY_USE = 15  # bytes this pod holds at its peak
T_CPU_ASKED = 16  # request before quotas
T_MEMORY_ASKED = 17
T_LIMIT_RATIO = 18  # limit / request
T_APP = 19
T_TENANT = 20
T_SLOWDOWN = 21  # current slowdown against the reference node alone
D_STATUS = 22
D_NODE = 23
D_ZONE = 24  # NUMA zone, -1 where it spans zones
D_DEVICES = 25  # bit set of GPU devices
D_REMAINING = 26  # seconds of work left
D_RATE = 27  # work per second
D_START = 28
D_END = 29
D_SLOW_INTEGRAL = 30  # slowdown x seconds
D_DECISION = 31  # open decision, -1 none
D_LOO = 32  # .. + 3: current leave-one-out reward rates
D_CHARGE = 36  # penalty rate charged for pending pods
TWIN_POD_COLUMNS = 37

# status of a pod
WAITING, PENDING, RUNNING, FINISHED, KILLED = 0.0, 1.0, 2.0, 3.0, 4.0

# rates: what a node contributes now
J_TERM = 0  # .. + 3: util, qos, energy, penalty
J_LAST = 4  # time of the last accumulation
J_FINISH = 5  # time of the next finish, inf without
J_FINISHER = 6  # slot of the pod that finishes next
J_WATTS = 7
J_USED = 8  # millicores in use
J_RECOVER = 9  # time a failed node comes back, inf otherwise
J_SUMS = 10
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
V_WATT_SECONDS, V_USED_SECONDS, V_WATTS, V_USED, V_CPU, V_BACKLOG = 39, 40, 41, 42, 43, 44
ENV_COLUMNS = 45


class State(NamedTuple):
    """Everything a batch of B twins is; kernels take it whole and index it by cluster."""

    node: F64  # [B, N, NODE_COLUMNS]
    believed: F64  # [B, N, NODE_COLUMNS], nodes as the counterfactual model believes them
    use: F64  # [B, N, USE_COLUMNS]
    gpu: F64  # [B, N, MAX_GPUS], free milli-GPU
    zone: F64  # [B, N, MAX_ZONES, 2], free millicores and bytes
    rates: F64  # [B, N, RATE_COLUMNS]
    slots: I32  # [B, N, K], pod rows; the first use[U_PODS] are taken
    pods: F64  # [B, M, TWIN_POD_COLUMNS], in order of arrival
    queue: I32  # [B, M], pending pod rows, oldest first
    decisions: F64  # [B, D, DECISION_COLUMNS]
    faults: F64  # [B, Q, 3]: time, node, seconds down
    env: F64  # [B, ENV_COLUMNS]
    physics: F64  # [2, PHYSICS]: the truth, and what the counterfactual model believes
    random: npt.NDArray[np.uint64]  # [B], one generator a cluster
    features: npt.NDArray[np.float32]  # [B, N, FN], re-encoded when a node changes
