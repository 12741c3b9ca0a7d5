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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from shoal_common.learners.base import (
    F32,
    Acted,
    Arrays,
    Losses,
    clipped_noise,
    explore_policy,
    export_arrays,
    huber,
    import_arrays,
    taken,
)
from shoal_common.nn.init import build, frozen_view, soft_update, target_copy
from shoal_common.nn.inputs import Inputs, inputs
from shoal_common.nn.set_attention import SetActor, SetCritic, masked_softmax
from shoal_common.observation import Observation
from shoal_common.replay import Batch
from shoal_common.scorers.base import Scores, select, taken_quotas
from shoal_common.scorers.network import NetworkScorer

if TYPE_CHECKING:
    from shoal_common.privacy.plan import PrivacyPlan, PrivateOptimizer


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
    beta: float = 0.05
    """Weight of the entropy, in units of the scaled advantage."""
    advantage_scale: float = 0.5
    """A: divides Q in the actor loss. A constant, since the batch's deviation would couple its records."""
    huber_delta: float = 1.0
    """Where the critic's loss turns linear, in units of the scaled reward."""
    learning_rate: float = 2e-3
    """Adam's step, of actor and critic."""
    adam_eps: float = 1e-8
    """Adam's epsilon; raise to 1e-4 where DP noise rules the second moment."""
    actor_every: int = 2
    """Critic updates per actor (and target) update."""
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


class TD3:
    """The learner; deterministic under its seed, which feeds a generator of its own.

    `cluster` names the streams of simulated noise, which must differ between clusters of equal seeds.
    """

    def __init__(
        self, config: TD3Config, seed: int, plan: PrivacyPlan | None = None, cluster: str = ""
    ) -> None:
        self.config, self.updates, self._plan = config, 0, plan
        self._generator = torch.Generator().manual_seed(seed)
        width, profiles, bounds = config.width, config.profiles, config.quota_bounds
        self.actor = build(
            lambda: SetActor(width, profiles, bounds), self._generator, ("head.logit", "head.quota")
        )
        self.critic = build(
            lambda: SetCritic(width, profiles, bounds is not None), self._generator, ("value",)
        )
        self.actor_target, self.critic_target = target_copy(self.actor), target_copy(self.critic)
        self._critic_frozen = frozen_view(self.critic)
        self._noise = {part: plan.generator(part, cluster) for part in ("actor", "critic")} if plan else {}
        self._actor_step, self._actor_optimizer = self._trainable("actor", self.actor)
        self._critic_step, self._critic_optimizer = self._trainable("critic", self.critic)

    def _trainable(self, part: str, module: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the module to call when training and its optimiser, both from the plan in private mode."""
        config = self.config
        adam = torch.optim.Adam(module.parameters(), config.learning_rate, eps=config.adam_eps, fused=True)
        if self._plan is None:
            return module, adam
        return self._plan.wrap(module), self._plan.optimizer(adam, self._noise[part])

    # ------------------------------------------------------------------------------------------- acting
    def score(self, obs: Observation) -> Scores:
        """Score every candidate: a learner is a Scorer too."""
        return NetworkScorer(self.actor).score(obs)

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
        logits, quotas = self.actor_target(*seen)
        logits = logits + clipped_noise(logits, config.policy_noise, config.noise_clip, self._generator)
        policy = masked_softmax(logits / config.temperature, seen.mask)
        values = self.critic_target(*seen, self._smoothed(quotas)).amin(dim=-1)
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
        values = taken(self._critic_step(*seen, quota), torch.from_numpy(batch.action))  # [M, 2]
        per_sample = huber(values - target[:, None], self.config.huber_delta).sum(dim=1)
        loss = (per_sample * weight).sum()
        self._step(self._critic_optimizer, loss, count)
        return float(loss.detach()), float((values.detach()[:, 0] * weight).sum())

    def _update_actor(self, seen: Inputs, weight: Tensor, count: int) -> tuple[float, float]:
        """Climb the first twin under the entropy bonus; returns mean loss and mean entropy."""
        config = self.config
        logits, quotas = self._actor_step(*seen)
        policy = masked_softmax(logits / config.temperature, seen.mask)
        with torch.no_grad():
            value = self._critic_frozen(*seen, quotas.detach())[..., 0]
        entropy = -(policy * torch.log(policy.clamp_min(1e-20))).flatten(1).sum(dim=1)
        gain = (policy * value).flatten(1).sum(dim=1)
        if config.quota_bounds is not None:
            gain = gain + (quotas * self._quota_gradient(seen, quotas, policy)).flatten(1).sum(dim=1)
        loss = ((-gain / config.advantage_scale - config.beta * entropy) * weight).sum()
        self._step(self._actor_optimizer, loss, count)
        size = max(count, 1)
        return float(loss.detach()) / size, float((entropy.detach() * weight).sum()) / size

    def _quota_gradient(self, seen: Inputs, quotas: Tensor, policy: Tensor) -> Tensor:
        """dQ_1/dx weighted by pi, as a constant [M, K, P, 2]: the deterministic policy gradient."""
        played = quotas.detach().requires_grad_(True)
        value = (self._critic_frozen(*seen, played)[..., 0] * policy.detach()).sum()
        gradient: Tensor = torch.autograd.grad(value, played)[0]
        return gradient

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor, count: int) -> None:
        """Step on the mean loss; in private mode on the sum, whatever it holds."""
        if self._plan is None and count == 0:
            return
        optimizer.zero_grad()
        (loss if self._plan is not None else loss / count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def _update_without_rows(self) -> Losses:
        """Step on noise alone in private mode (a release like any other); only the targets move else."""
        self.updates += 1
        due = self.updates % self.config.actor_every == 0
        optimizers = [self._critic_optimizer, self._actor_optimizer][: 1 + due]
        if self._plan is not None:
            for optimizer in optimizers:
                self._plan.noise_step(cast("PrivateOptimizer", optimizer))
        if due:
            self._update_targets()
        return Losses(0.0, None, None, 0.0, 0.0, 0)

    def _update_targets(self) -> None:
        if self.config.gamma > 0.0:
            tau = self.config.tau
            soft_update(list(self.actor_target.parameters()), list(self.actor.parameters()), tau)
            soft_update(list(self.critic_target.parameters()), list(self.critic.parameters()), tau)

    # ------------------------------------------------------------------------------------------- states
    def shared_state(self) -> Arrays:
        """Parameters of actor and critic, in a fixed order."""
        return export_arrays({"actor": self.actor, "critic": self.critic})

    def load_shared(self, arrays: Mapping[str, F32]) -> None:
        """Take over averaged parameters; the targets start from them, Adam's moments stay.

        Raises:
            SchemaMismatch: names or shapes differ.
        """
        import_arrays({"actor": self.actor, "critic": self.critic}, arrays)
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Everything to continue to the bit: networks, targets, Adam's moments, generators, counter."""
        plan = self._plan
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "actor_target": self.actor_target.state_dict(),
            "critic_target": self.critic_target.state_dict(),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "noise": {part: plan.generator_state(g) for part, g in self._noise.items()} if plan else {},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.actor_target.load_state_dict(state["actor_target"])
        self.critic_target.load_state_dict(state["critic_target"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._generator.set_state(state["generator"])
        for part, generator in self._noise.items():
            if self._plan is not None:
                self._plan.restore_generator(generator, state["noise"][part])
        self.updates = int(state["updates"])
