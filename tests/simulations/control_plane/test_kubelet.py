# SPDX-License-Identifier: Apache-2.0
"""The virtual kubelets: pods run, end, fail, are refused, resized and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shoal_simulations.control_plane import ApiServer, Kubelet, node, pod

RUN, FAIL = "shoal.dev/run-seconds", "shoal.dev/fail"


class Clock:
    """Virtual seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def api(clock: Clock) -> Iterator[ApiServer]:
    with ApiServer(clock=clock) as server:
        server.create("nodes", node("n1", cpu="4", memory="8Gi", gpus=2, pods=5))
        with Kubelet(server.url, clock=clock):
            yield server


def status(api: ApiServer, name: str = "p") -> dict[str, Any]:
    return dict(api.get("pods", name)["status"])


def reach(api: ApiServer, phase: str, name: str = "p") -> dict[str, Any]:
    assert api.wait(lambda: status(api, name)["phase"] == phase), status(api, name)
    return status(api, name)


def condition(api: ApiServer, kind: str, name: str = "p") -> dict[str, Any]:
    return next((c for c in status(api, name).get("conditions", ()) if c["type"] == kind), {})


def resize(api: ApiServer, cpu: str, name: str = "p") -> None:
    resources = {"requests": {"cpu": cpu}}
    body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    api.patch("pods", name, body, kind="strategic", subresource="resize")


def test_a_bound_pod_runs_and_is_ready(api: ApiServer) -> None:
    api.create("pods", pod("p"))
    api.bind("p", "n1")
    reach(api, "Running")
    assert condition(api, "Ready")["status"] == "True"
    assert condition(api, "PodScheduled")["status"] == "True"


def test_a_batch_pod_ends_by_the_virtual_clock(api: ApiServer, clock: Clock) -> None:
    api.create("pods", pod("p", node_name="n1", annotations={RUN: "3600"}))
    reach(api, "Running")
    clock.now += 3599
    api.create("pods", pod("other", node_name="n1", annotations={RUN: "0"}))
    reach(api, "Succeeded", "other")
    assert status(api)["phase"] == "Running"
    clock.now += 1
    ended = reach(api, "Succeeded")
    assert ended["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert condition(api, "Ready")["status"] == "False"


def test_a_pod_can_be_killed_for_memory(api: ApiServer, clock: Clock) -> None:
    api.create("pods", pod("p", node_name="n1", annotations={RUN: "10", FAIL: "OOMKilled"}))
    reach(api, "Running")
    clock.now += 10
    terminated = reach(api, "Failed")["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (pod("p", cpu="5", node_name="n1"), "OutOfcpu"),
        (pod("p", memory="9Gi", node_name="n1"), "OutOfmemory"),
        (pod("p", gpus=3, node_name="n1"), "OutOfnvidia.com/gpu"),
        (pod("p", node_name="n1", annotations={FAIL: "TopologyAffinityError"}), "TopologyAffinityError"),
    ],
)
def test_what_does_not_fit_is_refused(api: ApiServer, made: dict[str, Any], reason: str) -> None:
    api.create("pods", made)
    assert reach(api, "Failed")["reason"] == reason


def test_too_many_pods_are_refused(api: ApiServer) -> None:
    for index in range(6):
        api.create("pods", pod(f"p{index}", cpu="10m", node_name="n1"))
    assert api.wait(lambda: all(p["status"]["phase"] != "Pending" for p in api.objects("pods")))
    reasons = [p["status"].get("reason", "") for p in api.objects("pods")]
    assert sorted(reasons) == ["", "", "", "", "", "OutOfpods"]


def test_a_terminating_pod_goes(api: ApiServer) -> None:
    api.create("pods", pod("p", node_name="n1"))
    reach(api, "Running")
    api.delete("pods", "p")
    assert api.wait(lambda: api.objects("pods") == [])


def test_a_resize_is_carried_out(api: ApiServer) -> None:
    api.create("pods", pod("p", cpu="1", node_name="n1"))
    reach(api, "Running")
    resize(api, "2")

    def actual() -> str:
        return str(status(api)["containerStatuses"][0]["resources"]["requests"]["cpu"])

    assert api.wait(lambda: actual() == "2")
    assert condition(api, "PodResizePending") == {}


def test_a_resize_without_room_is_deferred_until_there_is(api: ApiServer) -> None:
    for name in ("p", "other"):
        api.create("pods", pod(name, cpu="2", node_name="n1"))
        reach(api, "Running", name)
    resize(api, "3")
    assert api.wait(lambda: condition(api, "PodResizePending").get("reason") == "Deferred")
    api.delete("pods", "other", grace=0)
    assert api.wait(lambda: condition(api, "PodResizePending") == {})


def test_a_node_that_is_away_starts_nothing(api: ApiServer) -> None:
    api.create("pods", pod("lost", node_name="n2"))
    api.create("pods", pod("p", node_name="n1"))
    reach(api, "Running")
    assert status(api, "lost")["phase"] == "Pending"


def test_the_kubelet_outlives_the_api(api: ApiServer) -> None:
    api.down()
    api.create("pods", pod("p", node_name="n1"))
    api.up()
    reach(api, "Running")
