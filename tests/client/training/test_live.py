# SPDX-License-Identifier: Apache-2.0
"""Rounds on a live store under a cluster's own budget, and the policies that come of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from shoal_client.policies.limits import Limits, write_limits
from shoal_client.train import RoundConfig
from shoal_client.training import live as live_trainer
from shoal_client.training.live import LiveConfig, LiveTrainer
from shoal_common.errors import BudgetExhausted, InputError
from shoal_common.learners.federated import FederatedLearning, initial
from shoal_common.policy import PolicyArtifact
from shoal_common.privacy.config import Budget
from shoal_common.privacy.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parents[1]))
from live_store import fill_store

SETTINGS = {"width": 8, "updates": 4, "batch": 8, "units-public": 64, "rounds": 4, "capacity": 500}
BUDGET = Budget(epsilon=50.0, delta=1e-4)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("store") / "experience"
    fill_store(directory, 60)
    return directory


def _trainer(store: Path, folder: Path, budget: Budget | None = BUDGET) -> LiveTrainer:
    return LiveTrainer(LiveConfig("one", store, folder, budget))


def _round(trainer, number, run="r" * 40, settings=SETTINGS):
    return trainer.round(initial(settings), RoundConfig(number, run, "schema"), settings)


def _ledger(folder):
    return Ledger(folder / "ledger.jsonl").rows


def test_a_round_trains_on_the_store_and_charges_the_ledger(store, tmp_path):
    update = _round(_trainer(store, tmp_path), 1)
    assert any(not np.array_equal(update.arrays[name], array) for name, array in initial(SETTINGS).items())
    (row,) = _ledger(tmp_path)
    assert (row.cluster, row.round, row.hash, row.simulation) == ("one", 1, update.ledger_head, False)
    assert (update.epsilon, update.delta) == (row.epsilon_after, 1e-4)


def test_a_process_that_starts_again_ships_the_stored_update(store, tmp_path):
    first = _round(_trainer(store, tmp_path), 1)
    assert _round(_trainer(store, tmp_path), 1).to_bytes() == first.to_bytes()
    assert len(_ledger(tmp_path)) == 1


def test_two_runs_share_one_ledger_and_one_budget(store, tmp_path):
    trainer = _trainer(store, tmp_path)
    one = [_round(trainer, n).epsilon for n in (1, 2)]
    other = _round(trainer, 1, run="s" * 40).epsilon
    assert one[0] < one[1] < other
    assert len({row.key for row in _ledger(tmp_path)}) == 3


def test_a_spent_budget_ships_nothing_more(store, tmp_path):
    trainer = _trainer(store, tmp_path, Budget(epsilon=1.0, delta=1e-4))
    for number in range(1, 5):
        assert _round(trainer, number).epsilon <= 1.0
    with pytest.raises(BudgetExhausted):
        _round(trainer, 1, run="s" * 40)
    assert len(_ledger(tmp_path)) == 4


def test_without_a_budget_nothing_is_charged(store, tmp_path):
    update = _round(_trainer(store, tmp_path, None), 1)
    assert (update.epsilon, update.ledger_head, _ledger(tmp_path)) == (None, "", ())


def test_the_noise_is_the_federations_or_more():
    learning = FederatedLearning.parse(SETTINGS | {"noise-multiplier": 2.0, "clip-norm": 3.0})
    wide, narrow = learning.privacy(BUDGET), learning.privacy(Budget(0.5, 1e-4, clip_norm=1.0))
    assert (wide.sigma, wide.clip_norm) == (2.0, 3.0)
    assert narrow.sigma > 2.0
    assert narrow.clip_norm == 1.0
    assert narrow.planned_epsilon <= 0.5


@pytest.mark.parametrize(
    ("key", "value"), [("width", 0), ("gamma", 1.0), ("updates", "x"), ("clip-norm", -1)]
)
def test_a_wrong_setting_is_named(key, value):
    with pytest.raises(InputError) as caught:
        FederatedLearning.parse({key: value})
    assert caught.value.field == key


def test_the_policy_of_a_round_is_an_artifact_and_the_newest_few_are_kept(store, tmp_path, monkeypatch):
    monkeypatch.setattr(live_trainer, "KEEP_POLICIES", 1)
    trainer = _trainer(store, tmp_path, None)
    for number in (1, 2):
        update = _round(trainer, number)
        trainer.publish()
    folder = tmp_path / "policies"
    assert len([p for p in folder.iterdir() if not p.is_symlink()]) == 1
    artifact = PolicyArtifact.load(folder / "latest")
    assert artifact.manifest["privacy"] is None
    assert artifact.manifest["provenance"]["version"] == f"{'r' * 16}-{number:06d}"
    for name, array in artifact.arrays().items():
        assert any(np.array_equal(array, shipped) for shipped in update.arrays.values()), name


def test_publishing_leaves_the_training_alone(store, tmp_path):
    quiet, loud = _trainer(store, tmp_path / "quiet", None), _trainer(store, tmp_path / "loud", None)
    for number in (1, 2, 3):
        updates = [_round(trainer, number) for trainer in (quiet, loud)]
        if number == 1:
            loud.publish()
        assert updates[0].to_bytes() == updates[1].to_bytes()


def test_a_private_policy_says_what_it_guarantees(store, tmp_path):
    trainer = _trainer(store, tmp_path)
    update = _round(trainer, 1)
    trainer.publish()
    privacy = PolicyArtifact.load(tmp_path / "policies" / "latest").manifest["privacy"]
    assert (privacy["epsilon"], privacy["simulation"]) == (update.epsilon, False)


def test_limits_of_the_clusters_policies_hold_from_the_next_round_on(store, tmp_path):
    trainer = _trainer(store, tmp_path)
    first = _round(trainer, 1).epsilon
    write_limits(tmp_path, Limits(epsilon=first * 1.5, delta=1e-4))
    assert first < _round(trainer, 2).epsilon <= first * 1.5
    write_limits(tmp_path, Limits(suspended=True))
    with pytest.raises(BudgetExhausted, match="suspends"):
        _round(trainer, 3)
    assert len(_ledger(tmp_path)) == 2


def test_what_was_paid_for_is_sent_again_whatever_the_limits_are_by_now(store, tmp_path):
    first = _round(_trainer(store, tmp_path), 1)
    for limits, refused in (
        (Limits(suspended=True), BudgetExhausted),
        (Limits(epsilon=first.epsilon / 2, delta=1e-4), BudgetExhausted),
    ):
        write_limits(tmp_path, limits)
        trainer = _trainer(store, tmp_path)
        assert _round(trainer, 1).to_bytes() == first.to_bytes()
        with pytest.raises(refused):
            _round(trainer, 2)
    assert len(_ledger(tmp_path)) == 1
