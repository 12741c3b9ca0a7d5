# SPDX-License-Identifier: Apache-2.0
"""What users of neighbouring schedulers ran into, as far as it concerns requests, filters and FGD.

Every test is named after the thread that reports it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal_common.accelerators import sharing
from shoal_common.fields import Field
from shoal_common.kube.profile import evaluate
from shoal_common.kube.snapshot import Snapshot
from shoal_common.manifests import read_node, read_pod
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.scorers.fgd_snapshot import score_snapshot

GPU = "nvidia.com/gpu"


def node(name: str, **allocatable: str | int) -> NodeRecord:
    usual: dict[str, str | int] = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return read_node(
        Field("t", "", {"metadata": {"name": name}, "status": {"allocatable": usual | allocatable}})
    )


def pod(name: str, requests: dict[str, Any], on: str = "") -> PodRecord:
    containers = [{"name": "c", "resources": {"requests": requests}}]
    spec = {"containers": containers, "nodeName": on}
    return read_pod(Field("t", "", {"metadata": {"name": name}, "spec": spec}))


def test_kubernetes_129138_pods_without_requests_spread() -> None:
    crowd = tuple(pod(f"b{i}", {}, on="busy") for i in range(20))
    verdict = evaluate(Snapshot((node("busy"), node("empty")), crowd), pod("p", {}))
    assert "NodeResourcesBalancedAllocation" not in verdict.scores["busy"]
    assert verdict.total["empty"] > verdict.total["busy"]
    assert pod("p", {}).nonzero_requests == {"cpu": 100, "memory": 200 * 2**20}


def test_kubernetes_68036_two_gpus_go_to_the_node_of_two() -> None:
    nodes = (node("a", **{GPU: 4}), node("b", **{GPU: 4}), node("c", **{GPU: 2}))
    waiting = (pod("j1", {"cpu": 1, GPU: 4}), pod("j2", {"cpu": 1, GPU: 4}))
    verdict = score_snapshot(Snapshot(nodes, waiting), pod("j0", {"cpu": 1, GPU: 2}))
    assert max(verdict.total, key=verdict.total.__getitem__) == "c"
    placed = (pod("j0", {"cpu": 1, GPU: 2}, on="c"), pod("j1", {"cpu": 1, GPU: 4}, on="a"))
    assert score_snapshot(Snapshot(nodes, placed), waiting[1]).feasible == ("b",)


def test_volcano_1782_a_lost_device_leaves_no_negative_room() -> None:
    nodes = (node("n", cpu="4", **{GPU: 6}),)
    holders = (pod("h", {"cpu": 6, GPU: 7}, on="n"),)
    refused = evaluate(Snapshot(nodes, holders), pod("g", {GPU: 1}))
    assert refused.failures == {"n": (f"Insufficient {GPU}",)}
    for score in (evaluate, score_snapshot):
        assert score(Snapshot(nodes, holders), pod("daemon", {"memory": "1Mi"})).feasible == ("n",)


@pytest.mark.parametrize("devices", [16, 80, 10**6])
def test_more_replicas_of_devices_than_any_node_has_are_scored(devices: int) -> None:
    nodes = (node("shared", **{GPU: devices}), node("eight", **{GPU: 8}))
    verdict = score_snapshot(Snapshot(nodes, (pod("x", {GPU: 9}, on="shared"),)), pod("p", {GPU: 1}))
    assert verdict.feasible == ("shared", "eight")
    wide = pod("wide", {GPU: devices})
    assert score_snapshot(Snapshot((nodes[0],)), wide).feasible == ("shared",)


@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me", "nvidia.com/mig-9g.99gb"]
)
def test_kai_1876_mig_resources_are_read_from_allocatable(name: str) -> None:
    nodes = (node("none"), node("one", **{name: 1}))
    assert evaluate(Snapshot(nodes), pod("p", {name: 1})).feasible == ("one",)
    two = evaluate(Snapshot(nodes), pod("p", {name: 2}))
    assert two.failures["one"] == (f"Insufficient {name}",)


def test_hami_1173_two_devices_are_two_distinct_ones() -> None:
    one, two = np.array([1000, 0]), np.array([1000, 1000])
    assert not sharing.fits(one, 1, 500, 2)
    assert sharing.fits(two, 2, 500, 2)
    nodes = (node("one", **{GPU: 1}), node("two", **{GPU: 2}))
    assert evaluate(Snapshot(nodes), pod("p", {GPU: 2})).feasible == ("two",)
