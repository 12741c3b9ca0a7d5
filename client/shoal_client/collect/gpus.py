# SPDX-License-Identifier: Apache-2.0
"""From DCGM's series, one per GPU or MIG instance, to one value of a node.

Under MIG an instance's activity is a share of that instance, so it counts with its slices (`3g.20gb` with 3
of 7); what exists only for the whole device (power, temperature) is repeated for each instance and counts
once. DCGM says "not known" by the largest numbers of a type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shoal_client.collect.queries import LiveFeature
from shoal_common.pods import NodeRecord

SLICES: Final = 7
SLICES_A30: Final = 4
BLANK_INT32: Final = range(2_147_483_632, 2_147_483_648)  # DCGM_INT32_BLANK and the reasons above it
BLANK: Final = 2.0**47  # DCGM_FP64_BLANK; DCGM_INT64_BLANK is larger
_PROFILE: Final = re.compile(r"(\d+)g\.")
_A30: Final = re.compile(r"\bA30\b")


@dataclass(frozen=True, slots=True)
class DeviceValue:
    """One series: which device, which instance of it ("" the whole device) and the value."""

    device: str
    index: int
    instance: str
    slices: int
    of: int  # slices of the whole device
    value: float


def device_value(labels: dict[str, str], value: float) -> DeviceValue | None:
    """A series as a device's value; None where DCGM says that it does not know."""
    if not math.isfinite(value) or value >= BLANK or value in BLANK_INT32:
        return None
    index, uuid = labels.get("gpu", ""), labels.get("UUID", "")
    of = SLICES_A30 if _A30.search(labels.get("modelName", "")) else SLICES
    profile = _PROFILE.search(labels.get("GPU_I_PROFILE", ""))
    slices = int(profile[1]) if profile else of
    number = int(index) if index.isdigit() else 0
    return DeviceValue(uuid or index, number, labels.get("GPU_I_ID", ""), slices, of, value)


def is_partitioned(node: NodeRecord) -> bool:
    """Whether the node's GPUs are offered as MIG instances, by its resources and labels."""
    return "-MIG-" in node.labels.get("nvidia.com/gpu.product", "") or any(
        name.startswith("nvidia.com/mig-") and count > 0 for name, count in node.allocatable.items()
    )


def by_device(values: Iterable[DeviceValue]) -> dict[str, list[DeviceValue]] | None:
    """Series by device, instances only where a device has any; None where a series exists twice."""
    seen: dict[str, dict[str, DeviceValue]] = {}
    for v in values:
        of_device = seen.setdefault(v.device, {})
        if v.instance in of_device:
            return None
        of_device[v.instance] = v
    return {
        device: [v for name, v in found.items() if name or len(found) == 1] for device, found in seen.items()
    }


def reduce(feature: LiveFeature, devices: dict[str, list[DeviceValue]]) -> float | None:
    """The value of a node; None without any device."""
    per_device = [_of_device(feature, values) for values in devices.values()]
    if not per_device:
        return None
    if feature.reduce in ("mean", "share"):
        return sum(per_device) / len(per_device)
    if feature.reduce in ("sum", "sum_instances"):
        return sum(per_device)
    return min(per_device) if feature.reduce == "min" else max(per_device)


def shares(devices: dict[str, list[DeviceValue]]) -> tuple[float, ...]:
    """The share of each device, in the order of their indices."""
    ordered = sorted(devices.values(), key=lambda values: values[0].index)
    return tuple(_share(values) for values in ordered)


def _of_device(feature: LiveFeature, values: list[DeviceValue]) -> float:
    match feature.reduce:
        case "mean":  # slices that are in no instance do nothing
            return min(1.0, sum(v.value * v.slices / v.of for v in values))
        case "share":
            return _share(values)
        case "sum_instances":
            return sum(v.value for v in values)
        case "min":
            return min(v.value for v in values)
        case _:
            return max(v.value for v in values)


def _share(values: list[DeviceValue]) -> float:
    return sum(v.value * v.slices for v in values) / sum(v.slices for v in values)
