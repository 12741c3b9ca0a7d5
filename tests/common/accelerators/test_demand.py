# SPDX-License-Identifier: Apache-2.0
"""What pods ask of devices and what that leaves, by hand and against properties."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.accelerators.demand import GPU, demands, devices, holds, mig_milli, pack

MIG = "nvidia.com/mig-"


@pytest.mark.parametrize(
    ("resource", "milli"),
    [
        (MIG + "1g.5gb", 142),
        (MIG + "1g.5gb.me", 142),
        (MIG + "3g.20gb", 428),
        (MIG + "7g.40gb", 1000),
        (MIG + "9g.80gb", 1000),
        (MIG + "weird", 0),
        (GPU, 0),
        ("cpu", 0),
    ],
)
def test_a_mig_slice_is_its_share_of_compute(resource: str, milli: int) -> None:
    assert mig_milli(resource) == milli


@pytest.mark.parametrize(
    ("requests", "annotations", "asked"),
    [
        ({"cpu": 4}, {}, ()),
        ({GPU: 2}, {}, ((1000, 2),)),
        ({GPU: 0}, {}, ()),
        ({GPU: 1, "nvidia.com/gpucores": 30}, {}, ((300, 1),)),
        ({GPU: 1, "nvidia.com/gpucores": 30, "nvidia.com/gpumem-percentage": 55}, {}, ((550, 1),)),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-cores": 25}, {}, ((250, 2),)),
        ({GPU: 1}, {"shoal.dev/gpu-milli": "250"}, ((250, 1),)),
        ({}, {"shoal.dev/gpu-milli": "250"}, ((250, 1),)),
        ({GPU: 1}, {"shoal.dev/gpu-milli": "lots"}, ((1000, 1),)),
        ({GPU: 1}, {"shoal.dev/gpu-milli": "99999"}, ((1000, 1),)),
        ({MIG + "1g.5gb": 2, MIG + "3g.20gb": 1}, {}, ((428, 1), (142, 2))),
    ],
)
def test_demands(
    requests: dict[str, int], annotations: dict[str, str], asked: tuple[tuple[int, int], ...]
) -> None:
    assert demands(requests, annotations) == asked


@pytest.mark.parametrize(
    ("allocatable", "labels", "count"),
    [
        ({GPU: 8}, {}, 8),
        ({GPU: 80}, {"nvidia.com/gpu.count": "8"}, 8),
        ({GPU: 6}, {"nvidia.com/gpu.count": "8"}, 6),
        ({MIG + "1g.5gb": 7}, {}, 1),
        ({MIG + "1g.5gb": 8}, {}, 2),
        ({MIG + "3g.20gb": 2, GPU: 1}, {"nvidia.com/gpu.count": "4"}, 4),
        ({GPU: 500}, {}, 62),
        ({}, {"nvidia.com/gpu.count": "8"}, 0),
        ({GPU: 2}, {"nvidia.com/gpu.count": "two"}, 2),
    ],
)
def test_devices(allocatable: dict[str, int], labels: dict[str, str], count: int) -> None:
    assert devices(allocatable, labels) == count


def test_whole_devices_come_first_and_shares_fill_the_tightest() -> None:
    assert pack([(300, 1), (1000, 1), (600, 1), (400, 1)], 3) == [0, 0, 700]
    assert pack([(500, 1)] * 4, 4) == [0, 0, 1000, 1000]


def test_more_than_there_is_leaves_nothing_and_never_less() -> None:
    assert pack([(1000, 3)], 2) == [0, 0]
    assert pack([(700, 1)] * 3, 2) == [0, 300]
    assert not holds([400, 400], (500, 1))
    assert not holds([500, 400], (400, 3))


DEMANDS = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 4)), max_size=12)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(DEMANDS, st.integers(0, 8), st.randoms(use_true_random=False))
def test_packing_depends_on_the_set_alone_and_takes_no_more_than_asked(asked, count, order) -> None:  # type: ignore[no-untyped-def]
    left = pack(asked, count)
    assert all(0 <= room <= 1000 for room in left)
    assert 1000 * count - sum(left) <= sum(milli * number for milli, number in asked)
    order.shuffle(asked)
    assert pack(asked, count) == left
