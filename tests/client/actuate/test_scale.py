# SPDX-License-Identifier: Apache-2.0
"""Replicas follow measured load in bounded steps, and stay where they are while anything is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.scale import Scale, desired
from shoal_client.kube.api import Api
from shoal_client.policies.spec import ReplicasAction
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

BOUNDS = ReplicasAction(enabled=True, lowest=1, highest=10, target_ratio=0.5, largest_step=2)
ACTION = {"enabled": True, "targetRatio": 0.5, "frameSeconds": 60}


@pytest.mark.parametrize(
    ("current", "load", "wanted"),
    [
        (4, 0.5, 4),
        (4, 0.54, 4),
        (4, 0.6, 5),
        (4, 1.0, 6),
        (4, 0.3, 3),
        (4, 0.0, 2),
        (1, 0.0, 1),
        (9, 1.0, 10),
    ],
)
def test_desired_by_hand(current: int, load: float, wanted: int) -> None:
    assert desired(current, load, BOUNDS) == wanted


@pytest.fixture
def use() -> dict[tuple[str, str], float]:
    """Cores that each pod uses: 0.9 of 1."""
    return {("default", f"w-{i}"): 0.9 for i in range(2)}


@pytest.fixture
def workload(server: ApiServer, observe: Callable[[], None]) -> dict[str, Any]:
    """A deployment of two ready pods."""
    server.create("nodes", node("n1"))
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "w"}},
        "template": {"metadata": {"labels": {"app": "w"}}, "spec": pod("t")["spec"]},
    }
    status = {"observedGeneration": 1, "readyReplicas": 2, "updatedReplicas": 2}
    metadata = {"name": "w", "namespace": "default", "labels": {"shoal.dev/replicas": "enabled"}}
    made = server.create("deployments", {"metadata": metadata, "spec": spec, "status": status})
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for i in range(2):
        manifest = pod(f"w-{i}", cpu="1", labels={"app": "w"}, node_name="n1")
        server.create("pods", {**manifest, "status": ready})
    observe()
    return made


@pytest.fixture
def scale(
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    events: Events,
    use: dict[tuple[str, str], float],
    clock: Any,
) -> Scale:
    return Scale(api, leader, cluster, grant({"replicas": ACTION}), lambda: use, events, clock)


def replicas(server: ApiServer) -> int:
    return int(server.get("deployments", "w")["spec"]["replicas"])


def test_through_the_scale_subresource_once_a_frame(
    server: ApiServer, scale: Scale, workload: dict[str, Any], clock: Any
) -> None:
    scale.step()
    assert replicas(server) == 4
    assert any(r.path.endswith("/deployments/w/scale") for r in server.requests)
    clock.now = 59.0
    scale.step()
    assert replicas(server) == 4
    assert [e["reason"] for e in server.objects("events.events.k8s.io")] == ["Scaled"]


def test_not_while_a_rollout_or_the_last_scaling_is_under_way(
    server: ApiServer, scale: Scale, workload: dict[str, Any], clock: Any
) -> None:
    scale.step()
    for _ in range(3):
        clock.now += 60
        scale.step()
    assert replicas(server) == 4  # the two new ones never became ready


def test_not_while_the_use_of_a_pod_is_unknown(
    server: ApiServer, scale: Scale, workload: dict[str, Any], use: dict[tuple[str, str], float]
) -> None:
    for missing in (None, float("nan")):
        use.clear()
        use[("default", "w-0")] = 0.0
        if missing is not None:
            use[("default", "w-1")] = missing
        scale.step()
        assert replicas(server) == 2


def test_not_what_an_autoscaler_scales(server: ApiServer, scale: Scale, workload: dict[str, Any]) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}
    spec = {"scaleTargetRef": target, "maxReplicas": 5}
    server.create("horizontalpodautoscalers", {"metadata": {"name": "w"}, "spec": spec})
    scale.step()
    assert replicas(server) == 2


def test_annotations_narrow_the_policys_bounds(
    server: ApiServer, scale: Scale, workload: dict[str, Any]
) -> None:
    server.patch("deployments", "w", {"metadata": {"annotations": {"shoal.dev/max-replicas": "3"}}})
    scale.step()
    assert replicas(server) == 3


def test_not_without_the_label_or_the_policy(
    server: ApiServer,
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    events: Events,
    use: dict[tuple[str, str], float],
    scale: Scale,
    workload: dict[str, Any],
) -> None:
    Scale(api, leader, cluster, grant({}), lambda: use, events).step()
    server.patch("deployments", "w", {"metadata": {"labels": {"shoal.dev/replicas": None}}})
    scale.step()
    assert replicas(server) == 2
