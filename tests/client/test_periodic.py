# SPDX-License-Identifier: Apache-2.0
"""A periodic step: taken again and again, also after an error, and no more once stopped."""

from __future__ import annotations

import threading

from shoal_client.metrics import BACKGROUND_ERRORS
from shoal_client.periodic import Periodic


def test_a_step_that_fails_is_counted_and_taken_again() -> None:
    turns, enough = [0], threading.Event()
    count = BACKGROUND_ERRORS.labels("test-periodic")

    def step() -> None:
        turns[0] += 1
        if turns[0] == 3:
            enough.set()
        raise ValueError("nothing is right")

    before = count._value.get()
    periodic = Periodic("test-periodic", step, lambda: 0.001)
    periodic.start()
    assert enough.wait(10)
    periodic.stop()
    taken = turns[0]
    assert count._value.get() - before == taken
    assert "test-periodic" not in {thread.name for thread in threading.enumerate()}


def test_stopping_what_never_started_does_nothing() -> None:
    Periodic("test-idle", lambda: None, 1.0).stop()
