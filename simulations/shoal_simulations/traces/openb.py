# SPDX-License-Identifier: Apache-2.0
"""openb: Alibaba's GPU cluster of 2023 (cluster-trace-gpu-v2023), nodes and pod lists.

Source: Weng, Yang et al., "Beware of Fragmentation", USENIX ATC'23. Nodes: sn, cpu_milli, memory_mib, gpu,
model. Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli and, except in the multigpu lists, gpu_spec, qos,
pod_phase, creation_time, deletion_time, scheduled_time (seconds). Where pods ran is not disclosed. A pod's
duration is deletion - scheduled, or deletion - creation where it was never scheduled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from shoal_common.accelerators.sharing import MAX_DEVICES, MILLI
from shoal_simulations.traces.base import NodeTrace, PodTrace, Row, Vocabulary, floats, ints, table

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIME_COLUMNS = ("creation_time", "deletion_time", "scheduled_time")
QOS = {"BE": 0, "Burstable": 1, "Guaranteed": 2, "LS": 3}


def read_nodes(path: Path) -> NodeTrace:
    """Read a node list.

    Raises:
        InputError: a bad row, by file, line and column.
    """
    models = Vocabulary()
    names: dict[str, int] = {}
    cpu, memory, gpus, model = [], [], [], []
    for row in table(path, NODE_COLUMNS):
        _unique(row, "sn", names)
        cpu.append(row.integer("cpu_milli", low=1))
        memory.append(row.integer("memory_mib", low=1))
        gpus.append(row.integer("gpu", high=MAX_DEVICES))
        name = row.text("model", required=gpus[-1] > 0)
        model.append(models[name] if name else -1)
        if len(models.names) > MAX_DEVICES:
            raise row.error("model", f"more than {MAX_DEVICES} different models", "merge some")
    return NodeTrace(tuple(names), ints(cpu), ints(memory), ints(gpus), ints(model), models.names)


@dataclass(slots=True)
class _Columns:
    """The lists that one pass over a pod file fills."""

    names: dict[str, int] = field(default_factory=dict)
    cpu: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    gpu_milli: list[int] = field(default_factory=list)
    num_gpu: list[int] = field(default_factory=list)
    spec: list[int] = field(default_factory=list)
    arrival: list[float] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    service_class: list[int] = field(default_factory=list)


def read_pods(path: Path) -> PodTrace:
    """Read a pod list, with or without times.

    Raises:
        InputError: a bad row, by file, line and column.
    """
    specs = Vocabulary("")
    out = _Columns()
    for row in table(path, POD_COLUMNS):
        _unique(row, "name", out.names)
        out.cpu.append(row.integer("cpu_milli"))
        out.memory.append(row.integer("memory_mib"))
        num_gpu, gpu_milli = _gpu(row)
        out.num_gpu.append(num_gpu)
        out.gpu_milli.append(gpu_milli)
        out.spec.append(specs[row.text("gpu_spec", required=False)] if "gpu_spec" in row.columns else 0)
        out.service_class.append(QOS[row.choice("qos", list(QOS))] if "qos" in row.columns else -1)
        arrival, duration, wait = _times(row)
        out.arrival.append(arrival)
        out.duration.append(duration)
        out.wait.append(wait)
    zeros = ints([0] * len(out.names))
    return PodTrace(
        names=tuple(out.names),
        arrival_s=floats(out.arrival),
        cpu_milli=ints(out.cpu),
        memory_mib=ints(out.memory),
        gpu_milli=ints(out.gpu_milli),
        num_gpu=ints(out.num_gpu),
        gpu_spec=ints(out.spec),
        gpu_specs=specs.names,
        duration_s=floats(out.duration),
        wait_s=floats(out.wait),
        tenant=zeros,
        tenants=("openb",),
        priority=zeros,
        service_class=ints(out.service_class),
    )


def _unique(row: Row, column: str, seen: dict[str, int]) -> None:
    name = row.text(column)
    if name in seen:
        raise row.error(column, f"{name!r} stands in line {seen[name]} already", "give each row its own name")
    seen[name] = row.line


def _gpu(row: Row) -> tuple[int, int]:
    """(devices, milli-GPU per device); more than one device must be whole ones."""
    num_gpu = row.integer("num_gpu", high=MAX_DEVICES)
    gpu_milli = row.integer("gpu_milli", high=MILLI)
    if num_gpu == 0 and gpu_milli > 0:
        raise row.error("gpu_milli", f"{gpu_milli} on no device", "set num_gpu to 1 or gpu_milli to 0")
    if num_gpu > 0 and gpu_milli == 0:
        raise row.error("gpu_milli", f"0 on {num_gpu} devices", "set gpu_milli or set num_gpu to 0")
    if num_gpu > 1 and gpu_milli != MILLI:
        raise row.error("gpu_milli", f"a share of {num_gpu} devices", "ask for one device, or for whole ones")
    return num_gpu, gpu_milli


def _times(row: Row) -> tuple[float, float, float]:
    """(arrival, duration, wait) in seconds; NaN where the list does not say."""
    if not all(column in row.columns for column in TIME_COLUMNS):
        return math.nan, math.nan, math.nan
    created, deleted = row.integer("creation_time"), row.integer("deletion_time")
    scheduled = row.integer("scheduled_time") if row.text("scheduled_time", required=False) else None
    if scheduled is not None and scheduled < created:
        raise row.error("scheduled_time", f"{scheduled} is before creation", "check the times")
    start = created if scheduled is None else scheduled
    if deleted < start:
        raise row.error("deletion_time", f"{deleted} is before the start", "check the times")
    return (
        float(created),
        float(deleted - start),
        math.nan if scheduled is None else float(scheduled - created),
    )
