# SPDX-License-Identifier: Apache-2.0
"""Logged decisions of a twin, and rows of a comparison in it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from shoal_common.gate import evaluate
from shoal_common.reward import ObjectiveWeights
from shoal_common.transition import Transitions
from shoal_simulations.evaluation import compare_rows, held_out
from shoal_simulations.experience import (
    HELD_OUT_SEED,
    VALIDATION_SEED,
    behaviour,
    collect,
    empty,
    exploring,
    training_seeds,
)
from shoal_simulations.fleet import load_fleet
from shoal_simulations.virtual import Run

SCENARIOS = [replace(s, seconds=2_400.0) for s in load_fleet("small").scenarios()]
WEIGHTS = ObjectiveWeights()


@pytest.fixture(scope="module")
def log() -> Transitions:
    return collect(SCENARIOS[0], training_seeds(0, 1), 250, behaviour("default-random"), WEIGHTS)


def test_the_log_has_what_was_asked_for(log: Transitions) -> None:
    assert len(log) == 250
    assert log.node.shape[1] == 4
    assert len(log.eligible) > 200
    assert np.take_along_axis(log.mask[:, :, 0], log.action[:, None], 1).all()  # only feasible nodes


def test_the_next_decision_is_the_next_row_of_the_same_episode(log: Transitions) -> None:
    following = log.next_index >= 0
    assert (log.next_index[following] == np.flatnonzero(following) + 1).all()
    assert (~following).sum() >= 1  # the last one of each episode


def test_the_same_seed_gives_the_same_log(log: Transitions) -> None:
    again = collect(SCENARIOS[0], training_seeds(0, 1), 250, behaviour("default-random"), WEIGHTS)
    for field in fields(Transitions):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(log, field.name))
    other = collect(SCENARIOS[0], training_seeds(1, 1), 250, behaviour("default-random"), WEIGHTS)
    assert not np.array_equal(other.task, log.task)


def test_a_learner_explores_with_its_own_propensities() -> None:
    run = Run(load_fleet("small"), 0)
    policy = exploring(run.learner(), np.random.default_rng(0))
    log = collect(SCENARIOS[0], training_seeds(0, 2), 60, policy, WEIGHTS, "measurement")
    assert (log.propensity > 0).all()
    assert (log.propensity < 1).any()


def test_no_decisions_are_a_log_too() -> None:
    nothing = empty(SCENARIOS[0])
    assert len(nothing) == len(nothing.eligible) == 0


def test_seeds_of_training_validation_and_comparison_never_meet() -> None:
    training = {
        next(training_seeds(seed, round_number)) for seed in range(3) for round_number in range(1, 50)
    }
    assert len(training) == 3 * 49
    assert min(training) > max(held_out(1000))
    assert VALIDATION_SEED + 1000 <= HELD_OUT_SEED


def test_rows_meet_on_the_same_arrivals() -> None:
    learner = Run(load_fleet("small"), 0).learner()
    rows = compare_rows(SCENARIOS, held_out(2), WEIGHTS, {"untrained": learner})
    assert rows.keys() == {"left", "right"}
    assert {"default", "random", "bestfit", "untrained"} <= rows["left"].keys()
    alone = evaluate(SCENARIOS[1:], held_out(2), WEIGHTS, "kube@1.36")
    assert rows["right"]["default"] == alone["right"]  # a batch changes nothing
