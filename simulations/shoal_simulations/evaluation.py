# SPDX-License-Identifier: Apache-2.0
"""Rows of a comparison on held-out arrivals: compiled scorers and learned policies in the same twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal_common.decide import decide
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.base import Scorer
from shoal_common.twin.batch import TwinConfig
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import Scenario
from shoal_simulations.comparison import DEFAULT, Outcome
from shoal_simulations.experience import HELD_OUT_SEED

BASELINES = {
    "random": "random",
    DEFAULT: "kube@1.36",
    "most-allocated": "most-allocated",
    "volcano": "volcano",
    "class-aware": "class-aware",
    "lookahead": "lookahead",
}
GPU_BASELINES = {"bestfit": "bestfit"}

Rows = dict[str, dict[str, list[Outcome]]]
"""Outcomes by cluster, by row, by seed."""


def held_out(count: int) -> list[int]:
    """Arrival seeds that no training has seen."""
    return list(range(HELD_OUT_SEED, HELD_OUT_SEED + count))


def evaluate(
    scenarios: Sequence[Scenario], seeds: Sequence[int], weights: ObjectiveWeights, policy: str | Scorer
) -> dict[str, list[Outcome]]:
    """Run one row, a compiled scorer by name or a policy, over every cluster and seed as one batch."""
    pairs = [(scenario, seed) for scenario in scenarios for seed in seeds]
    env = VectorEnv([s for s, _ in pairs], [seed for _, seed in pairs], weights, TwinConfig(track=False))
    if isinstance(policy, str):
        env.run({policy: 1.0})
    else:
        _run_policy(env, policy)
    results = [_outcome(env, b) for b in range(len(env))]
    return {s.name: results[i * len(seeds) : (i + 1) * len(seeds)] for i, s in enumerate(scenarios)}


def _run_policy(env: VectorEnv, policy: Scorer) -> None:
    """Let a policy decide greedily to the end; where it abstains, kube-scheduler's default does."""
    while not env.done.all():
        decision = decide(policy, env.observe())
        env.act(decision.action, decision.quota)


def _outcome(env: VectorEnv, b: int) -> Outcome:
    found = env.outcome(b)
    return Outcome(
        objective=found.composite,
        utilisation=found.utilisation,
        p99_latency_seconds=found.p99_latency_s,
        sla_violations=found.sla_violations,
        power_watts_per_node=found.watts_per_node,
        success_rate=found.success,
        terms=found.terms,
    )


def compare_rows(
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    weights: ObjectiveWeights,
    policies: Mapping[str, Scorer],
) -> Rows:
    """Every baseline and every policy, by cluster; the GPU baselines where a cluster has GPUs."""
    rows: Rows = {scenario.name: {} for scenario in scenarios}
    with_gpus = [s for s in scenarios if any(c.gpus for c, _ in s.nodes)]
    plans: list[tuple[str, str | Scorer, Sequence[Scenario]]] = [
        *((name, scorer, scenarios) for name, scorer in BASELINES.items()),
        *((name, scorer, with_gpus) for name, scorer in GPU_BASELINES.items() if with_gpus),
        *((name, policy, scenarios) for name, policy in policies.items()),
    ]
    for name, policy, where in plans:
        for cluster, outcomes in evaluate(where, seeds, weights, policy).items():
            rows[cluster][name] = outcomes
    return rows
