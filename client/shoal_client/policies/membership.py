# SPDX-License-Identifier: Apache-2.0
"""This cluster's part in its federation: what the FederationMembership says and what its status reports."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from shoal_client.policies.registry import is_older
from shoal_client.policies.spec import MEMBERSHIP_KIND, FederationMembershipSpec, PrivacyBudget, read_spec
from shoal_client.policies.status import (
    DEGRADED,
    READY,
    Claim,
    FederationMembershipStatus,
    Serving,
    conditions,
)
from shoal_common.errors import InputError, LedgerCorrupt
from shoal_common.privacy.ledger import Ledger

DIGITS = 4


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a cluster stands: its last charged round and what it has spent; None where nothing is known."""

    round: int | None = None
    epsilon_spent: float | None = None
    delta: float | None = None
    error: str = ""


@final
class Memberships:
    """The FederationMembership objects by name; thread-safe. A cluster should have one."""

    def __init__(self) -> None:
        self._objects: dict[str, Mapping[str, Any]] = {}
        self._mutex = threading.Lock()

    def set(self, obj: Mapping[str, Any]) -> None:
        """Take up an object, unless a newer version of it is known."""
        name = obj["metadata"]["name"]
        with self._mutex:
            if not is_older(obj, self._objects.get(name)):
                self._objects[name] = obj

    def delete(self, name: str) -> None:
        """Forget an object."""
        with self._mutex:
            self._objects.pop(name, None)

    def objects(self) -> dict[str, Mapping[str, Any]]:
        """Every object by name."""
        with self._mutex:
            return dict(self._objects)

    def suspended(self) -> bool:
        """Whether one of them, or an error in one of them, says to train and ship nothing."""
        return any(_suspends(obj) for obj in self.objects().values())


def read_standing(ledger: Path, delta: float | None = None) -> Standing:
    """The standing that a ledger proves; `delta` None takes the one that it was kept at."""
    if not ledger.exists():
        return Standing()
    try:
        kept = Ledger(ledger)
    except (LedgerCorrupt, InputError, OSError) as error:
        return Standing(error=str(error))
    if not kept.rows:
        return Standing()
    last = kept.rows[-1]
    same = delta is None or delta == last.delta
    spent = last.epsilon_after if same else kept.epsilon(delta or last.delta)
    return Standing(max(row.round for row in kept.rows), spent, delta or last.delta)


@final
class LedgerStanding:
    """The standing of a ledger, read again when the file changes; None stands for no trainer."""

    def __init__(self, ledger: Path | None) -> None:
        self._ledger, self._known = ledger, Standing()
        self._read: tuple[float | None, int, int] | None = None

    def __call__(self, delta: float | None) -> Standing:
        """The standing now, at the budget's delta; None takes the one that the ledger was kept at."""
        if self._ledger is None or not self._ledger.exists():
            return Standing()
        found = self._ledger.stat()
        wanted = (delta, found.st_mtime_ns, found.st_size)
        if wanted != self._read:
            self._known, self._read = read_standing(self._ledger, delta), wanted
        return self._known


def membership_status(
    obj: Mapping[str, Any],
    standing: Standing,
    budget: PrivacyBudget | None,
    serving: Serving,
    now: str,
) -> dict[str, Any]:
    """The status of a FederationMembership, ready to be applied."""
    spent = standing.epsilon_spent
    left = None if budget is None else max(0.0, budget.epsilon - (spent or 0.0))
    generation, before = int(obj["metadata"].get("generation") or 0), obj.get("status") or {}
    status = FederationMembershipStatus(
        observed_generation=generation,
        round=standing.round,
        epsilon_spent=None if spent is None else round(spent, DIGITS),
        epsilon_left=None if left is None else round(left, DIGITS),
        delta=standing.delta,
        policy_version=serving.version or serving.digest[:12] or None,
        policy_digest=serving.digest or None,
        conditions=conditions(_claims(obj, standing, left), before, generation, now),
    )
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")


def _claims(obj: Mapping[str, Any], standing: Standing, left: float | None) -> tuple[Claim, ...]:
    try:
        suspended = _spec(obj).suspended
    except InputError as error:
        return (Claim(READY, False, "Invalid", str(error)), Claim(DEGRADED, True, "Invalid", str(error)))
    if standing.error:
        broken = standing.error
        return (Claim(READY, False, "LedgerCorrupt", broken), Claim(DEGRADED, True, "LedgerCorrupt", broken))
    if suspended:
        return (Claim(READY, False, "Suspended", "nothing is trained or shipped"), _well())
    if left == 0:
        message = "the privacy budget is spent: policies are received and served, nothing is shipped"
        return (Claim(READY, False, "BudgetSpent", message), Claim(DEGRADED, True, "BudgetSpent", message))
    return (Claim(READY, True, "TakingPart"), _well())


def _well() -> Claim:
    return Claim(DEGRADED, False, "AsConfigured")


def _spec(obj: Mapping[str, Any]) -> FederationMembershipSpec:
    return read_spec(FederationMembershipSpec, MEMBERSHIP_KIND, obj)


def _suspends(obj: Mapping[str, Any]) -> bool:
    try:
        return _spec(obj).suspended
    except InputError:
        return True
