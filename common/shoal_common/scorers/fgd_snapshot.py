# SPDX-License-Identifier: Apache-2.0
"""FGD on Kubernetes records: the fragmentation gradient of each node that the filters let through.

Devices are whole `nvidia.com/gpu`; beyond 62 free ones a node counts as having 62 (time slicing may advertise
any number). The typical pods are the snapshot's, those that still wait among them, and the pod itself. Models
are a matter of node selectors, thus of the filters: typical pods accept any. Shares of a device (openb's
milli-GPU) are not in Kubernetes' own objects; see `shoal replay`.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from shoal_common.accelerators.demand import GPU
from shoal_common.accelerators.sharing import MAX_DEVICES, MILLI
from shoal_common.kube.profile import DEFAULT_FILTERS, refuse
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import Verdict
from shoal_common.pods import PodRecord
from shoal_common.scorers.fgd import FGD, Nodes, empty_nodes, raw_score, start
from shoal_common.scorers.fragmentation import PodSpecs, TypicalPods, typical_pods

NAME = "FGD"
MIB = 2**20

Specification = tuple[int, int, int]  # milli-CPU, MiB, devices


def score_snapshot(snapshot: Snapshot, pod: PodRecord) -> Verdict:
    """Filter as kube-scheduler does, then score 0..100 by the fragmentation that placing the pod removes."""
    refusals, feasible = refuse(DEFAULT_FILTERS, snapshot, pod)
    rows = {
        info.name: {NAME: score}
        for info, score in zip(feasible, _scores(snapshot, pod, feasible), strict=True)
    }
    return Verdict(
        feasible=tuple(rows),
        failures={name: refusal.reasons for name, refusal in refusals.items()},
        codes={name: refusal.code for name, refusal in refusals.items()},
        scores=rows,
        total={name: row[NAME] for name, row in rows.items()},
    )


def _scores(snapshot: Snapshot, pod: PodRecord, feasible: list[NodeInfo]) -> list[int]:
    if not feasible:
        return []
    counts = _specifications(snapshot)
    counts[_specification(pod)] += 1
    specs, typical = _typical(counts)
    state = start(_nodes(feasible), specs, typical)
    own = list(counts).index(_specification(pod))
    return [int(raw_score(FGD, state, own, node)) for node in range(len(feasible))]


class Fragmentation(NamedTuple):
    """Idle GPU of a cluster, and what of it its typical pods cannot use in expectation; milli-GPU."""

    idle: int
    unusable: float


def fragmentation(snapshot: Snapshot) -> Fragmentation:
    """The FGD metric of a cluster for the pods that it has, those that still wait among them.

    Devices that are in use are whole: what is free of a node is free devices.
    """
    counts = _specifications(snapshot)
    nodes = _nodes(list(snapshot.infos))
    idle = int(nodes.gpu_count.sum()) * MILLI
    if not counts or not idle:
        return Fragmentation(idle, 0.0)
    state = start(nodes, *_typical(counts))
    return Fragmentation(idle, float(state.nodes.fragmentation.sum()))


def _specifications(snapshot: Snapshot) -> Counter[Specification]:
    return Counter(_specification(pod) for pod in snapshot.pods if not pod.finished)


def _typical(counts: Counter[Specification]) -> tuple[PodSpecs, TypicalPods]:
    table = np.array(list(counts), dtype=np.int64)
    specs = PodSpecs(
        cpu_milli=table[:, 0].copy(),
        memory_mib=table[:, 1].copy(),
        gpu_milli=np.where(table[:, 2] > 0, MILLI, 0).astype(np.int64),
        num_gpu=table[:, 2].copy(),
        models=np.zeros(len(table), dtype=np.int64),
    )
    return specs, typical_pods(specs, [""] * len(table), np.array(list(counts.values()), dtype=np.int64))


def _specification(pod: PodRecord) -> Specification:
    requests = pod.requests
    return (
        requests.get("cpu", 0),
        -(-requests.get("memory", 0) // MIB),
        min(requests.get(GPU, 0), MAX_DEVICES),
    )


def _nodes(infos: list[NodeInfo]) -> Nodes:
    """What is left of each node, without devices in use or gone while in use: nothing remains of them."""

    def left(name: str, info: NodeInfo) -> int:
        return max(0, info.node.allocatable.get(name, 0) - info.requested.get(name, 0))

    return empty_nodes(
        cpu_milli=np.array([left("cpu", info) for info in infos], dtype=np.int64),
        memory_mib=np.array([left("memory", info) // MIB for info in infos], dtype=np.int64),
        gpu_count=np.array([min(left(GPU, info), MAX_DEVICES) for info in infos], dtype=np.int64),
        model=np.zeros(len(infos), dtype=np.int64),
    )
