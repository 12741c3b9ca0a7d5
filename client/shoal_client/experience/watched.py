# SPDX-License-Identifier: Apache-2.0
"""What a choice looked like that nobody asked us about: another scheduler's, or of a single candidate.

The bind is seen after it happened, so the tables hold the pod already. Its own requests and load are taken
off its node again, or the chosen candidate would be told from the others by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from shoal_client.admission import admits
from shoal_client.experience.records import F64, I64, KEPT, Seen
from shoal_common.cluster import (
    MAX_GPUS,
    MAX_ZONES,
    N_GPUS,
    N_ZONES,
    NODE_COLUMNS,
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_GPU,
    P_GPUS,
    P_IO_USE,
    P_MEMORY,
    POD_COLUMNS,
    U_CPU,
    U_CPU_NONZERO,
    U_CPU_WANTED,
    U_GPU,
    U_IO_WANTED,
    U_LOAD,
    U_MEMORY,
    U_MEMORY_NONZERO,
    U_MEMORY_WANTED,
    U_PODS,
    U_REMAINING,
    U_UP,
    USE_COLUMNS,
    Cluster,
    feasible_mask,
    nonzero_cpu,
    nonzero_memory,
    zone_share,
)
from shoal_common.decide import Context, observe
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.reward import ObjectiveWeights


class Live(Protocol):
    """What is asked of the cluster's state."""

    @property
    def cluster(self) -> Cluster:
        """The nodes as tables."""

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """The nodes by name."""

    @property
    def pending(self) -> int:
        """Pods that a scheduler has to place now."""

    def row(self, name: str) -> int:
        """The row of a node; negative where there is none."""


def watched(
    live: Live, pod: PodRecord, row: F64, asked: F64, node: str, rng: np.random.Generator
) -> tuple[Seen, int] | None:
    """What could be chosen for a pod that was just bound to `node`, and its place there.

    `row` and `asked` [POD_COLUMNS] are the pod with the requests it has and with those it asked for. At most
    `KEPT` candidates: the node and others drawn among those that fit; None for an unknown node.
    """
    cluster, bound = live.cluster, live.row(node)
    if bound < 0:
        return None
    use, gpu, zone = cluster.use.copy(), cluster.gpu_free.copy(), cluster.zone_free.copy()
    take_off(cluster.node[bound], use[bound], gpu[bound], zone[bound], row)
    use[bound, U_UP] = 1.0
    rows = _candidates(live, use, gpu, pod, row, bound, rng)
    before = replace(cluster, use=use, gpu_free=gpu, zone_free=zone)
    mask, context = np.ones((len(rows), 1), np.bool_), Context.now(1.0 + live.pending)
    obs = observe(before, asked, mask, ObjectiveWeights().array(), context, rows)
    return Seen.of(obs, [cluster.names[n] for n in rows]), int(np.searchsorted(rows, bound))


def compile_kernels() -> None:
    """Compile (or load) what a first watched bind needs, beside what every decision does."""
    rows = np.ones((1, NODE_COLUMNS)), np.ones((1, USE_COLUMNS)), np.zeros((1, MAX_GPUS))
    feasible_mask(*rows, np.ones(POD_COLUMNS), np.zeros(1, np.bool_))
    take_off(rows[0][0], rows[1][0], rows[2][0], np.zeros((MAX_ZONES, 2)), np.zeros(POD_COLUMNS))


def take_off(node: F64, use: F64, gpu: F64, zone: F64, pod: F64) -> None:
    """Take a pod off the rows of its node, in place: requests, devices and what it is taken to use.

    The API does not say which devices and which NUMA zone it got: the fullest devices, every zone in part.
    """
    taken = {
        U_CPU: pod[P_CPU],
        U_MEMORY: pod[P_MEMORY],
        U_GPU: pod[P_GPU] * pod[P_GPUS],
        U_PODS: 1.0,
        U_CPU_NONZERO: nonzero_cpu(pod[P_CPU]),
        U_MEMORY_NONZERO: nonzero_memory(pod[P_MEMORY]),
        U_MEMORY_WANTED: nonzero_memory(pod[P_MEMORY]),
        U_CPU_WANTED: pod[P_CPU_USE],
        U_IO_WANTED: pod[P_IO_USE],
        U_LOAD + int(pod[P_CLASS]): pod[P_CPU_USE],
    }
    for column, amount in taken.items():
        use[column] = max(0.0, use[column] - amount)
    left = use[U_PODS]  # the pod has just begun: all of its time was left
    use[U_REMAINING] = max(0.0, (use[U_REMAINING] * (left + 1) - 1) / left) if left else 0.0
    zones = int(node[N_ZONES])
    for z in range(zones):
        zone[z] += [zone_share(pod[column], z, zones) for column in (P_CPU, P_MEMORY)]
    fullest = sorted(range(min(MAX_GPUS, int(node[N_GPUS]))), key=lambda g: gpu[g])
    held = [g for g in fullest if gpu[g] + pod[P_GPU] <= 1000.0]
    for g in held[: int(pod[P_GPUS])]:
        gpu[g] += pod[P_GPU]


def _candidates(
    live: Live, use: F64, gpu: F64, pod: PodRecord, row: F64, bound: int, rng: np.random.Generator
) -> I64:
    """The bound node and at most `KEPT` - 1 others that fit and admit the pod, in the order of the tables."""
    cluster = live.cluster
    mask = np.zeros(len(cluster), np.bool_)
    feasible_mask(cluster.node, use, gpu, row, mask)
    mask[bound] = False
    rows = [bound]
    for n in rng.permutation(np.flatnonzero(mask)):
        node = live.nodes.get(cluster.names[n])
        if node is not None and admits(node, pod):
            rows.append(int(n))
        if len(rows) == KEPT:
            break
    return np.sort(np.array(rows, np.int64))
