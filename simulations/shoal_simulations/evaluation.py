# SPDX-License-Identifier: Apache-2.0
"""Rows of a comparison on held-out arrivals: compiled scorers and learned policies in the same twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal_common.gate import Outcome, evaluate
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.base import Scorer
from shoal_common.twin.scenarios import Scenario
from shoal_simulations.comparison import DEFAULT
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
