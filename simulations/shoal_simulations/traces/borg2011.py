# SPDX-License-Identifier: Apache-2.0
"""Google Borg 2011 (clusterdata-2011-2): task events and machine events, tables without a header.

Source: Reiss, Wilkes, Hellerstein, "Google cluster-usage traces: format + schema", 2011. Times are in
microseconds, requests and capacities relative to the largest machine (see base.py for the convention). Task
events carry the machine that was chosen: real placement decisions. Borg overcommits, so requests summed up on
a machine may exceed its capacity; a reader must not use that sum as a hard filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal_common.errors import InputError
from shoal_simulations.traces.base import (
    CPU_MILLI_PER_UNIT,
    MAX_UNITS,
    MEMORY_MIB_PER_UNIT,
    NodeTrace,
    PodTrace,
    Row,
    Vocabulary,
    floats,
    ints,
    table,
)

TASK_COLUMNS = (
    "time",
    "missing info",
    "job ID",
    "task index",
    "machine ID",
    "event type",
    "user",
    "scheduling class",
    "priority",
    "CPU request",
    "memory request",
    "disk space request",
    "different machines restriction",
)
MACHINE_COLUMNS = ("time", "machine ID", "event type", "platform ID", "CPUs", "Memory")

SUBMIT, SCHEDULE, EVICT, FAIL, FINISH, KILL, LOST, UPDATE_PENDING, UPDATE_RUNNING = range(9)
ADD, REMOVE, UPDATE = range(3)
MICROSECONDS = 1e-6
LAST_TIME = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One line of task_events; None where the field is empty."""

    time_us: int
    job: int
    task: int
    machine: int | None
    event: int
    user: str
    scheduling_class: int
    priority: int
    cpu: float | None
    memory: float | None
    disk: float | None
    different_machines: bool


@dataclass(frozen=True, slots=True)
class MachineEvent:
    """One line of machine_events; None where the field is empty."""

    time_us: int
    machine: int
    event: int
    platform: str
    cpu: float | None
    memory: float | None


def _optional(row: Row, column: str) -> float | None:
    return row.number(column, high=MAX_UNITS) if row.text(column, required=False) else None


def _time(row: Row, before: int) -> int:
    now = row.integer("time", high=LAST_TIME)
    if now < before:
        raise row.error("time", f"{now} is before the line above", "sort the file by time")
    return now


def task_events(path: Path) -> Iterator[TaskEvent]:
    """Stream the events of one part of task_events.

    Raises:
        InputError: a bad row, by file, line and column.
    """
    now = 0
    for row in table(path, TASK_COLUMNS, header=False):
        now = _time(row, now)
        machine = row.text("machine ID", required=False)
        restriction = row.text("different machines restriction", required=False)
        yield TaskEvent(
            time_us=now,
            job=row.integer("job ID", high=LAST_TIME),
            task=row.integer("task index"),
            machine=row.integer("machine ID", high=LAST_TIME) if machine else None,
            event=row.integer("event type", high=UPDATE_RUNNING),
            user=row.text("user", required=False),
            scheduling_class=row.integer("scheduling class", high=3),
            priority=row.integer("priority", high=11),
            cpu=_optional(row, "CPU request"),
            memory=_optional(row, "memory request"),
            disk=_optional(row, "disk space request"),
            different_machines=bool(restriction)
            and row.integer("different machines restriction", high=1) == 1,
        )


def machine_events(path: Path) -> Iterator[MachineEvent]:
    """Stream the events of machine_events.

    Raises:
        InputError: a bad row, by file, line and column.
    """
    now = 0
    for row in table(path, MACHINE_COLUMNS, header=False):
        now = _time(row, now)
        yield MachineEvent(
            time_us=now,
            machine=row.integer("machine ID", high=LAST_TIME),
            event=row.integer("event type", high=UPDATE),
            platform=row.text("platform ID", required=False),
            cpu=_optional(row, "CPUs"),
            memory=_optional(row, "Memory"),
        )


def read_nodes(path: Path) -> NodeTrace:
    """The machines that exist at time 0, by their first ADD event.

    Raises:
        InputError: a bad row, by file, line and column, or no machine at time 0.
    """
    first: dict[int, MachineEvent] = {}
    for event in machine_events(path):
        if event.time_us == 0 and event.event == ADD and event.cpu and event.memory:
            first.setdefault(event.machine, event)
    if not first:
        raise InputError(
            str(path), "event type", "no machine is added at time 0", "start with the first part"
        )
    zeros = [0] * len(first)
    return NodeTrace(
        names=tuple(f"machine-{m}" for m in first),
        cpu_milli=ints([round((e.cpu or 0) * CPU_MILLI_PER_UNIT) for e in first.values()]),
        memory_mib=ints([round((e.memory or 0) * MEMORY_MIB_PER_UNIT) for e in first.values()]),
        gpus=ints(zeros),
        model=ints([-1] * len(first)),
        models=(),
    )


@dataclass(slots=True)
class _Tasks:
    """Columns under construction: one entry per submission."""

    submit: list[TaskEvent] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    scheduled: list[int | None] = field(default_factory=list)
    open: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, event: TaskEvent) -> None:
        """Take the next event; anything before a task's submission was cut off by the part's borders."""
        key = (event.job, event.task)
        if event.event == SUBMIT:
            self.open[key] = len(self.submit)
            self.submit.append(event)
            self.duration.append(math.nan)
            self.wait.append(math.nan)
            self.scheduled.append(None)
        elif key in self.open and event.event == SCHEDULE:
            i = self.open[key]
            self.scheduled[i] = event.time_us
            self.wait[i] = (event.time_us - self.submit[i].time_us) * MICROSECONDS
        elif key in self.open and event.event in {EVICT, FAIL, FINISH, KILL, LOST}:
            i = self.open.pop(key)
            start = self.scheduled[i]
            if start is not None:
                self.duration[i] = (event.time_us - start) * MICROSECONDS


def pods(events: Iterable[TaskEvent]) -> PodTrace:
    """Submissions as pods: duration = end - schedule where both lie within the events, else NaN.

    Tenant is the user, service class the scheduling class (0 non-production .. 3 serving users); a request
    that the trace lacks counts as 0.
    """
    tasks, users = _Tasks(), Vocabulary()
    for event in events:
        tasks.add(event)
    submitted = tasks.submit
    zeros = ints([0] * len(submitted))
    return PodTrace(
        names=tuple(f"{e.job}-{e.task}" for e in submitted),
        arrival_s=floats([e.time_us * MICROSECONDS for e in submitted]),
        cpu_milli=ints([round((e.cpu or 0.0) * CPU_MILLI_PER_UNIT) for e in submitted]),
        memory_mib=ints([round((e.memory or 0.0) * MEMORY_MIB_PER_UNIT) for e in submitted]),
        gpu_milli=zeros,
        num_gpu=zeros,
        gpu_spec=zeros,
        gpu_specs=("",),
        duration_s=floats(tasks.duration),
        wait_s=floats(tasks.wait),
        tenant=ints([users[e.user] for e in submitted]),
        tenants=users.names,
        priority=ints([e.priority for e in submitted]),
        service_class=ints([e.scheduling_class for e in submitted]),
    )


def read_pods(path: Path) -> PodTrace:
    """Read one part of task_events as pods.

    Raises:
        InputError: a bad row, by file, line and column.
    """
    return pods(task_events(path))
