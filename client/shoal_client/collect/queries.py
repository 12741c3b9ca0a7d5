# SPDX-License-Identifier: Apache-2.0
"""What a live feature is, and the query that brings it for all nodes at once.

One query, one HTTP request, all nodes: no query names a node. In PromQL texts `$on` stands for the labels
that tell nodes apart and `$w` for the window of rates. Whatever has to be summed over CPUs, disks or
containers is summed in PromQL; two series of one node then mean that something is scraped twice, and the
value is unknown. The exception are GPUs, whose series are reduced here because MIG needs it (`gpus.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

NODE_LABELS: Final = ("node", "kubernetes_node", "Hostname", "hostname", "instance")
"""Labels that may tell the node, most trusted first; an address is looked up with and without its port."""

ON: Final = ",".join(("job", "replica", "prometheus_replica", *NODE_LABELS))
"""With what tells two scrapes of the same exporter apart, so that a sum never counts one twice."""

TURNS: Final = 4
"""Queries that no decision rests on are asked in one of so many rounds."""

TURN_SECONDS: Final = 300.0

Reduce = Literal["one", "mean", "share", "max", "min", "sum", "sum_instances"]


@dataclass(frozen=True, slots=True)
class LiveFeature:
    """One named live value of a node, with its unit and public bounds."""

    name: str
    unit: str
    low: float
    high: float
    doc: str
    of: str = ""  # value of the query's label that this feature is about
    reduce: Reduce = "one"  # over GPUs; "one": exactly one series per node


@dataclass(frozen=True, slots=True)
class Source:
    """An exporter: its oldest useful value and the expression that tells the age of its samples by node.

    A node that this expression does not name has no values of the exporter, nor has one that `steady` does
    not name: it was not scraped a window ago, and PromQL divides by the whole window however little of it a
    series covers.
    """

    name: str
    exporter: str
    age: str
    max_age_seconds: float
    labels: tuple[str, ...] = NODE_LABELS
    steady: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and the features it brings; `label` tells them apart."""

    source: Source
    promql: str
    features: tuple[LiveFeature, ...]
    label: str = ""
    devices: bool = False  # one series per GPU or MIG instance
    decides: bool = False  # asked in every round, as decisions rest on it; others take turns
    index: Mapping[str, LiveFeature] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {f.of: f for f in self.features})

    @property
    def name(self) -> str:
        """The name of its first feature, by which metrics and logs call the query."""
        return self.features[0].name

    @property
    def max_age_seconds(self) -> float:
        """How old a value may be; those that take turns may be as old as a turn takes."""
        return self.source.max_age_seconds if self.decides else max(self.source.max_age_seconds, TURN_SECONDS)

    def text(self, window_seconds: float) -> str:
        """The expression as it is sent."""
        return expand(self.promql, window_seconds)


def expand(promql: str, window_seconds: float) -> str:
    """A PromQL text with the labels of nodes and the window of rates filled in."""
    return promql.replace("$on", ON).replace("$w", f"{window_seconds:g}s")


NODE_EXPORTER: Final = Source(
    "node",
    "node exporter",
    "max by ($on) (time() - timestamp(node_time_seconds))",
    120.0,
    steady="max by ($on) (node_time_seconds offset $w)",
)
KUBELET: Final = Source(
    "kubelet",
    "kubelet and its cAdvisor",
    'max by ($on) (time() - timestamp(container_memory_working_set_bytes{id="/"}))',
    180.0,
    steady='max by ($on) (container_memory_working_set_bytes{id="/"} offset $w)',
)
STATE: Final = Source(
    "state",
    "kube-state-metrics",
    "max by (node) (time() - timestamp(kube_node_info))",
    300.0,
    ("node",),
)
DCGM: Final = Source(
    "dcgm", "DCGM exporter", "max by ($on) (time() - timestamp(DCGM_FI_DEV_GPU_TEMP))", 120.0
)
POWER: Final = Source("power", "IPMI exporter", "max by ($on) (time() - timestamp(ipmi_up))", 180.0)
AGENT: Final = Source(
    "agent", "Shoal's node agent", "max by ($on) (time() - timestamp(shoal_ebpf_up))", 120.0
)
SOURCES: Final = (NODE_EXPORTER, KUBELET, STATE, DCGM, POWER, AGENT)
