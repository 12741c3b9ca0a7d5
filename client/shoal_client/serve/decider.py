# SPDX-License-Identifier: Apache-2.0
"""One decision on the live cluster: nodes by name and a pod -> scores and a choice, without any effect.

What it returns is what prioritize answers, what an actuator carries out and what `explain` shows.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from shoal_client.metrics import CLIPPED_RATIO, DRIFT_INDEX
from shoal_client.periodic import Periodic
from shoal_client.placement import asked_row
from shoal_client.policies.registry import AppliedPolicy
from shoal_client.serve.artifact_file import ArtifactFile, ServedPolicy
from shoal_client.serve.drift import Drift, clipped_ratio
from shoal_client.serve.guard import Reason
from shoal_client.serve.live import I64, LiveState
from shoal_common.cluster import F64, Cluster, Mask, feasible_mask
from shoal_common.decide import Context, Decision, Embeddings, decide, observe
from shoal_common.observation import Observation
from shoal_common.pods import PodRecord
from shoal_common.tables import pod_row

REFRESH_SECONDS = 0.2
TABLED = frozenset({"cpu", "memory", "pods"})
"""Resources whose room the tables tell; for others every candidate is asked."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision on N asked nodes, K of which are known."""

    known: Mask  # [N]
    feasible: Mask  # [N]; False where not known
    names: Sequence[str]  # the known ones, [K]
    policy: str  # digest
    observation: Observation | None = None  # of the known nodes; None where there is none of them
    decision: Decision | None = None  # None where `reason` came before it
    reason: Reason | None = None  # why the policy has no say

    @property
    def chosen(self) -> int:
        """The chosen node's place among the known ones, -1 where there is no choice."""
        if self.decision is None or self.observation is None or self.decision.action[0] < 0:
            return -1
        return int(self.decision.action[0]) // int(self.observation.mask.shape[2])

    @property
    def best(self) -> tuple[str, ...]:
        """Nodes with the best score, the chosen one first; several where a scheduler may take any of them."""
        if self.chosen < 0 or self.decision is None:
            return ()
        logits = np.where(self.feasible[self.known], self.decision.scores.logits[0].max(-1), -np.inf)
        equal = np.flatnonzero(logits == logits[self.chosen]).tolist()
        return (self.names[self.chosen], *(self.names[i] for i in equal if i != self.chosen))


@final
class Decider:
    """Decides with the policy that is loaded; one decision at a time."""

    def __init__(self, live: LiveState, artifact: ArtifactFile, seed: int | None = None) -> None:
        self._live, self._artifact = live, artifact
        self._rng = np.random.default_rng(seed)
        self._served: ServedPolicy | None = None
        self._embeddings: Embeddings | None = None
        self._drift = Drift()
        self._mutex = threading.Lock()
        self._encoding = Periodic("encode", self.refresh, REFRESH_SECONDS)

    @property
    def digest(self) -> str | None:
        """Digest of the loaded policy, None without one."""
        return self._artifact.current.digest if self._artifact.current else None

    @property
    def drift_index(self) -> float:
        """Population stability index of the latest window of observations; see `serve.drift`."""
        return self._drift.index

    def start(self) -> None:
        """Encode changed nodes between requests too, from a thread of its own."""
        self._encoding.start()

    def stop(self) -> None:
        """End the thread."""
        self._encoding.stop()

    def refresh(self) -> None:
        """Bring tables, features and tokens up to date, where a policy is loaded."""
        _ = self._live.cluster  # outside the lock: many changed nodes take their time
        with self._mutex:
            if self._artifact.current is not None:
                self._encoded(self._policy()[1])

    def judge(self, pod: PodRecord, names: Sequence[str], applied: AppliedPolicy) -> Judgement:
        """Decide on a pod among these nodes under a policy's settings; the artifact must be loaded."""
        with self._mutex:
            served, embeddings = self._policy()
            cluster = self._encoded(embeddings)
            rows = self._live.rows(names)
            known = (rows >= 0) & (rows < len(cluster))
            if not known.any():
                return Judgement(known, known, (), served.digest, reason="no_candidates")
            rows = rows[known]
            seen = names if known.all() else [names[i] for i in np.flatnonzero(known).tolist()]
            app = self._live.apps(pod)
            fits = self._feasible(cluster, pod, pod_row(pod, app), seen, rows)
            mask = np.repeat(fits[:, None], served.profiles, axis=1)
            w = applied.weights.array()
            context = Context.now(float(self._live.pending))
            obs = observe(cluster, asked_row(pod, app), mask, w, context, rows, embeddings.features)
            feasible = np.zeros(len(known), np.bool_)
            feasible[known] = fits
            reason = self._doubt(obs, applied)
            if reason is not None:
                return Judgement(known, feasible, seen, served.digest, obs, reason=reason)
            share = applied.spec.exploration.epsilon or None
            decision = decide(embeddings.at(rows), obs, share, self._rng)
        empty = decision.action[0] < 0
        found: Reason | None = None if not empty else "not_finite" if fits.any() else "nothing_feasible"
        return Judgement(known, feasible, seen, served.digest, obs, decision, found)

    def _encoded(self, embeddings: Embeddings) -> Cluster:
        """The tables, with every change up to now in the embeddings."""
        changed = self._live.take_changed()  # before the tables, which may grow in between
        cluster = self._live.cluster
        embeddings.update(cluster, changed)
        return cluster

    def _policy(self) -> tuple[ServedPolicy, Embeddings]:
        """The loaded policy with its tokens; a new one starts its own."""
        served = self._artifact.current
        assert served is not None  # noqa: S101 (the guard's plan says so)
        if served is not self._served or self._embeddings is None:
            self._served, self._embeddings = served, Embeddings(served.scorer)
            self._drift = Drift()
        return served, self._embeddings

    def _feasible(self, cluster: Cluster, pod: PodRecord, row: F64, names: Sequence[str], rows: I64) -> Mask:
        """Which known nodes have room, bool[K]; what the tables do not tell is asked node by node."""
        fits = np.empty(len(rows), np.bool_)
        node, use, gpu = (table.take(rows, 0) for table in (cluster.node, cluster.use, cluster.gpu_free))
        feasible_mask(node, use, gpu, row, fits)
        if not pod.requests.keys() <= TABLED:
            for k in np.flatnonzero(fits).tolist():
                fits[k] = not self._live.insufficient(names[k], pod)
        avoided = self._live.rejecting(pod)
        if avoided:
            fits &= ~np.isin(rows, self._live.rows(avoided))
        return fits

    def _doubt(self, obs: Observation, applied: AppliedPolicy) -> Reason | None:
        """Why this observation is not one that the policy can judge."""
        limits, ratio = applied.spec.drift, clipped_ratio(obs)
        self._drift.see(obs, limits.window_decisions)
        CLIPPED_RATIO.set(ratio)
        DRIFT_INDEX.set(self._drift.index)
        if ratio > limits.max_clipped_ratio:
            return "out_of_distribution"
        return "drift" if self._drift.index > limits.max_shift else None
