# SPDX-License-Identifier: Apache-2.0
"""Rates, windows and what is measured, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal_client.collect.measured import Measured, PodUse
from shoal_client.experience.reward import NodeRates
from shoal_client.experience.store import ExperienceStore
from shoal_common.cluster import P_CLASS, P_CPU, P_CPU_USE, P_IO_USE, P_SLA, POD_COLUMNS
from shoal_common.tables import COMPUTE

NORM = 200 * (1 - math.exp(-1.5))


def _row(cpu_use, request=None, io=0.0):
    row = np.zeros(POD_COLUMNS)
    row[P_CPU], row[P_CPU_USE], row[P_IO_USE] = request or cpu_use, cpu_use, io
    row[P_CLASS], row[P_SLA] = COMPUTE, 1.5
    return row


def _name(uid):
    return "default", uid


@pytest.fixture
def rates(tmp_path, make_world):
    """Four empty nodes of 16 cores, 100 to 300 W, a tenth of it when empty."""
    with ExperienceStore(tmp_path) as store:
        yield NodeRates(make_world(store).live)


def _watts(x):
    return 100 + 200 * (2 * x - x**1.4)


def test_a_window_starts_at_the_rate_before_it_and_is_discounted(rates):
    """One compute pod of 4 cores alone; after 100 s another of 4 joins and stays."""
    window = rates.open("a", _name("a"), "node-0", _row(4_000.0), 0.0)
    rates.placed("b", _name("b"), "node-0", _row(4_000.0), 100.0)
    credit = rates.close(window, 1_000.0)
    span = 4 * (300 - 10)
    early, late = 200 * (1 - math.exp(-0.5)), 200 * (math.exp(-0.5) - math.exp(-1.5))
    energy = -(early * (_watts(4 / 16) - 10) + late * (_watts(8 / 16) - 10)) / span
    assert credit.seconds == 300
    assert credit.watts == pytest.approx((100 * _watts(4 / 16) + 200 * _watts(8 / 16)) / 300)
    assert credit.reward[2] == pytest.approx(energy * 16 / NORM)
    assert credit.reward[3] == pytest.approx(energy * 16 / NORM / 4)
    slow_alone, slow_with = 1.0, 1 + 0.45 * 4 / 16  # interference of like with like
    assert credit.slowdown == pytest.approx((100 * slow_alone + 200 * slow_with) / 300)
    useful = early * 4 + late * 2 * 4 / slow_with
    assert credit.reward[0] == pytest.approx(-((early + late) * 16 - useful) / 64 * 16 / NORM)
    assert credit.reward[1] == 0


def test_the_second_pods_window_counts_only_what_it_changed(rates):
    rates.placed("a", _name("a"), "node-0", _row(4_000.0), 0.0)
    window = rates.open("b", _name("b"), "node-0", _row(4_000.0), 10.0)
    credit = rates.close(window, 1_000.0)
    gained = 2 * 4 / (1 + 0.45 * 4 / 16) - 4
    assert credit.reward[0] == pytest.approx(gained / 64 * 16)
    assert credit.reward[2] == pytest.approx(-(_watts(8 / 16) - _watts(4 / 16)) / 1_160 * 16)


def test_quality_is_lost_where_pods_are_slower_than_they_allow(rates):
    """Two compute pods that want 12 cores each share 16; each allows 1.2."""
    rows = [_row(12_000.0), _row(12_000.0)]
    for row in rows:
        row[P_SLA] = 1.2
    rates.placed("a", _name("a"), "node-0", rows[0], 0.0)
    window = rates.open("b", _name("b"), "node-0", rows[1], 0.0)
    credit = rates.close(window, 300.0)
    assert credit.slowdown == pytest.approx(1 + 0.45 * 12 / 16)
    loss = 2 * (credit.slowdown / 1.2 - 1)
    assert credit.reward[1] == pytest.approx(-2 * loss / (64 / 2.5) * 16)


def test_case_43_a_pod_that_ended_after_the_sample_takes_its_share_with_it(rates):
    """koord#490: a terminated pod still stands in what the node uses."""
    for uid, use in (("a", 2_000.0), ("b", 6_000.0)):
        rates.placed(uid, _name(uid), "node-0", _row(use), 0.0)
    rates.measured({"node-0": Measured(cpu_millicores=4_000.0)}, 60.0)
    assert rates.use("node-0") == {"a": (1_000.0, 0.0), "b": (3_000.0, 0.0)}
    rates.removed("b", 61.0)
    window = rates.open("c", _name("c"), "node-0", _row(2_000.0), 62.0)
    credit = rates.close(window, 400.0)
    assert credit.watts == pytest.approx(_watts(3 / 16))  # 1 of a as measured, 2 of c as its app uses


def test_a_pod_that_is_measured_itself_uses_what_it_uses_and_the_rest_is_shared(rates):
    for uid in ("a", "b", "c", "late"):
        rates.placed(uid, _name(uid), "node-0", _row(1_000.0, io=1.0), 0.0)
    told = {_name("a"): PodUse(500.0), _name("b"): PodUse(None), _name("c"): PodUse(math.nan)}
    rates.measured({"node-0": Measured(cpu_millicores=4_500.0, io=1.5, pods=told)}, 60.0)
    assert rates.use("node-0") == {"a": (500.0, 0.5), "b": (2_000.0, 0.5), "c": (2_000.0, 0.5)}


def test_what_is_measured_beside_the_pods_is_load_of_the_node(rates):
    told = {_name("a"): PodUse(1_000.0)}
    window = rates.open("a", _name("a"), "node-0", _row(1_000.0), 0.0)
    rates.measured({"node-0": Measured(cpu_millicores=3_000.0, pods=told)}, 0.0)
    assert rates.close(window, 300.0).watts == pytest.approx(_watts(3 / 16))


def test_measured_watts_scale_the_curve_until_the_next_measurement(rates):
    window = rates.open("a", _name("a"), "node-0", _row(4_000.0), 0.0)
    measured = Measured(cpu_millicores=4_000.0, watts=1.5 * _watts(4 / 16))
    rates.measured({"node-0": measured}, 0.0)
    rates.placed("b", _name("b"), "node-0", _row(4_000.0), 100.0)
    credit = rates.close(window, 300.0)
    assert credit.watts == pytest.approx(1.5 * (100 * _watts(4 / 16) + 200 * _watts(8 / 16)) / 300)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -5.0])
def test_a_missing_measurement_is_no_idle_node(rates, value):
    window = rates.open("a", _name("a"), "node-0", _row(4_000.0), 0.0)
    rates.measured({"node-0": Measured(cpu_millicores=value, io=value, watts=value)}, 0.0)
    rates.measured({}, 100.0)
    assert rates.close(window, 300.0).watts == pytest.approx(_watts(4 / 16))


def test_a_node_that_is_not_there_gives_no_reward_and_costs_no_crash(rates):
    assert rates.close(rates.open("a", _name("a"), "gone", _row(1.0), 0.0), 300.0).reward is None
    rates.removed("a", 301.0)
    window = rates.open("b", _name("b"), "node-0", _row(1.0), 0.0)
    del rates._nodes.nodes["node-0"]
    rates.measured({}, 10.0)
    assert rates.close(window, 300.0).reward is None


def test_times_that_run_backwards_add_nothing(rates):
    window = rates.open("a", _name("a"), "node-0", _row(4_000.0), 100.0)
    rates.placed("b", _name("b"), "node-0", _row(1.0), 50.0)
    credit = rates.close(window, 90.0)
    assert (credit.reward, credit.seconds) == (None, 0.0)


def test_what_costs_is_added_once_and_all_is_clipped(rates):
    rewards = []
    for uid, cost in (("a", False), ("b", True)):
        window = rates.open(uid, _name(uid), "node-0", _row(4_000.0), 0.0)
        rewards.append(rates.close(window, 300.0, cost=cost).reward)
        rates.removed(uid, 300.0)
    assert rewards[0][:3] == rewards[1][:3]
    assert rewards[0][3] - rewards[1][3] == pytest.approx(4 * 60 / (64 / 2.5) * 16 / NORM)
    large = rates.open("c", _name("c"), "node-0", _row(1.0), 0.0)
    large.integral -= 1e6
    assert rates.close(large, 300.0).reward == (-6.0, -6.0, -6.0, -6.0)


def test_a_cluster_at_rest_keeps_nothing_of_its_nodes(rates):
    window = rates.open("a", _name("a"), "node-0", _row(4_000.0), 0.0)
    rates.close(window, 300.0)
    rates.removed("a", 300.0)
    assert not rates._state
    assert not rates._where
