# SPDX-License-Identifier: Apache-2.0
"""Building modules whose weights come from one generator, and copies of them that never learn."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)

HE = math.sqrt(6)
FINAL_SCALE = 0.01  # of the last layers: the first policy is near uniform, the first values near 0


def build(make: Callable[[], Module], generator: torch.Generator, final: tuple[str, ...]) -> Module:
    """Make a module and draw its weights from `generator`; torch's global generator is not touched.

    Linear layers get He et al.'s uniform (arXiv:1502.01852): within sqrt(6 / fan in), which at these small
    widths learns several times faster than torch's default; biases within 1 / sqrt(fan in); embeddings a
    normal of standard deviation 0.1. Layers whose names end in one of `final` are scaled down by FINAL_SCALE.
    """
    with torch.device("meta"):
        module = make()
    module.to_empty(device="cpu")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            scale = FINAL_SCALE if name.endswith(final) else 1.0
            bound = scale / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -HE * bound, HE * bound, generator=generator)
            if layer.bias is not None:
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
        elif isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, 0.0, 0.1, generator=generator)
    return module


def target_copy(module: Module) -> Module:
    """Copy a module into one that takes no gradient."""
    return copy.deepcopy(module).requires_grad_(False)


def frozen_view(module: Module) -> Module:
    """Return a second module on the same memory that takes no gradient and carries no hooks.

    It follows every in-place change of the first (optimisers and `load_state_dict` change in place). The
    actor's pass reads the critic through it, so no gradient of a private record lands on the critic.
    """
    view = target_copy(module)
    for mirror, parameter in zip(view.parameters(), module.parameters(), strict=True):
        mirror.data = parameter.data
    return view


@torch.no_grad()
def soft_update(targets: list[Tensor], sources: list[Tensor], tau: float) -> None:
    """Move targets towards sources in place: t <- (1 - tau) t + tau s."""
    torch._foreach_lerp_(targets, sources, tau)
