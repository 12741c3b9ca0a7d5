# SPDX-License-Identifier: Apache-2.0
"""Actor, twin critic, their targets and optimisers: what every TD3 here is built from.

In private mode modules and optimisers come from the `PrivacyPlan`: critic and actor are two mechanisms, each
clipped as one vector. The targets are post-processing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from shoal_common.errors import SchemaMismatch
from shoal_common.learners.base import F32, Arrays, huber
from shoal_common.nn.init import frozen_view, soft_update, target_copy

if TYPE_CHECKING:
    from shoal_common.privacy.plan import PrivacyPlan, PrivateOptimizer

Actor = TypeVar("Actor", bound=nn.Module)
Critic = TypeVar("Critic", bound=nn.Module)
Part = Literal["actor", "critic"]


class Networks(Generic[Actor, Critic]):
    """The networks of one learner.

    `training` holds the modules to call when a gradient is wanted (with per-sample gradients in private
    mode), `critic_frozen` the critic as the actor's pass reads it. `cluster` names the streams of simulated
    noise.
    """

    def __init__(
        self,
        actor: Actor,
        critic: Critic,
        learning_rate: float,
        adam_eps: float,
        plan: PrivacyPlan | None = None,
        cluster: str = "",
    ) -> None:
        self.actor, self.critic, self._plan = actor, critic, plan
        self.actor_target, self.critic_target = target_copy(actor), target_copy(critic)
        self.critic_frozen = frozen_view(critic)
        self.training: dict[Part, nn.Module] = {"actor": actor, "critic": critic}
        self._noise: dict[Part, torch.Generator] = {}
        self._optimizers: dict[Part, torch.optim.Optimizer] = {
            part: torch.optim.Adam(module.parameters(), learning_rate, eps=adam_eps, fused=True)
            for part, module in self.training.items()
        }
        if plan is not None:
            self._noise = {part: plan.generator(part, cluster) for part in self.training}
            self.training = {part: plan.wrap(module) for part, module in self.training.items()}
            self._optimizers = {
                part: plan.optimizer(adam, self._noise[part]) for part, adam in self._optimizers.items()
            }

    def step(self, part: Part, loss: Tensor, count: int) -> None:
        """Step on a loss summed over `count` rows: on its mean, in private mode on the clipped noised sum."""
        if self._plan is None and count == 0:
            return
        optimizer = self._optimizers[part]
        optimizer.zero_grad()
        (loss if self._plan is not None else loss / count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def fit_critic(
        self, values: Tensor, target: Tensor, weight: Tensor, count: int, huber_delta: float
    ) -> tuple[float, float]:
        """Fit both twins' values [M, 2] to the target [M]; returns summed loss and summed first value."""
        loss = (huber(values - target[:, None], huber_delta).sum(dim=1) * weight).sum()
        self.step("critic", loss, count)
        return float(loss.detach()), float((values.detach()[:, 0] * weight).sum())

    def step_without_rows(self, part: Part) -> None:
        """Step on an empty batch: in private mode on noise alone (a release like any other), else not."""
        if self._plan is not None:
            self._plan.noise_step(cast("PrivateOptimizer", self._optimizers[part]))

    def update_targets(self, tau: float) -> None:
        """Move both targets towards their networks."""
        soft_update(list(self.actor_target.parameters()), list(self.actor.parameters()), tau)
        soft_update(list(self.critic_target.parameters()), list(self.critic.parameters()), tau)

    def shared_state(self) -> Arrays:
        """Copy the parameters of actor and critic into float32 arrays, in a fixed order."""
        return {
            key: value.detach().numpy().astype(np.float32, copy=True) for key, value in self._shared().items()
        }

    @torch.no_grad()
    def load_shared(self, arrays: Mapping[str, F32]) -> None:
        """Take over averaged parameters in place; the targets start from them, Adam's moments stay.

        Raises:
            SchemaMismatch: names or shapes differ.
        """
        mine = self._shared()
        if mine.keys() != arrays.keys():
            odd = sorted(mine.keys() ^ arrays.keys())
            raise SchemaMismatch(f"parameters do not match this learner's: {', '.join(odd[:3])}")
        for key, tensor in mine.items():
            if tuple(arrays[key].shape) != tuple(tensor.shape):
                raise SchemaMismatch(f"{key}: shape {tuple(arrays[key].shape)}, here {tuple(tensor.shape)}")
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(arrays[key], dtype=np.float32)))
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.critic_target.load_state_dict(self.critic.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, Adam's moments and, where noise is simulated, its generators."""
        state: dict[str, Any] = {name: module.state_dict() for name, module in self._modules().items()}
        state |= {f"{part}_optimizer": optimizer.state_dict() for part, optimizer in self._optimizers.items()}
        if self._plan is not None:
            state |= {f"{part}_noise": self._plan.generator_state(g) for part, g in self._noise.items()}
        return copy.deepcopy(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back in place what `state_dict` gave."""
        for name, module in self._modules().items():
            module.load_state_dict(state[name])
        for part, optimizer in self._optimizers.items():
            optimizer.load_state_dict(copy.deepcopy(state[f"{part}_optimizer"]))
        if self._plan is not None:
            for part, generator in self._noise.items():
                self._plan.restore_generator(generator, state[f"{part}_noise"])

    def _modules(self) -> dict[str, nn.Module]:
        targets = {"actor_target": self.actor_target, "critic_target": self.critic_target}
        return {"actor": self.actor, "critic": self.critic, **targets}

    def _shared(self) -> dict[str, Tensor]:
        modules: tuple[tuple[str, nn.Module], ...] = (("actor", self.actor), ("critic", self.critic))
        return {f"{name}.{key}": value for name, m in modules for key, value in m.state_dict().items()}
