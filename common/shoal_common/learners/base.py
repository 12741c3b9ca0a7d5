# SPDX-License-Identifier: Apache-2.0
"""The Learner protocol, and what the learners share: losses and exploration over a masked policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from shoal_common.observation import Observation
from shoal_common.replay import Batch

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Arrays = dict[str, F32]


class Acted(NamedTuple):
    """What `act` decided: flat candidate n * P + p or -1 (abstain), quotas, probability of the choice."""

    action: I64  # [B]
    quota: F32  # [B, 2]
    propensity: F32  # [B]
    scores: F32 | None = None  # [B, N], the score vector played, for the learner whose action that is


@dataclass(frozen=True, slots=True)
class Losses:
    """What one update measured, over the rows that counted. Local telemetry: it never leaves a cluster."""

    critic: float
    """Mean Huber loss per row, summed over the twins."""
    actor: float | None
    """Mean actor loss per row; None where this update left the actor alone."""
    entropy: float | None
    """Mean entropy of the policy over the candidates, in nats."""
    value: float
    """Mean first-twin value of the taken candidate."""
    target: float
    """Mean target of the critic."""
    rows: int
    """Rows that counted."""


class Learner(Protocol):
    """Something that acts, learns from batches, and exchanges one dictionary of arrays."""

    def act(self, obs: Observation, explore: bool, rng: np.random.Generator) -> Acted:
        """Decide a batch of observations."""

    def update(self, batch: Batch) -> Losses:
        """Take one step."""

    def shared_state(self) -> Arrays:
        """Parameters that federation averages, float32, in a fixed order."""

    def load_shared(self, arrays: Mapping[str, F32]) -> None:
        """Take over averaged parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to continue to the bit."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Values of the taken candidates: [M, K, P, C], action [M] -> [M, C]."""
    flat = values.flatten(1, 2)
    return flat.gather(1, action.view(-1, 1, 1).expand(-1, 1, flat.shape[-1])).squeeze(1)


def huber(error: Tensor, delta: float) -> Tensor:
    """Elementwise Huber loss of an error."""
    return functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


def clipped_noise(like: Tensor, scale: float, clip: float, generator: torch.Generator) -> Tensor:
    """Gaussian noise of standard deviation `scale`, cut at +-clip, in the shape of `like`."""
    noise = torch.empty_like(like, memory_format=torch.contiguous_format)
    return noise.normal_(0.0, scale, generator=generator).clamp_(-clip, clip)
