# SPDX-License-Identifier: Apache-2.0
"""What was measured on one node, as it is handed to the cluster's state.

Every value is None where it is not known: the exporter is missing, the sample is NaN, or it is older than its
feature's last-good time. None is never an idle node: whoever reads it falls back to what the pods of the node
request or are known to use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PodName = tuple[str, str]  # namespace, name: exporters do not tell a pod's uid


class PodUse(NamedTuple):
    """What one pod was measured to use; None where it is not known."""

    cpu_millicores: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One node's measurements. `pods` are those whose use is part of the node's values.

    A pod that is on the node but not in `pods` came after the sample (or no exporter tells pods apart, when
    `pods` is empty): its use is not in the values yet.
    """

    cpu_millicores: float | None = None  # CPU in use
    memory_bytes: float | None = None  # memory in use that cannot be reclaimed
    io: float | None = None  # I/O in use, in the unit of the pods' I/O (N_IO_CAPACITY is a busy node)
    watts: float | None = None  # power of the node, with its devices
    gpu_busy: float | None = None  # 0 to 1, mean over devices; under MIG from GR_ENGINE_ACTIVE
    gpu_memory_free_ratio: float | None = None  # 0 to 1, free over total memory of all devices
    gpu_memory_free: tuple[float, ...] = ()  # 0 to 1 per device, by index; () where not known
    failures: float | None = None  # kernel OOM kills and GPU XID errors in the last hour
    age_seconds: float = 0.0  # age of the oldest value above
    pods: Mapping[PodName, PodUse] = field(default_factory=dict)


def smaller_free(
    accounted: npt.NDArray[np.float64], measured_free: Sequence[float], devices: int
) -> npt.NDArray[np.float64]:
    """Free milli-GPU per device [MAX_GPUS] where memory used outside the scheduler counts as taken.

    No exporter tells which device a pod was accounted to, so devices are compared by rank: the k-th freest
    accounted device has at most what the k-th freest measured one has. Unchanged where the number of measured
    devices is not the node's.
    """
    if devices == 0 or len(measured_free) != devices:
        return accounted
    capped = accounted.copy()
    order = np.argsort(accounted[:devices], kind="stable")
    capped[order] = np.minimum(
        accounted[order], 1000.0 * np.sort(np.asarray(measured_free, dtype=np.float64))
    )
    return capped
