# SPDX-License-Identifier: Apache-2.0
"""The Scorer protocol: a set of candidates under a mask gets scores; then one rule takes the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal_common.observation import F32, Observation

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of every candidate (higher is better) and the quotas that would go with it.

    The mask is not applied: whoever selects applies it.
    """

    logits: F32  # [B, N, P]
    quotas: F32  # [B, N, P, 2], CPU and memory request as a fraction of what was asked


class Scorer(Protocol):
    """Heuristics, forests, networks and artifacts alike."""

    def score(self, obs: Observation) -> Scores:
        """Score a batch of observations."""


def select(
    scores: Scores, mask: npt.NDArray[np.bool_], rng: np.random.Generator | None = None
) -> npt.NDArray[np.int64]:
    """Take the best feasible candidate: flat index n * P + p, i64[B].

    Ties go to the first, or with `rng` to any of them (kube-scheduler's rule). -1 means abstain: the mask is
    empty, or a feasible candidate's logit or quota is not finite, so that no NaN ever chooses.
    """
    size = len(mask)
    feasible = mask.reshape(size, -1)
    finite = np.isfinite(scores.logits) & np.isfinite(scores.quotas).all(-1)
    sound = (finite.reshape(size, -1) | ~feasible).all(-1) & feasible.any(-1)
    logits = np.where(feasible, scores.logits.reshape(size, -1), -np.inf)
    if rng is not None:
        best = feasible & (logits == logits.max(-1, keepdims=True))
        logits = np.where(best, rng.random(logits.shape), -1.0)
    return np.where(sound, logits.argmax(-1), -1).astype(np.int64)


def taken_quotas(scores: Scores, action: npt.NDArray[np.int64]) -> F32:
    """Quotas f32[B, 2] of the chosen candidates; 1 where the scorer abstained."""
    flat = scores.quotas.reshape(len(action), -1, 2)
    quota = flat[np.arange(len(action)), np.maximum(action, 0)]
    return np.where(action[:, None] >= 0, quota, np.float32(1)).astype(np.float32)


def draw_candidate(
    chances: F64, mask: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw one candidate of each row with these chances [B, C], i64[B]; -1 on an empty mask or a NaN."""
    total = np.cumsum(chances, axis=-1)
    draw = rng.random((len(mask), 1)) * total[:, -1:]
    drawn = np.minimum((total <= draw).sum(-1), mask.shape[1] - 1).astype(np.int64)
    return np.where(np.isfinite(total[:, -1]) & mask.any(-1), drawn, -1)


def explore_policy(
    policy: F32, mask: npt.NDArray[np.bool_], uniform: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], F32]:
    """Sample from (1 - uniform) * policy + uniform * (any feasible candidate).

    policy [B, C] sums to 1 over the feasible mask [B, C] -> action i64[B], -1 on an empty mask, and its
    probability f32[B].
    """
    feasible = mask.sum(-1, keepdims=True)
    mixed = (1.0 - uniform) * policy.astype(np.float64) * mask + uniform * mask / np.maximum(feasible, 1)
    action = draw_candidate(mixed, mask, rng)
    chance = mixed[np.arange(len(mask)), np.maximum(action, 0)]
    return action, np.where(action >= 0, chance, 1.0).astype(np.float32)
