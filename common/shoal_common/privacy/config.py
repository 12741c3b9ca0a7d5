# SPDX-License-Identifier: Apache-2.0
"""What a user states about privacy, checked, and the arithmetic that follows from it; no torch here."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shoal_common.errors import InputError
from shoal_common.privacy import accountant
from shoal_common.privacy.accountant import Segment

WATERMARK = "not a guarantee: simulated noise"


class PrivacyWarning(UserWarning):
    """A privacy setting that is allowed and weak."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one cluster gives away at most, over all runs; its own choice."""

    epsilon: float
    delta: float = 1e-6
    clip_norm: float | None = None  # largest norm that a decision's gradient may have; None: the federation's


@dataclass(frozen=True)
class PrivacyConfig:
    """The public constants of one cluster's DP-SGD.

    Raises:
        InputError: a value is missing, not finite, not positive, or contradicts another; names the field.
    """

    delta: float
    """Probability with which the guarantee may fail; below 1 / units_public, better below a tenth of it."""
    clip_norm: float
    """L2 norm to which each unit's gradient is clipped."""
    batch: int
    """Expected units in a batch; the sample rate is batch / units_public."""
    units_public: int
    """Units that a cluster is expected to hold; a public constant, whatever it really holds. It only sets the
    sample rate. A cluster that holds more draws larger batches, at the same sample rate and guarantee."""
    critic_steps: int
    """Critic updates planned over the whole life of the ledger."""
    noise_multiplier: float | None = None
    """Noise standard deviation over the clip norm; either this or target_epsilon."""
    target_epsilon: float | None = None
    """Epsilon that must hold after the last planned step; the noise is calibrated to it."""
    actor_every: int = 2
    """The actor is updated, and so releases, at every such critic update; 0: there is no actor."""
    unit: Literal["transition"] = "transition"
    """The record that is protected: one scheduling decision."""
    neighbouring: Literal["add_remove"] = "add_remove"
    """Which data sets count as neighbours: one unit more or less."""
    simulation_seed: int | None = None
    """Seed of repeatable noise for simulations. Whoever knows it can subtract the noise: no guarantee."""

    def __post_init__(self) -> None:
        for field in ("delta", "clip_norm", "batch", "units_public", "critic_steps"):
            self._positive(field)
        for field in ("batch", "units_public", "critic_steps", "actor_every"):
            self._whole(field)
        if self.actor_every < 0:
            raise self._wrong("actor_every", "must not be negative", "give 2, or 0 for no actor")
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise self._wrong("noise_multiplier", "and target_epsilon: exactly one is needed", "give one")
        self._positive("target_epsilon" if self.noise_multiplier is None else "noise_multiplier")
        if self.batch > self.units_public:
            raise self._wrong("batch", f"exceeds units_public = {self.units_public}", "lower it")
        if self.unit != "transition":
            raise self._wrong("unit", "is not a unit that this version protects", 'give "transition"')
        if self.neighbouring != "add_remove":
            raise self._wrong("neighbouring", "is not a relation this version knows", 'give "add_remove"')
        if self.simulation_seed is not None:
            self._whole("simulation_seed")
        self._check_delta()

    @property
    def sample_rate(self) -> float:
        """Probability with which a unit is in a batch."""
        return self.batch / self.units_public

    @property
    def simulation(self) -> bool:
        """Whether the noise is repeatable, and so worth nothing against whoever knows the seed."""
        return self.simulation_seed is not None

    @cached_property
    def sigma(self) -> float:
        """The noise multiplier in force: as given, or calibrated to target_epsilon."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.target_epsilon is not None  # noqa: S101 - __post_init__ made sure
        releases = self.releases(0, self.critic_steps)
        return accountant.calibrate(self.sample_rate, releases, self.delta, self.target_epsilon)

    @cached_property
    def planned_epsilon(self) -> float:
        """Epsilon after the last planned step; at most target_epsilon where there is one."""
        return accountant.epsilon([self.segment(0, self.critic_steps)], self.delta)

    @property
    def budget(self) -> float:
        """Epsilon that must never be exceeded: the target, else what the plan adds up to."""
        return self.planned_epsilon if self.target_epsilon is None else self.target_epsilon

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the summed, clipped gradient."""
        return self.sigma * self.clip_norm

    def releases(self, step_begin: int, step_end: int) -> int:
        """Noisy gradients released by critic steps [step_begin, step_end): each step's, and the actor's."""
        critic = step_end - step_begin
        actor = step_end // self.actor_every - step_begin // self.actor_every if self.actor_every else 0
        return critic + actor

    def aligned(self, step: int) -> int:
        """The first step from here on at which a new learner, whose own count starts at 0, may begin."""
        return -(-step // self.actor_every) * self.actor_every if self.actor_every else step

    def segment(self, step_begin: int, step_end: int) -> Segment:
        """The same releases, for the accountant."""
        return Segment(self.sample_rate, self.sigma, self.releases(step_begin, step_end))

    def _positive(self, field: str) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(field, "is not a number", "give a positive number")
        if not (math.isfinite(value) and value > 0):
            raise self._wrong(field, "must be finite and above 0", "give a positive number")

    def _whole(self, field: str) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(field, "is not a whole number", "give an integer")

    def _check_delta(self) -> None:
        if self.delta * self.units_public >= 1:
            problem = f"must be below 1 / units_public = {1 / self.units_public:g}"
            raise self._wrong("delta", problem, f"give {0.1 / self.units_public:.0e} or less")
        if self.delta * self.units_public > 0.1:
            warnings.warn(
                f"privacy: delta {self.delta:g} is above 1 / (10 units_public) = {0.1 / self.units_public:g}",
                PrivacyWarning,
                stacklevel=4,
            )

    def _wrong(self, field: str, problem: str, remedy: str) -> InputError:
        return InputError("privacy", field, f"{getattr(self, field)!r} {problem}", remedy)
