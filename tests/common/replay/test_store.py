# SPDX-License-Identifier: Apache-2.0
"""Replay by hand numbers: weighing, scaling, the ring, eligibility, snapshots."""

import numpy as np
import pytest

from shoal_common.observation import FC, FN, FP, FT
from shoal_common.replay import Replay, ReplayConfig
from shoal_common.transition import Transitions

W = np.array([0.25, 0.4, 0.25, 0.1], np.float32)


def transitions(d=6, n=4, p=1, first=0):
    """Rows that carry their own number in task[0], each node its number in node[0]."""
    node = np.zeros((d, n, FN), np.float16)
    node[..., 0] = np.arange(n)
    task = np.zeros((d, FT), np.float16)
    task[:, 0] = first + np.arange(d)
    following = np.arange(1, d + 1)
    following[-1] = -1
    return Transitions(
        node=node,
        pair=np.zeros((d, n, FP), np.float16),
        task=task,
        ctx=np.zeros((d, FC), np.float16),
        mask=np.ones((d, n, p), bool),
        action=np.full(d, 2 * p, np.int32),
        quota=np.ones((d, 2), np.float32),
        propensity=np.ones(d, np.float32),
        reward=np.ones((d, 4), np.float32) * np.arange(1, 5, dtype=np.float32),
        closed=np.ones(d, bool),
        next_index=following,
        unit=np.arange(d),
    )


def replay(given=None, **config):
    given = given or transitions()
    made = Replay(ReplayConfig(**config), given.node.shape[1])
    made.add(given)
    return made


def rng():
    return np.random.default_rng(0)


def test_the_reward_is_weighed_scaled_and_clipped_when_sampled():
    # 0.25*1 + 0.4*2 + 0.25*3 + 0.1*4 = 2.2
    assert replay(reward_scale=2.0).sample(rng(), 3, 2, W).reward == pytest.approx([4.4] * 3)
    assert replay(reward_scale=9.0).sample(rng(), 3, 2, W).reward == pytest.approx([6.0] * 3)
    assert replay().sample(rng(), 1, 2, np.array([1, 0, 0, 0], np.float32)).reward == pytest.approx([1.0])


def test_the_next_decision_belongs_to_the_row_and_can_be_left_out():
    batch = replay().sample(rng(), 0, 4, W, rows=np.array([0, 3]))
    assert batch.obs_t.task[:, 0].tolist() == [0, 3]
    assert batch.obs_t1.task[:, 0].tolist() == [1, 4]
    assert replay(next_decision=False).sample(rng(), 2, 4, W).obs_t1 is None


def test_only_closed_finite_rows_with_a_next_decision_are_eligible():
    given = transitions()
    given.closed[1] = False
    given.node[2, 0, 0] = np.nan
    given.reward[3, 0] = np.inf
    made = replay(given)
    assert made.eligible.tolist() == [0, 4]
    assert set(made.sample(rng(), 50, 2, W).obs_t.task[:, 0]) == {0, 4}


def test_the_ring_overwrites_the_oldest_and_keeps_next_rows():
    made = replay(transitions(6), capacity=8)
    made.add(transitions(6, first=10))
    assert len(made) == 8
    assert made.overwritten == 4
    pairs = made.sample(rng(), 200, 2, W)
    assert {(a, b) for a, b in zip(pairs.obs_t.task[:, 0], pairs.obs_t1.task[:, 0], strict=True)} == {
        (4, 5), (10, 11), (11, 12), (12, 13), (13, 14), (14, 15),
    }  # fmt: skip


def test_more_rows_than_the_capacity_keep_the_last():
    made = replay(transitions(20), capacity=5)
    batch = made.sample(rng(), 100, 2, W)
    assert set(batch.obs_t.task[:, 0]) == {15, 16, 17, 18}
    assert (batch.obs_t1.task[:, 0] == batch.obs_t.task[:, 0] + 1).all()


def test_an_empty_replay_and_empty_rows_give_an_empty_batch():
    assert len(Replay(ReplayConfig(), 4).sample(rng(), 8, 2, W)) == 0
    empty = replay().sample(rng(), 8, 3, W, rows=np.empty(0, np.int64))
    assert len(empty) == 0
    assert empty.obs_t.node.shape == (0, 3, FN)


def test_weights_are_drawn_around_w_when_asked():
    batch = replay(w_concentration=50.0).sample(rng(), 4000, 2, W)
    assert batch.obs_t.w.sum(-1) == pytest.approx(np.ones(4000), abs=1e-5)
    assert batch.obs_t.w.mean(0) == pytest.approx(W, abs=0.01)
    assert batch.obs_t.w.std(0).min() > 0.01
    assert batch.reward == pytest.approx(batch.obs_t.w @ np.arange(1, 5), abs=1e-4)
    assert (batch.obs_t1.w == batch.obs_t.w).all()


def test_a_snapshot_holds_every_record_and_padding_contributes_nothing():
    snapshot = replay(transitions(50)).snapshot()
    assert len(snapshot) == 49
    assert len(snapshot.sample(rng(), np.array([0, 48, 49, 99]), 2, W)) == 2
    assert len(snapshot.sample(rng(), np.array([60, 99]), 2, W)) == 0


def test_one_record_less_never_changes_which_others_are_there():
    """Neighbours: the record's row stays and is not eligible. Also where the ring has overwritten rows."""
    for capacity in (100, 12):
        whole, without = transitions(40), transitions(40)
        without.closed[35] = False
        kept = [replay(t, capacity=capacity).snapshot() for t in (whole, without)]
        tasks = [set(s.sample(rng(), np.arange(len(s)), 2, W).obs_t.task[:, 0]) for s in kept]
        assert tasks[0] - tasks[1] == {35}
        assert tasks[1] < tasks[0]


def test_eligible_rows_come_oldest_first_wherever_the_ring_began():
    whole, late = replay(transitions(20), capacity=8), Replay(ReplayConfig(capacity=8), 4)
    late.add(transitions(3))
    late.add(transitions(20))
    one, two = (m.sample(rng(), 30, 2, W).obs_t.task[:, 0].tolist() for m in (whole, late))
    assert one == two
    assert whole.sample(rng(), 0, 2, W, rows=whole.eligible).obs_t.task[:, 0].tolist() == list(range(12, 19))


def test_a_snapshot_outlives_additions_but_not_overwriting():
    made = replay(transitions(6), capacity=10)
    snapshot = made.snapshot()
    made.add(transitions(4))
    assert len(snapshot) == 5
    snapshot.sample(rng(), np.arange(5), 2, W)
    made.add(transitions(1))
    with pytest.raises(RuntimeError, match="between rounds"):
        snapshot.sample(rng(), np.arange(5), 2, W)


def test_a_wrong_number_of_nodes_is_refused():
    with pytest.raises(ValueError, match="4 nodes x 1 profiles was given 5 nodes"):
        replay().add(transitions(n=5))
