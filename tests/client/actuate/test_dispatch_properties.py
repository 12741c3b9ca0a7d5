# SPDX-License-Identifier: Apache-2.0
"""Weights of a route move towards headroom, in bounded steps, and always add up to the whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.actuate.dispatch import TOTAL, rebalance, shares
from shoal_client.policies.spec import RoutesAction

SETTINGS = RoutesAction(lowest=1, largest_step=10)
BACKENDS = st.lists(
    st.tuples(st.integers(0, 1_000_000), st.none() | st.floats(0, 1e6)), min_size=1, max_size=8
)


def test_by_hand() -> None:
    assert rebalance([1, 1], [3.0, 1.0], SETTINGS) == [60, 40]
    assert rebalance([60, 40], [3.0, 1.0], SETTINGS) == [70, 30]
    assert rebalance([70, 30], [3.0, 1.0], SETTINGS) == [75, 25]
    assert rebalance([75, 25], [3.0, 1.0], SETTINGS) == [75, 25]


def test_unknown_and_switched_off_backends_keep_theirs() -> None:
    assert rebalance([50, 25, 25], [None, 1.0, 3.0], SETTINGS) == [50, 15, 35]
    assert rebalance([100, 0], [0.0, 9.0], SETTINGS) == [100, 0]
    assert rebalance([30, 70], [0.0, 0.0], SETTINGS) == [30, 70]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(BACKENDS)
def test_sum_steps_and_floor(backends: list[tuple[int, float | None]]) -> None:
    weights = [w for w, _ in backends]
    before = shares(weights if sum(weights) else [1] * len(weights), TOTAL)
    after = rebalance(weights, [h for _, h in backends], SETTINGS)
    assert sum(after) == TOTAL
    for old, new, (_, headroom) in zip(before, after, backends, strict=True):
        assert abs(new - old) <= SETTINGS.largest_step
        assert new >= min(old, SETTINGS.lowest)
        assert headroom is not None or new == old
        assert old > 0 or new == 0
