# SPDX-License-Identifier: Apache-2.0
"""Local training: what a round does, and that a crash at any point costs nothing but time."""

from __future__ import annotations

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from shoal_client.train import LocalTrainer, RoundConfig, TrainingConfig
from shoal_client.training.rounds import RoundStore
from shoal_common.errors import BudgetExhausted, Fatal, InputError, LedgerCorrupt
from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.privacy.config import PrivacyConfig
from shoal_common.privacy.ledger import Ledger
from shoal_common.privacy.plan import PrivacyPlan
from shoal_common.replay import Replay, ReplayConfig
from shoal_common.transition import Transitions

NODES = 4
PRIVATE = PrivacyConfig(
    delta=1e-5,
    clip_norm=1.0,
    batch=8,
    units_public=64,
    critic_steps=40,
    noise_multiplier=2.0,
    simulation_seed=1,
)


def _transitions(seed: int, size: int = 24) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        node=rng.random((size, NODES, FN)).astype(np.float16),
        pair=rng.random((size, NODES, FP)).astype(np.float16),
        task=rng.random((size, FT)).astype(np.float16),
        ctx=rng.random((size, FC)).astype(np.float16),
        mask=np.ones((size, NODES, 1), np.bool_),
        action=rng.integers(0, NODES, size).astype(np.int32),
        quota=np.ones((size, 2), np.float32),
        propensity=np.ones(size, np.float32),
        reward=-rng.random((size, 4)).astype(np.float32),
        closed=np.ones(size, np.bool_),
        next_index=np.r_[np.arange(1, size), -1],
        unit=np.arange(size),
    )


class Source:
    """Synthetic experience, a function of the round; counts how often it was asked."""

    def __init__(self, size: int = 24) -> None:
        self.size, self.asked = size, []

    def snapshot(self, round_number: int) -> Transitions:
        self.asked.append(round_number)
        return _transitions(round_number, self.size)


def _trainer(folder, private=False, source=None, updates=4, privacy=PRIVATE, ledger=None, capacity=200):
    plan = PrivacyPlan(privacy) if private else None
    learner = TD3(TD3Config(width=8), seed=3, plan=plan, cluster="a")
    replay = Replay(ReplayConfig(capacity=capacity), NODES)
    config = TrainingConfig(updates=updates, batch=8, candidates=3, seed=5)
    return LocalTrainer("a", learner, replay, source or Source(), plan, folder, config, ledger)


def _model():
    return TD3(TD3Config(width=8), seed=0).shared_state()


def _config(number, run="run"):
    return RoundConfig(number, run, "schema")


def _rounds(trainer, last, first=1, model=None):
    model = _model() if model is None else model
    for number in range(first, last + 1):
        update = trainer.round(model, _config(number))
        model = dict(update.arrays)
    return update


def _ledger(folder):
    return Ledger(folder / "ledger.jsonl")


@pytest.mark.parametrize("private", [False, True])
def test_a_round_trains_and_says_what_it_costs(tmp_path, private):
    update = _trainer(tmp_path, private).round(_model(), _config(1))
    assert (update.cluster, update.round, update.schema_hash) == ("a", 1, "schema")
    assert any(not np.array_equal(update.arrays[name], array) for name, array in _model().items())
    rows = _ledger(tmp_path).rows
    if not private:
        assert (update.epsilon, update.unit, update.ledger_head, rows) == (None, "", "", ())
        return
    (row,) = rows
    assert (row.cluster, row.round, row.step_begin, row.step_end, row.steps) == ("a", 1, 0, 4, 6)
    assert (update.epsilon, update.delta, update.unit) == (row.epsilon_after, 1e-5, "transition")
    assert update.ledger_head == row.hash


def test_read_only_global_arrays_are_no_trouble(tmp_path):
    model = _model()
    for array in model.values():
        array.flags.writeable = False
    _trainer(tmp_path).round(model, _config(1))
    assert torch.get_num_threads() == 1  # a trainer's process has one thread


@pytest.mark.parametrize("private", [False, True])
def test_a_stored_update_is_sent_again_and_never_trained_again(tmp_path, private):
    source = Source()
    trainer = _trainer(tmp_path, private, source)
    first = trainer.round(_model(), _config(1))
    again = trainer.round(_model(), _config(1))
    other_process = _trainer(tmp_path, private, source).round(_model(), _config(1))
    assert first.to_bytes() == again.to_bytes() == other_process.to_bytes()
    assert source.asked == [1]
    assert len(_ledger(tmp_path).rows) == (1 if private else 0)


@pytest.mark.parametrize("private", [False, True])
def test_a_resumed_trainer_equals_an_uninterrupted_one_to_the_bit(tmp_path, private):
    straight = _rounds(_trainer(tmp_path / "straight", private), 4)
    half = _rounds(_trainer(tmp_path / "resumed", private), 2)
    resumed = _rounds(_trainer(tmp_path / "resumed", private), 4, first=3, model=dict(half.arrays))
    assert resumed.to_bytes() == straight.to_bytes()


def test_two_processes_may_take_turns(tmp_path):
    straight = _rounds(_trainer(tmp_path / "straight", True), 4)
    one, two = _trainer(tmp_path / "turns", True), _trainer(tmp_path / "turns", True)
    model = _model()
    for number, trainer in enumerate((one, two, one, two), start=1):
        update = trainer.round(model, _config(number))
        model = dict(update.arrays)
    assert update.to_bytes() == straight.to_bytes()


def test_two_processes_that_are_asked_at_once_release_one_update(tmp_path):
    privacy = dataclasses.replace(PRIVATE, simulation_seed=None)  # each would draw its own noise
    trainers = [_trainer(tmp_path, True, privacy=privacy) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:  # each opens the lock for itself, as a process does
        updates = list(pool.map(lambda trainer: trainer.round(_model(), _config(1)), trainers))
    assert updates[0].to_bytes() == updates[1].to_bytes()
    assert len(_ledger(tmp_path).rows) == 1


class Crash(BaseException):
    """The process ends here."""


POINTS = {
    "learn": ("shoal_common.learners.td3.TD3.update", 0),
    "charge": ("shoal_common.privacy.ledger.Ledger.charge", 0),
    "after the charge": ("shoal_client.train.SharedUpdate", 1),
    "store": ("shoal_client.training.rounds.RoundStore.save", 1),
    "half stored": ("shoal_client.training.rounds.np.savez", 1),
    "before the rename": ("shoal_client.training.rounds._sync", 1),
    "after the rename": ("shoal_client.training.rounds.RoundStore._prune", 1),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_anywhere_in_a_round_costs_nothing_but_time(tmp_path, monkeypatch, point):
    def crash(*_, **__):
        raise Crash

    straight = _rounds(_trainer(tmp_path / "straight", True), 3)
    folder = tmp_path / "crashed"
    trainer = _trainer(folder, True)
    model = dict(_rounds(trainer, 1).arrays)
    target, charged = POINTS[point]
    with monkeypatch.context() as patch:
        patch.setattr(target, crash)
        with pytest.raises(Crash):
            trainer.round(model, _config(2))
    # written ahead: never below what was released (round 1), at most one round's range above it
    assert [row.round for row in _ledger(folder).rows] == [1, 2][: 1 + charged]
    resumed = _rounds(_trainer(folder, True), 3, first=2, model=model)
    assert resumed.to_bytes() == straight.to_bytes()
    assert [(row.round, row.step_begin) for row in _ledger(folder).rows] == [(1, 0), (2, 4), (3, 8)]


def test_an_exception_does_not_spoil_the_next_round_of_the_same_process(tmp_path, monkeypatch):
    straight = _rounds(_trainer(tmp_path / "straight"), 2)
    trainer = _trainer(tmp_path / "again")
    with monkeypatch.context() as patch:
        patch.setattr("shoal_client.training.rounds.np.savez", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.round(_model(), _config(1))
    assert _rounds(trainer, 2).to_bytes() == straight.to_bytes()


def test_a_spent_budget_ends_shipping_and_a_paid_round_can_still_be_finished(tmp_path, monkeypatch):
    privacy = dataclasses.replace(PRIVATE, critic_steps=8)
    trainer = _trainer(tmp_path, True, privacy=privacy)
    model = dict(_rounds(trainer, 1).arrays)
    with monkeypatch.context() as patch:
        patch.setattr("shoal_client.training.rounds.np.savez", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.round(model, _config(2))
    update = trainer.round(model, _config(2))  # charged before the crash: the budget's last range
    for number in (3, 4):
        with pytest.raises(BudgetExhausted):
            trainer.round(model, _config(number))
    rows = _ledger(tmp_path).rows
    assert [row.round for row in rows] == [1, 2]
    assert update.epsilon == rows[-1].epsilon_after <= privacy.budget * (1 + 1e-9)


def test_a_spent_cluster_receives_the_model_and_reads_its_state_once(tmp_path, monkeypatch):
    trainer = _trainer(tmp_path, True, privacy=dataclasses.replace(PRIVATE, critic_steps=4))
    model = dict(_rounds(trainer, 1).arrays)
    monkeypatch.setattr(trainer._store, "experience", lambda: 1 / 0)
    for number in (2, 3):
        model = {name: array + 1 for name, array in model.items()}
        with pytest.raises(BudgetExhausted):
            trainer.round(model, _config(number))
        assert all(np.array_equal(a, model[n]) for n, a in trainer._learner.shared_state().items())


def test_without_experience_the_model_comes_back_unchanged(tmp_path):
    update = _trainer(tmp_path, source=Source(0)).round(_model(), _config(1))
    assert all(np.array_equal(update.arrays[name], array) for name, array in _model().items())


def test_without_experience_a_private_cluster_still_adds_its_noise(tmp_path):
    update = _trainer(tmp_path, True, Source(0)).round(_model(), _config(1))
    assert any(not np.array_equal(update.arrays[name], array) for name, array in _model().items())


def test_state_of_another_run_is_refused(tmp_path):
    trainer = _trainer(tmp_path)
    trainer.round(_model(), _config(1))
    for number in (1, 2):
        with pytest.raises(InputError, match="another run"):
            trainer.round(_model(), _config(number, "other"))


def test_a_round_that_is_long_past_is_refused(tmp_path):
    trainer = _trainer(tmp_path)
    _rounds(trainer, 5)
    assert trainer.round(_model(), _config(3)).round == 3  # the server may fall back by two checkpoints
    with pytest.raises(InputError, match="round 5"):
        trainer.round(_model(), _config(2))


def test_a_lost_ledger_is_noticed(tmp_path):
    trainer = _trainer(tmp_path, True)
    model = dict(_rounds(trainer, 1).arrays)
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(LedgerCorrupt):
        _trainer(tmp_path, True).round(model, _config(2))


def test_a_ledger_that_is_lost_while_the_process_lives_is_noticed(tmp_path):
    trainer = _trainer(tmp_path, True)
    model = dict(_rounds(trainer, 1).arrays)
    (tmp_path / "ledger.jsonl").unlink()
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match=r"gone|missing"):
            trainer.round(model, _config(2))


def test_a_new_run_on_an_old_ledger_pays_for_its_own_rounds(tmp_path):
    privacy = dataclasses.replace(PRIVATE, actor_every=3)
    ledger = tmp_path / "ledger.jsonl"
    for folder, steps in (
        ("one", [(0, 4), (4, 8)]),
        ("two", [(9, 13), (13, 17)]),
    ):  # the actor's 3rd steps align
        trainer = _trainer(tmp_path / folder, True, privacy=privacy, ledger=ledger)
        _rounds(trainer, 2)
        assert [(r.step_begin, r.step_end) for r in Ledger(ledger).rows[-2:]] == steps
    assert len(Ledger(ledger).rows) == 4
    with pytest.raises(BudgetExhausted):
        _rounds(_trainer(tmp_path / "three", True, privacy=privacy, ledger=ledger), 20)


def test_a_restored_backup_cannot_release_what_is_paid_for_a_second_time(tmp_path):
    trainer = _trainer(tmp_path / "a", True, ledger=tmp_path / "ledger.jsonl")
    _rounds(trainer, 1)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    _rounds(trainer, 3, first=2)
    restored = _trainer(tmp_path / "backup", True, ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(LedgerCorrupt, match="older than the ledger"):
        restored.round(_model(), _config(2))


def test_with_real_privacy_candidates_are_drawn_from_secret_randomness(tmp_path):
    def draws(folder, privacy):
        return _trainer(tmp_path / folder, True, privacy=privacy)._rng(1).random(4).tolist()

    real = dataclasses.replace(PRIVATE, simulation_seed=None)
    assert draws("a", PRIVATE) == draws("b", PRIVATE)
    assert draws("c", real) != draws("d", real)


def test_a_cluster_with_more_records_than_the_public_number_trains_on_all(tmp_path, caplog):
    privacy = dataclasses.replace(PRIVATE, units_public=10)
    update = _trainer(tmp_path, True, privacy=privacy).round(_model(), _config(1))
    assert update.epsilon == _ledger(tmp_path).rows[0].epsilon_after
    assert "23 records, more than units_public = 10" in caplog.text  # in the cluster's own log


def test_the_learners_state_is_kept_of_the_newest_round_only(tmp_path):
    _rounds(_trainer(tmp_path), 5)
    assert [path.parent.name[-1] for path in sorted(tmp_path.glob("*/learner.pt"))] == ["5"]
    assert [path.parent.name[-1] for path in sorted(tmp_path.glob("*/update.safetensors"))] == list("345")
    assert len(list(RoundStore(tmp_path, 200).experience())) == 5


@pytest.mark.parametrize("size", [24, 0])
def test_a_folder_does_not_grow_with_the_rounds(tmp_path, size):
    trainer = _trainer(tmp_path, source=Source(size), capacity=100)
    model, counts = _model(), []
    for number in range(1, 13):
        model = dict(trainer.round(model, _config(number)).arrays)
        counts.append(len(list(tmp_path.rglob("*"))))
    assert counts[-1] == counts[-2] == counts[-6]
    # five rounds of 24 fill 100 places; without experience only the last three updates stay
    assert len(list(tmp_path.glob("round-*"))) == (5 if size else 3)


@pytest.mark.parametrize("private", [False, True])
def test_a_resumed_trainer_equals_an_uninterrupted_one_after_the_replay_has_wrapped(tmp_path, private):
    privacy = dataclasses.replace(PRIVATE, critic_steps=100)
    straight = _rounds(_trainer(tmp_path / "straight", private, privacy=privacy, capacity=50), 9)
    half = _rounds(_trainer(tmp_path / "resumed", private, privacy=privacy, capacity=50), 7)
    resumed = _trainer(tmp_path / "resumed", private, privacy=privacy, capacity=50)
    assert _rounds(resumed, 9, first=8, model=dict(half.arrays)).to_bytes() == straight.to_bytes()


@pytest.mark.parametrize("name", ["round.json", "learner.pt", "experience.npz"])
@pytest.mark.parametrize("content", [b"", b"junk", b"[1]"])
def test_a_damaged_state_is_named_in_one_line(tmp_path, name, content):
    _trainer(tmp_path).round(_model(), _config(1))
    (tmp_path / "round-000001" / name).write_bytes(content)
    with pytest.raises(Fatal, match=rf"round-000001/{name}: cannot be read .*; restore") as refused:
        _trainer(tmp_path).round(_model(), _config(2))
    assert "\n" not in str(refused.value)
