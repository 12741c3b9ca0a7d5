# SPDX-License-Identifier: Apache-2.0
"""The gate by hand: three seeds, t(0.975, 2) = 4.302653, t(0.95, 2) = 2.919986."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from shoal_common.errors import InputError
from shoal_common.gate import (
    GATE_SEED,
    compare,
    evaluate,
    gain_percent,
    gains,
    interval,
    judge,
)
from shoal_common.reward import ObjectiveWeights
from shoal_common.twin.scenarios import embedded_fleet

T2, T2_ONE_SIDED = 4.302652729911275, 2.919985580353726
SHORT = [replace(s, seconds=1_200.0) for s in embedded_fleet()[:2]]
SEEDS = range(GATE_SEED, GATE_SEED + 4)


def test_interval_by_hand() -> None:
    found = interval([1.0, 2.0, 3.0])  # mean 2, sd 1, half width t / sqrt(3)
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2 - T2 / 3**0.5)
    assert found.high == pytest.approx(2 + T2 / 3**0.5)


def test_one_value_and_equal_values_have_no_width() -> None:
    assert interval([4.0]) == interval([4.0, 4.0, 4.0])


def test_gain_is_relative_to_the_size_of_a_negative_baseline() -> None:
    found = gain_percent([-0.30, -0.20], [-0.40, -0.20])  # 25 % and 0 %
    assert found.mean == pytest.approx(12.5)


def test_an_objective_of_nothing_gives_no_finite_gain() -> None:
    assert not any(map(math.isfinite, gains([-0.1, 0.0], [0.0, 0.0])))
    verdict = judge(gains([-0.1, -0.2, 0.0], [-0.1, -0.1, 0.0]))
    assert (verdict.passed, verdict.reason) == (False, "the twin gave no finite objective")


def test_the_verdict_is_one_sided_by_hand() -> None:
    verdict = judge([1.0, 2.0, 3.0])  # mean 2, standard error 1 / sqrt(3)
    assert verdict.low == pytest.approx(2 - T2_ONE_SIDED / 3**0.5)
    assert verdict.high == pytest.approx(2 + T2_ONE_SIDED / 3**0.5)
    assert (verdict.gain, verdict.passed, verdict.seeds) == (2.0, True, 3)
    assert not judge([1.0, 2.0, 3.0], least_gain=0.5).passed
    assert verdict.reason == "lower 95 % bound 0.31 % over 3 seeds is above 0 %"


def test_a_policy_against_itself_gains_nothing_and_does_not_pass() -> None:
    verdict = compare("kube@1.36", "kube@1.36", SHORT, SEEDS)
    assert (verdict.gain, verdict.low, verdict.high, verdict.passed) == (0.0, 0.0, 0.0, False)
    assert compare("kube@1.36", "kube@1.36", SHORT, SEEDS, least_gain=-1.0).passed


def test_a_better_policy_passes_and_is_worse_the_other_way_round() -> None:
    better = compare("lookahead", "random", SHORT, SEEDS)
    assert better.passed
    assert better.low > 0
    worse = compare("random", "lookahead", SHORT, SEEDS)
    assert not worse.passed
    assert worse.high < 0


def test_each_cluster_counts_alike_and_seeds_are_paired() -> None:
    weights = ObjectiveWeights()
    rows = {name: evaluate(SHORT, list(SEEDS), weights, name) for name in ("volcano", "random")}
    by_cluster = [
        gains(*([o.objective for o in rows[name][s.name]] for name in ("volcano", "random"))) for s in SHORT
    ]
    expected = [(a + b) / 2 for a, b in zip(*by_cluster, strict=True)]
    verdict = compare("volcano", "random", SHORT, SEEDS)
    assert verdict.gain == pytest.approx(sum(expected) / len(expected))


@pytest.mark.parametrize("seeds", [[], [7_000, 7_001], [7_000, 7_000, 7_001]])
def test_too_few_seeds_are_refused(seeds: list[int]) -> None:
    with pytest.raises(InputError, match="seeds"):
        compare("random", "random", SHORT, seeds)


def test_no_cluster_is_refused() -> None:
    with pytest.raises(InputError, match="scenarios"):
        compare("random", "random", [], SEEDS)


def test_neither_scipys_distributions_nor_torch_are_loaded_before_they_are_used() -> None:
    code = "import sys, shoal_common.gate; sys.exit(bool({'scipy.stats', 'torch'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
