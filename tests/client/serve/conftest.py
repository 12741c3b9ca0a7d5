# SPDX-License-Identifier: Apache-2.0
"""A cluster as the informer would have filled it, an artifact, and the service on top of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal_client.policies.registry import Policies
from shoal_client.serve.artifact_file import ArtifactFile
from shoal_client.serve.breaker import Breaker
from shoal_client.serve.decider import Decider
from shoal_client.serve.guard import Guard
from shoal_client.serve.payloads import Candidates, read_candidates
from shoal_client.serve.service import DecisionService
from shoal_client.state.live import LiveCluster
from shoal_common.policy import PolicyArtifact
from shoal_simulations.control_plane.builders import node, pod


def save_artifact(folder: Path, seed: int, profiles: int = 1) -> Path:
    import torch

    from shoal_common.nn.set_attention import SetActor

    torch.manual_seed(seed)
    actor = SetActor(16, profiles)
    for parameter in actor.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.4)
    return PolicyArtifact.save(folder, actor, {"seed": seed}).directory


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_artifact(tmp_path_factory.mktemp("policy") / "artifact", 1)


class Recorded:
    """Every call that the recorder gets."""

    def __init__(self) -> None:
        self.decisions: list[tuple[Any, dict[str, Any]]] = []
        self.refusals: list[tuple[str, str]] = []

    def decided(self, pod: Any, observation: Any, names: Any, **more: Any) -> None:
        self.decisions.append((pod, {"observation": observation, "names": list(names), **more}))

    def refused(self, pod: Any, reason: str, **more: Any) -> None:
        self.refusals.append((pod.name, reason))


class World:
    """A service over `live`; nodes and pods get uids and versions as an API server gives them."""

    def __init__(self, directory: Path | None, mode: str = "Active", **spec: Any) -> None:
        self.live = LiveCluster()
        self.policies = Policies()
        self.recorded = Recorded()
        self._versions = itertools.count(1)
        self.policy(mode=mode, **{"fallback": {"timeoutMs": 5000}, **spec})
        self.policies.mark_synced()
        self.artifact = ArtifactFile(directory)
        self.decider = Decider(self.live, self.artifact, seed=0)
        self.breaker = Breaker()
        self.guard = Guard(self.policies, self.live, "shoal")
        self.service = DecisionService(self.live, self.decider, self.guard, self.recorded, None, self.breaker)

    def policy(self, **spec: Any) -> None:
        metadata = {"name": "p", "uid": "1", "generation": next(self._versions)}
        self.policies.set({"metadata": metadata, "spec": spec})

    def stamped(self, obj: dict[str, Any]) -> dict[str, Any]:
        metadata = {"uid": f"uid-{obj['metadata']['name']}", **obj["metadata"]}
        return {**obj, "metadata": {**metadata, "resourceVersion": str(next(self._versions))}}

    def nodes(self, *nodes: dict[str, Any]) -> World:
        self.live.replace("Node", [self.stamped(n) for n in nodes])
        self.live.replace("Pod", [])
        return self

    def asked(self, names: list[str] | None = None, **pod_fields: Any) -> Candidates:
        """A request for a pod, over all nodes by default."""
        obj = self.stamped(pod(pod_fields.pop("name", "p"), **pod_fields))
        return read_candidates(body(obj, list(self.live.nodes) if names is None else names))

    def scores(self, asked: Candidates) -> list[int]:
        return self.service.prioritize(asked).wait().scores


def body(obj: dict[str, Any], names: list[str]) -> bytes:
    import json

    return json.dumps({"Pod": obj, "Nodes": None, "NodeNames": names}).encode()


def some_nodes(count: int = 4, **fields: Any) -> list[dict[str, Any]]:
    """Nodes of different sizes."""
    return [node(f"n{i}", cpu=8 + 8 * i, memory=f"{32 + 16 * i}Gi", **fields) for i in range(count)]


@pytest.fixture
def world(artifact: Path) -> Iterator[World]:
    made = World(artifact).nodes(*some_nodes())
    yield made
    made.service.stop()
