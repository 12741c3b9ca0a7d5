# SPDX-License-Identifier: Apache-2.0
"""What one cluster has released, on disk, and the epsilon that it adds up to.

A row is charged before the value leaves (write-ahead) and once (idempotent by cluster, round and step range).
The ledger outlives rounds, restarts and plans; epsilon is always recomputed from all of its rows. Ledgers of
different clusters hold different records' losses and are never added up.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, final

from shoal_common.errors import BudgetExhausted, InputError, LedgerCorrupt
from shoal_common.hashchain import GENESIS, HashChain, Record
from shoal_common.privacy import accountant
from shoal_common.privacy.accountant import Segment

_ROUNDING = 1e-9


@dataclass(frozen=True)
class LedgerRow:
    """Releases of one round: critic steps [step_begin, step_end), `steps` noisy gradients in all.

    `epsilon_after` is the whole ledger's epsilon at this row's delta with this row; it and the two hashes are
    filled in by `Ledger.charge`.
    """

    cluster: str
    round: int
    step_begin: int
    step_end: int
    mechanism: str
    sample_rate: float
    noise_multiplier: float
    steps: int
    delta: float
    unit: str
    neighbouring: str
    simulation: bool = False
    epsilon_after: float = 0.0
    previous_hash: str = ""
    hash: str = ""

    @property
    def key(self) -> str:
        """What identifies the release."""
        return f"{self.cluster}/{self.round}/{self.step_begin}-{self.step_end}"

    @property
    def segment(self) -> Segment:
        """The releases for the accountant."""
        return Segment(self.sample_rate, self.noise_multiplier, self.steps)


class _Plan(Protocol):
    """What a budget check needs of a `PrivacyPlan` (which needs torch; this module does not)."""

    @property
    def config(self) -> Any: ...

    def charge(self, cluster: str, round_number: int, step_begin: int, step_end: int) -> LedgerRow: ...


@final
class Ledger:
    """The ledger of one cluster.

    Args:
        path: the file; created by the first charge.
        checkpoint_head: the head that a training checkpoint remembers. The ledger must contain it.

    Raises:
        LedgerCorrupt: the file does not verify, is missing beside a checkpoint, or is older than it.
    """

    def __init__(self, path: Path, checkpoint_head: str | None = None) -> None:
        self._chain = HashChain(path)
        self._rows = [_row(record, path) for record in self._chain.records]
        if checkpoint_head is not None and not self._chain.contains(checkpoint_head):
            problem = (
                "is older than the training checkpoint" if self._rows else "is missing beside a checkpoint"
            )
            raise LedgerCorrupt(f"{path}: the ledger {problem}; restore it, or start again from nothing")
        for row in self._rows:
            self._same_kind(row)

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """All rows, in order."""
        return tuple(self._rows)

    @property
    def head(self) -> str:
        """The hash of the last row: names the whole history."""
        return self._chain.head

    def epsilon(self, delta: float) -> float:
        """Epsilon of the whole history at this delta."""
        return accountant.epsilon((row.segment for row in self._rows), delta)

    def remaining(self, target_epsilon: float, delta: float) -> float:
        """Epsilon left below a target; 0 when it is spent."""
        return max(0.0, target_epsilon - self.epsilon(delta))

    def charge(self, row: LedgerRow) -> LedgerRow:
        """Record releases before they leave; returns the row as recorded, also when it was there already.

        Raises:
            LedgerCorrupt: the same round and steps are recorded with other parameters.
            InputError: the row makes no sense, or belongs to another cluster, unit or neighbouring relation.
        """
        _validate(row)
        self._refresh()
        known = self._chain.get(row.key)
        if known is not None:
            recorded = _row(known, self._chain.path)
            if _statement(recorded) != _statement(row):
                raise LedgerCorrupt(f"{self._chain.path}: {row.key} is already charged with other parameters")
            self._chain.append(row.key, known.body)  # waits until it is on disk
            return recorded
        self._same_kind(row)
        after = accountant.epsilon([*(past.segment for past in self._rows), row.segment], row.delta)
        body = _statement(row) | {"epsilon_after": after}
        record = self._chain.append(row.key, body)
        self._refresh()
        return _row(record, self._chain.path)

    def check(self, plan: _Plan, step_begin: int, step_end: int) -> float:
        """Epsilon after these critic steps, asked before they are taken.

        Raises:
            BudgetExhausted: it would exceed the plan's budget.
        """
        self._refresh()
        ahead = plan.config.segment(step_begin, step_end)
        after = accountant.epsilon([*(row.segment for row in self._rows), ahead], plan.config.delta)
        if after > plan.config.budget * (1 + _ROUNDING):
            raise BudgetExhausted(
                f"{self._chain.path}: steps {step_begin}-{step_end} would bring epsilon to {after:.4g}, "
                f"above {plan.config.budget:.4g} (delta {plan.config.delta:g}); keep serving, stop shipping"
            )
        return after

    def _refresh(self) -> None:
        """Take in what another process charged: epsilon is of all rows."""
        self._chain.refresh()
        self._rows += [_row(each, self._chain.path) for each in self._chain.records[len(self._rows) :]]

    def _same_kind(self, row: LedgerRow) -> None:
        """A ledger composes only what is about the same records in the same sense.

        Simulated noise guarantees nothing, so its rows never stand in one sum with those of real noise.
        """
        first = self._rows[0] if self._rows else row
        for field in ("cluster", "unit", "neighbouring", "mechanism", "simulation"):
            if getattr(row, field) != getattr(first, field):
                problem = f"{getattr(row, field)!r} in a ledger of {getattr(first, field)!r}"
                raise InputError(str(self._chain.path), field, problem, "keep one ledger for each")


def _statement(row: LedgerRow) -> dict[str, Any]:
    """The row without what the ledger fills in."""
    body = asdict(row)
    for field in ("epsilon_after", "previous_hash", "hash"):
        del body[field]
    return body


def _row(record: Record, path: Path) -> LedgerRow:
    try:
        row = LedgerRow(**record.body)
        _validate(row)
    except (TypeError, InputError) as error:
        raise LedgerCorrupt(f"{path}: {record.key}: not a ledger row: {error}") from error
    if record.key != row.key:
        raise LedgerCorrupt(f"{path}: {record.key}: holds the row of {row.key}")
    return replace(row, previous_hash=record.previous_hash, hash=record.hash)


def _validate(row: LedgerRow) -> None:
    kinds = {"str": str, "int": int, "float": int | float, "bool": bool}
    for field in fields(row):
        value = getattr(row, field.name)
        kind = kinds[str(field.type)]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError("ledger row", field.name, f"{value!r} is not {field.type}", "give one")
    sane = {
        "sample_rate": 0 < row.sample_rate <= 1,
        "noise_multiplier": 0 < row.noise_multiplier < math.inf,
        "delta": 0 < row.delta < 1,
        "round": row.round >= 0,
        "step_end": 0 <= row.step_begin < row.step_end,
        "steps": row.steps > 0,
    }
    for name, good in sane.items():
        if not good:
            raise InputError("ledger row", name, f"{getattr(row, name)!r} is out of range", "check the plan")


__all__ = ["GENESIS", "Ledger", "LedgerRow"]
