# SPDX-License-Identifier: Apache-2.0
"""Arrivals from a trace: pieces of a recorded pod list, stretched or squeezed to a cluster's load.

Training seeds draw their windows from the first 70 % of the trace's time, all other seeds from the rest, so
held-out arrivals are the trace's own future. What a trace does not record (real use, I/O, SLA) is drawn per
request shape, as the generated workload draws it per app; what a live cluster knows of them is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import F64

TRAINING_SEED = 1_000_000  # arrival seeds from here on are for training
TRAINING_SHARE = 0.7
LONGEST_GAP = 20.0  # in mean gaps between arrivals
SHORTEST_SECONDS, LONGEST_SECONDS = 20.0, 14_400.0  # of a pod's work in the twin


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """P recorded pods in order of arrival: seconds, millicores, bytes, milli-GPU a device, devices, kind.

    `kind` is 0 service, 1 compute, 2 io, 3 gpu. `known` [P, 3] is the CPU used as a share of what was
    requested, the I/O used, and the slowdown allowed; None where a trace does not record them.
    """

    arrival_s: F64
    seconds: F64
    cpu_milli: F64
    memory: F64
    gpu_milli: F64
    gpus: F64
    kind: npt.NDArray[np.int64]
    known: F64 | None = None

    def shapes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Distinct request shapes as rows that stand for them, and each pod's shape."""
        table = np.stack([self.kind, self.cpu_milli, self.memory, self.gpu_milli, self.gpus], axis=1)
        _, rows, shape = np.unique(table, axis=0, return_index=True, return_inverse=True)
        return rows.astype(np.int64), shape.reshape(-1).astype(np.int64)

    def window(
        self, offered: F64, seconds: float, training: bool, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.int64], F64]:
        """Consecutive pods and their arrival times in [0, seconds) that together keep the cluster busy.

        From a random pod on, as many are taken as request `offered` f64[4] (millicores, bytes, milli-GPU,
        pods) on average over the time, whichever is reached first; their recorded times are then stretched
        or squeezed to it. Gaps beyond `LONGEST_GAP` times the mean are cut to that: a trace's silent nights
        would press all the rest into a moment. Past the end of its part a window goes on at the part's start.
        """
        cut = self.arrival_s[0] + TRAINING_SHARE * (self.arrival_s[-1] - self.arrival_s[0])
        part = np.flatnonzero(self.arrival_s < cut if training else self.arrival_s >= cut)
        part = np.roll(part, -int(rng.integers(len(part))))
        work = np.clip(self.seconds[part], SHORTEST_SECONDS, LONGEST_SECONDS)
        gpu = self.gpu_milli[part] * self.gpus[part]
        wants = np.stack([self.cpu_milli[part], self.memory[part], gpu, np.ones(len(part))])
        share = wants * work / np.maximum(offered, 1.0)[:, None] / seconds  # of what may be requested
        whole = share.sum(axis=1).max()  # of the part
        rounds = int(np.ceil(1.0 / whole)) if whole < 1.0 else 1
        filled = np.cumsum(np.tile(share, rounds), axis=1).max(axis=0)
        picked = np.tile(part, rounds)[: 1 + int(np.searchsorted(filled, 1.0))]
        gaps = np.maximum(np.diff(self.arrival_s[picked], prepend=self.arrival_s[picked[0]]), 0.0)
        gaps = np.minimum(gaps, LONGEST_GAP * gaps.mean()) + 1e-6
        times = np.cumsum(gaps) - gaps[0]
        return picked, times * (seconds * (1.0 - 1e-9) / (times[-1] + gaps.mean()))
