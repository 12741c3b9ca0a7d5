# SPDX-License-Identifier: Apache-2.0
"""The decision path: features as the twin's kernels fill them, kept tokens, choices and their chances."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal_common.cluster import Mask
from shoal_common.decide import Context, Embeddings, decide, observe
from shoal_common.observation import F32, Observation
from shoal_common.policy import PolicyArtifact
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.artifact import ArtifactScorer
from shoal_common.scorers.base import Scores, select, taken_quotas
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import NodeClass, Scenario
from shoal_common.twin.state import V_CHARGE, V_CLOCK, V_PENDING, V_PERIOD, V_POD, V_PRICE

W = ObjectiveWeights().array()
NODES = ((NodeClass("a", 16, 64), 5), (NodeClass("g", 32, 128, gpus=4), 3))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> ArtifactScorer:
    import torch

    from shoal_common.nn.set_attention import SetActor

    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("decide") / "artifact"
    return PolicyArtifact.save(path, SetActor(16, quota_bounds=(0.5, 1.5)), {"test": True}).scorer()


def twin() -> VectorEnv:
    env = VectorEnv([Scenario("twin", NODES, seconds=3600.0)], [5])
    env.run({"kube@1.36": 1.0}, 60)
    return env


def ask(env: VectorEnv, rows: list[int] | None = None, features: F32 | None = None) -> Observation:
    """The twin's current decision by the decision path."""
    state, cluster = env.state.env[0], env.cluster(0)
    pod = env.state.pods[0, int(state[V_POD])]
    context = Context(
        pending=float(state[V_PENDING]),
        price=float(state[V_PRICE]),
        charge=float(state[V_CHARGE]),
        phase=2 * math.pi * float(state[V_CLOCK]) / float(state[V_PERIOD]),
    )
    chosen = None if rows is None else np.array(rows)
    mask = cluster.feasible(pod)[:, None]
    return observe(cluster, pod, mask if rows is None else mask[rows], W, context, chosen, features)


def test_an_observation_equals_the_twins_to_the_bit() -> None:
    env = twin()
    for _ in range(25):
        seen, asked = env.observe(), ask(env)
        for part in ("node", "pair", "task", "ctx", "w", "mask", "plugin"):
            np.testing.assert_array_equal(getattr(seen, part), getattr(asked, part), part)
        env.run({"random": 1.0}, 1)


def test_rows_are_the_same_decision_of_fewer_candidates() -> None:
    env = twin()
    rows = [6, 0, 3]
    whole, part = ask(env), ask(env, rows)
    np.testing.assert_array_equal(whole.node[:, rows], part.node)
    np.testing.assert_array_equal(whole.pair[:, rows], part.pair)
    np.testing.assert_array_equal(whole.ctx, part.ctx)


def test_kept_tokens_decide_as_a_full_encoding(scorer: ArtifactScorer) -> None:
    env, kept = twin(), Embeddings(scorer)
    kept.update(env.cluster(0), np.zeros(0, np.int64))
    for _ in range(12):
        fresh = decide(scorer, ask(env))
        by_tokens = decide(kept.at(), ask(env, features=kept.features))
        np.testing.assert_allclose(fresh.scores.logits, by_tokens.scores.logits, atol=1e-6)
        assert fresh.action.tolist() == by_tokens.action.tolist()
        before = env.cluster(0).use.copy()
        env.run({"kube@1.36": 1.0}, 1)
        changed = np.flatnonzero((before != env.cluster(0).use).any(-1))
        kept.update(env.cluster(0), changed)
        np.testing.assert_array_equal(kept.features, env.observe().node[0])


def test_a_longer_cluster_is_encoded_as_a_whole(scorer: ArtifactScorer) -> None:
    kept = Embeddings(scorer)
    small = VectorEnv([Scenario("s", NODES[:1])], [1]).cluster(0)
    kept.update(small, np.zeros(0, np.int64))
    large = VectorEnv([Scenario("l", NODES)], [1]).cluster(0)
    kept.update(large, np.zeros(0, np.int64))
    assert kept.features.shape[0] == len(kept.tokens) == 8
    assert kept.at(np.array([2, 7])).score(ask(twin(), [2, 7])).logits.shape == (1, 2, 1)


def test_greedy_decisions_are_what_select_takes(scorer: ArtifactScorer) -> None:
    obs = twin().observe()
    decision, scores = decide(scorer, obs), scorer.score(obs)
    assert decision.action.tolist() == select(scores, obs.mask).tolist()
    np.testing.assert_array_equal(decision.quota, taken_quotas(scores, decision.action))
    assert decision.propensities is None


class Fixed:
    """Scores that a test wrote down."""

    def __init__(self, *logits: float) -> None:
        self._logits = np.array([logits], np.float32)[..., None]

    def score(self, obs: Observation) -> Scores:
        return Scores(self._logits, np.ones((*self._logits.shape, 2), np.float32))


def of(mask: Mask) -> Observation:
    """An observation of which only the mask matters."""
    zeros = np.zeros((1, mask.shape[1], 0), np.float32)
    return Observation(zeros, zeros, zeros[:, 0], zeros[:, 0], W[None], mask, zeros)


def test_exploration_draws_with_the_chances_it_states() -> None:
    mask = np.array([True, True, False, True])[None, :, None]
    rng, taken = np.random.default_rng(0), np.zeros(4)
    scorer = Fixed(0.0, math.log(2.0), 9.0, 0.0)
    for _ in range(4000):
        decision = decide(scorer, of(mask), 0.4, rng)
        taken[int(decision.action[0])] += 1
    assert decision.propensities is not None
    expected = [0.4 * 0.25, 0.6 + 0.4 * 0.5, 0.0, 0.4 * 0.25]
    np.testing.assert_allclose(decision.propensities[0], expected, atol=1e-12)
    np.testing.assert_allclose(taken / 4000, expected, atol=0.03)


@pytest.mark.parametrize("exploration", [None, 0.5])
def test_nothing_feasible_and_nothing_finite_abstain(exploration: float | None) -> None:
    rng = np.random.default_rng(0)
    empty, full = np.zeros((1, 2, 1), np.bool_), np.ones((1, 2, 1), np.bool_)
    assert decide(Fixed(1.0, 2.0), of(empty), exploration, rng).action.tolist() == [-1]
    assert decide(Fixed(math.nan, 2.0), of(full), exploration, rng).action.tolist() == [-1]
    assert decide(Fixed(math.nan, 2.0), of(full), exploration, rng).quota.tolist() == [[1, 1]]
