# SPDX-License-Identifier: Apache-2.0
"""Which nodes kube-scheduler looks at, and which of the best it takes.

Source: pkg/scheduler/schedule_one.go (numFeasibleNodesToFind, findNodesThatPassFilters, selectHost) and
backend/cache/node_tree.go. Real kube-scheduler searches with 16 workers, so a few nodes beyond the sample
may be tried and the candidates' order is that of arrival; here it is the order of one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal_common.kube.profile import Profile, first_refusal
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.pods import NodeRecord, PodRecord

MIN_FEASIBLE_NODES = 100
MIN_PERCENTAGE = 5
FIRST_HEAP_VERSION = (1, 35)
REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"


def num_feasible_nodes_to_find(nodes: int, percentage: int = 0) -> int:
    """How many feasible nodes end the search.

    Under 100 nodes: all. Otherwise `percentage` of them (percentageOfNodesToScore; 0 is adaptive: 50 - n/125,
    at least 5), never fewer than 100.
    """
    if nodes < MIN_FEASIBLE_NODES:
        return nodes
    share = percentage if percentage > 0 else max(50 - nodes // 125, MIN_PERCENTAGE)
    return max(nodes * share // 100, MIN_FEASIBLE_NODES)


def zone_order(nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """The order in which nodes are searched: one of each zone in turn, zones as first seen."""
    zones: dict[tuple[str, str], list[NodeRecord]] = {}
    for node in nodes:
        zones.setdefault((node.labels.get(REGION, ""), node.labels.get(ZONE, "")), []).append(node)
    rounds = range(max((len(zone) for zone in zones.values()), default=0))
    return [zone[turn] for turn in rounds for zone in zones.values() if turn < len(zone)]


@dataclass(frozen=True, slots=True)
class Sample:
    """The outcome of one search: the candidates' indices in order of discovery; where the next begins."""

    candidates: tuple[int, ...]
    next_start: int


def sample_candidates(fits: Callable[[int], bool], nodes: int, start: int, wanted: int) -> Sample:
    """Search `nodes` indices from `start`, around the end, until `wanted` of them fit.

    The next search starts behind the last node that was tried.
    """
    candidates: list[int] = []
    tried = 0
    while tried < nodes and len(candidates) < wanted:
        index = (start + tried) % nodes
        if fits(index):
            candidates.append(index)
        tried += 1
    return Sample(tuple(candidates), (start + tried) % nodes if nodes else 0)


def choose_host(
    totals: Sequence[float], rng: np.random.Generator, *, version: str = "1.36", extenders: bool = False
) -> int:
    """Index of the node that is taken out of totals in order of discovery.

    Up to 1.34, and later where an extender scored: one of the largest at random, each as likely. From 1.35 on
    without extenders: the root of a heap, which is decided by the order alone.

    Raises:
        ValueError: no candidates.
    """
    if not totals:
        raise ValueError("no candidate to choose from")
    if extenders or tuple(int(part) for part in version.split(".")) < FIRST_HEAP_VERSION:
        tied = [index for index, total in enumerate(totals) if total == max(totals)]
        return tied[int(rng.integers(len(tied)))]
    return _heap_root(totals)


def _heap_root(totals: Sequence[float]) -> int:
    """What Go's heap.Init leaves on top of a largest-first heap; not always the first of the largest."""
    heap = list(range(len(totals)))
    for top in reversed(range(len(heap) // 2)):
        parent = top
        while (child := 2 * parent + 1) < len(heap):
            if child + 1 < len(heap) and totals[heap[child + 1]] > totals[heap[child]]:
                child += 1
            if totals[heap[child]] <= totals[heap[parent]]:
                break
            heap[parent], heap[child] = heap[child], heap[parent]
            parent = child
    return heap[0]


@dataclass(frozen=True, slots=True)
class Choice:
    """One scheduling cycle: the node taken (None when none fits), whether it was scored, where to go on."""

    node: str | None
    candidates: tuple[str, ...]
    scored: bool
    next_start: int


def schedule_one(
    profile: Profile,
    snapshot: Snapshot,
    pod: PodRecord,
    rng: np.random.Generator,
    *,
    start: int = 0,
    percentage: int = 0,
    version: str = "1.36",
) -> Choice:
    """Sample candidates, score them, choose: kube-scheduler's cycle without extenders.

    A single feasible node is taken without scoring.
    """
    infos = {info.name: info for info in snapshot.infos}
    order: list[NodeInfo] = [infos[node.name] for node in zone_order(snapshot.nodes)]
    test = first_refusal(profile.filters, snapshot, pod)
    wanted = num_feasible_nodes_to_find(len(order), percentage)
    sample = sample_candidates(lambda index: test(order[index]) is None, len(order), start, wanted)
    candidates = [order[index] for index in sample.candidates]
    names = tuple(info.name for info in candidates)
    if len(candidates) <= 1:
        return Choice(names[0] if names else None, names, False, sample.next_start)
    rows = profile.score_nodes(snapshot, pod, candidates)
    totals = [sum(rows[name].values()) for name in names]
    chosen = names[choose_host(totals, rng, version=version)]
    return Choice(chosen, names, True, sample.next_start)
