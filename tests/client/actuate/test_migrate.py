# SPDX-License-Identifier: Apache-2.0
"""Migration: opted-in pods of low priority only, within budgets, evenly spaced, and only with a gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.locks import Locks
from shoal_client.actuate.migrate import Migration
from shoal_client.kube.api import Api
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
OPTED_IN = {"shoal.dev/migratable": "true", "app": "a"}
ACTION = {"enabled": True, "perHour": 6, "hotRatio": 0.9}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}


class Twin:
    """Answers as it is told, and notes whom it was asked about."""

    def __init__(self) -> None:
        self.gains = True
        self.asked: list[str] = []

    def __call__(self, pod: PodRecord) -> bool:
        self.asked.append(pod.name)
        return self.gains


@pytest.fixture
def twin() -> Twin:
    return Twin()


def running(server: ApiServer, name: str, host: str, cpu: str, **manifest: Any) -> None:
    manifest = {"labels": OPTED_IN, "owner": {**OWNER, "uid": f"r-{name}"}, **manifest}
    server.create("pods", {**pod(name, cpu=cpu, node_name=host, **manifest), "status": READY})


@pytest.fixture
def migration(
    server: ApiServer,
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    events: Events,
    twin: Twin,
    clock: Any,
) -> Migration:
    for name in ("n1", "n2"):
        server.create("nodes", node(name, cpu="8"))
    return Migration(api, leader, cluster, grant({"migration": ACTION}), twin, Locks(clock), events, clock)


def there(server: ApiServer, name: str) -> bool:
    """Whether a pod is there and not on its way out."""
    pods = {p["metadata"]["name"]: p for p in server.objects("pods")}
    return name in pods and "deletionTimestamp" not in pods[name]["metadata"]


def test_from_a_hot_node_at_the_spacing_of_the_bound(
    server: ApiServer, migration: Migration, observe: Callable[[], None], clock: Any, twin: Twin
) -> None:
    """Six an hour: none in the first ten minutes after a start, then one, then none for ten minutes."""
    running(server, "a", "n1", "4")
    running(server, "b", "n1", "3800m")
    observe()
    clock.now = 599.0
    migration.step()
    assert twin.asked == []
    clock.now = 600.0
    migration.step()
    assert twin.asked == ["a"]
    assert not there(server, "a")
    assert there(server, "b")
    clock.now = 1100.0
    migration.step()
    assert there(server, "b")
    assert [e["reason"] for e in server.objects("events.events.k8s.io")] == ["Migrated"]


def test_not_without_a_gain_in_the_twin(
    server: ApiServer, migration: Migration, observe: Callable[[], None], clock: Any, twin: Twin
) -> None:
    twin.gains = False
    running(server, "a", "n1", "7800m")
    observe()
    for _ in range(20):
        clock.now += 600
        migration.step()
    assert there(server, "a")
    assert len(twin.asked) == 4  # an owner rests for an hour after every question


def test_a_disruption_budget_holds(
    server: ApiServer, migration: Migration, observe: Callable[[], None], clock: Any
) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    server.create("poddisruptionbudgets", {"metadata": {"name": "b"}, "spec": spec})
    running(server, "a", "n1", "7800m")
    observe()
    clock.now = 600.0
    migration.step()
    assert there(server, "a")
    assert any(r.path.endswith("/pods/a/eviction") for r in server.requests)


@pytest.mark.parametrize(
    "manifest",
    [
        {"labels": {}},
        {"owner": None},
        {"owner": {**OWNER, "kind": "Job"}},
        {"owner": {**OWNER, "kind": "DaemonSet"}},
        {"spec": {"priority": 1}},
        {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}},
    ],
)
def test_who_is_never_moved(
    server: ApiServer,
    migration: Migration,
    observe: Callable[[], None],
    clock: Any,
    twin: Twin,
    manifest: dict[str, Any],
) -> None:
    running(server, "a", "n1", "7800m", **manifest)
    observe()
    clock.now = 600.0
    migration.step()
    assert twin.asked == []


def test_not_to_where_it_would_be_hot_again(
    server: ApiServer, migration: Migration, observe: Callable[[], None], clock: Any, twin: Twin
) -> None:
    running(server, "a", "n1", "7800m")
    running(server, "b", "n2", "7800m")
    observe()
    clock.now = 600.0
    migration.step()
    assert twin.asked == []


def test_not_to_where_a_taint_keeps_the_pod_off(
    server: ApiServer, migration: Migration, observe: Callable[[], None], clock: Any, twin: Twin
) -> None:
    taint = {"key": "dedicated", "value": "others", "effect": "NoSchedule"}
    server.patch("nodes", "n2", {"spec": {"taints": [taint]}})
    running(server, "a", "n1", "7800m")
    observe()
    clock.now = 600.0
    migration.step()
    assert twin.asked == []


def test_out_of_the_way_of_a_waiting_pod_of_higher_priority(
    server: ApiServer, migration: Migration, observe: Callable[[], None], clock: Any, twin: Twin
) -> None:
    """Five of eight cores are free on either node, six are wanted: a small pod goes to the other."""
    running(server, "small", "n1", "3")
    running(server, "other", "n2", "3", labels={})
    waiting = pod("big", cpu="6", spec={"priority": 10})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    server.create("pods", {**waiting, "status": {"conditions": [condition]}})
    observe()
    clock.now = 600.0
    migration.step()
    assert twin.asked == ["small"]
    assert not there(server, "small")
