# SPDX-License-Identifier: Apache-2.0
"""Weights that follow targets: towards the term that is missed, bounded, and back."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_client.collect.measured import Measured
from shoal_client.policies.objectives import LARGEST, STEP, Adaptation, Outcomes, PowerMeter
from shoal_client.policies.registry import AppliedPolicy
from shoal_client.policies.spec import Mode, SchedulingPolicySpec


def policy(generation: int = 1, **objectives: Any) -> AppliedPolicy:
    spec = SchedulingPolicySpec.model_validate({"objectives": objectives})
    return AppliedPolicy("a", "uid", generation, Mode.ACTIVE, spec, spec.objectives.weights())


def test_without_targets_the_weights_are_the_specs() -> None:
    applied = policy(util=1, qos=1, energy=1, penalty=1)
    assert Adaptation().step(applied, Outcomes(1.0, 1e6)) == applied.weights


def test_a_missed_target_raises_its_weight_by_one_bounded_step() -> None:
    applied = policy(util=0.5, qos=0.5, energy=0, penalty=0, targets={"slaViolations": 0.1})
    weights = Adaptation().step(applied, Outcomes(sla_violations=0.9))
    assert weights.qos / weights.util == pytest.approx(2.718281828**STEP)
    assert sum((weights.util, weights.qos, weights.energy, weights.penalty)) == pytest.approx(1)


def test_an_unreachable_target_ends_at_the_largest_factor_and_a_met_one_falls_back() -> None:
    adaptation, applied = Adaptation(), policy(util=0.5, energy=0.5, targets={"powerWatts": 100})
    for _ in range(100):
        weights = adaptation.step(applied, Outcomes(power_watts=1000))
    assert weights.energy / weights.util == pytest.approx(LARGEST)
    assert adaptation.step(applied, Outcomes()) == weights  # not known: as it is
    for _ in range(100):
        weights = adaptation.step(applied, Outcomes(power_watts=1))
    assert weights == applied.weights


def test_a_weight_of_nothing_stays_nothing() -> None:
    applied = policy(util=1, qos=0, energy=0, penalty=0, targets={"slaViolations": 0.0})
    assert Adaptation().step(applied, Outcomes(sla_violations=1.0)).qos == 0


def test_a_new_spec_begins_anew() -> None:
    adaptation, objectives = Adaptation(), {"targets": {"slaViolations": 0.0}}
    adaptation.step(policy(1, **objectives), Outcomes(sla_violations=1.0))
    begun = adaptation.step(policy(2, **objectives), Outcomes())
    assert begun == policy(2, **objectives).weights


def test_power_is_known_only_when_every_node_tells() -> None:
    meter = PowerMeter()
    meter.measured({"a": Measured(watts=100.0), "b": Measured(watts=50.0)})
    assert meter.watts == 150
    meter.measured({"a": Measured(watts=100.0), "b": Measured()})
    assert meter.watts is None
    meter.measured({})
    assert meter.watts is None
