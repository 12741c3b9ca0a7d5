# SPDX-License-Identifier: Apache-2.0
"""MIG: the counts of NVIDIA's table, legal and illegal layouts, allocation."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_common.accelerators import mig
from shoal_common.errors import InputError

G1, G2, G3, G4, G7 = range(5)


def test_fourteen_placements_of_five_profiles() -> None:
    assert [(p.name, len(p.starts)) for p in mig.PROFILES] == [
        ("1g.5gb", 7),
        ("2g.10gb", 3),
        ("3g.20gb", 2),
        ("4g.20gb", 1),
        ("7g.40gb", 1),
    ]
    assert len(mig.PLACEMENTS) == 14
    assert mig.PROFILES[G3].resource == "nvidia.com/mig-3g.20gb"


def test_counts_of_layouts() -> None:
    assert len(mig.layouts()) == 297
    assert len(set(mig.layouts())) == 297
    assert len(mig.maximal_layouts()) == 19
    assert all(mig.legal(layout) for layout in mig.layouts())


def test_the_fourteen_maximal_multisets() -> None:
    expected = {
        (7, 0, 0, 0, 0),
        (5, 1, 0, 0, 0),
        (3, 2, 0, 0, 0),
        (1, 3, 0, 0, 0),
        (4, 0, 1, 0, 0),
        (2, 1, 1, 0, 0),
        (0, 2, 1, 0, 0),
        (3, 0, 1, 0, 0),
        (1, 1, 1, 0, 0),
        (0, 0, 2, 0, 0),
        (3, 0, 0, 1, 0),
        (1, 1, 0, 1, 0),
        (0, 0, 1, 1, 0),
        (0, 0, 0, 0, 1),
    }
    assert {mig.multiset(layout) for layout in mig.maximal_layouts()} == expected


def test_every_layout_stays_within_seven_compute_slices() -> None:
    for layout in mig.layouts():
        assert sum(mig.PROFILES[p.profile].slices for p in layout) <= mig.COMPUTE_SLICES


@pytest.mark.parametrize(
    "counts",
    [
        (0, 0, 0, 2, 0),  # 4g+4g
        (1, 0, 2, 0, 0),  # 3g+3g+1g
        (0, 2, 0, 1, 0),  # 4g+2g+2g
        (1, 0, 0, 0, 1),  # 7g+1g
        (0, 1, 2, 0, 0),  # 2x3g+2g
        (8, 0, 0, 0, 0),  # 8x1g
    ],
)
def test_illegal_multisets(counts: tuple[int, ...]) -> None:
    assert not mig.placeable(counts)


def test_illegal_placements() -> None:
    assert not mig.legal([mig.Placement(1, G2)])  # 2g starts at 0, 2 or 4
    assert not mig.legal([mig.Placement(0, G3), mig.Placement(3, G1)])  # overlap
    assert mig.legal([mig.Placement(4, G3), mig.Placement(0, G4)])


def test_placement_matters_not_only_the_number_of_free_slots() -> None:
    occupied = mig.Placement(0, G1).mask | mig.Placement(4, G1).mask
    assert mig.fits(occupied, G3) == ()
    assert mig.fits(mig.Placement(4, G1).mask | mig.Placement(5, G1).mask, G3) == (0,)


def test_allocation_keeps_most_placements_possible() -> None:
    start, occupied = mig.allocate(0, G1)
    assert (start, occupied) == (6, 1 << 6)
    assert mig.allocate(0, G3) == (4, 0b1111_0000)
    assert mig.allocate(0b1111_0000, G3) == (0, 0b1111_1111)
    with pytest.raises(InputError, match="no legal start"):
        mig.allocate(0b0001_0001, G4)


def test_release_undoes_allocate() -> None:
    start, occupied = mig.allocate(1 << 6, G2)
    assert mig.release(occupied, mig.Placement(start, G2)) == 1 << 6
    with pytest.raises(InputError, match="not placed there"):
        mig.release(0, mig.Placement(0, G1))


def test_feasibility_mask_equals_fits() -> None:
    states = np.arange(256, dtype=np.int64)
    mask = mig.feasible(states)
    assert mask.shape == (256, 14)
    for state in (0, 1, 0b0001_0001, 0b1111_0000, 255):
        starts = {(p.profile, p.start) for p, ok in zip(mig.PLACEMENTS, mask[state], strict=True) if ok}
        assert starts == {(i, s) for i in range(5) for s in mig.fits(state, i)}


def test_unknown_profile() -> None:
    assert mig.profile_index("7g.40gb") == G7
    with pytest.raises(InputError, match="is no profile"):
        mig.profile_index("5g.30gb")
