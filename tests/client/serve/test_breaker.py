# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker on a clock that the test turns."""

from __future__ import annotations

from shoal_client.serve.breaker import Breaker


class Clock:
    """A monotonic clock."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(3, 5.0, clock)
    for _ in range(3):
        assert breaker.admits()
        breaker.failed()
    return breaker


def test_it_opens_after_a_row_of_failures_only() -> None:
    breaker = Breaker(3, 5.0, Clock())
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.admits()
    assert not breaker.open


def test_half_open_lets_one_attempt_decide() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert breaker.open
    assert not breaker.admits()
    clock.now = 5.0
    assert [breaker.admits() for _ in range(3)] == [True, False, False]
    breaker.failed()
    clock.now = 9.9
    assert not breaker.admits()
    clock.now = 10.0
    assert breaker.admits()
    breaker.succeeded()
    assert [breaker.admits() for _ in range(3)] == [True, True, True]


def test_an_attempt_that_never_reports_gives_way_to_another() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 5.0
    assert breaker.admits()
    clock.now = 9.0
    assert not breaker.admits()
    clock.now = 10.0
    assert breaker.admits()
