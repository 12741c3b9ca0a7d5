# SPDX-License-Identifier: Apache-2.0
"""Gated pods are decided by the guard and the decider of the extender, on nodes that would take them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal_client.actuate.chooser import MOST_CANDIDATES, PolicyChooser
from shoal_client.policies.registry import Policies
from shoal_client.serve.artifact_file import ArtifactFile
from shoal_client.serve.decider import Decider
from shoal_client.serve.guard import Guard
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord
from shoal_common.policy import PolicyArtifact
from shoal_common.tables import App
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

Choose = Callable[..., Any]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shoal_common.nn.set_attention import SetActor

    return PolicyArtifact.save(tmp_path_factory.mktemp("policy") / "artifact", SetActor(16, 1), {}).directory


@pytest.fixture
def policies() -> Policies:
    made = Policies()
    spec = {"mode": "Active", "drift": {"maxClippedRatio": 1.0}}
    made.set({"metadata": {"name": "p", "uid": "1", "generation": 1}, "spec": spec})
    made.mark_synced()
    return made


@pytest.fixture
def chooser(cluster: LiveCluster, policies: Policies, artifact: Path) -> PolicyChooser:
    decider = Decider(cluster, ArtifactFile(artifact), seed=0)
    return PolicyChooser(cluster, decider, Guard(policies, cluster), rng=random.Random(0))


@pytest.fixture
def choose(
    server: ApiServer, cluster: LiveCluster, observe: Callable[[], None], chooser: PolicyChooser
) -> Choose:
    def asked(**manifest: Any) -> Any:
        uid = server.create("pods", pod("p", **manifest))["metadata"]["uid"]
        observe()
        return chooser.choose(cluster.pods[uid])

    return asked


def test_only_nodes_that_would_take_the_pod(
    server: ApiServer, cluster: LiveCluster, chooser: PolicyChooser, choose: Choose
) -> None:
    """Full, cordoned, tainted and not selected ones are no candidates; the best one's room is held."""
    server.create("nodes", node("good", labels={"zone": "a"}))
    server.create("nodes", node("better", cpu="16", labels={"zone": "a"}))
    server.create("nodes", node("full", cpu="1", labels={"zone": "a"}))
    server.create("nodes", node("elsewhere"))
    taint = {"key": "k", "effect": "NoSchedule"}
    server.create("nodes", node("tainted", labels={"zone": "a"}, taints=[taint]))
    server.create("nodes", node("cordoned", labels={"zone": "a"}))
    server.patch("nodes", "cordoned", {"spec": {"unschedulable": True}})
    choice = choose(cpu="2", spec={"nodeSelector": {"zone": "a"}})
    assert sorted(choice.nodes) == ["better", "good"]
    assert cluster.reserved == 1
    chooser.forget(next(p.uid for p in cluster.pods.values()))
    assert cluster.reserved == 0


def test_the_apps_use_goes_with_the_choice(server: ApiServer, cluster: LiveCluster, choose: Choose) -> None:
    server.create("nodes", node("n1"))
    cluster.apps = lambda record: App(cpu_use=250.0)
    assert choose().used == {"cpu": 0.25, "memory": None}


@pytest.mark.parametrize("mode", ["Shadow", "Off"])
def test_no_choice_for_a_pod_that_is_not_served(
    server: ApiServer, policies: Policies, choose: Choose, mode: str
) -> None:
    server.create("nodes", node("n1"))
    policies.set({"metadata": {"name": "p", "uid": "1", "generation": 2}, "spec": {"mode": mode}})
    assert choose() is None


def test_no_choice_without_room_or_without_nodes(
    server: ApiServer, cluster: LiveCluster, choose: Choose
) -> None:
    assert choose() is None
    server.delete("pods", "p")
    server.create("nodes", node("n1", cpu="1"))
    assert choose(cpu="2") is None
    assert cluster.reserved == 0


def test_of_many_nodes_a_sample(server: ApiServer, cluster: LiveCluster, chooser: PolicyChooser) -> None:
    objects = [node(f"n{i}") for i in range(MOST_CANDIDATES + 50)]
    cluster.replace(
        "Node", [{**o, "metadata": {**o["metadata"], "uid": o["metadata"]["name"]}} for o in objects]
    )
    cluster.replace("Pod", [])
    choice = chooser.choose(PodRecord("p", uid="u"))
    assert choice is not None
    assert len(set(choice.nodes)) == MOST_CANDIDATES


def test_what_the_extender_took_meanwhile_is_not_taken_again(
    server: ApiServer, cluster: LiveCluster, choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("n1", "n2"):
        server.create("nodes", node(name, cpu="2"))
    real, taken = Decider.judge, []

    def raced(self: Decider, record: PodRecord, names: Any, applied: Any) -> Any:
        found = real(self, record, names, applied)
        taken.append(found.names[found.chosen])
        cluster.reserve(replace(record, name="other", uid="other"), taken[0])
        return found

    monkeypatch.setattr(Decider, "judge", raced)
    choice = choose(cpu="2")
    assert set(choice.nodes) == {"n1", "n2"} - set(taken)
