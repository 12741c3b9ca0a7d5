# SPDX-License-Identifier: Apache-2.0
"""Weights of labelled HTTPRoutes move towards the backends whose nodes have room."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.routes import Routes
from shoal_client.kube.api import Api
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
ACTION = {"enabled": True, "largestStep": 10, "slotSeconds": 10}


@pytest.fixture
def route(server: ApiServer, observe: Callable[[], None]) -> dict[str, Any]:
    """Backend `idle` on an idle node of 8 cores, `busy` on one whose pods ask for 6 of them."""
    for name in ("n1", "n2"):
        server.create("nodes", node(name, cpu="8"))
    for service, host, cpu in (("idle", "n1", "100m"), ("busy", "n2", "6")):
        spec = {"selector": {"app": service}, "ports": [{"port": 80}]}
        server.create("services", {"metadata": {"name": service}, "spec": spec})
        manifest = pod(service, cpu=cpu, labels={"app": service}, node_name=host)
        server.create("pods", {**manifest, "status": READY})
    refs = [{"name": "idle", "port": 80, "weight": 1}, {"name": "busy", "port": 80}]
    metadata = {"name": "r", "namespace": "default", "labels": {"shoal.dev/dispatch": "enabled"}}
    observe()
    return server.create("httproutes", {"metadata": metadata, "spec": {"rules": [{"backendRefs": refs}]}})


@pytest.fixture
def routes(
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    clock: Any,
) -> Routes:
    return Routes(api, leader, cluster, grant({"routes": ACTION}), clock)


def weights(server: ApiServer) -> list[int]:
    return [ref.get("weight", 1) for ref in server.get("httproutes", "r")["spec"]["rules"][0]["backendRefs"]]


def test_towards_headroom_by_bounded_steps_once_a_slot(
    server: ApiServer, routes: Routes, route: dict[str, Any], clock: Any
) -> None:
    seen = []
    for _ in range(5):
        routes.step()
        routes.step()
        seen.append(weights(server))
        clock.now += 10
    assert seen[:2] == [[60, 40], [70, 30]]
    assert seen[-1] == seen[-2]
    assert seen[-1][0] in range(75, 85)
    assert server.get("httproutes", "r")["spec"]["rules"][0]["backendRefs"][0]["port"] == 80


def test_a_backend_without_ready_pods_keeps_its_weight(
    server: ApiServer, routes: Routes, route: dict[str, Any], observe: Callable[[], None]
) -> None:
    server.delete("pods", "busy", grace=0)
    observe()
    routes.step()
    assert weights(server) == [1, 1]


def test_not_without_the_policy(
    server: ApiServer,
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    route: dict[str, Any],
) -> None:
    Routes(api, leader, cluster, grant({})).step()
    assert weights(server) == [1, 1]


def test_backends_that_are_no_services_here_are_left_alone(
    server: ApiServer, routes: Routes, route: dict[str, Any]
) -> None:
    refs = [
        {"name": "idle"},
        {"name": "busy"},
        {"name": "x", "namespace": "other"},
        {"name": "y", "group": "g"},
    ]
    server.patch("httproutes", "r", {"spec": {"rules": [{"backendRefs": refs}, {"matches": []}]}})
    routes.step()
    assert weights(server) == [35, 15, 25, 25]
