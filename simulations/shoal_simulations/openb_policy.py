# SPDX-License-Identifier: Apache-2.0
"""A policy artifact as the scorer of an openb replay: the state of the replay as an observation.

What openb does not publish is filled with neutral values, the same for every node and pod, so that it favours
none: the reference node's speed, power and I/O, usage equal to requests, one NUMA zone, a public duration and
slack. Pods with GPUs are of the class gpu, the others of the class compute.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal_common import cluster as c
from shoal_common.errors import InputError
from shoal_common.features import encode_context, encode_node, encode_pairs, encode_task
from shoal_common.kernels import kernel
from shoal_common.observation import F32, FC, FN, FP, FT, Observation
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


@kernel
def _encode_changed(node: F64, use: F64, gpu: F64, zone: F64, rows: I64, out: F32) -> None:
    """Node features of the given rows into out[len(rows), FN]."""
    for i in range(rows.shape[0]):
        n = rows[i]
        encode_node(node[n], use[n], gpu[n], zone[n], out[i])


class PolicyOnOpenb:
    """Scores nodes by an artifact; keeps each node's token until the node changes."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        nodes = cluster.state.nodes
        if int(nodes.gpu_count.max(initial=0)) > c.MAX_GPUS:
            raise InputError("--nodes", "gpu", f"a node has more than {c.MAX_GPUS} GPUs", "leave it out")
        self._scorer = ArtifactScorer(directory)
        size = len(nodes.version)
        self._node = np.tile(NodeClass("reference", 1, 1, numa_zones=1).row(), (size, 1))
        self._node[:, c.N_CPU], self._node[:, c.N_MEMORY] = nodes.cpu_left, nodes.memory_left * MIB
        self._node[:, c.N_GPUS] = nodes.gpu_count
        self._use = np.zeros((size, c.USE_COLUMNS))
        self._gpu = np.zeros((size, c.MAX_GPUS))
        self._zone = np.zeros((size, c.MAX_ZONES, 2))
        self._version = np.full(size, -1, dtype=np.int64)
        self._features = np.zeros((size, FN), dtype=np.float32)
        self._tokens: F32 | None = None
        self._w = ObjectiveWeights().array()[None]

    def __call__(self, cluster: Cluster, s: int, mask: npt.NDArray[np.bool_]) -> F64:
        """Score the nodes for a pod of specification s."""
        tokens = self._refresh(cluster)
        scores = self._scorer.score_tokens(tokens, self._observe(cluster, s, mask))
        return scores.logits[0, :, 0].astype(np.float64)

    def _refresh(self, cluster: Cluster) -> F32:
        """Bring tables, features and tokens of the changed nodes up to date."""
        nodes = cluster.state.nodes
        rows = np.flatnonzero(nodes.version != self._version)
        self._version[rows] = nodes.version[rows]
        self._fill(cluster, rows)
        changed = np.zeros((len(rows), FN), dtype=np.float32)
        _encode_changed(self._node, self._use, self._gpu, self._zone, rows, changed)
        self._features[rows] = changed
        if self._tokens is None:
            self._tokens = self._scorer.encode(self._features[None])
        elif len(rows):
            self._tokens[0, rows] = self._scorer.encode(changed[None])[0]
        return self._tokens

    def _fill(self, cluster: Cluster, rows: I64) -> None:
        """Write what runs on the given nodes into the tables."""
        nodes, use = cluster.state.nodes, self._use
        cpu, memory = nodes.cpu_left[rows], nodes.memory_left[rows] * MIB
        devices = nodes.gpu_left.shape[1]
        use[rows, c.U_CPU] = use[rows, c.U_CPU_WANTED] = self._node[rows, c.N_CPU] - cpu
        use[rows, c.U_MEMORY] = use[rows, c.U_MEMORY_WANTED] = self._node[rows, c.N_MEMORY] - memory
        use[rows, c.U_GPU] = 1000 * nodes.gpu_count[rows] - nodes.gpu_left[rows].sum(axis=1)
        use[rows, c.U_PODS] = nodes.pods[rows]
        use[rows, c.U_LOAD + GPU] = nodes.gpu_pods_cpu[rows]
        use[rows, c.U_LOAD + COMPUTE] = use[rows, c.U_CPU] - nodes.gpu_pods_cpu[rows]
        use[rows, c.U_REMAINING] = np.where(nodes.pods[rows] > 0, REMAINING, 0.0)
        use[rows, c.U_UP] = 1
        self._gpu[rows, :devices] = nodes.gpu_left[rows]
        self._zone[rows, 0, 0], self._zone[rows, 0, 1] = cpu, memory

    def _observe(self, cluster: Cluster, s: int, mask: npt.NDArray[np.bool_]) -> Observation:
        """One decision as a batch of one."""
        size = len(mask)
        pod = self._pod(cluster, s)
        obs = Observation(
            node=self._features[None],
            pair=np.empty((1, size, FP), dtype=np.float32),
            task=np.empty((1, FT), dtype=np.float32),
            ctx=np.empty((1, FC), dtype=np.float32),
            w=self._w,
            mask=mask[None, :, None],
            plugin=np.zeros((1, size, 0), dtype=np.float32),
        )
        encode_pairs(self._node, self._use, self._zone, pod, obs.pair[0])
        encode_task(pod, obs.task[0])
        encode_context(self._node, self._use, 1.0, 1.0, 1.0, 0.0, obs.ctx[0])
        return obs

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
