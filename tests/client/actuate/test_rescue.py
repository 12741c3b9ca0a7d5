# SPDX-License-Identifier: Apache-2.0
"""A pod that our narrowing keeps from running is made again, once, and let through then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal_client.actuate.events import Events
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.rescue import Rescue
from shoal_client.kube.api import Api
from shoal_client.placement import Placing
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}
WAITS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}


@pytest.fixture
def rescue(
    server: ApiServer, api: Api, leader: Leader, cluster: LiveCluster, events: Events, clock: Any
) -> Rescue:
    server.create("nodes", node("n1", cpu="1"))
    rescue = Rescue(api, leader, cluster, events, 60.0, clock)
    cluster.subscribe(rescue.pod_changed)
    return rescue


def stuck(server: ApiServer, name: str = "p", required: bool = True, owner: Any = OWNER) -> None:
    """A pod of four cores that was narrowed to a node of one."""
    uid = server.create("pods", pod(name, cpu="4", owner=owner))["metadata"]["uid"]
    placing = Placing(uid, ("n1",), required)
    server.patch("pods", name, {"metadata": {"annotations": placing.annotation()}})
    server.patch("pods", name, {"status": {"conditions": [WAITS]}}, subresource="status")


def names(server: ApiServer) -> list[str]:
    return [p["metadata"]["name"] for p in server.objects("pods")]


def test_made_again_after_a_time_when_another_node_has_room(
    server: ApiServer, rescue: Rescue, observe: Callable[[], None], clock: Any, cluster: LiveCluster
) -> None:
    stuck(server)
    observe()
    clock.now = 61.0
    rescue.step()
    assert names(server) == ["p"]  # nowhere would it be better off
    server.create("nodes", node("n2", cpu="8"))
    observe()
    record = next(iter(cluster.pods.values()))
    rescue.step()
    assert names(server) == []
    assert rescue.exempt(record)
    assert [e["reason"] for e in server.objects("events.events.k8s.io")] == ["PlacementFailed"]
    clock.now += 3601.0
    assert not rescue.exempt(record)


def test_not_for_a_node_that_would_not_take_it(
    server: ApiServer, rescue: Rescue, observe: Callable[[], None], clock: Any
) -> None:
    taint = {"key": "dedicated", "value": "others", "effect": "NoSchedule"}
    server.create("nodes", node("n2", cpu="8", taints=[taint]))
    stuck(server)
    observe()
    clock.now = 61.0
    rescue.step()
    assert names(server) == ["p"]


def test_once_an_hour_for_one_owner(
    server: ApiServer, rescue: Rescue, observe: Callable[[], None], clock: Any
) -> None:
    server.create("nodes", node("n2", cpu="8"))
    stuck(server)
    stuck(server, "q")
    observe()
    clock.now = 61.0
    rescue.step()
    rescue.step()
    assert len(names(server)) == 1


@pytest.mark.parametrize(
    ("required", "owner"), [(False, OWNER), (True, None), (True, {**OWNER, "kind": "Job"})]
)
def test_who_is_not_made_again(
    server: ApiServer, rescue: Rescue, observe: Callable[[], None], clock: Any, required: bool, owner: Any
) -> None:
    server.create("nodes", node("n2", cpu="8"))
    stuck(server, "p", required, owner)
    observe()
    clock.now = 61.0
    rescue.step()
    assert names(server) == ["p"]


def test_a_pod_that_was_bound_meanwhile_is_not_hit(
    server: ApiServer, rescue: Rescue, observe: Callable[[], None], clock: Any
) -> None:
    server.create("nodes", node("n2", cpu="8"))
    stuck(server)
    observe()
    server.bind("p", "n2")
    clock.now = 61.0
    rescue.step()
    assert "deletionTimestamp" not in server.get("pods", "p")["metadata"]
