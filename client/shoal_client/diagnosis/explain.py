# SPDX-License-Identifier: Apache-2.0
"""Why a pod is on its node, or on none: its last recorded decision, else what would be decided now.

A recorded decision is shown as it was made: candidates, features and scores of that moment. What the API says
(refusals, the policy in force, the node) is of now. Names of nodes are hashed in the store; those of nodes
that are gone stay hashes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, final

from shoal_client.collect.collector import Collector
from shoal_client.collect.features import LIVE_FEATURES
from shoal_client.collect.prometheus import PrometheusClient
from shoal_client.diagnosis.explanation import (
    Applied,
    Decided,
    Explanation,
    LiveValue,
    Refused,
    with_candidates,
)
from shoal_client.experience.local_key import LocalKey
from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.records import Seen, Stored
from shoal_client.kube.api import (
    NAMESPACES,
    NODES,
    PODS,
    SCHEDULING_POLICIES,
    SERVICES,
    Api,
    NotFound,
    Resource,
)
from shoal_client.policies.registry import AppliedPolicy, Policies
from shoal_client.policies.spec import Mode
from shoal_client.serve.artifact_file import ArtifactFile
from shoal_client.serve.decider import Decider
from shoal_client.serve.guard import Guard, Plan
from shoal_client.state.live import Kind, LiveCluster
from shoal_common.errors import InputError
from shoal_common.kube.profile import DEFAULT_FILTERS, refuse
from shoal_common.pods import PodRecord
from shoal_common.reward import TERMS
from shoal_common.scorers.base import Scorer
from shoal_common.scorers.fgd_snapshot import fragmentation

EXAMPLES: Final = 3  # nodes named for a refusal
LISTED: Final[Mapping[Kind, Resource]] = {
    "Node": NODES,
    "Pod": PODS,
    "Namespace": NAMESPACES,
    "Service": SERVICES,
}


@final
class Explainer:
    """Looks once at the cluster, then explains pods."""

    def __init__(
        self,
        api: Api,
        store: Path | None = None,
        policy: Path | None = None,
        top: int = 5,
        prometheus: PrometheusClient | None = None,
    ) -> None:
        """List the cluster.

        Raises:
            InputError, Fatal: the artifact cannot be used.
            Transient, Fatal: the API server does not answer, or refuses.
        """
        self._prometheus = prometheus
        self._live, self._policies, self._top = LiveCluster(), Policies(), top
        for kind, resource in LISTED.items():
            self._live.replace(kind, list(api.list(resource)))
        try:
            for found in api.list(SCHEDULING_POLICIES):
                self._policies.set(found)
        except NotFound:  # the definitions are not installed
            pass
        self._policies.mark_synced()
        self._artifact, self._store = ArtifactFile(policy), store

    def explain(self, namespace: str, name: str) -> Explanation:
        """Explain one pod.

        Raises:
            InputError: there is no such pod, or the store cannot be read.
        """
        found = [p for p in self._live.pods.values() if (p.namespace, p.name) == (namespace, name)]
        if not found:
            remedy = "see kubectl get pods; -n names another namespace"
            raise InputError(f"{namespace}/{name}", "pod", "there is no such pod", remedy)
        pod = found[0]
        plan = Guard(self._policies, self._live).plan(
            pod, self._live.namespace_labels(namespace), self._digest
        )
        decision = self._recorded(pod) or self._now(pod, plan.applied)
        node = pod.node_name or (decision.chosen if decision is not None else "")
        gpu = fragmentation(self._live.snapshot())
        return Explanation(
            pod=f"{namespace}/{name}",
            uid=pod.uid,
            node=pod.node_name,
            phase=pod.phase,
            policy=_applied(plan.applied, plan.serves, _reason(plan)),
            decision=decision,
            refusals=self._refusals(pod),
            idle_milli_gpu=gpu.idle,
            unusable_milli_gpu=gpu.unusable,
            measured=node if self._prometheus is not None else "",
            live=self._measured(node),
        )

    @property
    def _digest(self) -> str | None:
        return self._artifact.current.digest if self._artifact.current else None

    def _scorer(self, digest: str) -> Scorer | None:
        """The policy of this digest, where it is the one at hand: only the same policy can tell effects."""
        served = self._artifact.current
        return served.scorer if served is not None and served.digest == digest else None

    def _recorded(self, pod: PodRecord) -> Decided | None:
        """The last recorded decision on the pod, one with candidates before one without."""
        if self._store is None:
            return None
        with ExperienceReader(self._store) as reader:
            attempts = reader.of_pod(pod.uid)
        if not attempts:
            return None
        last = max(attempts, key=lambda a: (a.decision.seen is not None, a.decision.id))
        key = LocalKey(self._store / "local.key")
        names = {key.name(node): node for node in self._live.nodes}
        return self._as_decided(last, names, pod.node_name)

    def _as_decided(self, stored: Stored, names: Mapping[str, str], now_on: str) -> Decided:
        """The decision told; while it is open, the API says where the pod is."""
        decision, result = stored.decision, stored.result
        taken = now_on if result is None else _known(result.node, names)
        seen = decision.seen
        if seen is not None:
            seen = replace(seen, names=tuple(_known(name, names) for name in seen.names))
        reward = None if result is None else result.reward
        told = Decided(
            source="recorded",
            at=_time(decision.at),
            asked_by=decision.source,
            mode=decision.mode,
            digest=decision.policy,
            attempt=decision.attempt,
            taken=taken,
            outcome="open" if result is None else result.outcome,
            reason=decision.reason if result is None else result.reason,
            reward=None if reward is None else dict(zip(TERMS, reward, strict=True)),
        )
        if seen is None:
            return told
        scorer = self._scorer(decision.policy)
        return with_candidates(told, seen, decision.chosen, self._top, scorer)

    def _now(self, pod: PodRecord, applied: AppliedPolicy | None) -> Decided | None:
        """What would be decided for a pod that waits."""
        if pod.node_name or applied is None or applied.mode is Mode.OFF or self._artifact.current is None:
            return None
        names = list(self._live.nodes)
        found = Decider(self._live, self._artifact).judge(pod, names, applied)
        if found.observation is None:
            return None
        logits = None if found.decision is None else found.decision.scores.logits[0]
        seen = Seen.of(found.observation, found.names, logits)
        told = Decided(
            source="now",
            at=_time(time.time()),
            asked_by="",
            mode=applied.mode.value.lower(),
            digest=found.policy,
            attempt=0,
            outcome="",
            reason=found.reason or "",
        )
        chosen = -1 if found.decision is None else int(found.decision.action[0])
        return with_candidates(told, seen, chosen, self._top, self._scorer(found.policy))

    def _measured(self, node: str) -> list[LiveValue]:
        """The live features of a node that are known, by one round of questions to Prometheus."""
        if self._prometheus is None or node not in self._live.nodes:
            return []
        collector = Collector(self._prometheus, self._live, ())
        collector.collect()
        matrix = collector.matrix()
        if node not in matrix.nodes:  # Prometheus is away
            return []
        row = matrix.nodes.index(node)
        cells = zip(LIVE_FEATURES, matrix.values[row], matrix.known[row], matrix.age[row], strict=True)
        return [LiveValue(f.name, float(v), f.unit, float(age)) for f, v, known, age in cells if known]

    def _refusals(self, pod: PodRecord) -> list[Refused]:
        """Nodes that kube-scheduler's filters keep the pod from, were it to be placed now."""
        snapshot = self._live.snapshot()
        others = tuple(p for p in snapshot.pods if p.uid != pod.uid)
        refusals, _ = refuse(DEFAULT_FILTERS, replace(snapshot, pods=others), replace(pod, node_name=""))
        by_reason: dict[str, list[str]] = defaultdict(list)
        for node, refusal in refusals.items():
            by_reason["; ".join(refusal.reasons)].append(node)
        ordered = sorted(by_reason.items(), key=lambda item: -len(item[1]))
        return [Refused(reason, len(nodes), sorted(nodes)[:EXAMPLES]) for reason, nodes in ordered]


def _applied(applied: AppliedPolicy | None, serves: bool, reason: str) -> Applied:
    if applied is None:
        return Applied("", "none", False, "no SchedulingPolicy selects the pod")
    if not applied.name:
        return Applied("", "default", False, "there is no SchedulingPolicy, so serve's --mode holds")
    why = applied.rolled_back or reason
    if not why and not serves:
        why = "not in the canary" if applied.mode is Mode.CANARY else applied.mode.value.lower()
    return Applied(applied.name, applied.mode.value, serves and not why, why)


def _reason(plan: Plan) -> str:
    """Why nothing is decided; that no artifact was given here says nothing of the one that is served."""
    return "" if plan.reason in (None, "no_policy") else str(plan.reason)


def _known(hashed: str, names: Mapping[str, str]) -> str:
    """A node's name by its hash; "" stays "", the hash of a node that is gone is said to be one."""
    return names.get(hashed, f"gone:{hashed}") if hashed else ""


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
