# SPDX-License-Identifier: Apache-2.0
"""Through the SchedulingPolicy: shadow, canary at 10 %, active, a forced regression, the rollback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_client.policies.registry import in_canary
from shoal_common.fields import Field
from shoal_common.manifests import read_pod

sys.path.insert(0, str(Path(__file__).parent))
from live_client import World, served, wait, world

pytestmark = pytest.mark.e2e

OWNERS = 80
SPEC = {
    "mode": "Shadow",
    "fallback": {"timeoutMs": 2000},
    "drift": {"maxClippedRatio": 1.0},
    "guardrails": {"minPods": 5, "cooldownSeconds": 600},
}


def selected(cluster: World, owner: int, percent: float) -> bool:
    """Whether the owner is one of the share that a canary serves."""
    uid = f"owner-{owner}"
    of_owner = (p for p in cluster.api.objects("pods") if p["metadata"]["ownerReferences"][0]["uid"] == uid)
    return in_canary(read_pod(Field("pod", "", next(of_owner))), percent)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, SPEC) as made:
        yield made


def test_shadow_canary_active_regression_rollback(cluster: World) -> None:
    assert wait(lambda: cluster.condition("PolicyLoaded").get("status") == "True"), cluster.client.log()

    shadow = [cluster.place(owner, **{"shoal.dev/run-seconds": "0"}) for owner in range(20)]
    assert not any(map(served, shadow))
    metrics = cluster.client.metrics()
    assert metrics['shoal_fallbacks_total{reason="shadow"}'] == 20, cluster.client.log()

    cluster.apply(mode="Canary", canaryPercent=10)
    canary = {owner: served(cluster.place(owner)) for owner in range(OWNERS)}
    assert canary == {owner: selected(cluster, owner, 10) for owner in range(OWNERS)}
    assert 0 < sum(canary.values()) < OWNERS / 4
    again = {owner: served(cluster.place(owner)) for owner, was in canary.items() if was}
    assert all(again.values())

    cluster.apply(mode="Active")
    active = [cluster.place(owner) for owner in range(20)]
    assert all(map(served, active))
    assert wait(lambda: cluster.client.metric('shoal_choices_bound_total{agreed="yes",mode="active"}') == 20)
    assert cluster.condition("Ready")["reason"] == "Active"

    for owner in range(20):
        cluster.place(owner, **{"shoal.dev/fail": "OOMKilled", "shoal.dev/run-seconds": "0"})
    assert wait(lambda: cluster.status().get("mode") == "Shadow"), cluster.client.log()
    degraded = cluster.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "RolledBack")
    assert "evictions" in degraded["message"]
    assert "evictions" in cluster.status()["rollback"]["reason"]
    assert not served(cluster.place(1))
    reasons = [event["reason"] for event in cluster.api.objects("events.events.k8s.io")]
    assert "PolicyRolledBack" in reasons

    cluster.apply(objectives={"energy": 0.3})  # a changed spec is a new start
    assert served(cluster.place(2))
    cluster.apply(mode="Off")
    assert not served(cluster.place(3))
    assert cluster.client.metric('shoal_fallbacks_total{reason="off"}') == 1
