# SPDX-License-Identifier: Apache-2.0
"""Wolpertinger: a named baseline for large discrete action sets.

Dulac-Arnold et al. 2015, "Deep Reinforcement Learning in Large Discrete Action Spaces", arXiv:1512.07679: the
actor emits a proto-action in the space of candidate features, the k nearest feasible candidates are looked
up, and the critic takes the best of them. Here k = ceil(N / 8), distances are in units of the features'
public bounds, and the critic is set-TD3's twin critic (the paper: DDPG with one critic), which values the
proto-action as one more candidate that nobody attends to. Targets follow the full policy, as in the paper.
"""

from __future__ import annotations

import math
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
    taken,
)
from shoal_common.learners.networks import Networks
from shoal_common.learners.td3 import TD3Config
from shoal_common.nn.init import build
from shoal_common.nn.inputs import Inputs, inputs
from shoal_common.nn.set_attention import MASKED, NodeEncoder, SetCritic, TaskContext
from shoal_common.observation import FN, FP, NODE_FEATURES, PAIR_FEATURES, Observation
from shoal_common.replay import Batch
from shoal_common.scorers.base import explore_policy

NEIGHBOUR_SHARE = 1 / 8
LOW = torch.tensor([f.low for f in NODE_FEATURES + PAIR_FEATURES])
RANGE = torch.tensor([f.high for f in NODE_FEATURES + PAIR_FEATURES]) - LOW


class ProtoActor(nn.Module):
    """A proto-action within the features' public bounds: [M, FN + FP]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = NodeEncoder(width)
        self.attention = TaskContext(width)
        self.hidden = nn.Linear(2 * width, width)
        self.proto = nn.Linear(width, FN + FP)

    def forward(self, seen: Inputs) -> Tensor:
        """Emit the candidate that would be best."""
        tokens = self.encoder(seen.node)
        context = self.attention(tokens, seen.task, seen.ctx, seen.w, seen.mask.any(dim=-1))
        squashed = torch.tanh(self.proto(functional.relu(self.hidden(context))))
        return LOW + 0.5 * RANGE * (1.0 + squashed)


def with_proto(seen: Inputs, proto: Tensor) -> Inputs:
    """Append the proto-action as one more candidate outside the mask, so that nothing attends to it."""
    node = torch.cat([seen.node, proto[:, None, :FN]], dim=1)
    pair = torch.cat([seen.pair, proto[:, None, FN:]], dim=1)
    mask = torch.cat([seen.mask, torch.zeros_like(seen.mask[:, :1])], dim=1)
    return seen._replace(node=node, pair=pair, mask=mask)


def nearest(seen: Inputs, proto: Tensor) -> Tensor:
    """Mask bool[M, N] of the k = ceil(N / 8) feasible candidates nearest to the proto-action."""
    candidates = torch.cat([seen.node, seen.pair], dim=-1)
    distance = (((candidates - proto.unsqueeze(1)) / RANGE) ** 2).sum(dim=-1)
    feasible = seen.mask.squeeze(-1)
    distance = distance.masked_fill(~feasible, math.inf)
    k = math.ceil(distance.shape[1] * NEIGHBOUR_SHARE)
    index = distance.topk(k, dim=1, largest=False).indices
    return torch.zeros_like(feasible).scatter_(1, index, True) & feasible


class Wolpertinger:
    """The baseline; one candidate per node, no quotas, no private mode."""

    def __init__(self, config: TD3Config, seed: int) -> None:
        if config.profiles != 1 or config.quota_bounds is not None:
            raise ValueError("Wolpertinger chooses nodes: one profile, no quotas")
        self.config, self.updates = config, 0
        self._generator = torch.Generator().manual_seed(seed)
        actor = build(lambda: ProtoActor(config.width), self._generator, ("proto",))
        critic = build(lambda: SetCritic(config.width), self._generator, ("value",))
        self.networks = Networks(actor, critic, config.learning_rate, config.adam_eps)

    @torch.no_grad()
    def act(self, obs: Observation, explore: bool, rng: np.random.Generator) -> Acted:
        """Take the critic's best of the nearest, sometimes any; the propensity ignores the proto's noise."""
        seen = inputs(obs)
        proto = self.networks.actor(seen)
        if explore:
            noise = torch.from_numpy(
                rng.normal(0.0, self.config.explore_noise, proto.shape).astype(np.float32)
            )
            proto = proto + 0.5 * RANGE * noise
        values = self.networks.critic(*seen)[..., 0, 0].masked_fill(~nearest(seen, proto), MASKED)
        best = functional.one_hot(values.argmax(dim=1), values.shape[1]).numpy().astype(np.float32)
        uniform = self.config.explore_uniform if explore else 0.0
        action, propensity = explore_policy(best, obs.mask.reshape(len(best), -1), uniform, rng)
        return Acted(action, np.ones((len(action), 2), np.float32), propensity)

    def update(self, batch: Batch) -> Losses:
        """Step the critic and, every `actor_every`-th time, actor and targets."""
        batch, rows = batch.cleaned()
        count = int(rows.sum())
        if count == 0:
            return Losses(0.0, None, None, 0.0, 0.0, 0)
        seen, weight = inputs(batch.obs_t), torch.from_numpy(rows.astype(np.float32))
        target = self.target(batch)
        values = taken(self.networks.critic(*seen), torch.from_numpy(batch.action))
        critic, value = self.networks.fit_critic(values, target, weight, count, self.config.huber_delta)
        self.updates += 1
        actor = (
            self._update_actor(seen, weight, count) if self.updates % self.config.actor_every == 0 else None
        )
        aimed = float((target * weight).sum())
        return Losses(critic / count, actor, None, value / count, aimed / count, count)

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """y [M] = r + gamma * discount * min_k Qbar_k(s', c'), c' by the whole policy; r alone at gamma 0."""
        reward = torch.from_numpy(batch.reward)
        if self.config.gamma == 0.0 or batch.obs_t1 is None:
            return reward
        seen = inputs(batch.obs_t1)
        proto = self.networks.actor_target(seen)
        noise = clipped_noise(proto, self.config.policy_noise, self.config.noise_clip, self._generator)
        near = nearest(seen, proto + 0.5 * RANGE * noise)
        values = self.networks.critic_target(*seen)[..., 0, :].amin(dim=-1)  # [M, N]
        best = values.masked_fill(~near, MASKED).amax(dim=1) * near.any(dim=1)
        discounted: Tensor = self.config.gamma * torch.from_numpy(batch.discount) * best
        return reward + discounted

    def _update_actor(self, seen: Inputs, weight: Tensor, count: int) -> float:
        """Climb the first twin's value of the proto-action."""
        extended = with_proto(seen, self.networks.actor(seen))
        loss = -(self.networks.critic_frozen(*extended)[:, -1, 0, 0] * weight).sum()
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
