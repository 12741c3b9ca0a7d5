# SPDX-License-Identifier: Apache-2.0
"""A gated pod's node affinity, narrowed to the nodes that were chosen for it.

While a pod is gated its affinity may only become stricter (KEP-3838): without required node affinity one
may be set; with it, requirements may be added to the terms that are there. Preferred terms are free. The
best node is always preferred; the few best are required only of a pod that its controller would make again,
because a narrowed pod whose nodes fill up or die can only be helped by being made again (`rescue.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_common.pods import HOSTNAME

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MADE_AGAIN = ("ReplicaSet", "StatefulSet")
"""Controllers that replace a deleted pod at no cost; a Job counts it as a failure."""


def narrowed(affinity: Mapping[str, Any] | None, hosts: Sequence[str], required: bool) -> dict[str, Any]:
    """The affinity of a pod with these host names (best first) preferred and, if `required`, required."""
    whole = dict(affinity or {})
    node = dict(whole.get("nodeAffinity") or {})
    best = {"weight": 100, "preference": {"matchExpressions": [_among(hosts[:1])]}}
    node[PREFERRED] = [*(node.get(PREFERRED) or ()), best]
    if required:
        terms = (node.get(REQUIRED) or {}).get("nodeSelectorTerms")
        only = [_narrower(t, hosts) for t in terms] if terms else [{"matchExpressions": [_among(hosts)]}]
        node[REQUIRED] = {"nodeSelectorTerms": only}
    return {**whole, "nodeAffinity": node}


def _narrower(term: Mapping[str, Any], hosts: Sequence[str]) -> Mapping[str, Any]:
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return term  # an empty term matches no node; with a requirement it would
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), _among(hosts)]}


def _among(hosts: Sequence[str]) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "In", "values": list(hosts)}
