# SPDX-License-Identifier: Apache-2.0
"""A live cluster as a scenario of the twin: its nodes as they are, its pods as they came.

Nodes of equal rows become one class. Every pod that was bound arrives once, as it requested; what its app was
known to use and to tolerate comes along, and pods of one request shape are one app (`twin.traced`). A pod
that still runs is taken to run for what its app's mean says. What the twin leaves out (`docs/twin.md`) is
left out here too: it compares policies and predicts no live figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from shoal_client.experience.records import Stored
from shoal_common.cluster import (
    DEFAULT_MEMORY,
    DEFAULT_MILLICPU,
    F64,
    N_CPU,
    N_DEEP_IDLE,
    N_DPU,
    N_EXISTS,
    N_GPU_WATTS,
    N_GPUS,
    N_IDLE_WATTS,
    N_IO_CAPACITY,
    N_IO_SPEED,
    N_MAX_WATTS,
    N_MEMORY,
    N_PODS,
    N_SPEED,
    N_ZONES,
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_DURATION,
    P_GPU,
    P_GPUS,
    P_IO_USE,
    P_MEMORY,
    P_SLA,
)
from shoal_common.errors import InputError
from shoal_common.twin.scenarios import GIB, NodeClass, Scenario, Workload
from shoal_common.twin.traced import Recorded

FEWEST_PODS: Final = 20
LONGEST_SECONDS: Final = 86_400.0
LOAD: Final = (0.02, 0.95)
"""Bounds of the offered load: a cluster that was asked for more than it has would only queue."""


def node_class(name: str, row: F64) -> NodeClass:
    """A node's row f64[NODE_COLUMNS] as a class of the twin; `node_class(n, row).row()` is the row again."""
    return NodeClass(
        name,
        cores=float(row[N_CPU] / 1000),
        memory_gib=float(row[N_MEMORY] / GIB),
        gpus=int(row[N_GPUS]),
        speed=float(row[N_SPEED]),
        io_speed=float(row[N_IO_SPEED]),
        io_capacity=float(row[N_IO_CAPACITY]),
        idle_watts=float(row[N_IDLE_WATTS]),
        max_watts=float(row[N_MAX_WATTS]),
        gpu_watts=float(row[N_GPU_WATTS]),
        deep_idle=float(row[N_DEEP_IDLE]),
        dpu=bool(row[N_DPU]),
        numa_zones=int(row[N_ZONES]),
        pods=int(row[N_PODS]),
    )


def node_classes(rows: F64) -> tuple[tuple[NodeClass, int], ...]:
    """The classes of the nodes that exist, f64[N, NODE_COLUMNS], and how many there are of each."""
    kinds, counts = np.unique(rows[rows[:, N_EXISTS] > 0], axis=0, return_counts=True)
    return tuple((node_class(f"kind-{i}", kinds[i]), int(counts[i])) for i in range(len(kinds)))


def recorded_pods(decisions: Iterable[Stored]) -> Recorded:
    """The pods whose attempt is closed and placed them, one each, in order of arrival.

    An attempt is closed once its reward's window is over: the pods of the last minutes are not among them.

    Raises:
        InputError: there are fewer than `FEWEST_PODS`.
    """
    bound = {d.decision.uid: d for d in decisions if d.result is not None and d.result.bound_at > 0}
    if len(bound) < FEWEST_PODS:
        problem = f"{len(bound)} attempts that placed a pod are closed, fewer than {FEWEST_PODS}"
        raise InputError("experience", "pods", problem, "give a longer time, or wait for more")
    stored = sorted(bound.values(), key=lambda d: (d.decision.at, d.decision.id))
    pods = np.stack([d.decision.pod for d in stored])
    cpu = np.where(pods[:, P_CPU] > 0, pods[:, P_CPU], DEFAULT_MILLICPU)
    return Recorded(
        arrival_s=np.array([d.decision.at for d in stored]),
        seconds=np.array([_seconds(d) for d in stored]),
        cpu_milli=cpu,
        memory=np.where(pods[:, P_MEMORY] > 0, pods[:, P_MEMORY], DEFAULT_MEMORY),
        gpu_milli=pods[:, P_GPU],
        gpus=pods[:, P_GPUS],
        kind=pods[:, P_CLASS].astype(np.int64),
        known=np.stack([pods[:, P_CPU_USE] / cpu, pods[:, P_IO_USE], pods[:, P_SLA]], axis=1),
    )


def _seconds(stored: Stored) -> float:
    """How long a pod ran; its app's mean where it runs on."""
    result, mean = stored.result, float(stored.decision.pod[P_DURATION])
    if result is None or not (result.ended_at and result.started_at):
        return max(mean, 1.0)
    return max(result.ended_at - result.started_at, 1.0)


def offered_load(pods: Recorded, nodes: Sequence[tuple[NodeClass, int]]) -> float:
    """What the pods asked for over what the nodes have, of the scarcest resource, within `LOAD`."""
    rows = np.concatenate([np.repeat(kind.row()[None], count, axis=0) for kind, count in nodes])
    span = max(float(pods.arrival_s[-1] - pods.arrival_s[0]), 1.0)
    gpu = pods.gpu_milli * pods.gpus
    asked = np.stack([pods.cpu_milli, pods.memory, gpu, np.ones(len(gpu))]) @ pods.seconds / span
    capacity = rows[:, [N_CPU, N_MEMORY, N_GPUS, N_PODS]].sum(axis=0) * np.array([1, 1, 1000, 1])
    load = float((asked / np.maximum(capacity, 1.0)).max())
    return min(max(load, LOAD[0]), LOAD[1])


def scenario(name: str, nodes: F64, decisions: Iterable[Stored], seconds: float) -> Scenario:
    """A scenario of a live cluster.

    Args:
        name: of the cluster; seeds what is drawn.
        nodes: rows f64[N, NODE_COLUMNS], as in `LiveCluster.cluster.node`.
        decisions: what was recorded, in any order.
        seconds: length of an episode.

    Raises:
        InputError: no node, too few pods, or a length out of bounds.
    """
    if not 0 < seconds <= LONGEST_SECONDS:
        problem = f"{seconds:g} is out of range"
        raise InputError("twin", "seconds", problem, f"give above 0, at most {LONGEST_SECONDS:g}")
    classes = node_classes(nodes)
    if not classes:
        raise InputError("twin", "nodes", "there are none", "give a cluster that has nodes")
    pods = recorded_pods(decisions)
    return Scenario(name, classes, Workload(load=offered_load(pods, classes)), seconds, recorded=pods)
