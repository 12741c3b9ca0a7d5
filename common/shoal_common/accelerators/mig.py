# SPDX-License-Identifier: Apache-2.0
"""MIG on an A100 of 40 GB: profiles, exact placements, legal layouts, allocation.

A device has 8 memory slots and 7 compute slices. A profile may start only at the slots that the driver lists
(NVIDIA go-nvml, gpus/a100.go), and what is placed may not overlap; the placement matters, not only the number
of free slots: 1g at slots 0 and 4 blocks every 3g though six slots are free. Profiles with media extensions
(+me) and the newer 1g.10gb are left out. Occupancy is an integer of 8 bits, bit i set where slot i is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shoal_common.errors import InputError

SLOTS = 8
COMPUTE_SLICES = 7


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One GPU-instance profile: compute slices, memory slots it covers, where it may start, memory in MiB."""

    name: str
    slices: int
    size: int
    starts: tuple[int, ...]
    memory_mib: int

    @property
    def resource(self) -> str:
        """The extended resource of the device plugin under the `mixed` strategy."""
        return f"nvidia.com/mig-{self.name}"

    def mask(self, start: int) -> int:
        """Slots covered when placed at `start`, as bits."""
        return ((1 << self.size) - 1) << start


PROFILES: tuple[MigProfile, ...] = (
    MigProfile("1g.5gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 4864),
    MigProfile("2g.10gb", 2, 2, (0, 2, 4), 9856),
    MigProfile("3g.20gb", 3, 4, (0, 4), 19968),
    MigProfile("4g.20gb", 4, 4, (0,), 19968),
    MigProfile("7g.40gb", 7, 8, (0,), 40192),
)


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A profile (index into PROFILES) at a start slot."""

    start: int
    profile: int

    @property
    def mask(self) -> int:
        """Slots covered, as bits."""
        return PROFILES[self.profile].mask(self.start)


Layout = tuple[Placement, ...]

PLACEMENTS: Layout = tuple(Placement(start, i) for i, p in enumerate(PROFILES) for start in p.starts)
"""All 14 (profile, start) pairs, by profile and then by start: the columns of every mask below."""

PLACEMENT_SLOTS: npt.NDArray[np.int64] = np.array([p.mask for p in PLACEMENTS], dtype=np.int64)  # [14]


def profile_index(name: str) -> int:
    """Index of a profile by its name, such as `3g.20gb`.

    Raises:
        InputError: no such profile.
    """
    for i, profile in enumerate(PROFILES):
        if profile.name == name:
            return i
    known = ", ".join(p.name for p in PROFILES)
    raise InputError("MIG", "profile", f"{name!r} is no profile of an A100 of 40 GB", f"use one of {known}")


def feasible(occupied: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which placements are still possible: occupancy [...] -> mask [..., 14]."""
    result: npt.NDArray[np.bool_] = (occupied[..., None] & PLACEMENT_SLOTS) == 0
    return result


def fits(occupied: int, profile: int) -> tuple[int, ...]:
    """Starts at which a profile still fits."""
    chosen = PROFILES[profile]
    return tuple(s for s in chosen.starts if not chosen.mask(s) & occupied)


def allocate(occupied: int, profile: int) -> tuple[int, int]:
    """Place a profile: (start, new occupancy), at the start that keeps most other placements possible.

    Of equal starts the lowest is taken. Own rule: the driver's choice is not documented.

    Raises:
        InputError: no legal start is free.
    """
    starts = fits(occupied, profile)
    if not starts:
        raise InputError(
            "MIG",
            PROFILES[profile].name,
            f"no legal start is free in {occupied:08b}",
            "choose another device",
        )
    chosen = PROFILES[profile]
    left = feasible(np.array([occupied | chosen.mask(s) for s in starts], dtype=np.int64)).sum(axis=-1)
    start = starts[int(left.argmax())]
    return start, occupied | chosen.mask(start)


def release(occupied: int, placement: Placement) -> int:
    """Occupancy after an instance is destroyed.

    Raises:
        InputError: the instance's slots are not all taken.
    """
    if occupied & placement.mask != placement.mask:
        raise InputError(
            "MIG", PROFILES[placement.profile].name, "it is not placed there", "check the layout"
        )
    return occupied & ~placement.mask


def legal(layout: Sequence[Placement]) -> bool:
    """Whether placements can stand together: starts as the driver lists them, nothing overlaps."""
    if any(p.start not in PROFILES[p.profile].starts for p in layout):
        return False
    ordered = sorted(layout)
    return all(a.start + PROFILES[a.profile].size <= b.start for a, b in pairwise(ordered))


def layouts() -> list[Layout]:
    """Every legal layout with at least one instance, each ordered by start: 297 of them."""
    found: list[Layout] = []

    def extend(layout: Layout, occupied: int, first: int) -> None:
        for placement in PLACEMENTS:
            if placement.start >= first and not placement.mask & occupied:
                grown = (*layout, placement)
                found.append(grown)
                extend(grown, occupied | placement.mask, placement.start + 1)

    extend((), 0, 0)
    return found


def maximal_layouts() -> list[Layout]:
    """The 19 layouts to which no instance can be added."""
    return [x for x in layouts() if not any(fits(sum(p.mask for p in x), i) for i in range(len(PROFILES)))]


def multiset(layout: Layout) -> tuple[int, ...]:
    """How many instances of each profile a layout holds, in the order of PROFILES."""
    return tuple(sum(p.profile == i for p in layout) for i in range(len(PROFILES)))


def placeable(counts: Sequence[int]) -> bool:
    """Whether so many instances of each profile (order of PROFILES) can stand on one empty device."""
    wanted = tuple(counts)
    return any(all(w <= h for w, h in zip(wanted, multiset(x), strict=True)) for x in maximal_layouts())
