# SPDX-License-Identifier: Apache-2.0
"""Locks are leases for a UID, by the monotonic clock."""

from __future__ import annotations

from shoal_client.actuate.locks import Locks


def test_case_25_a_lock_is_a_lease_of_a_uid() -> None:
    """Re-entrant for the same pod, refused to others, released on its deletion, expired by monotonic time."""
    now = 0.0
    locks = Locks(lambda: now)
    assert locks.acquire("node-a", "pod-1", 30)
    assert locks.acquire("node-a", "pod-1", 30)
    assert not locks.acquire("node-a", "pod-2", 30)
    assert locks.holder("node-a") == "pod-1"
    locks.release("pod-1")
    assert locks.acquire("node-a", "pod-2", 30)
    now = 29.9
    assert not locks.acquire("node-a", "pod-1", 30)
    now = 30.0
    assert locks.holder("node-a") == ""
    assert locks.acquire("node-a", "pod-1", 30)


def test_taking_it_again_extends_it() -> None:
    now = 0.0
    locks = Locks(lambda: now)
    locks.acquire("node-a", "pod-1", 10)
    now = 9.0
    locks.acquire("node-a", "pod-1", 10)
    now = 18.0
    assert locks.holder("node-a") == "pod-1"


def test_release_gives_back_all_of_an_owner_and_nothing_else() -> None:
    locks = Locks(lambda: 0.0)
    for node, owner in (("a", "1"), ("b", "1"), ("c", "2")):
        assert locks.acquire(node, owner, 1)
    locks.release("1")
    assert [locks.holder(n) for n in "abc"] == ["", "", "2"]
