# SPDX-License-Identifier: Apache-2.0
"""Scheduler profiles: which filters in which order, which scores with which weights.

Source: pkg/scheduler/apis/config/v1/default_plugins.go. The volume plugins and DynamicResources stand
between NodeResourcesFit and PodTopologySpread and after InterPodAffinity; for pods without volumes to bind
and without resource claims they refuse nothing and score nothing, and they are left out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal_common.kube import (
    balanced_allocation,
    image_locality,
    inter_pod_affinity,
    node_affinity,
    node_name,
    node_ports,
    node_resources_fit,
    node_unschedulable,
    pod_topology_spread,
    taint_toleration,
)
from shoal_common.kube.plugin import Filter, NodeTest, Score
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.kube.verdict import Refusal, Verdict
from shoal_common.pods import PodRecord

VERSIONS = ("1.35", "1.36")

DEFAULT_FILTERS: tuple[Filter, ...] = (
    node_unschedulable.filter_nodes,
    node_name.filter_nodes,
    taint_toleration.filter_nodes,
    node_affinity.filter_nodes,
    node_ports.filter_nodes,
    node_resources_fit.filter_nodes,
    pod_topology_spread.filter_nodes,
    inter_pod_affinity.filter_nodes,
)


@dataclass(frozen=True, slots=True)
class WeightedScore:
    """A score plugin in a profile."""

    name: str
    weight: int
    score: Score


@dataclass(frozen=True, slots=True)
class Profile:
    """Filters in order (the first refusal of a node is reported) and weighted scores."""

    filters: tuple[Filter, ...]
    scores: tuple[WeightedScore, ...]

    def judge(self, snapshot: Snapshot, pod: PodRecord) -> Verdict:
        """Filter every node, then score the feasible ones."""
        refusals, feasible = refuse(self.filters, snapshot, pod)
        rows = self.score_nodes(snapshot, pod, feasible)
        return Verdict(
            feasible=tuple(rows),
            failures={name: refusal.reasons for name, refusal in refusals.items()},
            codes={name: refusal.code for name, refusal in refusals.items()},
            scores=rows,
            total={name: sum(row.values()) for name, row in rows.items()},
        )

    def score_nodes(
        self, snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]
    ) -> dict[str, dict[str, float]]:
        """Weighted scores by node and plugin; normalisation is over these candidates."""
        rows: dict[str, dict[str, float]] = {info.name: {} for info in candidates}
        for plugin in self.scores if candidates else ():
            values = plugin.score(snapshot, pod, candidates)
            if values is not None:
                for row, value in zip(rows.values(), values, strict=True):
                    row[plugin.name] = value * plugin.weight
        return rows


def first_refusal(filters: Sequence[Filter], snapshot: Snapshot, pod: PodRecord) -> NodeTest:
    """One test of a node out of many filters, each prepared once: the first refusal counts."""
    tests = [test for prepare in filters if (test := prepare(snapshot, pod)) is not None]

    def test_node(info: NodeInfo) -> Refusal | None:
        return next((refusal for test in tests if (refusal := test(info)) is not None), None)

    return test_node


def refuse(
    filters: Sequence[Filter], snapshot: Snapshot, pod: PodRecord
) -> tuple[dict[str, Refusal], list[NodeInfo]]:
    """Ask every node: the refusals by name, and the nodes that may host the pod."""
    test = first_refusal(filters, snapshot, pod)
    refusals = {info.name: refusal for info in snapshot.infos if (refusal := test(info)) is not None}
    return refusals, [info for info in snapshot.infos if info.name not in refusals]


def default_profile(
    version: str = "1.36", strategy: node_resources_fit.Strategy = node_resources_fit.least_allocated_score
) -> Profile:
    """The default profile of a kube-scheduler version, with NodeResourcesFit's strategy to choose.

    Raises:
        ValueError: a version whose scores are not known here.
    """
    if version not in VERSIONS:
        raise ValueError(f"kube-scheduler {version} is not known: write one of {', '.join(VERSIONS)}")
    fit = node_resources_fit.score_by(strategy)
    return Profile(
        DEFAULT_FILTERS,
        (
            WeightedScore(taint_toleration.NAME, 3, taint_toleration.score_nodes),
            WeightedScore(node_affinity.NAME, 2, node_affinity.score_nodes),
            WeightedScore(pod_topology_spread.NAME, 2, pod_topology_spread.score_nodes),
            WeightedScore(inter_pod_affinity.NAME, 2, inter_pod_affinity.score_nodes),
            WeightedScore(node_resources_fit.NAME, 1, fit),
            WeightedScore(balanced_allocation.NAME, 1, balanced_allocation.score_by(version)),
            WeightedScore(image_locality.NAME, 1, image_locality.score_nodes),
        ),
    )


def evaluate(snapshot: Snapshot, pod: PodRecord, version: str = "1.36") -> Verdict:
    """What kube-scheduler's default profile answers: version "1.35" (and before) or "1.36" (and after)."""
    return default_profile(version).judge(snapshot, pod)


def evaluate_most_allocated(snapshot: Snapshot, pod: PodRecord) -> Verdict:
    """The default profile of 1.36 with NodeResourcesFit packing (MostAllocated) instead of spreading."""
    return default_profile("1.36", node_resources_fit.most_allocated_score).judge(snapshot, pod)
