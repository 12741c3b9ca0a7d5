# SPDX-License-Identifier: Apache-2.0
"""The last good value of every live feature of every node, with the monotonic time it was sampled at.

Two tables [N, F] whose rows are nodes. A value that is older than its source allows is unknown; NaN and
infinities are never stored. Not thread-safe: its owner locks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from shoal_client.collect.features import COLUMN, LIVE_FEATURES, QUERIES

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

MAX_AGE: Final = np.array([q.max_age_seconds for q in QUERIES for _ in q.features])
LOW: Final = np.array([f.low for f in LIVE_FEATURES])
HIGH: Final = np.array([f.high for f in LIVE_FEATURES])
PLAUSIBLE: Final = 10.0
"""A value beyond so many times its bound is none: a counter that went back a little looks like a leap."""


@dataclass(frozen=True, slots=True)
class LiveMatrix:
    """Features of nodes, clipped to their bounds: values [N, F] (0 where unknown), known [N, F], age [N, F].

    Age in seconds, infinite where nothing was ever sampled.
    """

    nodes: tuple[str, ...]
    values: npt.NDArray[np.float32]
    known: npt.NDArray[np.bool_]
    age: F64


@final
class LiveValues:
    """Last good values by node and feature."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._values = np.zeros((0, len(LIVE_FEATURES)))
        self._sampled = np.full((0, len(LIVE_FEATURES)), -math.inf)

    def copy(self, names: Iterable[str]) -> LiveValues:
        """A copy for these nodes; all others are forgotten."""
        new = LiveValues()
        new._rows = {name: row for row, name in enumerate(names)}
        new._values = np.zeros((len(new._rows), len(LIVE_FEATURES)))
        new._sampled = np.full((len(new._rows), len(LIVE_FEATURES)), -math.inf)
        old = [(row, self._rows[name]) for name, row in new._rows.items() if name in self._rows]
        if old:
            rows, old_rows = np.array(old).T
            new._values[rows], new._sampled[rows] = self._values[old_rows], self._sampled[old_rows]
        return new

    def put(self, node: str, column: int, value: float, sampled: float) -> None:
        """Store what was sampled at a monotonic time, unless it is implausible or older than the last."""
        at = np.array([self.row(node)]), np.array([column])
        self.put_many(*at, np.array([value]), np.array([sampled]))

    def row(self, node: str) -> int:
        """A node's row; -1 where there is none."""
        return self._rows.get(node, -1)

    def __len__(self) -> int:
        return len(self._rows)

    def put_many(self, rows: I64, columns: I64, values: F64, sampled: F64) -> int:
        """Store values [S] at rows and columns [S], both -1 for none; how many places were claimed twice.

        A place that is claimed twice keeps what it has.
        """
        there = (rows >= 0) & (columns >= 0)
        place = rows[there] * len(LIVE_FEATURES) + columns[there]
        _, first, counts = np.unique(place, return_index=True, return_counts=True)
        one = np.flatnonzero(there)[first[counts == 1]]
        plausible = np.isfinite(values[one]) & (np.abs(values[one]) <= PLAUSIBLE * HIGH[columns[one]])
        newer = sampled[one] >= self._sampled[rows[one], columns[one]]
        keep = one[plausible & newer]
        self._values[rows[keep], columns[keep]] = values[keep]
        self._sampled[rows[keep], columns[keep]] = sampled[keep]
        return int((counts > 1).sum())

    def get(self, node: str, name: str, now: float) -> tuple[float, float] | None:
        """(value, age in seconds); None where it is unknown or too old."""
        row, column = self.row(node), COLUMN[name]
        if row < 0 or not now - self._sampled[row, column] <= MAX_AGE[column]:
            return None
        return float(self._values[row, column]), max(0.0, float(now - self._sampled[row, column]))

    def unknown(self, column: int, now: float) -> bool:
        """Whether some node lacks this feature."""
        return bool(np.any(now - self._sampled[:, column] > MAX_AGE[column]))

    def matrix(self, now: float) -> LiveMatrix:
        """All nodes and features as tables."""
        age = np.maximum(0.0, now - self._sampled)
        known = age <= MAX_AGE
        values = np.where(known, np.clip(self._values, LOW, HIGH), 0.0).astype(np.float32)
        return LiveMatrix(tuple(self._rows), values, known, age)
