# SPDX-License-Identifier: Apache-2.0
"""Room that is promised: a decided pod's requests stay deducted until its fate is *observed*.

Between a decision and its bind in the watch lie milliseconds to minutes (a slow scheduler, a broken watch),
and a decision made meanwhile must not see the room as free (kubernetes#106361, volcano#1383). A reservation
ends when the pod is seen bound, deleted or finished, when the scheduler says that this attempt failed, or
when the same pod is decided again. Time alone does not end it, but for a ceiling far beyond any of that. A
pod that no watch has shown after a minute is none: its end was seen before it was decided.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final, final

from shoal_common.pods import PodRecord

CEILING_SECONDS: Final = 600.0
"""Twice kube-scheduler's longest wait of an unschedulable pod; expiries are counted, and mean lost events."""
UNSEEN_SECONDS: Final = 60.0
"""Longer than a watch may be silent until it is given up."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A pod, as it was when it was decided, and the node that holds room for it."""

    pod: PodRecord
    node: str
    since: float  # monotonic


@final
class Reservations:
    """Reservations by the pods' uid; not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._held.values())

    def get(self, uid: str) -> Reservation | None:
        """The pod's reservation."""
        return self._held.get(uid)

    def add(self, pod: PodRecord, node: str, now: float) -> None:
        """Note a decision; the latest is last in line to expire."""
        self._held.pop(pod.uid, None)
        self._held[pod.uid] = Reservation(pod, node, now)

    def pop(self, uid: str) -> Reservation | None:
        """Take a reservation out."""
        return self._held.pop(uid, None)

    def settled_by(self, pod: PodRecord | None, uid: str) -> bool:
        """Whether what is seen of a pod (None: it is gone) ends its reservation."""
        held = self._held.get(uid)
        if held is None:
            return False
        if pod is None or pod.node_name or pod.finished or pod.terminating:
            return True
        seen, then = pod.status, held.pod.status
        refused = (seen.unschedulable, seen.unschedulable_at) != (then.unschedulable, then.unschedulable_at)
        return bool(seen.unschedulable) and refused

    def expired(self, now: float, seen: Container[str]) -> Iterator[str]:
        """Pods whose reservation is beyond the ceiling, or who were never `seen`; oldest first."""
        oldest = next(iter(self._held.values()), None)
        if oldest is None or now - oldest.since < UNSEEN_SECONDS:
            return  # at nearly every decision: no copy of them all then
        for uid, held in list(self._held.items()):
            age = now - held.since
            if age < UNSEEN_SECONDS:
                return
            if age >= CEILING_SECONDS or uid not in seen:
                yield uid
