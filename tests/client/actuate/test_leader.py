# SPDX-License-Identifier: Apache-2.0
"""One leader, by observed time: whatever the wall clocks say, and whatever the API does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_client.actuate.leader import Leader, LeaseSettings
from shoal_client.kube.api import Api, connect
from shoal_common.errors import Transient
from shoal_simulations.control_plane import ApiServer

LEASE = ("leases", "shoal", "default")


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return connect(server.kubeconfig(tmp_path / "kubeconfig"))


def candidate(api: Api, identity: str, clock: Clock) -> Leader:
    return Leader(api, LeaseSettings("shoal", "default", identity, actuates=True), clock)


def test_the_first_leads_and_the_second_waits(server: ApiServer, api: Api) -> None:
    clock = Clock()
    a, b = candidate(api, "a", clock), candidate(api, "b", clock)
    assert not a.is_led()
    assert a.try_acquire_or_renew()
    assert a.is_leader()
    assert not b.try_acquire_or_renew()
    assert not b.is_leader()
    assert b.is_led()
    spec = server.get(*LEASE)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)


def test_a_leader_that_takes_no_gates_off_is_no_reason_to_put_them_on(server: ApiServer, api: Api) -> None:
    clock = Clock()
    a, b = Leader(api, LeaseSettings("shoal", "default", "a"), clock), candidate(api, "b", clock)
    a.try_acquire_or_renew()
    assert a.is_leader()
    assert not a.is_led()
    assert b.try_acquire_or_renew()  # it gives way to one that does
    assert not a.try_acquire_or_renew()
    assert not a.is_leader()
    assert a.is_led()
    clock.now = 1.0
    assert b.try_acquire_or_renew()
    assert server.get(*LEASE)["spec"]["leaseTransitions"] == 1


def test_expiry_counts_from_the_last_change_that_was_seen(server: ApiServer, api: Api) -> None:
    """The renewTime in the lease is of a clock that is a year wrong and means nothing."""
    clock = Clock()
    a, b = candidate(api, "a", clock), candidate(api, "b", clock)
    a.try_acquire_or_renew()
    server.patch("leases", "shoal", {"spec": {"renewTime": "2031-01-01T00:00:00.000000Z"}})
    b.try_acquire_or_renew()
    clock.now = 14.9
    assert not b.try_acquire_or_renew()
    server.patch("leases", "shoal", {"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}})
    assert not b.try_acquire_or_renew()  # it changed: another 15 s from now
    clock.now = 29.8
    assert not b.try_acquire_or_renew()
    clock.now = 29.9
    assert b.try_acquire_or_renew()
    assert server.get(*LEASE)["spec"]["leaseTransitions"] == 1


def test_a_leader_that_cannot_renew_stops_before_another_may_start(server: ApiServer, api: Api) -> None:
    clock = Clock()
    a = candidate(api, "a", clock)
    a.try_acquire_or_renew()
    server.down()
    clock.now = 5.0
    with pytest.raises(Transient):
        a.try_acquire_or_renew()
    assert a.is_leader()
    clock.now = 10.0
    assert not a.is_leader()
    server.up()
    assert a.try_acquire_or_renew()
    assert a.is_leader()


def test_a_lease_that_was_taken_is_lost_at_once(server: ApiServer, api: Api) -> None:
    clock = Clock()
    a = candidate(api, "a", clock)
    a.try_acquire_or_renew()
    server.patch("leases", "shoal", {"spec": {"holderIdentity": "z"}})
    assert not a.try_acquire_or_renew()
    assert not a.is_leader()


def test_a_lease_that_was_deleted_is_made_again(server: ApiServer, api: Api) -> None:
    a = candidate(api, "a", Clock())
    a.try_acquire_or_renew()
    server.delete("leases", "shoal")
    assert a.try_acquire_or_renew()
    assert server.get(*LEASE)["spec"]["holderIdentity"] == "a"


def test_of_many_at_once_one_leads(server: ApiServer, api: Api) -> None:
    clock = Clock()
    candidates = [candidate(api, f"c{i}", clock) for i in range(8)]
    for _ in range(3):
        threads = [threading.Thread(target=c.try_acquire_or_renew) for c in candidates]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(c.is_leader() for c in candidates) == 1
        clock.now += 16.0  # all may try again
        assert not any(c.is_leader() for c in candidates)


def test_run_and_release(server: ApiServer, api: Api) -> None:
    """In its own thread; stopping gives the lease back, so that the next need not wait."""
    quick = {"duration_seconds": 1, "renew_seconds": 0.6, "retry_seconds": 0.05}
    a = Leader(api, LeaseSettings("shoal", "default", "a", **quick))  # type: ignore[arg-type]
    b = Leader(api, LeaseSettings("shoal", "default", "b", **quick))  # type: ignore[arg-type]
    a.start()
    assert server.wait(a.is_leader)
    b.start()
    a.stop()
    assert not a.is_leader()
    assert server.wait(b.is_leader)
    assert server.get(*LEASE)["spec"]["holderIdentity"] == "b"
    b.stop()
    assert server.get(*LEASE)["spec"]["holderIdentity"] == ""
