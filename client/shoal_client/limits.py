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

from shoal_common.errors import InputError
from shoal_common.privacy.ledger import Ledger

FILE = "limits.json"


@dataclass(frozen=True, slots=True)
class Limits:
    """The strictest privacy budget of all SchedulingPolicies, and whether a FederationMembership suspends."""

    epsilon: float | None = None
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


def forbidden(limits: Limits, ledger: Path) -> str:
    """Why no further round may be trained, "" where one may.

    A round of the same settings costs at most what the last one did, since epsilon grows ever more slowly; so
    the limit is held before a round, not found exceeded after it. Only the very first is not foreseen.
    """
    if limits.suspended:
        return "a FederationMembership suspends this cluster's part"
    if limits.epsilon is None or not ledger.exists():
        return ""
    spent = [row.epsilon_after for row in Ledger(ledger).rows]
    last = spent[-1] - (spent[-2] if len(spent) > 1 else 0.0) if spent else 0.0
    if spent and spent[-1] + last > limits.epsilon:
        return f"another round could bring epsilon above {limits.epsilon:g}, the strictest SchedulingPolicy's"
    return ""
