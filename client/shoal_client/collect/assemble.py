# SPDX-License-Identifier: Apache-2.0
"""From live values to `Measured`: which exporter is asked first, and what is left unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np
import numpy.typing as npt

from shoal_client.collect.measured import Measured, PodName, PodUse
from shoal_client.collect.values import LiveValues
from shoal_common.cluster import N_CPU, N_GPUS, N_IO_CAPACITY

F64 = npt.NDArray[np.float64]

CPU: Final = ("cpu_used", "root_cpu", "pods_cpu")
MEMORY: Final = ("memory_used", "root_memory", "pods_memory")
GPU_BUSY: Final = ("gpu_active", "gpu_utilisation")
MOST_CPU: Final = 2.0
"""Times a node's allocatable CPU (what it keeps for itself is not in there): beyond it a counter leapt."""


@dataclass(slots=True)
class _Reading:
    """Reads values of one node and remembers the oldest."""

    values: LiveValues
    node: str
    now: float
    oldest: float = 0.0
    seen: list[str] = field(default_factory=list)

    def first(self, *names: str) -> float | None:
        for name in names:
            found = self.values.get(self.node, name, self.now)
            if found is not None:
                self.oldest = max(self.oldest, found[1])
                return found[0]
        return None


@final
class Assembler:
    """Makes `Measured` of one node after the other, all at one monotonic time."""

    def __init__(self, values: LiveValues, now: float) -> None:
        self._values, self._now = values, now

    def measured(
        self,
        node: str,
        row: F64,
        gpu_free: tuple[float, ...],
        pods: Mapping[PodName, PodUse],
    ) -> Measured:
        """One node, described by its row [NODE_COLUMNS]."""
        read = _Reading(self._values, node, self._now)
        cpu, disk = read.first(*CPU), read.first("disk_busiest")
        devices, io_capacity = int(row[N_GPUS]), float(row[N_IO_CAPACITY])
        return Measured(
            cpu_millicores=None if cpu is None or cpu > MOST_CPU * row[N_CPU] else cpu,
            memory_bytes=read.first(*MEMORY),
            io=None if disk is None else min(1.0, max(0.0, disk)) * io_capacity,
            watts=_watts(read, devices),
            gpu_busy=read.first(*GPU_BUSY),
            gpu_memory_free_ratio=read.first("gpu_memory_free"),
            gpu_memory_free=gpu_free,
            failures=_sum(read.first("oom_kills"), read.first("gpu_xid_changes")),
            age_seconds=read.oldest,
            pods=pods,
        )


def _watts(read: _Reading, devices: int) -> float | None:
    """The machine's own meter, else the sum of its parts where none is missing."""
    machine = read.first("machine_watts")
    if machine is not None:
        return machine
    package = read.first("package_watts")
    if package is None:
        return None
    gpus = read.first("gpu_watts") if devices else 0.0
    return None if gpus is None else package + (read.first("dram_watts") or 0.0) + gpus


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def without_pod(measured: Measured, pod: PodName) -> Measured:
    """The node's use after a pod of the last sample has ended: minus that pod's share, never below 0."""
    if pod not in measured.pods:
        return measured
    use = measured.pods[pod]
    return replace(
        measured,
        cpu_millicores=_minus(measured.cpu_millicores, use.cpu_millicores),
        memory_bytes=_minus(measured.memory_bytes, use.memory_bytes),
        pods={name: use for name, use in measured.pods.items() if name != pod},
    )


def _minus(whole: float | None, part: float | None) -> float | None:
    return whole if whole is None or part is None else max(0.0, whole - part)
