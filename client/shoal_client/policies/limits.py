# SPDX-License-Identifier: Apache-2.0
"""What the cluster's custom resources allow the trainer, which has no way to the API of its own.

The serving process writes it into the trainer's directory, whole or not at all; the trainer reads it before
each round.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal_common.errors import BudgetExhausted, InputError
from shoal_common.privacy.config import Budget

FILE = "limits.json"


@dataclass(frozen=True, slots=True)
class Limits:
    """The strictest privacy budget of all SchedulingPolicies, and whether a FederationMembership suspends."""

    epsilon: float | None = None
    delta: float = 1.0
    clip_norm: float | None = None
    suspended: bool = False


def write_limits(directory: Path, limits: Limits) -> None:
    """Replace what the directory says."""
    directory.mkdir(parents=True, exist_ok=True)
    staging = directory / f".{FILE}.{os.getpid()}"
    staging.write_bytes(msgspec.json.encode(limits))
    staging.replace(directory / FILE)


def read_limits(directory: Path) -> Limits:
    """What the directory says; without a file there is no limit.

    Raises:
        InputError: the file is damaged.
    """
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Limits)
    except FileNotFoundError:
        return Limits()
    except msgspec.DecodeError as error:
        raise InputError(
            str(path), "document", f"is damaged ({error})", "remove it; it is made again"
        ) from None


def within(own: Budget | None, limits: Limits) -> Budget | None:
    """The budget that satisfies both the trainer's own and the limits; None trains without privacy.

    A smaller delta makes the same history's epsilon larger, so the smaller of both of each holds both.

    Raises:
        BudgetExhausted: this cluster's part is suspended.
        InputError: a policy sets a budget, and the trainer was told to train without privacy.
    """
    if limits.suspended:
        raise BudgetExhausted("a FederationMembership suspends this cluster's part")
    if limits.epsilon is None:
        return own
    if own is None:
        remedy = "start the trainer with --epsilon"
        raise InputError(
            "shoal client train", "--no-privacy", "a SchedulingPolicy sets a privacy budget", remedy
        )
    clips = [norm for norm in (own.clip_norm, limits.clip_norm) if norm is not None]
    return Budget(
        epsilon=min(own.epsilon, limits.epsilon),
        delta=min(own.delta, limits.delta),
        clip_norm=min(clips, default=None),
    )
