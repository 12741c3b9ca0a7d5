# SPDX-License-Identifier: Apache-2.0
"""A virtual cluster's trainer: the client's own LocalTrainer on a twin's experience.

Flower's configurations hold flat values only, so the fleet travels in the run configuration as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal_client.train import LocalTrainer, TrainingConfig
from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.privacy.config import PrivacyConfig
from shoal_common.privacy.plan import PrivacyPlan
from shoal_common.replay import Replay
from shoal_common.reward import ObjectiveWeights
from shoal_common.twin.scenarios import Scenario, equal_nodes
from shoal_simulations.experience import TwinSource
from shoal_simulations.fleet import Fleet
from shoal_simulations.pretraining import pretrain, replay_config

Scalar = bool | int | float | str
TRAINER = "shoal_simulations.virtual:make_trainer"


@dataclass(frozen=True, slots=True)
class Run:
    """What decides a run's result, beside the code."""

    fleet: Fleet
    seed: int
    equal: bool = False
    """Every node of one class: a control in which there is less to learn."""

    @property
    def config(self) -> dict[str, Scalar]:
        """As it travels in a run configuration."""
        learning = self.fleet.learning
        return {
            "fleet": self.fleet.model_dump_json(by_alias=True),
            "seed": self.seed,
            "equal": self.equal,
            # twice what Adam moves a parameter whose updates all point one way
            "max-update-rms": 2 * learning.learning_rate * learning.updates_per_round,
        }

    @classmethod
    def parse(cls, config: Mapping[str, Scalar]) -> Run:
        """From a run configuration."""
        return cls(
            Fleet.model_validate(json.loads(str(config["fleet"]))), int(config["seed"]), bool(config["equal"])
        )

    def scenarios(self) -> tuple[Scenario, ...]:
        """The clusters as the twin takes them."""
        scenarios = self.fleet.scenarios()
        return tuple(equal_nodes(s) for s in scenarios) if self.equal else scenarios

    def scenario(self, cluster: str) -> Scenario:
        """The scenario of one cluster of the fleet."""
        names = [c.name for c in self.fleet.clusters]
        return self.scenarios()[names.index(cluster)]

    @property
    def digest(self) -> str:
        """Of everything that decides the result: a run is resumed only under the same."""
        text = json.dumps(self.config, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def weights(self) -> ObjectiveWeights:
        """The fleet's objective."""
        return ObjectiveWeights(**self.fleet.fleet.objective.model_dump())

    def privacy(self) -> PrivacyConfig | None:
        """The privacy of every cluster; None where it is off."""
        privacy, steps = (
            self.fleet.privacy,
            self.fleet.federation.rounds * self.fleet.learning.updates_per_round,
        )
        if not privacy.enabled:
            return None
        values = privacy.model_dump(exclude={"enabled"})
        return PrivacyConfig(critic_steps=steps, simulation_seed=self.seed, **values)

    def learner(self, plan: PrivacyPlan | None = None, cluster: str = "") -> TD3:
        """A learner in its initial state, the same for every cluster of the run."""
        learning = self.fleet.learning
        config = TD3Config(
            width=learning.width,
            gamma=learning.gamma,
            learning_rate=learning.learning_rate,
            quota_bounds=learning.quotas,
        )
        return TD3(config, self.seed, plan, cluster)

    def initial(self) -> TD3:
        """The learner that round 1 starts from: untrained, or pretrained on a public scenario."""
        learner = self.learner()
        if self.fleet.learning.start == "pretrained":
            pretrain(learner, self.seed, self.weights, self.fleet.learning.candidates)
        return learner


def make_trainer(node_config: Mapping[str, Scalar], run_config: Mapping[str, Scalar]) -> LocalTrainer:
    """The trainer of the cluster that `node_config["cluster"]` names."""
    run, name = Run.parse(run_config), str(node_config["cluster"])
    scenario = run.scenario(name)
    privacy, learning = run.privacy(), run.fleet.learning
    plan = PrivacyPlan(privacy) if privacy else None
    learner = run.learner(plan, name)
    later = (run.fleet.federation.rounds - 1) * learning.decisions_per_round
    replay = replay_config(learning.first_decisions + later, learning.gamma)
    return LocalTrainer(
        name,
        learner,
        Replay(replay, len(scenario.node_rows)),
        TwinSource(scenario, learner, learning, run.weights, run.seed),
        plan,
        Path(str(run_config["state-dir"])) / name,
        TrainingConfig(
            updates=learning.updates_per_round,
            batch=learning.batch,
            candidates=learning.candidates,
            seed=run.seed,
            weights=run.weights,
        ),
    )
