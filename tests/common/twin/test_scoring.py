# SPDX-License-Identifier: Apache-2.0
"""Choosing: sampling, rotation, ties, and agreement of the scores with what is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_common.cluster import P_DURATION, U_PODS, fits
from shoal_common.errors import InputError
from shoal_common.twin.batch import TwinConfig
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.placement import place
from shoal_common.twin.scenarios import NODE_CLASSES, Scenario, Workload
from shoal_common.twin.scoring import HAND, KUBE_136, SCORER_IDS, choose, find_nodes
from shoal_common.twin.state import D_RATE, J_TERM, V_POD, V_ROTATION, State

NAMES = tuple(name for name in SCORER_IDS if name != "random")


@pytest.fixture(scope="module")
def wide() -> VectorEnv:
    """250 equal nodes: kube-scheduler looks for 120."""
    scenario = Scenario("wide", ((NODE_CLASSES["old-cpu"], 250),), Workload((0.5, 0.3, 0.2, 0.0)), 600.0)
    return VectorEnv([scenario], [1], config=TwinConfig(track=False))


def test_the_window_is_as_long_as_it_must_be_and_rotates(wide: VectorEnv) -> None:
    s, p = wide.state, int(wide.state.env[0, V_POD])
    s.env[0, V_ROTATION] = 200
    assert find_nodes(s, 0, p, KUBE_136) == 120
    assert s.found[0, :120].tolist() == [(200 + i) % 250 for i in range(120)]
    assert s.env[0, V_ROTATION] == 70
    assert find_nodes(s, 0, p, HAND) == 250
    assert s.env[0, V_ROTATION] == 70


def test_ties_fall_anywhere_in_the_window(wide: VectorEnv) -> None:
    s, p = wide.state, int(wide.state.env[0, V_POD])
    chosen = []
    for _ in range(3000):
        s.env[0, V_ROTATION] = 10
        chosen.append(choose(s, 0, p, KUBE_136, np.ones(4)))
    counts = np.bincount(chosen, minlength=250)
    assert counts[10:130].min() > 5
    assert counts[10:130].sum() == 3000
    assert counts[10:130].max() < 60


@pytest.mark.parametrize("column", range(len(NAMES)), ids=NAMES)
def test_the_plugin_columns_agree_with_what_is_chosen(busy: Scenario, column: int) -> None:
    env, clear = VectorEnv([busy], [4], scorers=NAMES), 0
    for _ in range(150):
        obs = env.observe()
        score = np.where(obs.mask[0, :, 0], obs.plugin[0, :, column], -np.inf)
        best = np.flatnonzero(score == score.max())
        action = env.choose({NAMES[column]: 1.0})
        assert action[0] in best
        clear += len(best) == 1
        env.act(action)
        if env.done[0]:
            break
    assert clear > 10


def test_lookahead_is_the_real_change(busy: Scenario) -> None:
    env = VectorEnv([busy], [4])
    env.run({"kube@1.36": 1.0}, 60)
    compared = 0
    for _ in range(20):
        expected = env.lookahead()[0]
        obs = env.observe()
        p = int(env.state.env[0, V_POD])
        for n in np.flatnonzero(obs.mask[0, :, 0]):
            s = State(*(a.copy() for a in env.state))
            before = s.rates[0, n, J_TERM : J_TERM + 4].copy()
            place(s, 0, p, n)
            change = s.rates[0, n, J_TERM : J_TERM + 4] - before
            duration, rate = s.pods[0, p, P_DURATION], s.pods[0, p, D_RATE]  # a service's rate is 1
            stay = min(300.0, duration / rate)
            norm = 1 - np.exp(-300.0 / 200.0)
            reward = 4.0 * env.nodes * change * (1 - np.exp(-stay / 200.0)) / norm
            assert np.allclose(expected[n], np.clip(reward, -6, 6), rtol=1e-5, atol=1e-6)
            compared += 1
        assert (expected[~obs.mask[0, :, 0]] == 0).all()
        assert np.allclose(env.lookahead(believed=True)[0], expected, rtol=1e-5, atol=1e-6)
        env.run({"kube@1.36": 1.0}, 1)
    assert compared > 20


def test_infeasible_actions_fall_to_the_default(busy: Scenario) -> None:
    one, two = (VectorEnv([busy], [4]) for _ in range(2))
    for _ in range(60):
        obs = one.observe()
        full = np.flatnonzero(~obs.mask[0, :, 0])
        action = np.array([full[0] if len(full) else 10_000])
        one.act(action, np.full((1, 2), 0.5, np.float32))
        two.act(np.array([-1]))
    assert np.array_equal(one.state.env, two.state.env)
    assert np.array_equal(one.state.use, two.state.use)


def test_the_mask_is_what_fits(busy: Scenario) -> None:
    env = VectorEnv([busy], [8])
    for _ in range(80):
        obs, s = env.observe(), env.state
        pod = s.pods[0, int(s.env[0, V_POD])]
        expected = [fits(s.node[0, n], s.use[0, n], s.gpu[0, n], pod) for n in range(env.nodes)]
        assert obs.mask[0, :, 0].tolist() == expected
        assert obs.mask.any()
        assert np.array_equal(env.cluster(0).feasible(pod), obs.mask[0, :, 0])
        env.act(env.choose({"random": 1.0}))
    assert env.state.use[0, :, U_PODS].sum() > 0


def test_an_unknown_scorer_is_one_line() -> None:
    with pytest.raises(InputError, match="unknown"):
        VectorEnv([Scenario("x", ((NODE_CLASSES["gpu"], 1),))], [1], scorers=("best",))
