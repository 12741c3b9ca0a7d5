# SPDX-License-Identifier: Apache-2.0
"""Node classes: the hardware of virtual clusters, and the built-in ones by name.

Constants of the built-in classes are design figures: two generations of CPU nodes, a GPU node and a DPU node
chosen to differ in speed, I/O and power as real generations do, and the article's testbed (64-vCPU nodes,
two A100-40GB with NVLink, BlueField-2).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from shoal_simulations.toml_config import Section

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class NodeClass(Section):
    """Hardware of one kind of node. Speeds are relative to the reference CPU node, which has 1."""

    cores: Annotated[int, Field(ge=1, le=1024)]
    """Allocatable CPU, cores."""
    memory_gib: Positive
    """Allocatable memory, GiB."""
    gpus: Annotated[int, Field(ge=0, le=16)] = 0
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
    gpu_watts: Annotated[float, Field(ge=0)] = 0.0
    """Power that one busy accelerator adds, W."""
    deep_idle: Share = 0.10
    """Power of an empty node as a share of `idle_watts`: what packing can save."""
    numa_zones: Annotated[int, Field(ge=1, le=8)] = 1
    """NUMA zones; a pod that spans two pays a penalty."""
    dpu: bool = False
    """Whether a DPU takes network and storage work off the CPU."""
    mig: bool = False
    """Whether the accelerators are A100-40GB that MIG can partition (up to seven instances)."""
    nvlink: bool = False
    """Whether the accelerators are joined by NVLink."""

    @model_validator(mode="after")
    def _power_rises(self) -> NodeClass:
        if self.max_watts <= self.idle_watts:
            raise ValueError(
                f"max_watts {self.max_watts:g} is not above idle_watts {self.idle_watts:g}; raise max_watts"
            )
        return self


COLUMNS = tuple(NodeClass.model_fields)[:11]  # the numbers; flags follow by name


def _row(text: str) -> NodeClass:
    """Read one row of the table below."""
    words = text.split()
    numbers = dict(zip(COLUMNS, words[: len(COLUMNS)], strict=True))
    return NodeClass.model_validate(numbers | dict.fromkeys(words[len(COLUMNS) :], True))


# cores GiB GPUs speed io_speed io_capacity idle_W max_W W_per_GPU deep_idle NUMA
NODE_CLASSES: dict[str, NodeClass] = {
    "old-cpu": _row("16 64 0 0.70 1 4 110 280 0 0.10 1"),
    "new-cpu": _row("32 128 0 1.15 1 6 95 290 0 0.10 2"),
    "gpu": _row("24 96 4 1 1 5 160 380 220 0.10 2"),
    "dpu": _row("16 64 0 0.85 2.2 14 90 200 0 0.10 1 dpu"),
    "cpu64": _row("64 256 0 1 1 8 150 450 0 0.10 2"),
    "a100x2": _row("64 256 2 1 1 8 200 500 300 0.10 2 mig nvlink"),
    "bluefield": _row("64 256 0 1 2.2 28 160 420 0 0.10 2 dpu"),
}
