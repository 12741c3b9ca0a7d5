# SPDX-License-Identifier: Apache-2.0
"""What lives long is out of the collector's sight, and comes back when serving ends."""

from __future__ import annotations

import gc
import time

from shoal_client.serve.heap import Heap


def test_caches_are_frozen_once_they_are_full() -> None:
    thresholds, full = gc.get_threshold(), False
    heap = Heap(lambda: full)
    heap.start()
    imported = gc.get_freeze_count()
    assert imported > 0
    assert not heap.settled
    caches = [[i] for i in range(10_000)]
    full = True
    until = time.monotonic() + 10
    while not heap.settled and time.monotonic() < until:
        time.sleep(0.02)
    assert gc.get_freeze_count() >= imported + len(caches)
    heap.stop()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds
