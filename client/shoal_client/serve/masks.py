# SPDX-License-Identifier: Apache-2.0
"""The filter verb's answer: nodes without room by the API's own objects, and only those.

A pod that an extender rejects is tried again when some object changes. So nothing may reject that can become
right by itself, such as an old metric: that belongs into scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal_client.serve.live import LiveState
from shoal_client.serve.payloads import Candidates
from shoal_common.pods import NodeRecord, PodRecord

UNKNOWN = "node is not in shoal's cache"


@dataclass(frozen=True, slots=True)
class Filtered:
    """Positions of the nodes that may take the pod, and why the others cannot."""

    kept: Sequence[int] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # full at the moment
    unresolvable: Mapping[str, str] = field(default_factory=dict)  # would not fit an empty node either
    error: str = ""


def filtered(live: LiveState, asked: Candidates, closed: bool) -> Filtered:
    """Split the asked nodes. A node that is not known passes, unless the policy fails closed."""
    nodes, kept = live.nodes, []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for position, name in enumerate(asked.names):
        node = nodes.get(name)
        if node is None:
            if closed:
                failed[name] = UNKNOWN
            else:
                kept.append(position)
            continue
        reasons = live.insufficient(name, asked.pod)
        if not reasons:
            kept.append(position)
        elif lacks(node, asked.pod):
            unresolvable[name] = "; ".join(reasons)
        else:
            failed[name] = "; ".join(reasons)
    return Filtered(kept, failed, unresolvable)


def lacks(node: NodeRecord, pod: PodRecord) -> bool:
    """Whether the pod asks for more than the whole node has."""
    room = node.allocatable
    return any(amount > room.get(name, 0) for name, amount in pod.requests.items())
