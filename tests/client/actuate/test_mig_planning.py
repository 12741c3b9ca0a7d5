# SPDX-License-Identifier: Apache-2.0
"""Layouts: read from mig-parted's file, allowed on idle devices only, chosen for the waiting pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.actuate.mig_catalogue import NOTHING, homogeneous, on_node, read_catalogue
from shoal_client.actuate.mig_planning import (
    CAPABLE,
    CONFIG,
    DEVICES,
    GPU,
    PRODUCT,
    STATE,
    STRATEGY,
    MigNode,
    Proposal,
    allowed,
    mig_node,
    propose,
    waiting_slices,
)
from shoal_common.accelerators.mig import PROFILES, layouts, multiset
from shoal_common.fields import Field
from shoal_common.manifests import read_node, read_pod
from shoal_common.pods import NodeRecord, PodRecord
from shoal_simulations.control_plane.builders import node, pod

ONES, SEVEN = (7, 0, 0, 0, 0), (0, 0, 0, 0, 1)


def all_of(profile: str, number: int) -> list[dict[str, Any]]:
    return [{"devices": "all", "mig-enabled": True, "mig-devices": {profile: number}}]


DOCUMENT = {
    "version": "v1",
    "mig-configs": {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "all-1g.5gb": all_of("1g.5gb", 7),
        "all-7g.40gb": all_of("7g.40gb", 1),
        "first-1g": [*all_of("7g.40gb", 1), {"devices": [0], "mig-devices": {"1g.5gb": 7}}],
        "half": [{"devices": [0], "mig-devices": {"3g.20gb": 1}}],
        "newer": all_of("1g.10gb", 4),
        "too-many": all_of("4g.20gb", 2),
        "filtered": [{"device-filter": "0x20B010DE", "devices": "all", "mig-devices": {"1g.5gb": 7}}],
    },
}
CATALOGUE = read_catalogue(DOCUMENT)


def gpu_node(config: str, strategy: str = "mixed", devices: int = 2, **labels: str) -> NodeRecord:
    product = "NVIDIA-A100-SXM4-40GB"
    held = {CONFIG: config, STATE: "success", STRATEGY: strategy, DEVICES: str(devices)}
    return read_node(Field("t", "", node("n", labels={**held, PRODUCT: product, CAPABLE: "true", **labels})))


def asking(resources: Mapping[str, int], selector: Mapping[str, str] | None = None) -> PodRecord:
    manifest = pod("p", resources=dict(resources), spec={"nodeSelector": dict(selector or {})})
    return read_pod(Field("t", "", manifest))


def test_the_catalogue_holds_what_can_be_judged() -> None:
    """Unknown profiles, more than fits on a device and filters by PCI id are left out."""
    assert list(CATALOGUE) == ["all-1g.5gb", "all-7g.40gb", "all-disabled", "first-1g", "half"]
    assert on_node(CATALOGUE["first-1g"], 2) == (ONES, SEVEN)
    assert on_node(CATALOGUE["half"], 2) == ((0, 0, 1, 0, 0), NOTHING)


@pytest.mark.parametrize("document", [None, [], {"mig-configs": []}, {"mig-configs": {"a": "x", "b": [1]}}])
def test_another_document_holds_nothing(document: object) -> None:
    assert read_catalogue(document) == {}


def test_case_54_layouts_for_strategy_single_are_alike_over_the_whole_node() -> None:
    idle = mig_node(gpu_node("all-7g.40gb", "single"), [], CATALOGUE)
    assert idle is not None
    offered = [name for name, entries in CATALOGUE.items() if allowed(idle, on_node(entries, 2))]
    assert offered == ["all-1g.5gb"]
    assert all(homogeneous(on_node(CATALOGUE[name], 2)) for name in offered)
    waiting = [asking({GPU: 1}, {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"})] * 3
    assert propose([idle], CATALOGUE, waiting_slices(waiting)) == Proposal("n", "all-1g.5gb", 3)
    in_use = mig_node(gpu_node("all-7g.40gb", "single"), [asking({GPU: 1})], CATALOGUE)
    assert in_use is not None
    assert propose([in_use], CATALOGUE, waiting_slices(waiting)) is None


def test_case_56_only_idle_devices_and_one_at_a_time() -> None:
    """Under `mixed`: all-1g would change two devices, first-1g changes one; with a 7g in use none is idle."""
    idle = mig_node(gpu_node("all-7g.40gb"), [], CATALOGUE)
    assert idle is not None
    assert [c for c, e in CATALOGUE.items() if allowed(idle, on_node(e, 2))] == ["first-1g"]
    waiting = waiting_slices([asking({"nvidia.com/mig-1g.5gb": 1})])
    assert propose([idle], CATALOGUE, waiting) == Proposal("n", "first-1g", 1)
    used = mig_node(gpu_node("all-7g.40gb"), [asking({"nvidia.com/mig-7g.40gb": 1})], CATALOGUE)
    assert used is not None
    assert used.idle() == frozenset()
    assert propose([used], CATALOGUE, waiting) is None
    half = mig_node(gpu_node("first-1g"), [asking({"nvidia.com/mig-7g.40gb": 1})], CATALOGUE)
    assert half is not None
    assert half.idle() == {0}


def test_nothing_changes_without_gain() -> None:
    idle = mig_node(gpu_node("first-1g"), [], CATALOGUE)
    assert idle is not None
    assert propose([idle], CATALOGUE, waiting_slices([asking({"nvidia.com/mig-1g.5gb": 7})])) is None
    assert propose([], CATALOGUE, waiting_slices([asking({"nvidia.com/mig-1g.5gb": 7})])) is None
    assert propose([idle], CATALOGUE, NOTHING) is None


@pytest.mark.parametrize(
    "labels",
    [
        {STATE: "pending"},
        {STATE: "failed"},
        {CONFIG: "unknown"},
        {CAPABLE: "false"},
        {DEVICES: "two"},
        {STRATEGY: "none"},
        {PRODUCT: "NVIDIA-H100-80GB-HBM3"},
        {PRODUCT: "NVIDIA-A100-SXM4-80GB"},
    ],
)
def test_a_node_whose_state_is_not_certain_is_left_alone(labels: dict[str, str]) -> None:
    assert mig_node(gpu_node("all-7g.40gb"), [], CATALOGUE) is not None
    assert mig_node(gpu_node("all-7g.40gb", "mixed", 2, **labels), [], CATALOGUE) is None


COUNTS = st.sampled_from(sorted({multiset(layout) for layout in layouts()}))
CUTS = st.lists(COUNTS, min_size=1, max_size=4)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(CUTS, st.data(), st.sampled_from(["mixed", "single"]))
def test_no_allowed_change_can_take_a_slice_from_under_a_pod(
    cut: list[tuple[int, ...]], data: st.DataObject, strategy: str
) -> None:
    """Whatever devices the used slices lie on, those devices are not among the changed ones."""
    other = data.draw(st.lists(COUNTS, min_size=len(cut), max_size=len(cut)))
    used: dict[str, int] = {}
    lies_on = set()
    for device, counts in enumerate(cut):
        for profile, number in zip(PROFILES, counts, strict=True):
            taken = data.draw(st.integers(0, number))
            resource = GPU if strategy == "single" else profile.resource
            used[resource] = used.get(resource, 0) + taken
            if taken:
                lies_on.add(device)
    there = MigNode("n", strategy, "now", tuple(cut), used)
    if allowed(there, tuple(other)):
        assert not lies_on & {d for d, (a, b) in enumerate(zip(cut, other, strict=True)) if a != b}
