# SPDX-License-Identifier: Apache-2.0
"""Summaries of a comparison by hand."""

from __future__ import annotations

import pytest

from shoal_common.gate import Outcome
from shoal_simulations.comparison import compare, gains_against


def outcome(objective: float) -> Outcome:
    return Outcome(objective, 0.5, 10.0, 0.1, 200.0, 1.0, (objective, 0.0, 0.0, 0.0))


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
