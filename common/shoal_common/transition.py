# SPDX-License-Identifier: Apache-2.0
"""Decisions and what became of them, as a struct of arrays.

A transition is *closed* when its reward is final: its pod has ended or the reward horizon has passed. Only
closed transitions may be sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class Transitions:
    """D decisions of one cluster of N nodes, in time order within each stream. float16 where it is stored.

    `next_index` is the row of the same stream's next decision, whose observation is obs_t1; -1 where there is
    none. `unit` is the privacy unit the row belongs to (its own index for the transition unit).
    """

    node: npt.NDArray[np.float16]  # [D, N, FN]
    pair: npt.NDArray[np.float16]  # [D, N, FP]
    task: npt.NDArray[np.float16]  # [D, FT]
    ctx: npt.NDArray[np.float16]  # [D, FC]
    mask: npt.NDArray[np.bool_]  # [D, N, P]
    action: npt.NDArray[np.int32]  # [D], flat candidate index n * P + p
    quota: npt.NDArray[np.float32]  # [D, 2], CPU and memory request as a fraction of what was asked
    propensity: npt.NDArray[np.float32]  # [D], probability of the action under the behaviour policy
    reward: npt.NDArray[np.float32]  # [D, 4]
    closed: npt.NDArray[np.bool_]  # [D]
    next_index: npt.NDArray[np.int64]  # [D]
    unit: npt.NDArray[np.int64]  # [D]

    def __len__(self) -> int:
        return len(self.action)

    @property
    def eligible(self) -> npt.NDArray[np.int64]:
        """Rows that may be sampled: closed, with a next decision and finite in every field."""
        finite = np.isfinite(self.reward).all(-1)
        for name in ("node", "pair", "task", "ctx", "quota"):
            column = getattr(self, name)
            finite &= np.isfinite(column).all(tuple(range(1, column.ndim)))
        return np.flatnonzero(self.closed & (self.next_index >= 0) & finite)


def concatenate(parts: list[Transitions]) -> Transitions:
    """Join transitions of the same cluster; `next_index` is shifted to the joined rows."""
    offsets = np.cumsum([0] + [len(part) for part in parts[:-1]])
    joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Transitions)}
    joined["next_index"] = np.concatenate(
        [np.where(p.next_index >= 0, p.next_index + o, -1) for p, o in zip(parts, offsets, strict=True)]
    )
    return Transitions(**joined)
