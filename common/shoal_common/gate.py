# SPDX-License-Identifier: Apache-2.0
"""The gate: a candidate policy against the incumbent in the twin, with common random numbers.

Both run the same arrivals, so differences are paired by seed, which removes the spread between easy and hard
arrivals. A seed's gain is 100 (J_candidate - J_incumbent) / |J_incumbent|, averaged over the clusters, J the
composite objective (at most 0, larger is better). The candidate passes where the lower one-sided 95 % bound
of the mean gain (Student's t over the seeds) is above what is asked. Server, client and simulations compare
by the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal_common.decide import decide
from shoal_common.errors import InputError
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.base import Scorer
from shoal_common.twin.batch import TwinConfig
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import Scenario

CONFIDENCE: Final = 0.95
FEWEST_SEEDS: Final = 3
GATE_SEED: Final = 7_000
"""Arrival seeds of gates begin here: no training, validation or held-out comparison uses them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its two-sided 95 % interval."""

    mean: float
    low: float
    high: float

    def json(self) -> dict[str, float]:
        """The interval as it stands in summary.json."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one episode of one policy on one seed came to; all but latency and power are dimensionless."""

    objective: float  # composite J, time mean, at most 0
    utilisation: float  # useful work / capacity of the nodes that were on
    p99_latency_seconds: float  # 99th percentile of task latency: waiting and running
    sla_violations: float  # share of tasks slower than their SLA
    power_watts_per_node: float
    success_rate: float  # share of tasks that were placed and not evicted, killed or lost
    terms: tuple[float, float, float, float]  # time means in the order of reward.TERMS


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate may replace the incumbent, in percent of the incumbent's objective."""

    gain: float  # mean over the seeds; NaN where the twin could not tell
    low: float  # one-sided 95 % lower bound of the mean
    high: float  # one-sided 95 % upper bound
    passed: bool
    seeds: int
    reason: str


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % t-interval of independent values; one value has an interval of zero width."""
    return _interval(values, 0.975)


def gains(objective: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Gain over a baseline in percent of its size, by position; positive is better."""
    base = np.asarray(baseline, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 100 * (np.asarray(objective, dtype=np.float64) - base) / np.abs(base)
    return list(found.tolist())


def gain_percent(objective: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Interval of the gain over a baseline, paired by seed."""
    return interval(gains(objective, baseline))


def student(quantile: float, freedom: int) -> float:
    """The quantile of Student's t."""
    from scipy import stats

    return float(stats.t.ppf(quantile, freedom))


def _interval(values: Sequence[float], quantile: float) -> Interval:
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2 or float(array.std()) == 0:
        return Interval(mean, mean, mean)
    half = float(student(quantile, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Interval(mean, mean - half, mean + half)


def evaluate(
    scenarios: Sequence[Scenario], seeds: Sequence[int], weights: ObjectiveWeights, policy: str | Scorer
) -> dict[str, list[Outcome]]:
    """Run a compiled scorer by name, or a policy, over every cluster and seed as one batch.

    Returns:
        Outcomes by cluster, in the order of the seeds.
    """
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


def compare(
    candidate: str | Scorer,
    incumbent: str | Scorer,
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    weights: ObjectiveWeights | None = None,
    least_gain: float = 0.0,
) -> Verdict:
    """Run both on the same clusters and arrivals, and judge.

    Args:
        candidate, incumbent: policies, or compiled scorers by name.
        scenarios: the clusters; each counts alike.
        seeds: arrival seeds that the candidate was not trained on, e.g. from `GATE_SEED` on.
        weights: what is wanted of the objective's four terms.
        least_gain: what the lower bound must exceed, in percent; below 0 asks for no worse than that.

    Raises:
        InputError: fewer than `FEWEST_SEEDS` seeds, one twice, or no scenario.
    """
    if len(set(seeds)) < max(FEWEST_SEEDS, len(seeds)):
        problem = f"{len(set(seeds))} distinct ones tell nothing of chance"
        raise InputError("gate", "seeds", problem, f"give at least {FEWEST_SEEDS}, none twice")
    if not scenarios:
        raise InputError("gate", "scenarios", "there are none", "give the clusters to compare in")
    wanted = weights or ObjectiveWeights()
    ours, theirs = (evaluate(scenarios, seeds, wanted, policy) for policy in (candidate, incumbent))
    by_cluster = [
        gains([o.objective for o in ours[s.name]], [o.objective for o in theirs[s.name]]) for s in scenarios
    ]
    return judge(np.mean(by_cluster, axis=0).tolist(), least_gain)


def judge(by_seed: Sequence[float], least_gain: float = 0.0) -> Verdict:
    """The verdict on gains in percent, one a seed."""
    if not all(map(math.isfinite, by_seed)):
        nan = math.nan
        return Verdict(nan, nan, nan, False, len(by_seed), "the twin gave no finite objective")
    found = _interval(by_seed, CONFIDENCE)
    passed = found.low > least_gain
    says = "above" if passed else "not above"
    reason = f"lower 95 % bound {found.low:.2f} % over {len(by_seed)} seeds is {says} {least_gain:g} %"
    return Verdict(found.mean, found.low, found.high, passed, len(by_seed), reason)
