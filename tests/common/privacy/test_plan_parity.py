# SPDX-License-Identifier: Apache-2.0
"""Per-sample gradients of the wrapped module against a loop over samples, for every kind of layer in use."""

import pytest
import torch
from torch import nn

from shoal_common.privacy.plan import PrivacyConfig, PrivacyPlan

WIDTH = 8


class Flat(nn.Module):
    """Linear and LayerNorm on [B, F]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return self.net(x[:, 0])  # type: ignore[no-any-return]


class Tokens(Flat):
    """The same on [B, N, F]."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return (self.net(x) * mask[..., None]).sum(1)  # type: ignore[no-any-return]


class Grid(Flat):
    """The same on [B, N, P, F]: nodes by accelerator profiles."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return self.net(x[:, :, None] * kind[..., None, None].add(1).reciprocal().expand(-1, -1, 3, 1)).sum(
            (1, 2)
        )  # type: ignore[no-any-return]


class Kinds(nn.Module):
    """Embedding, with and without a bias-free Linear behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(4, WIDTH), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.table(kind)) * mask[..., None]).sum(1)  # type: ignore[no-any-return]


class Reused(nn.Module):
    """One Linear used three times in a forward pass, on [B, N, F] and on [B, F]."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.again, self.out = nn.Linear(5, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.again(torch.tanh(self.again(torch.tanh(self.into(x))))))
        pooled = torch.tanh(self.again((hidden * mask[..., None]).sum(1)))
        return self.out(pooled)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Masked cross-attention from Linear layers, typed tokens, two heads from one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.kind = nn.Linear(5, WIDTH), nn.Embedding(4, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.heads = nn.Linear(2 * WIDTH, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        token = self.norm(self.token(x) + self.kind(kind))
        weight = self.query(token[:, :1]) @ self.key(token).transpose(1, 2) / WIDTH**0.5
        weight = weight.masked_fill(~mask[:, None], -1e9).softmax(-1)
        context = (weight @ self.value(token)).expand(-1, token.shape[1], -1)
        logits = self.heads(torch.cat([token, context], -1)).masked_fill(~mask[..., None], 0.0)
        return logits.logsumexp(1)  # type: ignore[no-any-return]


def _inputs(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(count, 6, generator=generator) < 0.7
    mask[:, 0] = True
    return (
        torch.randn(count, 6, 5, generator=generator),
        mask,
        torch.randint(0, 4, (count, 6), generator=generator),
    )


@pytest.mark.parametrize("kind", [Flat, Tokens, Grid, Kinds, Reused, Attention])
@pytest.mark.parametrize("count", [1, 7])
def test_per_sample_gradients_equal_a_loop(kind: type[nn.Module], count: int) -> None:
    config = PrivacyConfig(
        delta=1e-6, clip_norm=1.0, batch=8, units_public=1000, critic_steps=1, noise_multiplier=1.0
    )
    torch.manual_seed(0)
    module = kind()
    inputs = _inputs(count)
    expected: list[list[torch.Tensor]] = []
    for sample in range(count):
        module.zero_grad()
        module(*(part[sample : sample + 1] for part in inputs)).square().sum().backward()
        expected.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    module.zero_grad()
    wrapped = PrivacyPlan(config).wrap(module)
    wrapped(*inputs).square().sum().backward()
    for index, parameter in enumerate(wrapped.parameters()):
        loop = torch.stack([gradients[index] for gradients in expected])
        torch.testing.assert_close(parameter.grad_sample, loop, rtol=1e-5, atol=1e-5)
