# SPDX-License-Identifier: Apache-2.0
"""The weighted mean (McMahan et al., 2017, with public weights): sum w_k x_k / sum w_k, in a fixed order.

Updates arrive in any order and are added in the order of the cohort, so that the result has the same bits
whatever the arrival order and the number of workers. Memory: one float64 accumulator, the model, and only
those updates that came before their turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@final
class OrderedMean:
    """Streaming weighted mean over `order`; each name is offered once or skipped."""

    def __init__(self, order: Sequence[str], weights: Mapping[str, float], size: int) -> None:
        self._order = tuple(order)
        self._weights = weights
        self._sum: npt.NDArray[np.float64] = np.zeros(size)
        self._waiting: dict[str, F32 | None] = {}
        self._next = 0
        self._total = 0.0

    def offer(self, name: str, vector: F32) -> None:
        """Take the update of `name`: finite, of the model's size."""
        self._waiting[name] = vector
        self._advance()

    def skip(self, name: str) -> None:
        """`name` contributes nothing this round."""
        self._waiting[name] = None
        self._advance()

    def result(self) -> F32 | None:
        """The mean as float32; None where the total weight is zero. Names never offered count as skipped."""
        for name in self._order[self._next :]:
            self._waiting.setdefault(name, None)
        self._advance()
        if self._total <= 0:
            return None
        return (self._sum / self._total).astype(np.float32)

    def _advance(self) -> None:
        while self._next < len(self._order) and self._order[self._next] in self._waiting:
            name = self._order[self._next]
            vector = self._waiting.pop(name)
            if vector is not None:
                self._add(vector, self._weights.get(name, 1.0))
            self._next += 1

    def _add(self, vector: F32, weight: float) -> None:
        if weight == 0:
            return
        self._total += weight
        term = vector if weight == 1 else np.multiply(vector, weight, dtype=np.float64)
        np.add(self._sum, term, out=self._sum)
