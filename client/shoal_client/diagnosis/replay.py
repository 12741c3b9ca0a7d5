# SPDX-License-Identifier: Apache-2.0
"""A candidate policy on a cluster's own experience: in its twin, and by off-policy estimates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from shoal_client.diagnosis.live_twin import scenario
from shoal_client.experience.offpolicy import OffPolicy, evaluate
from shoal_client.experience.reader import ExperienceReader
from shoal_client.kube.api import NODES, connect
from shoal_client.state.live import LiveCluster
from shoal_common.cluster import F64, N_EXISTS
from shoal_common.errors import InputError
from shoal_common.gate import GATE_SEED, Verdict, compare
from shoal_common.kube.selection import num_feasible_nodes_to_find
from shoal_common.scorers.artifact_numpy import open_artifact
from shoal_common.scorers.base import Scorer
from shoal_common.twin.env import scorer_id

MOST_DECISIONS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Question:
    """What is compared, on what."""

    policy: Path
    incumbent: str  # an artifact's directory, or a compiled scorer
    store: Path
    since: float  # seconds since the epoch
    seconds: float
    seeds: int
    least_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    incumbent: str
    decisions: int
    pods: int
    nodes: int
    verdict: Verdict
    off_policy: OffPolicy

    def json(self) -> dict[str, Any]:
        """As a document; what is not known is null."""
        twin = {"incumbent": self.incumbent} | asdict(self.verdict)
        return {
            "decisions": self.decisions,
            "pods": self.pods,
            "nodes": self.nodes,
            "nodes_sampled": num_feasible_nodes_to_find(self.nodes),
            "twin": _known(twin),
            "off_policy": _known(asdict(self.off_policy)),
        }


def replay_experience(question: Question, nodes: F64) -> Replayed:
    """Compare on nodes f64[N, NODE_COLUMNS].

    Raises:
        InputError: a policy or the store cannot be read, or there is too little experience.
    """
    candidate, incumbent = open_artifact(question.policy), _incumbent(question.incumbent)
    with ExperienceReader(question.store) as reader:
        decisions = []
        for stored in reader.rows(question.since):
            decisions.append(stored)
            if len(decisions) > MOST_DECISIONS:
                decisions = decisions[-MOST_DECISIONS // 2 :]
    twin = scenario("live", nodes, decisions, question.seconds)
    seeds = range(GATE_SEED, GATE_SEED + question.seeds)
    verdict = compare(candidate, incumbent, [twin], seeds, least_gain=question.least_gain)
    profiles = int(candidate.manifest["profiles"])
    return Replayed(
        question.incumbent,
        len(decisions),
        0 if twin.recorded is None else len(twin.recorded.arrival_s),
        int((nodes[:, N_EXISTS] > 0).sum()),
        verdict,
        evaluate(decisions, candidate, profiles=profiles),
    )


def _incumbent(name: str) -> str | Scorer:
    if Path(name).is_dir():
        return open_artifact(Path(name))
    scorer_id(name)
    return name


def read_nodes(path: Path | None, kubeconfig: Path | None) -> F64:
    """Rows of a cluster's nodes, f64[N, NODE_COLUMNS]: of a file, else of the API server.

    Raises:
        InputError: the file is no list of nodes, or there are no credentials.
        Transient, Fatal: the API server does not answer, or refuses.
    """
    live = LiveCluster()
    live.replace("Node", list(connect(kubeconfig).list(NODES)) if path is None else _items(path))
    return live.cluster.node


def _items(path: Path) -> list[Mapping[str, Any]]:
    try:
        items = json.loads(path.read_bytes())["items"]
        if not all(item["metadata"]["name"] for item in items):
            raise ValueError("a node has no name")
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is no list of nodes ({type(error).__name__})"
        raise InputError(str(path), "--nodes", problem, "write it by kubectl get nodes -o json") from error
    return list(items)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with null for what is not finite."""
    return {
        name: _known(value)
        if isinstance(value, Mapping)
        else (None if isinstance(value, float) and not math.isfinite(value) else value)
        for name, value in values.items()
    }
