# SPDX-License-Identifier: Apache-2.0
"""Policies against kube-scheduler's default, paired over held-out arrival seeds, with 95 % intervals.

Every row runs the same arrivals, so differences are paired by seed, which removes the spread between easy and
hard arrivals. Gains and intervals are those of `shoal_common.gate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from shoal_common.gate import Interval, Outcome, gain_percent, interval
from shoal_common.reward import TERMS

DEFAULT = "default"
"""The row that every other is compared with: kube-scheduler's default profile."""


METRICS = tuple(field.name for field in fields(Outcome) if field.name != "terms")


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
