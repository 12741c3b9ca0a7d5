# SPDX-License-Identifier: Apache-2.0
"""Weights of a route's backends after one slot: towards their headroom, in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite

from shoal_client.policies.spec import RoutesAction

TOTAL = 100
"""The weights of one rule add up to this: one unit is one per cent of its requests."""


def shares(amounts: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to amounts (all >= 0, at least one > 0) that add up to `total`."""
    whole_sum = sum(map(Fraction, amounts))
    exact = [Fraction(a) * total / whole_sum for a in amounts]
    whole = [int(e) for e in exact]
    rest = sorted(range(len(amounts)), key=lambda i: (whole[i] - exact[i], i))
    for i in rest[: total - sum(whole)]:
        whole[i] += 1
    return whole


def rebalance(weights: Sequence[int], headroom: Sequence[float | None], bounds: RoutesAction) -> list[int]:
    """New weights for one rule, adding up to TOTAL; backends of unknown headroom (None) keep theirs.

    `headroom` is what a backend has free, in any common unit; 0 is full.
    """
    current = shares(weights if sum(weights) > 0 else [1] * len(weights), TOTAL)
    known = [i for i, h in enumerate(headroom) if h is not None and isfinite(h) and current[i] > 0]
    free = [max(0.0, headroom[i] or 0.0) for i in known]
    if len(known) < 2 or sum(free) <= 0:
        return current
    wanted = shares(free, sum(current[i] for i in known))
    result = list(current)
    for i, target in zip(known, wanted, strict=True):
        lowest, highest = current[i] - bounds.largest_step, current[i] + bounds.largest_step
        result[i] = min(max(target, bounds.lowest, lowest), highest)
    return _settle(current, result, known)


def _settle(current: Sequence[int], result: list[int], known: Sequence[int]) -> list[int]:
    """Take clipped steps back, one unit at a time from the farthest moved, until the sum is kept."""
    while (surplus := sum(result) - sum(current)) != 0:
        sign = 1 if surplus > 0 else -1
        farthest = max(known, key=lambda i: sign * (result[i] - current[i]))
        result[farthest] -= sign
    return result
