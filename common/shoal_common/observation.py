# SPDX-License-Identifier: Apache-2.0
"""What a scorer sees: padded arrays with masks, each feature named, bounded and carrying its unit.

Legend of shapes, used everywhere: B batch, N padded nodes, F features, P candidates per node, K plugins.
Features are ratios to capacity and public constants only: no ids, no un-normalised units, nothing fitted to
private data. So one network serves clusters of any size, and a feature table can be hashed and compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal_common.reward import REWARD_VERSION

FEATURE_VERSION = 1
ACTION_VERSION = 1

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Feature:
    """One named input: its unit, its public bounds and what it says."""

    name: str
    unit: str
    low: float
    high: float
    doc: str


def _ratio(name: str, doc: str, low: float = 0.0, high: float = 1.0) -> Feature:
    return Feature(name, "ratio", low, high, doc)


NODE_FEATURES: tuple[Feature, ...] = (
    _ratio("cpu_free", "allocatable CPU not requested / allocatable CPU"),
    _ratio("memory_free", "allocatable memory not requested / allocatable memory"),
    _ratio("gpu_free", "milli-GPU not requested / milli-GPU of the node; 0 without GPUs"),
    _ratio("gpu_free_whole", "wholly free devices / 8"),
    _ratio("gpu_free_largest", "largest free share of one device"),
    _ratio("cpu_load", "CPU wanted by running pods / allocatable CPU", 0.0, 2.0),
    _ratio("io_load", "I/O wanted by running pods / I/O capacity", 0.0, 2.0),
    _ratio("load_service", "CPU wanted by service pods / allocatable CPU", 0.0, 2.0),
    _ratio("load_compute", "CPU wanted by compute pods / allocatable CPU", 0.0, 2.0),
    _ratio("load_io", "CPU wanted by I/O pods / allocatable CPU", 0.0, 2.0),
    _ratio("load_gpu", "CPU wanted by GPU pods / allocatable CPU", 0.0, 2.0),
    _ratio("empty", "1 where no pod runs: the node is in deep idle"),
    _ratio("has_gpu", "1 where the node has GPUs"),
    _ratio("gpus", "GPUs / 8"),
    _ratio("has_dpu", "1 where a DPU takes network and storage work off the CPU"),
    _ratio("speed", "CPU speed of the node's class relative to the reference, minus 1", -1.0, 1.0),
    _ratio("io_speed", "I/O speed relative to the reference, minus 1, halved", -1.0, 1.0),
    _ratio("cores", "allocatable CPU / 64 cores", 0.0, 4.0),
    _ratio("memory_per_core", "allocatable memory per core / 16 GiB", 0.0, 4.0),
    _ratio("idle_power", "idle power / 400 W", 0.0, 2.0),
    _ratio("power_per_core", "power between idle and full load, per core / 20 W", 0.0, 2.0),
    _ratio("deep_idle", "power of the empty node / its idle power"),
    _ratio("pods", "running pods / 64", 0.0, 4.0),
    _ratio("mean_remaining", "mean share of the running pods' expected time that is left"),
    _ratio("numa_free", "largest free CPU share within one NUMA zone"),
    _ratio("recent_failures", "failures in the last hour / 4"),
)

PAIR_FEATURES: tuple[Feature, ...] = (
    _ratio("cpu_after", "CPU left after placing the pod / allocatable"),
    _ratio("memory_after", "memory left after placing the pod / allocatable"),
    _ratio("gpu_after", "milli-GPU left after placing the pod / 8 devices"),
    _ratio("like_load", "CPU wanted by running pods of the pod's own class / allocatable CPU", 0.0, 2.0),
    _ratio("numa_fits", "1 where one NUMA zone can hold the pod"),
    _ratio("cpu_share", "CPU the pod is expected to use / allocatable CPU", 0.0, 2.0),
)

TASK_FEATURES: tuple[Feature, ...] = (
    _ratio("is_service", "1 for latency-sensitive services"),
    _ratio("is_compute", "1 for compute-bound batch"),
    _ratio("is_io", "1 for I/O-bound batch"),
    _ratio("is_gpu", "1 for pods that ask for accelerators"),
    _ratio("cpu_request", "CPU request / 16 cores", 0.0, 4.0),
    _ratio("memory_request", "memory request / 64 GiB", 0.0, 4.0),
    _ratio("gpu_request", "milli-GPU request / 8 devices"),
    _ratio("cpu_use", "mean past use of the pod's app / its request"),
    _ratio("io_use", "mean past I/O of the pod's app / 4", 0.0, 2.0),
    _ratio("sla_slack", "allowed slowdown - 1"),
    Feature("log_duration", "log10(s) / 5", 0.0, 1.0, "mean past duration of the pod's app"),
)

CONTEXT_FEATURES: tuple[Feature, ...] = (
    _ratio("pending", "pending pods / 32", 0.0, 4.0),
    _ratio("active_nodes", "nodes that are on / nodes"),
    _ratio("cluster_cpu_free", "CPU not requested / allocatable, over the cluster"),
    _ratio("cluster_gpu_free", "milli-GPU not requested / milli-GPU, over the cluster"),
    _ratio("log_nodes", "log2(nodes) / 13"),
    _ratio("energy_price", "energy price relative to its mean, halved", 0.0, 2.0),
    _ratio("battery", "state of charge where the site has a battery, else 1"),
    _ratio("hour_sin", "sine of the hour of the day", -1.0, 1.0),
    _ratio("hour_cos", "cosine of the hour of the day", -1.0, 1.0),
)

FN, FP, FT, FC = len(NODE_FEATURES), len(PAIR_FEATURES), len(TASK_FEATURES), len(CONTEXT_FEATURES)


@dataclass(slots=True)
class Observation:
    """A batch of decisions to take: score the candidates under the mask.

    `plugin` holds the scores of compiled scorers that were asked for (heuristics read their own column);
    `w` the objective weights that condition actor and critic.
    """

    node: F32  # [B, N, FN]
    pair: F32  # [B, N, FP]
    task: F32  # [B, FT]
    ctx: F32  # [B, FC]
    w: F32  # [B, 4]
    mask: npt.NDArray[np.bool_]  # [B, N, P]; False is padding or infeasible
    plugin: F32  # [B, N, K]


def schema_hash() -> str:
    """Digest of the feature tables with their bounds, and of the reward and action versions.

    It travels in every checkpoint, update and artifact; a mismatch is refused.
    """
    tables = (NODE_FEATURES, PAIR_FEATURES, TASK_FEATURES, CONTEXT_FEATURES)
    text = f"{FEATURE_VERSION}/{REWARD_VERSION}/{ACTION_VERSION}" + "".join(
        f"|{f.name}:{f.unit}:{f.low}:{f.high}" for table in tables for f in table
    )
    return hashlib.sha256(text.encode()).hexdigest()
