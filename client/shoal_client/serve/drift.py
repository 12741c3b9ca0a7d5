# SPDX-License-Identifier: Apache-2.0
"""Whether what a policy sees is still what it can judge: single observations, and their distribution.

*Out of distribution*: many features of one observation stand at a bound that only caps them. A policy was
trained within the public bounds of the feature tables, so beyond them it can only guess.

*Drift*: the population stability index, sum over ten bins of (p - q) ln(p / q), between the decisions of the
first full window after a policy was loaded and those of the latest one, averaged over the features of pod,
cluster and mean candidate. Bins are equal in the square root of a feature within its bounds, since most crowd
near 0. Below 0.1 is commonly called stable, above 0.25 shifted. The hour of the day is left out, which shifts
by itself.
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from shoal_common.features import (
    CONTEXT_HIGH,
    CONTEXT_LOW,
    NODE_HIGH,
    NODE_LOW,
    PAIR_HIGH,
    PAIR_LOW,
    TASK_HIGH,
    TASK_LOW,
)
from shoal_common.observation import CONTEXT_FEATURES, F32, Observation

BINS = 10
FLOOR = 1e-3  # a share of zero would make the index infinite
HOUR = ("hour_sin", "hour_cos")

F64 = npt.NDArray[np.float64]


def _capped(low: F32, high: F32) -> npt.NDArray[np.intp]:
    """Features whose upper bound is a cap on something open-ended: shares of a whole end at 1 by nature."""
    return np.flatnonzero((high > 1.0) & (low == 0.0))


NODE_CAPPED, PAIR_CAPPED, TASK_CAPPED = (
    _capped(NODE_LOW, NODE_HIGH), _capped(PAIR_LOW, PAIR_HIGH), _capped(TASK_LOW, TASK_HIGH),
)  # fmt: skip
STEADY = np.array([f.name not in HOUR for f in CONTEXT_FEATURES])
LOW = np.concatenate([TASK_LOW, CONTEXT_LOW[STEADY], NODE_LOW])
WIDTH = np.concatenate([TASK_HIGH, CONTEXT_HIGH[STEADY], NODE_HIGH]) - LOW


def clipped_ratio(obs: Observation) -> float:
    """Share of the capped features of one observation (B = 1) that stand at their cap."""
    at_cap = (
        np.count_nonzero(obs.node[0][:, NODE_CAPPED] >= NODE_HIGH[NODE_CAPPED])
        + np.count_nonzero(obs.pair[0][:, PAIR_CAPPED] >= PAIR_HIGH[PAIR_CAPPED])
        + np.count_nonzero(obs.task[0][TASK_CAPPED] >= TASK_HIGH[TASK_CAPPED])
    )
    nodes = int(obs.node.shape[1])
    capped = nodes * (len(NODE_CAPPED) + len(PAIR_CAPPED)) + len(TASK_CAPPED)
    return int(at_cap) / max(capped, 1)


@final
class Drift:
    """The index over windows of decisions; 0 until two windows are full."""

    def __init__(self) -> None:
        self.index = 0.0
        self._counts: F64 = np.zeros((len(LOW), BINS))
        self._rows = np.arange(len(LOW))
        self._seen = 0
        self._first: F64 | None = None

    def see(self, obs: Observation, window: int) -> None:
        """Count one observation (B = 1); every `window` of them the index is computed again."""
        node = obs.node[0].mean(0) if obs.node.shape[1] else NODE_LOW
        value = np.concatenate([obs.task[0], obs.ctx[0][STEADY], node])
        part = np.clip((value - LOW) / WIDTH, 0.0, 1.0)
        place = np.minimum((np.sqrt(part) * BINS).astype(np.int64), BINS - 1)
        self._counts[self._rows, place] += 1
        self._seen += 1
        if self._seen >= window:
            self._close()

    def _close(self) -> None:
        share = np.maximum(self._counts / self._seen, FLOOR)
        if self._first is None:
            self._first = share
        else:
            self.index = float(((share - self._first) * np.log(share / self._first)).sum(-1).mean())
        self._counts = np.zeros_like(self._counts)
        self._seen = 0
