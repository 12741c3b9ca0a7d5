# SPDX-License-Identifier: Apache-2.0
"""GPUs and MIG instances to one value of a node, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shoal_client.collect.features import LIVE_FEATURES
from shoal_client.collect.gpus import DeviceValue, by_device, device_value, is_partitioned, reduce, shares
from shoal_common.pods import NodeRecord

ACTIVE = next(f for f in LIVE_FEATURES if f.name == "gpu_active")
WHOLE = DeviceValue("GPU-0", 0, "", 7, 7, 0.5)


def instance(identity: str, slices: int, value: float, device: str = "GPU-1") -> DeviceValue:
    return DeviceValue(device, 1, identity, slices, 7, value)


@pytest.mark.parametrize(
    ("profile", "slices"),
    [("1g.5gb", 1), ("3g.20gb", 3), ("1g.5gb+me", 1), ("1c.3g.20gb", 3), ("7g.40gb", 7)],
)
def test_a_profile_tells_its_slices(profile: str, slices: int) -> None:
    found = device_value({"UUID": "GPU-1", "gpu": "1", "GPU_I_ID": "2", "GPU_I_PROFILE": profile}, 1.0)
    assert found == DeviceValue("GPU-1", 1, "2", slices, 7, 1.0)


def test_an_a30_has_four_slices() -> None:
    labels = {"UUID": "GPU-1", "modelName": "NVIDIA A30", "GPU_I_ID": "1", "GPU_I_PROFILE": "1g.6gb"}
    found = device_value(labels, 1.0)
    assert found is not None
    assert (found.slices, found.of) == (1, 4)
    assert device_value({"modelName": "NVIDIA A300"}, 1.0).of == 7


@pytest.mark.parametrize("blank", [2147483632, 2147483635, 140737488355328.0, 9.223372036854776e18, math.nan])
def test_what_dcgm_does_not_know_is_left_out(blank: float) -> None:
    assert device_value({"UUID": "GPU-1"}, blank) is None


def test_an_instance_counts_with_its_slices() -> None:
    devices = by_device([WHOLE, instance("1", 3, 1.0), instance("2", 1, 0.5)])
    assert devices is not None
    assert reduce(ACTIVE, devices) == pytest.approx((0.5 + (3 * 1.0 + 0.5) / 7) / 2)
    assert shares(devices) == pytest.approx((0.5, (3 * 1.0 + 0.5) / 4))


def test_the_whole_device_does_not_count_beside_its_instances() -> None:
    devices = by_device([replace(WHOLE, device="GPU-1"), instance("1", 7, 1.0)])
    assert devices is not None
    assert reduce(ACTIVE, devices) == 1.0


def test_a_series_that_exists_twice_makes_the_node_unknown() -> None:
    assert by_device([WHOLE, WHOLE]) is None


def test_without_devices_nothing_is_known() -> None:
    assert reduce(ACTIVE, {}) is None


def test_a_node_that_offers_instances_is_partitioned() -> None:
    assert is_partitioned(NodeRecord("n", allocatable={"nvidia.com/mig-1g.5gb": 7}))
    assert is_partitioned(NodeRecord("n", {"nvidia.com/gpu.product": "NVIDIA-H100-NVL-MIG-1g.12gb"}))
    assert not is_partitioned(NodeRecord("n", allocatable={"nvidia.com/mig-1g.5gb": 0, "nvidia.com/gpu": 8}))
