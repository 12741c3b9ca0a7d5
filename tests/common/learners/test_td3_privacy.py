# SPDX-License-Identifier: Apache-2.0
"""White-box sensitivity: from log to released gradient, one record moves nothing by more than the clip."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.privacy.plan import PrivacyConfig, PrivacyPlan
from shoal_common.replay import Replay, ReplayConfig
from shoal_common.transition import Transitions

torch.set_num_threads(1)
W = np.array([0.25, 0.4, 0.25, 0.1], np.float32)
CLIP, NODES, SIZE, RECORD = 0.3, 6, 40, 27
PRIVACY = PrivacyConfig(
    delta=1e-5,
    clip_norm=CLIP,
    batch=64,  # of 64: every record is in every batch, so neighbours differ by this record alone
    units_public=64,
    critic_steps=8,
    noise_multiplier=1e-7,  # next to none
    actor_every=1,
    simulation_seed=1,
)


def log(extreme: bool, present: bool) -> Transitions:
    """Decisions of one cluster; RECORD may be extreme, and counts or is blank."""
    rng = np.random.default_rng(0)
    given = Transitions(
        node=rng.random((SIZE, NODES, FN)).astype(np.float16),
        pair=rng.random((SIZE, NODES, FP)).astype(np.float16),
        task=rng.random((SIZE, FT)).astype(np.float16),
        ctx=rng.random((SIZE, FC)).astype(np.float16),
        mask=np.ones((SIZE, NODES, 1), np.bool_),
        action=rng.integers(0, NODES, SIZE).astype(np.int32),
        quota=np.full((SIZE, 2), 0.8, np.float32),
        propensity=np.ones(SIZE, np.float32),
        reward=-rng.random((SIZE, 4)).astype(np.float32),
        closed=np.ones(SIZE, np.bool_),
        next_index=np.r_[np.arange(1, SIZE), -1],
        unit=np.arange(SIZE),
    )
    if extreme:
        given.node[RECORD], given.reward[RECORD] = 60_000, 1e30
    given.closed[RECORD] = present
    return given


def released(given: Transitions, capacity: int, config: TD3Config) -> dict[str, torch.Tensor]:
    """The noised, clipped sums of one update, as one vector for each optimiser."""
    plan = PrivacyPlan(PRIVACY)
    learner = TD3(replace(config, learning_rate=0.0, policy_noise=0.0), 3, plan)
    replay = Replay(ReplayConfig(capacity=capacity), NODES)
    replay.add(given)
    snapshot = replay.snapshot()
    ids = plan.sampler(plan.generator("sampler")).draw(len(snapshot))
    learner.update(snapshot.sample(np.random.default_rng(0), ids, NODES, W))  # all nodes: no draw decides
    networks = {"critic": learner.networks.critic, "actor": learner.networks.actor}
    return {
        name: torch.cat([p.grad.flatten().double() for p in network.parameters()])
        for name, network in networks.items()
    }


@pytest.mark.parametrize("capacity", [100, 30])  # the ring has room, or has overwritten the first ten
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("config", [{"gamma": 0.0}, {"gamma": 0.9, "quota_bounds": (0.5, 1.0)}])
def test_one_record_moves_no_release_by_more_than_the_clip(capacity, extreme, config):
    one, two = (
        released(log(extreme, here), capacity, TD3Config(width=8, **config)) for here in (True, False)
    )
    for name in one:
        moved = float((one[name] - two[name]).norm())
        assert 0 < moved <= CLIP * (1 + 1e-5)
    assert float((one["critic"] - two["critic"]).norm()) > 0.9 * CLIP  # so the clip is what holds it
