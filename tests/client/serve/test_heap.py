# SPDX-License-Identifier: Apache-2.0
"""What lives long is out of the collector's sight, and comes back when serving ends."""

from __future__ import annotations

import gc
import platform
import time

from shoal_client.serve.heap import Heap, keep_pages


def test_caches_are_frozen_once_they_are_full() -> None:
    thresholds, full = gc.get_threshold(), False
    heap = Heap(lambda: full)
    heap.start()
    assert gc.get_freeze_count() > 0  # what is imported
    caches = [[i] for i in range(1_000)]
    assert not heap.settled
    assert seen_by_collector(caches) == len(caches)
    full = True
    until = time.monotonic() + 60  # it collects first, which takes its time after a thousand other tests
    while not heap.settled and time.monotonic() < until:
        time.sleep(0.02)
    assert seen_by_collector(caches) == 0
    heap.stop()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds


def seen_by_collector(objects: list[list[int]]) -> int:
    """How many of them a collection would visit; the count of all frozen objects falls as others die."""
    visited = {id(obj) for obj in gc.get_objects()}
    return sum(id(obj) in visited for obj in objects)


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    assert keep_pages() == (platform.libc_ver()[0] == "glibc")
