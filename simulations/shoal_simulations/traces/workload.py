# SPDX-License-Identifier: Apache-2.0
"""A pod trace as the arrivals of a virtual cluster."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal_common.errors import InputError
from shoal_common.twin.scenarios import NodeClass
from shoal_common.twin.traced import Recorded
from shoal_simulations.traces import borg2011, openb
from shoal_simulations.traces.base import SERVICE_CLASSES, PodTrace

READERS = {"openb": openb.read_pods, "borg-2011": borg2011.read_pods}
PRODUCTION_PRIORITY = 9  # Borg 2011: from here on production work (Reiss et al. 2011)
MIB = 1024**2


@lru_cache(maxsize=16)
def recorded(path: Path, form: str, largest: tuple[NodeClass, ...]) -> Recorded:
    """Read a pod list; pods without an arrival, a duration or a CPU request are left out.

    So is what fits no node of the classes `largest`: it would wait for ever.

    Raises:
        InputError: a bad row, or no pod is left.
    """
    trace = READERS[form](path)
    kept = np.isfinite(trace.arrival_s) & np.isfinite(trace.duration_s) & (trace.duration_s > 0)
    kept &= (trace.cpu_milli > 0) & _fits_one(trace, largest)
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(trace.arrival_s[rows], kind="stable")]
    if len(rows) < 2:
        problem = "has no two pods with arrival, duration and a CPU request"
        raise InputError(str(path), "trace", problem, "use a list that records times")
    return Recorded(
        arrival_s=trace.arrival_s[rows].astype(np.float64),
        seconds=trace.duration_s[rows].astype(np.float64),
        cpu_milli=trace.cpu_milli[rows].astype(np.float64),
        memory=trace.memory_mib[rows].astype(np.float64) * MIB,
        gpu_milli=trace.gpu_milli[rows].astype(np.float64),
        gpus=trace.num_gpu[rows].astype(np.float64),
        kind=_kinds(trace)[rows],
    )


def _fits_one(trace: PodTrace, classes: tuple[NodeClass, ...]) -> npt.NDArray[np.bool_]:
    fits = np.zeros(len(trace), dtype=np.bool_)
    for c in classes:
        cpu, memory = trace.cpu_milli <= c.cores * 1000, trace.memory_mib <= c.memory_gib * 1024
        fits |= cpu & memory & (trace.num_gpu <= c.gpus)
    return fits


def _kinds(trace: PodTrace) -> npt.NDArray[np.int64]:
    """0 service (latency-sensitive, guaranteed or production priority), 3 with GPUs, else 1 compute.

    No trace here records I/O, so none has I/O-bound pods.
    """
    sensitive = trace.service_class >= SERVICE_CLASSES.index("guaranteed")
    sensitive |= (trace.service_class < 0) & (trace.priority >= PRODUCTION_PRIORITY)
    kind = np.where(sensitive, 0, 1)
    kinds: npt.NDArray[np.int64] = np.where(trace.num_gpu > 0, 3, kind).astype(np.int64)
    return kinds
