# SPDX-License-Identifier: Apache-2.0
"""Comparison statistics by hand: three seeds, t(0.975, 2) = 4.302653."""

from __future__ import annotations

import pytest

from shoal_simulations.comparison import (
    Outcome,
    compare,
    gain_percent,
    gains_against,
    interval,
    paired_difference,
)

T2 = 4.302652729911275


def outcome(objective: float) -> Outcome:
    return Outcome(objective, 0.5, 10.0, 0.1, 200.0, 1.0, (objective, 0.0, 0.0, 0.0))


def test_interval_by_hand() -> None:
    found = interval([1.0, 2.0, 3.0])  # mean 2, sd 1, half width t / sqrt(3)
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2 - T2 / 3**0.5)
    assert found.high == pytest.approx(2 + T2 / 3**0.5)


def test_one_value_and_equal_values_have_no_width() -> None:
    assert interval([4.0]) == interval([4.0, 4.0, 4.0])


def test_pairing_removes_what_the_seeds_share() -> None:
    found = paired_difference([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])  # differences 1, 2, 3
    assert (found.mean, found.high) == (pytest.approx(2.0), pytest.approx(2 + T2 / 3**0.5))


def test_gain_is_relative_to_the_size_of_a_negative_baseline() -> None:
    found = gain_percent([-0.30, -0.20], [-0.40, -0.20])  # 25 % and 0 %
    assert found.mean == pytest.approx(12.5)


def test_compare_by_hand() -> None:
    rows = {"default": [outcome(-0.4), outcome(-0.2)], "policy": [outcome(-0.3), outcome(-0.1)]}
    table = compare(rows)
    assert table["default"]["gain_percent"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert table["policy"]["gain_percent"]["mean"] == pytest.approx(37.5)  # 25 % and 50 %
    assert table["policy"]["terms"]["util"]["mean"] == pytest.approx(-0.2)
    assert table["policy"]["objective_by_seed"] == [-0.3, -0.1]
    against = gains_against(table, "policy")
    assert against.keys() == {"default"}
    assert against["default"].mean == pytest.approx(37.5)
