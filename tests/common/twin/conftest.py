# SPDX-License-Identifier: Apache-2.0
"""Small clusters that see everything: load, failures, GPUs shared and whole, DPUs."""

from __future__ import annotations

import pytest

from shoal_common.twin.scenarios import NODE_CLASSES, Scenario, Workload


def _nodes(**counts: int) -> tuple:
    return tuple((NODE_CLASSES[name.replace("_", "-")], count) for name, count in counts.items())


@pytest.fixture(scope="session")
def busy() -> Scenario:
    """Seven nodes, overloaded and failing often."""
    return Scenario(
        "busy",
        _nodes(old_cpu=2, new_cpu=2, gpu=2, dpu=1),
        Workload((0.3, 0.2, 0.3, 0.2), load=0.9),
        seconds=3600.0,
        failures_per_node_day=40.0,
        repair_seconds=300.0,
        battery_wh=2000.0,
    )


@pytest.fixture(scope="session")
def calm() -> Scenario:
    """Five nodes without failures."""
    return Scenario("calm", _nodes(old_cpu=2, new_cpu=2, gpu=1), Workload(load=0.6), seconds=1800.0)
