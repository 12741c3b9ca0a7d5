# SPDX-License-Identifier: Apache-2.0
"""PodTopologySpread: hard constraints refuse what would skew the spread, soft ones prefer emptier domains.

Source: pkg/scheduler/framework/plugins/podtopologyspread. A pod without constraints of its own gets the
system defaults (hostname, skew 3; zone, skew 5; soft), with the selector of the services that select it.
Selectors of replication controllers, replica sets and stateful sets would join it; a snapshot does not
carry them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal_common.kube.plugin import MAX_NODE_SCORE, NodeTest
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, UNSCHEDULABLE, Refusal
from shoal_common.pods import DO_NOT_SCHEDULE, HOSTNAME, SCHEDULE_ANYWAY, PodRecord, SpreadConstraint
from shoal_common.selectors import LabelSelector, Requirement, untolerated

NAME = "PodTopologySpread"
ZONE = "topology.kubernetes.io/zone"
SYSTEM_DEFAULTS = ((HOSTNAME, 3), (ZONE, 5))
SKEWED = Refusal(("node(s) didn't match pod topology spread constraints",), UNSCHEDULABLE)
NO_LABEL = Refusal(
    ("node(s) didn't match pod topology spread constraints (missing required label)",), UNRESOLVABLE
)


@dataclass(frozen=True, slots=True)
class _Domains:
    """One hard constraint with the matching pods of each domain and what it must stay close to."""

    constraint: SpreadConstraint
    counts: Mapping[str, int]
    least: int
    itself: int  # 1 where the pod matches its own selector

    def skewed(self, domain: str) -> bool:
        return self.counts.get(domain, 0) + self.itself - self.least > self.constraint.max_skew


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest | None:
    """Refuse nodes whose domain would exceed maxSkew over the emptiest domain."""
    constraints = [c for c in pod.spread if c.when_unsatisfiable == DO_NOT_SCHEDULE]
    if not constraints:
        return None
    domains = [_domains(snapshot, pod, constraint, constraints) for constraint in constraints]

    def test(info: NodeInfo) -> Refusal | None:
        for domain in domains:
            value = info.node.labels.get(domain.constraint.topology_key)
            if value is None:
                return NO_LABEL
            if domain.skewed(value):
                return SKEWED
        return None

    return test


def _domains(
    snapshot: Snapshot, pod: PodRecord, constraint: SpreadConstraint, hard: Sequence[SpreadConstraint]
) -> _Domains:
    counts: dict[str, int] = {}
    for info in snapshot.infos:
        if _has_keys(info, hard) and _counts_node(constraint, pod, info):
            value = info.node.labels[constraint.topology_key]
            counts[value] = counts.get(value, 0) + _matching_pods(info, constraint.selector, pod.namespace)
    enough = counts and len(counts) >= constraint.min_domains
    itself = constraint.selector is not None and constraint.selector.matches(pod.labels)
    return _Domains(constraint, counts, min(counts.values()) if enough else 0, int(itself))


def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[int] | None:
    """Prefer domains with fewer matching pods; nodes that lack a key of the pod's own constraints score 0."""
    constraints = _soft_constraints(snapshot, pod)
    if not constraints:
        return None
    need_keys = bool(pod.spread)
    scored = [info for info in candidates if not need_keys or _has_keys(info, constraints)]
    counted = [info for info in snapshot.infos if not need_keys or _has_keys(info, constraints)]
    raw = dict.fromkeys((info.name for info in scored), 0.0)
    for constraint in constraints:
        _add_constraint(raw, constraint, pod, scored, counted)
    return _normalise({name: _round(value) for name, value in raw.items()}, candidates)


def _soft_constraints(snapshot: Snapshot, pod: PodRecord) -> list[SpreadConstraint]:
    if pod.spread:
        return [c for c in pod.spread if c.when_unsatisfiable == SCHEDULE_ANYWAY]
    wanted: dict[str, str] = {}
    for service in snapshot.services:
        same = all(pod.labels.get(key) == value for key, value in service.selector.items())
        if service.namespace == pod.namespace and same:
            wanted.update(service.selector)
    if not wanted:
        return []
    selector = LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in wanted.items()))
    return [SpreadConstraint(key, skew, SCHEDULE_ANYWAY, selector) for key, skew in SYSTEM_DEFAULTS]


def _add_constraint(
    raw: dict[str, float],
    constraint: SpreadConstraint,
    pod: PodRecord,
    scored: Sequence[NodeInfo],
    counted: Sequence[NodeInfo],
) -> None:
    """Add count * ln(size + 2) + maxSkew - 1 to each scored node that has the constraint's key."""
    key, selector = constraint.topology_key, constraint.selector
    if key == HOSTNAME:
        size = len(scored)
        counts = {info.name: _matching_pods(info, selector, pod.namespace) for info in scored}
    else:
        counts = dict.fromkeys((info.node.labels.get(key, "") for info in scored), 0)
        size = len(counts)
        for info in counted:
            value = info.node.labels.get(key, "")
            if value in counts and _counts_node(constraint, pod, info):
                counts[value] += _matching_pods(info, selector, pod.namespace)
    weight = math.log(size + 2)
    for info in scored:
        if key in info.node.labels:
            count = counts[info.name if key == HOSTNAME else info.node.labels[key]]
            raw[info.name] += count * weight + (constraint.max_skew - 1)


def _round(value: float) -> int:
    """Go's math.Round of a value that is not negative: half away from zero."""
    fraction, whole = math.modf(value)
    return int(whole) + (fraction >= 0.5)


def _normalise(raw: Mapping[str, int], candidates: Sequence[NodeInfo]) -> list[int]:
    most, least = max(raw.values(), default=0), min(raw.values(), default=0)
    scores = []
    for info in candidates:
        if info.name not in raw:
            scores.append(0)
        elif most == 0:
            scores.append(MAX_NODE_SCORE)
        else:
            scores.append(MAX_NODE_SCORE * (most + least - raw[info.name]) // most)
    return scores


def _has_keys(info: NodeInfo, constraints: Sequence[SpreadConstraint]) -> bool:
    return all(constraint.topology_key in info.node.labels for constraint in constraints)


def _counts_node(constraint: SpreadConstraint, pod: PodRecord, info: NodeInfo) -> bool:
    """The node inclusion policies: nodeAffinityPolicy (Honor) and nodeTaintsPolicy (Ignore)."""
    if constraint.honor_affinity and not pod.admits_node(info.name, info.node.labels):
        return False
    hard = untolerated(info.node.taints, pod.tolerations, ("NoSchedule", "NoExecute"))
    return not (constraint.honor_taints and any(hard))


def _matching_pods(info: NodeInfo, selector: LabelSelector | None, namespace: str) -> int:
    """Pods of the namespace that match and are not terminating; an empty selector counts none."""
    if selector is None or not selector.requirements:
        return 0
    return sum(
        not other.terminating and other.namespace == namespace and selector.matches(other.labels)
        for other in info.pods
    )
