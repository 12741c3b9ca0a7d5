# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.cluster import P_CLASS, P_CPU, P_GPUS
from shoal_common.twin.scenarios import NODE_CLASSES, Scenario, Workload, make_pods
from shoal_common.twin.state import T_ARRIVAL, T_WORK
from shoal_common.twin.traced import TRAINING_SEED, TRAINING_SHARE, Recorded


def trace(pods: int = 400, seed: int = 0) -> Recorded:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, pods)
    return Recorded(
        arrival_s=np.cumsum(rng.exponential(30.0, pods)),
        seconds=rng.lognormal(5.0, 1.0, pods),
        cpu_milli=rng.choice([500.0, 1000.0, 4000.0], pods),
        memory=rng.choice([1.0, 4.0], pods) * 2**30,
        gpu_milli=np.zeros(pods),
        gpus=np.zeros(pods),
        kind=kind,
    )


def scenario(recorded: Recorded, load: float = 0.6) -> Scenario:
    return Scenario("traced", ((NODE_CLASSES["new-cpu"], 4),), Workload(load=load), recorded=recorded)


@given(st.integers(0, 2**31), st.floats(0.1, 1.5))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_window_offers_the_load_and_keeps_the_order(seed: int, load: float) -> None:
    pods = make_pods(scenario(trace(), load), seed)
    times = pods[:, T_ARRIVAL]
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 7200.0
    offered = (
        np.array([(pods[:, P_CPU] * pods[:, T_WORK]).sum() / 128_000, pods[:, T_WORK].sum() / 440]) / 7200
    )
    last = np.array([pods[-1, P_CPU] * pods[-1, T_WORK] / 128_000, pods[-1, T_WORK] / 440]) / 7200
    assert offered.max() <= load + last.max() + 1e-9


def test_training_and_held_out_pods_come_from_different_parts() -> None:
    recorded = trace()
    cut = recorded.arrival_s[0] + TRAINING_SHARE * (recorded.arrival_s[-1] - recorded.arrival_s[0])
    offered, rng = np.array([64_000.0, 1e12, 0.0, 440.0]), np.random.default_rng(0)
    for _ in range(20):
        early, _ = recorded.window(offered, 7200.0, True, rng)
        late, _ = recorded.window(offered, 7200.0, False, rng)
        assert (recorded.arrival_s[early] < cut).all()
        assert (recorded.arrival_s[late] >= cut).all()


def test_a_seed_gives_the_same_pods_and_another_seed_others() -> None:
    own = scenario(trace())
    assert np.array_equal(make_pods(own, 7), make_pods(own, 7))
    assert not np.array_equal(make_pods(own, TRAINING_SEED)[:, T_WORK], make_pods(own, 7)[:, T_WORK])


@pytest.mark.parametrize("pods", [2, 3, 5])
def test_a_short_trace_goes_round_and_round(pods: int) -> None:
    rows = make_pods(scenario(trace(pods)), 1)
    assert len(rows) > 10 * pods
    assert set(rows[:, P_CLASS]) <= {0.0, 1.0}
    assert (rows[:, P_GPUS] == 0).all()
