# SPDX-License-Identifier: Apache-2.0
"""A start from public data: fit the networks to one-step lookahead in a twin that is nobody's cluster.

The scenario is generated, no cluster's record is read, so the start costs no privacy.
"""

from __future__ import annotations

import numpy as np

from shoal_common.learners.td3 import TD3
from shoal_common.replay import Replay, ReplayConfig
from shoal_common.reward import ObjectiveWeights
from shoal_common.twin.scenarios import NODE_CLASSES, Scenario, Workload
from shoal_simulations.experience import behaviour, collect, training_seeds

DECISIONS, UPDATES, BATCH = 6_000, 300, 128
REWARD_SCALE = 3.0  # public: the twin's weighed rewards deviate by about a third


def replay_config(capacity: int, gamma: float) -> ReplayConfig:
    """The replay of every learner here: rewards scaled to a deviation of about 1 by a public constant."""
    return ReplayConfig(capacity=capacity, reward_scale=REWARD_SCALE, next_decision=gamma > 0)


def public_scenario() -> Scenario:
    """A mixed cluster of the published node classes that belongs to no fleet."""
    counts = {"old-cpu": 8, "new-cpu": 8, "gpu": 4, "dpu": 4}
    nodes = tuple((NODE_CLASSES[name], count) for name, count in counts.items())
    return Scenario("public-reference", nodes, Workload((0.35, 0.30, 0.22, 0.13), 0.66))


def pretrain(learner: TD3, seed: int, weights: ObjectiveWeights, candidates: int = 8) -> None:
    """Train the learner in place on labelled decisions of a uniform behaviour."""
    scenario = public_scenario()
    log = collect(scenario, training_seeds(seed, 999), DECISIONS, behaviour("random"), weights, "lookahead")
    replay = Replay(replay_config(DECISIONS, learner.config.gamma), len(scenario.node_rows))
    replay.add(log)
    rng = np.random.default_rng([seed, 999])
    for _ in range(UPDATES):
        learner.update(replay.sample(rng, BATCH, candidates, weights.array()))
