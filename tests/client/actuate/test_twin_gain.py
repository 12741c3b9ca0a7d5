# SPDX-License-Identifier: Apache-2.0
"""The twin is for moving a pod off a crowded node onto an idle one, and against moving it for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.twin_gain import TwinGain
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord
from shoal_common.tables import App
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}


def app(record: PodRecord) -> App:
    """Every pod uses three times the CPU it asks for, for hours."""
    return App(cpu_use=3.0 * record.requests.get("cpu", 0), duration_seconds=14_400.0, samples=9)


@pytest.fixture
def gain(cluster: LiveCluster, grant: Callable[[Mapping[str, object]], Authority]) -> TwinGain:
    cluster.apps = app
    return TwinGain(cluster, grant({"migration": {"enabled": True}}))


def running(server: ApiServer, name: str, host: str, cpu: str = "1") -> None:
    server.create("pods", pod(name, cpu=cpu, memory="1Gi", node_name=host, owner=OWNER))


def named(cluster: LiveCluster, name: str) -> PodRecord:
    return next(p for p in cluster.pods.values() if p.name == name)


def test_off_a_crowded_node(
    server: ApiServer, cluster: LiveCluster, gain: TwinGain, observe: Callable[[], None]
) -> None:
    """Eight pods want 24 of 8 cores; on a second node one pod wants 1.5 of 8."""
    for name in ("n1", "n2"):
        server.create("nodes", node(name, cpu="8"))
    for i in range(8):
        running(server, f"p{i}", "n1")
    running(server, "q", "n2", "500m")
    observe()
    verdict = gain.verdict(named(cluster, "p3"), "n2")
    assert verdict.passed, verdict
    assert gain(named(cluster, "p3"))


def test_not_from_one_quiet_node_to_another(
    server: ApiServer, cluster: LiveCluster, gain: TwinGain, observe: Callable[[], None]
) -> None:
    """Waking an empty node for a pod that has all it wants costs power and a restart."""
    for name in ("n1", "n2"):
        server.create("nodes", node(name, cpu="32"))
    for i in range(2):
        running(server, f"p{i}", "n1")
    observe()
    verdict = gain.verdict(named(cluster, "p1"), "n2")
    assert not verdict.passed, verdict


def test_not_where_there_is_nowhere_to_go(
    server: ApiServer, cluster: LiveCluster, gain: TwinGain, observe: Callable[[], None]
) -> None:
    server.create("nodes", node("n1", cpu="8"))
    server.create("nodes", node("n2", cpu="500m"))
    running(server, "p", "n1")
    observe()
    assert not gain(named(cluster, "p"))


def test_the_same_question_has_the_same_answer(
    server: ApiServer, cluster: LiveCluster, gain: TwinGain, observe: Callable[[], None], clock: Any
) -> None:
    for name in ("n1", "n2"):
        server.create("nodes", node(name, cpu="8"))
    for i in range(8):
        running(server, f"p{i}", "n1")
    observe()
    record = named(cluster, "p0")
    assert gain.verdict(record, "n2") == gain.verdict(record, "n2")
