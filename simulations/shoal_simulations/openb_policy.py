# SPDX-License-Identifier: Apache-2.0
"""A policy artifact as the scorer of an openb replay: the state of the replay as an observation.

What openb does not publish is filled with neutral values, the same for every node and pod, so that it favours
none: the reference node's speed, power and I/O, usage equal to requests, one NUMA zone, a public duration and
slack. Pods with GPUs are of the class gpu, the others of the class compute.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_common import cluster as c
from shoal_common.decide import Embeddings, decide, observe
from shoal_common.errors import InputError
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.artifact import ArtifactScorer
from shoal_common.twin.scenarios import NodeClass
from shoal_simulations.openb import Cluster

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

MIB = 2.0**20
COMPUTE, GPU = 1, 3
DURATION_S = 600.0
SLACK = 1.5
REMAINING = 0.5


class _Tables(NamedTuple):
    """The replay's nodes in the columns of a cluster."""

    node: F64
    use: F64
    gpu_free: F64
    zone_free: F64


class PolicyOnOpenb:
    """Scores nodes by an artifact; keeps each node's token until the node changes."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        nodes = cluster.state.nodes
        if int(nodes.gpu_count.max(initial=0)) > c.MAX_GPUS:
            raise InputError("--nodes", "gpu", f"a node has more than {c.MAX_GPUS} GPUs", "leave it out")
        size = len(nodes.version)
        node = np.tile(NodeClass("reference", 1, 1, numa_zones=1).row(), (size, 1))
        node[:, c.N_CPU], node[:, c.N_MEMORY] = nodes.cpu_left, nodes.memory_left * MIB
        node[:, c.N_GPUS] = nodes.gpu_count
        use, gpu = np.zeros((size, c.USE_COLUMNS)), np.zeros((size, c.MAX_GPUS))
        self._tables = _Tables(node, use, gpu, np.zeros((size, c.MAX_ZONES, 2)))
        self._version = np.full(size, -1, dtype=np.int64)
        self._embeddings = Embeddings(ArtifactScorer(directory))
        self._w = ObjectiveWeights().array()

    def __call__(self, cluster: Cluster, s: int, mask: npt.NDArray[np.bool_]) -> F64:
        """Score the nodes for a pod of specification s."""
        self._refresh(cluster)
        kept = self._embeddings
        obs = observe(self._tables, self._pod(cluster, s), mask[:, None], self._w, features=kept.features)
        return decide(kept.at(), obs).scores.logits[0, :, 0].astype(np.float64)

    def _refresh(self, cluster: Cluster) -> None:
        """Bring tables, features and tokens of the changed nodes up to date."""
        nodes = cluster.state.nodes
        rows = np.flatnonzero(nodes.version != self._version)
        self._version[rows] = nodes.version[rows]
        self._fill(cluster, rows)
        self._embeddings.update(self._tables, rows)

    def _fill(self, cluster: Cluster, rows: I64) -> None:
        """Write what runs on the given nodes into the tables."""
        nodes, tables = cluster.state.nodes, self._tables
        use, node = tables.use, tables.node
        cpu, memory = nodes.cpu_left[rows], nodes.memory_left[rows] * MIB
        devices = nodes.gpu_left.shape[1]
        use[rows, c.U_CPU] = use[rows, c.U_CPU_WANTED] = node[rows, c.N_CPU] - cpu
        use[rows, c.U_MEMORY] = use[rows, c.U_MEMORY_WANTED] = node[rows, c.N_MEMORY] - memory
        use[rows, c.U_GPU] = 1000 * nodes.gpu_count[rows] - nodes.gpu_left[rows].sum(axis=1)
        use[rows, c.U_PODS] = nodes.pods[rows]
        use[rows, c.U_LOAD + GPU] = nodes.gpu_pods_cpu[rows]
        use[rows, c.U_LOAD + COMPUTE] = use[rows, c.U_CPU] - nodes.gpu_pods_cpu[rows]
        use[rows, c.U_REMAINING] = np.where(nodes.pods[rows] > 0, REMAINING, 0.0)
        use[rows, c.U_UP] = 1
        tables.gpu_free[rows, :devices] = nodes.gpu_left[rows]
        tables.zone_free[rows, 0, 0], tables.zone_free[rows, 0, 1] = cpu, memory

    @staticmethod
    def _pod(cluster: Cluster, s: int) -> F64:
        """The pod's row f64[POD_COLUMNS]."""
        specs, row = cluster.state.specs, np.zeros(c.POD_COLUMNS)
        row[c.P_CPU] = row[c.P_CPU_USE] = specs.cpu_milli[s]
        row[c.P_MEMORY] = specs.memory_mib[s] * MIB
        row[c.P_GPU], row[c.P_GPUS] = specs.gpu_milli[s], specs.num_gpu[s]
        row[c.P_CLASS] = GPU if specs.num_gpu[s] > 0 else COMPUTE
        row[c.P_SLA], row[c.P_DURATION] = SLACK, DURATION_S
        return row
