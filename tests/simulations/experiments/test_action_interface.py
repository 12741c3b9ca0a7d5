# SPDX-License-Identifier: Apache-2.0
"""The one-step placement problem by hand, and the short form of its experiment."""

import numpy as np
import pytest

from shoal_common.observation import NODE_FEATURES, TASK_FEATURES
from shoal_simulations.experiments.action_interface import draw, gap_share, run, uniform_choice


def column(table, values, name):
    return values[..., [feature.name for feature in table].index(name)].astype(float)


def test_the_reward_follows_from_what_is_seen():
    problem = draw(np.random.default_rng(0), 50)
    node, task = problem.obs.node, problem.obs.task
    cores = 64 * column(NODE_FEATURES, node, "cores")
    memory = cores * 16 * column(NODE_FEATURES, node, "memory_per_core")
    cpu = 1 - column(NODE_FEATURES, node, "cpu_free")
    cpu += 16 * column(TASK_FEATURES, task, "cpu_request")[:, None] / cores
    mem = 1 - column(NODE_FEATURES, node, "memory_free")
    mem += 64 * column(TASK_FEATURES, task, "memory_request")[:, None] / memory
    wanted = 1 - np.maximum(cpu, mem) - 0.5 * np.abs(cpu - mem)
    assert problem.reward == pytest.approx(wanted, abs=1e-5)
    feasible = problem.obs.mask[..., 0]
    assert (np.maximum(cpu, mem)[feasible] <= 1 + 1e-6).all()
    assert feasible.any(-1).all()


def test_random_is_zero_and_the_oracle_one():
    problem = draw(np.random.default_rng(0), 4000)
    mask = problem.obs.mask[..., 0]
    oracle = np.where(mask, problem.reward, -np.inf).argmax(-1)
    assert gap_share(problem, oracle) == pytest.approx((1.0, 1.0))
    random, _ = gap_share(problem, uniform_choice(problem.obs.mask, np.random.default_rng(1)))
    assert abs(random) < 0.03


def test_the_short_form_has_the_form_of_a_results_page():
    result = run(quick=True)
    assert result["name"] == "action_interface"
    (rows,) = result["metrics"].values()
    assert [row["learner"] for row in rows] == ["td3"] * 2 + ["literal_td3"] * 2 + ["wolpertinger"] * 2
    assert all(row.keys() == rows[0].keys() for row in rows)
    claim = result["claims"][0]
    assert claim["ci95"][0] <= claim["estimate"] <= claim["ci95"][1]
    assert claim["estimate"] > 0.5
    assert result["controls"][0]["holds"]
