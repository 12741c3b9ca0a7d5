# SPDX-License-Identifier: Apache-2.0
"""`LiveSource`: what a trainer of a live cluster learns from, read from a snapshot of the store.

A round gets the decisions that were closed since the last one, each with `KEPT` candidates (padded), in the
order they were made. Where a decision's successor was closed in another round, its observation comes along as
a row that is not closed: it is obs_t1 and is never sampled itself. A decision that nothing follows yet waits
for the next round.

What a round got is written beside the trainer's state before it is returned, so a round that a crash broke
off is given the same decisions again. A trainer that begins anew begins with the whole store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import numpy as np

from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.records import KEPT, Seen, Stored
from shoal_common.errors import InputError
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.transition import Transitions

MARKS_KEPT: Final = 64  # rounds whose mark is remembered; a server falls back by three at the most
NAN: Final = float("nan")


@final
class LiveSource:
    """An `ExperienceSource` (see `shoal_client.train`) over the store in `directory`."""

    def __init__(self, directory: Path, marks: Path, most: int = 50_000, profiles: int = 1) -> None:
        """Read from `directory`; `marks` is a file beside the trainer's state.

        `most` decisions a round at most, the newest: the replay's capacity.
        """
        self._directory, self._marks, self._most, self._profiles = directory, marks, most, profiles

    def snapshot(self, round_number: int) -> Transitions:
        """What was closed since the last round, or what this round got before.

        Raises:
            InputError: the store or the file of marks cannot be read.
        """
        with ExperienceReader(self._directory) as reader:
            after, up_to = self._range(round_number, reader.last_followed())
            closed = reader.closed_between(after, up_to, self._most)
            return transitions(
                _with_successors(closed, reader), self._profiles, {s.decision.id for s in closed}
            )

    def _range(self, round_number: int, last: int) -> tuple[int, int]:
        marks = self._read()
        earlier = [number for number in marks if number < round_number]
        after = marks[max(earlier)] if earlier else 0
        up_to = marks.get(round_number, max(last, after))
        kept = {number: mark for number, mark in marks.items() if number < round_number}
        kept[round_number] = up_to
        self._write(dict(sorted(kept.items())[-MARKS_KEPT:]))
        return after, up_to

    def _read(self) -> dict[int, int]:
        if not self._marks.exists():
            return {}
        try:
            return {int(number): int(mark) for number, mark in json.loads(self._marks.read_bytes()).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise InputError(
                str(self._marks), "marks", f"cannot be read ({type(error).__name__})",
                "remove it: the next round then gets the whole store again",
            ) from error  # fmt: skip

    def _write(self, marks: dict[int, int]) -> None:
        self._marks.parent.mkdir(parents=True, exist_ok=True)
        staging = self._marks.with_name(self._marks.name + ".new")
        with staging.open("w") as file:
            json.dump(marks, file)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(self._marks)


def _with_successors(closed: Sequence[Stored], reader: ExperienceReader) -> list[Stored]:
    """The decisions, with the successor of each that is none of them, in the order they were made."""
    rows: list[Stored] = []
    for i, stored in enumerate(closed):
        rows.append(stored)
        following = reader.following(stored.decision.id)
        if following is None:
            continue
        if i + 1 == len(closed) or closed[i + 1].decision.id != following.decision.id:
            rows.append(following)
    return rows


def transitions(rows: Sequence[Stored], profiles: int = 1, closed: set[int] | None = None) -> Transitions:
    """Decisions with known candidates as transitions of `KEPT` nodes, padded; the next row is the successor.

    `closed` are the ids of those that may be sampled, by default all that have a learnable result. The
    propensity is NaN where it is not known; it is used by off-policy estimates alone.
    """
    size = len(rows)
    log = _empty(size, profiles)
    for i, row in enumerate(rows):
        seen, result = row.decision.seen, row.result
        if seen is None or seen.mask.shape[1] != profiles:
            continue
        _fill(log, i, seen)
        log.quota[i] = row.decision.quota
        if result is not None and result.learnable and result.reward is not None and result.action >= 0:
            log.action[i], log.propensity[i], log.reward[i] = result.action, result.propensity, result.reward
            log.closed[i] = closed is None or row.decision.id in closed
    log.next_index[:-1] = np.arange(1, size)
    return log


def _fill(log: Transitions, i: int, seen: Seen) -> None:
    count = len(seen)
    log.node[i, :count], log.pair[i, :count], log.mask[i, :count] = seen.node, seen.pair, seen.mask
    log.task[i], log.ctx[i] = seen.task, seen.ctx


def _empty(size: int, profiles: int) -> Transitions:
    return Transitions(
        node=np.zeros((size, KEPT, FN), np.float16),
        pair=np.zeros((size, KEPT, FP), np.float16),
        task=np.zeros((size, FT), np.float16),
        ctx=np.zeros((size, FC), np.float16),
        mask=np.zeros((size, KEPT, profiles), np.bool_),
        action=np.zeros(size, np.int32),
        quota=np.ones((size, 2), np.float32),
        propensity=np.full(size, NAN, np.float32),
        reward=np.zeros((size, 4), np.float32),
        closed=np.zeros(size, np.bool_),
        next_index=np.full(size, -1, np.int64),
        unit=np.arange(size, dtype=np.int64),
    )
