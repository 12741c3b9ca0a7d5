# SPDX-License-Identifier: Apache-2.0
"""Set-TD3: target equation and each device of TD3 by hand numbers, private mode, resuming, learning."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from shoal_common.errors import InputError, SchemaMismatch
from shoal_common.learners import LEARNERS, learner_class
from shoal_common.learners.base import clipped_noise, huber, taken
from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.privacy.plan import PrivacyConfig, PrivacyPlan
from shoal_common.replay.batch import Batch, Decisions
from shoal_common.scorers.base import explore_policy
from shoal_simulations.experiments.action_interface import draw, gap_share, train

torch.set_num_threads(1)  # as in every training process; more would only wait for each other


def decisions(rng, m, k, p=1):
    mask = rng.random((m, k, p)) < 0.7
    mask[:, 0] = True
    shapes = {"node": (m, k, FN), "pair": (m, k, FP), "task": (m, FT), "ctx": (m, FC), "w": (m, 4)}
    return Decisions(mask=mask, **{name: rng.random(s).astype(np.float32) for name, s in shapes.items()})


def batch(m=6, k=5, p=1, seed=0):
    rng = np.random.default_rng(seed)
    return Batch(
        obs_t=decisions(rng, m, k, p),
        action=np.zeros(m, np.int64),
        quota=np.full((m, 2), 0.8, np.float32),
        reward=rng.normal(size=m).astype(np.float32),
        discount=np.ones(m, np.float32),
        obs_t1=decisions(rng, m, k, p),
    )


def plan(noise=1.0, size=6, actor_every=2, seed=3):
    return PrivacyPlan(
        PrivacyConfig(
            delta=1e-4, clip_norm=0.5, batch=size, units_public=100, critic_steps=10, noise_multiplier=noise,
            actor_every=actor_every, simulation_seed=seed,
        )
    )  # fmt: skip


class Constant(torch.nn.Module):
    """Answers what it is told, whatever it sees."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = answers

    def forward(self, *_):
        return self.answers if len(self.answers) > 1 else self.answers[0]


def same(one, two):
    return all(np.array_equal(one[key], two[key]) for key in one)


def test_the_target_is_the_exact_expectation_of_the_twin_minimum():
    learner = TD3(TD3Config(gamma=0.9, policy_noise=0.0), 0)
    given = batch(m=1, k=3)
    given.obs_t1.mask[:] = [[[True], [True], [False]]]
    logits = torch.tensor([[[0.0], [math.log(3)], [9.0]]])  # pi = 1/4, 3/4, masked
    twins = torch.tensor([[[[1.0, 2.0]], [[5.0, 3.0]], [[99.0, 99.0]]]])  # minima 1, 3
    learner.networks.actor_target = Constant(logits, torch.ones(1, 3, 1, 2))
    learner.networks.critic_target = Constant(twins)
    wanted = given.reward[0] + 0.9 * (0.25 * 1 + 0.75 * 3)
    assert learner.target(given).item() == pytest.approx(wanted, rel=1e-6)
    given.discount[:] = 0.0
    assert learner.target(given).item() == pytest.approx(given.reward[0])
    given.discount[:] = 1.0
    given.obs_t1.mask[:] = False  # nothing is feasible next: nothing is expected of it
    assert learner.target(given).item() == pytest.approx(given.reward[0])


def test_gamma_zero_reads_no_next_decision_and_moves_no_target():
    learner, given = TD3(TD3Config(gamma=0.0), 0), batch()
    learner.networks.actor_target = learner.networks.critic_target = None
    assert learner.target(given).tolist() == given.reward.tolist()
    for _ in range(2):
        learner.update(given)


def test_smoothing_noise_is_cut():
    noise = clipped_noise(torch.zeros(20_000), 0.2, 0.3, torch.Generator().manual_seed(0))
    assert noise.abs().max().item() == pytest.approx(0.3)
    assert noise.std().item() == pytest.approx(0.18, abs=0.01)


def test_smoothed_quotas_stay_within_their_bounds():
    learner = TD3(TD3Config(quota_bounds=(0.5, 0.9), policy_noise=5.0, noise_clip=9.0), 0)
    smoothed = learner._smoothed(torch.full((4, 3, 1, 2), 0.7))
    assert smoothed.min().item() == pytest.approx(0.5)
    assert smoothed.max().item() == pytest.approx(0.9)


def test_huber_and_the_taken_candidate_by_hand():
    assert huber(torch.tensor([0.5, -3.0]), 1.0).tolist() == [0.125, 2.5]
    values = torch.arange(12.0).view(1, 3, 2, 2)  # candidate (1, 1) has index 3: values 6, 7
    assert taken(values, torch.tensor([3])).tolist() == [[6.0, 7.0]]


def test_actor_and_targets_move_every_second_update_only():
    learner, given = TD3(TD3Config(actor_every=2, tau=0.25), 0), batch()
    networks = learner.networks
    before = learner.shared_state()
    first = learner.update(given)
    middle = learner.shared_state()
    assert first.actor is None
    assert all(np.array_equal(before[k], middle[k]) == k.startswith("actor") for k in before)
    old = [p.clone() for p in networks.critic_target.parameters()]
    second = learner.update(given)
    assert second.actor is not None
    assert any(not np.array_equal(middle[k], v) for k, v in learner.shared_state().items() if "actor" in k)
    for was, target, source in zip(
        old, networks.critic_target.parameters(), networks.critic.parameters(), strict=True
    ):
        assert torch.allclose(target, 0.75 * was + 0.25 * source, atol=1e-6)


def test_the_actor_pass_leaves_no_gradient_on_the_critic():
    learner, given = TD3(TD3Config(quota_bounds=(0.5, 1.0), actor_every=1), 0, plan(actor_every=1)), batch()
    learner.update(given)
    critic = {k: v for k, v in learner.shared_state().items() if k.startswith("critic")}
    for parameter in learner.networks.critic.parameters():
        parameter.grad = parameter.grad_sample = None
    from shoal_common.nn.inputs import inputs

    learner._update_actor(inputs(given.obs_t), torch.ones(6), 6)
    assert all(p.grad is None and p.grad_sample is None for p in learner.networks.critic.parameters())
    assert same(critic, learner.shared_state())


def test_quotas_follow_the_first_twins_gradient():
    learner = TD3(TD3Config(quota_bounds=(0.2, 1.0), actor_every=1, beta=0.0), 0)

    class Preference(torch.nn.Module):
        """Q = minus the squared distance of the quotas to (0.4, 0.8)."""

        def forward(self, *seen):
            value = -(seen[-1] - torch.tensor([0.4, 0.8])).square().sum(-1, keepdim=True)
            return value.expand(*value.shape[:-1], 2)

    learner.networks.critic_frozen = Preference()
    from shoal_common.nn.inputs import inputs

    given = batch(m=32)
    for _ in range(300):
        learner._update_actor(inputs(given.obs_t), torch.ones(32), 32)
    _, quotas = learner.networks.actor(*inputs(given.obs_t))
    assert quotas[given.obs_t.mask].mean(0).tolist() == pytest.approx([0.4, 0.8], abs=0.05)


def test_a_row_that_is_not_a_number_contributes_exactly_nothing():
    good, bad = batch(), batch()
    bad.obs_t.node[2, 1, 3] = np.nan
    bad.reward[2] = np.inf
    zeroed = batch()
    zeroed.obs_t.node[2], zeroed.reward[2] = 0.5, np.nan
    states = []
    for given in (bad, zeroed):
        learner = TD3(TD3Config(gamma=0.0), 0, plan())
        assert learner.update(given).rows == 5
        learner.update(given)
        states.append(learner.shared_state())
    assert all(np.isfinite(value).all() for value in states[0].values())
    assert same(*states)
    rest = Batch(
        obs_t=Decisions(**{f: np.delete(getattr(good.obs_t, f), 2, 0) for f in Decisions.__slots__}),
        **{f: np.delete(getattr(good, f), 2, 0) for f in ("action", "quota", "reward", "discount")},
    )
    learner = TD3(TD3Config(gamma=0.0), 0, plan())
    learner.update(rest)
    learner.update(rest)
    assert all(np.allclose(states[0][k], v, atol=2e-5) for k, v in learner.shared_state().items())


def test_an_empty_batch_takes_the_noise_step_in_private_mode_only():
    empty = Batch(
        obs_t=decisions(np.random.default_rng(0), 0, 4),
        action=np.empty(0, np.int64),
        quota=np.empty((0, 2), np.float32),
        reward=np.empty(0, np.float32),
        discount=np.empty(0, np.float32),
    )
    private, plain = TD3(TD3Config(), 0, plan()), TD3(TD3Config(), 0)
    for learner, still in ((private, False), (plain, True)):
        before = learner.shared_state()
        losses = [learner.update(empty), learner.update(empty)]
        after = learner.shared_state()
        assert [each.rows for each in losses] == [0, 0]
        assert learner.updates == 2
        assert (
            all(np.array_equal(before[k], after[k]) for k in before if "value" in k or "logit" in k) == still
        )


def test_the_plan_decides_how_often_the_actor_is_updated():
    learner = TD3(TD3Config(actor_every=1, gamma=0.0), 0, plan(actor_every=3))
    assert learner.config.actor_every == 3
    moved = []
    for step in range(6):
        before = learner.shared_state()
        learner.update(batch(seed=step))
        after = learner.shared_state()
        moved.append(any(not np.array_equal(before[k], after[k]) for k in before if k.startswith("actor")))
    assert moved == [False, False, True] * 2
    assert sum(moved) == plan(actor_every=3).config.releases(0, 6) - 6
    with pytest.raises(InputError, match="actor_every"):
        TD3(TD3Config(), 0, plan(actor_every=0))


def test_with_real_privacy_smoothing_noise_is_secret_and_not_on_disk():
    def target(seed):
        return TD3(TD3Config(), 0, plan(seed=seed)).target(batch()).tolist()

    assert target(3) == target(3)
    one, two = (TD3(TD3Config(policy_noise=0.4), 0, plan(seed=None)) for _ in range(2))
    assert not torch.equal(one._generator.get_state(), two._generator.get_state())
    assert one.state_dict()["generator"] is None
    before = two._generator.get_state()
    two.load_state_dict(one.state_dict())
    assert torch.equal(two._generator.get_state(), before)


def test_private_gradients_are_clipped_sums():
    """With next to no noise the summed gradient of a step is within batch * clip."""
    learner, given = TD3(TD3Config(gamma=0.0), 0, plan(noise=1e-6)), batch()
    learner.update(given)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in learner.networks.critic.parameters()))
    assert 0.0 < norm <= 6 * 0.5 + 1e-3


@pytest.mark.parametrize("private", [False, True])
def test_a_resumed_run_continues_to_the_bit(private, tmp_path):
    def make():
        return TD3(TD3Config(quota_bounds=(0.5, 1.0)), 0, plan() if private else None, "a")

    straight, first, resumed = make(), make(), make()
    for step in range(6):
        straight.update(batch(seed=step))
    for step in range(3):
        first.update(batch(seed=step))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for step in range(3, 6):
        resumed.update(batch(seed=step))
    assert same(straight.shared_state(), resumed.shared_state())
    obs = draw(np.random.default_rng(0), 4).obs
    acts = [learner.act(obs, True, np.random.default_rng(1)) for learner in (straight, resumed)]
    assert np.array_equal(acts[0].action, acts[1].action)


def test_the_same_seed_gives_the_same_bits_whatever_torchs_global_state():
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        learner = TD3(TD3Config(), 7)
        learner.update(batch())
        states.append(learner.shared_state())
    assert same(*states)


def test_shared_state_round_trip_resets_targets_and_refuses_strangers():
    source, sink = TD3(TD3Config(), 0), TD3(TD3Config(), 1)
    source.update(batch())
    arrays = source.shared_state()
    sink.load_shared(arrays)
    assert same(arrays, sink.shared_state())
    assert list(arrays) == list(sink.shared_state())
    pairs = zip(sink.networks.critic.parameters(), sink.networks.critic_target.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    frozen = zip(sink.networks.critic.parameters(), sink.networks.critic_frozen.parameters(), strict=True)
    assert all(a.data_ptr() == b.data_ptr() for a, b in frozen)
    with pytest.raises(SchemaMismatch, match="do not match"):
        sink.load_shared({"actor.x": np.zeros(1, np.float32)})
    arrays["actor.head.logit.bias"] = np.zeros(2, np.float32)
    with pytest.raises(SchemaMismatch, match="shape"):
        sink.load_shared(arrays)


def test_serving_takes_the_argmax_exploring_knows_its_propensity():
    learner = TD3(TD3Config(), 0)
    obs = draw(np.random.default_rng(0), 200).obs
    obs.mask[0] = False
    served = learner.act(obs, False, np.random.default_rng(0))
    logits = np.where(obs.mask, learner.score(obs).logits, -np.inf)[..., 0]
    assert (served.action[1:] == logits[1:].argmax(-1)).all()
    assert served.action[0] == -1
    explored = learner.act(obs, True, np.random.default_rng(0))
    assert explored.action[0] == -1
    assert obs.mask[np.arange(1, 200), explored.action[1:], 0].all()
    assert ((explored.propensity > 0) & (explored.propensity <= 1)).all()


def test_exploration_by_hand():
    policy = np.tile(np.array([[0.8, 0.2, 0.0, 0.0]], np.float32), (20_000, 1))
    mask = np.tile(np.array([[True, True, True, False]]), (20_000, 1))
    action, chance = explore_policy(policy, mask, 0.3, np.random.default_rng(0))
    # 0.7 * (0.8, 0.2, 0) + 0.3 / 3
    wanted = np.array([0.66, 0.24, 0.10, 0.0])
    assert np.bincount(action, minlength=4) / 20_000 == pytest.approx(wanted, abs=0.01)
    assert chance == pytest.approx(wanted[action])


def test_wrong_settings_are_refused():
    for wrong in ({"gamma": 1.0}, {"tau": 0.0}, {"quota_bounds": (0.9, 0.5)}, {"actor_every": 0}):
        with pytest.raises(ValueError, match="must"):
            TD3Config(**wrong)


def test_learners_by_name():
    assert [learner_class(name).__name__ for name in LEARNERS] == ["TD3", "LiteralTD3", "Wolpertinger"]
    with pytest.raises(InputError, match="one of td3"):
        learner_class("dqn")
    code = "import sys, shoal_common.learners; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["literal_td3", "wolpertinger"])
def test_the_baselines_update_share_and_resume(name):
    def given(seed):
        plain = batch(seed=seed)
        scores = np.random.default_rng(seed).uniform(-1, 1, (6, 5)).astype(np.float32)
        return Batch(
            plain.obs_t, plain.action, plain.quota, plain.reward, plain.discount, plain.obs_t1, scores
        )

    one, two = (learner_class(name)(TD3Config(), 0) for _ in range(2))
    for step in range(4):
        one.update(given(step))
    two.load_state_dict(one.state_dict())
    assert np.isfinite([one.update(given(9)).critic, two.update(given(9)).critic]).all()
    assert same(one.shared_state(), two.shared_state())
    obs = draw(np.random.default_rng(0), 50).obs
    for explore in (False, True):
        acted = one.act(obs, explore, np.random.default_rng(0))
        assert obs.mask[np.arange(50), acted.action, 0].all()


def test_it_learns():
    """150 updates on one-step placement close most of the gap between random and oracle."""
    learner = TD3(TD3Config(gamma=0.0), 0)
    train(learner, 150, 0)
    test = draw(np.random.default_rng(9000), 1000)
    share, _ = gap_share(test, learner.act(test.obs, False, np.random.default_rng(0)).action)
    assert share > 0.7
