# SPDX-License-Identifier: Apache-2.0
"""A policy artifact on Kubernetes records: what `shoal score --scorer DIRECTORY` runs.

Kubernetes' objects say what is allocatable and requested. They do not say how fast a node is, what power it
draws or how long a pod's kind ran before: those features take the reference node's and a middling pod's
values, and a pod is taken to use what it requests. A pod that asks for devices is of the class gpu, any other
a service. On a live cluster the client fills the same features from its measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal_common.accelerators.sharing import MILLI
from shoal_common.cluster import (
    F64,
    MAX_GPUS,
    MAX_ZONES,
    N_CPU,
    N_DEEP_IDLE,
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
    NODE_COLUMNS,
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_DURATION,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    P_SLA,
    POD_COLUMNS,
    U_CPU,
    U_CPU_WANTED,
    U_GPU,
    U_LOAD,
    U_MEMORY,
    U_PODS,
    U_REMAINING,
    U_UP,
    USE_COLUMNS,
    Mask,
)
from shoal_common.features import encode_context, encode_node, encode_pairs, encode_task
from shoal_common.kube.profile import DEFAULT_FILTERS, refuse
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import Verdict
from shoal_common.observation import FC, FN, FP, FT, Observation
from shoal_common.pods import PodRecord
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.artifact import ArtifactScorer

NAME = "Policy"
GPU = "nvidia.com/gpu"
SERVICE, GPU_CLASS = 0, 3
REFERENCE = {  # the reference node: speed 1, one NUMA zone, the power of a middling server
    N_SPEED: 1.0, N_IO_SPEED: 1.0, N_IO_CAPACITY: 4.0, N_IDLE_WATTS: 100.0, N_MAX_WATTS: 300.0,
    N_GPU_WATTS: 220.0, N_DEEP_IDLE: 0.1, N_ZONES: 1.0, N_EXISTS: 1.0,
}  # fmt: skip
SLA, DURATION_SECONDS = 1.5, 600.0


def snapshot_scorer(directory: Path) -> Callable[[Snapshot, PodRecord], Verdict]:
    """Filter as kube-scheduler does, then score by the artifact: its logits, higher is better.

    Raises:
        InputError, SchemaMismatch: the artifact does not verify.
    """
    scorer = ArtifactScorer(directory)
    profiles = int(scorer.manifest["profiles"])

    def evaluate(snapshot: Snapshot, pod: PodRecord) -> Verdict:
        refusals, feasible = refuse(DEFAULT_FILTERS, snapshot, pod)
        names = {info.name for info in feasible}
        mask = np.array([info.name in names for info in snapshot.infos], dtype=np.bool_)
        rows: dict[str, dict[str, float]] = {}
        if feasible:
            logits = scorer.score(observe(snapshot, pod, mask, profiles)).logits[0].max(-1)
            rows = {info.name: {NAME: float(logits[n])} for n, info in enumerate(snapshot.infos) if mask[n]}
        return Verdict(
            feasible=tuple(rows),
            failures={name: refusal.reasons for name, refusal in refusals.items()},
            codes={name: refusal.code for name, refusal in refusals.items()},
            scores=rows,
            total={name: row[NAME] for name, row in rows.items()},
        )

    return evaluate


def observe(snapshot: Snapshot, pod: PodRecord, mask: Mask, profiles: int = 1) -> Observation:
    """Fill the features of one decision from Kubernetes records; mask bool[N] holds for every profile."""
    infos = snapshot.infos
    node, use = np.zeros((len(infos), NODE_COLUMNS)), np.zeros((len(infos), USE_COLUMNS))
    gpu, zone = np.zeros((len(infos), MAX_GPUS)), np.zeros((len(infos), MAX_ZONES, 2))
    for n, info in enumerate(infos):
        _fill(info, node[n], use[n], gpu[n], zone[n])
    wanted = _pod(pod)
    pending = sum(not p.node_name and not p.finished for p in snapshot.pods)
    obs = Observation(
        node=np.zeros((1, len(infos), FN), np.float32),
        pair=np.zeros((1, len(infos), FP), np.float32),
        task=np.zeros((1, FT), np.float32),
        ctx=np.zeros((1, FC), np.float32),
        w=ObjectiveWeights().array()[None],
        mask=np.repeat(mask[None, :, None], profiles, axis=2),
        plugin=np.zeros((1, len(infos), 0), np.float32),
    )
    for n in range(len(infos)):
        encode_node(node[n], use[n], gpu[n], zone[n], obs.node[0, n])
    encode_pairs(node, use, zone, wanted, obs.pair[0])
    encode_task(wanted, obs.task[0])
    encode_context(node, use, float(pending), 1.0, 1.0, 0.0, obs.ctx[0])
    return obs


def _fill(info: NodeInfo, node: F64, use: F64, gpu: F64, zone: F64) -> None:
    """Fill one node's rows: devices in use are taken to be the lowest-numbered."""
    allocatable, requested = info.node.allocatable, info.requested
    for column, value in REFERENCE.items():
        node[column] = value
    node[N_CPU], node[N_MEMORY] = max(allocatable.get("cpu", 0), 1), max(allocatable.get("memory", 0), 1)
    node[N_GPUS], node[N_PODS] = min(allocatable.get(GPU, 0), MAX_GPUS), allocatable.get("pods", 0)
    use[U_CPU], use[U_MEMORY] = requested.get("cpu", 0), requested.get("memory", 0)
    use[U_GPU], use[U_PODS], use[U_UP] = requested.get(GPU, 0) * MILLI, len(info.pods), 1.0
    use[U_CPU_WANTED] = use[U_CPU]
    use[U_REMAINING] = 0.5 if info.pods else 0.0
    for pod in info.pods:
        use[U_LOAD + _class(pod)] += pod.requests.get("cpu", 0)
    gpu[min(requested.get(GPU, 0), MAX_GPUS) : int(node[N_GPUS])] = MILLI
    zone[0] = node[N_CPU] - use[U_CPU], node[N_MEMORY] - use[U_MEMORY]


def _pod(pod: PodRecord) -> F64:
    row = np.zeros(POD_COLUMNS)
    row[P_CPU], row[P_MEMORY] = pod.requests.get("cpu", 0), pod.requests.get("memory", 0)
    row[P_GPUS], row[P_CLASS] = pod.requests.get(GPU, 0), _class(pod)
    row[P_GPU] = MILLI if row[P_GPUS] else 0
    row[P_CPU_USE], row[P_SLA], row[P_DURATION] = row[P_CPU], SLA, DURATION_SECONDS
    return row


def _class(pod: PodRecord) -> int:
    return GPU_CLASS if pod.requests.get(GPU, 0) else SERVICE
