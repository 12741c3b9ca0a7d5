# SPDX-License-Identifier: Apache-2.0
"""The scheduling queue: active pods by priority and age, backing off ones, and those that wait for an event.

Source: pkg/scheduler/backend/queue. Instead of queueing hints by plugin there are two classes of events:
those that may make room, and any; the latter wake pods that an extender refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 10.0
MAX_UNSCHEDULABLE_SECONDS = 300.0


@dataclass(slots=True)
class Waiting:
    """A pod in the queue."""

    uid: str
    priority: int
    since: float
    attempts: int = 0
    ready_at: float = 0.0
    parked: bool = False  # waits for an event
    any_event: bool = False  # an extender refused it: every event wakes it
    seen: int = 0  # wakings before this attempt began


@final
class Queue:
    """Pods to schedule. Times are those of one monotonic clock."""

    def __init__(
        self, initial_backoff: float = INITIAL_BACKOFF_SECONDS, max_backoff: float = MAX_BACKOFF_SECONDS
    ) -> None:
        self._initial, self._max = initial_backoff, max_backoff
        self._waiting: dict[str, Waiting] = {}
        self._wakings = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, uid: str, priority: int, now: float) -> None:
        """Take up a pod; one that is known and changed is tried again."""
        known = self._waiting.setdefault(uid, Waiting(uid, priority, now))
        known.priority, known.parked = priority, False

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self._waiting.pop(uid, None)

    def pop(self, now: float) -> Waiting | None:
        """The next pod to try, out of the queue: the highest priority, then the oldest; None if none is."""
        for pod in self._waiting.values():
            if pod.parked and now >= pod.ready_at + MAX_UNSCHEDULABLE_SECONDS:
                pod.parked = False
        ready = [p for p in self._waiting.values() if not p.parked and p.ready_at <= now]
        if not ready:
            return None
        first = min(ready, key=lambda pod: (-pod.priority, pod.since))
        first.seen = self._wakings
        return self._waiting.pop(first.uid)

    def refused(self, pod: Waiting, now: float, *, error: bool, any_event: bool) -> None:
        """Put a pod back after a failed attempt.

        After an error, or when something happened during the attempt, it is tried again by itself.
        """
        pod.attempts += 1
        pod.ready_at = now + min(self._initial * 2 ** (pod.attempts - 1), self._max)
        pod.parked, pod.any_event = not error and pod.seen == self._wakings, any_event
        self._waiting.setdefault(pod.uid, pod)

    def wake(self, *, makes_room: bool) -> None:
        """Something happened in the cluster."""
        self._wakings += makes_room
        for pod in self._waiting.values():
            if makes_room or pod.any_event:
                pod.parked = False

    def next_at(self) -> float | None:
        """When the next pod is ready, None if none will be without an event."""
        return min((p.ready_at for p in self._waiting.values() if not p.parked), default=None)
