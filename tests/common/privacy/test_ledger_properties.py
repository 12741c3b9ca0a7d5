# SPDX-License-Identifier: Apache-2.0
"""Crashes at any byte, restarts and repeats: epsilon never decreases and nothing is charged twice."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal_common.errors import LedgerCorrupt
from shoal_common.privacy.ledger import Ledger, LedgerRow


def row_of(number: int) -> LedgerRow:
    return LedgerRow(
        cluster="é/1",
        round=number,
        step_begin=10 * number,
        step_end=10 * number + 10,
        mechanism="poisson_subsampled_gaussian",
        sample_rate=[0.01, 0.05][number % 2],
        noise_multiplier=[1.0, 1.7, 3.0][number % 3],
        steps=15,
        delta=1e-6,
        unit="transition",
        neighbouring="add_remove",
    )


def test_a_crash_at_any_byte_of_a_charge_is_before_or_after(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.charge(row_of(0))
    start, before = path.stat().st_size, ledger.rows
    ledger.charge(row_of(1))
    content, after = path.read_bytes(), ledger.rows
    for size in range(start, len(content) + 1):
        path.write_bytes(content[:size])
        reopened = Ledger(path)
        assert reopened.rows in (before, after)
        if size % 9 and size < len(content) - 1:
            continue
        reopened.charge(row_of(1))
        assert reopened.rows == after
        assert path.read_bytes() == content


def test_any_changed_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    for number in range(2):
        ledger.charge(row_of(number))
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(LedgerCorrupt):
            Ledger(path)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 400)), max_size=12))
def test_epsilon_never_decreases_over_crashes_and_repeats(
    tmp_path: Path, events: list[tuple[int, bool, int]]
) -> None:
    path = tmp_path / "ledger"
    path.unlink(missing_ok=True)
    ledger, charged, spent = Ledger(path), set(), 0.0
    for number, crash, size in events:
        if crash:  # a part of a charge that was never acknowledged, then a restart
            torn = Ledger(tmp_path / "scratch")
            torn.charge(row_of(7))
            line = (tmp_path / "scratch").read_bytes()
            with path.open("ab") as file:
                file.write(line[: min(size, len(line) - 2)])
            ledger = Ledger(path)
        ledger.charge(row_of(number))
        charged.add(number)
        assert ledger.epsilon(1e-6) >= spent
        spent = ledger.epsilon(1e-6)
        assert {row.round for row in Ledger(path).rows} == charged
        assert len(ledger.rows) == len(charged)
    assert [row.epsilon_after for row in ledger.rows] == sorted(row.epsilon_after for row in ledger.rows)
