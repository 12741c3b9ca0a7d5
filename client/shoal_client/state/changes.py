# SPDX-License-Identifier: Apache-2.0
"""What changed about pods, delivered to subscribers in order and outside every lock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from shoal_client.metrics import SUBSCRIBER_ERRORS
from shoal_common.pods import PodRecord

_log = logging.getLogger("shoal.client.state")


@dataclass(frozen=True, slots=True)
class PodChange:
    """A pod before and after an event; None: it was not there, or it is gone."""

    before: PodRecord | None
    after: PodRecord | None
    at_monotonic: float


@final
class Changes:
    """A line of changes; whoever ends an event delivers what is in line, one thread at a time."""

    def __init__(self) -> None:
        self._subscribers: tuple[Callable[[PodChange], None], ...] = ()
        self._line: deque[PodChange] = deque()
        self._delivering = threading.Lock()

    def subscribe(self, subscriber: Callable[[PodChange], None]) -> None:
        """Call `subscriber` for every change from now on; what it raises is logged and counted."""
        self._subscribers = (*self._subscribers, subscriber)

    def add(self, changes: Iterable[PodChange]) -> None:
        """Put changes in line; call it under the lock that orders them."""
        if self._subscribers:
            self._line.extend(changes)

    def deliver(self) -> None:
        """Deliver what is in line, unless another thread does; call it without that lock."""
        while self._line and self._delivering.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._delivering.release()

    def _drain(self) -> None:
        while self._line:
            change = self._line.popleft()
            for subscriber in self._subscribers:
                try:
                    subscriber(change)
                except Exception:  # one subscriber's error must not cost the others their events
                    SUBSCRIBER_ERRORS.inc()
                    _log.exception("a subscriber of pod changes failed")
