# SPDX-License-Identifier: Apache-2.0
"""What pods ask of a node's devices, in milli-GPU, and what that leaves of each device.

Kubernetes' objects hold counts of extended resources, not which device a container got. So the devices of a
node are packed anew from the set of its pods: whole devices first, then shares from the largest, each on the
tightest device that holds it. The result depends on the set alone, never on the order in which pods came.

Shares are told by HAMi's and Volcano's resources (percent of a device's cores or memory), by the annotation
`shoal.dev/gpu-milli`, or by a MIG profile, whose g of 7 compute slices is its share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from shoal_common.accelerators.sharing import MAX_DEVICES, MILLI

GPU = "nvidia.com/gpu"
COUNTS = (GPU, "volcano.sh/vgpu-number")
PERCENTS = (
    "nvidia.com/gpucores",
    "nvidia.com/gpumem-percentage",
    "volcano.sh/vgpu-cores",
    "volcano.sh/vgpu-memory-percentage",
)
MILLI_ANNOTATION = "shoal.dev/gpu-milli"
COUNT_LABEL = "nvidia.com/gpu.count"  # physical devices, by NVIDIA's feature discovery
MIG_SLICES = 7
_MIG = re.compile(r"nvidia\.com/mig-(\d+)g\.")  # mig-1g.5gb, mig-1g.5gb.me, mig-2g.20gb, ...

Demand = tuple[int, int]
"""Milli-GPU of each device, and devices."""


def mig_milli(resource: str) -> int:
    """The share of a device, in milli-GPU, that one unit of a MIG resource is; 0 for any other resource."""
    match = _MIG.match(resource)
    return min(int(match[1]), MIG_SLICES) * MILLI // MIG_SLICES if match else 0


def demands(requests: Mapping[str, int], annotations: Mapping[str, str]) -> tuple[Demand, ...]:
    """What a pod with these effective requests asks of devices, the largest share first; () for nothing."""
    if MILLI_ANNOTATION not in annotations and not any("/" in name for name in requests):
        return ()  # the most pods by far
    found = [(mig_milli(name), amount) for name, amount in requests.items() if amount and mig_milli(name)]
    counts = [requests[name] for name in COUNTS if requests.get(name)]
    text = annotations.get(MILLI_ANNOTATION, "")
    milli = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    milli = max(milli, *(10 * requests.get(name, 0) for name in PERCENTS))
    if counts or (milli and not found):
        found.append((min(milli, MILLI) or MILLI, max(counts, default=1)))
    return tuple(sorted(found, reverse=True))


def devices(allocatable: Mapping[str, int], labels: Mapping[str, str]) -> int:
    """Distinct healthy devices of a node, MIG-partitioned ones included.

    Where one device is advertised several times (time slicing, HAMi), the label of the physical count says
    how many there are.
    """
    whole = max(allocatable.get(name, 0) for name in COUNTS)
    slices = sum(mig_milli(name) * amount for name, amount in allocatable.items())
    text = labels.get(COUNT_LABEL, "")
    physical = int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else 0
    if slices:
        count = whole + max(-(-slices // MILLI), physical - whole)
    else:
        count = min(whole, physical) if physical else whole
    return min(count, MAX_DEVICES)


def pack(asked: Iterable[Demand], count: int) -> list[int]:
    """What is left of each of `count` devices, in milli-GPU, when these demands are on them.

    More than fits (a device died, a pod was bound by hand) leaves nothing, never less than nothing.
    """
    left = [MILLI] * count
    for milli, number in sorted(asked, reverse=True):
        for device in tightest_devices(left, milli, number):
            left[device] = max(0, left[device] - milli)
    return left


def tightest_devices(left: list[int], milli: int, number: int) -> list[int]:
    """The `number` devices with the smallest sufficient remainder, the lowest of equal ones first.

    Where fewer suffice, those with the most left follow.
    """
    enough = sorted((room, device) for device, room in enumerate(left) if room >= milli)
    chosen = [device for _, device in enough[:number]]
    if len(chosen) < number:
        rest = sorted((-room, device) for device, room in enumerate(left) if room < milli)
        chosen += [device for _, device in rest[: number - len(chosen)]]
    return chosen


def holds(left: Iterable[int], demand: Demand) -> bool:
    """Whether as many distinct devices have the share left."""
    milli, number = demand
    return sum(room >= milli for room in left) >= number
