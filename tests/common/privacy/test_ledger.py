# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal_common.errors import BudgetExhausted, InputError, LedgerCorrupt
from shoal_common.hashchain import GENESIS, HashChain
from shoal_common.privacy.accountant import epsilon
from shoal_common.privacy.config import PrivacyConfig
from shoal_common.privacy.ledger import Ledger, LedgerRow
from shoal_common.privacy.plan import PrivacyPlan


def row_of(number: int, **changes: Any) -> LedgerRow:
    row = LedgerRow(
        cluster="edge-1",
        round=number,
        step_begin=10 * number,
        step_end=10 * number + 10,
        mechanism="poisson_subsampled_gaussian",
        sample_rate=0.02,
        noise_multiplier=1.5,
        steps=15,
        delta=1e-6,
        unit="transition",
        neighbouring="add_remove",
    )
    return replace(row, **changes)


def plan_of(**changes: Any) -> PrivacyPlan:
    settings = {"delta": 1e-6, "clip_norm": 1.0, "batch": 20, "units_public": 1000, "critic_steps": 40}
    return PrivacyPlan(PrivacyConfig(**(settings | {"noise_multiplier": 1.5} | changes)))


def test_rows_heads_and_epsilon(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.head == GENESIS
    assert ledger.epsilon(1e-6) == 0.0
    for number in range(3):
        charged = ledger.charge(row_of(number, noise_multiplier=1.5 + number))
        assert charged.epsilon_after == ledger.epsilon(1e-6)
        assert charged.hash == ledger.head
    assert [row.previous_hash for row in ledger.rows] == [GENESIS, ledger.rows[0].hash, ledger.rows[1].hash]
    assert ledger.epsilon(1e-6) == epsilon([row.segment for row in ledger.rows], 1e-6)
    again = Ledger(tmp_path / "ledger")
    assert again.rows == ledger.rows
    assert again.epsilon(1e-6) == again.epsilon(1e-6) == ledger.epsilon(1e-6)
    assert again.remaining(2.0, 1e-6) == 2.0 - ledger.epsilon(1e-6)
    assert again.remaining(0.1, 1e-6) == 0.0


def test_the_same_release_is_charged_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    first = ledger.charge(row_of(0))
    ledger.charge(row_of(1))
    assert ledger.charge(row_of(0)) == first
    assert Ledger(tmp_path / "ledger").charge(row_of(0)) == first
    assert ledger.charge(first) == first
    assert len(Ledger(tmp_path / "ledger").rows) == 2


@pytest.mark.parametrize(
    "change",
    [{"noise_multiplier": 2.0}, {"steps": 16}, {"sample_rate": 0.01}, {"delta": 1e-7}, {"simulation": True}],
)
def test_the_same_release_with_other_parameters_is_corruption(tmp_path: Path, change: dict[str, Any]) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.charge(row_of(0))
    with pytest.raises(LedgerCorrupt, match="edge-1/0/0-10"):
        ledger.charge(row_of(0, **change))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample_rate", 0.0),
        ("sample_rate", 1.5),
        ("sample_rate", float("nan")),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", float("inf")),
        ("delta", 1.0),
        ("round", -1),
        ("step_end", 0),
        ("steps", 0),
        ("steps", 1.5),
        ("round", True),
        ("cluster", 3),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        Ledger(tmp_path / "ledger").charge(row_of(0, **{field: value}))
    assert caught.value.field == field
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("field", ["cluster", "unit", "neighbouring", "mechanism", "simulation"])
def test_a_ledger_is_of_one_cluster_and_one_sense(tmp_path: Path, field: str) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.charge(row_of(0))
    with pytest.raises(InputError) as caught:
        ledger.charge(row_of(1, **{field: True if field == "simulation" else "other"}))
    assert caught.value.field == field


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.charge(row_of(0))
    head = ledger.head
    ledger.charge(row_of(1))
    assert len(Ledger(tmp_path / "ledger", checkpoint_head=head).rows) == 2, "a ledger may be ahead"
    Ledger(tmp_path / "new", checkpoint_head=GENESIS)
    with pytest.raises(LedgerCorrupt, match="missing"):
        Ledger(tmp_path / "new", checkpoint_head=head)
    lines = (tmp_path / "ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / "ledger").write_bytes(lines[0])
    with pytest.raises(LedgerCorrupt, match="older"):
        Ledger(tmp_path / "ledger", checkpoint_head=ledger.head)


def test_another_process_charges_in_between(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    first.charge(row_of(0))
    second.charge(row_of(1))
    assert len(second.rows) == 2
    assert second.rows[-1].epsilon_after == second.epsilon(1e-6) > first.rows[0].epsilon_after
    assert first.check(plan_of(target_epsilon=9.0, noise_multiplier=None), 40, 41) > second.epsilon(1e-6)


@pytest.mark.parametrize("damage", ["removed", "emptied", "shortened", "replaced"])
def test_a_ledger_that_loses_rows_while_it_is_open_takes_no_charge(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    for number in range(2):
        ledger.charge(row_of(number))
    whole = path.read_bytes()
    Ledger(tmp_path / "other").charge(row_of(7))
    lines = whole.splitlines(keepends=True)
    {
        "removed": path.unlink,
        "emptied": lambda: path.write_bytes(b""),
        "shortened": lambda: path.write_bytes(lines[0]),
        "replaced": lambda: path.write_bytes((tmp_path / "other").read_bytes()),
    }[damage]()
    for _ in range(2):  # and not at the second attempt either
        with pytest.raises(LedgerCorrupt, match="gone"):
            ledger.charge(row_of(2))
        with pytest.raises(LedgerCorrupt, match="gone"):
            ledger.check(plan_of(), 20, 30)
    path.write_bytes(whole)
    assert ledger.charge(row_of(2)).previous_hash == json.loads(lines[1])["hash"]


def test_a_valid_chain_of_something_else_is_not_a_ledger(tmp_path: Path) -> None:
    HashChain(tmp_path / "other").append("k", {"event": "login"})
    with pytest.raises(LedgerCorrupt, match="not a ledger row"):
        Ledger(tmp_path / "other")
    body = json.loads(json.dumps(vars(row_of(0)), default=str))
    for field in ("previous_hash", "hash"):
        del body[field]
    HashChain(tmp_path / "renamed").append("edge-1/7/0-10", body)
    with pytest.raises(LedgerCorrupt, match="edge-1/0/0-10"):
        Ledger(tmp_path / "renamed")


def test_the_budget_holds_to_the_last_planned_step_and_not_beyond(tmp_path: Path) -> None:
    plan = plan_of(noise_multiplier=None, target_epsilon=2.0)
    ledger = Ledger(tmp_path / "ledger")
    for number in range(4):
        ahead = ledger.check(plan, 10 * number, 10 * number + 10)
        assert (
            ledger.charge(plan.charge("edge-1", number, 10 * number, 10 * number + 10)).epsilon_after == ahead
        )
    assert 1.98 < ledger.epsilon(1e-6) <= 2.0
    with pytest.raises(BudgetExhausted, match="steps 40-41"):
        ledger.check(plan, 40, 41)
    assert len(ledger.rows) == 4
    with pytest.raises(BudgetExhausted):
        Ledger(tmp_path / "ledger").check(plan, 40, 50)


def test_without_a_target_the_plan_itself_is_the_budget(tmp_path: Path) -> None:
    plan, ledger = plan_of(), Ledger(tmp_path / "ledger")
    ledger.check(plan, 0, 40)
    ledger.charge(plan.charge("edge-1", 0, 0, 40))
    with pytest.raises(BudgetExhausted):
        ledger.check(plan, 40, 60)


def test_a_new_plan_does_not_reset_the_old_epsilon(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.charge(plan_of().charge("edge-1", 0, 0, 40))
    spent = ledger.epsilon(1e-6)
    other = plan_of(noise_multiplier=8.0)
    after = ledger.charge(other.charge("edge-1", 1, 40, 50)).epsilon_after
    assert after > spent
    with pytest.raises(BudgetExhausted):
        ledger.check(other, 50, 60)
