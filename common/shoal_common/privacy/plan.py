# SPDX-License-Identifier: Apache-2.0
"""One object from which sampler, per-sample gradients, clip, noise and accountant come: they cannot disagree.

DP-SGD (Abadi et al. 2016, arXiv 1607.00133) with Opacus's `GradSampleModule` and `DPOptimizer`. Never
`PrivacyEngine.make_private`: it takes the sample rate from the data loader, and so leaks how many records
there are.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn

from shoal_common.errors import InputError
from shoal_common.privacy import accountant
from shoal_common.privacy.accountant import Segment
from shoal_common.privacy.config import WATERMARK, PrivacyConfig, PrivacyWarning
from shoal_common.privacy.ledger import LedgerRow
from shoal_common.privacy.optimizer import PrivateOptimizer

__all__ = [
    "WATERMARK",
    "PoissonSampler",
    "PrivacyConfig",
    "PrivacyPlan",
    "PrivacyWarning",
    "PrivateOptimizer",
]

MECHANISM = "poisson_subsampled_gaussian"

# torch says that hooks fire although no input needs gradients; Opacus needs only those of the outputs.
warnings.filterwarnings("ignore", message="Full backward hook is firing")

# Layout of torch's CPU generator state (ATen CPUGeneratorImplState): 24 bytes of header, then the 624 words
# of the Mersenne Twister, each in 8 bytes. `manual_seed` fills them from 32 bits only; a secret needs them
# all.
_STATE_HEADER_BYTES = 24
_STATE_WORDS = 624


@final
class PoissonSampler:
    """Draws batches in which each unit is included independently with the same probability."""

    def __init__(self, units: int, sample_rate: float, generator: torch.Generator) -> None:
        self._units, self._sample_rate, self._generator = units, sample_rate, generator

    def draw(self, held: int = 0) -> NDArray[np.int64]:
        """Ids of one batch, ascending, in [0, max(units, held)); possibly none.

        `held` is how many units there really are. Each is included with the same probability, also beyond the
        public number: then batches are larger than expected, which nobody outside sees, and no unit's chance
        depends on how many others there are. Ids of padding contribute nothing.
        """
        places = max(self._units, held)
        uniform = torch.rand(places, generator=self._generator, dtype=torch.float64)
        return torch.nonzero(uniform < self._sample_rate).reshape(-1).numpy()


@final
class PrivacyPlan:
    """DP-SGD for one cluster: critic at every step, actor at every `actor_every`-th, one ledger for both.

    Attributes:
        config: the public constants.
        sample_rate, noise_multiplier, simulation: as in force; read them here, compute them nowhere else.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self.config = config
        self.sample_rate = config.sample_rate
        self.noise_multiplier = config.sigma
        self.simulation = config.simulation

    def generator(self, *stream: int | str) -> torch.Generator:
        """A source of randomness for noise or sampling.

        Filled from the operating system's entropy; under a simulation seed, from the seed and the stream's
        name, which must then differ for every cluster and use.
        """
        if self.config.simulation_seed is None:
            entropy = os.urandom(4 * _STATE_WORDS)
        else:
            name = repr((self.config.simulation_seed, *stream)).encode()
            entropy = hashlib.shake_256(name).digest(4 * _STATE_WORDS)
        generator = torch.Generator()
        generator.manual_seed(0)
        state = generator.get_state().numpy().copy()
        words = np.frombuffer(entropy, dtype="<u4").astype(np.uint64)
        state[_STATE_HEADER_BYTES : _STATE_HEADER_BYTES + 8 * _STATE_WORDS] = words.view(np.uint8)
        generator.set_state(torch.from_numpy(state))
        return generator

    def generator_state(self, generator: torch.Generator) -> torch.Tensor | None:
        """What a checkpoint keeps of a generator: all in simulation, nothing otherwise.

        Real noise must not be on disk; a restarted cluster takes fresh entropy.
        """
        return generator.get_state() if self.simulation else None

    def restore_generator(self, generator: torch.Generator, state: torch.Tensor | None) -> None:
        """Put back what `generator_state` kept; nothing to do outside simulation."""
        if self.simulation and state is not None:
            generator.set_state(state)

    def sampler(self, generator: torch.Generator) -> PoissonSampler:
        """The sampler of batches that the accountant assumes."""
        return PoissonSampler(self.config.units_public, self.sample_rate, generator)

    def wrap(self, module: nn.Module) -> GradSampleModule:
        """The module with per-sample gradients, for losses summed over samples.

        Raises:
            InputError: a layer mixes samples or has no per-sample gradient (BatchNorm, MultiheadAttention).
        """
        errors = ModuleValidator.validate(module, strict=False)
        if errors:
            reason = "; ".join(str(error).split(". ")[0] for error in errors)
            remedy = "build it from Linear, LayerNorm and Embedding"
            raise InputError("privacy", type(module).__name__, reason, remedy)
        wrapped = GradSampleModule(module, loss_reduction="sum")
        wrapped.forbid_grad_accumulation()  # a second backward pass would count each sample twice
        return wrapped

    def optimizer(
        self, optimizer: torch.optim.Optimizer, generator: torch.Generator | None = None
    ) -> PrivateOptimizer:
        """The optimizer behind clip and noise; one clip over all its parameters, so one release per step.

        Its gradient is the noised *sum* over the batch. Call `step` (or `noise_step`) at every planned step.
        """
        return PrivateOptimizer(
            optimizer,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.config.clip_norm,
            expected_batch_size=self.config.batch,
            loss_reduction="sum",
            generator=generator if generator is not None else self.generator("noise"),
            secure_mode=not self.simulation,
        )

    def noise_step(self, optimizer: PrivateOptimizer) -> None:
        """Take the step of an empty batch: noise only. It is a release like any other."""
        optimizer.noise_step()

    def charge(self, cluster: str, round_number: int, step_begin: int, step_end: int) -> LedgerRow:
        """The ledger row of critic steps [step_begin, step_end) and the actor steps among them."""
        return LedgerRow(
            cluster=cluster,
            round=round_number,
            step_begin=step_begin,
            step_end=step_end,
            mechanism=MECHANISM,
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            steps=self.config.releases(step_begin, step_end),
            delta=self.config.delta,
            unit=self.config.unit,
            neighbouring=self.config.neighbouring,
            simulation=self.simulation,
        )

    def spend(self, critic_steps: int, actor_steps: int) -> Segment:
        """Releases of this plan as the accountant sees them."""
        return Segment(self.sample_rate, self.noise_multiplier, critic_steps + actor_steps)

    def epsilon(self, history: Iterable[Segment]) -> float:
        """Epsilon of a history at the plan's delta; reading changes nothing."""
        return accountant.epsilon(history, self.config.delta)
