# SPDX-License-Identifier: Apache-2.0
"""Figures measured with opacus 1.6 and dp-accounting 0.6: critic at every step, actor at every second."""

import math

import pytest

from shoal_common.errors import InputError
from shoal_common.privacy.accountant import Segment, calibrate, epsilon, group_epsilon


@pytest.mark.parametrize(
    ("sample_rate", "noise_multiplier", "critic_steps", "delta", "expected"),
    [
        (0.00256, 0.8, 10_000, 1e-6, 3.44),
        (0.00256, 1.0, 10_000, 1e-6, 2.06),
        (0.00256, 1.5, 10_000, 1e-6, 1.09),
        (0.00256, 2.0, 10_000, 1e-6, 0.75),
        (0.00256, 1.0, 50_000, 1e-6, 4.83),
        (0.00256, 2.0, 50_000, 1e-6, 1.77),
        (0.0256, 1.0, 10_000, 1e-5, 26.98),
        (0.0256, 2.0, 10_000, 1e-5, 8.70),
        (0.0256, 4.0, 10_000, 1e-5, 3.66),
        (0.032, 1.0, 2_000, 1e-4, 11.86),
        (0.032, 4.0, 2_000, 1e-4, 1.66),
        (0.032, 2.0, 10_000, 1e-4, 10.24),
    ],
)
def test_published_figures(
    sample_rate: float, noise_multiplier: float, critic_steps: int, delta: float, expected: float
) -> None:
    releases = critic_steps + critic_steps // 2
    spent = epsilon([Segment(sample_rate, noise_multiplier, releases)], delta)
    assert spent == pytest.approx(expected, rel=0.004, abs=0.006)


def test_one_optimizer_by_hand() -> None:
    assert epsilon([Segment(64 / 5000, 1.0, 5000)], 1e-5) == pytest.approx(6.07, abs=0.005)


def test_no_release_costs_nothing() -> None:
    assert epsilon([], 1e-5) == 0.0
    assert epsilon([Segment(0.1, 1.0, 0)], 1e-5) == 0.0


def test_every_unit_in_every_batch_is_the_plain_gaussian() -> None:
    # RDP of order a is a / (2 sigma^2); a conversion at one order bounds what all orders give
    order, steps, delta = 8.0, 3, 1e-5
    bound = steps * order / 8 + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    assert 0.9 * bound < epsilon([Segment(1.0, 2.0, steps)], delta) <= bound


def test_order_and_splitting_do_not_matter_and_reading_changes_nothing() -> None:
    history = [Segment(0.01, 1.0, 30), Segment(0.02, 1.5, 10), Segment(0.01, 1.0, 20)]
    first = epsilon(history, 1e-5)
    assert epsilon(history, 1e-5) == first
    assert epsilon(reversed(history), 1e-5) == first
    assert epsilon([Segment(0.02, 1.5, 10), Segment(0.01, 1.0, 50)], 1e-5) == first


@pytest.mark.parametrize("target", [0.05, 1.0, 3.0, 8.0, 100.0])
def test_calibration_stays_just_below_the_target(target: float) -> None:
    noise_multiplier = calibrate(0.0128, 1500, 1e-6, target)
    spent = epsilon([Segment(0.0128, noise_multiplier, 1500)], 1e-6)
    assert 0.99 * target < spent <= target


def test_an_unreachable_target_is_refused() -> None:
    with pytest.raises(InputError, match="target_epsilon"):
        calibrate(1.0, 10**9, 1e-9, 1e-6)


def test_a_tenant_pays_more_and_a_tenant_with_one_record_the_same() -> None:
    segment = Segment(0.0128, 2.0, 300)
    alone = epsilon([segment], 1e-6)
    assert 0.8 * alone < group_epsilon(segment, 1, 1e-6) < 1.5 * alone
    assert group_epsilon(segment, 2, 1e-6) > 2 * alone
    assert group_epsilon(segment, 100, 1e-6) > 100
