# SPDX-License-Identifier: Apache-2.0
"""Set attention by hand numbers, and per-sample gradients against a loop."""

import math

import pytest
import torch

from shoal_common.nn.init import build, frozen_view, soft_update, target_copy
from shoal_common.nn.set_attention import SetActor, SetCritic, TaskContext, masked_softmax
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.privacy.plan import PrivacyConfig, PrivacyPlan


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_inputs(m=5, n=6, p=1, seed=0):
    g = generator(seed)
    mask = torch.rand(m, n, p, generator=g) < 0.7
    mask[:, 0] = True
    shapes = ((m, n, FN), (m, n, FP), (m, FT), (m, FC), (m, 4))
    return [torch.rand(shape, generator=g) for shape in shapes] + [mask]


def actor(profiles=1, bounds=None, final=()):
    return build(lambda: SetActor(8, profiles, bounds), generator(), final)


def test_masked_softmax_by_hand():
    logits = torch.tensor([[[0.0], [math.log(3.0)], [100.0]]])
    mask = torch.tensor([[[True], [True], [False]]])
    assert torch.allclose(masked_softmax(logits, mask).flatten(), torch.tensor([0.25, 0.75, 0.0]))


def test_an_empty_mask_gives_finite_numbers():
    inputs = random_inputs()
    inputs[-1][:] = False
    logits, quotas = actor(bounds=(0.5, 1.0))(*inputs)
    assert logits.isfinite().all()
    assert quotas.isfinite().all()


def test_attention_is_a_mean_a_set_and_its_double_agree():
    context = build(lambda: TaskContext(8), generator(), ())
    g = generator(1)
    tokens, task, ctx, w = (torch.rand(s, generator=g) for s in ((2, 5, 8), (2, FT), (2, FC), (2, 4)))
    once = context(tokens, task, ctx, w, torch.ones(2, 5, dtype=torch.bool))
    twice = context(tokens.repeat(1, 2, 1), task, ctx, w, torch.ones(2, 10, dtype=torch.bool))
    assert torch.allclose(once, twice, atol=1e-6)


def test_quotas_stay_within_their_bounds_and_are_one_without():
    inputs = random_inputs()
    _, quotas = actor(bounds=(0.4, 0.9))(*inputs)
    assert quotas.min() >= 0.4
    assert quotas.max() <= 0.9
    plain = actor()
    assert (plain(*inputs)[1] == 1.0).all()
    assert not [name for name, _ in plain.named_parameters() if "quota" in name]


def test_a_candidates_value_sees_only_its_own_quota():
    critic = build(lambda: SetCritic(8, 2, quotas=True), generator(), ())
    inputs = random_inputs(p=2)
    quota = torch.full((5, 6, 2, 2), 0.8)
    other = quota.clone()
    other[:, 3, 1] = 0.3
    changed = (critic(*inputs, quota) != critic(*inputs, other)).any(-1)
    assert changed[:, 3, 1].all()
    changed[:, 3, 1] = False
    assert not changed.any()


def test_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    first, second = actor(), actor()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    first, last = actor().head.logit.weight, actor(final=("head.logit",)).head.logit.weight
    assert torch.allclose(last, 0.01 * first)


def test_a_frozen_view_follows_and_a_target_copy_moves_by_tau():
    module = torch.nn.Linear(1, 1, bias=False)
    view, target = frozen_view(module), target_copy(module)
    with torch.no_grad():
        module.weight.fill_(3.0)
        target.weight.fill_(1.0)
    assert view.weight.item() == 3.0
    assert not view.weight.requires_grad
    soft_update(list(target.parameters()), list(module.parameters()), 0.25)
    assert target.weight.item() == pytest.approx(1.5)


@pytest.mark.parametrize("profiles", [1, 3])
@pytest.mark.parametrize("part", ["actor", "critic"])
def test_per_sample_gradients_equal_a_loop(part, profiles):
    inputs = random_inputs(m=4, p=profiles)
    quota = torch.rand(4, 6, profiles, 2, generator=generator(2))
    if part == "actor":
        module = actor(profiles, (0.5, 1.0))

        def loss(net, rows):
            logits, quotas = net(*[x[rows] for x in inputs])
            policy = masked_softmax(logits, inputs[-1][rows])
            return ((policy * logits).flatten(1).sum(1) + quotas.flatten(1).square().sum(1)).sum()
    else:
        module = build(lambda: SetCritic(8, profiles, quotas=True), generator(), ())

        def loss(net, rows):
            return net(*[x[rows] for x in inputs], quota[rows]).flatten(1).square().sum()

    each = []
    for m in range(4):
        module.zero_grad()
        loss(module, slice(m, m + 1)).backward()
        each.append([parameter.grad.clone() for parameter in module.parameters()])
    plan = PrivacyPlan(
        PrivacyConfig(
            delta=1e-4, clip_norm=1.0, batch=4, units_public=100, critic_steps=1, noise_multiplier=1.0,
            simulation_seed=0,
        )
    )  # fmt: skip
    module.zero_grad()
    loss(plan.wrap(module), slice(None)).backward()
    for index, (name, parameter) in enumerate(module.named_parameters()):
        wanted = torch.stack([gradients[index] for gradients in each])
        assert torch.allclose(parameter.grad_sample, wanted, atol=1e-5, rtol=1e-5), name
