# SPDX-License-Identifier: Apache-2.0
"""Whatever comes in which order: the state equals its recomputation, and records equal `manifests`'."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.state.live import LiveCluster
from shoal_client.state.reading import Reader
from shoal_common.fields import Field
from shoal_common.manifests import read_node, read_pod
from shoal_simulations.benchmarks.informer import large_node, large_pod
from shoal_simulations.live_events import RandomEvents, differences

MODEST = settings(deadline=None, derandomize=True, max_examples=30)


@MODEST
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_case_17_any_events_leave_the_sums_of_a_recomputation(seed: int, steps: int) -> None:
    live = LiveCluster()
    source = RandomEvents(live, seed)
    for _ in range(steps):
        source.step()
    assert differences(live) == []


def test_case_17_ten_thousand_random_events() -> None:
    live = LiveCluster()
    source = RandomEvents(live, seed=10_000)
    for _ in range(100):
        for _ in range(100):
            source.step()
        assert differences(live) == []


EDITS: list[tuple[str, Any]] = [
    ("spec.nodeName", "other"), ("spec.priority", 7), ("spec.schedulerName", "mine"), ("metadata.labels", {}),
    ("spec.containers", [{"name": "a", "image": "b", "ports": [{"hostPort": 80}]}]),
    ("spec.initContainers", [{"name": "i", "image": "j", "resources": {"requests": {"cpu": "7"}}}]),
    ("spec.initContainers", [{"name": "s", "image": "j", "restartPolicy": "Always"}]),
    ("spec.overhead", {"cpu": "1"}), ("spec.resources", {"requests": {"cpu": "3"}}),
    ("spec.nodeSelector", {"a": "b"}), ("spec.schedulingGates", [{"name": "shoal.dev/placement"}]),
    ("spec.volumes", [{"name": "v", "image": {"reference": "r"}}]), ("spec.volumes", [{"name": "w"}]),
    ("spec.topologySpreadConstraints",
     [{"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["app"],
       "labelSelector": {}}]),
    ("spec.tolerations", []), ("metadata.annotations", {"shoal.dev/class": "io", "private": "x"}),
    ("metadata.namespace", "elsewhere"), ("metadata.ownerReferences", []), ("status.phase", "Failed"),
    ("metadata.deletionTimestamp", "2026-01-01T00:00:00Z"), ("status.reason", "Evicted"),
    ("status.conditions", [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]),
    ("status.containerStatuses",
     [{"name": "main", "allocatedResources": {"cpu": "9"}, "resources": {"requests": {"cpu": "8"}}}]),
]  # fmt: skip


def edited(content: dict[str, Any], edits: list[int]) -> dict[str, Any]:
    content = copy.deepcopy(content)
    for index in edits:
        path, value = EDITS[index]
        top, _, key = path.partition(".")
        content[top][key] = value
    return content


@MODEST
@given(st.lists(st.lists(st.integers(0, len(EDITS) - 1), max_size=4), min_size=2, max_size=8))
def test_shared_templates_give_the_records_of_a_fresh_reading(edits: list[list[int]]) -> None:
    reader = Reader()
    for number, edit in enumerate(edits):
        content = edited(large_pod(number % 3, 10), edit)
        assert reader.pod(content) == read_pod(Field("pod", "", content))


def test_pods_of_one_owner_share_what_is_the_same() -> None:
    reader = Reader()
    first, second = (reader.pod(large_pod(number, 10)) for number in (0, 1))
    assert first.resources is second.resources
    assert first.labels is second.labels
    nodes = [reader.node(large_node(number)) for number in (0, 1)]
    assert nodes[0].images[3] is nodes[1].images[3]
    assert nodes[1] == read_node(Field("node", "", large_node(1)))
