# SPDX-License-Identifier: Apache-2.0
"""A daemon thread that takes one step again and again, and outlives whatever a step raises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, final

from shoal_client.metrics import BACKGROUND_ERRORS

STOP_SECONDS: Final = 2.0

_log = logging.getLogger("shoal.client")


@final
class Periodic:
    """Takes `step` every `seconds` between `start` and `stop`, the first one after the first pause."""

    def __init__(self, name: str, step: Callable[[], object], seconds: Callable[[], float] | float) -> None:
        """`seconds` may be a function, asked before each pause."""
        self._step, self._seconds = step, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step under way, which is waited for some time; nothing before `start`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds() if callable(self._seconds) else self._seconds):
            try:
                self._step()
            except Exception:  # the next step may be well, and without a thread there is none
                BACKGROUND_ERRORS.labels(self._thread.name).inc()
                _log.exception("a step of %s failed", self._thread.name)
