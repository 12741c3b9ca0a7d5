# SPDX-License-Identifier: Apache-2.0
"""The federation's standing from a ledger, and what a FederationMembership says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal_client.policies.membership import LedgerStanding, Memberships, Standing, membership_status
from shoal_client.policies.spec import PrivacyBudget
from shoal_client.policies.status import Serving
from shoal_common.privacy.ledger import Ledger, LedgerRow

NOW = "2026-01-01T00:00:00Z"


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


def member(name: str = "m", version: str = "1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": version, "generation": 1},
        "spec": spec,
    }


def ready(obj: dict[str, Any], standing: Standing, epsilon: float | None) -> str:
    budget = None if epsilon is None else PrivacyBudget(epsilon=epsilon)
    return str(membership_status(obj, standing, budget, Serving(), NOW)["conditions"][0]["reason"])


def test_the_ledger_tells_round_and_epsilon_and_is_read_again_when_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    standing = LedgerStanding(path)
    assert standing(None) == LedgerStanding(None)(None) == Standing()
    for number in (3, 4):
        spent = charge(path, number)
        assert standing(None) == standing(1e-6) == Standing(number, spent, 1e-6)
    wider = standing(1e-4)
    assert wider.epsilon_spent is not None
    assert wider.epsilon_spent < spent
    path.write_text(path.read_text()[:-20] + "\n")
    assert standing(None).error


@pytest.mark.parametrize(
    ("spec", "standing", "epsilon", "reason"),
    [
        ({"clusterName": "c"}, Standing(), None, "TakingPart"),
        ({"clusterName": "c"}, Standing(1, 2.0, 1e-6), 3.0, "TakingPart"),
        ({"clusterName": "c"}, Standing(1, 3.0, 1e-6), 3.0, "BudgetSpent"),
        ({"clusterName": "c"}, Standing(error="broken"), 3.0, "LedgerCorrupt"),
        ({"clusterName": "c", "suspended": True}, Standing(), None, "Suspended"),
        ({}, Standing(), None, "Invalid"),
    ],
)
def test_the_reason_of_ready(
    spec: dict[str, Any], standing: Standing, epsilon: float | None, reason: str
) -> None:
    assert ready(member(**spec), standing, epsilon) == reason


def test_one_that_suspends_or_is_wrong_suspends() -> None:
    members = Memberships()
    members.set(member("a", clusterName="c"))
    assert not members.suspended()
    members.set(member("b", clusterName="c", suspended=True))
    assert members.suspended()
    members.delete("b")
    members.set(member("c"))
    assert members.suspended()


def test_an_older_version_that_arrives_late_is_left_aside() -> None:
    members = Memberships()
    members.set(member("a", "10", clusterName="c", suspended=True))
    members.set(member("a", "9", clusterName="c"))
    assert members.suspended()
