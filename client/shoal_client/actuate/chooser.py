# SPDX-License-Identifier: Apache-2.0
"""Asks the policy that serves for a gated pod: the same guard and decider as the extender."""

from __future__ import annotations

import random
from typing import final

import numpy as np

from shoal_client.actuate.placer import Choice
from shoal_client.actuate.pod_use import MeasuredUse
from shoal_client.admission import admits
from shoal_client.metrics import ACTUATIONS
from shoal_client.serve.decider import Decider, Judgement
from shoal_client.serve.guard import Guard
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord

MOST_CANDIDATES = 500
"""Nodes that one decision looks at, drawn at random beyond it: what kube-scheduler looks at in 5,000."""


@final
class PolicyChooser:
    """Chooses with the loaded policy, and holds the chosen node's room until the pod is bound."""

    def __init__(
        self,
        cluster: LiveCluster,
        decider: Decider,
        guard: Guard,
        use: MeasuredUse | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._cluster, self._decider, self._guard, self._use = cluster, decider, guard, use
        self._rng = rng or random.Random()

    def choose(self, pod: PodRecord) -> Choice | None:
        """The nodes with room, best first, and the factors for the best; None where the policy has no say."""
        plan = self._guard.plan(pod, self._cluster.namespace_labels(pod.namespace), self._decider.digest)
        if plan.reason is not None or plan.applied is None or not plan.serves:
            ACTUATIONS.labels("choose", plan.reason or "shadow").inc()
            return None
        names = self._candidates(pod)
        found = self._decider.judge(pod, names, plan.applied)
        if found.reason is not None or found.decision is None or found.chosen < 0:
            ACTUATIONS.labels("choose", found.reason or "no_candidates").inc()
            return None
        ranked = _ranked(found)
        while ranked and self._cluster.try_reserve(pod, ranked[0]):
            del ranked[0]  # the extender's thread took the room after this one had judged
        if not ranked:
            ACTUATIONS.labels("choose", "nothing_feasible").inc()
            return None
        cpu, memory = (float(q) for q in found.decision.quota[0])
        return Choice(ranked, {"cpu": cpu, "memory": memory}, found.policy, self._used(pod))

    def forget(self, uid: str) -> None:
        """Give the room held for a pod free."""
        self._cluster.release(uid)

    def _used(self, pod: PodRecord) -> dict[str, float | None]:
        """Cores and bytes that the pod's app is known to use."""
        app = self._cluster.apps(pod)
        cores = None if app is None or app.cpu_use is None else app.cpu_use / 1000
        return {"cpu": cores, "memory": None if self._use is None else self._use.memory_bytes(pod)}

    def _candidates(self, pod: PodRecord) -> list[str]:
        """Nodes that the pod may run on, by its own wishes and theirs."""
        names = [name for name, node in list(self._cluster.nodes.items()) if admits(node, pod)]
        return self._rng.sample(names, MOST_CANDIDATES) if len(names) > MOST_CANDIDATES else names


def _ranked(found: Judgement) -> list[str]:
    """Names of the nodes with room: the chosen one, then by score."""
    assert found.decision is not None  # noqa: S101 (the caller looked)
    fits = found.feasible[found.known]
    logits = np.where(fits, found.decision.scores.logits[0].max(-1), -np.inf)
    order = [int(i) for i in np.argsort(-logits, kind="stable") if fits[i] and int(i) != found.chosen]
    return [found.names[i] for i in (found.chosen, *order)]
