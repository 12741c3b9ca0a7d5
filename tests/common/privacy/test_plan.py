# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from shoal_common.errors import InputError
from shoal_common.privacy.accountant import Segment
from shoal_common.privacy.plan import WATERMARK, PrivacyConfig, PrivacyPlan


def plan_of(seed: int | None = 5, units: int = 2000, batch: int = 40) -> PrivacyPlan:
    config = PrivacyConfig(
        delta=1e-6,
        clip_norm=0.4,
        batch=batch,
        units_public=units,
        critic_steps=100,
        noise_multiplier=1.5,
        simulation_seed=seed,
    )
    return PrivacyPlan(config)


def test_sampler_noise_and_row_come_from_the_same_figures() -> None:
    plan = plan_of()
    row = plan.charge("c", 3, 10, 20)
    assert (row.sample_rate, row.noise_multiplier, row.steps) == (40 / 2000, 1.5, 15)
    assert (row.cluster, row.round, row.step_begin, row.step_end) == ("c", 3, 10, 20)
    assert (row.unit, row.neighbouring, row.delta, row.simulation) == ("transition", "add_remove", 1e-6, True)
    assert plan.spend(10, 5) == row.segment
    assert plan.epsilon([row.segment]) == plan.epsilon([Segment(0.02, 1.5, 10), Segment(0.02, 1.5, 5)])
    optimizer = plan.optimizer(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (1.5, 0.4)
    assert (optimizer.expected_batch_size, optimizer.loss_reduction) == (40, "sum")
    assert "not a guarantee" in WATERMARK


def test_the_sampler_includes_each_unit_independently() -> None:
    sampler = plan_of().sampler(plan_of().generator("sampling"))
    counts, sizes = np.zeros(2000), []
    for _ in range(3000):
        ids = sampler.draw()
        assert ids.dtype == np.int64
        counts[ids] += 1
        sizes.append(len(ids))
    # sizes are binomial(2000, 0.02): mean 40, variance 39.2; inclusion counts binomial(3000, 0.02)
    assert np.mean(sizes) == pytest.approx(40, abs=4 * (39.2 / 3000) ** 0.5)
    assert np.var(sizes) == pytest.approx(39.2, rel=0.1)
    expected = stats.binom(3000, 0.02)
    edges = np.array([-1, 50, 55, 60, 65, 70, 3000])
    frequencies = 2000 * np.diff(expected.cdf(edges))
    observed = np.histogram(counts, edges + 0.5)[0]
    assert stats.chisquare(observed, frequencies).pvalue > 1e-3


def test_a_draw_is_ascending_without_repetition_and_may_be_empty() -> None:
    plan = plan_of(units=50, batch=1)
    sampler = plan.sampler(plan.generator())
    draws = [sampler.draw() for _ in range(200)]
    assert any(len(ids) == 0 for ids in draws)
    assert all((np.diff(ids) > 0).all() and (ids >= 0).all() and (ids < 50).all() for ids in draws)
    everything = plan_of(units=7, batch=7)
    assert everything.sampler(everything.generator()).draw().tolist() == list(range(7))


def test_more_units_than_the_public_number_are_drawn_with_the_same_probability() -> None:
    plan = plan_of(units=50, batch=5)
    draws = [plan.sampler(plan.generator("s", i)).draw(held=400) for i in range(400)]
    counts = np.bincount(np.concatenate(draws), minlength=400)
    assert len(counts) == 400
    for half in (counts[:50], counts[50:]):  # 0.1 within four standard deviations
        assert half.mean() / 400 == pytest.approx(0.1, abs=4 * (0.09 / (400 * len(half))) ** 0.5)
    same = (plan.sampler(plan.generator("s")).draw(held=n).tolist() for n in (0, 7, 50))
    assert len({tuple(ids) for ids in same}) == 1


def test_simulated_randomness_repeats_and_streams_differ() -> None:
    def first(seed: int, *stream: int | str) -> list[float]:
        return torch.rand(4, generator=plan_of(seed).generator(*stream)).tolist()

    assert first(5, "noise", "a") == first(5, "noise", "a")
    others = [first(5, "noise", "b"), first(5, "sampling", "a"), first(6, "noise", "a"), first(5)]
    assert len({tuple(values) for values in [first(5, "noise", "a"), *others]}) == 5


def test_real_randomness_is_fresh_whatever_the_global_seeds_say() -> None:
    def noise() -> torch.Tensor:
        torch.manual_seed(1)
        np.random.seed(1)
        plan = plan_of(seed=None)
        module = plan.wrap(nn.Linear(30, 1))
        optimizer = plan.optimizer(torch.optim.SGD(module.parameters(), lr=1.0), plan.generator("noise"))
        plan.noise_step(optimizer)
        return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])

    assert torch.count_nonzero(noise() == noise()) == 0
    plan = plan_of(seed=None)
    assert not plan.simulation
    assert (
        plan.sampler(plan.generator("a")).draw().tolist() != plan.sampler(plan.generator("a")).draw().tolist()
    )


def test_a_real_generator_holds_more_than_the_32_bits_that_torch_seeds_with() -> None:
    words = plan_of(seed=None).generator().get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    assert len(set(words.tolist())) > 600
    seeded = torch.Generator().manual_seed(int(words[0]))
    assert not np.array_equal(words, seeded.get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64))


def test_simulated_noise_resumes_exactly_and_real_noise_leaves_no_state() -> None:
    plan = plan_of()
    generator = plan.generator("noise")
    torch.randn(7, generator=generator)
    state = plan.generator_state(generator)
    expected = torch.randn(9, generator=generator)
    resumed = plan.generator("noise")
    plan.restore_generator(resumed, state)
    assert torch.equal(torch.randn(9, generator=resumed), expected)
    real = plan_of(seed=None)
    assert real.generator_state(real.generator()) is None
    real.restore_generator(real.generator(), None)


@pytest.mark.parametrize("seed", [5, None])
def test_the_noise_is_gaussian_of_the_stated_size(seed: int | None) -> None:
    """1e5 coordinates: standard deviation within 1 %, and a Kolmogorov-Smirnov test."""
    plan = plan_of(seed)
    module = plan.wrap(nn.Linear(100_000, 1, bias=False))
    optimizer = plan.optimizer(torch.optim.SGD(module.parameters(), lr=1.0), plan.generator("noise"))
    optimizer.zero_grad()
    (module(torch.ones(3, 100_000)).sum() * 1e3).backward()
    optimizer.step()
    (weight,) = module.parameters()
    clean = 3 * 0.4 / 100_000**0.5  # three samples, each clipped to norm 0.4
    noise = (weight.grad.double().reshape(-1) - clean).numpy()
    assert noise.std() == pytest.approx(1.5 * 0.4, rel=0.01)
    assert stats.kstest(noise, stats.norm(scale=0.6).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.MultiheadAttention(4, 2),
        nn.GRU(4, 4),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    ],
)
def test_layers_that_mix_samples_are_refused(layer: nn.Module) -> None:
    with pytest.raises(InputError, match="LayerNorm"):
        plan_of().wrap(nn.Sequential(nn.Linear(4, 4), layer))
