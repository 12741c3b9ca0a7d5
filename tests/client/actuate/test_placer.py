# SPDX-License-Identifier: Apache-2.0
"""A policy's choice becomes a placing within the action bounds and the namespace's own rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.placer import Choice, PolicyPlacer
from shoal_client.kube.api import Api
from shoal_client.placement import Placing
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

QUOTA = {"enabled": True, "lowest": 0.5, "highest": 2.0}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}


class Doubling:
    """A policy that wants n2, then n1, with twice the CPU."""

    def __init__(self) -> None:
        self.nodes = ["n2", "n1"]
        self.abstains = False

    def choose(self, pod: PodRecord) -> Choice | None:
        return None if self.abstains else Choice(self.nodes, {"cpu": 2.0}, "digest", {})

    def forget(self, uid: str) -> None:
        pass


@pytest.fixture
def chooser() -> Doubling:
    return Doubling()


@pytest.fixture
def place(
    server: ApiServer,
    api: Api,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    chooser: Doubling,
    observe: Callable[[], None],
    clock: Any,
) -> Callable[..., Placing | None]:
    """Create a gated pod and ask for its placing."""
    for name in ("n1", "n2"):
        server.create("nodes", node(name))
    exempt = [False]
    placer = PolicyPlacer(api, cluster, grant({"cpuQuota": QUOTA}), chooser, lambda pod: exempt[0], clock)

    def asked(*, lets_through: bool = False, **manifest: Any) -> Placing | None:
        exempt[0] = lets_through
        raw = server.create("pods", pod("p", cpu="1", **manifest))
        observe()
        record = next(p for p in cluster.pods.values() if p.name == "p")
        server.delete("pods", "p")
        clock.now += 10
        return placer.place(record, raw)

    return asked


def test_nodes_amounts_and_policy(place: Callable[..., Placing | None]) -> None:
    placing = place()
    assert placing is not None
    assert (placing.hosts, placing.required, placing.policy) == (("n2", "n1"), False, "digest")
    assert placing.resize_patch() == [{"name": "main", "resources": {"requests": {"cpu": "2000m"}}}]


def test_only_what_its_controller_makes_again_is_bound_to_nodes(place: Callable[..., Placing | None]) -> None:
    for owner, required in ((OWNER, True), ({**OWNER, "kind": "Job"}, False)):
        placing = place(owner=owner)
        assert placing is not None
        assert placing.required is required


def test_a_full_quota_of_the_namespace_keeps_what_was_asked(
    server: ApiServer, place: Callable[..., Placing | None]
) -> None:
    status = {"hard": {"requests.cpu": "4"}, "used": {"requests.cpu": "3500m"}}
    server.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {}, "status": status})
    placing = place()
    assert placing is not None
    assert placing.containers == ()
    assert placing.hosts == ("n2", "n1")


def test_a_limit_range_is_read_from_the_namespace(
    server: ApiServer, place: Callable[..., Placing | None]
) -> None:
    limits = [{"type": "Container", "max": {"cpu": "1500m"}}]
    server.create("limitranges", {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    placing = place()
    assert placing is not None
    assert placing.containers == ()


def test_nobody_asked_or_the_policy_abstains(place: Callable[..., Placing | None], chooser: Doubling) -> None:
    assert place(lets_through=True) is None
    chooser.abstains = True
    assert place() is None


def test_a_best_node_without_a_host_name_means_no_narrowing(
    server: ApiServer, place: Callable[..., Placing | None], chooser: Doubling
) -> None:
    server.patch("nodes", "n2", {"metadata": {"labels": {"kubernetes.io/hostname": None}}})
    placing = place()
    assert placing is not None
    assert placing.hosts == ()
    chooser.nodes = ["n1", "gone"]
    placing = place()
    assert placing is not None
    assert placing.hosts == ("n1",)
