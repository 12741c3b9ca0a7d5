# SPDX-License-Identifier: Apache-2.0
"""GPU fragmentation by typical pods, compiled: F(node) = sum over typical pods p of frequency_p * unusable_p.

unusable_p is, in milli-GPU, the whole idle GPU of the node where it cannot host p (or p needs no GPU), else
the sum of the devices' remainders that are smaller than p's share. Source: Weng, Yang et al., "Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC'23, and its
simulator (pkg/utils/frag.go). Sums run in the simulator's order: a score is cut to an integer, so the last
bit of F counts.

GPU models are bits: a node has at most one, a pod the set it accepts (0 = any).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_common.accelerators.sharing import fits
from shoal_common.kernels import kernel

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

COVERAGE_PERCENT = 95
"""Share of the pods that the typical specifications must cover (the published experiments' setting)."""


class PodSpecs(NamedTuple):
    """Distinct pod specifications, each array [S]: requests, devices, accepted GPU models as bits."""

    cpu_milli: I64
    memory_mib: I64
    gpu_milli: I64
    num_gpu: I64
    models: I64


class TypicalPods(NamedTuple):
    """The most frequent specifications without memory, each array [T]; the frequencies sum to one."""

    cpu_milli: I64
    gpu_milli: I64
    num_gpu: I64
    models: I64
    frequency: F64


def typical_pods(
    specs: PodSpecs, model_names: Sequence[str], counts: I64, coverage_percent: int = COVERAGE_PERCENT
) -> TypicalPods:
    """The most frequent specifications that cover `coverage_percent` of the pods, frequencies renormalised.

    Args:
        specs: the distinct specifications, [S].
        model_names: each specification's GPU constraint as written; it breaks ties as the simulator does.
        counts: pods of each specification, [S].
        coverage_percent: share of all pods to cover.
    """
    merged: dict[tuple[int, int, int, str], tuple[int, int]] = {}
    for s, count in enumerate(counts):
        key = (int(specs.cpu_milli[s]), int(specs.gpu_milli[s]), int(specs.num_gpu[s]), model_names[s])
        merged[key] = (merged.get(key, (0, 0))[0] + int(count), int(specs.models[s]))
    ordered = sorted(((count, key, bits) for key, (count, bits) in merged.items()), reverse=True)
    total = float(counts.sum())
    taken, covered = 0, 0.0
    while covered < coverage_percent * total / 100.0 and taken < len(ordered):
        covered += ordered[taken][0]
        taken += 1
    frequency = np.array([count for count, _, _ in ordered[:taken]], dtype=np.float64) / total
    if taken < len(ordered):
        frequency /= covered / total
    keys = [key for _, key, _ in ordered[:taken]]
    return TypicalPods(
        cpu_milli=np.array([cpu for cpu, _, _, _ in keys], dtype=np.int64),
        gpu_milli=np.array([gpu for _, gpu, _, _ in keys], dtype=np.int64),
        num_gpu=np.array([number for _, _, number, _ in keys], dtype=np.int64),
        models=np.array([bits for _, _, bits in ordered[:taken]], dtype=np.int64),
        frequency=frequency,
    )


@kernel
def _too_small(left: I64, count: int, gpu_milli: int) -> int:
    """Sum of the devices' remainders below a share, milli-GPU."""
    total = 0
    for device in range(count):
        if left[device] < gpu_milli:
            total += left[device]
    return total


@kernel
def node_fragmentation(cpu_left: int, left: I64, count: int, model: int, typical: TypicalPods) -> float:
    """F of one node in milli-GPU: CPU left in milli, milli-GPU left per device [G], devices, model bit."""
    idle = 0
    for device in range(count):
        idle += left[device]
    if idle == 0:
        return 0.0
    lack_both = lack_gpu = lack_cpu = cpu_pod_fits = cpu_pod_lacks = no_access = 0.0
    for t in range(typical.frequency.shape[0]):
        share, gpu = typical.frequency[t], typical.gpu_milli[t]
        enough_cpu = cpu_left >= typical.cpu_milli[t]
        if gpu == 0:
            if enough_cpu:
                cpu_pod_fits += share * idle
            else:
                cpu_pod_lacks += share * idle
        elif typical.models[t] != 0 and typical.models[t] & model == 0:
            no_access += share * idle
        elif fits(left, count, gpu, typical.num_gpu[t]):
            if enough_cpu:
                lack_gpu += share * _too_small(left, count, gpu)
            else:
                lack_cpu += share * idle
        elif enough_cpu:
            lack_gpu += share * idle
        else:
            lack_both += share * idle
    return lack_both + lack_gpu + lack_cpu + cpu_pod_fits + cpu_pod_lacks + no_access
