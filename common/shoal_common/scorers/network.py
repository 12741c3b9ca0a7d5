# SPDX-License-Identifier: Apache-2.0
"""The neural scorer in torch: an actor behind the Scorer protocol."""

from __future__ import annotations

import torch

from shoal_common.nn.inputs import inputs
from shoal_common.nn.set_attention import SetActor
from shoal_common.observation import Observation
from shoal_common.scorers.base import Scores


class NetworkScorer:
    """Scores by an actor; it follows the actor as that learns."""

    def __init__(self, actor: SetActor) -> None:
        self.actor = actor

    @torch.no_grad()
    def score(self, obs: Observation) -> Scores:
        """Score a batch of observations."""
        logits, quotas = self.actor(*inputs(obs))
        return Scores(logits.numpy(), quotas.numpy())
