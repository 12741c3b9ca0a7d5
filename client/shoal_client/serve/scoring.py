# SPDX-License-Identifier: Apache-2.0
"""From a policy's logits to the integers that kube-scheduler adds up: total += score * weight * 10.

Feasible candidates are spread evenly over 1..scale, the best alone at `scale`; a node that cannot take the
pod gets 0, one that is not known the middle. Equal logits give equal scores, a larger logit never a smaller
score, and logits more than a unit apart different ones. A neutral answer is 0 for every node.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import F32, Mask

I64 = npt.NDArray[np.int64]


def integer_scores(logits: F32, feasible: Mask, known: Mask, scale: int) -> I64:
    """Scores i64[N] of N nodes from their logits f32[N]; a node that is not `known` is never feasible."""
    scores = np.where(known, 0, scale // 2).astype(np.int64)
    found = logits[feasible].astype(np.float64)
    if not len(found):
        return scores
    low, high = found.min(), found.max()
    if high == low:
        scores[feasible] = scale
        return scores
    levels = 1 + np.floor((scale - 1) * ((found - low) / (high - low))).astype(np.int64)
    scores[feasible] = np.where(found == high, scale, np.minimum(levels, max(scale - 1, 0)))
    return scores


def forced_scores(chosen: int, size: int, scale: int) -> I64:
    """A drawn choice: `scale` for its node and 0 for every other, so that the draw decides.

    With a weight of 15 and the default scale that is 1,500 points, above what kube-scheduler's default
    profile can differ by without resource claims (1,200).
    """
    scores = np.zeros(size, np.int64)
    scores[chosen] = scale
    return scores
