# SPDX-License-Identifier: Apache-2.0
"""Whether moving a running pod pays, by the twin: the same two nodes with the pod where it is, and elsewhere.

Both nodes are rebuilt with the pods that run on them now: as they request, as their apps are known to use,
and for what may be left of their time. What is left, and how far each is from its app's mean, is drawn by
seed and is the same in both arms. A moved pod that is no service starts its work anew. Nothing else
arrives: what else happens in the cluster is the same with either choice. The gain counts where its
one-sided 95 % bound over the seeds (`shoal_common.gate`) is above `LEAST_GAIN`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.load import cpu_load
from shoal_client.admission import admits
from shoal_client.state.live import LiveCluster
from shoal_client.state.live_tables import I64
from shoal_common.cluster import F64, P_CLASS, P_CPU, P_CPU_USE, P_DURATION, P_IO_USE, P_MEMORY, POD_COLUMNS
from shoal_common.pods import PodRecord
from shoal_common.reward import ObjectiveWeights
from shoal_common.tables import SERVICE, pod_row

if TYPE_CHECKING:
    from shoal_common.gate import Verdict

SEEDS: Final = 8
SECONDS: Final = 1800.0
LEAST_GAIN: Final = 1.0
"""Per cent of the two nodes' objective: the price of the interruption, which the twin does not know."""

SPREAD: Final = 0.25  # of a pod's use around its app's mean, as in the twin's generated workloads
MEMORY_USE: Final = 0.65  # of the request: the middle of the twin's generated apps
UNLIMITED: Final = 64.0


@final
class TwinGain:
    """Answers for one pod at a time; milliseconds of compiled code."""

    def __init__(self, cluster: LiveCluster, authority: Authority) -> None:
        self._cluster, self._authority = cluster, authority

    def __call__(self, pod: PodRecord) -> bool:
        """Whether the twin shows a gain from placing this running pod anew."""
        target = self._target(pod)
        return target is not None and self.verdict(pod, target).passed

    def verdict(self, pod: PodRecord, target: str) -> Verdict:
        """What the twin says of moving a pod to a node, in per cent of the two nodes' objective."""
        from shoal_common.gate import GATE_SEED, gains, judge

        policy = self._authority.policy(pod)
        weights = policy.weights if policy is not None else ObjectiveWeights()
        seeds = [GATE_SEED + i for i in range(SEEDS)]
        stay, move = self._objectives(pod, target, seeds, weights)
        return judge(gains(move, stay), LEAST_GAIN)

    def _target(self, pod: PodRecord) -> str | None:
        """The least loaded other node that admits the pod and has room for it."""
        names = [
            name
            for name, node in list(self._cluster.nodes.items())
            if name != pod.node_name and admits(node, pod)
        ]
        names.sort(key=lambda name: (cpu_load(self._cluster, name), name))
        return next((name for name in names if not self._cluster.insufficient(name, pod)), None)

    def _objectives(
        self, pod: PodRecord, target: str, seeds: list[int], weights: ObjectiveWeights
    ) -> tuple[list[float], list[float]]:
        """Objectives by seed of staying and of moving."""
        from shoal_client.diagnosis.live_twin import node_class
        from shoal_common.twin.batch import TwinConfig
        from shoal_common.twin.env import VectorEnv
        from shoal_common.twin.scenarios import Scenario
        from shoal_common.twin.state import V_POD

        names = (pod.node_name, target)
        tables = self._cluster.cluster.node
        nodes = tuple((node_class(name, tables[self._cluster.row(name)]), 1) for name in names)
        scenario = Scenario("move", nodes, seconds=SECONDS, price_amplitude=0.0)
        present = [p for p in list(self._cluster.pods.values()) if p.node_name in names and not p.finished]
        arms = [self._arrivals(pod, present, seed, moved) for moved in (False, True) for seed in seeds]
        count = len(arms)
        env = VectorEnv(
            [scenario] * count,
            seeds * 2,
            weights,
            TwinConfig(track=False),
            arrivals=[rows for rows, _ in arms],
        )
        homes = np.stack([home for _, home in arms])
        while not env.done.all():
            current = env.state.env[:, V_POD].astype(np.int64)
            env.act(np.where(current >= 0, homes[np.arange(count), np.maximum(current, 0)], -1))
        objective = [env.outcome(b).composite for b in range(count)]
        return objective[: len(seeds)], objective[len(seeds) :]

    def _arrivals(self, pod: PodRecord, present: list[PodRecord], seed: int, moved: bool) -> tuple[F64, I64]:
        """Rows of the pods in order of arrival, f64[M, TWIN_POD_COLUMNS], and the node of each, i64[M]."""
        rng = np.random.default_rng(seed)
        rows, homes = [], []
        for number, other in enumerate(sorted(present, key=lambda p: (p.namespace, p.name))):
            row = present_row(other, pod_row(other, self._cluster.apps(other)), rng, number * 1e-3)
            moves = moved and other.uid == pod.uid
            rows.append(restarted(row) if moves else row)
            homes.append(0 if other.node_name == pod.node_name and not moves else 1)
        return np.stack(rows), np.array(homes, dtype=np.int64)


def present_row(pod: PodRecord, known: F64, rng: np.random.Generator, arrival: float) -> F64:
    """A running pod for the twin, f64[TWIN_POD_COLUMNS], from what is known of it, f64[POD_COLUMNS]."""
    from shoal_common.twin import state
    from shoal_common.twin.physics import R_CPU, R_IO, R_USE
    from shoal_common.twin.traced import LONGEST_SECONDS, SHORTEST_SECONDS

    row = np.zeros(state.TWIN_POD_COLUMNS)
    row[:POD_COLUMNS] = known
    cpu, io, left = rng.lognormal(0.0, SPREAD), rng.lognormal(0.0, SPREAD), rng.uniform(0.0, 1.0)
    row[R_USE] = row[R_CPU] = known[P_CPU_USE] * cpu
    row[R_IO] = known[P_IO_USE] * io
    row[state.T_MEMORY_USE] = MEMORY_USE * known[P_MEMORY]
    row[state.T_LIMIT_RATIO] = limit_ratio(pod)
    row[state.T_CPU_ASKED], row[state.T_MEMORY_ASKED] = known[P_CPU], known[P_MEMORY]
    row[state.T_ARRIVAL] = arrival
    row[state.T_WORK] = np.clip(known[P_DURATION] * left, SHORTEST_SECONDS, LONGEST_SECONDS)
    row[[state.D_DECISION, state.D_NODE]] = -1.0
    return row


def limit_ratio(pod: PodRecord) -> float:
    """CPU limit / request of a pod; large where one of its containers has no limit."""
    containers = pod.resources.containers
    limits = [c.limits.get("cpu") for c in containers]
    asked = pod.requests.get("cpu", 0)
    if None in limits or asked <= 0:
        return UNLIMITED
    return max(1.0, 1000 * float(sum(limit for limit in limits if limit is not None)) / asked)


def restarted(row: F64) -> F64:
    """The same pod once it was stopped: what is no service has all its work before it again."""
    from shoal_common.twin.state import T_WORK
    from shoal_common.twin.traced import LONGEST_SECONDS, SHORTEST_SECONDS

    again = row.copy()
    if row[P_CLASS] != SERVICE:
        again[T_WORK] = np.clip(row[P_DURATION], SHORTEST_SECONDS, LONGEST_SECONDS)
    return again
