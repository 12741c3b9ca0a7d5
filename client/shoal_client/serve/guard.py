# SPDX-License-Identifier: Apache-2.0
"""Whether a policy may answer for a pod now. Whatever speaks against it makes the answer neutral.

Reasons are a fixed set, so that they can label a metric. Some are plain modes (nobody asked for a policy),
the others are failures; both leave the placement to kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, final

from shoal_client.experience.records import Mode as RecordedMode
from shoal_client.policies.registry import AppliedPolicy, Policies
from shoal_client.policies.spec import Mode
from shoal_common.pods import PodRecord

Reason = Literal[
    "off", "not_selected", "one_node_only", "shadow",  # as asked for
    "no_policy", "other_digest", "not_synced", "stale", "breaker_open", "deadline", "error", "not_finite",
    "nothing_feasible", "out_of_distribution", "drift", "no_candidates",  # failures and doubts
]  # fmt: skip
BY_MODE = frozenset({"off", "not_selected", "one_node_only", "shadow"})
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
DEADLINE_SECONDS, SCALE = 0.1, 10  # where no policy says otherwise


class Freshness(Protocol):
    """What is asked of the cluster's state."""

    @property
    def synced(self) -> bool:
        """Whether nodes and pods were listed once."""

    def staleness_seconds(self, kind: str) -> float:
        """Seconds since the watch of this kind last heard from the API."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen with one request: `applied` decides it, unless `reason` says why nothing does."""

    applied: AppliedPolicy | None
    reason: Reason | None
    serves: bool = False  # whether the policy's answer leaves the process

    @property
    def recorded_mode(self) -> RecordedMode:
        """The mode under which an attempt is recorded."""
        if self.applied is None or self.applied.mode is Mode.OFF:
            return "off"
        if not self.serves:
            return "shadow"
        return "canary" if self.applied.mode is Mode.CANARY else "active"

    @property
    def deadline_seconds(self) -> float:
        """How long an answer may take."""
        return DEADLINE_SECONDS if self.applied is None else self.applied.spec.fallback.timeout_ms / 1000.0

    @property
    def scale(self) -> int:
        """The highest score."""
        return SCALE if self.applied is None else self.applied.spec.score_scale


@final
class Guard:
    """Plans requests from the policies in force, the loaded artifact and the age of the caches."""

    def __init__(self, policies: Policies, live: Freshness, namespace: str = "") -> None:
        """`namespace` is Shoal's own, whose pods are never masked."""
        self._policies, self._live = policies, live
        self._unmasked = SYSTEM_NAMESPACES | ({namespace} if namespace else frozenset())

    def plan(self, pod: PodRecord, namespace_labels: Mapping[str, str], digest: str | None) -> Plan:
        """The plan for a pod; `digest` is that of the loaded artifact, None without one."""
        applied = self._policies.for_pod(pod, namespace_labels)
        if applied is None:
            return Plan(None, "not_selected")
        if applied.mode is Mode.OFF:
            return Plan(applied, "off")
        if one_node_only(pod):
            return Plan(applied, "one_node_only")
        return Plan(applied, self._failure(applied, digest), applied.serves(pod))

    def _failure(self, applied: AppliedPolicy, digest: str | None) -> Reason | None:
        """Why the policy cannot decide at this moment."""
        if digest is None:
            return "no_policy"
        if not applied.admits(digest):
            return "other_digest"
        if not self._live.synced:
            return "not_synced"
        return "stale" if self.staleness_seconds > applied.spec.fallback.max_staleness_seconds else None

    @property
    def staleness_seconds(self) -> float:
        """Seconds since the API was last heard of for nodes or for pods, whichever are older."""
        return max(self._live.staleness_seconds(kind) for kind in ("Node", "Pod"))

    def masks(self, pod: PodRecord) -> bool:
        """Whether the filter verb may keep this pod off nodes: never system pods nor Shoal's own."""
        return pod.namespace not in self._unmasked


def one_node_only(pod: PodRecord) -> bool:
    """Whether the pod may run on one named node alone, as a DaemonSet's pods may: there is no choice."""
    terms = pod.required_nodes or ()
    names = {
        r.values for term in terms for r in term.fields if r.key == "metadata.name" and r.operator == "In"
    }
    every = all(any(r.key == "metadata.name" and r.operator == "In" for r in term.fields) for term in terms)
    return bool(terms) and every and len(names) == 1 and len(next(iter(names))) == 1
