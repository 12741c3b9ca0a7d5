# SPDX-License-Identifier: Apache-2.0
"""Off-policy estimates against a truth that is known because we made it, and their intervals' coverage."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_client.experience.offpolicy import estimate, evaluate, mean_with_interval, ridge, softened
from shoal_client.experience.records import DecisionRecord, Result, Seen, Stored
from shoal_common.cluster import POD_COLUMNS
from shoal_common.errors import InputError
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.base import Scores

ARMS = 4


class Bandit:
    """Contexts x in [0, 1], ARMS arms, reward = table(arm) x + noise; everything about it is known."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.gain = np.array([-1.0, -0.4, 0.2, 0.8])

    def draw(self, size, behaviour=1.5, target=-0.5, noise=0.5):
        x = self.rng.random(size)
        mean = self.gain[None] * x[:, None]
        mu, pi = (_softmax(strength * mean) for strength in (behaviour, target))
        arm = (mu.cumsum(-1) < self.rng.random((size, 1))).sum(-1).clip(0, ARMS - 1)
        rows = np.arange(size)
        reward = mean[rows, arm] + noise * self.rng.normal(size=size)
        return reward, mu[rows, arm], pi[rows, arm], mean, pi, arm


def _softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _truth():
    bandit = Bandit(99)
    _, _, _, mean, pi, _ = bandit.draw(2_000_000)
    return float((pi * mean).sum(-1).mean())


TRUTH = _truth()


def test_every_estimator_finds_the_truth():
    reward, mu, pi_taken, mean, pi, arm = Bandit(0).draw(200_000)
    rows = np.arange(len(reward))
    found = estimate(reward, mu, pi_taken, mean[rows, arm], (pi * mean).sum(-1))
    for name in ("ips", "snips", "dm", "dr"):
        assert getattr(found, name).value == pytest.approx(TRUTH, abs=0.01)
    assert found.logged.value > TRUTH  # the logging policy was the better one
    assert found.gain.high < 0
    assert 0 < found.effective_sample_size < found.used == 200_000


@pytest.mark.parametrize(("name", "least"), [("ips", 0.92), ("snips", 0.92), ("dm", 0.92), ("dr", 0.92)])
def test_intervals_cover_the_truth_as_often_as_they_say(name, least):
    bandit, covered, trials = Bandit(1), 0, 400
    for _ in range(trials):
        reward, mu, pi_taken, mean, pi, arm = bandit.draw(600)
        rows = np.arange(len(reward))
        found = getattr(estimate(reward, mu, pi_taken, mean[rows, arm], (pi * mean).sum(-1)), name)
        covered += found.low <= TRUTH <= found.high
    assert least <= covered / trials <= 0.985


def test_doubly_robust_needs_only_one_of_the_two_to_be_right():
    reward, mu, pi_taken, mean, pi, arm = Bandit(2).draw(100_000)
    rows = np.arange(len(reward))
    nonsense = np.full_like(reward, 3.0)
    wrong_model = estimate(reward, mu, pi_taken, nonsense, nonsense)
    assert wrong_model.dr.value == pytest.approx(TRUTH, abs=0.05)
    assert wrong_model.dm.value == 3.0
    wrong_mu = estimate(reward, np.full_like(mu, 0.25), pi_taken, mean[rows, arm], (pi * mean).sum(-1))
    assert wrong_mu.dr.value == pytest.approx(TRUTH, abs=0.02)
    assert abs(wrong_mu.ips.value - TRUTH) > 0.05


def test_a_good_model_makes_doubly_robust_narrower_than_weights_alone():
    reward, mu, pi_taken, mean, pi, arm = Bandit(3).draw(5_000, target=-3.0, noise=0.05)
    rows = np.arange(len(reward))
    found = estimate(reward, mu, pi_taken, mean[rows, arm], (pi * mean).sum(-1))
    assert found.dr.high - found.dr.low < (found.ips.high - found.ips.low) / 2


def test_an_interval_knows_that_neighbours_in_time_are_alike():
    """AR(1) with correlation 0.9: intervals from single values cover far too seldom, ours nearly enough."""
    rng, blocks, single, trials = np.random.default_rng(4), 0, 0, 300
    for _ in range(trials):
        values = np.zeros(2_000)
        for t in range(1, len(values)):
            values[t] = 0.9 * values[t - 1] + rng.normal()
        found = mean_with_interval(values)
        blocks += found.low <= 0 <= found.high
        single += abs(values.mean()) < 1.96 * values.std() / np.sqrt(len(values))
    assert single / trials < 0.5
    assert blocks / trials > 0.85


def test_small_samples_have_no_interval():
    assert np.isnan(mean_with_interval(np.ones(5)).low)
    assert np.isnan(mean_with_interval(np.zeros(0)).value)


@pytest.mark.parametrize("propensity", [0.0, np.nan, 1.5])
def test_a_propensity_that_is_none_is_refused(propensity):
    ones = np.ones(3)
    with pytest.raises(InputError, match="propensity"):
        estimate(ones, np.array([0.5, propensity, 0.5]), ones, ones, ones)


def test_softened_choices():
    logits = np.array([[[1.0], [2.0], [3.0]], [[1.0], [np.nan], [0.0]], [[1.0], [2.0], [3.0]]], np.float32)
    mask = np.array([[[True], [True], [False]], [[True], [True], [True]], [[False], [False], [False]]])
    np.testing.assert_array_equal(softened(logits, mask, 0.0), [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(softened(logits, mask, 1.0)[0], [1 / (1 + np.e), np.e / (1 + np.e), 0])


def test_ridge_recovers_coefficients_and_leaves_the_mean_alone():
    rng = np.random.default_rng(5)
    x = np.c_[np.ones(5_000), rng.normal(size=(5_000, 3)), np.zeros(5_000)]
    y = x @ [7.0, 1.0, -2.0, 0.0, 0.0] + 0.1 * rng.normal(size=5_000)
    np.testing.assert_allclose(ridge(x, y), [7.0, 1.0, -2.0, 0.0, 0.0], atol=0.02)
    assert (ridge(x[:0], y[:0]) == 0).all()


class ByFeature:
    """A scorer that prefers nodes by one feature."""

    def __init__(self, sign):
        self.sign = sign

    def score(self, obs):
        logits = self.sign * obs.node[..., :1]
        return Scores(logits, np.ones((*logits.shape, 2), np.float32))


def _log(size, rng, behaviour=2.0, unknown=0.2):
    """Logged decisions where the reward is linear in the chosen node's first feature."""
    rows, best, worst = [], [], []
    for i in range(size):
        n = int(rng.integers(2, 20))
        node = rng.random((n, FN)).astype(np.float16)
        x = node[:, 0].astype(float)
        mu = _softmax(behaviour * x[None])[0]
        taken = int(rng.choice(n, p=mu))
        known = rng.random() > unknown
        seen = Seen(
            node, np.zeros((n, FP), np.float16), np.zeros(FT, np.float16), np.zeros(FC, np.float16),
            np.ones((n, 1), np.bool_), np.zeros((n, 1), np.float32), mu[:, None].astype(np.float32),
            ("",) * n,
        )  # fmt: skip
        reward = -(1 - x[taken]) + 0.1 * rng.normal()
        result = Result(
            "running", action=taken, propensity=float(mu[taken]) if known else np.nan,
            reward=(reward, 0.0, 0.0, 0.0), learnable=True,
        )  # fmt: skip
        decision = DecisionRecord(
            i, "u", 1, float(i), "extender", "s", "active", "d", "t", "a", np.zeros(POD_COLUMNS), seen, taken
        )
        rows.append(Stored(decision, result, i + 1))
        best.append(-(1 - x.max()))
        worst.append(-(1 - x.min()))
    return rows, float(np.mean(best)), float(np.mean(worst))


def test_candidates_are_ranked_from_what_another_policy_logged():
    rows, best, worst = _log(1_500, np.random.default_rng(6))
    rows.append(Stored(rows[0].decision))  # open
    weights = ObjectiveWeights(1.0, 0.0, 0.0, 0.0)
    good, bad = (evaluate(rows, ByFeature(sign), weights) for sign in (1, -1))
    assert good.used + good.excluded["propensity not known"] == 1_500
    assert good.excluded["open or not learnable"] == 1
    assert good.dr.low <= best <= good.dr.high
    assert bad.dr.low <= worst <= bad.dr.high
    assert good.gain.low > 0 > bad.gain.high
    assert good.dm.value == pytest.approx(best, abs=0.05)


def test_the_whole_way_from_records_to_intervals_covers_the_truth():
    """The best of n uniform features is n / (n + 1) on average, the worst 1 / (n + 1); n is 2 to 19."""
    n, rng, covered = np.arange(2, 20), np.random.default_rng(8), np.zeros(2)
    truth = (n / (n + 1)).mean() - 1, (1 / (n + 1)).mean() - 1
    for _ in range(10):
        rows, *_ = _log(200, rng)
        for k, sign in enumerate((1, -1)):
            found = evaluate(rows, ByFeature(sign), ObjectiveWeights(1.0, 0.0, 0.0, 0.0)).dr
            covered[k] += found.low <= truth[k] <= found.high
    assert (covered >= 7).all()  # of 10; at 95 % fewer come in 1 of 1,000 tests


def test_without_known_propensities_nothing_is_claimed():
    rows, *_ = _log(30, np.random.default_rng(7), unknown=1.1)
    found = evaluate(rows, ByFeature(1))
    assert found.used == 0
    assert np.isnan(found.dr.value)
    assert found.excluded["propensity not known"] == 30
    assert evaluate([], ByFeature(1)).used == 0
