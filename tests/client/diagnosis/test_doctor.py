# SPDX-License-Identifier: Apache-2.0
"""`shoal client doctor` against the emulated API: each check finds its fault and names the remedy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shoal_client.commands.client import app
from shoal_client.diagnosis import doctor as doctor_module
from shoal_client.diagnosis.doctor import Doctor, Examination
from shoal_client.diagnosis.findings import Finding, Level
from shoal_common.privacy.ledger import Ledger, LedgerRow
from shoal_simulations.control_plane import node
from shoal_simulations.control_plane.api import ApiServer

ROOT = Path(__file__).parents[3]


def custom(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "shoal.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        for file in sorted((ROOT / "deploy/crds").glob("*.yaml")):
            running.create("customresourcedefinitions", yaml.safe_load(file.read_text()))
        running.create("nodes", node("n"))
        yield running


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    return server.kubeconfig(tmp_path / "kubeconfig")


def examine(kubeconfig: Path, check: str = "", **asked: Any) -> list[Finding]:
    found = Doctor(Examination(kubeconfig, **asked)).examine()
    return [f for f in found if check in ("", f.check)]


def levels(findings: list[Finding]) -> list[Level]:
    return [f.level for f in findings]


def test_a_good_cluster_has_nothing_but_what_was_not_asked(kubeconfig: Path) -> None:
    findings = examine(kubeconfig)
    assert {f.level for f in findings} == {Level.OK, Level.SKIPPED}
    assert {f.check for f in findings} >= {"api", "clock", "crds", "rbac", "scheduler", "metrics", "budget"}
    assert all(f.remedy for f in findings if f.level is not Level.OK)


def test_without_an_api_server_only_local_checks_remain(server: ApiServer, kubeconfig: Path) -> None:
    server.down()
    findings = examine(kubeconfig)
    assert findings[0].check == "api"
    assert findings[0].level is Level.ERROR
    assert {f.check for f in findings} == {"api", "scheduler", "metrics", "policy", "budget"}


def test_missing_definitions_are_an_error(server: ApiServer, kubeconfig: Path) -> None:
    server.unserve("schedulingpolicies")
    (finding,) = examine(kubeconfig, "crds")
    assert (finding.level, finding.remedy) == (Level.ERROR, "kubectl apply -f deploy/crds/")


def test_a_missing_permission_names_the_manifest(server: ApiServer, kubeconfig: Path) -> None:
    server.deny("watch", "pods")
    server.deny("patch", "schedulingpolicies/status")
    findings = examine(kubeconfig, "rbac")
    assert {f.message for f in findings} == {
        "may not watch pods",
        "may not patch schedulingpolicies.shoal.dev/status",
    }
    assert {f.remedy for f in findings} == {"kubectl apply -f deploy/rbac/client.yaml"}


def test_an_enabled_action_needs_its_own_permissions(server: ApiServer, kubeconfig: Path) -> None:
    server.deny("create", "pods/eviction")
    assert levels(examine(kubeconfig, "rbac")) == [Level.OK]
    spec = {"actions": {"migration": {"enabled": True}}}
    server.create("schedulingpolicies", custom("SchedulingPolicy", "a", spec))
    (finding,) = examine(kubeconfig, "rbac")
    assert finding.message == "may not create pods/eviction"
    assert finding.remedy.endswith("action-migration.yaml")


def test_policies_without_a_client_rolled_back_or_in_order(server: ApiServer, kubeconfig: Path) -> None:
    server.create("schedulingpolicies", custom("SchedulingPolicy", "a", {"mode": "Active"}))
    (finding,) = examine(kubeconfig, "policies")
    assert "no client has reported" in finding.message
    generation = server.get("schedulingpolicies", "a")["metadata"]["generation"]
    rollback = {"generation": generation, "count": 1, "reason": "evictions", "time": "2026-01-01T00:00:00Z"}
    status = {"observedGeneration": generation, "rollback": rollback}
    server.patch("schedulingpolicies", "a", {"status": status}, subresource="status")
    (finding,) = examine(kubeconfig, "policies")
    assert "rolled back to Shadow: evictions" in finding.message
    server.patch("schedulingpolicies", "a", {"status": {"rollback": None}}, subresource="status")
    assert levels(examine(kubeconfig, "policies")) == [Level.OK]


def test_two_memberships_are_one_too_many(server: ApiServer, kubeconfig: Path) -> None:
    for name in ("a", "b"):
        body = custom("FederationMembership", name, {"clusterName": name})
        server.create("federationmemberships", body)
    (finding,) = examine(kubeconfig, "policies")
    assert finding.message == "several memberships: a, b"


def test_the_schedulers_configuration_from_a_file_and_from_a_config_map(
    server: ApiServer, kubeconfig: Path, tmp_path: Path
) -> None:
    file = ROOT / "deploy/kube-scheduler/extender.yaml"
    assert levels(examine(kubeconfig, "scheduler", scheduler_config=str(file))) == [Level.OK]
    text = file.read_text().replace("nodeCacheCapable: true", "nodeCacheCapable: false")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s", "namespace": "kube-system"}}
    server.create("configmaps", body | {"data": {"config.yaml": text}})
    (finding,) = examine(kubeconfig, "scheduler", scheduler_config="configmap:kube-system/s")
    assert (finding.level, finding.remedy) == (Level.ERROR, "set nodeCacheCapable: true")
    for wrong in (str(tmp_path / "none.yaml"), "configmap:kube-system/none"):
        assert levels(examine(kubeconfig, "scheduler", scheduler_config=wrong)) == [Level.ERROR]
    (tmp_path / "broken.yaml").write_text("a: [")
    (finding,) = examine(kubeconfig, "scheduler", scheduler_config=str(tmp_path / "broken.yaml"))
    assert "is no YAML" in finding.message


def test_the_deadline_of_the_policies_is_held_against_the_timeout(
    server: ApiServer, kubeconfig: Path
) -> None:
    server.create("schedulingpolicies", custom("SchedulingPolicy", "a", {"fallback": {"timeoutMs": 500}}))
    file = str(ROOT / "deploy/kube-scheduler/extender.yaml")
    findings = examine(kubeconfig, "scheduler", scheduler_config=file)
    assert any("not above fallback.timeoutMs 500" in f.message for f in findings)


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.0, Level.OK), (3600.0, Level.WARNING), (-60.0, Level.WARNING)]
)
def test_a_skewed_clock_is_told(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, level: Level
) -> None:
    now = time.time

    class Skewed:
        time = staticmethod(lambda: now() + ahead)

    monkeypatch.setattr(doctor_module, "time", Skewed)
    (finding,) = examine(kubeconfig, "clock")
    assert finding.level is level


def charge(path: Path, rounds: int) -> None:
    ledger = Ledger(path)
    for number in range(rounds):
        ledger.charge(
            LedgerRow(
                cluster="c", round=number + 1, step_begin=10 * number, step_end=10 * (number + 1),
                mechanism="gaussian", sample_rate=0.01, noise_multiplier=1.0, steps=10, delta=1e-6,
                unit="transition", neighbouring="add_remove",
            )
        )  # fmt: skip


def test_the_privacy_budget(server: ApiServer, kubeconfig: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert levels(examine(kubeconfig, "budget", ledger=path)) == [Level.WARNING]
    charge(path, 2)
    (finding,) = examine(kubeconfig, "budget", ledger=path)
    assert finding.level is Level.OK
    assert "after round 2; no policy sets a limit" in finding.message
    server.create("schedulingpolicies", custom("SchedulingPolicy", "a", {"privacy": {"epsilon": 0.001}}))
    (finding,) = examine(kubeconfig, "budget", ledger=path)
    assert (finding.level, "limit 0.001 is reached" in finding.message) == (Level.ERROR, True)
    path.write_text(path.read_text().replace('"round":1', '"round":7', 1))
    (finding,) = examine(kubeconfig, "budget", ledger=path)
    assert finding.level is Level.ERROR


def test_an_artifact_that_is_none_is_an_error(kubeconfig: Path, tmp_path: Path) -> None:
    (finding,) = examine(kubeconfig, "policy", policy=tmp_path)
    assert finding.level is Level.ERROR


def test_prometheus_away_is_an_error(kubeconfig: Path) -> None:
    (finding,) = examine(kubeconfig, "metrics", prometheus="http://127.0.0.1:9")
    assert finding.level is Level.ERROR


def test_the_command_prints_lines_or_one_document_and_exits_by_the_worst(
    server: ApiServer, kubeconfig: Path
) -> None:
    asked = ["doctor", "--kubeconfig", str(kubeconfig)]
    run = CliRunner().invoke(app, asked)
    assert run.exit_code == 0
    assert run.stdout.splitlines()[0].startswith("ok      api        http://127.0.0.1:")
    server.deny("list", "nodes")
    run = CliRunner().invoke(app, [*asked, "--json"])
    assert run.exit_code == 1
    document = json.loads(run.stdout)
    assert document["counts"]["error"] >= 1
    assert {"check", "level", "message", "remedy"} == set(document["findings"][0])
    assert {f["level"] for f in document["findings"]} <= {"ok", "skipped", "warning", "error"}
