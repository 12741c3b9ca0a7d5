# SPDX-License-Identifier: Apache-2.0
"""The soak in small: a virtual hour loses no decision, random events leave the true state."""

from __future__ import annotations

import pytest

from shoal_simulations.benchmarks.churn import Churn, ChurnConfig
from shoal_simulations.benchmarks.soak import slope, soak
from shoal_simulations.live_events import compare_with_scratch


@pytest.mark.e2e  # it exports a policy
def test_an_hour_loses_no_decision() -> None:
    config = ChurnConfig(nodes=20, hours=1.0, pods_per_second=0.05, mean_run_seconds=300.0, heartbeats=False)
    day = soak(config)
    assert day["decisions"] > 100
    assert (day["lost"], day["open"], day["untrue"]) == (0, 0, 0)
    assert sum(day["outcomes"].values()) == day["decisions"]
    assert day["outcomes"]["succeeded"] > 0.7 * day["decisions"]


def test_random_events_leave_the_true_state() -> None:
    found = compare_with_scratch(2_000)
    assert found["differ"] == 0


def test_the_churn_is_the_same_for_a_seed() -> None:
    def events(seed: int) -> list[tuple[str, str, str]]:
        seen: list[tuple[str, str, str]] = []
        config = ChurnConfig(nodes=3, hours=1.0)
        churn = Churn(
            config,
            lambda kind, event, content: seen.append((kind, event, content["metadata"]["name"])),
            lambda content: "node-00001",
            seed,
        )
        for _ in churn.run(1_800.0):
            pass
        return seen

    assert events(1) == events(1)
    assert events(1) != events(2)


def test_the_slope_is_of_the_hours_after_the_warm_up() -> None:
    hours = [float(hour) for hour in range(1, 13)]
    assert slope(hours, [100.0 * hour if hour < 7 else 700.0 + 2 * hour for hour in hours]) > 1.99
    assert slope([1.0, 2.0], [1.0, 2.0]) == 0.0
