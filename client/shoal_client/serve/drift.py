# SPDX-License-Identifier: Apache-2.0
"""Whether what a policy sees is still what it can judge: single observations, and their distribution.

*Out of distribution*: many features of one observation stand at a bound that only caps them. A policy was
trained within the public bounds of the feature tables, so beyond them it can only guess.

*Drift*: the population stability index, sum over ten bins of (p - q) ln(p / q), between the latest full
window of decisions and a moving average of those before it since the policy was loaded, averaged over
features. Only what the policy does not move by its own decisions is compared: pods, and candidates' hardware.
A change that stays becomes the usual within some windows. Bins are equal in the square root of a feature
within its bounds, since most crowd near 0. Below 0.1 is commonly called stable, above 0.25 shifted.
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from shoal_common.features import (
    NODE_HIGH,
    NODE_LOW,
    PAIR_HIGH,
    PAIR_LOW,
    TASK_HIGH,
    TASK_LOW,
)
from shoal_common.observation import F32, NODE_FEATURES, Observation

BINS = 10
FLOOR = 1e-3  # a share of zero would make the index infinite
BATCH = 64  # observations that are put into bins together
RENEWED = 0.2  # share of the latest window in the usual one
HARDWARE_FEATURES = frozenset(
    {
        "has_gpu", "gpus", "has_dpu", "speed", "io_speed", "cores", "memory_per_core", "idle_power",
        "power_per_core", "deep_idle",
    }
)  # fmt: skip

F64 = npt.NDArray[np.float64]


def _capped(low: F32, high: F32) -> npt.NDArray[np.intp]:
    """Features whose upper bound is a cap on something open-ended: shares of a whole end at 1 by nature."""
    return np.flatnonzero((high > 1.0) & (low == 0.0))


def _caps(high: F32, capped: npt.NDArray[np.intp]) -> F32:
    """The caps, infinity elsewhere: comparing whole tables is faster than taking columns out of them."""
    caps = np.full(len(high), np.inf, np.float32)
    caps[capped] = high[capped]
    return caps


NODE_CAPPED, PAIR_CAPPED, TASK_CAPPED = (
    _capped(NODE_LOW, NODE_HIGH), _capped(PAIR_LOW, PAIR_HIGH), _capped(TASK_LOW, TASK_HIGH),
)  # fmt: skip
NODE_CAPS, PAIR_CAPS = _caps(NODE_HIGH, NODE_CAPPED), _caps(PAIR_HIGH, PAIR_CAPPED)
HARDWARE = np.array([i for i, f in enumerate(NODE_FEATURES) if f.name in HARDWARE_FEATURES])
LOW = np.concatenate([TASK_LOW, NODE_LOW[HARDWARE]])
WIDTH = np.concatenate([TASK_HIGH, NODE_HIGH[HARDWARE]]) - LOW


def clipped_ratio(obs: Observation) -> float:
    """Share of the capped features of one observation (B = 1) that stand at their cap."""
    at_cap = (
        np.count_nonzero(obs.node[0] >= NODE_CAPS)
        + np.count_nonzero(obs.pair[0] >= PAIR_CAPS)
        + np.count_nonzero(obs.task[0][TASK_CAPPED] >= TASK_HIGH[TASK_CAPPED])
    )
    nodes = int(obs.node.shape[1])
    capped = nodes * (len(NODE_CAPPED) + len(PAIR_CAPPED)) + len(TASK_CAPPED)
    return int(at_cap) / max(capped, 1)


@final
class Drift:
    """The index over windows of decisions; 0 until two of them are full."""

    def __init__(self) -> None:
        self.index = 0.0
        self._counts: F64 = np.zeros((len(LOW), BINS))
        self._rows = np.arange(len(LOW))
        self._waiting: list[F32] = []
        self._seen = 0
        self._usual: F64 | None = None

    def see(self, obs: Observation, window: int) -> None:
        """Count one observation (B = 1); every `window` of them the index is computed again."""
        hardware = obs.node[0][:, HARDWARE]
        self._waiting.append(
            np.concatenate([obs.task[0], hardware.mean(0) if len(hardware) else NODE_LOW[HARDWARE]])
        )
        self._seen += 1
        if len(self._waiting) >= BATCH or self._seen >= window:
            self._count()
        if self._seen >= window:
            self._close()

    def _count(self) -> None:
        """Put what waits into bins: many at once cost hardly more than one."""
        part = np.clip((np.stack(self._waiting) - LOW) / WIDTH, 0.0, 1.0)
        place = np.minimum((np.sqrt(part) * BINS).astype(np.int64), BINS - 1)
        np.add.at(self._counts, (self._rows, place), 1)
        self._waiting.clear()

    def _close(self) -> None:
        share = np.maximum(self._counts / self._seen, FLOOR)
        if self._usual is None:
            self._usual = share
        self.index = float(((share - self._usual) * np.log(share / self._usual)).sum(-1).mean())
        self._usual = (1.0 - RENEWED) * self._usual + RENEWED * share
        self._counts = np.zeros_like(self._counts)
        self._seen = 0
