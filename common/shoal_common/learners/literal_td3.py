# SPDX-License-Identifier: Apache-2.0
"""Literal TD3 over a score vector: a named baseline, kept to show why set-TD3 is built otherwise.

Fujimoto et al. 2018 (arXiv:1802.09477) taken at its word: the actor emits a vector a in [-1, 1]^N, the node
of the highest score is taken, and the critics value the whole vector, Q_k(s, a). As a function of a the
return is piecewise constant, so the critic's gradient with respect to a is zero or noise. Both networks are
equivariant sets (mean and maximum pooling in the critic), so it is not the network that fails. Clipped noise,
delayed updates and targets are the paper's; Huber loss, width and learning rate are those of set-TD3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal_common.learners.base import (
    F32,
    Acted,
    Arrays,
    Losses,
    clipped_noise,
)
from shoal_common.learners.networks import Networks
from shoal_common.learners.td3 import TD3Config
from shoal_common.nn.init import build
from shoal_common.nn.inputs import Inputs, inputs
from shoal_common.nn.set_attention import MASKED, NodeEncoder, SetActor, TaskContext
from shoal_common.observation import FP, Observation
from shoal_common.replay import Batch
from shoal_common.scorers.base import Scores, select, taken_quotas


class VectorCritic(nn.Module):
    """Twin values of a whole score vector: [M, 2]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = NodeEncoder(width)
        self.attention = TaskContext(width)
        self.candidate = nn.Linear(width + FP + 1, width)
        self.context = nn.Linear(2 * width, width, bias=False)
        self.hidden = nn.Linear(width, width)
        self.pooled = nn.Linear(2 * width, width)
        self.value = nn.Linear(width, 2)

    def forward(self, seen: Inputs, scores: Tensor) -> Tensor:
        """Value the vector scores [M, N] as a whole."""
        feasible = seen.mask.any(dim=-1)
        tokens = self.encoder(seen.node)
        context = self.attention(tokens, seen.task, seen.ctx, seen.w, feasible)
        each = self.candidate(torch.cat([tokens, seen.pair, scores.unsqueeze(-1)], dim=-1))
        each = functional.relu(self.hidden(functional.relu(each + self.context(context).unsqueeze(1))))
        weight = feasible.unsqueeze(-1).float()
        mean = (each * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1.0)
        top = each.masked_fill(~feasible.unsqueeze(-1), MASKED).amax(dim=1).clamp_min(0.0)
        values: Tensor = self.value(functional.relu(self.pooled(torch.cat([mean, top], dim=-1))))
        return values


class LiteralTD3:
    """The baseline; one candidate per node, no quotas, no private mode."""

    def __init__(self, config: TD3Config, seed: int) -> None:
        if config.profiles != 1 or config.quota_bounds is not None:
            raise ValueError("literal TD3 scores nodes: one profile, no quotas")
        self.config, self.updates = config, 0
        self._generator = torch.Generator().manual_seed(seed)
        actor = build(lambda: SetActor(config.width), self._generator, ("head.logit",))
        critic = build(lambda: VectorCritic(config.width), self._generator, ("value",))
        self.networks = Networks(actor, critic, config.learning_rate, config.adam_eps)

    @torch.no_grad()
    def score(self, obs: Observation) -> Scores:
        """Emit the score vector: logits in [-1, 1]^N."""
        logits, quotas = self.networks.actor(*inputs(obs))
        return Scores(torch.tanh(logits).numpy(), quotas.numpy())

    def act(self, obs: Observation, explore: bool, rng: np.random.Generator) -> Acted:
        """Take the node of the highest (when exploring, noised) score; the propensity is not known: 1."""
        scores = self.score(obs)
        if explore:
            noise = rng.normal(0.0, self.config.explore_noise, scores.logits.shape)
            scores = Scores(np.clip(scores.logits + noise, -1, 1).astype(np.float32), scores.quotas)
        action = select(scores, obs.mask)
        propensity = np.ones(len(action), np.float32)
        return Acted(action, taken_quotas(scores, action), propensity, scores.logits[..., 0])

    def update(self, batch: Batch) -> Losses:
        """Step the critic and, every `actor_every`-th time, actor and targets; the batch carries scores."""
        batch, rows = batch.cleaned()
        if batch.scores is None:
            raise ValueError("literal TD3 learns from the score vectors that were played")
        count = int(rows.sum())
        if count == 0:
            return Losses(0.0, None, None, 0.0, 0.0, 0)
        seen, weight = inputs(batch.obs_t), torch.from_numpy(rows.astype(np.float32))
        target = self.target(batch)
        values = self.networks.critic(seen, torch.from_numpy(batch.scores))
        critic, value = self.networks.fit_critic(values, target, weight, count, self.config.huber_delta)
        self.updates += 1
        actor = (
            self._update_actor(seen, weight, count) if self.updates % self.config.actor_every == 0 else None
        )
        aimed = float((target * weight).sum())
        return Losses(critic / count, actor, None, value / count, aimed / count, count)

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """y [M] = r + gamma * discount * min_k Qbar_k(s', a' + clipped noise); r alone at gamma 0."""
        reward = torch.from_numpy(batch.reward)
        if self.config.gamma == 0.0 or batch.obs_t1 is None:
            return reward
        seen = inputs(batch.obs_t1)
        scores = torch.tanh(self.networks.actor_target(*seen)[0].squeeze(-1))
        noise = clipped_noise(scores, self.config.policy_noise, self.config.noise_clip, self._generator)
        value = self.networks.critic_target(seen, (scores + noise).clamp(-1.0, 1.0)).amin(dim=-1)
        discounted: Tensor = self.config.gamma * torch.from_numpy(batch.discount) * value
        return reward + discounted

    def _update_actor(self, seen: Inputs, weight: Tensor, count: int) -> float:
        scores = torch.tanh(self.networks.actor(*seen)[0].squeeze(-1))
        loss = -(self.networks.critic_frozen(seen, scores)[:, 0] * weight).sum()
        self.networks.step("actor", loss, count)
        self.networks.update_targets(self.config.tau)
        return float(loss.detach()) / count

    def shared_state(self) -> Arrays:
        """Parameters of actor and critic, in a fixed order."""
        return self.networks.shared_state()

    def load_shared(self, arrays: Mapping[str, F32]) -> None:
        """Take over averaged parameters; the targets start from them, Adam's moments stay."""
        self.networks.load_shared(arrays)

    def state_dict(self) -> dict[str, Any]:
        """Everything to continue to the bit: networks, targets, moments, generators, counter."""
        own = {"generator": self._generator.get_state(), "updates": self.updates}
        return {"networks": self.networks.state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.networks.load_state_dict(state["networks"])
        self._generator.set_state(state["generator"])
        self.updates = int(state["updates"])
