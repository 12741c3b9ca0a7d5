# SPDX-License-Identifier: Apache-2.0
"""What a trainer gets of a live store, round by round, and that it trains on it as on any other source."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_client.experience.records import KEPT, DecisionRecord, Result, Seen
from shoal_client.experience.source import LiveSource
from shoal_client.experience.store import Choice, ExperienceStore
from shoal_client.train import LocalTrainer, RoundConfig, TrainingConfig
from shoal_common.cluster import POD_COLUMNS
from shoal_common.errors import InputError
from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.privacy.config import PrivacyConfig
from shoal_common.privacy.ledger import Ledger
from shoal_common.privacy.plan import PrivacyPlan
from shoal_common.replay import Replay, ReplayConfig


def _seen(number, nodes):
    rng = np.random.default_rng(number)
    return Seen(
        node=rng.random((nodes, FN)).astype(np.float16),
        pair=rng.random((nodes, FP)).astype(np.float16),
        task=rng.random(FT).astype(np.float16),
        ctx=np.full(FC, number / 1_000, np.float16),
        mask=np.ones((nodes, 1), np.bool_),
        logits=np.zeros((nodes, 1), np.float32),
        propensity=np.full((nodes, 1), 1 / nodes, np.float32),
        names=tuple(map(str, range(nodes))),
    )


class Filling:
    """Decides and closes in a store; decisions close in whatever order one likes."""

    def __init__(self, store):
        self.store, self.count = store, 0

    def decide(self, many=1, nodes=5, seen=True):
        for _ in range(many):
            self.count += 1
            number = self.store.next_id()
            record = DecisionRecord(
                number, f"u{number}", 1, float(number), "extender", "s", "active", "d", "t", "a",
                np.zeros(POD_COLUMNS), _seen(number, nodes) if seen else None, 1, (0.5, 1.0),
            )  # fmt: skip
            self.store.decided(record)

    def close(self, *numbers, learnable=True):
        for number in numbers:
            self.store.bound(number, "1", 0.0, Choice(1, 0.2))
            reward = (-number / 100, 0.0, 0.0, 0.0)
            self.store.closed(number, Result("running", reward=reward, learnable=learnable), final=True)
        assert self.store.flush(10)


@pytest.fixture
def filling(tmp_path):
    with ExperienceStore(tmp_path / "store") as store:
        yield Filling(store)


@pytest.fixture
def source(tmp_path, filling):
    return LiveSource(tmp_path / "store", tmp_path / "trainer" / "marks.json")


def _numbers(log):
    """Ids of the rows, which stand in the context, and of those that may be sampled."""
    ids = (log.ctx[:, 0].astype(float) * 1_000).round().astype(int)
    return list(ids), list(ids[log.closed])


def test_a_round_gets_what_was_closed_since_the_last_one_with_what_followed_it(filling, source):
    filling.decide(6)
    filling.close(2, 3)
    log = source.snapshot(1)
    assert _numbers(log) == ([2, 3, 4], [2, 3])
    assert list(log.next_index) == [1, 2, -1]
    np.testing.assert_allclose(log.reward[:2, 0], [-0.02, -0.03])
    filling.close(5, 1, 4)
    log = source.snapshot(2)
    assert _numbers(log) == ([1, 2, 4, 5, 6], [1, 4, 5])
    assert list(log.eligible) == [0, 2, 3]
    assert len(source.snapshot(3)) == 0


def test_a_decision_that_nothing_follows_yet_waits(filling, source):
    filling.decide(3)
    filling.close(1, 3, 2)
    assert _numbers(source.snapshot(1)) == ([1, 2], [1])
    assert len(source.snapshot(2)) == 0
    filling.decide()
    assert filling.store.flush(10)
    assert _numbers(source.snapshot(3)) == ([2, 3, 4], [2, 3])


def test_candidates_are_padded_and_the_action_is_theirs(filling, source):
    filling.decide(2, nodes=3)
    filling.close(1)
    log = source.snapshot(1)
    assert log.node.shape == (2, KEPT, FN)
    assert list(log.mask[0, :, 0]) == [True] * 3 + [False] * (KEPT - 3)
    assert (log.action[0], log.propensity[0]) == (1, pytest.approx(0.2))
    assert list(log.quota[0]) == [0.5, 1.0]
    np.testing.assert_array_equal(log.node[0, :3], _seen(1, 3).node)
    assert np.isnan(log.propensity[1])


def test_what_is_open_unseen_or_not_learnable_is_left_out(filling, source):
    filling.decide(2)
    filling.decide(seen=False)
    filling.decide(2)
    filling.close(1, 3)
    filling.close(4, learnable=False)
    assert _numbers(source.snapshot(1)) == ([1, 2], [1])


def test_a_round_that_broke_off_gets_the_same_again(filling, source, tmp_path):
    filling.decide(5)
    filling.close(1, 2)
    first = source.snapshot(1)
    filling.close(3)
    second = source.snapshot(2)
    filling.close(4)
    again = LiveSource(tmp_path / "store", tmp_path / "trainer" / "marks.json")
    assert _numbers(again.snapshot(2)) == _numbers(second) == ([3, 4], [3])
    assert _numbers(again.snapshot(1)) == _numbers(first)  # the server fell back to its checkpoint
    assert _numbers(again.snapshot(2)) == ([3, 4, 5], [3, 4])


def test_a_new_trainer_gets_the_whole_store_and_no_more_than_fits(filling, source, tmp_path):
    filling.decide(20)
    filling.close(*range(1, 20))
    assert len(source.snapshot(7)) == 20
    small = LiveSource(tmp_path / "store", tmp_path / "other.json", most=5)
    assert _numbers(small.snapshot(1))[1] == list(range(15, 20))


def test_damaged_marks_are_told(filling, source, tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "marks.json").write_text("[1")
    with pytest.raises(InputError, match="remove it"):
        source.snapshot(1)


def test_the_local_trainer_trains_private_rounds_on_it(filling, source, tmp_path):
    privacy = PrivacyConfig(
        delta=1e-5, clip_norm=1.0, batch=8, units_public=64, critic_steps=40, noise_multiplier=2.0,
        simulation_seed=1,
    )  # fmt: skip
    plan = PrivacyPlan(privacy)
    learner = TD3(TD3Config(width=8), seed=3, plan=plan, cluster="a")
    replay = Replay(ReplayConfig(capacity=200), KEPT)
    training = TrainingConfig(updates=4, batch=8, candidates=8, seed=5)
    trainer = LocalTrainer("a", learner, replay, source, plan, tmp_path / "trainer", training)
    model = TD3(TD3Config(width=8), seed=0).shared_state()
    for number in (1, 2):
        filling.decide(30, nodes=12)
        filling.close(*range(filling.count - 29, filling.count))
        update = trainer.round(model, RoundConfig(number, "run", "schema"))
        assert all(np.isfinite(array).all() for array in update.arrays.values())
        assert any(not np.array_equal(update.arrays[name], array) for name, array in model.items())
        model = dict(update.arrays)
    assert len(trainer._replay.eligible) == 58
    assert [row.round for row in Ledger(tmp_path / "trainer" / "ledger.jsonl").rows] == [1, 2]
    assert update.epsilon is not None


def test_the_store_is_read_while_it_is_written(filling, source):
    filling.decide(3)
    filling.close(1)
    filling.decide(200)
    assert _numbers(source.snapshot(1))[1] == [1]
    assert filling.store.flush(10)
