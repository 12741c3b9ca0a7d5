# SPDX-License-Identifier: Apache-2.0
"""The exceptions of Shoal.

ShoalError                 exit code 1: something failed that the message names
├── InputError             exit code 2: a file, flag or trace is wrong; names where, which field, the remedy
├── Transient              worth trying again: a peer was busy, a file was locked
└── Fatal                  trying again cannot help
    ├── SchemaMismatch     two sides speak different feature tables, reward or action codings
    ├── LedgerCorrupt      the privacy ledger does not verify; nothing may be released
    └── BudgetExhausted    the privacy budget is spent; keep serving, stop shipping
"""

from __future__ import annotations


class ShoalError(Exception):
    """Root of every error that Shoal raises on purpose; the command line prints it as one line."""

    exit_code = 1


class InputError(ShoalError):
    """A wrong input, told in one line: where it stands, which field, what is wrong and the remedy."""

    exit_code = 2

    def __init__(self, where: str, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {field}: {problem}; {remedy}")
        self.where, self.field, self.problem, self.remedy = where, field, problem, remedy


class Transient(ShoalError):
    """Worth trying again."""


class Fatal(ShoalError):
    """Trying again cannot help."""


class SchemaMismatch(Fatal):
    """Two sides speak different feature tables, reward or action codings."""


class LedgerCorrupt(Fatal):
    """The privacy ledger does not verify; nothing may be released."""


class BudgetExhausted(Fatal):
    """The privacy budget is spent: keep serving and receiving, stop shipping."""
