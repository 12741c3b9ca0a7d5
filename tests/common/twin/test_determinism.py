# SPDX-License-Identifier: Apache-2.0
"""The same seed gives the same bits: alone, in a batch, in two threads. Perturbations change only beliefs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shoal_common.twin import env as env_module
from shoal_common.twin.batch import Perturbation, RewardHorizon, TwinConfig
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import Scenario

MIX = {"kube@1.36": 0.5, "random": 0.5}


def run(scenarios: list[Scenario], seeds: list[int], config: TwinConfig | None = None) -> VectorEnv:
    env = VectorEnv(scenarios, seeds, config=config, scorers=("class-aware",))
    for _ in range(40):
        env.step(env.choose(MIX))
    env.run(MIX)
    return env


def same(a: VectorEnv, i: int, b: VectorEnv, j: int) -> None:
    for name in ("env", "random"):
        assert np.array_equal(getattr(a.state, name)[i], getattr(b.state, name)[j])
    nodes = min(a.nodes, b.nodes)
    for name in ("use", "gpu", "zone", "rates", "features"):
        assert np.array_equal(getattr(a.state, name)[i, :nodes], getattr(b.state, name)[j, :nodes])
    decisions, more = int(a.decision[i]), int(b.decision[j])
    assert decisions == more
    assert np.array_equal(a.state.decisions[i, :decisions], b.state.decisions[j, :decisions])


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_batch_is_its_clusters_alone(busy: Scenario, calm: Scenario, share: float) -> None:
    config = TwinConfig(perturbation=Perturbation(share, seed=5))
    scenarios, seeds = [busy, calm, busy, calm], [1, 2, 3, 4]
    batch = run(scenarios, seeds, config)
    for b, (scenario, seed) in enumerate(zip(scenarios, seeds, strict=True)):
        same(batch, b, run([scenario], [seed], config), 0)


def test_two_threads_give_the_bits_of_one(calm: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    size = env_module.SPLIT_FROM + 1
    results = []
    for cores in (1, 2):
        monkeypatch.setattr(env_module, "CORES", cores)
        results.append(run([calm] * size, list(range(size))))
    for b in range(size):
        same(results[0], b, results[1], b)


def test_reset_repeats_the_episode(busy: Scenario) -> None:
    env = VectorEnv([busy], [7])
    first = env.observe()
    env.run(MIX)
    end = env.state.env.copy()
    again = env.reset()
    for f in dataclasses.fields(first):
        assert np.array_equal(getattr(first, f.name), getattr(again, f.name))
    env.run(MIX)
    assert np.array_equal(env.state.env, end)


def test_another_seed_is_another_episode(calm: Scenario) -> None:
    one, two = (run([calm], [seed]) for seed in (1, 2))
    assert one.outcome(0) != two.outcome(0)


def test_a_perturbation_changes_only_what_is_believed(busy: Scenario) -> None:
    config = TwinConfig(perturbation=Perturbation(0.3, seed=1))
    true, wrong = run([busy], [1]), run([busy], [1], config)
    assert true.outcome(0) == wrong.outcome(0)
    assert np.array_equal(true.rewards("measurement")[0], wrong.rewards("measurement")[0])
    assert not np.array_equal(true.rewards()[0], wrong.rewards()[0])
    ratio = wrong.state.believed[0] / np.where(true.state.node[0] == 0, 1, true.state.node[0])
    assert np.abs(ratio[true.state.node[0] != 0] - 1).max() <= 0.3
    assert not np.array_equal(wrong.state.physics[0, 0], wrong.state.physics[0, 1])


def test_tracking_does_not_change_what_happens(busy: Scenario) -> None:
    tracked = run([busy], [1])
    untracked = run([busy], [1], TwinConfig(track=False, horizon=RewardHorizon(60.0, 30.0)))
    one, other = (dataclasses.astuple(x.outcome(0)) for x in (tracked, untracked))
    for a, b in zip(one, other, strict=True):  # sums are cut at other times: the last bits may differ
        assert a == pytest.approx(b, rel=1e-9)
    assert tracked.decision == untracked.decision
