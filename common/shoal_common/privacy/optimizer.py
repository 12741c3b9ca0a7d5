# SPDX-License-Identifier: Apache-2.0
"""Opacus's `DPOptimizer` with a clip that holds for every gradient: zero, huge, infinite or not a number."""

from __future__ import annotations

import torch
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

# The clip aims this much below the norm, so that rounding cannot carry a sample's gradient above it.
_ROUNDING = 1e-6
_TINY = 1e-30


class PrivateOptimizer(DPOptimizer):  # type: ignore[misc]  # opacus comes without types
    """Clips each sample's gradient over all parameters together, adds noise, steps the wrapped optimizer.

    A sample with any non-finite gradient (or one whose norm overflows) is left out before the clip: what
    follows is bit for bit what the batch without it gives. Opacus's own clip would let it through, because
    min(1, C / NaN) is NaN.
    """

    def clip_and_accumulate(self) -> None:
        """Drop non-finite samples, then clip and sum, as Opacus does otherwise."""
        for parameter in self.params:
            _check_processed_flag(parameter.grad_sample)
        gradients: list[torch.Tensor] = self.grad_samples
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]).norm(dim=0)
        finite = norms.isfinite()
        if not finite.all():
            norms = norms[finite]
            gradients = [gradient[finite] for gradient in gradients]
        factors = (self.max_grad_norm * (1 - _ROUNDING) / norms.clamp(min=_TINY)).clamp(max=1.0)
        for parameter, gradient in zip(self.params, gradients, strict=True):
            clipped = torch.einsum("i,i...", factors, gradient)
            if parameter.summed_grad is None:
                parameter.summed_grad = clipped
            else:
                parameter.summed_grad += clipped
            _mark_as_processed(parameter.grad_sample)

    def noise_step(self) -> None:
        """Step on a batch without samples: noise only."""
        self.zero_grad()
        for parameter in self.params:
            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        self.step()
