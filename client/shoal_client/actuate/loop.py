# SPDX-License-Identifier: Apache-2.0
"""A thread that takes the steps of several parts in turn, each at its own pace, and only while we lead.

A part that fails waits, twice as long each time up to half a minute, and never stops the others or the
thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal_client.metrics import ACTUATIONS, ACTUATOR_LAST_STEP
from shoal_common.errors import ShoalError, Transient

LONGEST_BACKOFF = 30.0
_log = logging.getLogger("shoal.client.actuate")


@dataclass(slots=True)
class Part:
    """One kind of action: its name for the metrics, a step, the seconds to the next, whether it is wanted."""

    name: str
    step: Callable[[], None]
    period: float
    wanted: Callable[[], bool] = lambda: True
    due: float = 0.0
    failures: int = 0


class Loop:
    """Runs parts in a daemon thread between `start` and `stop`."""

    def __init__(self, name: str, parts: Sequence[Part], leads: Callable[[], bool]) -> None:
        self._parts, self._leads = parts, leads
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last = float("-inf")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, seconds: float = 3.0) -> None:
        """End after the step under way."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def wake(self) -> None:
        """Something happened: take the next steps at once."""
        self._wake.set()

    def alive_within(self, seconds: float) -> bool:
        """Whether the thread went round within so many seconds."""
        return time.monotonic() - self._last <= seconds

    def _run(self) -> None:
        while not self._stopped.is_set():
            woken = self._wake.is_set()
            self._wake.clear()
            self._last = now = time.monotonic()
            for part in self._parts:
                if now >= part.due or (woken and not part.failures):
                    part.due = now + part.period
                    if not self._stopped.is_set() and self._leads() and part.wanted():
                        self._take(part)
            pause = min(part.due for part in self._parts) - time.monotonic()
            self._wake.wait(min(max(pause, 0.02), 1.0))

    def _take(self, part: Part) -> None:
        try:
            part.step()
        except ShoalError as error:
            self._failed(part, "unavailable" if isinstance(error, Transient) else "failed", error)
        except Exception as error:  # one part may fail in any way without ending the others
            _log.exception("a step of %s failed", part.name)
            self._failed(part, "failed", error)
        else:
            part.failures = 0
            part.due = time.monotonic() + part.period
            ACTUATOR_LAST_STEP.labels(part.name).set(time.time())

    def _failed(self, part: Part, result: str, error: Exception) -> None:
        ACTUATIONS.labels(part.name, result).inc()
        _log.warning("%s waits: %s", part.name, error)
        part.failures += 1
        part.due = time.monotonic() + min(part.period * 2.0**part.failures, LONGEST_BACKOFF)
