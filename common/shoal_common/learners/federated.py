# SPDX-License-Identifier: Apache-2.0
"""What a federation of live clusters fixes for the learners of all of them: public constants.

They stand in Flower's run configuration, which the server also reads; its keys are these names with dashes.
The server's first model is `initial = "shoal_common.learners.federated:initial"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal_common.errors import InputError

if TYPE_CHECKING:
    from shoal_common.learners.base import Arrays
    from shoal_common.learners.td3 import TD3
    from shoal_common.privacy.config import Budget, PrivacyConfig
    from shoal_common.privacy.plan import PrivacyPlan

Scalar = bool | int | float | str
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FederatedLearning(BaseModel):
    """How every cluster of a federation learns, and how much noise it adds at least."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
    )

    seed: int = 0
    """Of the initial model."""
    rounds: Count = 50
    """Rounds of the whole run, as the server counts them; the privacy plan spreads its budget over them."""
    width: Annotated[int, Field(ge=1, le=512)] = 32
    """Hidden width of the networks."""
    profiles: Annotated[int, Field(ge=1, le=32)] = 1
    """Candidates per node."""
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Discount per decision."""
    learning_rate: Positive = 2e-3
    """Adam's step."""
    updates: Annotated[int, Field(ge=1, le=10_000)] = 50
    """Critic updates a round."""
    batch: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Decisions an update, in expectation."""
    candidates: Annotated[int, Field(ge=1, le=64)] = 8
    """Candidates of a decision that a batch carries."""
    capacity: Count = 50_000
    """Decisions that a replay keeps."""
    reward_scale: Positive = 3.0
    """Multiplies the weighed reward; from the twin, where weighed rewards deviate by about a third."""
    units_public: Count = 20_000
    """Decisions that a cluster is expected to hold; the sample rate is batch / units_public."""
    noise_multiplier: Positive = 1.0
    """Noise over the clip norm, at least; a cluster whose own budget is smaller adds more."""
    clip_norm: Positive = 1.0
    """Norm to which each decision's gradient is clipped."""

    @classmethod
    def parse(cls, run_config: Mapping[str, Scalar]) -> FederatedLearning:
        """From a run configuration; keys of others are left alone.

        Raises:
            InputError: names the first wrong key.
        """
        try:
            return cls.model_validate(dict(run_config))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            raise InputError(
                "run configuration", key, first["msg"], "see docs/operations/run.md for its range"
            ) from None

    def learner(self, plan: PrivacyPlan | None = None, cluster: str = "") -> TD3:
        """A learner in its initial state."""
        from shoal_common.learners.td3 import TD3, TD3Config

        config = TD3Config(
            width=self.width, profiles=self.profiles, gamma=self.gamma, learning_rate=self.learning_rate
        )
        return TD3(config, self.seed, plan, cluster)

    def privacy(self, budget: Budget) -> PrivacyConfig:
        """The plan of a cluster with this budget.

        The federation's noise holds where its planned epsilon stays within the budget; else as much more as
        the budget needs.

        Raises:
            InputError: a value is out of range.
        """
        from shoal_common.privacy.config import PrivacyConfig

        stated = PrivacyConfig(
            delta=budget.delta,
            clip_norm=min(self.clip_norm, budget.clip_norm or self.clip_norm),
            batch=min(self.batch, self.units_public),
            units_public=self.units_public,
            critic_steps=self.rounds * self.updates,
            noise_multiplier=self.noise_multiplier,
        )
        if stated.planned_epsilon <= budget.epsilon:
            return stated
        return replace(stated, noise_multiplier=None, target_epsilon=budget.epsilon)


def initial(run_config: Mapping[str, Scalar]) -> Arrays:
    """The model that round 1 starts from."""
    return FederatedLearning.parse(run_config).learner().shared_state()
