# SPDX-License-Identifier: Apache-2.0
"""GPU sharing in milli-GPU, compiled: a fractional pod sits on one device, a larger one takes whole devices.

Source: the GPU-share plugin of the openb simulator (Weng, Yang et al., "Beware of Fragmentation", USENIX
ATC'23). All amounts are integers, 1000 to a device, so that what is freed is exactly what was taken. A choice
of devices is a bit mask: bit d set where device d is used.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal_common.kernels import kernel

I64 = npt.NDArray[np.int64]

MILLI = 1000
MAX_DEVICES = 62
"""Devices of a node: as many as an int64 has bits to spare."""


@kernel
def fits(left: I64, count: int, gpu_milli: int, num_gpu: int) -> bool:
    """Whether `num_gpu` of the first `count` devices have `gpu_milli` left; left in milli-GPU [G]."""
    wanted = num_gpu
    for device in range(count):
        if wanted <= 0:
            break
        if left[device] >= gpu_milli:
            wanted -= 1
    return wanted <= 0


@kernel
def tightest_device(left: I64, count: int, gpu_milli: int) -> int:
    """The device with the smallest sufficient remainder, the lowest of equal ones; -1 if none."""
    best = -1
    for device in range(count):
        if left[device] >= gpu_milli and (best < 0 or left[device] < left[best]):
            best = device
    return best


@kernel
def whole(left: I64, count: int, num_gpu: int) -> int:
    """The lowest-numbered wholly free devices, as bits; 0 if there are too few."""
    chosen, wanted = 0, num_gpu
    for device in range(count):
        if wanted > 0 and left[device] == MILLI:
            chosen |= 1 << device
            wanted -= 1
    return chosen if wanted == 0 else 0


@kernel
def tightest(left: I64, count: int, gpu_milli: int, num_gpu: int) -> int:
    """Devices for a pod: the tightest one for a share, the lowest wholly free ones otherwise; 0 if none."""
    if num_gpu == 1 and gpu_milli < MILLI:
        device = tightest_device(left, count, gpu_milli)
        return 1 << device if device >= 0 else 0
    return whole(left, count, num_gpu)


@kernel
def allocate(left: I64, devices: int, gpu_milli: int) -> None:
    """Take `gpu_milli` from each chosen device, in place.

    Raises:
        ValueError: a device has less than that; nothing is taken.
    """
    for device in range(left.shape[0]):
        if devices >> device & 1 and left[device] < gpu_milli:
            raise ValueError("a device has less milli-GPU left than the pod asks for")
    for device in range(left.shape[0]):
        if devices >> device & 1:
            left[device] -= gpu_milli


@kernel
def free(left: I64, devices: int, gpu_milli: int) -> None:
    """Give `gpu_milli` back to each chosen device, in place.

    Raises:
        ValueError: a device would hold more than 1000; nothing is given back.
    """
    for device in range(left.shape[0]):
        if devices >> device & 1 and left[device] + gpu_milli > MILLI:
            raise ValueError("a device would have more than 1000 milli-GPU")
    for device in range(left.shape[0]):
        if devices >> device & 1:
            left[device] += gpu_milli
