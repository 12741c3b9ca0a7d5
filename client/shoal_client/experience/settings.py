# SPDX-License-Identifier: Apache-2.0
"""How decisions are followed."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal_common.twin.batch import RewardHorizon


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations are monotonic."""

    horizon: RewardHorizon = field(default_factory=RewardHorizon)
    """How long a decision is credited; that of the twin."""
    patience_seconds: float = 3_600.0
    """An open attempt of which nothing is heard for so long is lost."""
    candidate_bytes: int = 64 * 2**20
    """Candidates of open attempts that are kept in full, since the bound node may be any of them."""
    settle_seconds: float = 60.0
    """A pod younger than this is not in what was measured."""
    save_seconds: float = 600.0
    """How often what is known of apps is stored."""
