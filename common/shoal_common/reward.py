# SPDX-License-Identifier: Apache-2.0
"""The vector reward and the weights that make a scalar of it.

Four terms, each bounded and additive over nodes, which is what makes the credit of one decision exact:

- `util`: minus the stranded capacity of nodes that are on, as a share of the cluster;
- `qos`: minus the clipped excess of each pod's slowdown over its SLA;
- `energy`: minus the power above deep idle, as a share of the cluster's range;
- `penalty`: minus pending pods, evictions, out-of-memory kills and money.

A decision's reward is a *difference*: in the twin the leave-one-out difference (the cluster with the pod
minus the cluster without it), on measurements alone the change of the chosen node's own rate. Vectors are
stored; they become a scalar when sampled, with the objective weights `w` of that moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TERMS = ("util", "qos", "energy", "penalty")
REWARD_VERSION = 1

RewardVector = npt.NDArray[np.float32]  # [..., 4], in the order of TERMS


@dataclass(frozen=True, slots=True)
class ObjectiveWeights:
    """The weights w of the four terms: each at least 0, summing to 1."""

    util: float = 0.25
    qos: float = 0.40
    energy: float = 0.25
    penalty: float = 0.10

    def __post_init__(self) -> None:
        values = (self.util, self.qos, self.energy, self.penalty)
        if not all(np.isfinite(v) and v >= 0 for v in values) or abs(sum(values) - 1) > 1e-6:
            raise ValueError(f"objective weights must be at least 0 and sum to 1, not {values}")

    def array(self) -> npt.NDArray[np.float32]:
        """The weights as f32[4], in the order of TERMS."""
        return np.array([self.util, self.qos, self.energy, self.penalty], dtype=np.float32)


def scalarise(reward: RewardVector, w: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Weigh vector rewards [..., 4] by w [..., 4] or [4] into scalars [...]."""
    scalar: npt.NDArray[np.float32] = np.sum(reward * w, axis=-1, dtype=np.float32)
    return scalar
