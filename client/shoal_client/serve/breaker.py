# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker: after a row of failures nothing is tried for a while, then one attempt decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import final

FAILURES = 5
REST_SECONDS = 5.0


@final
class Breaker:
    """Closed while things work; open after `failures` in a row; half open once `rest_seconds` have passed.

    Half open lets a single attempt through: its success closes the breaker, its failure opens it again. An
    attempt that never reports gives way to another after the same rest. Thread-safe.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        rest_seconds: float = REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._rest, self._clock = failures, rest_seconds, clock
        self._row = 0
        self._until = 0.0
        self._mutex = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether it has opened and no attempt has succeeded since."""
        return self._row >= self._limit

    def admits(self) -> bool:
        """Whether an attempt may be made now; while half open the caller that hears True is the attempt."""
        with self._mutex:
            if self._row < self._limit:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + self._rest
            return True

    def succeeded(self) -> None:
        """An attempt worked: the breaker is closed."""
        with self._mutex:
            self._row = 0

    def failed(self) -> None:
        """An attempt did not work."""
        with self._mutex:
            self._row = min(self._row + 1, self._limit)
            self._until = self._clock() + self._rest
