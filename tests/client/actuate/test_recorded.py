# SPDX-License-Identifier: Apache-2.0
"""A pod that was resized at its gate is judged and recorded by what it had asked for, with its quotas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events
from shoal_client.actuate.gates import Gates
from shoal_client.actuate.leader import Leader
from shoal_client.actuate.placer import Choice, PolicyPlacer
from shoal_client.actuate.webhook import GATE
from shoal_client.experience.apps import AppHistory
from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.recorder import Recorder
from shoal_client.experience.records import Stored
from shoal_client.experience.source import transitions
from shoal_client.experience.store import ExperienceStore
from shoal_client.kube.api import Api
from shoal_client.placement import asked_row, granted
from shoal_client.policies.registry import Policies
from shoal_client.serve.artifact_file import ArtifactFile
from shoal_client.serve.decider import Decider
from shoal_client.serve.guard import Guard
from shoal_client.serve.payloads import read_candidates
from shoal_client.serve.service import DecisionService
from shoal_client.state.live import LiveCluster
from shoal_common.cluster import P_CPU, P_CPU_USE, P_MEMORY
from shoal_common.observation import TASK_FEATURES
from shoal_common.pods import PodRecord
from shoal_common.policy import PolicyArtifact
from shoal_common.tables import App, pod_row
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

GIB = 2**30
QUOTA = {"enabled": True, "lowest": 0.5}
FACTORS = {"cpu": 0.5, "memory": 0.75}


class Cutting:
    """A policy that wants n1 or n2, with a part of what was asked."""

    def choose(self, pod: PodRecord) -> Choice | None:
        return Choice(["n1", "n2"], FACTORS, "digest", {"cpu": 0.1, "memory": 1.0})

    def forget(self, uid: str) -> None:
        pass


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shoal_common.nn.set_attention import SetActor

    return PolicyArtifact.save(tmp_path_factory.mktemp("policy") / "artifact", SetActor(16, 1), {}).directory


@pytest.fixture
def gated(
    server: ApiServer,
    api: Api,
    leader: Leader,
    cluster: LiveCluster,
    events: Events,
    grant: Callable[[Mapping[str, object]], Authority],
    observe: Callable[[], None],
) -> dict[str, Any]:
    """A pod (API object) of 2 CPUs and 4 GiB that has come through its gate with less."""
    for name in ("n1", "n2", "n3"):
        server.create("nodes", node(name))
    authority = grant({"cpuQuota": QUOTA, "memoryQuota": QUOTA})
    gates = Gates(
        api, leader, cluster, PolicyPlacer(api, cluster, authority, Cutting(), lambda _: False), events
    )
    cluster.subscribe(gates.pod_changed)
    server.create("pods", pod("p", cpu="2", memory="4Gi", gates=[GATE]))
    observe()
    gates.step()
    observe()
    return dict(server.get("pods", "p"))


@pytest.fixture
def stored(cluster: LiveCluster, tmp_path: Path) -> Iterator[tuple[Recorder, Callable[[], list[Stored]]]]:
    """A recorder of the cluster, and what it has stored."""
    with ExperienceStore(tmp_path / "experience") as store:
        recorder = Recorder(store, cluster, AppHistory(store.key))
        cluster.subscribe(recorder.pod_changed)

        def rows() -> list[Stored]:
            assert recorder.flush(10)
            with ExperienceReader(tmp_path / "experience") as reader:
                return list(reader.rows())

        with recorder:
            yield recorder, rows


def _holds_what_the_policy_did(row: Stored) -> None:
    """Quotas as the action, and the pod as it was before it."""
    decision = row.decision
    assert decision.quota == (0.5, 0.75)
    assert (decision.pod[P_CPU], decision.pod[P_MEMORY]) == (2000.0, 4 * GIB)
    assert decision.seen is not None
    task = dict(zip((f.name for f in TASK_FEATURES), decision.seen.task, strict=True))
    assert float(task["cpu_request"]) == pytest.approx(2 / 16, rel=1e-3)
    assert float(task["memory_request"]) == pytest.approx(4 / 64, rel=1e-3)
    np.testing.assert_array_equal(transitions([row]).quota, [[0.5, 0.75]])


def test_at_prioritize(
    gated: dict[str, Any],
    cluster: LiveCluster,
    artifact: Path,
    stored: tuple[Recorder, Callable[[], list[Stored]]],
) -> None:
    policies = Policies()
    spec = {"mode": "Active", "drift": {"maxClippedRatio": 1.0}, "fallback": {"timeoutMs": 5000}}
    policies.set({"metadata": {"name": "p", "uid": "1", "generation": 1}, "spec": spec})
    policies.mark_synced()
    recorder, rows = stored
    decider = Decider(cluster, ArtifactFile(artifact), seed=0)
    service = DecisionService(cluster, decider, Guard(policies, cluster), recorder)
    names = ["n1", "n2"]
    asked = read_candidates(json.dumps({"Pod": gated, "Nodes": None, "NodeNames": names}).encode())
    assert asked.pod.requests == {"cpu": 1000, "memory": 3 * GIB}
    assert service.prioritize(asked).wait().reason is None
    service.stop()
    (row,) = rows()
    assert row.decision.source == "extender"
    _holds_what_the_policy_did(row)


def test_at_a_bind_that_nobody_asked_about(
    api: Api,
    gated: dict[str, Any],
    observe: Callable[[], None],
    stored: tuple[Recorder, Callable[[], list[Stored]]],
) -> None:
    api.bind("p", "default", "n1", gated["metadata"]["uid"])
    observe()
    (row,) = stored[1]()
    assert row.decision.source == "watched"
    _holds_what_the_policy_did(row)


def test_without_a_resize_of_ours_a_pod_is_what_it_asks_for(
    gated: dict[str, Any], cluster: LiveCluster
) -> None:
    record = cluster.pods[gated["metadata"]["uid"]]
    assert granted(record) == (0.5, 0.75)
    text = record.annotations["shoal.dev/placement"]
    wrong = json.loads(text) | {"asked": {"cpu": 10**400, "memory": -1}}
    for other in (
        replace(record, uid="another"),  # copied into a template
        replace(record, annotations={}),
        replace(record, annotations={"shoal.dev/placement": json.dumps(wrong)}),
    ):
        assert granted(other) == (1.0, 1.0)
        np.testing.assert_array_equal(asked_row(other), pod_row(other))


def test_the_use_of_an_app_is_what_it_is_whatever_was_granted(
    gated: dict[str, Any], cluster: LiveCluster
) -> None:
    record = cluster.pods[gated["metadata"]["uid"]]
    assert asked_row(record)[P_CPU_USE] == 2000.0
    assert asked_row(record, App(cpu_use=300.0))[P_CPU_USE] == 300.0
