# SPDX-License-Identifier: Apache-2.0
"""Which traces can be read, where a user gets them and under which terms; and which one a file is.

No trace is part of this repository: the readers take a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal_common.errors import InputError
from shoal_simulations.traces import borg2011, borg2019, openb
from shoal_simulations.traces.base import NodeTrace, PodTrace, lines

Trace = PodTrace | NodeTrace


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One kind of file: its reader, and what a user must know to get and to use it."""

    name: str
    holds: str
    files: str
    publisher: str
    licence: str
    citation: str
    read: Callable[[Path], Trace]


_OPENB = ("Alibaba, clusterdata: cluster-trace-gpu-v2023", "Apache-2.0")
_OPENB_CITATION = 'Weng, Yang et al., "Beware of Fragmentation", USENIX ATC\'23'
_BORG = ("Google, cluster-data: ClusterData2011_2", "CC-BY 4.0")
_BORG_CITATION = 'Reiss, Wilkes, Hellerstein, "Google cluster-usage traces: format + schema", 2011'

FORMATS: tuple[TraceFormat, ...] = (
    TraceFormat(
        "openb-nodes",
        "nodes with GPU models",
        "openb_node_list_*.csv",
        *_OPENB,
        _OPENB_CITATION,
        openb.read_nodes,
    ),
    TraceFormat(
        "openb-pods",
        "pods with GPU shares; times except in multigpu lists",
        "openb_pod_list_*.csv",
        *_OPENB,
        _OPENB_CITATION,
        openb.read_pods,
    ),
    TraceFormat(
        "borg2011-tasks",
        "task events with the machine chosen",
        "task_events/part-*.csv.gz",
        *_BORG,
        _BORG_CITATION,
        borg2011.read_pods,
    ),
    TraceFormat(
        "borg2011-machines",
        "machine events",
        "machine_events/part-*.csv.gz",
        *_BORG,
        _BORG_CITATION,
        borg2011.read_nodes,
    ),
    TraceFormat(
        "borg2019-sample",
        "a sample of instance events of eight cells",
        "a CSV with time_us, cell, event, ...",
        "Google, cluster-data: ClusterData2019 (derived from the sample published at Kaggle)",
        "CC-BY 4.0",
        'Tirmazi et al., "Borg: the next generation", EuroSys\'20',
        borg2019.read_pods,
    ),
)


def detect(path: Path) -> TraceFormat:
    """The format of a file, by its header or, without one, by its number of columns.

    Raises:
        InputError: the file is missing, empty or of no known format.
    """
    line, first = next(lines(path), (0, []))
    if not first:
        raise InputError(f"{path}:1", "rows", "the file is empty", "check that it is complete")
    known = {x.name: x for x in FORMATS}
    headers = {"sn": "openb-nodes", "name": "openb-pods", "time_us": "borg2019-sample"}
    for column, name in headers.items():
        if column in first:
            return known[name]
    if first[0].isdigit():
        widths = {
            len(borg2011.TASK_COLUMNS): "borg2011-tasks",
            len(borg2011.MACHINE_COLUMNS): "borg2011-machines",
        }
        if len(first) in widths:
            return known[widths[len(first)]]
    raise InputError(
        f"{path}:{line}", "header", f"{','.join(first)[:60]!r} is no known trace", "see `shoal trace list`"
    )


def read(path: Path) -> tuple[TraceFormat, Trace]:
    """Detect the format of a file and read it.

    Raises:
        InputError: the format is unknown or a row is bad.
    """
    found = detect(path)
    return found, found.read(path)
