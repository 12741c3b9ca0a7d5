# SPDX-License-Identifier: Apache-2.0
"""Policies against kube-scheduler's default, paired over held-out arrival seeds, with 95 % intervals.

Every row runs the same arrivals, so differences are paired by seed, which removes the spread between easy and
hard arrivals. The gain is 100 (J - J_default) / |J_default| per seed, J the composite objective (at most 0,
larger is better); its interval is Student's t over the seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy import stats

from shoal_common.reward import TERMS

DEFAULT = "default"
"""The row that every other is compared with: kube-scheduler's default profile."""


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
    """What one episode of one row on one seed came to; all but latency and power are dimensionless."""

    objective: float  # composite J, time mean, at most 0
    utilisation: float  # useful work / capacity of the nodes that were on
    p99_latency_seconds: float  # 99th percentile of task latency: waiting and running
    sla_violations: float  # share of tasks slower than their SLA
    power_watts_per_node: float
    success_rate: float  # share of tasks that were placed and not evicted, killed or lost
    terms: tuple[float, float, float, float]  # time means in the order of reward.TERMS


METRICS = tuple(field.name for field in fields(Outcome) if field.name != "terms")


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % t-interval of independent values; one value has an interval of zero width."""
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2 or float(array.std()) == 0:
        return Interval(mean, mean, mean)
    half = float(stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Interval(mean, mean - half, mean + half)


def paired_difference(left: Sequence[float], right: Sequence[float]) -> Interval:
    """Interval of left - right, paired by position."""
    return interval(np.subtract(left, right, dtype=np.float64).tolist())


def gain_percent(objective: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Gain over a baseline in percent of its size, paired by seed; positive is better."""
    base = np.asarray(baseline, dtype=np.float64)
    gains = 100 * (np.asarray(objective, dtype=np.float64) - base) / np.abs(base)
    return interval(gains.tolist())


def compare(rows: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[str, Any]]:
    """Summarise the rows of one cluster; each value is an interval {mean, low, high}.

    Args:
        rows: outcomes by row name, in the same order of seeds; `default` must be among them.

    Returns:
        By row name: every metric, the terms, `gain_percent` over the default, and the objective by seed.
    """
    baseline = [outcome.objective for outcome in rows[DEFAULT]]
    return {name: _row(outcomes, baseline) for name, outcomes in rows.items()}


def _row(outcomes: Sequence[Outcome], baseline: Sequence[float]) -> dict[str, Any]:
    columns = {metric: [float(getattr(o, metric)) for o in outcomes] for metric in METRICS}
    terms = {term: interval([o.terms[i] for o in outcomes]).json() for i, term in enumerate(TERMS)}
    summary: dict[str, Any] = {metric: interval(values).json() for metric, values in columns.items()}
    return summary | {
        "terms": terms,
        "gain_percent": gain_percent(columns["objective"], baseline).json(),
        "objective_by_seed": columns["objective"],
    }


def gains_against(rows: Mapping[str, Mapping[str, Any]], row: str) -> dict[str, Interval]:
    """Gain in percent of `row` over every other row of one cluster, paired by seed."""
    own = rows[row]["objective_by_seed"]
    return {
        name: gain_percent(own, other["objective_by_seed"]) for name, other in rows.items() if name != row
    }
