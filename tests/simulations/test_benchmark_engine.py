# SPDX-License-Identifier: Apache-2.0
"""The engine benchmark's figures: ratios, requirements, and actions that are real placements."""

from __future__ import annotations

import time

import numpy as np

from shoal_common.twin.env import VectorEnv
from shoal_simulations.benchmarks.engine import Figure, cluster, feasible, timed_steps


def test_a_figure_has_its_ratio_and_whether_it_holds() -> None:
    row = Figure("x", 90.0, "1/s", 80.0, 20.0, "peer").row()
    assert (row["ratio"], row["holds"]) == (4.5, True)
    assert Figure("x", 79.0, "1/s", 80.0).row()["holds"] is False
    missing = Figure("x", None, "1/s", 80.0, 20.0, why="no data").row()
    assert (missing["ratio"], missing["holds"], missing["why"]) == (None, None, "no data")


def test_steps_are_real_placements() -> None:
    env = VectorEnv([cluster(50)] * 2, [1, 2])
    obs = env.observe()
    action = feasible(obs, np.random.default_rng(0))
    assert obs.mask[np.arange(2), action, 0].all()
    timed_steps([env], 5, time.process_time, np.random.default_rng(0))
    assert (env.decision == 5).all()
    assert env.nodes == 50
    assert cluster(200).cores == 4 * cluster(50).cores
