# SPDX-License-Identifier: Apache-2.0
"""Set-TD3: twin delayed deterministic policy gradient over a set of candidates.

Fujimoto, van Hoof, Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
arXiv:1802.09477 (reference code: sfujim/TD3). Kept: twin critics and the minimum of their targets, target
policy smoothing by clipped noise, delayed actor and target updates, soft targets.

Where we differ, and why:
- The action is a candidate of a set plus continuous quotas. The policy is pi = softmax(logits / T) under the
  mask, and the target the exact expectation  y = r + gamma * sum_c pi'(c) min_k Qbar_k(s', c, x'_c):  no
  argmax over a score vector, whose critic is piecewise constant, and no sampling variance.
- Q_k(c) sees its own candidate's quotas alone, which is MP-DQN's remedy (arXiv:1905.04388) by construction.
- Smoothing noise falls on quotas and on logits.
- Actor loss  -(sum_c pi(c) Q_1(c)) / A - beta H(pi)  with a public constant A; quotas receive the gradient of
  Q_1 weighted by pi, pi that of Q_1 as a constant.
- Huber instead of squared error, since opening an empty node costs many times the typical decision.
- gamma 0 is a contextual bandit: targets, smoothing and the twin minimum are idle, obs_t1 is not read.
- Widths 32 and a learning rate of 2e-3 instead of 256 and 3e-4: minutes on two cores, small enough for DP.

Private mode (a `PrivacyPlan`): losses are sums over samples, no statistic of a batch enters a loss, critic
and actor are two mechanisms, the actor's pass reads a frozen view of the critic, an empty batch still takes
the noise step, and targets are post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shoal_common.errors import InputError
from shoal_common.learners.base import (
    F32,
    Acted,
    Arrays,
    Losses,
    clipped_noise,
    taken,
)
from shoal_common.learners.networks import Networks
from shoal_common.nn.init import build
from shoal_common.nn.inputs import Inputs, inputs
from shoal_common.nn.set_attention import SetActor, SetCritic, masked_softmax
from shoal_common.observation import Observation
from shoal_common.replay import Batch
from shoal_common.scorers.base import Scores, explore_policy, select, taken_quotas
from shoal_common.scorers.network import NetworkScorer

if TYPE_CHECKING:
    from shoal_common.privacy.plan import PrivacyPlan


@dataclass(frozen=True, slots=True)
class TD3Config:
    """Settings of set-TD3; all public constants."""

    width: int = 32
    """Hidden width d; 48 learns a little faster, 32 is right under DP."""
    profiles: int = 1
    """Candidates per node, P."""
    quota_bounds: tuple[float, float] | None = None
    """Public bounds of the quotas as a fraction of the request; None: exactly 1, without weights."""
    gamma: float = 0.9
    """Discount per decision; 0 is a contextual bandit."""
    temperature: float = 1.0
    """T of pi = softmax(logits / T)."""
    beta: float = 0.2
    """Weight of the entropy, in units of the scaled advantage. At 0.05 the softmax saturates on its early
    favourites and the actor stays behind its critic; what is served is the argmax, so it costs nothing."""
    advantage_scale: float = 0.5
    """A: divides Q in the actor loss. A constant, since the batch's deviation would couple its records."""
    huber_delta: float = 1.0
    """Where the critic's loss turns linear, in units of the scaled reward."""
    learning_rate: float = 2e-3
    """Adam's step, of actor and critic."""
    adam_eps: float = 1e-8
    """Adam's epsilon; raise to 1e-4 where DP noise rules the second moment."""
    actor_every: int = 2
    """Critic updates per actor (and target) update. In private mode the plan's number holds instead."""
    tau: float = 0.01
    """Step of the soft target update; the paper's 0.005 suits a million updates, not a thousand."""
    policy_noise: float = 0.2
    """Standard deviation of the smoothing noise, on logits and on quotas in half-widths of their bounds."""
    noise_clip: float = 0.5
    """Where that noise is cut."""
    explore_noise: float = 0.1
    """Exploration noise on quotas, in half-widths of their bounds."""
    explore_uniform: float = 0.05
    """Share of exploring decisions that take any feasible candidate."""

    def __post_init__(self) -> None:
        low, high = self.quota_bounds or (1.0, 1.0)
        if not (0.0 <= self.gamma < 1.0 and 0.0 < self.tau <= 1.0 and self.temperature > 0.0):
            raise ValueError("gamma must lie in [0, 1), tau in (0, 1], temperature above 0")
        if not 0.0 < low <= high <= 1.0 or self.actor_every < 1 or self.width < 1 or self.profiles < 1:
            raise ValueError("quota bounds must satisfy 0 < low <= high <= 1; counts must be at least 1")


def _actor_every(plan: PrivacyPlan) -> int:
    """The plan's number, from which the accountant counts; the learner has no other in private mode."""
    if plan.config.actor_every < 1:
        raise InputError("privacy", "actor_every", "0 counts no actor, and TD3 has one", "give 1 or more")
    return plan.config.actor_every


class TD3:
    """The learner; deterministic under its seed, which feeds a generator of its own.

    `cluster` names the streams of simulated noise, which must differ between clusters of equal seeds.
    """

    def __init__(
        self, config: TD3Config, seed: int, plan: PrivacyPlan | None = None, cluster: str = ""
    ) -> None:
        if plan is not None:
            config = replace(config, actor_every=_actor_every(plan))
        self.config, self.updates, self._plan = config, 0, plan
        self._generator = torch.Generator().manual_seed(seed)
        width, profiles, bounds = config.width, config.profiles, config.quota_bounds
        actor = build(
            lambda: SetActor(width, profiles, bounds), self._generator, ("head.logit", "head.quota")
        )
        critic = build(lambda: SetCritic(width, profiles, bounds is not None), self._generator, ("value",))
        self.networks = Networks(actor, critic, config.learning_rate, config.adam_eps, plan, cluster)
        if plan is not None and not plan.simulation:
            # which noise smooths a row's target depends on the rows before it: harmless while it is secret
            self._generator = plan.generator("smoothing", cluster)

    # ------------------------------------------------------------------------------------------- acting
    def score(self, obs: Observation) -> Scores:
        """Score every candidate: a learner is a Scorer too."""
        return NetworkScorer(self.networks.actor).score(obs)

    def act(self, obs: Observation, explore: bool, rng: np.random.Generator) -> Acted:
        """Take the best candidate, or explore: sample from pi, some decisions uniformly, noise on quotas."""
        scores = self.score(obs)
        if not explore:
            action = select(scores, obs.mask)
            return Acted(action, taken_quotas(scores, action), np.ones(len(action), np.float32))
        logits, mask = torch.from_numpy(scores.logits), torch.from_numpy(obs.mask)
        policy = masked_softmax(logits / self.config.temperature, mask).flatten(1).numpy()
        action, propensity = explore_policy(
            policy, obs.mask.reshape(len(policy), -1), self.config.explore_uniform, rng
        )
        quota = taken_quotas(scores, action)
        if self.config.quota_bounds is not None:
            low, high = self.config.quota_bounds
            noise = rng.normal(0.0, self.config.explore_noise * 0.5 * (high - low), quota.shape)
            quota = np.where(action[:, None] >= 0, np.clip(quota + noise, low, high), quota).astype(
                np.float32
            )
        return Acted(action, quota, propensity)

    # ----------------------------------------------------------------------------------------- learning
    def update(self, batch: Batch) -> Losses:
        """Step the critic and, every `actor_every`-th time, actor and targets. An empty batch is legal."""
        if len(batch) == 0:
            return self._update_without_rows()
        batch, rows = batch.cleaned()
        count = int(rows.sum())
        seen, weight = inputs(batch.obs_t), torch.from_numpy(rows.astype(np.float32))
        target = self.target(batch)
        critic, value = self._update_critic(batch, seen, weight, target, count)
        self.updates += 1
        actor: float | None = None
        entropy: float | None = None
        if self.updates % self.config.actor_every == 0:
            actor, entropy = self._update_actor(seen, weight, count)
            self._update_targets()
        size = max(count, 1)
        return Losses(
            critic / size, actor, entropy, value / size, float((target * weight).sum()) / size, count
        )

    @torch.no_grad()
    def target(self, batch: Batch) -> Tensor:
        """y [M] = r + gamma * discount * sum_c pi'(c) min_k Qbar_k(s', c, x'_c); r alone at gamma 0."""
        reward = torch.from_numpy(batch.reward)
        if self.config.gamma == 0.0 or batch.obs_t1 is None:
            return reward
        config, seen = self.config, inputs(batch.obs_t1)
        logits, quotas = self.networks.actor_target(*seen)
        logits = logits + clipped_noise(logits, config.policy_noise, config.noise_clip, self._generator)
        policy = masked_softmax(logits / config.temperature, seen.mask)
        values = self.networks.critic_target(*seen, self._smoothed(quotas)).amin(dim=-1)
        expected = (policy * values).flatten(1).sum(dim=1) * seen.mask.flatten(1).any(dim=1)
        discounted: Tensor = config.gamma * torch.from_numpy(batch.discount) * expected
        return reward + discounted

    def _smoothed(self, quotas: Tensor) -> Tensor | None:
        """Target policy smoothing of the quotas, within their bounds."""
        if self.config.quota_bounds is None:
            return None
        low, high = self.config.quota_bounds
        noise = clipped_noise(quotas, self.config.policy_noise, self.config.noise_clip, self._generator)
        return (quotas + 0.5 * (high - low) * noise).clamp(low, high)

    def _update_critic(
        self, batch: Batch, seen: Inputs, weight: Tensor, target: Tensor, count: int
    ) -> tuple[float, float]:
        """Fit both twins to y on the taken candidate; returns the summed loss and the summed first value."""
        quota = None
        if self.config.quota_bounds is not None:
            shape = (*seen.mask.shape, 2)
            quota = torch.from_numpy(batch.quota)[:, None, None, :].expand(shape)
        values = taken(
            self.networks.training["critic"](*seen, quota), torch.from_numpy(batch.action)
        )  # [M, 2]
        return self.networks.fit_critic(values, target, weight, count, self.config.huber_delta)

    def _update_actor(self, seen: Inputs, weight: Tensor, count: int) -> tuple[float, float]:
        """Climb the first twin under the entropy bonus; returns mean loss and mean entropy."""
        config = self.config
        logits, quotas = self.networks.training["actor"](*seen)
        policy = masked_softmax(logits / config.temperature, seen.mask)
        with torch.no_grad():
            value = self.networks.critic_frozen(*seen, quotas.detach())[..., 0]
        entropy = -(policy * torch.log(policy.clamp_min(1e-20))).flatten(1).sum(dim=1)
        gain = (policy * value).flatten(1).sum(dim=1)
        if config.quota_bounds is not None:
            gain = gain + (quotas * self._quota_gradient(seen, quotas, policy)).flatten(1).sum(dim=1)
        loss = ((-gain / config.advantage_scale - config.beta * entropy) * weight).sum()
        self.networks.step("actor", loss, count)
        size = max(count, 1)
        return float(loss.detach()) / size, float((entropy.detach() * weight).sum()) / size

    def _quota_gradient(self, seen: Inputs, quotas: Tensor, policy: Tensor) -> Tensor:
        """dQ_1/dx weighted by pi, as a constant [M, K, P, 2]: the deterministic policy gradient."""
        played = quotas.detach().requires_grad_(True)
        value = (self.networks.critic_frozen(*seen, played)[..., 0] * policy.detach()).sum()
        gradient: Tensor = torch.autograd.grad(value, played)[0]
        return gradient

    def _update_without_rows(self) -> Losses:
        """Step on noise alone in private mode (a release like any other); only the targets move else."""
        self.updates += 1
        due = self.updates % self.config.actor_every == 0
        self.networks.step_without_rows("critic")
        if due:
            self.networks.step_without_rows("actor")
            self._update_targets()
        return Losses(0.0, None, None, 0.0, 0.0, 0)

    def _update_targets(self) -> None:
        if self.config.gamma > 0.0:
            self.networks.update_targets(self.config.tau)

    def shared_state(self) -> Arrays:
        """Parameters of actor and critic, in a fixed order."""
        return self.networks.shared_state()

    def load_shared(self, arrays: Mapping[str, F32]) -> None:
        """Take over averaged parameters; the targets start from them, Adam's moments stay."""
        self.networks.load_shared(arrays)

    def state_dict(self) -> dict[str, Any]:
        """Everything to continue to the bit: networks, targets, moments, generators, counter."""
        keep = self._plan is None or self._plan.simulation
        own = {"generator": self._generator.get_state() if keep else None, "updates": self.updates}
        return {"networks": self.networks.state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.networks.load_state_dict(state["networks"])
        if state["generator"] is not None:
            self._generator.set_state(state["generator"])
        self.updates = int(state["updates"])
