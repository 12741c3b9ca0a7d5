# SPDX-License-Identifier: Apache-2.0
"""The trainer's limits: written whole, read before a round, held before they are exceeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_client.limits import FILE, Limits, forbidden, read_limits, write_limits
from shoal_common.errors import InputError
from shoal_common.privacy.ledger import Ledger, LedgerRow


def charge(path: Path, number: int) -> float:
    row = LedgerRow(
        cluster="c",
        round=number,
        step_begin=10 * number,
        step_end=10 * (number + 1),
        mechanism="gaussian",
        sample_rate=0.01,
        noise_multiplier=1.0,
        steps=10,
        delta=1e-6,
        unit="transition",
        neighbouring="add_remove",
    )
    return Ledger(path).charge(row).epsilon_after


def test_limits_are_read_as_written_and_absent_ones_limit_nothing(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == Limits()
    for limits in (Limits(2.5, True), Limits(None, False)):
        write_limits(tmp_path, limits)
        assert read_limits(tmp_path) == limits
    assert [f.name for f in tmp_path.iterdir()] == [FILE]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"epsilon": ')
    with pytest.raises(InputError, match=r"limits\.json"):
        read_limits(tmp_path)


def test_a_round_that_could_exceed_the_budget_is_not_begun(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    assert forbidden(Limits(1.0), ledger) == ""
    first, second = charge(ledger, 0), charge(ledger, 1)
    worst = second + (second - first)
    assert forbidden(Limits(worst * 1.001), ledger) == ""
    assert "above" in forbidden(Limits(worst * 0.999), ledger)
    assert charge(ledger, 2) <= worst


def test_a_suspended_cluster_trains_nothing(tmp_path: Path) -> None:
    assert "suspends" in forbidden(Limits(suspended=True), tmp_path / "ledger.jsonl")
    assert forbidden(Limits(), tmp_path / "ledger.jsonl") == ""
