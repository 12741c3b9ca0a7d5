# SPDX-License-Identifier: Apache-2.0
"""All parts together: informer, policy, lease, webhook over TLS, and the API that they act on."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_client.actuate.actuators import Actuators, ActuatorSettings
from shoal_client.actuate.authority import Authority
from shoal_client.actuate.chooser import PolicyChooser
from shoal_client.actuate.leader import Leader, LeaseSettings
from shoal_client.actuate.pod_use import MeasuredUse
from shoal_client.actuate.webhook import GATE, WebhookSettings
from shoal_client.kube.api import PODS, Api
from shoal_client.policies.registry import Policies
from shoal_client.serve.artifact_file import ArtifactFile
from shoal_client.serve.decider import Decider
from shoal_client.serve.guard import Guard
from shoal_client.serve.server import Address, Tls
from shoal_client.state.informer import Informer
from shoal_client.state.live import LiveCluster
from shoal_common.policy import PolicyArtifact
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

from .test_webhook import certify

WEBHOOK = Path(__file__).parents[3] / "deploy" / "webhook" / "webhook.yaml"
OPTED_IN = {"shoal.dev/placement": "enabled"}
QUOTA = {"enabled": True, "lowest": 0.5, "highest": 2.0}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shoal_common.nn.set_attention import SetActor

    return PolicyArtifact.save(tmp_path_factory.mktemp("policy") / "artifact", SetActor(16, 1), {}).directory


class Process:
    """One client of a cluster, as `shoal client serve --actuate` wires it."""

    def __init__(
        self, api: Api, artifact: Path, tls: Path, identity: str = "a", granted: bool = True
    ) -> None:
        self.live = LiveCluster()
        self.policies = Policies()
        self.informer = Informer(api, self.live)
        quick = {"duration_seconds": 2, "renew_seconds": 1.5, "retry_seconds": 0.1}
        self.leader = Leader(api, LeaseSettings("shoal", "default", identity, actuates=True, **quick))  # type: ignore[arg-type]
        decider = Decider(self.live, ArtifactFile(artifact), seed=0)
        chooser = PolicyChooser(
            self.live, decider, Guard(self.policies, self.live, "shoal"), MeasuredUse(self.live)
        )
        webhook = WebhookSettings(Address("127.0.0.1", 0), Tls(certify(tls, "w"), tls / "tls.key"), "shoal")
        authority = Authority(self.policies, self.live.namespace_labels, granted)
        settings = ActuatorSettings(identity, webhook)
        self.actuators = Actuators(api, self.leader, self.live, authority, chooser, settings)

    def policy(self, mode: str, generation: int) -> None:
        spec = {"mode": mode, "actions": {"cpuQuota": QUOTA}, "drift": {"maxClippedRatio": 1.0}}
        self.policies.set({"metadata": {"name": "p", "uid": "1", "generation": generation}, "spec": spec})
        self.policies.mark_synced()

    def start(self) -> None:
        self.policy("Active", 1)
        self.leader.start()
        self.informer.start()
        assert self.informer.wait_synced(10)
        self.actuators.start()

    def stop(self) -> None:
        self.actuators.stop()
        self.informer.stop()
        self.leader.stop()


@pytest.fixture
def process(server: ApiServer, api: Api, artifact: Path, tmp_path: Path) -> Iterator[Process]:
    for name in ("n1", "n2"):
        server.create("nodes", node(name))
    made = Process(api, artifact, tmp_path)
    made.start()
    assert server.wait(made.leader.is_leader)
    _, configuration = yaml.safe_load_all(WEBHOOK.read_text())
    assert made.actuators.webhook is not None
    url = f"https://localhost:{made.actuators.webhook.port}/mutate"
    bundle = base64.b64encode((tmp_path / "tls.crt").read_bytes()).decode()
    configuration["webhooks"][0]["clientConfig"] = {"url": url, "caBundle": bundle}
    server.create("mutatingwebhookconfigurations", configuration)
    yield made
    made.stop()


def made(api: Api, name: str, **manifest: Any) -> bool:
    """Create a pod over HTTP; whether it carries our gate."""
    created = api.create(PODS, pod(name, cpu="1", **manifest), "default")
    return {"name": GATE} in (created["spec"].get("schedulingGates") or ())


def is_free(server: ApiServer, name: str) -> bool:
    return not server.get("pods", name)["spec"].get("schedulingGates")


def test_from_the_webhook_to_the_scheduler(server: ApiServer, api: Api, process: Process) -> None:
    assert made(api, "p", labels=OPTED_IN)
    assert server.wait(lambda: is_free(server, "p"))
    after = server.get("pods", "p")
    assert "shoal.dev/placement" in after["metadata"]["annotations"]
    preferred = after["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (chosen,) = preferred[0]["preference"]["matchExpressions"][0]["values"]
    assert chosen in ("n1", "n2")
    assert process.live.reserved == 1
    server.bind("p", chosen)
    assert server.wait(lambda: process.live.reserved == 0)


def test_no_gate_on_pods_that_nobody_would_place(server: ApiServer, api: Api, process: Process) -> None:
    assert not made(api, "other")
    process.policy("Shadow", 2)
    assert not made(api, "shadow", labels=OPTED_IN)


def test_switching_the_policy_off_lets_the_gated_go(server: ApiServer, api: Api, process: Process) -> None:
    gang = {"shoal.dev/gang": "g"}
    assert made(api, "p", labels={**OPTED_IN, **gang}, annotations={"shoal.dev/gang-size": "1"})
    process.policy("Off", 2)
    assert server.wait(lambda: is_free(server, "p"))


def test_stopping_lets_the_gated_go_and_gates_no_more(server: ApiServer, api: Api, process: Process) -> None:
    size = {"shoal.dev/gang-size": "2"}
    assert made(api, "p", labels={**OPTED_IN, "shoal.dev/gang": "g"}, annotations=size)
    process.actuators.stop()
    assert is_free(server, "p")
    assert not made(api, "q", labels=OPTED_IN)


def test_a_gated_pod_of_a_process_that_was_killed_is_taken_over(
    server: ApiServer, api: Api, process: Process, artifact: Path, tmp_path: Path
) -> None:
    """The first vanishes without a word while a pod is gated; the second leads once the lease is over."""
    process.stop()
    lease = {"holderIdentity": "killed", "leaseDurationSeconds": 1, "leaseTransitions": 7}
    server.patch("leases", "shoal", {"spec": lease})
    server.create("pods", pod("p", cpu="1", gates=[GATE]))
    second = Process(api, artifact, tmp_path, "b")
    second.start()
    assert server.wait(lambda: is_free(server, "p"))
    assert server.get("leases", "shoal")["spec"]["holderIdentity"] == "b"
    second.stop()


def test_a_process_that_may_not_act_lets_gated_pods_go(
    server: ApiServer, api: Api, artifact: Path, tmp_path: Path
) -> None:
    """What a process that acted left behind, when it was replaced by one without --actuate."""
    server.create("nodes", node("n1"))
    server.create("pods", pod("p", cpu="1", gates=[GATE]))
    quiet = Process(api, artifact, tmp_path, granted=False)
    quiet.start()
    assert server.wait(lambda: is_free(server, "p"))
    assert "affinity" not in server.get("pods", "p")["spec"]
    quiet.stop()
