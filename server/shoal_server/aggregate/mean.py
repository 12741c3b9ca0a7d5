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
F64 = npt.NDArray[np.float64]


@final
class OrderedMean:
    """Streaming weighted mean over `order`; each name is offered once or skipped."""

    def __init__(self, order: Sequence[str], weights: Mapping[str, float], like: Mapping[str, F32]) -> None:
        self._order = tuple(order)
        self._weights = weights
        self._sums: dict[str, F64] = {name: np.zeros(array.shape) for name, array in like.items()}
        self._waiting: dict[str, Mapping[str, F32] | None] = {}
        self._next = 0
        self._total = 0.0

    def offer(self, name: str, arrays: Mapping[str, F32]) -> None:
        """Take the update of `name`: keys and shapes of `like`, finite."""
        self._waiting[name] = arrays
        self._advance()

    def skip(self, name: str) -> None:
        """`name` contributes nothing this round."""
        self._waiting[name] = None
        self._advance()

    def result(self) -> dict[str, F32] | None:
        """The mean as float32; None where the total weight is zero. Names never offered count as skipped."""
        for name in self._order[self._next :]:
            self._waiting.setdefault(name, None)
        self._advance()
        if self._total <= 0:
            return None
        # asarray: dividing a 0-d array gives a scalar
        return {n: np.asarray(total / self._total, dtype=np.float32) for n, total in self._sums.items()}

    def _advance(self) -> None:
        while self._next < len(self._order) and self._order[self._next] in self._waiting:
            name = self._order[self._next]
            arrays = self._waiting.pop(name)
            if arrays is not None:
                self._add(arrays, self._weights.get(name, 1.0))
            self._next += 1

    def _add(self, arrays: Mapping[str, F32], weight: float) -> None:
        if weight == 0:
            return
        self._total += weight
        for name, total in self._sums.items():
            array = arrays[name] if weight == 1 else np.multiply(arrays[name], weight, dtype=np.float64)
            np.add(total, array, out=total)
