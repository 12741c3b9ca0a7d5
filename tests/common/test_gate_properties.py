# SPDX-License-Identifier: Apache-2.0
"""What holds of a verdict whatever the gains are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.gate import gains, judge

GAINS = st.lists(st.floats(-50, 50), min_size=3, max_size=20)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(GAINS, st.randoms(use_true_random=False))
def test_the_order_of_seeds_is_nothing(by_seed: list[float], random) -> None:
    shuffled = list(by_seed)
    random.shuffle(shuffled)
    one, other = judge(by_seed), judge(shuffled)
    assert (one.gain, one.low, one.high) == pytest.approx((other.gain, other.low, other.high), abs=1e-9)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(GAINS, st.floats(-20, 20))
def test_a_gain_more_for_every_seed_is_that_gain_more(by_seed: list[float], more: float) -> None:
    one, other = judge(by_seed), judge([gain + more for gain in by_seed])
    assert (other.low - one.low, other.high - one.high) == pytest.approx((more, more), abs=1e-6)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(GAINS, st.floats(-20, 20), st.floats(0, 20))
def test_who_asks_for_less_refuses_no_more(by_seed: list[float], asked: float, less: float) -> None:
    verdict = judge(by_seed, asked)
    assert verdict.low <= verdict.gain <= verdict.high
    assert judge(by_seed, asked - less).passed or not verdict.passed


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(-10, -0.01), min_size=1, max_size=20), st.floats(0.1, 10))
def test_gains_are_free_of_the_objectives_scale(objective: list[float], scale: float) -> None:
    baseline = [value - 1.0 for value in objective]
    scaled = gains([scale * value for value in objective], [scale * value for value in baseline])
    assert scaled == pytest.approx(gains(objective, baseline))
    assert min(scaled) > 0
