# SPDX-License-Identifier: Apache-2.0
"""A finding of `shoal client doctor`: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    SKIPPED = "skipped"  # could not be looked at, or was not asked for
    WARNING = "warning"  # it works, but not as well as it could
    ERROR = "error"  # it does not work, or may harm scheduling


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `check` is the group (api, rbac, scheduler, ...), `remedy` is empty where all is well."""

    check: str
    level: Level
    message: str
    remedy: str = ""

    def line(self) -> str:
        """The finding for a terminal."""
        text = f"{self.level.value:<8}{self.check:<11}{' '.join(self.message.split())}"
        return f"{text}; {self.remedy}" if self.remedy else text
