# SPDX-License-Identifier: Apache-2.0
"""The contract of a step, and of outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_common.twin.batch import TwinConfig
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import Scenario, article, embedded_fleet, equal_nodes
from shoal_common.twin.state import V_TOTAL


def test_step_rewards_add_up_to_the_episode(busy: Scenario, calm: Scenario) -> None:
    env = VectorEnv([busy, calm], [1, 2], config=TwinConfig(track=False))
    sums = env.state.env[:, V_TOTAL : V_TOTAL + 4].copy()  # until the first decision
    while not env.done.all():
        obs, reward, terminated, truncated = env.step(np.array([-1, -1]))
        sums += reward
        assert not terminated.any()
        assert np.array_equal(truncated, env.done)
        assert np.array_equal(obs.mask.any((1, 2)), ~env.done)
    assert np.allclose(sums, env.state.env[:, V_TOTAL : V_TOTAL + 4], rtol=1e-4)
    env.step(np.array([0, 0]))  # nothing happens any more
    assert (env.clock == [busy.seconds, calm.seconds]).all()


def test_a_step_is_act_and_observe(calm: Scenario) -> None:
    one, two = (VectorEnv([calm] * 3, [1, 2, 3], scorers=("volcano",)) for _ in range(2))
    for _ in range(20):
        obs, _, _, _ = one.step(np.full(3, -1))
        two.act(np.full(3, -1))
        other = two.observe()
        for name in ("node", "pair", "task", "ctx", "mask", "plugin", "w"):
            assert np.array_equal(getattr(obs, name), getattr(other, name))


def test_observations_are_the_callers_to_keep(calm: Scenario) -> None:
    env = VectorEnv([calm], [1])
    kept = env.observe()
    before = kept.node.copy()
    env.step(np.array([0]))
    assert np.array_equal(kept.node, before)


def test_outcomes_are_plausible(calm: Scenario) -> None:
    env = VectorEnv([calm], [1])
    env.run({"kube@1.36": 1.0})
    found = env.outcome(0)
    assert -1.25 < found.composite < 0
    assert 0 < found.utilisation < 1
    assert found.success == 1.0
    assert (found.evictions, found.oom_kills) == (0, 0)
    assert 20 <= found.p99_latency_s <= calm.seconds
    assert found.p99_service_slowdown >= 1 / 1.15
    assert 9.5 < found.watts_per_node < 400


def test_scenarios_of_the_embedded_fleet() -> None:
    fleet = embedded_fleet()
    assert [len(s.node_rows) for s in fleet] == [24, 16, 32, 36]
    assert len(article().node_rows) == 200
    assert len(article(0.1).node_rows) == 20
    equal = equal_nodes(fleet[0])
    assert equal.cores == fleet[0].cores
    assert len({c.speed for c, _ in equal.nodes}) == 1


def test_seeds_must_match() -> None:
    with pytest.raises(InputError, match="one for each scenario"):
        VectorEnv([article(0.1)], [1, 2])
