# SPDX-License-Identifier: Apache-2.0
"""InterPodAffinity: pods near to, or far from, pods with certain labels within a topology domain.

Source: pkg/scheduler/framework/plugins/interpodaffinity (filtering.go, scoring.go), hardPodAffinityWeight 1.
A domain is a (topology key, value) pair of node labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shoal_common.kube.plugin import MAX_NODE_SCORE, NodeTest
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import UNRESOLVABLE, UNSCHEDULABLE, Refusal
from shoal_common.pods import PodRecord, PodTerm

NAME = "InterPodAffinity"
HARD_POD_AFFINITY_WEIGHT = 1
NOT_NEAR = Refusal(("node(s) didn't match pod affinity rules",), UNRESOLVABLE)
TOO_NEAR = Refusal(("node(s) didn't match pod anti-affinity rules",), UNSCHEDULABLE)
UNWANTED = Refusal(("node(s) didn't satisfy existing pods anti-affinity rules",), UNSCHEDULABLE)

Domain = tuple[str, str]


def filter_nodes(snapshot: Snapshot, pod: PodRecord) -> NodeTest | None:
    """Refuse nodes that break the pod's required terms, or the anti-affinity of pods already there."""
    unwanted = _unwanted_domains(snapshot, pod)
    if not unwanted and not pod.affinity and not pod.anti_affinity:
        return None
    affinity, anti_affinity = _resolved(pod.affinity, snapshot), _resolved(pod.anti_affinity, snapshot)
    near = _near_domains(snapshot, affinity)
    far = _far_domains(snapshot, anti_affinity)
    first_of_its_kind = not near and _matches_all(affinity, pod)

    def test(info: NodeInfo) -> Refusal | None:
        labels = info.node.labels
        if not _near_enough(affinity, labels, near, first_of_its_kind):
            return NOT_NEAR
        if any(_domain(term, labels) in far for term in anti_affinity):
            return TOO_NEAR
        return UNWANTED if any(domain in unwanted for domain in labels.items()) else None

    return test


def _near_enough(
    terms: Iterable[PodTerm], labels: Mapping[str, str], near: set[Domain], first_of_its_kind: bool
) -> bool:
    """Every term's domain holds a match; a pod that matches itself may be the first anywhere."""
    domains = [_domain(term, labels) for term in terms]
    if None in domains:
        return False
    return first_of_its_kind or all(domain in near for domain in domains)


def _domain(term: PodTerm, labels: Mapping[str, str]) -> Domain | None:
    value = labels.get(term.topology_key)
    return None if value is None else (term.topology_key, value)


def _resolved(terms: Sequence[PodTerm], snapshot: Snapshot) -> list[PodTerm]:
    """The incoming pod's terms, their namespace selectors turned into the namespaces there are.

    An empty selector means every namespace, known or not, and stays.
    """
    return [_in_known_namespaces(term, snapshot) for term in terms]


def _in_known_namespaces(term: PodTerm, snapshot: Snapshot) -> PodTerm:
    selector = term.namespace_selector
    if selector is None or not selector.requirements:
        return term
    there = {name for name, labels in snapshot.namespace_labels.items() if selector.matches(labels)}
    return replace(term, namespaces=term.namespaces | there, namespace_selector=None)


def _matches_all(terms: Sequence[PodTerm], pod: PodRecord) -> bool:
    return bool(terms) and all(term.matches(pod, {}) for term in terms)


def _bound_pods(snapshot: Snapshot) -> Iterator[tuple[NodeInfo, PodRecord]]:
    return ((info, pod) for info in snapshot.infos for pod in info.pods)


def _near_domains(snapshot: Snapshot, terms: Sequence[PodTerm]) -> set[Domain]:
    """Domains of the pods that match all of these required affinity terms."""
    if not terms:
        return set()
    return {
        domain
        for info, other in _bound_pods(snapshot)
        if _matches_all(terms, other)
        for term in terms
        if (domain := _domain(term, info.node.labels))
    }


def _far_domains(snapshot: Snapshot, terms: Sequence[PodTerm]) -> set[Domain]:
    """Domains of the pods that match one of these required anti-affinity terms."""
    if not terms:
        return set()
    return {
        domain
        for info, other in _bound_pods(snapshot)
        for term in terms
        if term.matches(other, {}) and (domain := _domain(term, info.node.labels))
    }


def _unwanted_domains(snapshot: Snapshot, pod: PodRecord) -> set[Domain]:
    """Domains of the pods whose required anti-affinity terms match this pod."""
    labels = snapshot.namespace_labels.get(pod.namespace, {})
    return {
        domain
        for info, other in snapshot.with_affinity
        for term in other.anti_affinity
        if term.matches(pod, labels) and (domain := _domain(term, info.node.labels))
    }


def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[int] | None:
    """Preferred terms of this pod and terms of existing pods that match it, by domain, scaled to 0..100."""
    by_domain = _domain_scores(snapshot, pod)
    if not by_domain:
        return None
    raw = [sum(by_domain.get(domain, 0) for domain in info.node.labels.items()) for info in candidates]
    least, spread = min(raw), max(raw) - min(raw)
    if spread == 0:
        return [0] * len(raw)
    return [int(float(MAX_NODE_SCORE) * ((value - least) / spread)) for value in raw]


def _domain_scores(snapshot: Snapshot, pod: PodRecord) -> Counter[Domain]:
    """Signed weights by domain; a domain that was touched stays, even at 0."""
    scores: Counter[Domain] = Counter()

    def add(terms: Iterable[PodTerm], target: PodRecord, info: NodeInfo, sign: int) -> None:
        namespace_labels = snapshot.namespace_labels.get(target.namespace, {})
        for term in terms:
            domain = _domain(term, info.node.labels)
            if domain is not None and term.matches(target, namespace_labels):
                scores[domain] += sign * (term.weight or HARD_POD_AFFINITY_WEIGHT)

    if pod.preferred_affinity or pod.preferred_anti_affinity:
        liked = _resolved(pod.preferred_affinity, snapshot)
        disliked = _resolved(pod.preferred_anti_affinity, snapshot)
        for info, other in _bound_pods(snapshot):
            add(liked, other, info, 1)
            add(disliked, other, info, -1)
    for info, other in snapshot.with_affinity:
        add(other.affinity, pod, info, 1)
        add(other.preferred_affinity, pod, info, 1)
        add(other.preferred_anti_affinity, pod, info, -1)
    return scores
