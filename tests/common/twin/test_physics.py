# SPDX-License-Identifier: Apache-2.0
"""Each model by numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from shoal_common.cluster import (
    N_CPU,
    N_IO_CAPACITY,
    N_IO_SPEED,
    P_CLASS,
    P_CPU,
    P_GPU,
    P_GPUS,
    P_MEMORY,
    P_SLA,
    zone_share,
)
from shoal_common.twin.physics import (
    R_CPU,
    R_IO,
    R_SPANS,
    R_USE,
    S_COUNT,
    S_GPU,
    S_WANTED,
    SUMS,
    add_pod,
    deep_watts,
    default_physics,
    qos_loss,
    queueing,
    stretch,
    wanted,
    watts,
)
from shoal_common.twin.placement import apply_quota, choose_devices, take_zones
from shoal_common.twin.scenarios import NODE_CLASSES
from shoal_common.twin.state import (
    D_ZONE_CPU,
    T_CPU_ASKED,
    T_LIMIT_RATIO,
    T_MEMORY_ASKED,
    TWIN_POD_COLUMNS,
)

F64 = npt.NDArray[np.float64]
PHYSICS = default_physics()
SERVICE, COMPUTE, IO, GPU = 0, 1, 2, 3


def pod(kind: int, cpu: float, use: float | None = None, io: float = 0.0, gpu: float = 0.0) -> F64:
    row = np.zeros(TWIN_POD_COLUMNS)
    row[P_CLASS], row[P_CPU], row[P_SLA] = kind, cpu, 2.0
    row[R_CPU] = row[R_USE] = cpu if use is None else use
    row[R_IO], row[P_GPU], row[P_GPUS] = io, gpu, float(gpu > 0)
    return row


def rate(node: F64, *pods: F64) -> float:
    """Work per second of the first pod beside the others."""
    return 1.0 / stretch(node, PHYSICS, summed(node, *pods), pods[0])


def summed(node: F64, *pods: F64) -> F64:
    sums = np.zeros(SUMS)
    for p in pods:
        add_pod(sums, node, PHYSICS, p, 1.0)
    return sums


REFERENCE = NODE_CLASSES["cpu64"].row()  # speed 1, I/O speed 1, capacity 8
OLD = NODE_CLASSES["old-cpu"].row()  # 16 cores, speed 0.7


def test_alone_on_the_reference_node_work_takes_its_time() -> None:
    for kind in range(4):
        assert rate(REFERENCE, pod(kind, 4000.0)) == pytest.approx(1.0)


def test_speed_acts_on_the_share_that_computes() -> None:
    # compute: 2 % I/O at speed 1, the rest at 0.7; io: 70 % I/O
    assert rate(OLD, pod(COMPUTE, 4000.0)) == pytest.approx(1 / (0.98 / 0.7 + 0.02))
    assert rate(OLD, pod(IO, 4000.0)) == pytest.approx(1 / (0.30 / 0.7 + 0.70))


def test_cpu_is_guaranteed_to_requests_and_the_rest_shared_by_unmet_demand() -> None:
    node = REFERENCE.copy()
    node[N_CPU] = 10_000.0
    a, b = pod(COMPUTE, 4000.0, 6000.0), pod(SERVICE, 4000.0, 8000.0)
    # guaranteed 8,000; left 2,000 for 2,000 + 4,000 unmet: a gets 4,000 + 2,000/3 of 6,000
    share = (4000 + 2000 / 3) / 6000
    assert rate(node, a, b) == pytest.approx(1 / (0.98 / share + 0.02))


def test_a_limit_slows_by_what_the_pod_would_have_used_more() -> None:
    p = pod(COMPUTE, 4000.0, 6000.0)
    p[T_CPU_ASKED], p[T_MEMORY_ASKED], p[T_LIMIT_RATIO] = 4000.0, 1e9, 1.5
    apply_quota(p, 1.0, 1.0)
    assert (p[P_CPU], p[R_CPU], rate(REFERENCE, p)) == (4000.0, 6000.0, pytest.approx(1.0))
    apply_quota(p, 0.5, 0.25)
    assert (p[P_CPU], p[P_MEMORY], p[R_CPU]) == (2000.0, 2.5e8, 3000.0)
    assert rate(REFERENCE, p) == pytest.approx(1 / (0.98 / 0.5 + 0.02))
    apply_quota(p, float("nan"), -3.0)
    assert (p[P_CPU], p[P_MEMORY]) == (4000.0, 5e7)


def test_like_disturbs_like() -> None:
    a, b, c = pod(SERVICE, 8000.0), pod(SERVICE, 16_000.0), pod(COMPUTE, 16_000.0)
    assert rate(REFERENCE, a, c) == pytest.approx(1.0)
    assert rate(REFERENCE, a, b) == pytest.approx(1 / (1 + 16 / 64))
    assert rate(REFERENCE, c, c) == pytest.approx(1 / (1 + 0.45 * 16 / 64))


def test_io_is_served_up_to_capacity_then_in_proportion() -> None:
    node = REFERENCE.copy()
    node[N_IO_CAPACITY], node[N_IO_SPEED] = 2.0, 2.0
    a, b = pod(IO, 1000.0, io=1.0), pod(COMPUTE, 1000.0, io=3.0)
    assert rate(node, a) == pytest.approx(1 / (0.3 + 0.7 / 2.0))
    assert rate(node, a, b) == pytest.approx(1 / (0.3 + 0.7 / 1.0))  # half of it served


def test_a_dpu_takes_its_share_of_the_demand_off() -> None:
    dpu = NODE_CLASSES["bluefield"].row()
    assert wanted(dpu, PHYSICS, pod(IO, 1000.0)) == pytest.approx(650.0)
    assert wanted(dpu, PHYSICS, pod(COMPUTE, 1000.0)) == 1000.0
    # speed .95, I/O speed 2.2; with less demand nothing is throttled
    assert rate(dpu, pod(IO, 1000.0)) == pytest.approx(1 / (0.3 / 0.95 + 0.7 / 2.2))


def test_remote_memory_costs_a_share() -> None:
    p = pod(COMPUTE, 4000.0)
    p[R_SPANS] = 1.0
    assert rate(REFERENCE, p) == pytest.approx(1 - 0.12)


def test_shared_devices_disturb_whole_ones_do_not() -> None:
    node = NODE_CLASSES["gpu"].row()  # 4 devices, 24 cores
    half, quarter, whole = (pod(GPU, 0.0, 0.0, gpu=g) for g in (500.0, 250.0, 1000.0))
    assert rate(node, half, quarter, whole) == pytest.approx(1 / (1 + 0.25 * 250 / 4000))
    assert rate(node, whole, half) == pytest.approx(1.0)


def test_services_queue_beyond_the_knee() -> None:
    a = pod(SERVICE, 1000.0)
    sums = summed(REFERENCE, a)
    assert queueing(REFERENCE, PHYSICS, sums, a) == 1.0
    sums[S_WANTED] = 0.9 * 64_000
    assert queueing(REFERENCE, PHYSICS, sums, a) == pytest.approx(1 + 3 * 0.3**2)
    assert queueing(REFERENCE, PHYSICS, sums, pod(COMPUTE, 1.0)) == 1.0


def test_qos_loss_is_the_clipped_excess() -> None:
    a = pod(SERVICE, 1000.0)  # SLA 2
    assert qos_loss(a, 1.0) == 0.0
    assert qos_loss(a, 2.5) == pytest.approx(0.5)
    assert qos_loss(a, 9.0) == 1.0


def test_power_by_hand() -> None:
    node = NODE_CLASSES["gpu"].row()  # 160 to 380 W, 220 W a device
    sums = np.zeros(SUMS)
    assert watts(node, sums) == deep_watts(node) == pytest.approx(16.0)
    sums[S_COUNT], sums[S_WANTED], sums[S_GPU] = 1.0, 12_000.0, 1500.0
    assert watts(node, sums) == pytest.approx(160 + 220 * (2 * 0.5 - 0.5**1.4) + 330)
    sums[S_WANTED] = 48_000.0
    assert watts(node, sums) == pytest.approx(380 + 330)


def test_a_share_takes_the_tightest_device_more_take_the_lowest() -> None:
    gpu = np.array([1000.0, 400.0, 600.0, 1000.0, 0, 0, 0, 0])
    assert choose_devices(gpu, 4, 500.0, 1) == 0b0100
    assert choose_devices(gpu, 4, 300.0, 1) == 0b0010
    assert choose_devices(gpu, 4, 1000.0, 2) == 0b1001
    assert choose_devices(gpu, 4, 0.0, 0) == 0


def test_zones_fullest_that_holds_else_the_freest_in_turn() -> None:
    zone = np.array([[8000.0, 50.0], [5000.0, 90.0]])
    four, three, six = (pod(COMPUTE, cpu) for cpu in (4000.0, 3000.0, 6000.0))
    four[P_MEMORY] = six[P_MEMORY] = 40.0
    assert take_zones(zone, 2, four)
    assert zone.tolist() == [[8000.0, 50.0], [1000.0, 50.0]]
    assert take_zones(zone, 2, three)
    assert not take_zones(zone, 2, six)
    assert zone.tolist() == [[0.0, 10.0], [0.0, 50.0]]
    assert six[D_ZONE_CPU : D_ZONE_CPU + 2].tolist() == [5000.0, 1000.0]


@pytest.mark.parametrize("zones", [1, 2, 3, 4])
def test_zone_shares_are_whole_and_add_up(zones: int) -> None:
    parts = [zone_share(16_001.0, z, zones) for z in range(zones)]
    assert sum(parts) == 16_001.0
    assert all(part == int(part) for part in parts)
    assert max(parts) - min(parts) < zones
