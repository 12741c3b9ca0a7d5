# SPDX-License-Identifier: Apache-2.0
"""What one update sees: M sampled decisions with K candidates each, as float32 arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Decisions:
    """The observations of M decisions, each with K candidate nodes of P profiles."""

    node: F32  # [M, K, FN]
    pair: F32  # [M, K, FP]
    task: F32  # [M, FT]
    ctx: F32  # [M, FC]
    w: F32  # [M, 4]
    mask: npt.NDArray[np.bool_]  # [M, K, P]

    def finite(self) -> npt.NDArray[np.bool_]:
        """Rows bool[M] that are finite in every field."""
        size = len(self.task)
        fields = (self.node, self.pair, self.task, self.ctx, self.w)
        rows = np.ones(size, np.bool_)
        for field in fields:
            rows &= np.isfinite(field.reshape(size, -1)).all(-1)
        return rows

    def cleaned(self) -> Decisions:
        """The same with every non-finite number replaced by 0."""
        names = ("node", "pair", "task", "ctx", "w")
        clean = {name: np.nan_to_num(getattr(self, name), posinf=0.0, neginf=0.0) for name in names}
        return Decisions(mask=self.mask, **clean)


@dataclass(frozen=True, slots=True)
class Batch:
    """M transitions: obs_t, what was done, its scalar reward, and obs_t1 with the candidates seen there.

    The taken candidate stands first among the K. `obs_t1` is None where the learner looks at no next decision
    (gamma 0). `scores` is the score vector that was played, for the one learner that acts by such a vector.
    """

    obs_t: Decisions
    action: npt.NDArray[np.int64]  # [M], flat index k * P + p
    quota: F32  # [M, 2]
    reward: F32  # [M], weighed by w and scaled by a public constant
    discount: F32  # [M], 1, or 0 where the episode ends
    obs_t1: Decisions | None = None
    scores: F32 | None = None  # [M, K]

    def __len__(self) -> int:
        return len(self.action)

    def finite(self) -> npt.NDArray[np.bool_]:
        """Rows bool[M] that a learner may use: finite throughout, with the taken candidate under the mask."""
        size = len(self)
        rows = self.obs_t.finite() & np.isfinite(self.reward) & np.isfinite(self.quota).all(-1)
        rows &= np.isfinite(self.discount)
        rows &= self.obs_t.mask.reshape(size, -1)[np.arange(size), self.action]
        if self.obs_t1 is not None:
            rows &= self.obs_t1.finite()
        if self.scores is not None:
            rows &= np.isfinite(self.scores).all(-1)
        return rows

    def cleaned(self) -> tuple[Batch, npt.NDArray[np.bool_]]:
        """Return the batch without a non-finite number, and the rows bool[M] that count.

        A row that does not count stays in place, so shapes never depend on private data; its loss is
        multiplied by 0 and its gradient is exactly 0.
        """
        rows = self.finite()
        if rows.all():
            return self, rows
        return (
            Batch(
                obs_t=self.obs_t.cleaned(),
                action=self.action,
                quota=np.nan_to_num(self.quota, posinf=0.0, neginf=0.0),
                reward=np.where(rows, self.reward, np.float32(0)),
                discount=np.where(rows, self.discount, np.float32(0)),
                obs_t1=None if self.obs_t1 is None else self.obs_t1.cleaned(),
                scores=None if self.scores is None else np.nan_to_num(self.scores, posinf=0.0, neginf=0.0),
            ),
            rows,
        )
