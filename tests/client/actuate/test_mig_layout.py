# SPDX-License-Identifier: Apache-2.0
"""One layout change at a time, followed to its end, and none after one that failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.locks import Locks
from shoal_client.actuate.mig_layout import MARK, PATIENCE_SECONDS, MigLayout
from shoal_client.actuate.mig_planning import CAPABLE, CONFIG, DEVICES, PRODUCT, STATE, STRATEGY
from shoal_client.actuate.mig_source import ConfigMapCatalogue
from shoal_client.kube.api import Api
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

CONFIGS = {
    "mig-configs": {
        "all-7g.40gb": [{"devices": "all", "mig-devices": {"7g.40gb": 1}}],
        "all-1g.5gb": [{"devices": "all", "mig-devices": {"1g.5gb": 7}}],
    }
}
SLICE = {"nvidia.com/mig-1g.5gb": 1}
LABELS = {
    CONFIG: "all-7g.40gb",
    STATE: "success",
    STRATEGY: "mixed",
    DEVICES: "1",
    PRODUCT: "NVIDIA-A100-SXM4-40GB",
    CAPABLE: "true",
}
TIMES = {"enabled": True, "timeoutSeconds": 600, "restSeconds": 300}


@pytest.fixture
def locks() -> Locks:
    return Locks(lambda: 0.0)


@pytest.fixture
def layout(
    server: ApiServer,
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    events: Events,
    locks: Locks,
    clock: Any,
) -> MigLayout:
    for name in ("g1", "g2"):
        server.create("nodes", node(name, labels=LABELS, resources={"nvidia.com/mig-7g.40gb": 1}))
    data = {"config.yaml": msgspec.yaml.encode(CONFIGS).decode()}
    server.create("configmaps", {"metadata": {"name": "mig", "namespace": "gpu"}, "data": data})
    catalogue = ConfigMapCatalogue(api, "gpu", "mig", clock)
    authority = grant({"accelerator": TIMES})
    return MigLayout(api, leader, cluster, authority, catalogue.read, locks, events, clock)


@pytest.fixture
def step(layout: MigLayout, observe: Callable[[], None], clock: Any) -> Callable[[float], None]:
    """Let time pass, observe, and take a step."""

    def take(seconds: float) -> None:
        clock.now += seconds
        observe()
        layout.step()

    return take


def labels(server: ApiServer, name: str) -> dict[str, str]:
    return dict(server.get("nodes", name)["metadata"]["labels"])


def mark(server: ApiServer, name: str) -> str:
    text = server.get("nodes", name)["metadata"]["annotations"].get(MARK)
    return str(json.loads(text)["state"]) if text else ""


def begin(server: ApiServer, step: Callable[[float], None]) -> None:
    """Two pods wait for slices for long enough, and the change begins."""
    for name in "ab":
        server.create("pods", pod(name, resources=SLICE))
    step(1)
    assert labels(server, "g1") == LABELS | labels(server, "g1")
    step(PATIENCE_SECONDS)
    assert (labels(server, "g1")[CONFIG], labels(server, "g1")[STATE]) == ("all-1g.5gb", "pending")
    assert mark(server, "g1") == "pending"


def report(server: ApiServer, name: str, state: str) -> None:
    """What the MIG manager says."""
    server.patch("nodes", name, {"metadata": {"labels": {STATE: state}}})


def test_a_change_to_its_good_end(server: ApiServer, step: Callable[[float], None], locks: Locks) -> None:
    begin(server, step)
    step(100)
    assert labels(server, "g2")[CONFIG] == "all-7g.40gb"  # one at a time
    report(server, "g1", "rebooting")
    step(100)
    report(server, "g1", "success")
    step(1)
    assert mark(server, "g1") == "success"
    assert locks.holder("g1") == ""
    reasons = {e["reason"] for e in server.objects("events.events.k8s.io")}
    assert reasons == {"MigLayoutStarted", "MigLayoutApplied"}


@pytest.mark.parametrize("state", ["failed", "pending", "rebooting"])
def test_case_56_failed_or_no_answer_in_time_is_reported_and_never_tried_again(
    server: ApiServer, step: Callable[[float], None], state: str
) -> None:
    begin(server, step)
    report(server, "g1", state)
    step(1)
    step(600)
    assert mark(server, "g1") == "failed"
    assert any(e["reason"] == "MigLayoutFailed" for e in server.objects("events.events.k8s.io"))
    before = labels(server, "g1")
    report(server, "g1", "success")  # even if it comes to itself: hands off until the mark is removed
    for _ in range(5):
        step(1000)
    assert labels(server, "g1")[CONFIG] == before[CONFIG]
    assert mark(server, "g1") == "failed"


def test_case_56_a_wedged_node_of_anybody_stops_all_changes(
    server: ApiServer, step: Callable[[float], None]
) -> None:
    report(server, "g2", "pending")
    for name in "ab":
        server.create("pods", pod(name, resources=SLICE))
    for _ in range(3):
        step(PATIENCE_SECONDS)
    assert labels(server, "g1")[CONFIG] == "all-7g.40gb"


def test_a_node_in_use_is_not_touched(server: ApiServer, step: Callable[[float], None]) -> None:
    for name in ("g1", "g2"):
        server.create("pods", pod(f"on-{name}", resources={"nvidia.com/mig-7g.40gb": 1}, node_name=name))
    server.create("pods", pod("a", resources=SLICE))
    for _ in range(3):
        step(PATIENCE_SECONDS)
    assert [labels(server, n)[CONFIG] for n in ("g1", "g2")] == ["all-7g.40gb"] * 2


def test_demand_that_passes_changes_nothing(server: ApiServer, step: Callable[[float], None]) -> None:
    server.create("pods", pod("a", resources=SLICE))
    step(1)
    server.delete("pods", "a")
    step(PATIENCE_SECONDS)
    server.create("pods", pod("b", resources=SLICE))
    step(1)
    step(PATIENCE_SECONDS / 2)
    assert labels(server, "g1")[CONFIG] == "all-7g.40gb"


def test_a_change_is_followed_over_a_restart(
    server: ApiServer,
    api: Api,
    step: Callable[[float], None],
    observe: Callable[[], None],
    leader: Leader,
    cluster: LiveCluster,
    grant: Callable[[Mapping[str, object]], Authority],
    events: Events,
    clock: Any,
) -> None:
    begin(server, step)
    again = MigLayout(api, leader, cluster, grant({}), lambda: {}, Locks(), events, clock)
    report(server, "g1", "success")
    observe()
    again.step()
    assert mark(server, "g1") == "success"


def test_without_a_policy_that_allows_it_nothing_happens(
    server: ApiServer,
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    observe: Callable[[], None],
    grant: Callable[[Mapping[str, object]], Authority],
    events: Events,
    clock: Any,
    layout: MigLayout,
) -> None:
    del layout  # its nodes and its catalogue are there
    catalogue = ConfigMapCatalogue(api, "gpu", "mig", clock)
    off = MigLayout(api, leader, cluster, grant({}), catalogue.read, Locks(), events, clock)
    server.create("pods", pod("a", resources=SLICE))
    for _ in range(3):
        clock.now += PATIENCE_SECONDS
        observe()
        off.step()
    assert labels(server, "g1")[CONFIG] == "all-7g.40gb"


@pytest.mark.parametrize("text", ["", "a: [", "- 1"])
def test_an_unreadable_catalogue_offers_nothing(server: ApiServer, api: Api, text: str) -> None:
    server.create(
        "configmaps", {"metadata": {"name": "m", "namespace": "gpu"}, "data": {"config.yaml": text}}
    )
    assert ConfigMapCatalogue(api, "gpu", "m").read() == {}
    assert ConfigMapCatalogue(api, "gpu", "missing").read() == {}
