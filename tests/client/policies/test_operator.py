# SPDX-License-Identifier: Apache-2.0
"""The operator against the emulated API: changes act at once, statuses by the conventions, outages end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_client.kube.api import Api, connect
from shoal_client.policies import operator as operator_module
from shoal_client.policies.membership import Standing
from shoal_client.policies.objectives import Outcomes
from shoal_client.policies.operator import Operator
from shoal_client.policies.registry import Policies
from shoal_client.policies.spec import Mode
from shoal_client.policies.status import Serving
from shoal_simulations.control_plane.api import ApiServer

ROOT = Path(__file__).parents[3]
DIGEST = "ab" * 32
WITHIN = 2.0  # seconds in which a change of a policy must act
PATIENCE = 20.0


def policy(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def install(server: ApiServer) -> None:
    for file in sorted((ROOT / "deploy/crds").glob("*.yaml")):
        server.create("customresourcedefinitions", yaml.safe_load(file.read_text()))


def wait(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)
    return found


class Leads:
    def __init__(self, leads: bool = True) -> None:
        self.leads = leads

    def is_leader(self) -> bool:
        return self.leads


class Installation:
    """A server with an operator that runs against it."""

    def __init__(self, server: ApiServer, api: Api, **settings: Any) -> None:
        self.server, self.serving, self.leader = server, Serving("v7", DIGEST), Leads()
        self.policies = Policies()
        self.operator = Operator(api, self.policies, self.leader, lambda: self.serving, **settings)

    def status(self, name: str = "a") -> dict[str, Any]:
        return dict(self.server.get("schedulingpolicies", name).get("status") or {})

    def condition(self, kind: str, name: str = "a") -> dict[str, Any]:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def mode(self, name: str = "a") -> Mode | None:
        entry = self.policies.entries().get(name)
        return entry.applied.mode if entry and entry.applied else None

    def events(self) -> list[str]:
        return [e["reason"] for e in self.server.objects("events.events.k8s.io")]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return connect(server.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def installed(server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    monkeypatch.setattr(operator_module, "RETRY_SECONDS", 0.2)
    install(server)
    server.create("schedulingpolicies", policy("a", mode="Shadow"))
    made = Installation(server, api)
    made.operator.start()
    try:
        wait(lambda: made.policies.synced and made.status())
        yield made
    finally:
        made.operator.stop()


def test_a_policy_of_the_cluster_is_in_force_with_its_status(installed: Installation) -> None:
    assert installed.mode() is Mode.SHADOW
    status = installed.status()
    assert (status["mode"], status["policyVersion"], status["policyDigest"]) == ("Shadow", "v7", DIGEST)
    assert (
        status["observedGeneration"]
        == installed.server.get("schedulingpolicies", "a")["metadata"]["generation"]
    )
    states = {c["type"]: c["status"] for c in status["conditions"]}
    assert states == {"Ready": "True", "PolicyLoaded": "True", "Degraded": "False", "Progressing": "True"}


def test_a_change_acts_within_two_seconds_and_so_does_its_deletion(installed: Installation) -> None:
    for mode in (Mode.ACTIVE, Mode.OFF, Mode.ACTIVE):
        installed.server.patch("schedulingpolicies", "a", {"spec": {"mode": mode.value}})
        wait(lambda mode=mode: installed.mode() is mode, WITHIN)
    installed.server.delete("schedulingpolicies", "a")
    wait(lambda: installed.mode() is None, WITHIN)


def test_transition_times_move_only_when_a_condition_flips(installed: Installation) -> None:
    before = {c["type"]: c for c in installed.status()["conditions"]}
    time.sleep(1.1)  # the API's times have whole seconds
    installed.server.patch("schedulingpolicies", "a", {"spec": {"mode": "Active"}})
    wait(lambda: installed.status()["mode"] == "Active")
    after = {c["type"]: c for c in installed.status()["conditions"]}
    assert after["Ready"]["reason"] == "Active"
    assert after["Ready"]["lastTransitionTime"] == before["Ready"]["lastTransitionTime"]
    assert after["Progressing"]["status"] == "False"
    assert after["Progressing"]["lastTransitionTime"] > before["Progressing"]["lastTransitionTime"]


def test_a_rollback_is_reported_and_survives_a_restart(installed: Installation, api: Api) -> None:
    installed.server.patch("schedulingpolicies", "a", {"spec": {"mode": "Active"}})
    wait(lambda: installed.status().get("mode") == "Active")
    installed.policies.roll_back("a", "p99 of pending pods 12 s, shadow baseline 3 s")
    wait(lambda: installed.condition("Degraded").get("reason") == "RolledBack")
    assert installed.status()["mode"] == "Shadow"
    assert installed.status()["rollback"]["count"] == 1
    wait(lambda: "PolicyRolledBack" in installed.events())
    again = Installation(installed.server, api)
    again.operator.resync()
    assert again.mode() is Mode.SHADOW
    installed.server.patch("schedulingpolicies", "a", {"spec": {"mode": "Canary", "canaryPercent": 1}})
    wait(lambda: installed.condition("Degraded").get("status") == "False")
    assert "rollback" not in installed.status()


def test_a_policy_that_asks_for_another_artifact_is_not_loaded(installed: Installation) -> None:
    installed.server.patch("schedulingpolicies", "a", {"spec": {"policyRef": {"digest": "cd" * 32}}})
    wait(lambda: installed.condition("PolicyLoaded").get("reason") == "DigestMismatch")
    assert installed.condition("Ready")["status"] == "False"


def test_what_is_wrong_with_serving_degrades_a_policy(installed: Installation) -> None:
    installed.serving = Serving("v7", DIGEST, degraded="the pods' watch is 90 s old")
    wait(lambda: installed.condition("Degraded").get("reason") == "Fallback")
    wait(lambda: "ScoringFallback" in installed.events())
    installed.serving = Serving("v7", DIGEST, refused="/policy: manifest.json: is no manifest")
    wait(lambda: installed.condition("Degraded").get("reason") == "ArtifactRefused")
    assert installed.condition("Ready")["status"] == "True"  # the loaded one goes on
    installed.serving = Serving(error="/policy: policy.safetensors: is missing")
    wait(lambda: installed.condition("PolicyLoaded").get("reason") == "NoArtifact")


def test_only_the_leader_writes(server: ApiServer, api: Api) -> None:
    install(server)
    server.create("schedulingpolicies", policy("a"))
    made = Installation(server, api)
    made.leader.leads = False
    made.operator.resync()
    made.operator.report()
    assert made.status() == {}
    assert made.mode() is Mode.SHADOW
    made.leader.leads = True
    made.operator.report()
    assert made.status()["mode"] == "Shadow"


def test_without_the_definitions_the_default_holds_until_they_are_installed(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_module, "RETRY_SECONDS", 0.2)
    made = Installation(server, api)
    made.operator.start()
    try:
        wait(lambda: made.policies.synced)
        assert made.mode() is None
        install(server)
        server.create("schedulingpolicies", policy("a", mode="Active"))
        wait(lambda: made.mode() is Mode.ACTIVE)
    finally:
        made.operator.stop()


def test_an_outage_keeps_what_was_known_and_ends_by_itself(installed: Installation) -> None:
    installed.server.down()
    time.sleep(0.5)
    assert installed.mode() is Mode.SHADOW
    installed.server.up()
    installed.server.patch("schedulingpolicies", "a", {"spec": {"mode": "Active"}})
    wait(lambda: installed.mode() is Mode.ACTIVE)


def test_a_silent_watch_is_made_up_for_by_the_next_list(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_module, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(operator_module, "RESYNC_SECONDS", 0.3)
    install(server)
    server.create("schedulingpolicies", policy("a"))
    made = Installation(server, api)
    made.operator.start()
    try:
        wait(lambda: made.mode() is Mode.SHADOW)
        server.silence_watches()
        server.patch("schedulingpolicies", "a", {"spec": {"mode": "Off"}})
        wait(lambda: made.mode() is Mode.OFF, WITHIN)
    finally:
        made.operator.stop()


def test_a_policy_that_vanished_unseen_is_forgotten_at_the_next_list(server: ApiServer, api: Api) -> None:
    install(server)
    server.create("schedulingpolicies", policy("a"))
    made = Installation(server, api)
    made.operator.resync()
    assert made.mode() is Mode.SHADOW
    server.delete("schedulingpolicies", "a")
    made.operator.resync()
    assert made.mode() is None


def test_an_error_in_a_policy_is_its_status(server: ApiServer, api: Api) -> None:
    made = Installation(server, api)
    made.policies.set(policy("a", mode="Canary") | {"status": {}})
    install(server)
    server.create("schedulingpolicies", policy("a"))
    made.operator.report()
    ready = made.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Invalid")
    assert "mode Canary needs canaryPercent" in ready["message"]


def test_a_membership_reports_round_and_budget(server: ApiServer, api: Api) -> None:
    install(server)
    server.create("schedulingpolicies", policy("a", privacy={"epsilon": 8}))
    member = policy("m", clusterName="c-1")
    server.create("federationmemberships", member | {"kind": "FederationMembership"})
    standing = Standing(round=12, epsilon_spent=3.0, delta=1e-6)
    made = Installation(server, api, standing=lambda delta: standing)
    made.operator.resync()
    made.operator.report()
    status = server.get("federationmemberships", "m")["status"]
    assert (status["round"], status["epsilonSpent"], status["epsilonLeft"]) == (12, 3.0, 5.0)
    assert (status["policyVersion"], status["policyDigest"]) == ("v7", DIGEST)
    assert status["conditions"][0]["reason"] == "TakingPart"
    standing = Standing(round=12, epsilon_spent=9.0, delta=1e-6)
    made.operator.resync()
    made.operator.report()
    ready = server.get("federationmemberships", "m")["status"]["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "BudgetSpent")


def test_weights_follow_targets(server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_module, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(operator_module, "RESYNC_SECONDS", 0.05)
    install(server)
    server.create("schedulingpolicies", policy("a", objectives={"targets": {"slaViolations": 0.05}}))
    made = Installation(server, api, outcomes=lambda: Outcomes(sla_violations=0.5))
    made.operator.start()
    try:
        wait(lambda: made.status().get("weights", {}).get("qos", 0) > 0.5)
    finally:
        made.operator.stop()


def test_case_29_no_peering_finalizers_or_annotations_and_two_installations_do_not_fight(
    installed: Installation, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Installation(installed.server, api)
    second.leader.leads = False
    second.operator.start()
    try:
        wait(lambda: second.mode() is Mode.SHADOW)
        peering = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "clusterkopfpeerings.kopf.dev"},
            "spec": {
                "group": "kopf.dev",
                "names": {"kind": "ClusterKopfPeering", "plural": "clusterkopfpeerings", "singular": "x"},
                "scope": "Cluster",
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {}}],
            },
        }
        installed.server.create("customresourcedefinitions", peering)
        frozen = {"default": {"priority": 100, "lifetime": 3600, "lastseen": "2099-01-01T00:00:00Z"}}
        body = {"apiVersion": "kopf.dev/v1", "kind": "ClusterKopfPeering", "metadata": {"name": "default"}}
        installed.server.create("clusterkopfpeerings", body | {"status": frozen})
        installed.server.patch("schedulingpolicies", "a", {"spec": {"mode": "Active"}})
        for made in (installed, second):
            wait(lambda made=made: made.mode() is Mode.ACTIVE, WITHIN)
        wait(lambda: installed.status()["mode"] == "Active")
    finally:
        second.operator.stop()
    metadata = installed.server.get("schedulingpolicies", "a")["metadata"]
    assert not metadata.get("finalizers")
    assert not metadata.get("annotations")
    written = [r for r in installed.server.requests if r.method not in ("GET", "HEAD")]
    assert all("/status" in r.path or "/events" in r.path for r in written)
