# SPDX-License-Identifier: Apache-2.0
"""What a run tells while it runs, and what is left of it at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shoal_common.wire import Arrays


class Ending(StrEnum):
    """How a run ended; all three leave a checkpoint to resume from."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # on request or Ctrl-C
    SPENT = "spent"  # every cluster's privacy budget is spent


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What became of one round. A void round keeps the model; `void` says why."""

    round: int
    cohort: tuple[str, ...]
    admitted: tuple[str, ...]
    refused: Mapping[str, str]  # cluster -> reason
    spent: tuple[str, ...]
    epsilon: Mapping[str, float]  # cluster -> epsilon after this round, never summed over clusters
    seconds: float
    void: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run: how it ended, the last full round, the model and the history."""

    ending: Ending
    round: int
    arrays: Arrays = field(repr=False)
    history: tuple[RoundRecord, ...]

    @property
    def sha256(self) -> str:
        """Digest of the parameters, in the order of their names."""
        return digest(self.arrays)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Rounds `first` to `last` are to come; `first` is above 1 where a run is resumed."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """The cohort of a round, sorted by name."""

    round: int
    cohort: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Admitted:
    """An update entered the aggregate."""

    round: int
    cluster: str
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reply, or a node that said hello (round 0), was refused."""

    round: int
    cluster: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A round is over and its checkpoint is on disk; `arrays` is the new global model, read-only."""

    record: RoundRecord
    arrays: Arrays = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event of a run."""

    outcome: Outcome


Event = RunStarted | RoundStarted | Admitted | Refusal | RoundEnded | RunEnded
Sink = Callable[[Event], None]


def digest(arrays: Arrays) -> str:
    """sha256 over names, shapes and bytes, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name}:{array.shape}:{array.dtype.str}|".encode())
        total.update(array.tobytes())
    return total.hexdigest()
