# SPDX-License-Identifier: Apache-2.0
"""Resizes of ours that a kubelet will not carry out are taken back; those of others are not touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal_client.actuate.events import Events
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.resize_watch import ResizeWatch
from shoal_client.kube.api import Api
from shoal_client.placement import ContainerResize, Placing
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

ASKED = {"requests": {"cpu": "4"}}


@pytest.fixture
def watch(
    server: ApiServer, api: Api, leader: Leader, cluster: LiveCluster, events: Events, clock: Any
) -> ResizeWatch:
    server.create("nodes", node("n1", cpu="8"))
    watch = ResizeWatch(api, leader, events, 60.0, clock)
    cluster.subscribe(watch.pod_changed)
    return watch


def stuck(server: ApiServer, reason: str, ours: bool = True, reported: bool = True) -> None:
    """A pod that runs with 1 CPU, whose spec says 4, and whose kubelet answers with this reason."""
    uid = server.create("pods", pod("p", cpu="1", node_name="n1"))["metadata"]["uid"]
    if ours:
        placing = Placing(uid, ("n1",), containers=(ContainerResize("main", ASKED),))
        server.patch("pods", "p", {"metadata": {"annotations": placing.annotation()}})
    body = {"spec": {"containers": [{"name": "main", "resources": ASKED}]}}
    server.patch("pods", "p", body, kind="strategic", subresource="resize")
    actual = {"resources": {"requests": {"cpu": "1", "memory": "128Mi"}}} if reported else {}
    status = {
        "phase": "Running",
        "containerStatuses": [{"name": "main", **actual}],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
    }
    server.patch("pods", "p", {"status": status}, subresource="status")


def cpu(server: ApiServer) -> str:
    return str(server.get("pods", "p")["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def test_case_38_infeasible_is_reverted_at_once(
    server: ApiServer, watch: ResizeWatch, observe: Callable[[], None]
) -> None:
    stuck(server, "Infeasible")
    observe()
    watch.step()
    assert cpu(server) == "1"
    assert [e["reason"] for e in server.objects("events.events.k8s.io")] == ["ResizeReverted"]


def test_case_38_deferred_is_reverted_after_a_time(
    server: ApiServer, watch: ResizeWatch, observe: Callable[[], None], clock: Any
) -> None:
    stuck(server, "Deferred")
    observe()
    clock.now = 59.0
    watch.step()
    assert cpu(server) == "4"
    clock.now = 60.0
    watch.step()
    assert cpu(server) == "1"


def test_one_that_comes_through_in_time_stays(
    server: ApiServer, watch: ResizeWatch, observe: Callable[[], None], clock: Any
) -> None:
    stuck(server, "Deferred")
    observe()
    server.patch("pods", "p", {"status": {"conditions": []}}, subresource="status")
    observe()
    clock.now = 600.0
    watch.step()
    assert cpu(server) == "4"


def test_a_resize_of_somebody_else_stays(
    server: ApiServer, watch: ResizeWatch, observe: Callable[[], None]
) -> None:
    stuck(server, "Infeasible", ours=False)
    observe()
    watch.step()
    assert cpu(server) == "4"


def test_without_a_report_of_what_is_in_force_nothing_is_written(
    server: ApiServer, watch: ResizeWatch, observe: Callable[[], None]
) -> None:
    stuck(server, "Infeasible", reported=False)
    observe()
    watch.step()
    assert cpu(server) == "4"


def test_a_refused_revert_is_tried_three_times_and_no_more(
    server: ApiServer, watch: ResizeWatch, observe: Callable[[], None]
) -> None:
    stuck(server, "Infeasible")
    observe()
    server.deny("patch", "pods/resize")
    for _ in range(10):
        watch.step()
    tries = [r for r in server.requests if r.method == "PATCH" and r.path.endswith("/resize")]
    assert len(tries) == 3
