# SPDX-License-Identifier: Apache-2.0
"""Locks on nodes for the slow actions: at most one of a layout change and a migration works on a node.

A lock is a lease in the memory of the leader: it names the UID it is held for, may be taken again by the
same UID, ends when that object is deleted, and expires by the monotonic clock. Nothing of it is written to
the API, so a crash leaves none behind; that only the leader acts keeps two processes apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Held:
    owner_uid: str
    until: float


class Locks:
    """Named leases. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._mutex = threading.Lock()

    def acquire(self, name: str, owner_uid: str, seconds: float) -> bool:
        """Take or extend the lock for an owner; False while another holds it."""
        with self._mutex:
            if self._holder(name) not in ("", owner_uid):
                return False
            self._held[name] = _Held(owner_uid, self._clock() + seconds)
            return True

    def release(self, owner_uid: str) -> None:
        """Give back all that is held for this UID: it is done, or its object was deleted."""
        with self._mutex:
            self._held = {n: held for n, held in self._held.items() if held.owner_uid != owner_uid}

    def holder(self, name: str) -> str:
        """UID the lock is held for, "" when it is free."""
        with self._mutex:
            return self._holder(name)

    def _holder(self, name: str) -> str:
        held = self._held.get(name)
        return held.owner_uid if held is not None and self._clock() < held.until else ""
