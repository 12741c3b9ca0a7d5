# SPDX-License-Identifier: Apache-2.0
"""NodeResourcesBalancedAllocation by hand, in both versions."""

from __future__ import annotations

from shoal_common.kube.balanced_allocation import balance, score


def test_balance_is_one_minus_the_deviation() -> None:
    assert balance([500, 500], [1000, 1000]) == 100
    assert balance([1000, 0], [1000, 1000]) == 50
    assert balance([5000, 0], [1000, 1000]) == 50  # a share is at most 1
    assert balance([750, 250], [1000, 1000]) == 75
    assert balance([750, 1], [1000, 0]) == 100  # one resource is always balanced
    assert balance([1000, 0, 0], [1000, 1000, 1000]) == 52  # population deviation 0.4714


def test_until_1_35_the_score_is_the_balance_with_the_pod() -> None:
    assert score([250, 0], [250, 250], [1000, 1000], "1.35") == 87  # shares .5 and .25


def test_from_1_36_the_score_is_the_change() -> None:
    assert score([250, 250], [250, 250], [1000, 1000], "1.36") == 75
    assert score([250, 0], [250, 250], [1000, 1000], "1.36") == 68  # 50 + (50 + 87 - 100) // 2
    assert score([0, 1000], [1000, 0], [1000, 1000], "1.36") == 100
    assert score([1000, 0], [0, 0], [1000, 1000], "1.36") == 50
