# SPDX-License-Identifier: Apache-2.0
"""A loop that no part can stop, and that stops when it is told."""

from __future__ import annotations

import threading

from shoal_client.actuate.loop import Loop, Part
from shoal_common.errors import Transient


def test_a_failing_part_neither_ends_the_thread_nor_holds_the_others() -> None:
    enough = threading.Event()
    steps = {"broken": 0, "away": 0, "good": 0}

    def broken() -> None:
        steps["broken"] += 1
        raise KeyError

    def away() -> None:
        steps["away"] += 1
        raise Transient("away")

    def good() -> None:
        steps["good"] += 1
        if steps["good"] >= 20:
            enough.set()

    loop = Loop("t", [Part("a", broken, 0.05), Part("b", away, 0.05), Part("c", good, 0.01)], lambda: True)
    loop.start()
    assert enough.wait(10)
    assert loop.alive_within(5)
    loop.stop()
    assert 1 <= steps["broken"] < steps["good"]  # it waits longer each time
    assert 1 <= steps["away"] < steps["good"]


def test_only_while_leading_and_wanted_and_at_once_when_woken() -> None:
    leads, wanted, stepped = threading.Event(), threading.Event(), threading.Event()
    loop = Loop("t", [Part("a", stepped.set, 3600.0, wanted.is_set)], leads.is_set)
    loop.start()
    for condition in (leads, wanted):
        loop.wake()
        assert not stepped.wait(0.1)
        condition.set()
    loop.wake()
    assert stepped.wait(5)
    stepped.clear()
    loop.wake()
    assert stepped.wait(5)
    loop.stop()
    assert not loop.alive_within(-1)
