# SPDX-License-Identifier: Apache-2.0
"""No request waits for the garbage collector to walk a whole cluster.

A full collection visits every object: with 50,000 pods in memory that is a second in which nothing answers.
So what has lived for a while is collected once and then frozen, out of the collector's sight; reference
counts free it all the same. Nor does one wait for pages: glibc gives the memory of a large array back to the
kernel as soon as it is free, and 500 page faults were a sixth of a decision on 5,000 nodes.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import final

from shoal_client.periodic import Periodic

EVERY_SECONDS, AT_START_SECONDS = 10.0, 0.25
YOUNG, MIDDLE, FULL = 20_000, 20, 1_000_000
"""Thresholds of the generations: full collections happen here alone."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
FROM_HEAP_BYTES, KEPT_BYTES = 4 * 2**20, 16 * 2**20


def keep_pages() -> bool:
    """Keep up to `KEPT_BYTES` of freed memory for the next decision; whether the C library can (glibc)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, FROM_HEAP_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))


@final
class Heap:
    """Collects and freezes every few seconds between `start` and `stop`."""

    def __init__(self, full: Callable[[], bool]) -> None:
        """`full` says that the caches are, after which little comes that stays."""
        self._full = full
        self._before = gc.get_threshold()
        self.settled = False  # whether the caches are frozen: from here on collections are short
        self._freezing = Periodic("heap", self._freeze, self._pause)

    def start(self) -> None:
        """Take over from the automatic full collections."""
        gc.set_threshold(YOUNG, MIDDLE, FULL)
        gc.collect()
        gc.freeze()
        self._freezing.start()

    def stop(self) -> None:
        """Hand everything back to the collector."""
        self._freezing.stop()
        gc.unfreeze()
        gc.set_threshold(*self._before)

    def _pause(self) -> float:
        return EVERY_SECONDS if self.settled else AT_START_SECONDS

    def _freeze(self) -> None:
        if self.settled or self._full():
            gc.collect()
            gc.freeze()
            self.settled = True
