# SPDX-License-Identifier: Apache-2.0
"""The two shapes of a plugin, and the normalisation that several share.

A filter prepares once per pod and gives a test per node, or None when it has nothing to test (PreFilter
Skip). A score gives one value in 0..100 per candidate, normalised, or None when it has nothing to say
(PreScore Skip).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import Refusal
from shoal_common.pods import PodRecord

NodeTest = Callable[[NodeInfo], Refusal | None]
Filter = Callable[[Snapshot, PodRecord], NodeTest | None]
Score = Callable[[Snapshot, PodRecord, Sequence[NodeInfo]], Sequence[float] | None]

MAX_NODE_SCORE = 100


def divide(numerator: int, denominator: int) -> int:
    """Go's integer division: truncates toward zero."""
    quotient = abs(numerator) // abs(denominator)
    return quotient if (numerator < 0) == (denominator < 0) else -quotient


def normalise(raw: Sequence[int], *, reverse: bool = False) -> list[int]:
    """Scale counts to 0..100 by the largest, reversed where fewer is better (DefaultNormalizeScore)."""
    most = max(raw, default=0)
    if most == 0:
        return [MAX_NODE_SCORE if reverse else 0] * len(raw)
    scaled = [MAX_NODE_SCORE * count // most for count in raw]
    return [MAX_NODE_SCORE - score for score in scaled] if reverse else scaled
