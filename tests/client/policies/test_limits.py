# SPDX-License-Identifier: Apache-2.0
"""The trainer's limits: written whole, read before a round, the stricter of them and its own budget holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_client.policies.limits import FILE, Limits, read_limits, within, write_limits
from shoal_common.errors import BudgetExhausted, InputError
from shoal_common.privacy.config import Budget


def test_limits_are_read_as_written_and_absent_ones_limit_nothing(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == Limits()
    for limits in (Limits(2.5, 1e-6, 1.0, True), Limits()):
        write_limits(tmp_path, limits)
        assert read_limits(tmp_path) == limits
    assert [f.name for f in tmp_path.iterdir()] == [FILE]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"epsilon": ')
    with pytest.raises(InputError, match=r"limits\.json"):
        read_limits(tmp_path)


def test_the_stricter_of_each_number_holds() -> None:
    own = Budget(epsilon=3.0, delta=1e-6, clip_norm=None)
    assert within(own, Limits()) == own
    assert within(None, Limits()) is None
    assert within(own, Limits(5.0, 1e-7, 0.5)) == Budget(3.0, 1e-7, 0.5)
    assert within(Budget(3.0, 1e-8, 0.1), Limits(2.0, 1e-7, 0.5)) == Budget(2.0, 1e-8, 0.1)


def test_a_suspended_cluster_gives_nothing_away() -> None:
    with pytest.raises(BudgetExhausted, match="suspends"):
        within(Budget(3.0), Limits(suspended=True))


def test_a_budget_and_no_privacy_contradict_each_other() -> None:
    with pytest.raises(InputError, match="--no-privacy"):
        within(None, Limits(5.0))
