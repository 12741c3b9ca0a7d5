# SPDX-License-Identifier: Apache-2.0
"""Sampling, rotation and ties by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from shoal_common.kube import node_resources_fit
from shoal_common.kube.profile import Profile, default_profile
from shoal_common.kube.selection import (
    choose_host,
    num_feasible_nodes_to_find,
    sample_candidates,
    schedule_one,
    zone_order,
)
from shoal_common.kube.snapshot import Snapshot
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.requests import ContainerResources, PodResources


@pytest.mark.parametrize(
    ("nodes", "percentage", "expected"),
    [
        (0, 0, 0),
        (50, 0, 50),
        (99, 10, 99),
        (100, 0, 100),  # 50 % would be 50
        (200, 0, 100),  # 49 % would be 98
        (1000, 0, 420),  # 50 - 8 = 42 %
        (5000, 0, 500),  # 50 - 40 = 10 %
        (6000, 0, 300),  # 50 - 48 = 2, at least 5 %
        (1000, 30, 300),
        (1000, 5, 100),
        (200, 100, 200),
        (5000, 100, 5000),
    ],
)
def test_sample_size(nodes: int, percentage: int, expected: int) -> None:
    assert num_feasible_nodes_to_find(nodes, percentage) == expected


def test_the_search_rotates_by_the_nodes_it_tried() -> None:
    fits = {1, 2, 4, 5}.__contains__
    first = sample_candidates(fits, 6, 0, 2)
    assert (first.candidates, first.next_start) == ((1, 2), 3)
    second = sample_candidates(fits, 6, first.next_start, 2)
    assert (second.candidates, second.next_start) == ((4, 5), 0)
    around = sample_candidates(fits, 6, 5, 3)
    assert (around.candidates, around.next_start) == ((5, 1, 2), 3)


def test_a_search_that_finds_too_few_tries_every_node_once() -> None:
    sample = sample_candidates(lambda index: index == 0, 4, 3, 2)
    assert (sample.candidates, sample.next_start) == ((0,), 3)
    assert sample_candidates(lambda _: True, 0, 0, 1).candidates == ()


def test_zones_take_turns() -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = [NodeRecord(name, {zone: name[0]}) for name in ("a1", "a2", "a3", "b1", "c1", "c2")]
    assert [node.name for node in zone_order(nodes)] == ["a1", "b1", "c1", "a2", "c2", "a3"]


@pytest.mark.parametrize("kwargs", [{"version": "1.34"}, {"version": "1.36", "extenders": True}])
def test_ties_are_drawn_evenly_before_1_35_and_with_extenders(kwargs: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(choose_host([7, 9, 9, 3, 9], rng, **kwargs) for _ in range(3000))  # type: ignore[arg-type]
    assert drawn.keys() == {1, 2, 4}
    assert all(abs(count - 1000) < 120 for count in drawn.values())


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ([5.0], 0),
        ([9, 9, 9], 0),
        ([1, 9, 9], 1),
        ([1, 2, 9, 9], 3),  # 9 at 3 rises over 2 to index 1, and the left child goes up
        ([1, 1, 1, 1, 2], 4),
        ([3, 9, 1, 9], 1),
    ],
)
def test_from_1_35_the_heap_decides_without_a_draw(totals: list[float], expected: int) -> None:
    assert choose_host(totals, np.random.default_rng(0), version="1.36") == expected


def test_no_candidate_is_an_error() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        choose_host([], np.random.default_rng(0))


def node(name: str, cpu_millicores: int) -> NodeRecord:
    return NodeRecord(name, allocatable={"cpu": cpu_millicores, "memory": 2**34, "pods": 10})


def test_a_single_feasible_node_is_taken_without_scoring() -> None:
    one_cpu = PodRecord("p", resources=PodResources((ContainerResources({"cpu": Fraction(1)}),)))
    profile, rng = default_profile(), np.random.default_rng(0)
    choice = schedule_one(profile, Snapshot((node("small", 500), node("large", 4000))), one_cpu, rng)
    assert (choice.node, choice.scored, choice.next_start) == ("large", False, 0)
    none = schedule_one(profile, Snapshot((node("small", 500),)), one_cpu, rng)
    assert (none.node, none.candidates) == (None, ())
    two = schedule_one(profile, Snapshot((node("a", 2000), node("b", 8000))), one_cpu, rng)
    assert (two.node, two.scored) == ("b", True)


def test_a_cycle_over_200_nodes_sees_100_of_them() -> None:
    snapshot = Snapshot(tuple(node(f"n{i:03d}", 4000) for i in range(200)))
    profile, rng = default_profile(), np.random.default_rng(0)
    first = schedule_one(profile, snapshot, PodRecord("p"), rng)
    assert (first.candidates[0], len(first.candidates), first.next_start) == ("n000", 100, 100)
    second = schedule_one(profile, snapshot, PodRecord("p"), rng, start=first.next_start)
    assert (second.candidates[0], second.next_start) == ("n100", 0)
    every = schedule_one(profile, snapshot, PodRecord("p"), rng, percentage=100)
    assert len(every.candidates) == 200


def test_case_51_a_rotating_sample_defeats_packing_and_percentage_100_restores_it() -> None:
    # kubernetes#95709: MostAllocated packs into the fullest node only while the sample holds it.
    room = {"cpu": 10_000, "memory": 2**36, "pods": 110}
    nodes = tuple(NodeRecord(f"n{i:03d}", {}, room) for i in range(400))
    asked = PodResources((ContainerResources({"cpu": Fraction(1), "memory": Fraction(2**30)}),))
    profile = default_profile(strategy=node_resources_fit.most_allocated_score)
    fit = [weighted for weighted in profile.scores if weighted.name == node_resources_fit.NAME]
    used = {}
    for percentage in (0, 100):
        pods, start = [], 0
        for number in range(8):
            pod = PodRecord(f"p{number}", uid=str(number), resources=asked)
            snapshot = Snapshot(nodes, tuple(pods))
            packing = Profile(profile.filters, tuple(fit))
            rng = np.random.default_rng(0)
            chosen = schedule_one(packing, snapshot, pod, rng, start=start, percentage=percentage)
            pods.append(replace(pod, node_name=chosen.node or ""))
            start = chosen.next_start
        used[percentage] = len({pod.node_name for pod in pods})
    assert num_feasible_nodes_to_find(400) == 188
    assert used[100] == 1
    assert used[0] > 1
