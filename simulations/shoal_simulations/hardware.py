# SPDX-License-Identifier: Apache-2.0
"""Hardware of a fleet file: node classes of one's own, beside the twin's built-in ones."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from shoal_common.twin.scenarios import NodeClass
from shoal_simulations.toml_config import Section

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class NodeClassConfig(Section):
    """Hardware of one kind of node. Speeds are relative to the reference CPU node, which has 1."""

    cores: Annotated[int, Field(ge=1, le=256)]
    """Allocatable CPU, cores."""
    memory_gib: Annotated[int, Field(ge=1, le=65_536)]
    """Allocatable memory, GiB."""
    gpus: Annotated[int, Field(ge=0, le=8)] = 0
    """Whole accelerators, each of 1,000 milli-GPU."""
    speed: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Work done by one core in one second, relative to the reference. Up to 2: the bound of the feature."""
    io_speed: Annotated[float, Field(gt=0, le=3)] = 1.0
    """Progress of I/O-bound work, relative to the reference; a DPU takes that work off the CPU."""
    io_capacity: Positive = 4.0
    """I/O that the node carries before its pods share it, in units of one I/O-bound core."""
    idle_watts: Positive = 100.0
    """Power of a node that runs a pod but does no work, W."""
    max_watts: Positive = 300.0
    """Power with every core busy and no GPU working, W. Must exceed `idle_watts`."""
    gpu_watts: Annotated[float, Field(ge=0)] = 220.0
    """Power that one busy accelerator adds, W."""
    deep_idle: Share = 0.10
    """Power of an empty node as a share of `idle_watts`: what packing can save."""
    dpu: bool = False
    """Whether a DPU takes network and storage work off the CPU."""
    numa_zones: Annotated[int, Field(ge=1, le=4)] = 2
    """NUMA zones; a pod that spans two pays a penalty."""
    accelerator: str = ""
    """Model of the accelerators; A100-40GB can be partitioned by MIG into up to seven instances."""
    nvlink: bool = False
    """Whether the accelerators are joined by NVLink."""

    @model_validator(mode="after")
    def _power_rises(self) -> NodeClassConfig:
        if self.max_watts <= self.idle_watts:
            raise ValueError(
                f"max_watts {self.max_watts:g} is not above idle_watts {self.idle_watts:g}; raise max_watts"
            )
        return self

    def node_class(self, name: str) -> NodeClass:
        """The same as the twin takes it."""
        return NodeClass(name, **self.model_dump())
