# SPDX-License-Identifier: Apache-2.0
"""A gated pod always comes free: placed where all goes well, untouched where anything does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shoal_client.actuate.events import Events
from shoal_client.actuate.gates import Gates
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.narrowing import PREFERRED, REQUIRED
from shoal_client.actuate.webhook import GATE
from shoal_client.kube.api import Api
from shoal_client.placement import ContainerResize, Placing, read_placing
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

Observe = Callable[[], None]
CUT = {"requests": {"cpu": "500m"}}


class Halving:
    """Places every pod on n1 or n2 with 500m of CPU, and notes whom it was asked about."""

    def __init__(self, containers: bool = True, required: bool = True) -> None:
        self.asked: list[str] = []
        self.forgotten: list[str] = []
        self.refuses = False
        self._containers = (ContainerResize("main", CUT),) if containers else ()
        self._required = required

    def place(self, pod: PodRecord, raw: Mapping[str, Any]) -> Placing | None:
        self.asked.append(pod.name)
        if self.refuses:
            return None
        return Placing(pod.uid, ("n1", "n2"), self._required, self._containers, "digest")

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)


@pytest.fixture
def placer() -> Halving:
    return Halving()


@pytest.fixture
def gates(
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    placer: Halving,
    events: Events,
    clock: Any,
    server: ApiServer,
    observe: Observe,
) -> Gates:
    for name in ("n1", "n2", "n3"):
        server.create("nodes", node(name))
    gates = Gates(api, leader, cluster, placer, events, clock=clock)
    cluster.subscribe(gates.pod_changed)
    observe()
    return gates


def gated(server: ApiServer, name: str, **manifest: Any) -> dict[str, Any]:
    manifest = {"cpu": "1", "gates": [GATE], **manifest}
    return server.create("pods", pod(name, **manifest))


def is_free(server: ApiServer, name: str) -> bool:
    return not server.get("pods", name)["spec"].get("schedulingGates")


def cpu(server: ApiServer, name: str) -> str:
    return str(server.get("pods", name)["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def untouched(server: ApiServer, name: str) -> bool:
    """Free, with what it asked for and without an affinity of ours."""
    return (
        is_free(server, name)
        and cpu(server, name) == "1"
        and "affinity" not in server.get("pods", name)["spec"]
    )


def test_resized_then_narrowed_then_free(server: ApiServer, gates: Gates, observe: Observe) -> None:
    raw = gated(server, "p", gates=["other/gate", GATE])
    observe()
    gates.step()
    after = server.get("pods", "p")
    assert [g["name"] for g in after["spec"]["schedulingGates"]] == ["other/gate"]
    assert cpu(server, "p") == "500m"
    affinity = after["spec"]["affinity"]["nodeAffinity"]
    assert affinity[REQUIRED]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["n1", "n2"]
    assert affinity[PREFERRED][0]["preference"]["matchExpressions"][0]["values"] == ["n1"]
    placing = read_placing(after["metadata"]["annotations"], raw["metadata"]["uid"])
    assert placing is not None
    assert placing.policy == "digest"
    reasons = [e["reason"] for e in server.objects("events.events.k8s.io")]
    assert reasons == ["PlacementApplied"]


def test_case_38_resized_before_it_is_free(server: ApiServer, gates: Gates, observe: Observe) -> None:
    """A pod is only resized while it is gated, so no scheduling attempt can race with it."""
    gated(server, "p")
    observe()
    gates.step()
    writes = [(r.method, r.path.rsplit("/", 1)[-1]) for r in server.requests if r.method == "PATCH"]
    assert writes[-3:] == [("PATCH", "p"), ("PATCH", "resize"), ("PATCH", "p")]


@pytest.mark.parametrize("resized", [False, True])
def test_a_crash_between_two_steps_is_continued_and_nothing_happens_twice(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving, resized: bool
) -> None:
    """The annotation is there, the resize perhaps: what it says is carried out, nothing is decided anew."""
    uid = gated(server, "p")["metadata"]["uid"]
    placing = Placing(uid, ("n3",), False, (ContainerResize("main", CUT),), "earlier")
    server.patch("pods", "p", {"metadata": {"annotations": placing.annotation()}})
    if resized:
        body = {"spec": {"containers": placing.resize_patch()}}
        server.patch("pods", "p", body, kind="strategic", subresource="resize")
    observe()
    gates.step()
    assert placer.asked == []
    assert is_free(server, "p")
    assert cpu(server, "p") == "500m"
    gates.step()
    assert cpu(server, "p") == "500m"


def test_an_annotation_made_for_another_pod_means_nothing(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving
) -> None:
    gated(server, "p", annotations=Placing("other", ("n9",)).annotation())
    observe()
    gates.step()
    assert placer.asked == ["p"]


def test_an_api_that_goes_away_in_between_only_delays(
    server: ApiServer, gates: Gates, observe: Observe, clock: Any
) -> None:
    gated(server, "p")
    observe()
    server.error(503, count=1, path="resize")
    gates.step()
    assert not is_free(server, "p")
    clock.now += 1
    gates.step()
    assert is_free(server, "p")
    assert cpu(server, "p") == "500m"


def test_a_refused_resize_lets_the_pod_go_as_it_is(
    server: ApiServer, gates: Gates, observe: Observe, clock: Any
) -> None:
    gated(server, "p")
    observe()
    server.deny("patch", "pods/resize")
    gates.step()
    clock.now += 3
    gates.step()
    assert untouched(server, "p")


def test_an_unwanted_pod_goes_at_once(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving
) -> None:
    placer.refuses = True
    gated(server, "p")
    observe()
    gates.step()
    assert untouched(server, "p")


def test_the_deadline_lets_a_pod_go_whatever_happens(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving, clock: Any
) -> None:
    gated(server, "p")
    observe()
    clock.now = 10.1
    gates.step()
    assert untouched(server, "p")
    assert placer.asked == []
    assert len(placer.forgotten) == 1


def test_stopping_lets_every_pod_go(server: ApiServer, gates: Gates, observe: Observe) -> None:
    for name in "pqr":
        gated(server, name)
    observe()
    gates.release_all()
    assert all(untouched(server, name) for name in "pqr")


def test_who_does_not_lead_does_nothing(
    server: ApiServer, gates: Gates, observe: Observe, leader: Leader
) -> None:
    gated(server, "p")
    observe()
    server.patch("leases", "shoal", {"spec": {"holderIdentity": "z"}})
    leader.try_acquire_or_renew()
    gates.step()
    gates.release_all()
    assert not is_free(server, "p")


def test_pods_that_vanish_or_come_again_under_their_name(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving
) -> None:
    gated(server, "gone")
    gated(server, "again")
    observe()
    server.delete("pods", "gone")
    server.delete("pods", "again")
    gated(server, "again")
    gates.step()
    assert placer.asked == []
    observe()
    gates.step()
    assert placer.asked == ["again"]
    assert is_free(server, "again")


def member(server: ApiServer, name: str, size: int = 3) -> dict[str, Any]:
    return gated(server, name, labels={"shoal.dev/gang": "g"}, annotations={"shoal.dev/gang-size": str(size)})


def test_case_24_a_gang_comes_free_together_or_not_at_all(
    server: ApiServer, gates: Gates, observe: Observe
) -> None:
    """A finished member of an earlier run does not count; until the third is there, nobody is let go."""
    labels, size = {"shoal.dev/gang": "g"}, {"shoal.dev/gang-size": "3"}
    server.create("pods", {**pod("old", labels=labels, annotations=size), "status": {"phase": "Failed"}})
    member(server, "a")
    member(server, "b")
    observe()
    gates.step()
    assert not is_free(server, "a")
    assert not is_free(server, "b")
    member(server, "c")
    observe()
    gates.step()
    assert [cpu(server, name) for name in "abc"] == ["500m"] * 3
    assert all(is_free(server, name) for name in "abc")


def test_of_a_gang_all_are_resized_before_the_first_is_free(
    server: ApiServer, gates: Gates, observe: Observe, clock: Any
) -> None:
    """The API goes away at the second resize: nobody is free yet, and all are after it is back."""
    for name in "abc":
        member(server, name)
    observe()
    server.error(503, count=1, path="pods/b/resize")
    gates.step()
    assert not any(is_free(server, name) for name in "abc")
    gates.step()
    assert all(is_free(server, name) and cpu(server, name) == "500m" for name in "abc")


def test_a_gang_that_broke_off_while_coming_free_is_finished(
    server: ApiServer, gates: Gates, observe: Observe
) -> None:
    """One member is free already, by a process that died: the others do not wait for one that left since."""
    uid = member(server, "a")["metadata"]["uid"]
    member(server, "b")
    done = Placing(uid, ("n1",)).annotation()
    server.patch("pods", "a", {"metadata": {"annotations": done}, "spec": {"schedulingGates": []}})
    observe()
    gates.step()
    assert is_free(server, "b")


def test_a_gang_whose_members_never_come_is_let_go_untouched(
    server: ApiServer, gates: Gates, observe: Observe, clock: Any
) -> None:
    member(server, "a")
    member(server, "b")
    observe()
    clock.now = 59.0
    gates.step()
    assert not is_free(server, "a")
    clock.now = 60.1
    gates.step()
    assert untouched(server, "a")
    assert untouched(server, "b")


def test_of_a_gang_with_one_unwanted_pod_all_go_untouched(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving
) -> None:
    placer.refuses = True
    for name in "abc":
        member(server, name)
    observe()
    gates.step()
    assert all(untouched(server, name) for name in "abc")


@pytest.mark.parametrize("suspended", [False, True])
def test_case_65_the_pods_of_a_suspended_or_deleted_owner_are_not_held_back(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving, suspended: bool
) -> None:
    """A gang waits for its third member; its owner goes: gates off, and what was held is given back."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {}}}
    uid = server.create("jobs", job)["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": True}
    labels, size = {"shoal.dev/gang": "g"}, {"shoal.dev/gang-size": "3"}
    for name in "ab":
        gated(server, name, labels=labels, annotations=size, owner=owner)
    if suspended:
        server.patch("jobs", "j", {"spec": {"suspend": True}})
    else:
        server.delete("jobs", "j")
    observe()
    gates.step()
    assert untouched(server, "a")
    assert untouched(server, "b")
    assert len(placer.forgotten) == 2


def test_a_long_line_is_worked_off_oldest_first(
    server: ApiServer, gates: Gates, observe: Observe, placer: Halving, clock: Any
) -> None:
    for name in ("first", "second", "third"):
        gated(server, name)
        observe()
        clock.now += 0.1
    gates.step()
    assert placer.asked == ["first", "second", "third"]


def test_a_server_that_is_down_ends_the_pass(server: ApiServer, gates: Gates, observe: Observe) -> None:
    gated(server, "p")
    observe()
    server.down()
    gates.step()
    server.up()
    gates.step()
    assert is_free(server, "p")
