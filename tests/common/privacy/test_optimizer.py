# SPDX-License-Identifier: Apache-2.0
"""The clip, white box: what one sample can change, also when its gradient is zero, huge or not a number."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from shoal_common.privacy.plan import PrivacyConfig, PrivacyPlan, PrivateOptimizer

CLIP = 0.3


def plan_of(**changes: object) -> PrivacyPlan:
    settings: dict[str, object] = {
        "delta": 1e-6,
        "clip_norm": CLIP,
        "batch": 8,
        "units_public": 1000,
        "critic_steps": 100,
        "noise_multiplier": 1.5,
        "simulation_seed": 5,
    }
    return PrivacyPlan(PrivacyConfig(**(settings | changes)))  # type: ignore[arg-type]


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 2)).to(dtype)


def released(batch: torch.Tensor, noise: bool, scale: float = 1.0, seed: int = 5) -> torch.Tensor:
    """The gradient of one private step on this batch, flat."""
    plan = plan_of(simulation_seed=seed)
    module = plan.wrap(network(batch.dtype))
    optimizer = plan.optimizer(torch.optim.SGD(module.parameters(), lr=1.0), plan.generator("noise"))
    if not noise:
        optimizer.noise_multiplier = 0.0
    optimizer.zero_grad()
    (scale * module(batch).square().sum()).backward()
    optimizer.step()
    return torch.cat(
        [parameter.grad.reshape(-1) for parameter in module.parameters() if parameter.grad is not None]
    )


def batch_of(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_sample_changes_the_sum_by_at_most_the_clip(scale: float, dtype: torch.dtype) -> None:
    batch = batch_of(9, dtype)
    everything = released(batch, noise=False, scale=scale).double()
    for left_out in range(9):
        kept = torch.cat([batch[:left_out], batch[left_out + 1 :]])
        change = (everything - released(kept, noise=False, scale=scale).double()).norm()
        assert 0 < change <= CLIP


def test_one_sample_alone_is_clipped_to_the_norm_and_not_below() -> None:
    alone = released(batch_of(1), noise=False, scale=1e3).double().norm()
    assert 0.99999 * CLIP < alone <= CLIP
    small = released(batch_of(1, torch.float64), noise=False, scale=1e-6)
    module = network(torch.float64)
    (1e-6 * module(batch_of(1, torch.float64)).square().sum()).backward()
    plain = torch.cat(
        [parameter.grad.reshape(-1) for parameter in module.parameters() if parameter.grad is not None]
    )
    torch.testing.assert_close(small, plain, rtol=1e-9, atol=0)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_a_non_finite_sample_contributes_exactly_nothing(poison: float) -> None:
    batch = batch_of(8)
    batch[3, 1] = poison
    without = released(torch.cat([batch[:3], batch[4:]]), noise=True)
    # matrix products may round differently for another batch size; the next test is about the clip, exactly
    torch.testing.assert_close(released(batch, noise=True), without, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("parameter", [0, 1, 2])
def test_bit_for_bit_the_batch_without_it(poison: float, parameter: int) -> None:
    """One non-finite number in one parameter's gradient removes the sample from all parameters."""

    def step(poisoned: bool) -> list[torch.Tensor]:
        module, optimizer = _bare()
        gradients = [
            torch.randn(64, *p.shape, generator=torch.Generator().manual_seed(7)) for p in module.parameters()
        ]
        if poisoned:
            gradients[parameter][17].view(-1)[0] = poison
        else:
            gradients = [torch.cat([gradient[:17], gradient[18:]]) for gradient in gradients]
        for target, gradient in zip(module.parameters(), gradients, strict=True):
            target.grad_sample = gradient  # type: ignore[attr-defined]
        optimizer.step()
        return [target.detach() for target in module.parameters()]

    for one, other in zip(step(poisoned=True), step(poisoned=False), strict=True):
        assert torch.equal(one, other)


def _bare() -> tuple[nn.Module, PrivateOptimizer]:
    plan = plan_of()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1, bias=False))
    return module, plan.optimizer(torch.optim.Adam(module.parameters()), plan.generator("noise"))


def test_all_samples_not_finite_is_the_empty_batch() -> None:
    batch = torch.full((5, 4), float("nan"))
    assert torch.equal(released(batch, noise=True), released(batch[:0], noise=True))


def test_zero_gradients_do_not_divide_by_zero() -> None:
    assert torch.count_nonzero(released(batch_of(4), noise=False, scale=0.0)) == 0
    assert torch.isfinite(released(batch_of(4), noise=True, scale=0.0)).all()


def _empty_batch(module: nn.Module, optimizer: PrivateOptimizer, plan: PrivacyPlan) -> None:
    optimizer.zero_grad()
    module(torch.zeros(0, 4)).sum().backward()
    optimizer.step()


def _no_batch(module: nn.Module, optimizer: PrivateOptimizer, plan: PrivacyPlan) -> None:
    plan.noise_step(optimizer)


@pytest.mark.parametrize("take", [_empty_batch, _no_batch])
def test_an_empty_draw_is_a_step_of_noise(
    take: Callable[[nn.Module, PrivateOptimizer, PrivacyPlan], None],
) -> None:
    plan = plan_of()
    module = plan.wrap(network())
    optimizer = plan.optimizer(torch.optim.SGD(module.parameters(), lr=1.0), plan.generator("noise"))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for _ in range(2):
        take(module, optimizer, plan)
    moved = [(p.detach() - b).reshape(-1) for p, b in zip(module.parameters(), before, strict=True)]
    assert all(torch.count_nonzero(part) == part.numel() for part in moved), "every coordinate is noised"
    assert torch.cat(moved).std() == pytest.approx(2**0.5 * 1.5 * CLIP, rel=0.2)


def test_noise_alone_equals_an_empty_batch() -> None:
    results = []
    for take in (_empty_batch, _no_batch):
        plan = plan_of()
        module = plan.wrap(network())
        optimizer = plan.optimizer(torch.optim.Adam(module.parameters(), lr=0.1), plan.generator("noise"))
        take(module, optimizer, plan)
        results.append([parameter.detach() for parameter in module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_second_backward_pass_before_the_step_is_refused() -> None:
    plan = plan_of()
    module = plan.wrap(network())
    module(batch_of(3)).sum().backward()
    with pytest.raises(ValueError, match="accumulation"):
        module(batch_of(3)).sum().backward()


def test_a_second_step_on_the_same_gradients_is_refused() -> None:
    plan = plan_of()
    module = plan.wrap(network())
    optimizer = plan.optimizer(torch.optim.SGD(module.parameters(), lr=1.0), plan.generator("noise"))
    module(batch_of(3)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="zero_grad"):
        optimizer.step()
