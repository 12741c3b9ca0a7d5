# SPDX-License-Identifier: Apache-2.0
"""Google Borg 2019: a derived sample of instance events from eight cells, with a header.

Source: Tirmazi et al., "Borg: the next generation", EuroSys'20 (ClusterData2019). The rows are a random
sample, so a cell's occupancy cannot be rebuilt and durations are unknown; what the sample does tell is how
requests, priorities and usage differ between the cells: eight natural clients of a federation. The tenant of
a pod is its cell. Times are in microseconds, requests relative to the largest machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal_simulations.traces.base import (
    CPU_MILLI_PER_UNIT,
    MAX_UNITS,
    MEMORY_MIB_PER_UNIT,
    PodTrace,
    floats,
    ints,
    table,
)

COLUMNS = (
    "time_us",
    "cell",
    "event",
    "collection_id",
    "instance_index",
    "machine_id",
    "priority",
    "scheduling_class",
    "cpu_req",
    "mem_req",
    "avg_cpu",
    "avg_mem",
    "failed",
)
CELLS = 8
EVENTS = (
    "SUBMIT",
    "QUEUE",
    "ENABLE",
    "SCHEDULE",
    "EVICT",
    "FAIL",
    "FINISH",
    "KILL",
    "LOST",
    "UPDATE_PENDING",
)
MICROSECONDS = 1e-6
LAST_TIME = 2**63 - 1


@dataclass(frozen=True, slots=True)
class InstanceEvent:
    """One row: requests and mean usage relative to the largest machine."""

    time_us: int
    cell: int
    event: str
    collection: int
    instance: int
    machine: int
    priority: int
    scheduling_class: int
    cpu: float
    memory: float
    cpu_used: float
    memory_used: float
    failed: bool


def instance_events(path: Path) -> Iterator[InstanceEvent]:
    """Stream the sample.

    Raises:
        InputError: a bad row, by file, line and column.
    """
    for row in table(path, COLUMNS):
        scheduling_class = row.number("scheduling_class", high=3)
        if scheduling_class != int(scheduling_class):
            raise row.error("scheduling_class", f"{scheduling_class} is no class", "use 0, 1, 2 or 3")
        yield InstanceEvent(
            time_us=row.integer("time_us", high=LAST_TIME),
            cell=row.integer("cell", low=1, high=CELLS),
            event=row.choice("event", EVENTS),
            collection=row.integer("collection_id", high=LAST_TIME),
            instance=row.integer("instance_index"),
            machine=row.integer("machine_id", low=-1, high=LAST_TIME),
            priority=row.integer("priority", high=500),
            scheduling_class=int(scheduling_class),
            cpu=row.number("cpu_req", high=MAX_UNITS),
            memory=row.number("mem_req", high=MAX_UNITS),
            cpu_used=row.number("avg_cpu", high=MAX_UNITS),
            memory_used=row.number("avg_mem", high=MAX_UNITS),
            failed=row.integer("failed", high=1) == 1,
        )


def read_pods(path: Path) -> PodTrace:
    """Read the sample as pods in file order, all cells; durations and waits are unknown.

    Raises:
        InputError: a bad row, by file, line and column.
    """
    rows = list(instance_events(path))
    zeros, unknown = ints([0] * len(rows)), floats([float("nan")] * len(rows))
    return PodTrace(
        names=tuple(f"{r.collection}-{r.instance}" for r in rows),
        arrival_s=floats([r.time_us * MICROSECONDS for r in rows]),
        cpu_milli=ints([round(r.cpu * CPU_MILLI_PER_UNIT) for r in rows]),
        memory_mib=ints([round(r.memory * MEMORY_MIB_PER_UNIT) for r in rows]),
        gpu_milli=zeros,
        num_gpu=zeros,
        gpu_spec=zeros,
        gpu_specs=("",),
        duration_s=unknown,
        wait_s=unknown,
        tenant=ints([r.cell - 1 for r in rows]),
        tenants=tuple(f"cell-{c}" for c in range(1, CELLS + 1)),
        priority=ints([r.priority for r in rows]),
        service_class=ints([r.scheduling_class for r in rows]),
    )
